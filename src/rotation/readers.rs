//! What gateways read besides the managed Secret: servers, listeners and upstreams that take their peers' CAs from another
//! source, present the source Secret itself, or present another Secret next to ours.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::grants::{Grants, Referrer};
use crate::api::names::{CACERT_SUFFIX, REWRITE, REWRITE_DISABLED, UNDO};
use crate::api::{Kind, SourceKind};
use crate::json::Json;
use crate::registry::{Entry, Place};
use crate::rewrite::{Named, TrustSource, names, tls_settings};
use crate::trust::{self, Certificate, Secret, SecretError};

/// The most readers that are judged. A hostile namespace can have any number of Gateways.
const READERS: usize = 256;

/// A server, listener or upstream of a gateway that uses a GatewaySecret's certificates. Equal ones count once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsReader {
    /// Kind, namespace and name: `Gateway apps/public`.
    pub object: String,
    /// The field that decides about the CAs, as users write it.
    pub field: String,
    /// Where its peers' CAs come from.
    pub trust: ReaderTrust,
    /// How kubectl names the object, without its namespace: `gateways.networking.istio.io public`.
    pub resource: String,
    /// The object's namespace.
    pub namespace: String,
    /// It presents the managed or the source Secret's certificate to upstreams, as a client.
    pub is_client: bool,
    /// It presents the certificate of the source Secret itself.
    pub presents_source: bool,
    /// Whether its owner wrote the managed Secret's name. Otherwise the webhook did.
    pub names_managed: bool,
    /// Names of further Secrets that it presents, in the GatewaySecret's namespace.
    pub presents_also: Vec<String>,
    /// SHA-256 hashes of certificates or public keys to which its clients are limited.
    pub pins: Vec<String>,
    /// Whether it has annotation `trustspan.dev/rewrite: disabled`.
    pub opted_out: bool,
    /// It is a DestinationRule that another namespace exports: the webhook rewrites it only if that namespace has a GatewaySecret with the
    /// same source Secret, since it can be for other gateways.
    pub is_exported: bool,
    /// It is an Istio Gateway that does not select `spec.workloadLabels`, so the webhook does not rewrite it.
    pub selects_others: bool,
    /// The annotation by which cert-manager makes its Certificate, so the webhook does not rewrite it.
    pub issuer_annotation: Option<&'static str>,
    /// The objects with CAs that it uses without the consent of their owners: no ReferenceGrant in their namespace lets it use them.
    pub ungranted_sources: Vec<SourceName>,
    /// It is in another namespace, without the consent of the GatewaySecret's owner: what it reads and presents does not count.
    pub is_ungranted: bool,
}

/// Where a reader takes its peers' CAs from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReaderTrust {
    /// It verifies no peer, or accepts any certificate.
    NotVerified,
    /// The first of these that exists.
    FirstOf(Vec<SourceName>),
    /// A source outside of the cluster's objects: what it is.
    Unknowable(String),
    /// Objects of this kind could not be listed: why. It is unknown whether one of them uses another source.
    Unlisted(String),
}

/// An object that holds CAs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceName {
    /// Its kind.
    pub kind: SourceKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The keys of an object with CAs, as istiod reads them: a ConfigMap has the same as a Secret in plain text.
///
/// # Errors
/// When the object is not of the kind's shape.
pub fn decode(kind: SourceKind, object: &Json<'_>) -> Result<Secret, SecretError> {
    match kind {
        SourceKind::Secret => Secret::from_json(object),
        SourceKind::ConfigMap => {
            Secret::from_json(&Json::Object(vec![("stringData".into(), object["data"].clone())].into()))
        }
    }
}

impl SourceName {
    /// A Secret.
    pub fn secret(namespace: &str, name: impl Into<String>) -> Self {
        Self { kind: SourceKind::Secret, namespace: namespace.to_owned(), name: name.into() }
    }

    /// A ConfigMap.
    pub fn config_map(namespace: &str, name: impl Into<String>) -> Self {
        Self { kind: SourceKind::ConfigMap, namespace: namespace.to_owned(), name: name.into() }
    }

    /// As `kubectl` takes it: `secret/partners-cacert`.
    pub fn resource(&self) -> String {
        format!("{}/{}", self.kind.name().to_lowercase(), self.name)
    }
}

impl std::fmt::Display for SourceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind.name(), self.namespace, self.name)
    }
}

/// The readers among these objects. One more represents all Gateways that name only the managed Secret, listed or not:
/// the CAs of its `-cacert` sibling determine which clients they accept.
///
/// An Istio Gateway is included if its selector contains the workload labels, or selects one of `pods`. Objects of another namespace without
/// a grant come last, and without what they read.
pub fn readers<'o>(entry: &Entry, objects: impl IntoIterator<Item = &'o Value>, pods: &[&Value]) -> Vec<TlsReader> {
    let objects: Vec<_> = objects.into_iter().collect();
    let grants = Grants::of(objects.iter().copied());
    let (mut readers, mut ungranted) = (vec![of_managed(entry)], Vec::new());
    'objects: for object in &objects {
        let joined =
            with_parents_frontend(object, &objects).into_iter().chain(with_targets_listeners(object, &objects));
        let joined: Vec<_> = joined.collect();
        let parts = if joined.is_empty() { vec![*object] } else { joined.iter().collect() };
        let from = referrer(object);
        for mut reader in parts.into_iter().flat_map(|object| readers_of(entry, object, pods)) {
            let is_ungranted = |source: &&&SourceName| {
                let SourceName { kind, namespace, name } = source;
                *namespace != entry.namespace && !grants.allow(&from, *kind, namespace, name)
            };
            let named = std::slice::from_ref(&reader);
            reader.ungranted_sources =
                sources(named).iter().filter(is_ungranted).map(|source| (*source).clone()).collect();
            if readers.iter().any(|known| known.reads_as(&reader)) {
                continue;
            }
            if !is_granted(entry, &from, &grants) {
                if ungranted.len() < READERS {
                    ungranted.extend(reader.reduced());
                }
                continue;
            }
            if readers.len() == READERS {
                let why = format!("more than {READERS} differ in what they read");
                readers.push(TlsReader::of("Gateways", "", ReaderTrust::Unlisted(why)));
                break 'objects;
            }
            readers.push(reader);
        }
    }
    readers.extend(ungranted);
    readers
}

/// The object as ReferenceGrants name it.
fn referrer(object: &Value) -> Referrer {
    Referrer::new(Kind::of_value(object), object["metadata"]["namespace"].as_str().unwrap_or_default())
}

/// Whether an object may use a GatewaySecret's Secrets by the consent of their owner: it is in their namespace or in one of their clients, or a
/// ReferenceGrant there names its kind and namespace. istiod asks for one only where the proxy runs in the other namespace: an Istio Gateway or DestinationRule of any
/// namespace applies to the proxies that it selects.
fn is_granted(entry: &Entry, from: &Referrer, grants: &Grants) -> bool {
    let may_use = |name| grants.allow(from, SourceKind::Secret, &entry.namespace, name);
    entry.client_namespaces().any(|listed| listed == from.namespace)
        || [entry.source_name(), entry.managed_name()].into_iter().any(may_use)
}

fn readers_of(entry: &Entry, object: &Value, pods: &[&Value]) -> Vec<TlsReader> {
    let metadata = &object["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_default();
    let opted_out = metadata["annotations"][REWRITE] == REWRITE_DISABLED;
    let record = metadata["annotations"][UNDO].as_str().unwrap_or_default();
    let kind = Kind::of_value(object);
    // A ClientTrafficPolicy presents no certificate. The Gateway that it applies to is judged separately.
    let presents = kind.kind != "ClientTrafficPolicy";
    let mut readers = Vec::new();
    let json = Json::from(object);
    for settings in tls_settings(kind, &json, text("namespace")) {
        let is_at = |place: &Place<'_>| is_looked_up_by(place, entry, pods);
        let ours = [entry.source_name(), entry.managed_name()];
        let (own, others): (Vec<_>, Vec<_>) = settings
            .presents
            .iter()
            .filter(|named| is_at(&named.place))
            .partition(|named: &&Named<'_>| ours.contains(&named.name));
        let trusts = |name: &str| matches!(&settings.trust, TrustSource::Secret { place, name: named } if is_at(place) && *named == name);
        if own.is_empty() && !ours.iter().any(|name| trusts(name)) {
            continue;
        }
        let trust = trust(&settings.trust, entry, kind);
        let is_verified = trust != ReaderTrust::NotVerified;
        let is_exported =
            |named: &&Named<'_>| matches!(named.place, Place::AllGateways { from } if from != entry.namespace);
        let is_rewritten = record.contains(&format!("\"{}\"", settings.pointer()));
        readers.push(TlsReader {
            object: format!("{} {}/{}", kind.kind, text("namespace"), text("name")),
            field: settings.field(),
            trust,
            resource: format!("{} {}", resource(kind), text("name")),
            namespace: text("namespace").to_owned(),
            is_client: settings.is_upstream && !own.is_empty(),
            presents_source: presents && own.iter().any(|named| named.name == entry.source_name()),
            names_managed: !is_rewritten && trusts(entry.managed_name()),
            presents_also: others
                .iter()
                .filter(|_| presents)
                .map(|named| named.name.to_owned())
                .filter(|name| is_name(name))
                .collect(),
            pins: settings.pins.iter().filter(|_| is_verified).map(|pin| (*pin).to_owned()).collect(),
            opted_out,
            is_exported: own.iter().any(is_exported),
            selects_others: own.iter().any(|named| selects_others(&named.place, entry)),
            issuer_annotation: settings.issuer_annotation,
            ungranted_sources: Vec::new(),
            is_ungranted: false,
        });
    }
    readers
}

/// A ListenerSet with the frontend settings of the Gateway that it belongs to, by which istiod builds its listeners.
fn with_parents_frontend(object: &Value, objects: &[&Value]) -> Option<Value> {
    if object["kind"] != "ListenerSet" {
        return None;
    }
    let parent = &object["spec"]["parentRef"];
    let own = &object["metadata"]["namespace"];
    let namespace = if parent["namespace"].is_string() { &parent["namespace"] } else { own };
    let is_parent = |other: &&&Value| {
        let Kind { group, kind, .. } = Kind::of_value(other);
        let metadata = &other["metadata"];
        (group, kind) == ("gateway.networking.k8s.io", "Gateway")
            && metadata["name"] == parent["name"]
            && metadata["namespace"] == *namespace
    };
    let gateway = objects.iter().find(is_parent)?;
    let mut joined = object.clone();
    joined["spec"]["tls"] = gateway["spec"]["tls"].clone();
    Some(joined)
}

/// A ClientTrafficPolicy, once for each Gateway that it applies to, with the listeners of that Gateway.
fn with_targets_listeners(object: &Value, objects: &[&Value]) -> Vec<Value> {
    if object["kind"] != "ClientTrafficPolicy" {
        return Vec::new();
    }
    let spec = &object["spec"];
    let named = spec["targetRefs"].as_array().into_iter().flatten().chain([&spec["targetRef"]]);
    let named: Vec<_> = named.filter_map(|target| target["name"].as_str()).collect();
    let selectors = || spec["targetSelectors"].as_array().into_iter().flatten();
    let is_target = |other: &&&Value| {
        let (Kind { group, kind, .. }, metadata) = (Kind::of_value(other), &other["metadata"]);
        let is_named = || metadata["name"].as_str().is_some_and(|name| named.contains(&name));
        let has_labels = |selector: &Value| {
            let mut wanted = selector["matchLabels"].as_object().into_iter().flatten();
            // Label expressions are not evaluated: the policy counts as if they match.
            wanted.all(|(key, value)| metadata["labels"][key] == *value)
        };
        (group, kind) == ("gateway.networking.k8s.io", "Gateway")
            && metadata["namespace"] == object["metadata"]["namespace"]
            && (is_named() || selectors().any(has_labels))
    };
    let join = |gateway: &&Value| {
        let mut joined = object.clone();
        joined["spec"]["listeners"] = gateway["spec"]["listeners"].clone();
        joined
    };
    objects.iter().filter(is_target).map(join).collect()
}

/// Whether a name can be one of an object (RFC 1123 subdomain): anything else never reaches a request to the API server.
fn is_name(name: &str) -> bool {
    let is_char = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    (1..=253).contains(&name.len()) && name.bytes().all(is_char)
}

impl TlsReader {
    /// The hashes to which its clients are limited, in hex. Envoy takes those of certificates in hex, with or without colons, and those of keys in
    /// base64.
    pub(super) fn hashes(&self) -> BTreeSet<String> {
        let digits = |pin: &String| pin.replace(':', "").to_ascii_lowercase();
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let decoded = |pin: &String| STANDARD.decode(pin).ok().map(hex);
        self.pins.iter().flat_map(|pin| [Some(digits(pin)), decoded(pin)]).flatten().collect()
    }

    /// A reader of which only the source of its CAs is known.
    pub fn of(object: impl Into<String>, field: &str, trust: ReaderTrust) -> Self {
        Self {
            object: object.into(),
            field: field.to_owned(),
            trust,
            resource: String::new(),
            namespace: String::new(),
            is_client: false,
            presents_source: false,
            names_managed: false,
            presents_also: Vec::new(),
            pins: Vec::new(),
            opted_out: false,
            is_exported: false,
            selects_others: false,
            issuer_annotation: None,
            ungranted_sources: Vec::new(),
            is_ungranted: false,
        }
    }

    /// What counts of an object that was granted nothing: whether it presents a certificate to upstreams, for which their bundle keeps a CA.
    /// `None`: nothing is left, and nothing was taken from it.
    fn reduced(self) -> Option<Self> {
        let Self { object, field, is_client, .. } = &self;
        let left = Self { is_client: *is_client, ..Self::of(object, field, ReaderTrust::NotVerified) };
        let is_ungranted = self.trust != ReaderTrust::NotVerified
            || self.presents_source
            || self.names_managed
            || !self.presents_also.is_empty()
            || !self.pins.is_empty();
        (is_ungranted || *is_client).then_some(Self { is_ungranted, ..left })
    }

    fn reads_as(&self, other: &Self) -> bool {
        let flags = |reader: &Self| {
            let TlsReader { is_client, presents_source, names_managed, opted_out, is_exported, selects_others, .. } =
                reader;
            [is_client, presents_source, names_managed, opted_out, is_exported, selects_others].map(|flag| *flag)
        };
        let read = |reader: &Self| (flags(reader), reader.issuer_annotation, reader.trust.clone());
        read(self) == read(other)
            && self.presents_also == other.presents_also
            && self.pins == other.pins
            && self.ungranted_sources == other.ungranted_sources
    }
}

/// Whether a certificate or its key is among hashes in hex.
pub(super) fn is_among(hashes: &BTreeSet<String>, leaf: &Certificate) -> bool {
    !hashes.is_empty() && (hashes.contains(&leaf.fingerprint) || hashes.contains(&leaf.public_key_hash()))
}

fn of_managed(entry: &Entry) -> TlsReader {
    let trust = ReaderTrust::FirstOf(sibling_or_self(&entry.namespace, entry.managed_name()));
    TlsReader::of(format!("every Gateway that names Secret {}", entry.managed_name()), "credentialName", trust)
}

/// The plural of the kinds with TLS settings, with their group.
fn resource(kind: Kind<'_>) -> String {
    format!("{}s.{}", kind.kind.to_lowercase(), kind.group)
}

fn trust(source: &TrustSource<'_>, entry: &Entry, kind: Kind<'_>) -> ReaderTrust {
    let (namespace, name) = match source {
        TrustSource::NotVerified | TrustSource::Nothing(_) => return ReaderTrust::NotVerified,
        TrustSource::Unknowable(what) => return ReaderTrust::Unknowable((*what).chars().take(253).collect()),
        TrustSource::ConfigMap { namespace, name } => (*namespace, *name),
        TrustSource::Secret { place, name } => match place {
            // istiod gives a proxy Secrets of its namespace only (pilot/pkg/xds/sds.go).
            Place::Namespace(namespace) if kind.group == "networking.istio.io" && *namespace != entry.namespace => {
                return ReaderTrust::NotVerified;
            }
            Place::Namespace(namespace) | Place::Granted { namespace, .. } => (*namespace, *name),
            Place::Selected(_) | Place::AllGateways { .. } => (entry.namespace.as_str(), *name),
        },
    };
    if !is_name(namespace) || !is_name(name) {
        return ReaderTrust::NotVerified;
    }
    ReaderTrust::FirstOf(match source {
        // Envoy Gateway does not use `-cacert` siblings.
        TrustSource::Secret { .. } if kind.group == "gateway.envoyproxy.io" => {
            vec![SourceName::secret(namespace, name)]
        }
        TrustSource::ConfigMap { .. } => {
            vec![SourceName::config_map(namespace, name)]
        }
        _ => sibling_or_self(namespace, name),
    })
}

/// istiod takes Secret `<name>-cacert`, and only where there is none Secret `<name>`.
pub(super) fn sibling_or_self(namespace: &str, name: &str) -> Vec<SourceName> {
    vec![SourceName::secret(namespace, format!("{name}{CACERT_SUFFIX}")), SourceName::secret(namespace, name)]
}

/// The selectors of Istio Gateways that name the source Secret or the managed Secret of a GatewaySecret, and do not select its workload labels:
/// whether they use it depends on where their pods run. A Gateway without a selector is left out: it selects the labelled pods, too.
pub fn other_selectors<'o>(
    entry: &Entry,
    objects: impl IntoIterator<Item = &'o Value>,
) -> BTreeSet<BTreeMap<String, String>> {
    let objects: Vec<_> = objects.into_iter().collect();
    let grants = Grants::of(objects.iter().copied());
    let of = |object: &Value| {
        let (kind, json) = (Kind::of_value(object), Json::from(object));
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let ours = [entry.source_name(), entry.managed_name()];
        let named = names(kind, &json, namespace);
        let others = named.iter().filter(|named| ours.contains(&named.name) && selects_others(&named.place, entry));
        let selectors = others.filter_map(|named| match &named.place {
            Place::Selected(selector) if !selector.is_empty() => {
                Some(selector.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
            }
            _ => None,
        });
        selectors.collect::<Vec<_>>()
    };
    objects.into_iter().filter(|object| is_granted(entry, &referrer(object), &grants)).flat_map(of).collect()
}

fn selects_others(place: &Place<'_>, entry: &Entry) -> bool {
    matches!(place, Place::Selected(selector) if !entry.is_asked_for(selector))
}

pub(super) fn is_looked_up_by(place: &Place<'_>, entry: &Entry, pods: &[&Value]) -> bool {
    match place {
        Place::Namespace(namespace) | Place::Granted { namespace, .. } => *namespace == entry.namespace,
        Place::AllGateways { .. } => true,
        Place::Selected(selector) => {
            let picks = |pod: &&Value| {
                let labels = &pod["metadata"]["labels"];
                pod["metadata"]["namespace"] == entry.namespace.as_str()
                    && selector.iter().all(|(key, value)| labels[*key].as_str() == Some(value))
            };
            entry.is_asked_for(selector) || pods.iter().any(picks)
        }
    }
}

/// The text of an object with CAs, extended by those of `pems` that it lacks: the key that istiod reads, its new text, and
/// the subjects that were added. `None` when the object holds no CA that a proxy takes.
pub fn extended(kind: SourceKind, object: &Value, pems: &[&str]) -> Option<(String, String, Vec<String>)> {
    let secret = decode(kind, &Json::from(object)).ok()?;
    let held = trust::anchors(&secret);
    let bundle = trust::credential::ca_bundle(&secret).filter(|_| !held.is_empty())?;
    let wanted = pems.iter().flat_map(|pem| trust::bundle::read(pem.as_bytes()).into_certificates());
    let added: Vec<_> = wanted.filter(|ca| !held.contains(ca)).collect();
    // New first: an expired CA before its renewal hides it from Envoy.
    let mut text: String = added.iter().map(trust::Certificate::pem).collect();
    text.push_str(std::str::from_utf8(bundle.pem).ok()?);
    Some((bundle.key.to_owned(), text, added.into_iter().map(|ca| ca.subject).collect()))
}

/// The objects that these readers may take CAs from, each once.
pub fn sources(readers: &[TlsReader]) -> BTreeSet<&SourceName> {
    let all = readers.iter().filter_map(|reader| match &reader.trust {
        ReaderTrust::FirstOf(sources) => Some(sources),
        ReaderTrust::NotVerified | ReaderTrust::Unknowable(_) | ReaderTrust::Unlisted(_) => None,
    });
    all.flatten().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::tests::entry;
    use crate::trust::fixtures::{ca, parsed};

    fn gateway(namespace: &str, selector: Value, tls: Value) -> Value {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
            "metadata": {"namespace": namespace, "name": "public"},
            "spec": {"selector": selector, "servers": [{"tls": tls}]},
        })
    }

    fn ingress() -> Value {
        json!({"istio": "ingressgateway"})
    }

    /// Lets objects of Istio in namespace `apps` use a Secret of namespace `mesh`.
    fn grant(kind: &str, secret: &str) -> Value {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant",
            "metadata": {"namespace": "mesh", "name": "apps"},
            "spec": {
                "from": [{"group": "networking.istio.io", "kind": kind, "namespace": "apps"}],
                "to": [{"group": "", "kind": "Secret", "name": secret}],
            },
        })
    }

    #[test]
    fn an_object_of_another_namespace_counts_only_by_a_grant_to_its_kind_and_namespace() {
        let entry = entry("mesh", "root", "gw");
        let own_cas =
            json!({"mode": "MUTUAL", "credentialName": "root", "caCertCredentialName": "configmap://apps/none"});
        let object = gateway("apps", json!({"app": "edge"}), own_cas);
        let pod = json!({"metadata": {"namespace": "mesh", "labels": {"app": "edge"}}});
        let read = |grant: &Value| {
            let reader = readers(&entry, [&object, grant], &[&pod]).remove(1);
            let asks_for_pods = !other_selectors(&entry, [&object, grant]).is_empty();
            (reader.is_ungranted, reader.presents_source, sources(&[reader]).len(), asks_for_pods)
        };
        let mut of_all = grant("Gateway", "");
        of_all["spec"]["to"] = json!([{"group": "", "kind": "Secret"}]);
        for granted in [grant("Gateway", "root"), grant("Gateway", "gw"), of_all] {
            assert_eq!(read(&granted), (false, true, 1, true), "{granted}");
        }
        let mut elsewhere = grant("Gateway", "root");
        elsewhere["metadata"]["namespace"] = json!("apps");
        let mut from_another = grant("Gateway", "root");
        from_another["spec"]["from"][0]["namespace"] = json!("shop");
        for other in [json!({}), grant("DestinationRule", "root"), grant("Gateway", "other"), elsewhere, from_another] {
            assert_eq!(read(&other), (true, false, 0, false), "{other}");
        }
        let mut listing = entry.clone();
        listing.spec.clients.namespaces = vec!["apps".to_owned()];
        assert!(!readers(&listing, [&object], &[&pod]).remove(1).is_ungranted, "the owner lists the namespace");
        let as_intended = gateway("apps", ingress(), json!({"mode": "SIMPLE", "credentialName": "gw"}));
        assert_eq!(readers(&entry, [&as_intended], &[]).len(), 1, "nothing is taken from it");
    }

    #[test]
    fn a_source_in_another_namespace_is_granted_by_its_owner() {
        let tls = json!({"mode": "MUTUAL", "credentialName": "gw", "caCertCredentialName": "configmap://apps/cas"});
        let object = gateway("mesh", ingress(), tls);
        let mut from_mesh = grant("Gateway", "cas");
        from_mesh["metadata"]["namespace"] = json!("apps");
        from_mesh["spec"]["from"][0]["namespace"] = json!("mesh");
        from_mesh["spec"]["to"][0]["kind"] = json!("ConfigMap");
        let ungranted =
            |grant: &Value| readers(&entry("mesh", "root", "gw"), [&object, grant], &[]).remove(1).ungranted_sources;
        assert_eq!(ungranted(&json!({})), [SourceName::config_map("apps", "cas")]);
        assert_eq!(ungranted(&from_mesh), []);
        from_mesh["spec"]["to"][0]["kind"] = json!("Secret");
        assert_eq!(ungranted(&from_mesh).len(), 1, "a grant to another kind");
    }

    #[test]
    fn what_an_ungranted_rule_presents_to_upstreams_still_counts() {
        let rule = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
            "metadata": {"namespace": "apps", "name": "upstream"},
            "spec": {"trafficPolicy": {"tls": {"mode": "MUTUAL", "credentialName": "gw"}}},
        });
        let found = readers(&entry("mesh", "root", "gw"), [&rule], &[]).remove(1);
        assert!(found.is_client && sources(&[found]).is_empty());
    }

    #[test]
    fn ungranted_gateways_take_no_room_of_others() {
        let tls = |at: &str| json!({"mode": "MUTUAL", "credentialName": "gw", "caCertCredentialName": format!("configmap://{at}")});
        let hostile = (0..1000).map(|n| gateway("apps", ingress(), tls(&format!("apps/c{n}"))));
        let objects: Vec<_> = hostile.chain([gateway("mesh", ingress(), tls("mesh/partners"))]).collect();
        let found = readers(&entry("mesh", "root", "gw"), &objects, &[]);
        assert_eq!(found.len(), 2 + READERS);
        assert!(!found.iter().any(|reader| matches!(reader.trust, ReaderTrust::Unlisted(_))));
        let partners = SourceName::config_map("mesh", "partners");
        assert!(sources(&found).contains(&partners));
    }

    #[test]
    fn a_policy_of_envoy_gateway_is_a_reader_for_the_gateways_that_it_is_for() {
        let of = |target: Value, kind: Value| {
            let gateway = json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": {"namespace": "mesh", "name": "public", "labels": {"tier": "edge"}},
                "spec": {"listeners": [{"tls": {"certificateRefs": [{"name": "gw"}]}}]},
            });
            let mut policy = json!({
                "apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "ClientTrafficPolicy",
                "metadata": {"namespace": "mesh", "name": "mtls"},
                "spec": {"tls": {"clientValidation": {"caCertificateRefs": [{"name": "partners"}]}}},
            });
            policy["spec"]["tls"]["clientValidation"]["caCertificateRefs"][0]["kind"] = kind;
            for (key, value) in target.as_object().into_iter().flatten() {
                policy["spec"][key] = value.clone();
            }
            let found = readers(&entry("mesh", "root", "gw"), [&gateway, &policy], &[]);
            let policy = found.into_iter().find(|reader| reader.object == "ClientTrafficPolicy mesh/mtls");
            policy.map(|reader| (reader.field, reader.trust))
        };
        let field = || "spec.tls.clientValidation.caCertificateRefs[0].name".to_owned();
        let config_map = Some((field(), ReaderTrust::FirstOf(vec![SourceName::config_map("mesh", "partners")])));
        let named = || json!({"targetRefs": [{"kind": "Gateway", "name": "public"}]});
        assert_eq!(of(named(), json!("ConfigMap")), config_map);
        assert_eq!(of(json!({"targetSelectors": [{"matchLabels": {"tier": "edge"}}]}), json!("ConfigMap")), config_map);
        let secret = Some((field(), ReaderTrust::FirstOf(vec![SourceName::secret("mesh", "partners")])));
        assert_eq!(of(named(), Value::Null), secret, "a Secret by default, and no sibling");
        assert_eq!(of(json!({"targetRefs": [{"name": "another"}]}), json!("ConfigMap")), None);
        let unknown = Some((field(), ReaderTrust::Unknowable("ClusterTrustBundle".to_owned())));
        assert_eq!(of(named(), json!("ClusterTrustBundle")), unknown);
    }

    #[test]
    fn a_gateway_with_a_narrower_selector_counts_when_it_picks_a_pod() {
        let entry = entry("mesh", "root", "gw");
        let object = gateway("mesh", json!({"app": "edge"}), json!({"mode": "SIMPLE", "credentialName": "root"}));
        let pod = |namespace: &str| json!({"metadata": {"namespace": namespace, "labels": {"app": "edge", "istio": "ingressgateway"}}});
        let number = |pods: &[&Value]| readers(&entry, [&object], pods).len() - 1;
        assert_eq!((number(&[]), number(&[&pod("mesh")]), number(&[&pod("other")])), (0, 1, 0));
    }

    #[test]
    fn only_listeners_that_cert_manager_issues_for_have_the_annotation() {
        let listener = |name: &str| json!({"name": name, "tls": {"certificateRefs": [{"name": "root"}]}});
        let gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"namespace": "mesh", "name": "public", "annotations": {
                "cert-manager.io/issuer": "mesh-ca", "cert-manager.io/ignore-tls-listeners": "b",
            }},
            "spec": {"listeners": [listener("a"), listener("b")]},
        });
        let found = readers(&entry("mesh", "root", "gw"), [&gateway], &[]);
        let annotations: Vec<_> = found[1..].iter().map(|reader| reader.issuer_annotation).collect();
        assert_eq!(annotations, [Some("cert-manager.io/issuer"), None]);
    }

    #[test]
    fn a_rule_of_another_namespace_counts_as_exported_unless_it_is_limited_to_its_own() {
        let entry = entry("mesh", "root", "gw");
        let exported = |namespace: &str, export_to: Value| {
            let rule = json!({
                "apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
                "metadata": {"namespace": namespace, "name": "upstream"},
                "spec": {"exportTo": export_to, "trafficPolicy": {"tls": {"mode": "MUTUAL", "credentialName": "root"}}},
            });
            readers(&entry, [&rule, &grant("DestinationRule", "root")], &[]).get(1).map(|reader| reader.is_exported)
        };
        assert_eq!(exported("apps", Value::Null), Some(true));
        assert_eq!(exported("apps", json!(["."])), None, "it is for gateways of namespace apps");
        assert_eq!(exported("mesh", Value::Null), Some(false));
    }

    #[test]
    fn names_other_objects_in_the_namespace_only() {
        let entry = entry("mesh", "root", "gw");
        let tls = json!({"mode": "MUTUAL", "credentialNames": ["other", "gw", "elsewhere/third"]});
        let found = readers(&entry, [&gateway("mesh", ingress(), tls)], &[]).remove(1);
        assert_eq!((found.presents_also, found.presents_source), (vec!["other".to_owned()], false));
        assert_eq!(found.trust, ReaderTrust::FirstOf(sibling_or_self("mesh", "other")));
        let stranger = gateway("mesh", ingress(), json!({"mode": "MUTUAL", "credentialName": "other"}));
        assert_eq!(readers(&entry, [&stranger], &[]).len(), 1);
    }

    #[test]
    fn any_number_of_gateways_that_read_alike_count_once_and_others_are_bounded() {
        let entry = entry("mesh", "root", "gw");
        let tls = |n: usize| json!({"mode": "MUTUAL", "credentialName": "gw", "caCertCredentialName": format!("configmap://apps/c{n}")});
        let same: Vec<_> = (0..1000).map(|_| gateway("mesh", ingress(), tls(0))).collect();
        assert_eq!(readers(&entry, &same, &[]).len(), 2);
        let different: Vec<_> = (0..1000).map(|n| gateway("mesh", ingress(), tls(n))).collect();
        let found = readers(&entry, &different, &[]);
        assert_eq!(found.len(), READERS + 1);
        assert!(matches!(found[READERS].trust, ReaderTrust::Unlisted(_)), "what is left out is not taken for nothing");
    }

    #[test]
    fn a_listener_set_goes_by_its_parents_frontend() {
        let entry = entry("mesh", "root", "gw");
        let references = json!([{"group": "", "kind": "ConfigMap", "name": "partners"}]);
        let parent = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"namespace": "mesh", "name": "edge"},
            "spec": {"listeners": [], "tls": {"frontend": {"default": {"validation": {"caCertificateRefs": references}}}}},
        });
        let set = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet",
            "metadata": {"namespace": "mesh", "name": "shop"},
            "spec": {"parentRef": {"name": "edge"}, "listeners": [{"port": 443, "tls": {"certificateRefs": [{"name": "gw"}]}}]},
        });
        let trust = |objects: &[&Value]| readers(&entry, objects.iter().copied(), &[]).remove(1).trust;
        assert!(matches!(trust(&[&set, &parent]), ReaderTrust::FirstOf(sources) if sources[0].name == "partners"));
        assert_eq!(trust(&[&set]), ReaderTrust::NotVerified);
    }

    #[test]
    fn names_that_no_object_has_are_not_looked_up() {
        let entry = entry("mesh", "root", "gw");
        for odd in ["?watch=true", "a b", "A", "../x"] {
            let tls = json!({"mode": "MUTUAL", "credentialNames": ["gw", odd], "caCertCredentialName": format!("configmap://apps/{odd}")});
            let found = readers(&entry, [&gateway("mesh", ingress(), tls)], &[]).remove(1);
            assert_eq!(found.presents_also, [""; 0], "{odd}");
            assert!(!matches!(found.trust, ReaderTrust::FirstOf(_)), "{odd}");
        }
    }

    #[test]
    fn a_secret_of_another_namespace_is_not_served_to_an_istio_gateway() {
        let entry = entry("mesh", "root", "gw");
        let tls = json!({"mode": "MUTUAL", "credentialName": "gw", "caCertCredentialName": "kubernetes://kube-system/x-cacert"});
        assert_eq!(readers(&entry, [&gateway("mesh", ingress(), tls)], &[]).remove(1).trust, ReaderTrust::NotVerified);
    }

    #[test]
    fn what_an_object_holds_stays_when_it_is_extended() {
        let (old, new, partner) = (ca("old"), ca("new"), ca("partner"));
        let text = format!("# partners\n{}{}", partner.pem(), old.pem());
        let object = json!({"data": {"ca.crt": text}});
        let (key, extended_text, added) = extended(SourceKind::ConfigMap, &object, &[&new.pem(), &old.pem()]).unwrap();
        assert_eq!((&*key, added), ("ca.crt", vec![parsed(new.der()).subject]));
        assert!(extended_text.ends_with(&text) && extended_text.len() == text.len() + parsed(new.der()).pem().len());
        let again =
            extended(SourceKind::ConfigMap, &json!({"data": {"ca.crt": extended_text}}), &[&new.pem(), &old.pem()])
                .unwrap();
        assert_eq!(again.2, [""; 0]);
        assert_eq!(extended(SourceKind::ConfigMap, &json!({"data": {"ca.crt": "none"}}), &[&new.pem()]), None);
    }
}
