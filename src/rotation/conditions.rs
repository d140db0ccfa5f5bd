//! Computes the status from a plan.

use std::collections::HashSet;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;

use super::active_certificates::{client_leaves, common, leaf};
use super::change_windows;
use super::client_conditions;
use super::condition_types::{DISTRUST, JOURNAL, SOURCES, remove, set};
use super::name_list::sentence;
use super::planner::Plan;
use super::status_limits::{count, fit_leaves};
use crate::api::{ConditionStatus, GatewaySecretStatus, LeafKind, Phase, TrustAnchor};
use crate::connectivity;
use crate::registry::Entry;
use crate::trust::Certificate;

/// Adds to a status of the observed objects what a plan determines: the phase, the waits and the conditions.
pub fn report(entry: &Entry, plan: &Plan, mut status: GatewaySecretStatus, now: Timestamp) -> GatewaySecretStatus {
    let phase = if status.is_ready() { plan.phase } else { Phase::Pending };
    let same = entry.status.phase == Some(phase);
    status.phase_since = entry.status.phase_since.filter(|_| same).or(Some(now));
    status.phase = Some(phase);
    status.mode = Some(entry.spec.mode);
    for anchor in &mut status.bundle {
        anchor.converged = Some(plan.converged.iter().any(|ca| ca.fingerprint == anchor.fingerprint));
    }
    status.client_bundle = plan.client_bundle.iter().map(TrustAnchor::from).collect();
    status.client_bundle_data = match plan.client_bundle.as_slice() {
        [only] => Some(STANDARD.encode(only.pem())),
        _ => None,
    };
    status.waits = plan.waits.clone();
    status.trust_sources = plan.trust_sources.clone();
    client_conditions::report(entry, plan, &mut status, now);
    status.endpoints = plan.endpoints;
    status.cut_off_by_copy = Some(plan.cut_off_by_copy.clone());
    status.cut_off_by_copy_count = Some(count(plan.cut_off_by_copy.len()));
    let delay = entry.policy.propagation_delays.clients;
    let clients = plan.journal.clients.iter();
    let in_use = clients.flat_map(|(name, client)| client.in_use(delay, now).map(move |version| (name, version)));
    let in_use: Vec<_> = in_use.collect();
    let chains = in_use.iter().map(|(name, version)| (name.as_str(), version.chain.as_slice()));
    let (mut leaves, unlisted) = fit_leaves(client_leaves(entry, chains, &known_cas(plan, &status), now));
    // Nothing may be removed that an unknown client may need.
    let unlisted = unlisted.saturating_add(count(plan.unknown_clients.len()));
    status.unlisted_clients = (unlisted > 0).then_some(unlisted);
    status.unknown_clients = plan.unknown_clients.clone();
    let served: Vec<Certificate> =
        plan.journal.gateways.last().map(|version| version.chain.clone()).unwrap_or_default();
    leaves.extend(leaf(LeafKind::Server, entry, entry.managed_name(), &served));
    status.leaves = Some(leaves);
    status.client_trust = common(in_use.iter().map(|(_, version)| version.trust.as_slice()), &served, now);
    let sources = match &plan.trouble {
        None => {
            let message = "The source Secret and the Secrets of the CAs can be used.";
            (ConditionStatus::True, "Sound", message.to_owned())
        }
        Some(trouble) => {
            let message = format!(
                "{} Until this is corrected, the previous CAs and certificates stay in use.",
                sentence(trouble)
            );
            (ConditionStatus::False, "Unusable", message)
        }
    };
    set(entry, &mut status, SOURCES, sources, now);
    if entry.spec.distrusted_cas.is_empty() {
        remove(&mut status, DISTRUST);
    } else {
        let distrust = match &plan.undistrusted {
            None => {
                let message = "No bundle that the agent writes has a CA of spec.distrustedCAs.";
                (ConditionStatus::True, "CarriedOut", message.to_owned())
            }
            Some(reason) => (ConditionStatus::False, "NothingElse", reason.clone()),
        };
        set(entry, &mut status, DISTRUST, distrust, now);
    }
    match plan.forgotten {
        None => remove(&mut status, JOURNAL),
        Some(since) => {
            let message = format!(
                "There is no journal from before {since}: the managed Secret was taken over, or the journal was deleted or could not be \
                 read. What gateways and clients had then counts as written at that time, so all propagation delays started again. \
                 While gateways are probed, a serving certificate that the journal does not list counts as earlier content. No \
                 action is needed."
            );
            set(entry, &mut status, JOURNAL, (ConditionStatus::False, "Lost", message), now);
        }
    }
    change_windows::report(entry, &mut status, now);
    status
}

/// The CAs that gateways trust or are about to trust, and those that sign for clients.
fn known_cas(plan: &Plan, status: &GatewaySecretStatus) -> Vec<Certificate> {
    let mut known: Vec<_> = plan.journal.client_issuers.iter().map(|authority| authority.certificate.clone()).collect();
    known.extend(connectivity::observed(&status.bundle));
    known.extend(plan.journal.gateways.iter().flat_map(|version| version.trust.iter().cloned()));
    let mut seen = HashSet::new();
    known.retain(|ca| seen.insert(ca.fingerprint.clone()));
    known
}

/// Condition `Synced` when every write succeeded.
pub fn synced(entry: &Entry) -> (ConditionStatus, &'static str, String) {
    match &entry.unread {
        None => (ConditionStatus::True, "Synced", "All writes that the rotation needs now succeeded.".to_owned()),
        Some(why) => {
            let message = format!(
                "This GatewaySecret, or a policy of it, cannot be read: {why}. The last valid one stays in use. Correct the field."
            );
            (ConditionStatus::False, "Unreadable", message)
        }
    }
}
