//! The status of one GatewaySecret, computed from the observed objects.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::name_list::counted;
use crate::api::names::MANAGED_LABEL;
use crate::api::{
    CacertSibling, Condition, ConditionStatus, GatewaySecretStatus, GatewayUse, KeyHash, ManagedConfigMap, Phase,
    READY, TrustAnchor,
};
use crate::registry::Entry;
use crate::trust::chain::Crl;
use crate::trust::{self, Certificate, Finding, Level, PUBLISHED, Secret, SecretUsage, Severities, Severity};

/// The keys whose public certificates are hashed.
const HASHED_KEYS: [&str; 4] = ["ca.crt", "tls.crt", "cacert", "cert"];

/// The parts of a Secret that the rotation needs. It is small, and contains no private key.
#[derive(Clone, Debug, Default)]
pub struct SecretSummary {
    /// The findings for which it cannot be used. A severity of a user can relax a rule, and never adds a finding: what admission rejects by a stricter
    /// severity is served by gateways all the same.
    pub denials: Vec<Finding>,
    /// The trust anchors that gateways take from it, in order.
    pub anchors: Vec<Certificate>,
    /// The certificates that the Secret serves or presents, leaf first.
    pub chain: Vec<Certificate>,
    /// The content hash of every key with certificates.
    pub hashes: BTreeMap<String, String>,
    /// SHA-256 of the revocation lists that gateways take from it.
    pub revocation: Option<String>,
    /// These lists.
    pub lists: Vec<Crl>,
    /// Whether it says that there are no lists: their key is empty.
    pub has_no_lists: bool,
    /// Whether it has the label of objects that the agent writes.
    pub is_managed: bool,
    /// Whether the bundle's text is its certificates and nothing else, as the agent writes it.
    pub is_plain: bool,
}

impl SecretSummary {
    /// Reads a Secret at an instant, by its use; `severities` are those of the GatewaySecret that names it.
    pub fn of(secret: &Secret, usage: SecretUsage<'_>, severities: &Severities, now: Timestamp) -> Self {
        let hashed = HASHED_KEYS.iter().filter(|key| secret.data.contains_key(**key)).filter_map(|key| {
            let certificates = trust::certificates_under(secret, key);
            (!certificates.is_empty()).then(|| ((*key).to_owned(), trust::content_hash(&certificates)))
        });
        let findings = trust::judge_with(secret, usage, &severities.relaxing(), now);
        let anchors = trust::anchors(secret);
        let lists = trust::credential::all_revocation_lists(secret);
        Self {
            denials: findings.into_iter().filter(|finding| finding.severity == Severity::Deny).collect(),
            is_managed: secret.labels.get(MANAGED_LABEL).is_some_and(|value| value == "true"),
            is_plain: is_plain(secret, &anchors),
            lists: lists.as_deref().map(|text| trust::bundle::read(text).crls).unwrap_or_default(),
            has_no_lists: trust::credential::has_no_revocation_lists(secret),
            revocation: lists.as_deref().map(trust::fingerprint_of),
            anchors,
            chain: chain(secret),
            hashes: hashed.collect(),
        }
    }

    /// With the revocation lists of another object.
    pub(super) fn with_lists_of(self, other: Option<&Self>) -> Self {
        let lists = other.map(|other| other.lists.clone()).unwrap_or_default();
        Self { lists, revocation: other.and_then(|other| other.revocation.clone()), ..self }
    }
}

fn is_plain(secret: &Secret, anchors: &[Certificate]) -> bool {
    let written: String = anchors.iter().map(Certificate::pem).collect();
    trust::credential::ca_bundle(secret).is_some_and(|ca| ca.key == "ca.crt" && ca.pem == written.as_bytes())
}

fn chain(secret: &Secret) -> Vec<Certificate> {
    let pair = trust::credential::serving_pair(secret);
    pair.map(|pair| trust::bundle::read_chain(pair.chain).into_certificates()).unwrap_or_default()
}

/// The observed objects of one GatewaySecret.
#[derive(Clone, Debug)]
pub struct ObservedState<'a> {
    /// The GatewaySecret with its previous status.
    pub entry: &'a Entry,
    /// The older GatewaySecret that claims one of this GatewaySecret's names.
    pub holder: Option<&'a Entry>,
    /// The source Secret.
    pub source: Option<&'a SecretSummary>,
    /// The managed Secret.
    pub managed: Option<&'a SecretSummary>,
    /// The `<source>-cacert` sibling.
    pub source_sibling: Option<&'a SecretSummary>,
    /// The `<managed>-cacert` sibling.
    pub managed_sibling: Option<&'a SecretSummary>,
    /// See [`GatewaySecretStatus::managed_config_maps`].
    pub managed_config_maps: Vec<ManagedConfigMap>,
    /// See [`GatewaySecretStatus::workload_namespaces`].
    pub workload_namespaces: Option<Vec<String>>,
    /// See [`GatewaySecretStatus::gateways`].
    pub gateways: Option<Vec<GatewayUse>>,
    /// See [`GatewaySecretStatus::ungranted_namespaces`].
    pub ungranted_namespaces: Option<Vec<String>>,
}

/// Computes the status. Dates and revisions change only with the content: the same observation twice gives the same status.
pub fn observe(seen: &ObservedState<'_>, now: Timestamp) -> GatewaySecretStatus {
    let previous = &seen.entry.status;
    let (status, reason, message) = readiness(seen);
    let unmoved = previous.condition(READY).filter(|condition| condition.status == status);
    let ready = Condition {
        type_: READY.to_owned(),
        status,
        observed_generation: seen.entry.generation,
        last_transition_time: unmoved.map_or(now, |condition| condition.last_transition_time),
        reason: reason.to_owned(),
        message,
    };
    let others = previous.conditions.iter().filter(|condition| condition.type_ != READY).cloned();
    GatewaySecretStatus {
        observed_generation: seen.entry.generation,
        phase: Some(phase(seen, status)),
        phase_since: previous.phase_since,
        rotation_duration: previous.rotation_duration,
        mode: previous.mode,
        secret_name: Some(seen.entry.managed_name().to_owned()),
        resolved: Some(seen.entry.resolved.clone()),
        severities: published(&seen.entry.policy.severities),
        conditions: std::iter::once(ready).chain(others).collect(),
        // Gateways keep the bundle of a deleted Secret, so verdicts on clients still use it.
        bundle: seen
            .managed
            .map_or_else(|| previous.bundle.clone(), |managed| managed.anchors.iter().map(TrustAnchor::from).collect()),
        hashes: hashes(seen, now),
        workload_namespaces: seen.workload_namespaces.clone(),
        workload_namespace_count: previous.workload_namespace_count,
        gateways: seen.gateways.clone(),
        gateway_count: previous.gateway_count,
        host_count: previous.host_count,
        cacert_sibling: seen.source_sibling.map(|sibling| CacertSibling {
            name: format!("{}{}", seen.entry.source_name(), crate::api::names::CACERT_SUFFIX),
            missing: missing(&sibling.anchors, seen.managed_sibling.or(seen.managed)),
        }),
        ungranted_namespaces: seen.ungranted_namespaces.clone(),
        ungranted_namespace_count: previous.ungranted_namespace_count,
        leaves: previous.leaves.clone(),
        unlisted_clients: previous.unlisted_clients,
        unknown_clients: previous.unknown_clients.clone(),
        client_trust: previous.client_trust.clone(),
        client_bundle: previous.client_bundle.clone(),
        client_bundle_data: previous.client_bundle_data.clone(),
        endpoints: previous.endpoints,
        trust_sources: previous.trust_sources.clone(),
        managed_config_maps: seen.managed_config_maps.clone(),
        waits: previous.waits.clone(),
        lagging: previous.lagging.clone(),
        lagging_count: previous.lagging_count,
        workloads_behind: previous.workloads_behind,
        cut_off_by_copy: previous.cut_off_by_copy.clone(),
        cut_off_by_copy_count: previous.cut_off_by_copy_count,
    }
}

/// The severities that ValidatingAdmissionPolicies read in the status.
fn published(severities: &BTreeMap<String, Level>) -> BTreeMap<String, Level> {
    PUBLISHED
        .iter()
        .filter_map(|rule| severities.get_key_value(*rule))
        .map(|(rule, level)| (rule.clone(), *level))
        .collect()
}

/// Ready: the managed Secret exists and is valid, nothing takes precedence over it, and no older GatewaySecret claims its name.
fn readiness(seen: &ObservedState<'_>) -> (ConditionStatus, &'static str, String) {
    let managed_name = seen.entry.managed_name();
    let not = |reason, message| (ConditionStatus::False, reason, message);
    if let Some(holder) = seen.holder {
        return not(
            "NameConflict",
            format!(
                "GatewaySecret {} is older and claims the same Secret name. Set another spec.secretName.",
                holder.name
            ),
        );
    }
    let Some(managed) = seen.managed else {
        return not("SecretMissing", format!("Secret {managed_name} does not exist."));
    };
    if let Some(finding) = managed.denials.first() {
        return not(
            "Unsound",
            format!(
                "Secret {managed_name}: {}: {}: {}.",
                finding.rule,
                finding.field,
                finding.message.trim_end_matches('.')
            ),
        );
    }
    if let Some(shadow) = seen.managed_sibling {
        // A sibling that the agent wrote has only the CAs of other clients in addition.
        if !shadow.is_managed && !missing(&managed.anchors, Some(shadow)).is_empty() {
            let suffix = crate::api::names::CACERT_SUFFIX;
            return not(
                "Shadowed",
                format!("Istio takes CAs from Secret {managed_name}{suffix}, which lacks some of them. Delete it."),
            );
        }
    } else if managed.anchors.is_empty() {
        return not(
            "NoTrustAnchor",
            format!("Secret {managed_name} holds no CA. Add one under ca.crt of the source Secret."),
        );
    }
    (ConditionStatus::True, "Sound", format!("Secret {managed_name} holds {}.", counted(managed.anchors.len(), "CA")))
}

fn phase(seen: &ObservedState<'_>, ready: ConditionStatus) -> Phase {
    let extra = || seen.managed.is_some_and(|managed| !missing(&managed.anchors, seen.source).is_empty());
    match ready {
        ConditionStatus::True if seen.source.is_some() && extra() => Phase::TrustExpanded,
        ConditionStatus::True => Phase::Steady,
        _ => Phase::Pending,
    }
}

/// Fingerprints of `anchors` that a Secret does not hold.
fn missing(anchors: &[Certificate], held: Option<&SecretSummary>) -> Vec<String> {
    let holds = |anchor: &Certificate| {
        held.is_some_and(|held| held.anchors.iter().any(|other| other.fingerprint == anchor.fingerprint))
    };
    anchors.iter().filter(|anchor| !holds(anchor)).map(|anchor| anchor.fingerprint.clone()).collect()
}

/// A deleted Secret keeps its last hashes, so that revisions keep growing when it is created again.
fn hashes(seen: &ObservedState<'_>, now: Timestamp) -> BTreeMap<String, KeyHash> {
    let previous = &seen.entry.status.hashes;
    let Some(managed) = seen.managed else { return previous.clone() };
    let now = u64::try_from(now.as_second()).unwrap_or_default();
    let with_revision = |(key, sha256): (&String, &String)| {
        let revision = match previous.get(key) {
            Some(same) if same.sha256 == *sha256 => same.revision,
            Some(other) => now.max(other.revision + 1),
            None => now,
        };
        (key.clone(), KeyHash { sha256: sha256.clone(), revision })
    };
    managed.hashes.iter().map(with_revision).collect()
}
