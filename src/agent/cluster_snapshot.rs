//! Objects that all GatewaySecrets share: Gateways, ReferenceGrants, the gateways' pods and Services. They change slowly and are read at
//! each resync interval.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use serde_json::Value;

use super::gateway_pods::{PodGroup, ServedNamespaces};
use crate::registry::Entry;
use crate::rotation::probe_target::{Probe, probe};
use crate::rotation::readers::{ReaderTrust, TlsReader, readers};
use crate::store::{cluster, objects};

/// The last lists. A kind that cannot be listed keeps its previous objects.
#[derive(Clone, Debug, Default)]
pub(super) struct ClusterSnapshot {
    /// Gateways, the objects that configure their TLS, and ReferenceGrants.
    gateways: Vec<Value>,
    /// Kinds that were never listed, and why: the Secrets that they name are unknown.
    unlisted: BTreeMap<&'static str, String>,
    /// Group and kind of those that were listed at least once.
    listed: BTreeSet<(&'static str, &'static str)>,
    /// Whether any list was attempted.
    is_read: bool,
    /// Pods, by the workload labels of GatewaySecrets.
    pods: BTreeMap<BTreeMap<String, String>, Vec<Value>>,
    /// Which pods of other namespaces can be gateways.
    served: ServedNamespaces,
    /// The workload labels whose pods were listed, or could not be.
    asked: BTreeSet<BTreeMap<String, String>>,
    /// Services by namespace, or why they cannot be listed.
    services: BTreeMap<String, Result<Vec<Value>, String>>,
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

impl ClusterSnapshot {
    /// Lists what these GatewaySecrets need.
    pub(super) async fn read(client: &Client, entries: &[&Entry], before: &Self) -> Self {
        let mut read = Self { is_read: true, ..Self::default() };
        for (group, version, kind) in GATEWAYS {
            match objects::list(client, group, version, kind).await {
                Ok(gateways) => {
                    read.gateways.extend(gateways);
                    read.listed.insert((group, kind));
                }
                // 404: the kind is not installed.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    let api_version = format!("{group}/{version}");
                    let is_of =
                        |object: &&Value| object["kind"] == kind && object["apiVersion"] == api_version.as_str();
                    read.gateways.extend(before.gateways.iter().filter(is_of).cloned());
                    let reason = cluster::error_message(&error);
                    tracing::debug!("{kind}s of {group} not listed: {reason}");
                    if before.listed.contains(&(group, kind)) {
                        read.listed.insert((group, kind));
                    } else if kind != "ReferenceGrant" {
                        read.unlisted.insert(kind, reason);
                    }
                }
            }
        }
        let probed = entries.iter().filter(|entry| entry.policy.probe.target.is_none());
        for namespace in probed.map(|entry| &entry.namespace).collect::<BTreeSet<_>>() {
            let mut services = Vec::new();
            let listed =
                objects::each(client, namespace, ("", "v1", "Service"), |service| services.push(service)).await;
            let services =
                listed.map(|()| services).map_err(|error| format!("Services: {}", cluster::error_message(&error)));
            read.services.insert(namespace.clone(), services);
        }
        read.asked = labels_within_budget(entries);
        for labels in &read.asked {
            match objects::pods(client, labels.iter().map(|(key, value)| (key.as_str(), value.as_str()))).await {
                Ok(pods) => drop(read.pods.insert(labels.clone(), pods)),
                Err(error) => tracing::debug!("pods with {labels:?} not listed: {}", cluster::error_message(&error)),
            }
        }
        let groups = read.pods.iter().flat_map(|(labels, pods)| elsewhere(entries, labels, pods)).collect();
        read.served = ServedNamespaces::read(client, groups, &before.served).await;
        let served = &read.served;
        for (labels, pods) in &mut read.pods {
            pods.retain(|pod| !served.is_unserved(labels, namespace_of(pod)));
        }
        read
    }

    /// Whether istiod gives no Secret to the pods of a namespace with a GatewaySecret's workload labels.
    pub(super) fn is_unserved(&self, entry: &Entry, namespace: &str) -> bool {
        self.served.is_unserved(&entry.spec.workload_labels, namespace)
    }

    /// The objects that the webhook rewrites.
    pub(super) fn gateways(&self) -> impl Iterator<Item = &Value> {
        self.gateways.iter().filter(|object| object["kind"] != "ReferenceGrant")
    }

    /// The sources of trust that gateways use besides a GatewaySecret's managed Secret, and those that are unknown because their kind
    /// cannot be listed.
    pub(super) fn readers(&self, entry: &Entry) -> Vec<TlsReader> {
        let pods: Vec<_> = self.pods.get(&entry.spec.workload_labels).into_iter().flatten().collect();
        let mut readers = readers(entry, &self.gateways, &pods);
        let unread = match (self.is_read, self.asked.contains(&entry.spec.workload_labels)) {
            (false, _) => Some(("Gateways", "not listed yet")),
            (true, false) => Some((
                "Pods",
                "not listed yet, or the GatewaySecrets of this namespace have more than 16 different spec.workloadLabels",
            )),
            (true, true) => None,
        };
        let unlisted = self.unlisted.iter().map(|(kind, reason)| (*kind, reason.as_str()));
        let unlisted = unread.into_iter().chain(unlisted);
        readers
            .extend(unlisted.map(|(kind, reason)| TlsReader::of(kind, "", ReaderTrust::Unlisted(reason.to_owned()))));
        readers
    }

    /// How a GatewaySecret's gateways are probed.
    ///
    /// # Errors
    /// Why they cannot be probed: part of a sentence.
    pub(super) fn probe(&self, entry: &Entry) -> Result<Probe, String> {
        let pods: Vec<_> = self.pods.get(&entry.spec.workload_labels).into_iter().flatten().collect();
        let services = match self.services.get(&entry.namespace) {
            Some(Ok(services)) => services.as_slice(),
            Some(Err(reason)) if entry.policy.probe.target.is_none() => return Err(reason.clone()),
            _ => &[],
        };
        probe(entry, &self.gateways, &pods, services)
    }

    /// The objects that a GatewaySecret's status is computed from.
    pub(super) fn of(&self, entry: &Entry) -> impl Iterator<Item = &Value> {
        self.gateways.iter().chain(self.pods.get(&entry.spec.workload_labels).into_iter().flatten())
    }
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
        let snapshot = ClusterSnapshot { is_read: true, asked, ..ClusterSnapshot::default() };
        let unlisted = |entry: &Entry| {
            let is_unlisted = |reader: &TlsReader| matches!(reader.trust, ReaderTrust::Unlisted(_));
            snapshot.readers(entry).iter().any(is_unlisted)
        };
        assert!(!unlisted(&all[100]));
        assert!(unlisted(&all[99]), "its pods are unknown, so no gateway is assumed to have no other source of trust");
    }
}
