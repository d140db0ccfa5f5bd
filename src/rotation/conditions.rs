//! A plan as GatewaySecret status.

use std::collections::HashSet;

use jiff::Timestamp;

use super::active_certificates::{client_leaves, common, leaf};
use super::change_windows;
use super::client_conditions;
use super::planner::Plan;
use super::status_limits::{count, fit_leaves};
use crate::api::{Condition, ConditionStatus, GatewaySecretStatus, LeafKind, Phase, TrustAnchor};
use crate::connectivity;
use crate::registry::Entry;
use crate::trust::Certificate;

/// The condition that tells whether the sources of a rotation can be used.
pub const SOURCES: &str = "SourcesUsable";
/// The condition that tells whether the agent could do what was to be done.
pub const SYNCED: &str = "Synced";

/// The condition that tells whether `spec.distrustedCAs` is carried out. There is none while nothing is distrusted.
pub const DISTRUST: &str = "DistrustApplied";

/// Whether `maxPreviousCAs` is kept to. Present only while more CAs are needed.
pub const PREVIOUS_CAS: &str = "PreviousCAsWithinLimit";

/// The condition that tells that a journal was lost in mid-rotation. It is there while what gateways had before may matter, and `False`
/// then.
pub const JOURNAL: &str = "JournalComplete";

/// Adds to `status`, which was computed from what is seen, what the plan knows.
pub fn report(entry: &Entry, plan: &Plan, mut status: GatewaySecretStatus, now: Timestamp) -> GatewaySecretStatus {
    let phase = if status.is_ready() || plan.keeps_ended_leaf { plan.phase } else { Phase::Pending };
    let same = entry.status.phase == Some(phase);
    status.phase_since = entry.status.phase_since.filter(|_| same).or(Some(now));
    status.phase = Some(phase);
    status.mode = Some(entry.spec.mode);
    for held in &mut status.bundle {
        held.converged = Some(plan.converged.iter().any(|ca| ca.fingerprint == held.fingerprint));
    }
    status.client_bundle = plan.client_bundle.iter().map(TrustAnchor::from).collect();
    status.waits = plan.waits.clone();
    status.trust_sources = plan.trust_sources.clone();
    client_conditions::tell(entry, plan, &mut status, now);
    status.endpoints = plan.endpoints;
    status.cut_off_by_copy = Some(plan.cut_off_by_copy.clone());
    status.cut_off_by_copy_count = Some(count(plan.cut_off_by_copy.len()));
    let settle = &entry.policy.propagation_delays;
    let clients = plan.journal.clients.iter();
    let in_use = clients.flat_map(|(name, client)| client.in_use(settle.clients, now).map(move |held| (name, held)));
    let in_use: Vec<_> = in_use.collect();
    let chains = in_use.iter().map(|(name, held)| (name.as_str(), held.chain.as_slice()));
    let (mut leaves, unlisted) = fit_leaves(client_leaves(entry, chains, &known_cas(plan, &status), now));
    status.unlisted_clients = (unlisted > 0).then_some(unlisted);
    let served: Vec<Certificate> = plan.journal.gateways.last().map(|held| held.chain.clone()).unwrap_or_default();
    leaves.extend(leaf(LeafKind::Server, entry, entry.managed_name(), &served));
    status.leaves = Some(leaves);
    status.client_trust = common(in_use.iter().map(|(_, held)| held.trust.as_slice()), &served, now);
    let sources = match &plan.trouble {
        None => (ConditionStatus::True, "Sound", "the root Secret, and those of the CAs, can be used".to_owned()),
        Some(trouble) => (ConditionStatus::False, "Unusable", format!("{trouble}. What was good before stays in use")),
    };
    set(entry, &mut status, SOURCES, sources, now);
    if entry.spec.distrusted_cas.is_empty() {
        status.conditions.retain(|condition| condition.type_ != DISTRUST);
    } else {
        let carried_out = "what the agent writes holds nothing that spec.distrustedCAs names";
        let distrust = match &plan.undistrusted {
            None => (ConditionStatus::True, "CarriedOut", carried_out.to_owned()),
            Some(reason) => (ConditionStatus::False, "NothingElse", reason.clone()),
        };
        set(entry, &mut status, DISTRUST, distrust, now);
    }
    match plan.forgotten {
        None => status.conditions.retain(|condition| condition.type_ != JOURNAL),
        Some(since) => {
            let message = format!(
                "no journal says what gateways and clients had before {since} (it was deleted, or could not be read): what stood \
                 there counts as written then, and all settle times begin anew. With probe.target (RotationPolicy) a leaf that is not known \
                 counts as a former one"
            );
            set(entry, &mut status, JOURNAL, (ConditionStatus::False, "Lost", message), now);
        }
    }
    change_windows::tell(entry, &mut status, now);
    match entry.policy.max_previous_cas.filter(|_| plan.over_cap) {
        None => status.conditions.retain(|condition| condition.type_ != PREVIOUS_CAS),
        Some(most) => {
            let message = format!(
                "live leaves need more previous CAs than maxPreviousCAs allows ({most}): they are kept until the leaves are \
                 renewed, or end"
            );
            set(entry, &mut status, PREVIOUS_CAS, (ConditionStatus::False, "UsedByCertificates", message), now);
        }
    }
    status
}

/// The CAs that gateways have, or get, and those that sign for clients.
fn known_cas(plan: &Plan, status: &GatewaySecretStatus) -> Vec<Certificate> {
    let mut known: Vec<_> = plan.journal.client_issuers.iter().map(|authority| authority.certificate.clone()).collect();
    known.extend(connectivity::observed(&status.bundle));
    known.extend(plan.journal.gateways.iter().flat_map(|version| version.trust.iter().cloned()));
    let mut seen = HashSet::new();
    known.retain(|ca| seen.insert(ca.fingerprint.clone()));
    known
}

/// What [`SYNCED`] says when all was done that could be.
pub fn synced(entry: &Entry) -> (ConditionStatus, &'static str, String) {
    match &entry.unread {
        None => (ConditionStatus::True, "Synced", "everything was done that could be".to_owned()),
        Some(why) => {
            let message =
                format!("this GatewaySecret cannot be read: {why}. The last spec that could be is carried out");
            (ConditionStatus::False, "Unreadable", message)
        }
    }
}

/// Sets a condition. Its date changes only with its status.
pub fn set(
    entry: &Entry,
    status: &mut GatewaySecretStatus,
    type_: &str,
    (value, reason, message): (ConditionStatus, &str, String),
    now: Timestamp,
) {
    let unmoved = status.condition(type_).filter(|condition| condition.status == value);
    let condition = Condition {
        type_: type_.to_owned(),
        status: value,
        observed_generation: entry.generation,
        last_transition_time: unmoved.map_or(now, |condition| condition.last_transition_time),
        reason: reason.to_owned(),
        message,
    };
    status.conditions.retain(|other| other.type_ != type_);
    status.conditions.push(condition);
}
