//! A reference to a Secret.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{DNS_LABEL, DNS_SUBDOMAIN};

/// Reference to a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct SecretRef {
    /// Its namespace. Default: the namespace of the GatewaySecret. The CA of a ClusterIssuer is in cert-manager's cluster resource
    /// namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 63), regex(pattern = DNS_LABEL))]
    pub namespace: Option<String>,
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub name: String,
}

impl From<&str> for SecretRef {
    /// A Secret in the same namespace.
    fn from(name: &str) -> Self {
        Self { namespace: None, name: name.to_owned() }
    }
}
