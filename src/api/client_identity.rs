//! The `ClientIdentity` resource: a client of an API server that holds a kubeconfig.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Condition;
use super::schema::{DNS_LABEL, DNS_SUBDOMAIN};

/// The shortest `expirationSeconds` that the API server accepts in a CertificateSigningRequest.
pub const MIN_EXPIRATION_SECONDS: i32 = 600;

/// The default of [`ClientIdentitySpec::expiration_seconds`]: a day.
pub const DEFAULT_EXPIRATION_SECONDS: i32 = 86_400;

/// An identity of a client of this API server, which has a certificate and a kubeconfig, and the permissions that are declared here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(
    feature = "edge",
    derive(kube::CustomResource),
    kube(
        group = "trustspan.dev",
        version = "v1alpha1",
        kind = "ClientIdentity",
        plural = "clientidentities",
        category = "trustspan",
        namespaced,
        status = "ClientIdentityStatus",
        doc = "ClientIdentity is an identity of a client of this API server. trustspan-node approve gives the client a bootstrap kubeconfig and the declared permissions, and approves its certificate signing requests.",
        validation = kube::core::cel::Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')")
            .message("use a DNS label as metadata.name (at most 63 letters, digits and '-'): the name is part of a bootstrap token's group"),
        validation = kube::core::cel::Rule::new("!has(self.spec.server.caConfigMapName) || !has(self.spec.server.caBundle)")
            .message("set only one of spec.server.caConfigMapName and spec.server.caBundle"),
        printcolumn(name = "Valid", type_ = "string", json_path = ".status.conditions[?(@.type==\"Valid\")].status"),
        printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Valid\")].reason"),
        printcolumn(name = "Expires", type_ = "string", json_path = ".status.certificate.notAfter"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
        printcolumn(
            name = "Message",
            type_ = "string",
            json_path = ".status.conditions[?(@.type==\"Valid\")].message",
            priority = 1
        )
    )
)]
pub struct ClientIdentitySpec {
    /// What the client may do in this namespace. The approver can grant only what it may do itself.
    #[schemars(extend("maxItems" = 64))]
    pub rules: Vec<PolicyRule>,

    /// How the client reaches this API server.
    pub server: IdentityServer,

    /// The longest life of a certificate that the client may request, in seconds. Default: 86400, a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32", range(min = 600))]
    pub expiration_seconds: Option<i32>,

    /// Name of the Secret in this namespace that gets the bootstrap kubeconfig, under the key `kubeconfig`. Default: the name of the
    /// ClientIdentity with the suffix `-bootstrap`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub bootstrap_secret_name: Option<String>,

    /// Also writes the bootstrap kubeconfig to a Secret of another cluster, which the client can read while this API server is unreachable
    /// for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BootstrapDelivery")]
    pub delivery: Option<BootstrapDelivery>,
}

/// A rule of a Role (rbac.authorization.k8s.io/v1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRule {
    /// API groups; the empty string is the core group.
    #[schemars(extend("minItems" = 1, "maxItems" = 64))]
    pub api_groups: Vec<String>,
    /// Resources, with subresources as `pods/log`.
    #[schemars(extend("minItems" = 1, "maxItems" = 64))]
    pub resources: Vec<String>,
    /// Names of the objects. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("minItems" = 1, "maxItems" = 256), transform = super::schema::without_default)]
    pub resource_names: Vec<String>,
    /// Verbs.
    #[schemars(extend("minItems" = 1, "maxItems" = 32))]
    pub verbs: Vec<String>,
}

/// The address of an API server, and the CAs of its serving certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdentityServer {
    /// The URL by which the client reaches this API server.
    #[schemars(length(min = 9, max = 2048), regex(pattern = "^https://[^/?#@]+(/[^?#]*)?$"))]
    pub endpoint: String,

    /// ConfigMap in this namespace with the CAs under the key `ca.crt`. Default: `kube-root-ca.crt`, which every namespace has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub ca_config_map_name: Option<String>,

    /// The CAs, in PEM, instead of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 262144))]
    pub ca_bundle: Option<String>,
}

/// A Secret of another cluster for the bootstrap kubeconfig.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapDelivery {
    /// Secret in this namespace with a kubeconfig for the other cluster, under the key `kubeconfig`.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub kubeconfig_secret_name: String,
    /// Namespace of the Secret in the other cluster.
    #[schemars(length(min = 1, max = 63), regex(pattern = DNS_LABEL))]
    pub namespace: String,
    /// Name of the Secret in the other cluster. The bootstrap kubeconfig is stored under the key `kubeconfig`.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub secret_name: String,
}

impl ClientIdentitySpec {
    /// The longest life of a certificate, in seconds.
    pub fn max_expiration_seconds(&self) -> i32 {
        self.expiration_seconds.unwrap_or(DEFAULT_EXPIRATION_SECONDS)
    }

    /// Name of the Secret that gets the bootstrap kubeconfig.
    pub fn bootstrap_secret_name(&self, name: &str) -> String {
        self.bootstrap_secret_name.clone().unwrap_or_else(|| format!("{name}-bootstrap"))
    }
}

/// What the approver knows about the identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIdentityStatus {
    /// `Valid`: the client has a certificate that the API server accepts. `Granted`: it has the declared permissions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The user name of the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub user: Option<String>,

    /// The certificate that was issued last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "IssuedCertificate")]
    pub certificate: Option<IssuedCertificate>,

    /// The bootstrap token that exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BootstrapToken")]
    pub bootstrap: Option<BootstrapToken>,
}

/// A certificate of the client. A copy in the annotation `trustspan.dev/client-certificate` survives a restore without status.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IssuedCertificate {
    /// Name of the CertificateSigningRequest.
    pub request: String,
    /// The certificate, DER in base64.
    pub certificate: String,
    /// End of its validity.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub not_after: Timestamp,
    /// When the approver saw it first.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub issued_at: Timestamp,
    /// The address of the API server that the client's kubeconfig was built with.
    pub endpoint: String,
    /// A hash of the CAs that the API server had when the client's kubeconfig was built.
    pub ca_hash: String,
    /// A hash of the CAs in the client's kubeconfig: during a CA roll it has more.
    pub bundle_hash: String,
}

/// A bootstrap token. Its secret is only in the token's Secret and in the bootstrap kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapToken {
    /// The public part of the token.
    pub token_id: String,
    /// When it was made.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub created_at: Timestamp,
    /// When it expires.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub expiration: Timestamp,
    /// The address of the API server in the bootstrap kubeconfig.
    pub endpoint: String,
    /// A hash of the API server's CAs when the bootstrap kubeconfig was made.
    pub ca_hash: String,
    /// A hash of the CAs in the bootstrap kubeconfig.
    pub bundle_hash: String,
    /// Fingerprints of the API server's CAs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cas: Vec<String>,
    /// Whether the bootstrap kubeconfig is in its Secrets.
    #[serde(default)]
    #[schemars(transform = super::schema::without_default)]
    pub delivered: bool,
    /// Tokens that were made since the last certificate was issued, this one included.
    pub attempts: u32,
    /// A hash of the public key that was approved for this token. No other key is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub key_hash: Option<String>,
}

impl ClientIdentityStatus {
    /// The condition of a type.
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }
}
