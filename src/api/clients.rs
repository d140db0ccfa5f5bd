//! The clients of the gateways.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SecretRef;
use super::schema::{DNS_LABEL, DNS_SUBDOMAIN};

/// The clients of the gateways, and the objects that hold their CAs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Clients {
    /// Whether all clients are declared: their Secrets have the label `trustspan.dev/client`, here or in one of `namespaces`, or are in
    /// `secretNames`. If false, undeclared clients are assumed to exist, and an old CA stays until it expires.
    pub all_declared: bool,
    /// Other namespaces with clients. A client there is declared by the label `trustspan.dev/client: NAMESPACE_NAME` of this GatewaySecret: the
    /// owners of both sides have to agree.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<NamespaceName>", extend("maxItems" = 64, "x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<String>,
    /// Secrets of clients without that label, in this namespace: of clients that no cert-manager Certificate writes, or whose Certificate cannot
    /// be changed. The webhook adds the clients' bundle to `ca.crt` of these, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<SecretName>", extend("maxItems" = 256, "x-kubernetes-list-type" = "set"))]
    pub secret_names: Vec<String>,
    /// The Secret of the CA that signs clients, if that is not the CA of the serving certificate. It is rotated independently.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SecretRef")]
    pub ca_secret_ref: Option<SecretRef>,
    /// ConfigMaps in this namespace by which gateways verify clients. The agent writes a copy `NAME.trustspan` of each, with the CAs of the
    /// rotation, and Gateways are rewritten to name the copy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<ConfigMapName>", extend("maxItems" = 16, "x-kubernetes-list-type" = "set"))]
    pub ca_config_map_names: Vec<String>,
}

impl Clients {
    /// Warns of a rotation with undeclared clients. Condition `RotationReady` has the dates.
    pub const INCOMPLETE: &'static str = "clients.allDeclared is false: undeclared clients may fail in a CA rotation. Declare all clients, then set it to true";
}

/// Name of a Secret.
#[derive(JsonSchema)]
struct SecretName(
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    #[allow(dead_code)]
    String,
);

/// Name of a namespace.
#[derive(JsonSchema)]
struct NamespaceName(
    #[schemars(length(min = 1, max = 63), regex(pattern = DNS_LABEL))]
    #[allow(dead_code)]
    String,
);

/// Name of a ConfigMap. The name of the copy has the suffix `.trustspan`.
#[derive(JsonSchema)]
struct ConfigMapName(
    #[schemars(
        length(min = 1, max = 243),
        regex(pattern = DNS_SUBDOMAIN),
        extend("x-kubernetes-validations" = [{
            "rule": "!self.endsWith('.trustspan')",
            "message": "a name that ends in .trustspan is that of a copy that the agent writes: name the ConfigMap that it is copied from",
        }])
    )]
    #[allow(dead_code)]
    String,
);
