//! The status of a `GatewaySecret`: what is known of it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GatewaySecretSpec, GatewayUse, Mode, SecretRef};

/// What is known of the managed Secret and of the cluster around it. The webhook decides from spec and status alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewaySecretStatus {
    /// The `metadata.generation` that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Where the rotation stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,

    /// Since when it stands there, as far as the agent saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub phase_since: Option<Timestamp>,

    /// The mode as it is in force: the agent's flag wins over `spec.mode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Mode")]
    pub mode: Option<Mode>,

    /// The managed Secret's name as it is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,

    /// What `spec` leaves to be derived, from the Certificate that it names and the issuer of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Resolved")]
    pub resolved: Option<Resolved>,

    /// `Ready`: the managed Secret exists and is sound, and nobody older claims its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The trust anchors in the managed Secret, in their order there: public certificates. Those that it held last, while it is gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bundle: Vec<TrustAnchor>,

    /// A hash for each key of the managed Secret that holds certificates (`ca.crt`, `tls.crt`, …).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hashes: BTreeMap<String, KeyHash>,

    /// Every namespace that holds a workload with `spec.workloadLabels`. Absent: not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_namespaces: Option<Vec<String>>,

    /// How many these are. With `workloadNamespaces` absent they do not fit, now or once, and no Istio Gateway is renamed; once
    /// they are gone, removing this field from the status starts over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub workload_namespace_count: Option<u32>,

    /// The Gateways that use the root or the managed Secret, as many as fit: those of this namespace first, then a fair share for
    /// every other one; so for their hosts. Absent: not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateways: Option<Vec<GatewayUse>>,

    /// How many Gateways there are, listed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub gateway_count: Option<u32>,

    /// How many hosts they have, listed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub host_count: Option<u32>,

    /// The `<root>-cacert` sibling, if there is one: Istio takes CAs from it first, and it stops applying after a rename.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cacert_sibling: Option<CacertSibling>,

    /// Namespaces whose Gateways a ReferenceGrant lets name the root Secret, but not the managed one. Absent: not observed,
    /// and no reference from another namespace is renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ungranted_namespaces: Option<Vec<String>>,

    /// How many these are. With `ungrantedNamespaces` absent they do not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub ungranted_namespace_count: Option<u32>,

    /// The leaf certificates in use: of declared clients (label `trustspan.dev/client`), and the one that gateways serve.
    /// Absent: not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves: Option<Vec<Leaf>>,

    /// Declared clients whose certificates do not fit into `leaves`. While there is one, no CA may leave the bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub unlisted_clients: Option<u32>,

    /// The CAs that all declared clients trust which verify the gateways now. Absent: not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_trust: Option<Vec<TrustAnchor>>,

    /// What clients are to trust, kept by the agent: the webhook writes it into the `ca.crt` of declared clients' Secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_bundle: Vec<TrustAnchor>,

    /// What the gateways showed on the wire, kept by the agent. Absent: it has nothing to look for, or gateways are not probed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Endpoints")]
    pub endpoints: Option<Endpoints>,

    /// Objects beside the managed Secret that gateways with it use: for their clients' CAs, or as another certificate. The
    /// agent reads them by name. At most 32 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trust_sources: Vec<TrustSourceUse>,

    /// The ConfigMaps that are kept from those of `spec.clients.caConfigMapNames`, as far as they exist and hold CAs. Gateways are rewritten to
    /// name these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub managed_config_maps: Vec<ManagedConfigMap>,

    /// What the rotation waits for, kept by the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,

    /// The declared clients that do not follow the rotation yet, as many as fit, longest first, kept by the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lagging: Vec<LaggingClient>,

    /// How many these are, listed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub lagging_count: Option<u32>,

    /// Workloads in this namespace that name the root Secret, or run with older content of the managed one. Absent: not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub workloads_behind: Option<u32>,

    /// Names of declared clients that `spec.mode: Copy` would cut off at once, as many as fit, kept by the agent. Absent: not
    /// observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_off_by_copy: Option<Vec<String>>,

    /// How many these are, listed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub cut_off_by_copy_count: Option<u32>,
}

/// The Secrets that a GatewaySecret reads, as its spec says, or as they were derived.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Resolved {
    /// The source Secret.
    pub source_secret_name: String,
    /// The Secret of the CA that signs the serving certificate, where that is another Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SecretRef")]
    pub ca_secret_ref: Option<SecretRef>,
    /// The objects that they were derived from: `Certificate gateway`, `ClusterIssuer mesh`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub derived_from: Vec<String>,
}

impl Resolved {
    /// What a spec says by itself, and for the rest what was derived last.
    pub fn of(spec: &GatewaySecretSpec, last: Option<&Self>) -> Self {
        let last = last.filter(|_| spec.certificate_ref.is_some()).cloned().unwrap_or_default();
        Self {
            source_secret_name: spec.source_secret_name.clone().unwrap_or(last.source_secret_name),
            ca_secret_ref: spec.ca_secret_ref.clone().or(last.ca_secret_ref),
            derived_from: last.derived_from,
        }
    }
}

/// A declared client that was asked to follow a rotation, and may still go by something of an old CA.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LaggingClient {
    /// Name of its Secret; or the object of `spec.trustBundleTargets` from which it takes its trust.
    pub name: String,
    /// When it was first seen so.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub since: Timestamp,
    /// It takes longer than following takes: twice `propagationDelays.admission` and `propagationDelays.clients` together.
    pub overdue: bool,
}

/// How many endpoints of the gateways' Service showed what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Endpoints {
    /// All there are.
    // The API server warns of formats that it does not know (uint32).
    #[schemars(with = "i64", range(min = 0))]
    pub total: u32,
    /// Those that were seen with the newest content: its leaf, and, where a CA has come, a canary of it was let in. The rest of
    /// `total` did not tell.
    #[schemars(with = "i64", range(min = 0))]
    pub current: u32,
    /// Those that were seen with a former content: whatever relies on a newer one waits for them.
    #[schemars(with = "i64", range(min = 0))]
    pub former: u32,
    /// Those that could not be looked at. For them the settle time counts.
    #[schemars(with = "i64", range(min = 0))]
    pub unreachable: u32,
}

/// An object beside the managed Secret that a gateway with it uses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrustSourceUse {
    /// `Secret` or `ConfigMap`.
    pub kind: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// The first Gateway, listener or upstream that uses it, and its field.
    pub used_by: String,
}

/// A ConfigMap with CAs that the agent keeps from another one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManagedConfigMap {
    /// Name of the ConfigMap that it is kept from.
    pub source: String,
    /// Its own name.
    pub name: String,
    /// Namespaces whose Gateways may name the source by a ReferenceGrant, but not what is kept from it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ungranted_namespaces: Vec<String>,
}

/// A step of the rotation that is held back.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// What is held back.
    pub step: StepName,
    /// Why, in a sentence.
    pub reason: String,
    /// When the clock alone ends it, at the latest. Absent: something else must happen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub until: Option<Timestamp>,
}

/// A step of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
pub enum StepName {
    /// The managed Secret and the clients' bundle get the new CA beside the old.
    ExpandTrust,
    /// The Issuer's Secret gets the new CA.
    PromoteIssuer,
    /// Clients are re-issued.
    ReissueClients,
    /// The gateways' certificate is re-issued.
    ReissueServingCertificate,
    /// The managed Secret gets the new leaf.
    SwitchServingCertificate,
    /// The old CA leaves the bundles.
    DropOldCA,
}

/// A leaf certificate in use.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Leaf {
    /// Who presents it.
    pub kind: LeafKind,
    /// Namespace of the Secret that holds it.
    pub namespace: String,
    /// Name of that Secret.
    pub name: String,
    /// Subject (RFC 4514).
    pub subject: String,
    /// End of validity.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub not_after: Timestamp,
    /// The chain, leaf first (PEM, public).
    pub pem: String,
    /// Further clients, by name of their Secret, whose certificates no verdict distinguishes from this one. None ends later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    /// Whether all of these certificates have the same subject and alternative names: name constraints then accept all or none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub same_names: bool,
}

impl Leaf {
    /// The names of all Secrets that it stands for.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.others).map(String::as_str)
    }

    /// How many Secrets it stands for.
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }
}

/// Who presents a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum LeafKind {
    /// A client, to gateways.
    Client,
    /// The gateways, to clients.
    Server,
}

/// Where a rotation stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Phase {
    /// The managed Secret does not exist, or not in a sound state.
    #[default]
    Pending,
    /// One generation of trust: nothing to do.
    Steady,
    /// The bundle holds more CAs than the root.
    TrustExpanded,
    /// Every gateway trusts the new CA.
    Converged,
    /// Every declared client presents a leaf of the new CA.
    ClientsMigrated,
    /// The gateways serve a leaf of the new CA.
    ServingCertificateSwitched,
}

/// One trust anchor of the managed bundle.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrustAnchor {
    /// Subject (RFC 4514).
    pub subject: String,
    /// SHA-256 over the certificate's DER, lower-case hex.
    pub fingerprint: String,
    /// Start of validity.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub not_before: Timestamp,
    /// End of validity.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub not_after: Timestamp,
    /// The certificate itself (PEM, public).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pem: Option<String>,
    /// Whether every gateway has it by now, as far as the agent can tell. Absent: no agent looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub converged: Option<bool>,
}

/// The content of one key of the managed Secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyHash {
    /// SHA-256 over the public certificates under the key, lower-case hex; order, duplicates and PEM layout do not count.
    pub sha256: String,
    /// Grows with every change of `sha256`, and never shrinks: the greater of the former revision plus one and the
    /// change's Unix time in seconds.
    // The API server warns of formats that it does not know (uint64).
    #[schemars(with = "i64", range(min = 0))]
    pub revision: u64,
}

/// A `<root>-cacert` Secret beside the root.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CacertSibling {
    /// Name of the sibling.
    pub name: String,
    /// SHA-256 fingerprints of its CAs that the managed Secret does not hold. While there is one, nothing is renamed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// A condition, as in `metav1.Condition`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, in CamelCase.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: ConditionStatus,
    /// Generation that the condition was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the status last changed.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub last_transition_time: Timestamp,
    /// One word in CamelCase.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

/// Status of a [`Condition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Not known.
    Unknown,
}

/// The condition that allows a rewrite.
pub const READY: &str = "Ready";

impl GatewaySecretStatus {
    /// The condition of a type.
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.type_ == type_)
    }

    /// Whether the managed Secret exists and is sound.
    pub fn is_ready(&self) -> bool {
        self.condition(READY).is_some_and(|c| c.status == ConditionStatus::True)
    }
}
