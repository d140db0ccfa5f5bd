//! Objects that hold CAs for gateways.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::DNS_SUBDOMAIN;

/// A kind of object that holds CAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
pub enum SourceKind {
    /// A Secret.
    Secret,
    /// A ConfigMap.
    ConfigMap,
}

impl SourceKind {
    /// The kind as Kubernetes writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }

    /// The resource.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Secret => "secrets",
            Self::ConfigMap => "configmaps",
        }
    }
}

/// An object with CAs that sign client certificates, in the namespace of the GatewaySecret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct AdditionalTrust {
    /// The kind of object.
    pub kind: SourceKind,
    /// Its name. The CAs are read from the key `ca.crt`, or from `tls.crt` of a Secret without it.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub name: String,
}

impl AdditionalTrust {
    /// Kind and name, for people.
    pub fn label(&self) -> String {
        format!("{} {}", self.kind.name(), self.name)
    }
}
