//! What a GatewaySecret's status tells of the cluster around it: Gateways, grants, and where the gateways' pods run. Slow to
//! change, and read as rarely.

use std::collections::BTreeMap;

use kube::Client;
use serde_json::Value;

use crate::registry::Entry;
use crate::store::{cluster, objects};

/// What was read last. What cannot be read is not observed: it stays out.
#[derive(Clone, Debug, Default)]
pub(super) struct Surroundings {
    /// Gateways and ReferenceGrants.
    gateways: Vec<Value>,
    /// Pods with the labels of a GatewaySecret, by its labels.
    pods: BTreeMap<BTreeMap<String, String>, Vec<Value>>,
}

const GATEWAYS: [(&str, &str, &str); 3] = [
    ("networking.istio.io", "v1", "Gateway"),
    ("gateway.networking.k8s.io", "v1", "Gateway"),
    ("gateway.networking.k8s.io", "v1beta1", "ReferenceGrant"),
];

impl Surroundings {
    /// Reads what these GatewaySecrets need.
    pub(super) async fn read(client: &Client, entries: &[Entry]) -> Self {
        let mut read = Self::default();
        for (group, version, kind) in GATEWAYS {
            match objects::list(client, group, version, kind).await {
                Ok(gateways) => read.gateways.extend(gateways),
                Err(error) => tracing::debug!("{kind}s of {group} not read: {}", cluster::told(&error)),
            }
        }
        for entry in entries {
            let labels = &entry.spec.workload_labels;
            if read.pods.contains_key(labels) {
                continue;
            }
            match objects::pods(client, labels.iter().map(|(key, value)| (key.as_str(), value.as_str()))).await {
                Ok(pods) => drop(read.pods.insert(labels.clone(), pods)),
                Err(error) => tracing::debug!("pods with {labels:?} not read: {}", cluster::told(&error)),
            }
        }
        read
    }

    /// The Gateways.
    pub(super) fn gateways(&self) -> impl Iterator<Item = &Value> {
        self.gateways.iter().filter(|object| object["kind"] == "Gateway")
    }

    /// What concerns one GatewaySecret.
    pub(super) fn of(&self, entry: &Entry) -> impl Iterator<Item = &Value> {
        self.gateways.iter().chain(self.pods.get(&entry.spec.workload_labels).into_iter().flatten())
    }
}
