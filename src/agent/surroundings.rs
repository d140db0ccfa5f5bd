//! What a GatewaySecret's status tells of the cluster around it: Gateways, grants, and where the gateways' pods run. Slow to
//! change, and read as rarely.

use std::collections::BTreeMap;

use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::registry::Entry;

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
        let params = ListParams::default().match_any();
        for (group, version, kind) in GATEWAYS {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            match api.list(&params).await {
                Ok(list) => read.gateways.extend(list.items.into_iter().filter_map(|object| typed(&resource, &object))),
                Err(error) => tracing::debug!("{kind}s of {group} not read: {error}"),
            }
        }
        for entry in entries {
            let labels = &entry.spec.workload_labels;
            if read.pods.contains_key(labels) {
                continue;
            }
            let selector = labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
            let api: Api<k8s_openapi::api::core::v1::Pod> = Api::all(client.clone());
            match api.list_metadata(&params.clone().labels(&selector)).await {
                Ok(list) => {
                    let pod = |metadata| json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
                    read.pods.insert(labels.clone(), list.items.into_iter().map(|item| pod(item.metadata)).collect());
                }
                Err(error) => tracing::debug!("pods {selector} not read: {error}"),
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

/// The items of a list do not say what they are.
fn typed(resource: &ApiResource, object: &DynamicObject) -> Option<Value> {
    let mut value = serde_json::to_value(object).ok()?;
    value["apiVersion"] = resource.api_version.clone().into();
    value["kind"] = resource.kind.clone().into();
    Some(value)
}
