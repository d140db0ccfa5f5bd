//! The `MirroredFile` resource: what a file on a node holds.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::DNS_SUBDOMAIN;
use super::{Condition, SourceKind};

/// A file on a node in which `trustspan-node mirror` keeps the CA bundle of a Secret or ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
// Columns have the same keys.
#[allow(clippy::duplicated_attributes)]
#[cfg_attr(
    feature = "edge",
    derive(kube::CustomResource),
    kube(
        group = "trustspan.dev",
        version = "v1alpha1",
        kind = "MirroredFile",
        plural = "mirroredfiles",
        category = "trustspan",
        namespaced,
        status = "MirroredFileStatus",
        doc = "MirroredFile reports which CAs a file on a node holds. `trustspan-node mirror` writes it. A rotation waits for the file, until it holds the new CA or the object is deleted.",
        printcolumn(name = "Node", type_ = "string", json_path = ".spec.node"),
        printcolumn(name = "Path", type_ = "string", json_path = ".spec.path"),
        printcolumn(name = "Synced", type_ = "string", json_path = ".status.conditions[?(@.type==\"Synced\")].status"),
        printcolumn(name = "Since", type_ = "date", json_path = ".status.since"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
        printcolumn(
            name = "Message",
            type_ = "string",
            json_path = ".status.conditions[?(@.type==\"Synced\")].message",
            priority = 1
        )
    )
)]
pub struct MirroredFileSpec {
    /// Name of the node.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// Absolute path of the file.
    #[schemars(length(min = 1, max = 512), regex(pattern = "^/"))]
    pub path: String,
    /// The object with the bundle, in this namespace.
    pub source: MirrorSource,
}

/// The object whose bundle is mirrored.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct MirrorSource {
    /// Its kind.
    pub kind: SourceKind,
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub name: String,
    /// The key with the bundle.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// What the file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MirroredFileStatus {
    /// Condition `Synced`: whether the file holds what the source has, and why not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// SHA-256 over the set of certificates in the file, lower-case hex. Absent: the file does not exist or is no bundle.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub sha256: Option<String>,

    /// Since when the file holds this content, by the clock of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub since: Option<Timestamp>,

    /// When the first CA in the file expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub first_expiry: Option<Timestamp>,

    /// When something else changed or removed the file last, and the mirror put it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub last_drift: Option<Timestamp>,
}

/// Condition of a MirroredFile: whether the file holds what the source has.
pub const MIRROR_SYNCED: &str = "Synced";
