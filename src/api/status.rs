//! The status of a `GatewaySecret`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GatewayUse, Level, Mode, Period, SecretRef};

/// What the agent observed and decided. The webhook decides from spec and status alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewaySecretStatus {
    /// The `metadata.generation` that this status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// The phase of the rotation. `trustspan status` explains it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,

    /// When the agent first saw that phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub phase_since: Option<Timestamp>,

    /// How long a CA rotation takes, as the agent simulated it last: without change windows and pauses, rounded up to minutes. Absent while one would
    /// not complete without manual steps. During a rotation it is that of its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation_duration: Option<Period>,

    /// The effective mode: the agent's flag takes precedence over `spec.mode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Mode")]
    pub mode: Option<Mode>,

    /// The name of the managed Secret that gateways use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,

    /// The Secrets that are used, as `spec` names them or as they were derived from its Certificate and that Certificate's issuer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Resolved")]
    pub resolved: Option<Resolved>,

    /// The severities of rules that its policies set, for the rules of `trustspan policies`: a ValidatingAdmissionPolicy cannot read a
    /// RotationPolicy.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub severities: BTreeMap<String, Level>,

    /// Conditions, all with positive polarity: `True` is good. `Ready`: the managed Secret exists and is valid, and no older
    /// GatewaySecret claims its name. The message of a condition that is not `True` says what to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The CAs in the managed Secret, in its order: gateways verify clients by them. While the Secret is missing, those that it held last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bundle: Vec<TrustAnchor>,

    /// A hash of each key of the managed Secret that holds certificates (`ca.crt`, `tls.crt`, …).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hashes: BTreeMap<String, KeyHash>,

    /// Every namespace with a workload that has `spec.workloadLabels`. Absent: not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_namespaces: Option<Vec<String>>,

    /// The number of `workloadNamespaces`. If that is absent they did not fit, now or earlier, and no Istio Gateway is rewritten; once
    /// there are fewer, remove this field from the status to start again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub workload_namespace_count: Option<u32>,

    /// The Gateways that use the source Secret or the managed Secret, as many as fit: those of this namespace first, then a fair share of
    /// every other namespace. The same applies to their hosts. Absent: not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateways: Option<Vec<GatewayUse>>,

    /// The number of these Gateways, listed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub gateway_count: Option<u32>,

    /// The number of their hosts, listed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub host_count: Option<u32>,

    /// The Secret `<source>-cacert`, if it exists. Istio prefers its CAs to those of the source Secret, and ignores it once Gateways name
    /// the managed Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cacert_sibling: Option<CacertSibling>,

    /// Namespaces from which a ReferenceGrant lets Gateways name the source Secret, but not the managed Secret. Absent: not observed, and
    /// no reference from another namespace is rewritten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ungranted_namespaces: Option<Vec<String>>,

    /// The number of `ungrantedNamespaces`. If that is absent, they do not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub ungranted_namespace_count: Option<u32>,

    /// The certificates in use: those of declared clients (label `trustspan.dev/client`), and the serving certificate of the gateways.
    /// Absent: not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves: Option<Vec<Leaf>>,

    /// The number of declared clients whose certificates are unknown, or do not fit into `leaves`. While there are any, no CA may leave the bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub unlisted_clients: Option<u32>,

    /// The declared clients whose certificates are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown_clients: Vec<UnknownClient>,

    /// The CAs that all declared clients trust and that verify the serving certificate. Absent: not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_trust: Option<Vec<TrustAnchor>>,

    /// The CAs that clients have to trust: the webhook writes them into `ca.crt` of the Secrets of declared clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_bundle: Vec<TrustAnchor>,

    /// `clientBundle` as `data` of a Secret has it, PEM in base64, if it is one CA: a ValidatingAdmissionPolicy cannot encode it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub client_bundle_data: Option<String>,

    /// The results of probing the gateways over TLS. Absent: there is no change to verify, or gateways are not probed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Endpoints")]
    pub endpoints: Option<Endpoints>,

    /// Other objects that gateways with the managed Secret use: for the CAs of their clients, or as another serving certificate. The
    /// agent reads them by name. At most 32 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trust_sources: Vec<TrustSourceUse>,

    /// The ConfigMaps that the agent writes from those of `spec.clients.caConfigMapNames`, if they exist and hold CAs. Gateways are
    /// rewritten to name them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub managed_config_maps: Vec<ManagedConfigMap>,

    /// The steps of the rotation that wait, and for what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,

    /// The declared clients that were asked to follow the rotation and have not yet, as many as fit, longest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lagging: Vec<LaggingClient>,

    /// The number of these clients, listed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub lagging_count: Option<u32>,

    /// The number of workloads in this namespace that name the source Secret, or run with earlier content of the managed Secret. Absent:
    /// not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub workloads_behind: Option<u32>,

    /// Declared clients that could no longer connect with `spec.mode: Copy`, as many as fit. Absent: not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_off_by_copy: Option<Vec<String>>,

    /// The number of these clients, listed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0))]
    pub cut_off_by_copy_count: Option<u32>,
}

/// The Secrets that a GatewaySecret uses, as its spec names them or as they were derived.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Resolved {
    /// The source Secret.
    pub source_secret_name: String,
    /// The Secret of the CA that signs the serving certificate, if that is another Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SecretRef")]
    pub ca_secret_ref: Option<SecretRef>,
    /// The objects from which they were derived, such as `Certificate gateway` and `ClusterIssuer mesh`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub derived_from: Vec<String>,
}

/// A declared client that was asked to follow a rotation, and may still use or trust only an old CA.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LaggingClient {
    /// Name of its Secret, or the object of `spec.trustBundleTargets` from which it takes CAs.
    pub name: String,
    /// Since when.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub since: Timestamp,
    /// Whether this lasts longer than twice the sum of `propagationDelays.admission` and `propagationDelays.clients`.
    pub overdue: bool,
}

/// A declared client that may use a certificate which the agent has not seen.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnknownClient {
    /// Name of its Secret.
    pub name: String,
    /// End of validity of that certificate, if its Certificate says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub not_after: Option<Timestamp>,
}

/// Numbers of endpoints of the gateways' Service, by the content that a probe saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Endpoints {
    /// All endpoints.
    // The API server warns of formats that it does not know (uint32).
    #[schemars(with = "i64", range(min = 0))]
    pub total: u32,
    /// Endpoints with the newest content: they present its certificate and, if it has a new CA, accept a client certificate of that
    /// CA. The rest of `total` has not been verified yet.
    #[schemars(with = "i64", range(min = 0))]
    pub current: u32,
    /// Endpoints with earlier content. The rotation waits for them.
    #[schemars(with = "i64", range(min = 0))]
    pub stale: u32,
    /// Endpoints that could not be probed. `propagationDelays.gateways` is assumed for them.
    #[schemars(with = "i64", range(min = 0))]
    pub unreachable: u32,
}

/// Another object that a gateway with the managed Secret uses.
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
    /// Whether it holds a CA of this GatewaySecret, so that declared clients are accepted by it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accepts_clients: bool,
    /// Whether the owner of the object consents to that use: it is in the namespace of the GatewaySecret or of the object in `usedBy`, or a
    /// ReferenceGrant in its namespace allows it. Otherwise a write that cuts off clients is not rejected, and only warns.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub granted: bool,
}

impl TrustSourceUse {
    /// Whether the GatewaySecrets of a namespace have a say about the object.
    pub fn is_granted_to(&self, namespace: &str) -> bool {
        self.granted || self.namespace == namespace
    }
}

/// A ConfigMap with CAs that the agent writes from another one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManagedConfigMap {
    /// Name of the ConfigMap that it is copied from.
    pub source: String,
    /// Its name.
    pub name: String,
    /// Namespaces from which a ReferenceGrant lets Gateways name the other ConfigMap, but not this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ungranted_namespaces: Vec<String>,
}

/// A step of the rotation that waits.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// The step.
    pub step: StepName,
    /// What it waits for, and what to do if a person has to act.
    pub reason: String,
    /// When it ends at the latest. Absent: it does not end with time alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub until: Option<Timestamp>,
    /// Whether a person has to act: `reason` says what to do. Absent: the wait ends without that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_action: bool,
}

/// A step of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
pub enum StepName {
    /// The new CA is added to the managed Secret and to the bundle of clients.
    ExpandTrust,
    /// The Secret of the clients' Issuer gets the new CA.
    PromoteIssuer,
    /// Certificates of clients are reissued.
    ReissueClients,
    /// The serving certificate is reissued.
    ReissueServingCertificate,
    /// The managed Secret gets the new serving certificate.
    SwitchServingCertificate,
    /// The old CA is removed from the bundles.
    DropOldCA,
}

/// A certificate in use.
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
    /// Further clients, by name of their Secret, for whose certificates every verdict is the same. None expires later, and all were issued for a similar time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    /// Whether all of these certificates have the same subject and alternative names, so that name constraints accept all or none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub same_names: bool,
}

impl Leaf {
    /// The names of all Secrets that it represents.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.others).map(String::as_str)
    }

    /// The number of Secrets that it represents.
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }
}

/// Who presents a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum LeafKind {
    /// A client, to gateways.
    Client,
    /// The gateways, to clients.
    Server,
}

/// The phase of a rotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Phase {
    /// The managed Secret does not exist, or is invalid: before the first write, or because it was deleted or overwritten. A rotation that was in
    /// progress is interrupted, and continues from where it was when the managed Secret is valid again.
    #[default]
    Pending,
    /// No rotation is in progress.
    Steady,
    /// The managed Secret holds the new CA and the old one.
    TrustExpanded,
    /// Every gateway trusts the new CA.
    Converged,
    /// Every declared client presents a certificate of the new CA.
    ClientsMigrated,
    /// Gateways present a certificate of the new CA.
    ServingCertificateSwitched,
}

/// A CA in a bundle.
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
    /// Whether every gateway trusts it, as far as the agent knows. Absent: not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub converged: Option<bool>,
}

/// The content of one key of the managed Secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyHash {
    /// SHA-256 over the public certificates under the key, lower-case hex, regardless of order, duplicates and PEM layout.
    pub sha256: String,
    /// Grows with every change of `sha256`: the greater of the previous revision plus one and the Unix time of the change in seconds.
    // The API server warns of formats that it does not know (uint64).
    #[schemars(with = "i64", range(min = 0))]
    pub revision: u64,
}

/// The Secret `<source>-cacert`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CacertSibling {
    /// Its name.
    pub name: String,
    /// SHA-256 fingerprints of its CAs that the managed Secret does not hold. While there are any, no Gateway is rewritten.
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
    /// Reason of the status, in CamelCase.
    pub reason: String,
    /// What it means, and what to do.
    pub message: String,
}

/// Status of a [`Condition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum ConditionStatus {
    /// The state is good.
    True,
    /// The state is not good: the message says what to do.
    False,
    /// Not known.
    Unknown,
}

impl ConditionStatus {
    /// Its value as a metric.
    pub fn gauge_value(self) -> i64 {
        match self {
            Self::True => 1,
            // Unknown is not a failure.
            Self::Unknown => -1,
            Self::False => 0,
        }
    }
}

/// The condition without which nothing is rewritten.
pub const READY: &str = "Ready";

impl GatewaySecretStatus {
    /// The condition of a type.
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.type_ == type_)
    }

    /// Whether the managed Secret exists and is valid.
    pub fn is_ready(&self) -> bool {
        self.condition(READY).is_some_and(|c| c.status == ConditionStatus::True)
    }
}
