//! Finds the Secrets that Gateways present, and the namespaces in which Istio reads them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::api::Kind;
use crate::api::names::{REWRITE, REWRITE_DISABLED};
use crate::json::Json;
use crate::registry::Place;
use crate::rewrite::{self, Named, TlsSettings, TrustSource};
use crate::rotation::gateway_service::{DEFAULT_NAMESPACE, has_labels, namespace, pod};

/// Secrets by namespace and name, and references that cannot be resolved.
#[derive(Default)]
pub(super) struct ServedSecrets<'a> {
    pub(super) by_place: BTreeMap<(&'a str, &'a str), ServedSecret<'a>>,
    pub(super) left_out: Vec<String>,
}

/// A Secret that Gateways present.
pub(super) struct ServedSecret<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    uses: Vec<Use<'a>>,
}

/// A Gateway that presents it.
struct Use<'a> {
    title: String,
    /// The selector of an Istio Gateway.
    selector: Option<BTreeMap<&'a str, &'a str>>,
    /// Whether the namespace is a guess because no pod with the labels exists.
    is_guessed: bool,
    asks_clients: bool,
    /// The hosts for which it presents the Secret.
    hosts: Vec<&'a str>,
    /// Another Secret by which it verifies clients.
    ca_from: Option<&'a str>,
    /// Namespaces and names of ConfigMaps by which it verifies clients.
    config_maps: Vec<(&'a str, &'a str)>,
    /// The GatewayClass of a Gateway of the Gateway API.
    class: Option<&'a str>,
}

/// The Gateways among the objects.
pub(super) fn gateways(objects: &[Value]) -> Vec<Json<'_>> {
    let gateways = objects
        .iter()
        .filter(|object| object["kind"] == "Gateway" && object["metadata"]["deletionTimestamp"].is_null());
    gateways.map(Json::from).collect()
}

fn namespace_of<'a>(gateway: &'a Json<'a>) -> &'a str {
    gateway["metadata"]["namespace"].as_str().unwrap_or(DEFAULT_NAMESPACE)
}

/// See [`super::GenerateInput::selectors`].
pub(super) fn selectors<'a>(gateways: &'a [Json<'a>]) -> BTreeSet<BTreeMap<&'a str, &'a str>> {
    let selected =
        |gateway| rewrite::names(Kind::of(gateway), gateway, namespace_of(gateway)).into_iter().find_map(selector);
    gateways.iter().filter_map(selected).filter(|selector| !selector.is_empty()).collect()
}

fn selector<'a>(named: Named<'a>) -> Option<BTreeMap<&'a str, &'a str>> {
    match named.place {
        Place::Selected(selector) => Some((*selector).clone()),
        Place::Namespace(_) | Place::Granted { .. } | Place::AllGateways { .. } => None,
    }
}

impl<'a> ServedSecrets<'a> {
    pub(super) fn of(objects: &'a [Value], gateways: &'a [Json<'a>]) -> Self {
        let mut served = Self::default();
        for gateway in gateways {
            served.take(objects, gateway);
        }
        served
    }

    fn take(&mut self, objects: &'a [Value], object: &'a Json<'a>) {
        let (kind, own) = (Kind::of(object), namespace_of(object));
        let which = if kind.group == "networking.istio.io" { "Istio Gateway" } else { "Gateway" };
        let name = object["metadata"]["name"].as_str().unwrap_or("?");
        let title = format!("{which} {own}/{name}");
        if object["metadata"]["annotations"][REWRITE] == REWRITE_DISABLED {
            self.left_out
                .push(format!("{title}: its annotation {REWRITE}: {REWRITE_DISABLED} excludes it from rewriting"));
            return;
        }
        let all = rewrite::tls_settings(kind, object, own);
        for named in rewrite::names(kind, object, own) {
            let pointer = named.pointer();
            let Some((server, settings)) = served_by(object, &pointer) else { continue };
            let (name, selector) = (named.name, selector(named.clone()));
            let places = match (&named.place, &selector) {
                (Place::Namespace(namespace) | Place::Granted { namespace, .. }, _) => vec![(*namespace, false)],
                (_, Some(selector)) if selector.is_empty() => {
                    self.left_out
                        .push(format!("{title}: it selects all workloads of the mesh, and is never rewritten"));
                    return;
                }
                (_, selector) => looked_up(objects, selector.as_ref(), name),
            };
            if places.is_empty() {
                let labels = selector.iter().flatten().map(|(key, value)| format!("{key}={value}"));
                let labels = labels.collect::<Vec<_>>().join(",");
                self.left_out.push(format!(
                    "{title}: no pod with {labels} was found, so the namespace of Secret {name} is unknown: start the gateway, or write a \
                     GatewaySecret in its namespace"
                ));
            }
            for (namespace, is_guessed) in places {
                let served = self.by_place.entry((namespace, name));
                let served = served.or_insert_with(|| ServedSecret { namespace, name, uses: Vec::new() });
                let asks_clients = asks_clients(object, settings);
                let config_maps: Vec<_> = trust_of(&all, &pointer).collect();
                let ca_from =
                    settings["caCertCredentialName"].as_str().filter(|ca| *ca != name && config_maps.is_empty());
                served.uses.push(Use {
                    title: title.clone(),
                    selector: selector.clone(),
                    is_guessed,
                    asks_clients,
                    hosts: hosts(server),
                    ca_from,
                    config_maps,
                    class: object["spec"]["gatewayClassName"].as_str(),
                });
            }
        }
    }
}

/// The ConfigMaps by which a server verifies clients. The server is the one that presents the Secret named at a JSON
/// pointer.
fn trust_of<'s, 'a>(all: &'s [TlsSettings<'a>], pointer: &'s str) -> impl Iterator<Item = (&'a str, &'a str)> + 's {
    let presents = move |settings: &&TlsSettings<'_>| settings.presents.iter().any(|named| named.pointer() == pointer);
    all.iter().filter(presents).filter_map(|settings| match settings.trust {
        TrustSource::ConfigMap { namespace, name } => Some((namespace, name)),
        _ => None,
    })
}

/// The server or listener with its TLS settings, if the reference at a JSON pointer names its serving certificate.
fn served_by<'a>(object: &'a Json<'a>, pointer: &str) -> Option<(&'a Json<'a>, &'a Json<'a>)> {
    let (server, field) = pointer.rsplit_once("/tls/")?;
    let serves = ["credentialName", "certificateRefs"].iter().any(|name| field.starts_with(name));
    let is_server = server.starts_with("/spec/servers/") || server.starts_with("/spec/listeners/");
    let server = object.pointer(server).filter(|_| serves && is_server)?;
    Some((server, &server["tls"]))
}

/// The hosts of an Istio server, without their namespaces, or the hostname of a Gateway API listener.
fn hosts<'a>(server: &'a Json<'a>) -> Vec<&'a str> {
    let named = server["hosts"].as_array().into_iter().flatten().chain([&server["hostname"]]).filter_map(Json::as_str);
    named.map(|host| host.rsplit_once('/').map_or(host, |(_, host)| host)).collect()
}

/// Whether clients may, or must, present a certificate.
fn asks_clients(object: &Json<'_>, settings: &Json<'_>) -> bool {
    let mode = settings["mode"].as_str().unwrap_or_default();
    mode.ends_with("MUTUAL")
        || [&object["spec"]["tls"]["frontend"], &settings["frontendValidation"]].iter().any(|v| !v.is_null())
}

/// The namespaces in which Istio reads a Secret for workloads with these labels, and whether they are a guess: if no
/// such pod exists, it is the namespace in which a Certificate writes the Secret.
fn looked_up<'a>(objects: &'a [Value], selector: Option<&BTreeMap<&str, &str>>, name: &str) -> Vec<(&'a str, bool)> {
    let Some(selector) = selector else { return Vec::new() };
    let picked = |object: &&Value| pod(object).is_some_and(|pod| has_labels(pod, selector));
    let namespaces: BTreeSet<_> = objects.iter().filter(picked).map(namespace).collect();
    if !namespaces.is_empty() {
        return namespaces.into_iter().map(|namespace| (namespace, false)).collect();
    }
    let writes = |object: &&Value| match object["kind"].as_str() {
        Some("Certificate") => object["spec"]["secretName"] == name,
        Some("Secret") => object["metadata"]["name"] == name,
        _ => false,
    };
    let guessed: BTreeSet<_> = objects.iter().filter(writes).map(namespace).collect();
    if guessed.len() == 1 { guessed.into_iter().map(|namespace| (namespace, true)).collect() } else { Vec::new() }
}

impl ServedSecret<'_> {
    /// Whether a Gateway verifies clients.
    pub(super) fn asks_clients(&self) -> bool {
        self.uses.iter().any(|one| one.asks_clients)
    }

    /// The hosts for which Gateways present it.
    pub(super) fn hosts(&self) -> impl Iterator<Item = &str> {
        self.uses.iter().flat_map(|one| &one.hosts).copied()
    }

    /// The labels that all selectors have in common; the default without selectors.
    pub(super) fn workload_labels(&self) -> BTreeMap<&str, &str> {
        let selectors = self.uses.iter().filter_map(|one| one.selector.as_ref());
        let common = selectors.cloned().reduce(|mut common, other| {
            common.retain(|key, value| other.get(key) == Some(value));
            common
        });
        common.filter(|labels| !labels.is_empty()).unwrap_or_else(|| BTreeMap::from([("istio", "ingressgateway")]))
    }

    /// The ConfigMaps in its namespace by which Gateways verify clients.
    pub(super) fn config_maps(&self) -> BTreeSet<&str> {
        let all = self.uses.iter().flat_map(|one| &one.config_maps);
        all.filter(|(namespace, _)| *namespace == self.namespace).map(|(_, name)| *name).collect()
    }

    /// Comments on the Gateways that use it, and on what is unknown.
    pub(super) fn comments(&self) -> Vec<String> {
        let asks = |one: &Use<'_>| if one.asks_clients { ", which verifies clients" } else { "" };
        let mut comments: Vec<_> = self.uses.iter().map(|one| format!("used by {}{}", one.title, asks(one))).collect();
        comments.dedup();
        if self.uses.iter().any(|one| one.is_guessed) {
            comments.push(format!(
                "namespace {} is a guess: no pod that these Gateways select was found, and Secret {} is written there",
                self.namespace, self.name
            ));
        }
        let mut selectors: Vec<_> = self.uses.iter().filter_map(|one| one.selector.as_ref()).collect();
        selectors.sort_unstable();
        selectors.dedup();
        let labels = self.workload_labels();
        if selectors.is_empty() {
            comments.push(
                "the Gateways name it in their own namespace: workloadLabels has its default, and is not used"
                    .to_owned(),
            );
        } else if selectors.iter().any(|selector| !labels.iter().all(|pair| selector.get(pair.0) == Some(pair.1))) {
            comments.push(
                "the Gateways select workloads with nothing in common: only Gateways that select workloadLabels are rewritten"
                    .to_owned(),
            );
        } else if selectors.len() > 1 {
            comments
                .push("the Gateways select different workloads: workloadLabels is what they have in common".to_owned());
        }
        for (title, ca) in self.uses.iter().filter_map(|one| Some((&one.title, one.ca_from?))) {
            comments.push(format!(
                "{title} verifies clients by Secret {ca} (caCertCredentialName): remove that field, so that it uses the managed Secret"
            ));
        }
        let unknown =
            |one: &&Use<'_>| one.class.is_some_and(|class| !class.starts_with("istio")) && !one.config_maps.is_empty();
        for Use { title, class, .. } in self.uses.iter().filter(unknown) {
            comments.push(format!(
                "{title} is of class {}: the Gateway API leaves it to the implementation whether it uses more than one CA of a ConfigMap. \
                 Test that before a rotation needs it",
                class.unwrap_or_default()
            ));
        }
        let elsewhere = self.uses.iter().flat_map(|one| one.config_maps.iter().map(move |from| (&one.title, from)));
        for (title, (namespace, name)) in elsewhere.filter(|(_, (namespace, _))| *namespace != self.namespace) {
            comments.push(format!(
                "{title} verifies clients by ConfigMap {namespace}/{name} in another namespace, which the agent does not write: in a \
                 rotation, add the new CA there"
            ));
        }
        comments
    }
}
