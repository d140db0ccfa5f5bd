//! The `GatewaySecret` resource: the one place where users say what is managed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(feature = "edge")]
use super::GatewaySecretStatus;
use super::{AtLeafExpiry, ChangeWindow, ClientCa, Clients, Distribution, Probing, Reach, Rollouts, Settle};

/// A GatewaySecret puts a managed Secret between the root Secret that an issuer writes and the gateways that use it.
///
/// It stands in the namespace of the gateway workloads, where Istio looks Secrets up, beside both Secrets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(
    feature = "edge",
    derive(kube::CustomResource),
    kube(
        group = "trustspan.dev",
        version = "v1alpha1",
        kind = "GatewaySecret",
        plural = "gatewaysecrets",
        shortname = "gws",
        category = "trustspan",
        namespaced,
        status = "GatewaySecretStatus",
        doc = "GatewaySecret puts a managed Secret between the root Secret that an issuer writes and the gateways that use it.",
        validation = kube::core::cel::Rule::new(
            "self.spec.rootSecretName != (has(self.spec.secretName) ? self.spec.secretName : self.metadata.name)"
        )
        .message("the managed Secret needs a name of its own: spec.secretName (default: metadata.name) equals spec.rootSecretName"),
        validation = kube::core::cel::Rule::new(
            "!has(self.spec.issuerSecretName) || !(self.spec.issuerSecretName in [self.spec.rootSecretName, has(self.spec.secretName) ? self.spec.secretName : self.metadata.name, has(self.spec.caSecretName) ? self.spec.caSecretName : '', has(self.spec.clientCA) ? self.spec.clientCA.secretName : ''])"
        )
        .message("spec.issuerSecretName needs a name of its own: the agent writes that Secret"),
        validation = kube::core::cel::Rule::new(
            "!has(self.spec.reach) || !has(self.spec.reach.canarySecretName) || !(self.spec.reach.canarySecretName in [self.spec.rootSecretName, has(self.spec.secretName) ? self.spec.secretName : self.metadata.name, has(self.spec.caSecretName) ? self.spec.caSecretName : '', has(self.spec.issuerSecretName) ? self.spec.issuerSecretName : '', has(self.spec.clientCA) ? self.spec.clientCA.secretName : ''])"
        )
        .message("spec.reach.canarySecretName needs a Secret of its own: a client's certificate, which gateways neither serve nor trust"),
        printcolumn(name = "Root", type_ = "string", json_path = ".spec.rootSecretName"),
        printcolumn(name = "Managed", type_ = "string", json_path = ".status.secretName"),
        printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
        printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
        printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
        printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", priority = 1),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )
)]
pub struct GatewaySecretSpec {
    /// Name of the Secret that the issuer (cert-manager, or a person) writes. It is read, never written.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub root_secret_name: String,

    /// Name of the managed Secret that gateways use. Default: the name of this GatewaySecret. The same in both modes,
    /// so that a change of mode needs no change of a Gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // Not nullable: the CEL rule asks `has()`, which a null passes.
    #[schemars(with = "String", length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub secret_name: Option<String>,

    /// How the managed Secret follows the root: `Bundle` keeps trust in the old CA while it is needed,
    /// `Copy` is a plain copy of the root.
    #[serde(default)]
    #[schemars(default)]
    pub mode: Mode,

    /// Labels of the gateway workloads (pods) that this Secret serves. An Istio Gateway is rewritten when its
    /// `spec.selector` picks only workloads that carry these labels. Default: `istio: ingressgateway`.
    #[serde(default = "default_workload_labels")]
    #[schemars(extend("minProperties" = 1, "x-kubernetes-map-type" = "atomic"), transform = without_default)]
    pub workload_labels: BTreeMap<String, String>,

    /// The oldest version of Envoy among the gateways, such as `1.40`: keys and signatures of CAs are judged by what it verifies with, and
    /// a CA that it does not is not used. Default: the oldest that is supported, 1.37. Istio's releases name their Envoy in the release notes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", regex(pattern = r"^1\.(3[6-9]|[4-9][0-9]|[1-9][0-9]{2})$"))]
    pub oldest_envoy: Option<String>,

    /// Name of the Secret of the CA that signs the gateways' certificate, where that is not the root Secret itself: a root that
    /// holds a leaf learns of a new CA only with its next issue. It is read, never written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub ca_secret_name: Option<String>,

    /// Name of the Secret that the clients' Issuer refers to. The agent keeps it: a copy of the CA's Secret that gets a new CA
    /// only when all gateways trust it, so that nothing is signed before it is trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub issuer_secret_name: Option<String>,

    /// Namespace of the Secrets that `caSecretName`, `issuerSecretName` and `clientCA.secretName` name. Set it to cert-manager's cluster resource
    /// namespace if a ClusterIssuer signs. Default: the GatewaySecret's namespace. The agent writes `issuerSecretName` there, and nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 63), regex(pattern = DNS_LABEL))]
    pub ca_namespace: Option<String>,

    /// The clients' own CA, where it is not that of the gateways' certificate. It is rotated on its own.
    #[serde(default, rename = "clientCA", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ClientCa")]
    pub client_ca: Option<ClientCa>,

    /// Names of ConfigMaps, in the same namespace, from which gateways take their clients' CAs. The agent keeps ConfigMap
    /// `<name>.trustspan` from each: the same CAs, but this GatewaySecret's as the managed Secret has them. Gateways that name one of
    /// them are rewritten to name what is kept.
    #[serde(default, rename = "caConfigMaps", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<ConfigMapName>", extend("maxItems" = 16, "x-kubernetes-list-type" = "set"), transform = without_default)]
    pub ca_config_maps: Vec<String>,

    /// How long it takes at most until a write is in use everywhere.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(transform = without_default)]
    pub settle: Settle,

    /// Whether the agent probes the gateways: looks at each of them for what it has loaded, and goes by `settle` only where that does
    /// not tell.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(transform = without_default)]
    pub probe: Probing,

    /// How to reach the gateways, where the agent does not find that out by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Reach")]
    pub reach: Option<Reach>,

    /// What is known of the clients.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(transform = without_default)]
    pub clients: Clients,

    /// ConfigMaps, Secrets and ClusterTrustBundles in which the clients' bundle is kept, for clients that take their trust from there.
    /// The gateways' leaf changes only when they hold its CA, and their readers have had `settle.clients` to take it over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16), transform = without_default)]
    pub distribute: Vec<Distribution>,

    /// SHA-256 fingerprints (lower-case hex) of CA certificates that are trusted no more, at once: of a certificate, or of its
    /// public key (SubjectPublicKeyInfo). A bundle is never emptied by it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Fingerprint>", extend("maxItems" = 64, "x-kubernetes-list-type" = "set"), transform = without_default)]
    pub distrust: Vec<String>,

    /// The most previous CAs to keep. One that a live leaf needs is never dropped for it.
    #[serde(default, rename = "maxPreviousCAs", skip_serializing_if = "Option::is_none")]
    // The API server warns of formats that it does not know (uint32).
    #[schemars(with = "i64", range(min = 0, max = 16))]
    pub max_previous_cas: Option<u32>,

    /// Holds back every step that takes something away from anybody: re-issue, promotion, the change of the gateways' leaf (until
    /// shortly before the old one ends), and what mode `Copy` writes (as long). Trust still grows. Nothing is held to the end of an old
    /// CA: twice all of `settle` before, the Issuer signs with the new one, and what goes by the old one is re-issued.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(transform = without_default)]
    pub paused: bool,

    /// When the steps may be taken that `paused` holds back, as if it were set at all other times. Default: always.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16), transform = without_default)]
    pub windows: Vec<ChangeWindow>,

    /// What becomes of the gateways' leaf when it is about to end while clients hold its change back: `Switch` serves the new one
    /// shortly before, `Keep` goes on with the old one, expired or not.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(transform = without_default)]
    pub at_leaf_expiry: AtLeafExpiry,

    /// What becomes of workloads in this namespace that still name the root Secret, or that load what has changed: `Never` reports
    /// them, `Paced` has the agent roll them, one after the other, while neither `paused` nor `windows` hold it back.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(transform = without_default)]
    pub rollouts: Rollouts,

    /// Weights of rules, by id, for the Secrets that this GatewaySecret names; they win over the cluster-wide ones.
    /// `trustspan rules` lists the ids. Rules whose weight is fixed are not changed by it. Quote "Off": YAML 1.1 reads it as
    /// a boolean without.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64), transform = without_default)]
    pub severities: BTreeMap<String, Level>,
}

/// The weight of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Level {
    /// Its findings refuse the write.
    Deny,
    /// Its findings are warnings.
    Warn,
    /// It is not heeded.
    Off,
}

/// A default that the API server stored would stay in the map when a client-side apply sets other labels later.
fn without_default(schema: &mut schemars::Schema) {
    schema.remove("default");
}

/// An item of `spec.distrust`, for the schema.
#[derive(JsonSchema)]
struct Fingerprint(
    #[schemars(regex(pattern = r"^[0-9a-fA-F]{64}$"))]
    #[allow(dead_code)]
    String,
);

/// An item of `spec.caConfigMaps`, for the schema: what is kept has the suffix `.trustspan`.
#[derive(JsonSchema)]
struct ConfigMapName(
    #[schemars(
        length(min = 1, max = 243),
        regex(pattern = DNS_SUBDOMAIN),
        extend("x-kubernetes-validations" = [{
            "rule": "!self.endsWith('.trustspan')",
            "message": "a name that ends in .trustspan is that of a ConfigMap that the agent keeps: name the one that it is kept from",
        }])
    )]
    #[allow(dead_code)]
    String,
);

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

pub(super) const DNS_SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$";

pub(super) const DNS_LABEL: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

fn default_workload_labels() -> BTreeMap<String, String> {
    BTreeMap::from([("istio".to_owned(), "ingressgateway".to_owned())])
}

/// How the managed Secret follows the root Secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Mode {
    /// New CA and old CA overlap until nobody needs the old one.
    #[default]
    Bundle,
    /// A plain copy of the root Secret.
    Copy,
}

impl GatewaySecretSpec {
    /// The managed Secret's name, for a GatewaySecret called `own_name`.
    pub fn managed_name<'a>(&'a self, own_name: &'a str) -> &'a str {
        self.secret_name.as_deref().unwrap_or(own_name)
    }

    /// Name of the Secret of the client that the agent presents to the gateways.
    pub fn canary_name(&self) -> Option<&str> {
        self.reach.as_ref()?.canary_secret_name.as_deref()
    }
}
