//! Events: what a reconcile did, and what changed. Each is reported once, by comparison with the status that was stored before.

use super::condition_types::{CONDITION_TYPES, ConditionType, SYNCED, WORKLOADS};
use super::name_list::counted;
use super::planner::{PairOf, Step};
use crate::api::names::{CACERT_SUFFIX, managed_config_map_name};
use crate::api::{Condition, ConditionStatus, GatewaySecretStatus, Phase, READY, TrustBundleTarget};
use crate::registry::Entry;

/// Limit of overdue clients with a separate Event.
const CLIENTS_NAMED: usize = 10;

/// An Event, as events.k8s.io/v1 has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StatusEvent {
    /// Whether its type is Warning.
    pub is_warning: bool,
    /// What happened, in CamelCase.
    pub reason: &'static str,
    /// What was done or tried, in CamelCase.
    pub action: &'static str,
    /// The message, a sentence.
    pub note: String,
    /// Name of the Secret that it is about, if any.
    pub secret: Option<String>,
}

/// The Events for the steps `taken`, and for a new status that was computed before these steps.
pub fn notices(previous: &Entry, status: &GatewaySecretStatus, taken: &[Step]) -> Vec<StatusEvent> {
    let mut events: Vec<_> = taken.iter().flat_map(|step| of_step(previous, status, step)).collect();
    events.extend(phase(previous, status));
    events.extend(CONDITION_TYPES.iter().filter_map(|type_| condition(previous, status, type_)));
    events.extend(clients(previous, status));
    events
}

pub(crate) fn normal(reason: &'static str, action: &'static str, note: String) -> StatusEvent {
    StatusEvent { is_warning: false, reason, action, note, secret: None }
}

/// The Event for a status that the API server rejects.
pub fn status_not_written(why: &str) -> StatusEvent {
    let note = format!("The status is not up to date: {why}. The rotation's steps go on, and the write is retried.");
    StatusEvent { is_warning: true, ..normal("StatusNotWritten", "Report", note) }
}

fn of_step(previous: &Entry, status: &GatewaySecretStatus, step: &Step) -> Vec<StatusEvent> {
    let about = |secret: &str, event: StatusEvent| StatusEvent { secret: Some(secret.to_owned()), ..event };
    let managed = previous.managed_name();
    match step {
        Step::WriteManaged { trust, pair } => {
            let write = |reason, note| about(managed, normal(reason, "WriteManagedSecret", note));
            let held = |fingerprint: &str| status.bundle.iter().any(|anchor| anchor.fingerprint == fingerprint);
            let stays = |fingerprint: &str| trust.iter().any(|ca| ca.fingerprint == fingerprint);
            let added: Vec<_> =
                trust.iter().filter(|ca| !held(&ca.fingerprint)).map(|ca| ca.subject.as_str()).collect();
            let new = if added.is_empty() { String::new() } else { format!(", new: {}", added.join(", ")) };
            let note = format!("Secret {managed} holds {}{new}.", counted(trust.len(), "CA"));
            let mut events = vec![write("ManagedSecretWritten", note)];
            // A CA that the stored status does not have was added by another writer.
            let known =
                previous.status.bundle.iter().map(|anchor| (anchor.fingerprint.as_str(), anchor.subject.as_str()));
            let removed = known.filter(|(fingerprint, _)| held(fingerprint) && !stays(fingerprint));
            let removed: Vec<_> = removed.map(|(_, subject)| subject).collect();
            if !removed.is_empty() {
                events.push(write("OldCADropped", format!("Gateways no longer trust {}.", removed.join(", "))));
            }
            if *pair == PairOf::Source && !status.bundle.is_empty() {
                let note = format!("Gateways switch to the certificate of Secret {}.", previous.source_name());
                events.push(write("ServingCertificateSwitched", note));
            }
            events
        }
        Step::WriteSibling { trust } => {
            let name = format!("{managed}{CACERT_SUFFIX}");
            let note = format!("Secret {name} holds {}, for gateways that verify clients.", counted(trust.len(), "CA"));
            vec![about(&name, normal("ManagedSecretWritten", "WriteManagedSecret", note))]
        }
        Step::WriteConfigMap { source, trust } => {
            let name = managed_config_map_name(source);
            let note = format!("ConfigMap {name}, a copy of ConfigMap {source}, holds {}.", counted(trust.len(), "CA"));
            vec![normal("ManagedConfigMapWritten", "WriteManagedConfigMap", note)]
        }
        Step::CopySource => {
            let note = format!("Secret {managed} is a copy of Secret {}.", previous.source_name());
            vec![about(managed, normal("ManagedSecretWritten", "WriteManagedSecret", note))]
        }
        Step::PromoteIssuer => {
            let name = previous.issuer_name().unwrap_or_default();
            let note = format!("Secret {name} has the new CA, which signs all further certificates.");
            vec![about(&name, normal("IssuerPromoted", "WriteIssuerSecret", note))]
        }
        Step::Reissue { certificate } => {
            let note = format!("cert-manager was asked to reissue Certificate {certificate}.");
            vec![normal("ReissueRequested", "Reissue", note)]
        }
    }
}

fn phase(previous: &Entry, status: &GatewaySecretStatus) -> Option<StatusEvent> {
    let (before, phase) = (previous.status.phase, status.phase?);
    if before == Some(phase) {
        return None;
    }
    let was = before.map(|before| format!(", was {before:?}")).unwrap_or_default();
    let ready = status.condition(READY).filter(|_| phase == Phase::Pending);
    let why = ready.map_or_else(|| ".".to_owned(), |ready| format!(": {}", ready.message));
    let note = format!("The rotation is in phase {phase:?}{was}{why}");
    let is_warning = phase == Phase::Pending && before.is_some();
    Some(StatusEvent { is_warning, ..normal("PhaseChanged", "Rotate", note) })
}

/// The Event for a condition that becomes `False`, is `False` for another reason, or is no longer `False`.
fn condition(previous: &Entry, status: &GatewaySecretStatus, type_: &ConditionType) -> Option<StatusEvent> {
    let (before, now) = (previous.status.condition(type_.name), status.condition(type_.name)?);
    transition(type_, before, now, [SYNCED, WORKLOADS].contains(&type_.name))
}

/// The Event for one condition. With `by_reason`, a new message with the same reason is not reported.
pub(crate) fn transition(
    type_: &ConditionType,
    before: Option<&Condition>,
    now: &Condition,
    by_reason: bool,
) -> Option<StatusEvent> {
    let fails = |condition: &&Condition| condition.status == ConditionStatus::False;
    match (before.filter(fails), fails(&now)) {
        (Some(before), true) if by_reason && before.reason == now.reason => None,
        (Some(before), true) if before.message == now.message => None,
        (_, true) => {
            let event = normal(type_.failed_event?, type_.action, now.message.clone());
            Some(StatusEvent { is_warning: true, ..event })
        }
        (Some(_), false) => Some(normal(type_.restored_event?, type_.action, now.message.clone())),
        (None, false) => None,
    }
}

/// Events for clients that became overdue.
fn clients(previous: &Entry, status: &GatewaySecretStatus) -> Vec<StatusEvent> {
    let was_overdue = |name: &str| previous.status.lagging.iter().any(|client| client.overdue && client.name == name);
    let overdue = status.lagging.iter().filter(|client| client.overdue && !was_overdue(&client.name));
    let event =
        |note, secret| StatusEvent { is_warning: true, secret, ..normal("ClientLagging", "AwaitClients", note) };
    let mut events: Vec<_> = overdue
        .map(|client| {
            let (name, since) = (client.name.clone(), client.since);
            if TrustBundleTarget::is_readers(&name) {
                let note = format!(
                    "The rotation waits for {name} since {since}: the new CA was not written there. Condition Synced and status.waits \
                     say why."
                );
                return event(note, None);
            }
            let note = format!(
                "The rotation waits for client {name} since {since}: it still uses or trusts only an old CA. Check that its \
                 certificate was reissued, then restart it if it loads its Secret only at start."
            );
            event(note, Some(name))
        })
        .collect();
    let more = events.len().saturating_sub(CLIENTS_NAMED);
    if more > 0 {
        events.truncate(CLIENTS_NAMED);
        events
            .push(event(format!("The rotation waits for {}: see status.lagging.", counted(more, "more client")), None));
    }
    events
}

#[cfg(test)]
mod tests;
