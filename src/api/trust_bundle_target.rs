//! Objects from which clients take the CAs of gateways.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{DNS_LABEL, DNS_SUBDOMAIN};

/// An object into which the agent writes the CAs that clients have to trust.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.namespace) || self.kind == 'ConfigMap'",
    "message": "namespace is for a ConfigMap only: Secrets are written in the GatewaySecret's namespace, and ClusterTrustBundles have none",
}]))]
pub struct TrustBundleTarget {
    /// The kind of object. ClusterTrustBundles are cluster-scoped.
    pub kind: TrustBundleTargetKind,
    /// Namespace of a ConfigMap. Default: the namespace of the GatewaySecret. In another namespace, its owner creates the ConfigMap with the
    /// label `trustspan.dev/client: NAMESPACE_NAME` of this GatewaySecret, and the agent writes the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 63), regex(pattern = DNS_LABEL))]
    pub namespace: Option<String>,
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub name: String,
    /// The key under `data`. Default: `ca.crt`. A ClusterTrustBundle has none.
    #[serde(default = "ca_crt")]
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// A kind of object that can hold a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum TrustBundleTargetKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret, for programs that read nothing else.
    Secret,
    /// A ClusterTrustBundle (`certificates.k8s.io`) without a signer, for pods that project it. Its readers may see its CAs in any order.
    ClusterTrustBundle,
}

impl TrustBundleTargetKind {
    /// The kind as Kubernetes writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::ClusterTrustBundle => "ClusterTrustBundle",
        }
    }

    /// Whether its readers see the CAs in the order in which they were written. Readers of a ClusterTrustBundle, such as the kubelet, may
    /// change the order (documentation of the field in the Kubernetes API).
    pub fn keeps_order(self) -> bool {
        self != Self::ClusterTrustBundle
    }
}

const READERS: &str = "readers of ";

impl TrustBundleTarget {
    /// Its object, for people: kind, namespace if it is another one, and name.
    pub fn object(&self) -> String {
        let Self { kind, namespace, name, .. } = self;
        match namespace {
            Some(namespace) if *kind != TrustBundleTargetKind::ClusterTrustBundle => {
                format!("{} {namespace}/{name}", kind.name())
            }
            _ => format!("{} {name}", kind.name()),
        }
    }

    /// Its readers, for people, and as a name that no Secret can have.
    pub fn readers(&self) -> String {
        match self.kind {
            TrustBundleTargetKind::ClusterTrustBundle => format!("{READERS}{}", self.object()),
            _ => format!("{READERS}{} ({})", self.object(), self.key),
        }
    }

    /// Whether a name is of such readers.
    pub fn is_readers(name: &str) -> bool {
        name.starts_with(READERS)
    }
}

fn ca_crt() -> String {
    "ca.crt".to_owned()
}
