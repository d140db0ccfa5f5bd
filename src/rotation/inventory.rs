//! Computes the status of GatewaySecrets from a set of objects, in any order. Memory grows with GatewaySecrets and Gateways, not with the other
//! objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::active_certificates::{common, leaf};
use super::grants::Grants;
use super::status_limits::count;
use super::{ObservedState, SecretSummary, observe, readers};
use crate::api::names::{
    CACERT_SUFFIX, CLIENT_LABEL, GATEWAY_SECRET, GUARD, GUARD_ENABLED, RETIRED, managed_config_map_name,
};
use crate::api::{GatewaySecretStatus, GatewayUse, Kind, LeafKind, ManagedConfigMap, SourceKind, WorkloadKind};
use crate::json::Json;
use crate::registry::{Entry, Place, Registry, ServedSecrets};
use crate::rewrite::{self, Named, TrustSource};
use crate::trust::{self, Certificate, Secret, Severities, bundle, credential};

/// How complete the objects of an [`Inventory`] are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outlook {
    /// A whole cluster, such as a directory of manifests: objects that are not among them do not exist. If there is no
    /// workload, gateways are assumed in the namespace of the GatewaySecret.
    #[default]
    Whole,
    /// A part of a cluster: objects that are not among them may exist.
    Part,
    /// A part of a cluster that contains all Secrets that GatewaySecrets name: such a Secret that is not among them
    /// does not exist.
    Secrets,
}

/// Collects objects one by one. GatewaySecrets come first, since they determine which Secrets are relevant.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    claims: Registry,
    severities: Severities,
    secrets: BTreeMap<(String, String), Option<SecretSummary>>,
    workloads: BTreeMap<usize, BTreeSet<String>>,
    gateways: BTreeMap<usize, BTreeSet<GatewayUse>>,
    grants: Grants,
    /// ConfigMaps that the agent writes, by namespace and name, each with the name of its GatewaySecret.
    owned_config_maps: BTreeMap<(String, String), String>,
    clients: BTreeMap<usize, BTreeMap<String, DeclaredClient>>,
    unguarded: BTreeSet<String>,
    served: ServedSecrets,
    /// Namespace and name, without the suffix, of Secrets from which istiod takes CAs instead.
    siblings: BTreeSet<(String, String)>,
}

/// The Secret of a declared client. Only public certificates are kept.
#[derive(Clone, Debug)]
struct DeclaredClient {
    chain: Vec<Certificate>,
    trust: Vec<Certificate>,
}

impl Inventory {
    /// An inventory with these GatewaySecrets.
    pub fn new(entries: impl IntoIterator<Item = impl Into<Arc<Entry>>>) -> Self {
        let claims = Registry::new(entries);
        let names = |entry: &Arc<Entry>| {
            let pair = [entry.source_name().to_owned(), entry.managed_name().to_owned()];
            let siblings = pair.clone().map(|name| format!("{name}{CACERT_SUFFIX}"));
            pair.into_iter().chain(siblings).map(|name| (entry.namespace.clone(), name)).collect::<Vec<_>>()
        };
        let secrets = claims.entries().iter().flat_map(names).map(|key| (key, None)).collect();
        Self { claims, secrets, ..Self::default() }
    }

    /// With the cluster-wide severities of rules, which decide whether a Secret can be used.
    pub fn with_severities(self, severities: Severities) -> Self {
        Self { severities, ..self }
    }

    /// The cluster-wide severities of rules.
    pub fn severities(&self) -> &Severities {
        &self.severities
    }

    /// Adds one object. Irrelevant kinds are skipped. `namespace` is the default for an object without one.
    pub fn take(&mut self, object: &Value, namespace: &str, now: Timestamp) {
        let own = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
        match Kind::of_value(object) {
            Kind { group: "", kind: "Namespace", .. } => self.take_namespace(object),
            Kind { group: "", kind: "Secret", .. } => self.take_secret(object, own, now),
            Kind { group: "", kind: "ConfigMap", .. } => self.take_config_map(object, own),
            Kind { group: "" | "apps", kind, .. } if kind == "Pod" || WorkloadKind::named(kind).is_some() => {
                self.take_workload(object, own);
            }
            kind @ Kind {
                group: "networking.istio.io" | "gateway.networking.k8s.io",
                kind: "Gateway" | "ListenerSet" | "DestinationRule",
                ..
            } => {
                self.take_gateway(kind, object, own);
            }
            _ => self.grants.take(object, own),
        }
    }

    /// The ReferenceGrants.
    #[cfg(feature = "edge")]
    pub(crate) fn grants(&self) -> &Grants {
        &self.grants
    }

    /// The namespaces that were seen without label `trustspan.dev/guard: enabled`.
    pub fn unguarded(&self) -> &BTreeSet<String> {
        &self.unguarded
    }

    /// The registry. Each GatewaySecret has the status that the objects show. If its managed Secret is not among them,
    /// it keeps its previous status, unless the objects contain all relevant Secrets.
    pub fn into_registry(self, outlook: Outlook, now: Timestamp) -> Registry {
        let status = |index, entry| self.status(index, entry, outlook, now);
        let entries = self.claims.entries().iter().enumerate();
        let entries = entries.map(|(index, entry)| Entry { status: status(index, entry), ..Entry::clone(entry) });
        let mut served = self.served.clone();
        for ((namespace, name), secret) in &self.served {
            let is_of = |(of, stem): &&(String, String)| stem == name && (namespace.is_empty() || of == namespace);
            for (of, stem) in self.siblings.iter().filter(|_| secret.verifies_clients).filter(is_of) {
                served.entry((namespace.clone(), name.clone())).or_default().verifies_clients = false;
                served.entry((of.clone(), format!("{stem}{CACERT_SUFFIX}"))).or_default().verifies_clients = true;
            }
        }
        Registry::new(entries).with_served(served)
    }

    fn status(&self, index: usize, entry: &Entry, outlook: Outlook, now: Timestamp) -> GatewaySecretStatus {
        let secret = |name: &str| self.secrets.get(&(entry.namespace.clone(), name.to_owned()))?.as_ref();
        let sibling = |name: &str| secret(&format!("{name}{CACERT_SUFFIX}"));
        let holder = self.claims.conflict(entry);
        let managed = secret(entry.managed_name());
        let is_unseen = managed.is_none() && outlook != Outlook::Secrets;
        if is_unseen && holder.is_none() && entry.status != Default::default() {
            return entry.status.clone();
        }
        let mut namespaces = self.workloads.get(&index).cloned().unwrap_or_default();
        namespaces.extend(entry.status.workload_namespaces.iter().flatten().cloned());
        if namespaces.is_empty() && outlook == Outlook::Whole {
            namespaces.insert(entry.namespace.clone());
        }
        let gateways: Option<Vec<_>> = self.gateways.get(&index).map(|gateways| gateways.iter().cloned().collect());
        let whole = |list: Vec<String>| (outlook == Outlook::Whole || !self.grants.is_empty()).then_some(list);
        let ungranted = whole(self.ungranted(entry, SourceKind::Secret, [entry.source_name(), entry.managed_name()]));
        let counts = Counts::of(entry, &namespaces, gateways.as_deref(), ungranted.as_deref());
        if counts.has_unlisted_namespaces {
            namespaces.clear();
        }
        let seen = ObservedState {
            entry,
            holder,
            source: secret(entry.source_name()),
            managed,
            source_sibling: sibling(entry.source_name()),
            managed_sibling: sibling(entry.managed_name()),
            managed_config_maps: self.managed_config_maps(entry),
            workload_namespaces: (!namespaces.is_empty()).then(|| namespaces.into_iter().collect()),
            // An empty list is never concluded from the objects: one kind of Gateway may be missing from them.
            gateways: gateways.or_else(|| entry.status.gateways.clone()),
            ungranted_namespaces: ungranted.or_else(|| entry.status.ungranted_namespaces.clone()),
        };
        let status = counts.put_into(observe(&seen, now));
        self.in_use(index, entry, managed, status, now)
    }

    /// Adds the certificates in use, and what clients trust. If there was no client among the objects, those of the
    /// previous status stay.
    fn in_use(
        &self,
        index: usize,
        entry: &Entry,
        managed: Option<&SecretSummary>,
        mut status: GatewaySecretStatus,
        now: Timestamp,
    ) -> GatewaySecretStatus {
        let Some(managed) = managed else { return status };
        let earlier = status.leaves.take().into_iter().flatten().filter(|leaf| leaf.kind == LeafKind::Client);
        let mut leaves: Vec<_> = match self.clients.get(&index) {
            None => earlier.collect(),
            Some(clients) => {
                let seen = clients.iter();
                seen.filter_map(|(name, seen)| leaf(LeafKind::Client, entry, name, &seen.chain)).collect()
            }
        };
        leaves.extend(leaf(LeafKind::Server, entry, entry.managed_name(), &managed.chain));
        status.leaves = Some(leaves);
        if let Some(clients) = self.clients.get(&index) {
            status.unlisted_clients = None;
            status.unknown_clients = Vec::new();
            let trusts = clients.values().map(|client| client.trust.as_slice());
            status.client_trust = common(trusts, &managed.chain, now);
        }
        status
    }

    fn take_secret(&mut self, object: &Value, namespace: &str, now: Timestamp) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        self.take_client(object, namespace, name);
        if let Some(stem) = name.strip_suffix(CACERT_SUFFIX) {
            self.siblings.insert((namespace.to_owned(), stem.to_owned()));
        }
        let Some(place) = self.secrets.get_mut(&(namespace.to_owned(), name.to_owned())) else { return };
        // An unreadable Secret counts as missing here. Admission reports why it cannot be read.
        let claim = self.claims.role(namespace, name);
        let severities = claim.map(|(entry, _)| self.severities.under(&entry.policy.severities)).unwrap_or_default();
        let usage = self.claims.usage(namespace, name);
        *place = Secret::from_value(object).ok().map(|secret| SecretSummary::of(&secret, usage, &severities, now));
    }

    fn take_client(&mut self, object: &Value, namespace: &str, name: &str) {
        let Some(named) = object["metadata"]["labels"][CLIENT_LABEL].as_str() else { return };
        let is_named = |entry: &Arc<Entry>| entry.has_client(namespace, named);
        let Some(index) = self.claims.entries().iter().position(is_named) else { return };
        let entry = &self.claims.entries()[index];
        let name = entry.qualified(namespace, name);
        if entry.canary_name() == Some(&name) || object["metadata"]["annotations"][RETIRED] == "true" {
            return;
        }
        let Ok(secret) = Secret::from_value(object) else { return };
        let pair = credential::serving_pair(&secret);
        let chain = pair.map(|pair| bundle::read_chain(pair.chain).into_certificates()).unwrap_or_default();
        let client = DeclaredClient { chain, trust: trust::anchors(&secret) };
        self.clients.entry(index).or_default().insert(name, client);
    }

    fn take_namespace(&mut self, object: &Value) {
        if let Some(name) = object["metadata"]["name"].as_str()
            && object["metadata"]["labels"][GUARD] != GUARD_ENABLED
        {
            self.unguarded.insert(name.to_owned());
        }
    }

    fn take_workload(&mut self, object: &Value, namespace: &str) {
        let template = if object["kind"] == "Pod" { object } else { &object["spec"]["template"] };
        for (index, entry) in self.claims.entries().iter().enumerate() {
            if entry.serves(|label| template["metadata"]["labels"][label].as_str()) {
                self.workloads.entry(index).or_default().insert(namespace.to_owned());
            }
        }
    }

    fn take_gateway(&mut self, kind: Kind<'_>, object: &Value, namespace: &str) {
        let json = Json::from(object);
        self.take_servers(kind, &json, namespace);
        let names = rewrite::names(kind, &json, namespace);
        for (index, entry) in self.claims.entries().iter().enumerate() {
            let mut ours = names.iter().filter(|named| points_at(named, entry)).peekable();
            // A DestinationRule uses the Secret, but status lists only Gateways.
            if ours.peek().is_some() && kind.kind != "DestinationRule" {
                let used = gateway_use(kind, &json, namespace, hosts(object, ours));
                self.gateways.entry(index).or_default().insert(used);
            }
        }
    }

    /// The Secrets that the servers of a Gateway present, and those from which they take CAs.
    fn take_servers(&mut self, kind: Kind<'_>, json: &Json<'_>, namespace: &str) {
        for settings in rewrite::tls_settings(kind, json, namespace).into_iter().filter(|tls| !tls.is_upstream) {
            let key = |place: &Place<'_>, name: &str| match place {
                Place::Namespace(place) | Place::Granted { namespace: place, .. } => {
                    ((*place).to_owned(), name.to_owned())
                }
                Place::Selected(_) | Place::AllGateways { .. } => (String::new(), name.to_owned()),
            };
            // Of several certificates another one may cover a host.
            let hosts = if settings.presents.len() == 1 { settings.hosts.as_slice() } else { &[] };
            for named in &settings.presents {
                let served = self.served.entry(key(&named.place, named.name)).or_default();
                let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
                served.gateways.push(gateway_use(kind, json, namespace, hosts));
            }
            if let TrustSource::Secret { place, name } = &settings.trust {
                self.served.entry(key(place, name)).or_default().verifies_clients = true;
            }
        }
    }

    /// Namespaces from which Gateways may name one object of a kind, but not another.
    fn ungranted(&self, entry: &Entry, kind: SourceKind, [known, other]: [&str; 2]) -> Vec<String> {
        let granted = |name: &str| self.grants.gateway_namespaces(kind, &entry.namespace, name);
        (&granted(known) - &granted(other)).into_iter().map(str::to_owned).collect()
    }

    fn take_config_map(&mut self, object: &Value, namespace: &str) {
        let metadata = &object["metadata"];
        let (Some(name), Some(owner)) = (metadata["name"].as_str(), metadata["annotations"][GATEWAY_SECRET].as_str())
        else {
            return;
        };
        let holds_cas = readers::decode(SourceKind::ConfigMap, &Json::from(object))
            .is_ok_and(|data| !trust::anchors(&data).is_empty());
        if holds_cas {
            self.owned_config_maps.insert((namespace.to_owned(), name.to_owned()), owner.to_owned());
        }
    }

    /// The copies that the agent wrote of the ConfigMaps of `spec.clients.caConfigMapNames`.
    fn managed_config_maps(&self, entry: &Entry) -> Vec<ManagedConfigMap> {
        let copy = |source: &String| {
            let name = managed_config_map_name(source);
            let owner = self.owned_config_maps.get(&(entry.namespace.clone(), name.clone()))?;
            let ungranted_namespaces = self.ungranted(entry, SourceKind::ConfigMap, [source, &name]);
            (*owner == entry.name).then(|| ManagedConfigMap { source: source.clone(), name, ungranted_namespaces })
        };
        entry.spec.clients.ca_config_map_names.iter().filter_map(copy).collect()
    }
}

/// The lengths of lists that the status may shorten.
struct Counts {
    workload_namespaces: Option<u32>,
    gateways: Option<u32>,
    hosts: Option<u32>,
    ungranted_namespaces: Option<u32>,
    /// Whether some workload namespaces did not fit into the previous status. They are unknown now, so none is listed.
    has_unlisted_namespaces: bool,
}

impl Counts {
    /// Counts what was observed. Counts and lists of what was not observed stay.
    fn of(
        entry: &Entry,
        namespaces: &BTreeSet<String>,
        gateways: Option<&[GatewayUse]>,
        ungranted: Option<&[String]>,
    ) -> Self {
        let former = &entry.status;
        let unlisted = former.workload_namespace_count.filter(|_| former.workload_namespaces.is_none());
        let seen = (!namespaces.is_empty()).then(|| count(namespaces.len()));
        Self {
            workload_namespaces: seen.max(unlisted),
            gateways: gateways.map(|seen| count(seen.len())).or(former.gateway_count),
            hosts: gateways.map(|seen| count(seen.iter().map(|one| one.hosts.len()).sum())).or(former.host_count),
            ungranted_namespaces: ungranted.map(|seen| count(seen.len())).or(former.ungranted_namespace_count),
            has_unlisted_namespaces: unlisted.is_some(),
        }
    }

    fn put_into(self, status: GatewaySecretStatus) -> GatewaySecretStatus {
        GatewaySecretStatus {
            workload_namespace_count: self.workload_namespaces,
            gateway_count: self.gateways,
            host_count: self.hosts,
            ungranted_namespace_count: self.ungranted_namespaces,
            ..status
        }
    }
}

fn points_at(named: &Named<'_>, entry: &Entry) -> bool {
    let ours = named.name == entry.source_name() || named.name == entry.managed_name();
    ours && match &named.place {
        Place::Namespace(namespace) | Place::Granted { namespace, .. } => *namespace == entry.namespace,
        Place::Selected(selector) => entry.is_asked_for(selector),
        Place::AllGateways { .. } => true,
    }
}

fn gateway_use(kind: Kind<'_>, gateway: &Json<'_>, namespace: &str, hosts: Vec<String>) -> GatewayUse {
    let name = gateway["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    GatewayUse { group: kind.group.to_owned(), namespace: namespace.to_owned(), name, hosts }
}

/// The hosts that a Gateway serves with the Secrets of a GatewaySecret. Its other servers and listeners have separate
/// certificates.
fn hosts<'n>(gateway: &Value, names: impl Iterator<Item = &'n Named<'n>>) -> Vec<String> {
    // Only a Secret named at `/spec/servers/0/tls/credentialName` and the like serves hosts. The servers are indexed,
    // since a Gateway may have thousands.
    let place = |named: &'n Named<'n>| -> Option<(&str, usize)> {
        let pointer = named.pointer();
        let mut steps = pointer.split('/').skip(2);
        let list = steps.next().and_then(|step| ["servers", "listeners"].into_iter().find(|list| *list == step))?;
        Some((list, steps.next()?.parse().ok()?))
    };
    let places: BTreeSet<_> = names.filter_map(place).collect();
    let of = |(list, at): (&str, usize)| {
        let one = &gateway["spec"][list][at];
        one["hosts"].as_array().into_iter().flatten().chain([&one["hostname"]]).filter_map(Value::as_str)
    };
    places.into_iter().flat_map(of).collect::<BTreeSet<_>>().into_iter().map(str::to_owned).collect()
}
