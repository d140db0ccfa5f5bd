//! The part of a GatewaySecret's spec that says how a rotation goes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Period;
use super::gateway_secret::{DNS_LABEL, DNS_SUBDOMAIN};

/// A CA of the clients' own, beside the one of the gateways' certificate: a public server certificate with private clients.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientCa {
    /// The Secret that holds it, in `caNamespace`. The agent never writes it.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub secret_name: String,
}

/// How long it takes at most until a write is in use everywhere. Each later step waits so long after the write that it relies on.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Settle {
    /// From a write of the managed Secret to its use by every gateway proxy. Default 30s: istiod holds pushes back for up to
    /// 10s (`PILOT_DEBOUNCE_MAX`), and sends them one proxy after the other.
    pub gateways: Period,
    /// From a write of a client's Secret, or of a bundle, to its use by the client. Default 3m: the kubelet looks at its pods
    /// each minute (`syncFrequency`) and may have a minute-old Secret then; the program notices the file after that.
    pub clients: Period,
    /// From a change of this GatewaySecret's status to its use by every replica of the webhook. Default 10s. A client's Secret
    /// that was written sooner is not taken to have the new bundle.
    pub admission: Period,
    /// The least time between the new CA's distribution to clients and the gateways' first use of a leaf of it, however soon
    /// all known clients have it.
    pub overlap: Period,
}

impl Default for Settle {
    fn default() -> Self {
        Self {
            gateways: Period::from_secs(30),
            clients: Period::from_secs(180),
            admission: Period::from_secs(10),
            overlap: Period::default(),
        }
    }
}

/// How the agent reaches the gateways, to see what they have loaded: it opens TLS to every endpoint of a Service. Without it the agent
/// finds the Service, the port and hosts by itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reach {
    /// The Service of the gateways, in the GatewaySecret's namespace. Its EndpointSlices (label `kubernetes.io/service-name`)
    /// tell every pod's address; the Service's own address is not used.
    #[schemars(length(min = 1, max = 63), regex(pattern = DNS_SUBDOMAIN))]
    pub service_name: String,
    /// Name of the Service's port on which gateways serve the managed Secret; the EndpointSlices tell its number at the pods.
    /// Empty for the only port of a Service that has no name. Default: `https`, as in Istio's charts.
    #[serde(default = "https")]
    #[schemars(length(max = 63), regex(pattern = "^[-a-z0-9]*$"))]
    pub port_name: String,
    /// The host to ask for (SNI, RFC 6066): one that Gateways serve with the managed Secret, without a wildcard.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub host: String,
    /// Name of a Secret (`tls.crt`, `tls.key`) with a client's certificate that is presented to the gateways: of a new CA it
    /// shows whether they trust that by now. It belongs to nobody else, and may do nothing behind the gateways. Without it
    /// the agent signs one for some minutes with the key of the clients' CA, where the Secret of that holds it; else the served
    /// leaf is seen, and for trust the settle time counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub canary_secret_name: Option<String>,
}

/// Whether the agent probes the gateways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Probing {
    /// It opens TLS to each gateway while a write is being taken over. The default.
    #[default]
    Auto,
    /// It does not: settle times count alone, which is wrong while istiod is away.
    Never,
}

/// What is known of the clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Clients {
    /// All clients are declared: their Secrets have the label `trustspan.dev/client`, here or in one of `namespaces`, or are in `secretNames`. If
    /// false, undeclared clients are assumed: the old CA stays until it expires (see `maxLeafLifetime`), and gateways switch their serving
    /// certificate only shortly before it expires.
    pub complete: bool,
    /// Other namespaces with clients. A client there is declared by the label `trustspan.dev/client: NAMESPACE_NAME` of this GatewaySecret: the owners
    /// of both sides have to agree. The agent needs rights there (`trustspan rbac`); until it has them, clients count as unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<NamespaceName>", extend("maxItems" = 64, "x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<String>,
    /// The longest lifetime of a client's certificate. A CA is then not needed any more so long after it last signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Period")]
    pub max_leaf_lifetime: Option<Period>,
    /// Names of clients' Secrets that no Certificate of cert-manager stands for. The agent reads them by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<SecretName>", extend("maxItems" = 256, "x-kubernetes-list-type" = "set"))]
    pub secret_names: Vec<String>,
}

impl Clients {
    /// Warns of a rotation with undeclared clients. Condition `RotationReady` has the dates.
    pub const INCOMPLETE: &'static str = "clients.complete is false: undeclared clients may fail in a CA rotation. Declare all clients, then set it to true";
}

/// An item of `spec.clients.secretNames`, for the schema.
#[derive(JsonSchema)]
struct SecretName(
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    #[allow(dead_code)]
    String,
);

/// An item of `spec.clients.namespaces`, for the schema.
#[derive(JsonSchema)]
struct NamespaceName(
    #[schemars(length(min = 1, max = 63), regex(pattern = DNS_LABEL))]
    #[allow(dead_code)]
    String,
);

/// A place where the clients' bundle is kept, for those who read it from there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.namespace) || self.kind == 'ConfigMap'",
    "message": "namespace is for a ConfigMap only: Secrets are kept in the GatewaySecret's namespace, and ClusterTrustBundles have none",
}]))]
pub struct Distribution {
    /// The kind of object. ClusterTrustBundles are cluster-scoped.
    pub kind: DistributionKind,
    /// Namespace of a ConfigMap. Default: that of the GatewaySecret. In another namespace the agent creates nothing: the owner there creates the
    /// ConfigMap with the label `trustspan.dev/client: NAMESPACE_NAME` of this GatewaySecret, and the agent then writes the key.
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

/// What a bundle can be kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum DistributionKind {
    /// A ConfigMap: certificates are public.
    ConfigMap,
    /// A Secret, for programs that read nothing else.
    Secret,
    /// A ClusterTrustBundle (`certificates.k8s.io`) without a signer, for pods that project it. Its readers may take its CAs in any order.
    ClusterTrustBundle,
}

impl DistributionKind {
    /// The kind as Kubernetes writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::ClusterTrustBundle => "ClusterTrustBundle",
        }
    }

    /// Whether its readers see the CAs in the order in which they were written. Who reads a ClusterTrustBundle, such as the kubelet,
    /// may change it (the field's documentation in Kubernetes' API).
    pub fn keeps_order(self) -> bool {
        self != Self::ClusterTrustBundle
    }
}

const READERS: &str = "readers of ";

impl Distribution {
    /// Those who read it, for people, and as a name that no client's Secret has.
    pub fn readers(&self) -> String {
        let Self { kind, namespace, name, key } = self;
        match (kind, namespace) {
            (DistributionKind::ClusterTrustBundle, _) => format!("{READERS}ClusterTrustBundle {name}"),
            (kind, None) => format!("{READERS}{} {name} ({key})", kind.name()),
            (kind, Some(namespace)) => format!("{READERS}{} {namespace}/{name} ({key})", kind.name()),
        }
    }

    /// Whether a name is of such readers.
    pub fn is_readers(name: &str) -> bool {
        name.starts_with(READERS)
    }
}

fn https() -> String {
    "https".to_owned()
}

/// What becomes of the gateways' leaf when it is about to end while clients hold its change back, since they may not trust the new
/// leaf's CA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum AtLeafExpiry {
    /// Shortly before its end (twice `settle.gateways`) the new leaf is served: clients that do not follow are cut off, and all
    /// others go on. The default, since whoever looks at dates refuses an expired leaf.
    #[default]
    Switch,
    /// It is served until all follow, expired or not: for clients that do not look at dates, or where a person decides. Clients that
    /// do look refuse it from its end on.
    Keep,
}

/// What the agent does about workloads that are behind: they name the root Secret, or run with older content of the managed one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Rollouts {
    /// They are reported. The default, since a rollout is a thing that people choose.
    #[default]
    Never,
    /// They are rolled, one after the other: the next when no rollout is under way any more.
    Paced,
}

fn ca_crt() -> String {
    "ca.crt".to_owned()
}
