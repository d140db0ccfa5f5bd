//! The `TrustConsumer` resource: workloads that load CAs once, when they start.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{DNS_SUBDOMAIN, is_default, without_default};
use super::{Condition, Period, SourceKind, WorkloadKind};
use crate::trust::credential::CA_KEYS;

/// Workloads that load Secrets or ConfigMaps once, when they start. They are restarted when the content has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(
    feature = "edge",
    derive(kube::CustomResource),
    kube(
        group = "trustspan.dev",
        version = "v1alpha1",
        kind = "TrustConsumer",
        plural = "trustconsumers",
        category = "trustspan",
        namespaced,
        status = "TrustConsumerStatus",
        doc = "TrustConsumer restarts workloads that load Secrets or ConfigMaps once, when they start, after the content has changed: once for each change, and only while the new content is valid.",
        validation = kube::core::cel::Rule::new("self.spec.loads.all(one, has(one.keys) || has(one.caKeys))")
            .message("set keys, caKeys or both in each entry of spec.loads: which keys the workloads load"),
        printcolumn(name = "Loaded", type_ = "string", json_path = ".status.conditions[?(@.type==\"Loaded\")].status"),
        printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Loaded\")].reason"),
        printcolumn(name = "Pending", type_ = "date", json_path = ".status.pendingSince"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
        printcolumn(
            name = "Message",
            type_ = "string",
            json_path = ".status.conditions[?(@.type==\"Loaded\")].message",
            priority = 1
        )
    )
)]
pub struct TrustConsumerSpec {
    /// The workloads, in this namespace. One that does not exist is ignored until it does.
    #[schemars(extend(
        "minItems" = 1, "maxItems" = 16, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind", "name"]
    ))]
    pub workloads: Vec<WorkloadRef>,

    /// What they load, in this namespace. They are restarted when this has changed: the set of certificates under keys with CAs, and the
    /// bytes under other keys.
    #[schemars(extend(
        "minItems" = 1, "maxItems" = 16, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind", "name"]
    ))]
    pub loads: Vec<LoadedObject>,

    /// The minimum time between two restarts of a workload: several changes within it cause one restart. Default: none.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(transform = without_default)]
    pub min_restart_interval: Period,
}

/// A workload of `apps/v1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
pub struct WorkloadRef {
    /// Its kind.
    pub kind: WorkloadKind,
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub name: String,
}

impl WorkloadRef {
    /// Its name as an argument of kubectl.
    pub fn label(&self) -> String {
        self.kind.label(&self.name)
    }
}

/// An object that workloads load.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadedObject {
    /// Its kind.
    pub kind: SourceKind,
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub name: String,
    /// The keys that are loaded. `ca.crt` and `cacert` hold CAs. A hash of the content becomes public with the status: list no key with a
    /// password.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<DataKey>", extend("minItems" = 1, "maxItems" = 16, "x-kubernetes-list-type" = "set"), transform = without_default)]
    pub keys: Vec<String>,
    /// Further keys that hold CAs, under other names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<DataKey>", extend("minItems" = 1, "maxItems" = 16, "x-kubernetes-list-type" = "set"), transform = without_default)]
    pub ca_keys: Vec<String>,
}

/// A key under `data`.
#[derive(JsonSchema)]
struct DataKey(
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    #[allow(dead_code)]
    String,
);

impl LoadedObject {
    /// All keys, each with whether it holds CAs.
    pub fn all_keys(&self) -> BTreeMap<&str, bool> {
        let keys = self.keys.iter().map(|key| (key.as_str(), CA_KEYS.contains(&key.as_str())));
        keys.chain(self.ca_keys.iter().map(|key| (key.as_str(), true))).collect()
    }
}

/// What the workloads have loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TrustConsumerStatus {
    /// Whether the workloads have loaded the content, and why not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// SHA-256 over the last valid content of `spec.loads`, lower-case hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub hash: Option<String>,

    /// The hash that all workloads have loaded, or the first that has loaded another content. Absent: no workload exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub loaded_hash: Option<String>,

    /// Since when a workload has not loaded the content. Absent: all have.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub pending_since: Option<Timestamp>,

    /// When `spec.minRestartInterval` allows the next restart. Absent: it does now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub next_restart_not_before: Option<Timestamp>,

    /// When the first CA expires that a workload has loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub first_expiry: Option<Timestamp>,

    /// The content over which `hash` is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<KeyContent>,

    /// What each workload has loaded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workloads: Vec<LoadedContent>,
}

/// A hash of the content of one key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyContent {
    /// Kind of the object.
    pub kind: SourceKind,
    /// Name of the object.
    pub name: String,
    /// The key.
    pub key: String,
    /// SHA-256, lower-case hex: over the set of certificates under a key with CAs, else over the bytes.
    pub sha256: String,
}

/// The content that a workload has loaded.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadedContent {
    /// The workload.
    #[serde(flatten)]
    pub workload: WorkloadRef,
    /// Its `metadata.uid`: another workload with its name has loaded what was there when it was created.
    pub uid: String,
    /// Its annotation `trustspan.dev/loaded-hash` when this was recorded. Absent: it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub annotation: Option<String>,
    /// The hash of the content that all its pods have loaded.
    pub hash: String,
    /// When the first of the CAs expires that it has loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub first_expiry: Option<Timestamp>,
    /// When the agent restarted it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub restarted_at: Option<Timestamp>,
    /// The content that its new pods load, while the rollout of that restart is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ContentRollout")]
    pub rollout: Option<ContentRollout>,
}

/// The content that the new pods of a workload load.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContentRollout {
    /// The hash of the content.
    pub hash: String,
    /// When the first of its CAs expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub first_expiry: Option<Timestamp>,
}

impl LoadedContent {
    /// The hash of the content that all its pods have loaded when its rollout is complete.
    pub fn target(&self) -> &str {
        self.rollout.as_ref().map_or(&self.hash, |rollout| &rollout.hash)
    }
}

impl TrustConsumerStatus {
    /// The condition of a type.
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }
}
