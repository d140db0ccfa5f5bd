//! Objects that all GatewaySecrets share: Gateways, ReferenceGrants, the gateways' pods and Services. They change slowly and are read at
//! each resync interval.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use serde_json::{Value, json};

use super::gateway_pods::{PodGroup, ServedNamespaces};
use crate::api::ProbeMode;
use crate::registry::Entry;
use crate::rotation::probe_target::{Probe, probe};
use crate::rotation::readers::{ReaderTrust, TlsReader, other_selectors, readers};
use crate::store::{cluster, objects};

/// The last lists. A kind that cannot be listed keeps its previous objects.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ClusterSnapshot {
    /// The GatewaySecrets that it was read for, with their workload labels.
    read_for: BTreeMap<(String, String), BTreeMap<String, String>>,
    /// Gateways, the objects that configure their TLS, and ReferenceGrants, by group and kind. A kind that is not installed is absent.
    gateways: BTreeMap<(&'static str, &'static str), Listed>,
    /// Pods, by the workload labels of GatewaySecrets.
    pods: BTreeMap<BTreeMap<String, String>, Listed>,
    /// Which pods of other namespaces can be gateways.
    served: ServedNamespaces,
    /// Pods that are selected by Gateways which name a Secret of a GatewaySecret and select other labels than it, by the GatewaySecret's namespace.
    other_pods: BTreeMap<String, Listed>,
    /// Services by namespace.
    services: BTreeMap<String, Listed>,
}

/// The outcome of a list.
#[derive(Clone, Debug, PartialEq)]
enum Listed {
    /// The last objects.
    Objects(Vec<Value>),
    /// They were never listed: a permission is missing.
    Forbidden(String),
    /// They were never listed.
    Failed(String),
}

impl Listed {
    fn of(listed: kube::Result<Vec<Value>>, what: &str, before: Option<&Self>) -> Self {
        let error = match listed {
            Ok(objects) => return Self::Objects(objects),
            Err(error) => error,
        };
        let reason = cluster::error_message(&error);
        tracing::debug!("{what} not listed: {reason}");
        match (before, error) {
            // Even a refusal can pass: an API server that has just started may not know all Roles.
            (Some(Self::Objects(objects)), _) => Self::Objects(objects.clone()),
            (_, kube::Error::Api(status)) if status.code == 403 => Self::Forbidden(reason),
            _ => Self::Failed(reason),
        }
    }

    fn objects(&self) -> &[Value] {
        if let Self::Objects(objects) = self { objects } else { &[] }
    }

    /// Why they were never listed.
    fn reason(&self) -> Option<&str> {
        match self {
            Self::Forbidden(reason) | Self::Failed(reason) => Some(reason),
            Self::Objects(_) => None,
        }
    }
}

/// Why nothing can be planned with a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It was not read for this GatewaySecret.
    NotYet,
    /// A list that decides how gateways are probed failed: part of a sentence.
    Failed(String),
}

const GATEWAYS: [(&str, &str, &str); 6] = [
    ("networking.istio.io", "v1", "Gateway"),
    ("networking.istio.io", "v1", "DestinationRule"),
    ("gateway.networking.k8s.io", "v1", "Gateway"),
    ("gateway.networking.k8s.io", "v1", "ListenerSet"),
    ("gateway.envoyproxy.io", "v1alpha1", "ClientTrafficPolicy"),
    ("gateway.networking.k8s.io", "v1beta1", "ReferenceGrant"),
];

/// Different workload labels of the GatewaySecrets of one namespace whose pods are listed: each list is of all namespaces.
const WORKLOAD_LABELS: usize = 16;

/// Different selectors of Gateways by which the pods of a namespace are listed.
const OTHER_SELECTORS: usize = 4;

impl ClusterSnapshot {
    /// Lists what these GatewaySecrets need.
    pub(super) async fn read(client: &Client, entries: &[&Entry], before: &Self) -> Self {
        let read_for = entries.iter().map(|entry| (key_of(entry), entry.spec.workload_labels.clone())).collect();
        let mut read = Self { read_for, ..Self::default() };
        for (group, version, kind) in GATEWAYS {
            let listed = objects::list(client, group, version, kind).await;
            // 404: the kind is not installed.
            if !matches!(&listed, Err(kube::Error::Api(status)) if status.code == 404) {
                let what = format!("{kind}s of {group}");
                let listed = Listed::of(listed, &what, before.gateways.get(&(group, kind)));
                read.gateways.insert((group, kind), listed);
            }
        }
        let probed = entries.iter().filter(|entry| entry.policy.probe.target.is_none());
        for namespace in probed.map(|entry| &entry.namespace).collect::<BTreeSet<_>>() {
            let mut services = Vec::new();
            let listed =
                objects::each(client, namespace, ("", "v1", "Service"), |service| services.push(service)).await;
            let listed = Listed::of(listed.map(|()| services), "Services", before.services.get(namespace));
            read.services.insert(namespace.clone(), listed);
        }
        for labels in labels_within_budget(entries) {
            let listed = objects::pods(client, labels.iter().map(|(key, value)| (key.as_str(), value.as_str()))).await;
            let listed = Listed::of(listed, &format!("pods with {labels:?}"), before.pods.get(&labels));
            read.pods.insert(labels, listed);
        }
        let mut selectors: BTreeMap<&str, BTreeSet<BTreeMap<String, String>>> = BTreeMap::new();
        for entry in entries {
            selectors.entry(&entry.namespace).or_default().extend(other_selectors(entry, read.objects()));
        }
        for (namespace, selectors) in selectors.into_iter().filter(|(_, selectors)| !selectors.is_empty()) {
            let listed = pods_that(client, namespace, selectors).await;
            let listed = Listed::of(listed, &format!("pods of {namespace}"), before.other_pods.get(namespace));
            read.other_pods.insert(namespace.to_owned(), listed);
        }
        let groups = read.pods.iter().flat_map(|(labels, pods)| elsewhere(entries, labels, pods.objects())).collect();
        read.served = ServedNamespaces::read(client, groups, &before.served).await;
        let served = &read.served;
        for (labels, pods) in &mut read.pods {
            if let Listed::Objects(pods) = pods {
                pods.retain(|pod| !served.is_unserved(labels, namespace_of(pod)));
            }
        }
        read
    }

    /// Why nothing can be planned with it for a GatewaySecret. "Not known yet" must not count as "cannot be probed": the delay alone would
    /// decide, and what earlier probes have shown would be forgotten.
    pub(super) fn unread(&self, entry: &Entry) -> Option<Unread> {
        let probe = &entry.policy.probe;
        let is_derived = probe.target.is_none() && probe.mode != ProbeMode::Disabled;
        let is_read = self.read_for.get(&key_of(entry)) == Some(&entry.spec.workload_labels);
        let services = self.services.get(&entry.namespace);
        if !is_read || is_derived && services.is_none() {
            return Some(Unread::NotYet);
        }
        if !is_derived || self.probe(entry).is_ok() {
            return None;
        }
        let gateways = self.gateways.iter().map(|((_, kind), listed)| (format!("{kind}s"), listed));
        let pods = self.pods.get(&entry.spec.workload_labels).map(|listed| ("Pods".to_owned(), listed));
        let services = services.map(|listed| ("Services".to_owned(), listed));
        let failed = gateways.chain(pods).chain(services).find_map(|(what, listed)| match listed {
            Listed::Failed(reason) => Some(format!("{what}: {reason}")),
            Listed::Objects(_) | Listed::Forbidden(_) => None,
        });
        failed.map(Unread::Failed)
    }

    /// Whether istiod gives no Secret to the pods of a namespace with a GatewaySecret's workload labels.
    pub(super) fn is_unserved(&self, entry: &Entry, namespace: &str) -> bool {
        self.served.is_unserved(&entry.spec.workload_labels, namespace)
    }

    /// The objects that the webhook rewrites.
    pub(super) fn gateways(&self) -> impl Iterator<Item = &Value> {
        self.objects().filter(|object| object["kind"] != "ReferenceGrant")
    }

    /// The sources of trust that gateways use besides a GatewaySecret's managed Secret, and those that are unknown because their kind
    /// cannot be listed.
    pub(super) fn readers(&self, entry: &Entry) -> Vec<TlsReader> {
        let others = self.other_pods.get(&entry.namespace);
        let pods: Vec<_> = self.pods_of(entry).iter().chain(others.map(Listed::objects).unwrap_or_default()).collect();
        let mut readers = readers(entry, self.objects(), &pods);
        let unlisted = self.gateways.iter().filter(|((_, kind), _)| *kind != "ReferenceGrant");
        let unlisted = unlisted.filter_map(|((_, kind), listed)| Some((*kind, listed.reason()?)));
        let too_many = "the GatewaySecrets of this namespace have more than 16 different spec.workloadLabels";
        let pods = (!self.pods.contains_key(&entry.spec.workload_labels)).then_some(("Pods", too_many));
        let others = others.and_then(Listed::reason).map(|reason| ("Pods", reason));
        readers.extend(
            unlisted
                .chain(pods)
                .chain(others)
                .map(|(kind, reason)| TlsReader::of(kind, "", ReaderTrust::Unlisted(reason.to_owned()))),
        );
        readers
    }

    /// How a GatewaySecret's gateways are probed.
    ///
    /// # Errors
    /// Why they cannot be probed: part of a sentence.
    pub(super) fn probe(&self, entry: &Entry) -> Result<Probe, String> {
        let pods: Vec<_> = self.pods_of(entry).iter().collect();
        let services = match self.services.get(&entry.namespace) {
            Some(Listed::Forbidden(reason)) if entry.policy.probe.target.is_none() => {
                return Err(format!("Services: {reason}"));
            }
            services => services.map(Listed::objects).unwrap_or_default(),
        };
        probe(entry, self.objects(), &pods, services)
    }

    /// The objects that a GatewaySecret's status is computed from.
    pub(super) fn of(&self, entry: &Entry) -> impl Iterator<Item = &Value> {
        self.objects().chain(self.pods_of(entry))
    }

    fn objects(&self) -> impl Iterator<Item = &Value> {
        self.gateways.values().flat_map(Listed::objects)
    }

    fn pods_of(&self, entry: &Entry) -> &[Value] {
        self.pods.get(&entry.spec.workload_labels).map(Listed::objects).unwrap_or_default()
    }
}

/// The metadata of a namespace's pods that one of these selectors picks, and of all if there are many selectors: anyone can make Gateways.
async fn pods_that(
    client: &Client,
    namespace: &str,
    selectors: BTreeSet<BTreeMap<String, String>>,
) -> kube::Result<Vec<Value>> {
    let mut pods = Vec::new();
    if selectors.len() > OTHER_SELECTORS {
        pods = objects::pods_in(client, namespace, []).await?;
    } else {
        for selector in selectors {
            let labels = selector.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            pods.extend(objects::pods_in(client, namespace, labels).await?);
        }
    }
    // A snapshot with other metadata would wake all reconcilers.
    let labels: BTreeSet<_> = pods.iter().map(|pod| pod["metadata"]["labels"].to_string()).collect();
    let labels = labels.iter().filter_map(|labels| serde_json::from_str::<Value>(labels).ok());
    Ok(labels.map(|labels| json!({ "metadata": { "namespace": namespace, "labels": labels } })).collect())
}

fn key_of(entry: &Entry) -> (String, String) {
    (entry.namespace.clone(), entry.name.clone())
}

/// The groups of pods in namespaces without a GatewaySecret for their labels.
fn elsewhere(entries: &[&Entry], labels: &BTreeMap<String, String>, pods: &[Value]) -> Vec<PodGroup> {
    let of_labels = entries.iter().filter(|entry| entry.spec.workload_labels == *labels);
    let own: BTreeSet<_> = of_labels.map(|entry| entry.namespace.as_str()).collect();
    let namespaces: BTreeSet<_> = pods.iter().map(namespace_of).collect();
    (&namespaces - &own).into_iter().map(|namespace| (labels.clone(), namespace.to_owned())).collect()
}

fn namespace_of(pod: &Value) -> &str {
    pod["metadata"]["namespace"].as_str().unwrap_or_default()
}

/// The workload labels of these GatewaySecrets, up to [`WORKLOAD_LABELS`] of each namespace.
fn labels_within_budget(entries: &[&Entry]) -> BTreeSet<BTreeMap<String, String>> {
    let mut by_namespace: BTreeMap<&str, BTreeSet<&BTreeMap<String, String>>> = BTreeMap::new();
    for entry in entries {
        by_namespace.entry(&entry.namespace).or_default().insert(&entry.spec.workload_labels);
    }
    by_namespace.into_values().flat_map(|labels| labels.into_iter().take(WORKLOAD_LABELS)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;
    use crate::registry::tests::entry;

    #[test]
    fn pods_are_listed_for_a_limited_number_of_labels_of_each_namespace() {
        let labelled = |namespace: &str, value: String| {
            let mut entry = entry(namespace, "root", "gw");
            entry.spec.workload_labels = BTreeMap::from([("istio".to_owned(), value)]);
            entry
        };
        let hostile = (0..100).map(|number| labelled("hostile", format!("label-{number}")));
        let all: Vec<_> = hostile.chain([labelled("other", "own".to_owned())]).collect();
        let asked = labels_within_budget(&all.iter().collect::<Vec<_>>());
        assert_eq!(asked.len(), WORKLOAD_LABELS + 1);
        assert!(asked.iter().any(|labels| labels["istio"] == "own"));
        let pods = asked.into_iter().map(|labels| (labels, Listed::Objects(Vec::new()))).collect();
        let snapshot = ClusterSnapshot { pods, ..ClusterSnapshot::default() };
        let unlisted = |entry: &Entry| {
            let is_unlisted = |reader: &TlsReader| matches!(reader.trust, ReaderTrust::Unlisted(_));
            snapshot.readers(entry).iter().any(is_unlisted)
        };
        assert!(!unlisted(&all[100]));
        assert!(unlisted(&all[99]), "its pods are unknown, so no gateway is assumed to have no other source of trust");
    }

    fn refused(code: u16) -> kube::Result<Vec<Value>> {
        let status = Status::failure("no answer", "Reason").with_code(code);
        Err(kube::Error::Api(status.boxed()))
    }

    const GATEWAY: (&str, &str) = ("networking.istio.io", "Gateway");

    /// A snapshot that was read for one GatewaySecret, whose gateways are probed by what it lists.
    fn probed() -> (Entry, ClusterSnapshot) {
        let mut entry = entry("mesh", "root", "gw");
        entry.spec.workload_labels = BTreeMap::from([("istio".to_owned(), "gw".to_owned())]);
        let gateway = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"namespace": "mesh", "name": "public"},
            "spec": {"selector": {"istio": "gw"}, "servers": [
                {"hosts": ["shop.example.com"], "tls": {"mode": "MUTUAL", "credentialName": "gw"}},
            ]},
        });
        let service = json!({
            "kind": "Service", "metadata": {"namespace": "mesh", "name": "ingress"},
            "spec": {"selector": {"istio": "gw"}, "ports": [{"name": "https", "port": 443}]},
        });
        let labels = entry.spec.workload_labels.clone();
        let snapshot = ClusterSnapshot {
            read_for: BTreeMap::from([(key_of(&entry), labels.clone())]),
            gateways: BTreeMap::from([(GATEWAY, Listed::Objects(vec![gateway]))]),
            pods: BTreeMap::from([(labels, Listed::Objects(Vec::new()))]),
            services: BTreeMap::from([("mesh".to_owned(), Listed::Objects(vec![service]))]),
            ..ClusterSnapshot::default()
        };
        (entry, snapshot)
    }

    #[test]
    fn nothing_is_planned_before_a_gatewaysecret_s_objects_were_listed() {
        let (entry, snapshot) = probed();
        assert!(snapshot.probe(&entry).is_ok());
        assert_eq!(snapshot.unread(&entry), None);
        let not_yet = |snapshot: &ClusterSnapshot, entry: &Entry| {
            assert_eq!(snapshot.unread(entry), Some(Unread::NotYet));
        };
        not_yet(&ClusterSnapshot::default(), &entry);
        let other = Entry { name: "other".to_owned(), ..entry.clone() };
        not_yet(&snapshot, &other);
        let mut relabelled = entry.clone();
        relabelled.spec.workload_labels = BTreeMap::from([("istio".to_owned(), "public".to_owned())]);
        not_yet(&snapshot, &relabelled);
        // It was read when probe.target named a Service.
        not_yet(&ClusterSnapshot { services: BTreeMap::new(), ..snapshot }, &entry);
    }

    #[test]
    fn a_gateway_with_another_selector_reads_if_it_selects_a_pod_there() {
        let (entry, mut snapshot) = probed();
        let second = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"namespace": "mesh", "name": "second"},
            "spec": {"selector": {"istio": "second"}, "servers": [{"tls": {"mode": "MUTUAL", "credentialName": "root"}}]},
        });
        let asked = other_selectors(&entry, [&second]);
        assert_eq!(asked, BTreeSet::from([BTreeMap::from([("istio".to_owned(), "second".to_owned())])]));
        snapshot.gateways.insert(GATEWAY, Listed::Objects(vec![second]));
        let found = |snapshot: &ClusterSnapshot| {
            let readers = snapshot.readers(&entry);
            readers.iter().filter(|reader| reader.presents_source && reader.selects_others).count()
        };
        assert_eq!(found(&snapshot), 0, "its pods run elsewhere");
        let pod = json!({"metadata": {"namespace": "mesh", "labels": {"istio": "second"}}});
        snapshot.other_pods.insert("mesh".to_owned(), Listed::Objects(vec![pod]));
        assert_eq!(found(&snapshot), 1);
        snapshot.other_pods.insert("mesh".to_owned(), Listed::of(refused(500), "pods", None));
        let is_unlisted = |reader: &TlsReader| matches!(reader.trust, ReaderTrust::Unlisted(_));
        assert!(snapshot.readers(&entry).iter().any(is_unlisted), "unknown");
    }

    #[test]
    fn a_failed_list_keeps_the_last_objects() {
        let (entry, mut snapshot) = probed();
        for code in [403, 500] {
            let services = Listed::of(refused(code), "Services", snapshot.services.get("mesh"));
            snapshot.services.insert("mesh".to_owned(), services);
            let gateways = Listed::of(refused(code), "Gateways", snapshot.gateways.get(&GATEWAY));
            snapshot.gateways.insert(GATEWAY, gateways);
            assert_eq!(snapshot.unread(&entry), None);
            assert!(snapshot.probe(&entry).is_ok(), "after a {code}");
        }
    }

    #[test]
    fn a_first_list_that_fails_stops_the_plan_and_a_missing_permission_stops_only_the_probe() {
        let (entry, snapshot) = probed();
        let without = |code| {
            let services = Listed::of(refused(code), "Services", None);
            let services = BTreeMap::from([("mesh".to_owned(), services)]);
            let gateways = BTreeMap::from([(GATEWAY, Listed::of(refused(code), "Gateways", None))]);
            [ClusterSnapshot { services, ..snapshot.clone() }, ClusterSnapshot { gateways, ..snapshot.clone() }]
        };
        for (snapshot, what) in without(500).iter().zip(["Services", "Gateways"]) {
            assert_eq!(snapshot.unread(&entry), Some(Unread::Failed(format!("{what}: no answer"))));
            let mut unprobed = entry.clone();
            unprobed.policy.probe.mode = ProbeMode::Disabled;
            assert_eq!(snapshot.unread(&unprobed), None, "it does not depend on {what}");
        }
        for snapshot in without(403) {
            assert_eq!(snapshot.unread(&entry), None);
            assert!(snapshot.probe(&entry).is_err());
        }
        // Another kind that fails does not matter while the known Gateways are enough.
        let mut snapshot = snapshot;
        let failed = Listed::of(refused(500), "ListenerSets", None);
        snapshot.gateways.insert(("gateway.networking.k8s.io", "ListenerSet"), failed);
        assert_eq!(snapshot.unread(&entry), None);
    }
}
