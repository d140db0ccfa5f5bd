//! What people are to hear of one look at a GatewaySecret: what was done, and what began or ended. Each is told once, by
//! comparing with the status as it was stored before: nothing is remembered.

use super::planner::{PairOf, Step};
use super::{
    CLIENTS, COMPLETE, CONNECT, DISTRUST, GATEWAYS, JOURNAL, PREVIOUS_CAS, SOURCES, SYNCED, TRUST, WINDOWS, WORKLOADS,
};
use crate::api::names::{CACERT_SUFFIX, managed_config_map_name};
use crate::api::{Condition, ConditionStatus, GatewaySecretStatus, Phase, READY, TrustBundleTarget};
use crate::registry::Entry;

/// Clients that are told of one by one.
const CLIENTS_TOLD: usize = 10;

/// One thing to tell, as an Event of events.k8s.io/v1 has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StatusEvent {
    /// Somebody should look.
    pub is_warning: bool,
    /// A word in CamelCase for what happened.
    pub reason: &'static str,
    /// A word in CamelCase for what was done, or tried.
    pub action: &'static str,
    /// A sentence.
    pub note: String,
    /// Name of the Secret that it is about, if it is about one.
    pub secret: Option<String>,
}

/// What to tell when `taken` was done for a GatewaySecret, and its status became `status`, computed before that.
pub fn notices(former: &Entry, status: &GatewaySecretStatus, taken: &[Step]) -> Vec<StatusEvent> {
    let mut notices: Vec<_> = taken.iter().flat_map(|step| of_step(former, status, step)).collect();
    notices.extend(phase(former, status));
    for (type_, reason, mended, action) in CONDITIONS {
        notices.extend(condition(former, status, type_, (reason, mended, action)));
    }
    notices.extend(clients(former, status));
    notices
}

/// Condition, what to call its failing (nothing: it is told otherwise) and its end, and what was tried.
const CONDITIONS: [(&str, Option<&str>, &str, &str); 12] = [
    (SOURCES, Some("SourceUnusable"), "SourceUsable", "ReadSources"),
    (SYNCED, Some("StepFailed"), "StepsDone", "Sync"),
    (CLIENTS, None, "ClientsCurrent", "AwaitClients"),
    (CONNECT, Some("ClientsCutOff"), "ClientsConnect", "ChangeManagedSecret"),
    (GATEWAYS, Some("GatewaysBehind"), "GatewaysConverged", "ProbeGateways"),
    (TRUST, Some("TrustSourceLacksCA"), "TrustSourcesCurrent", "ReadTrustSources"),
    (DISTRUST, Some("DistrustImpossible"), "DistrustApplied", "Distrust"),
    (JOURNAL, Some("JournalLost"), "JournalComplete", "Remember"),
    (WINDOWS, Some("ChangeWindowsInvalid"), "ChangeWindowsValid", "AwaitWindow"),
    (WORKLOADS, Some("WorkloadsBehind"), "WorkloadsCurrent", "RollOut"),
    (COMPLETE, Some("StatusIncomplete"), "StatusComplete", "Report"),
    (PREVIOUS_CAS, Some("PreviousCAsOverLimit"), "PreviousCAsWithinLimit", "DropOldCA"),
];

pub(super) fn normal(reason: &'static str, action: &'static str, note: String) -> StatusEvent {
    StatusEvent { is_warning: false, reason, action, note, secret: None }
}

/// What to report when the API server does not take a status.
pub fn status_not_written(why: &str) -> StatusEvent {
    let note = format!("The status is not up to date, steps go on. It is tried again. {why}");
    StatusEvent { is_warning: true, ..normal("StatusNotWritten", "Report", note) }
}

fn of_step(former: &Entry, status: &GatewaySecretStatus, step: &Step) -> Vec<StatusEvent> {
    let about = |secret: &str, notice: StatusEvent| StatusEvent { secret: Some(secret.to_owned()), ..notice };
    let managed = former.managed_name();
    match step {
        Step::WriteManaged { trust, pair } => {
            let write = |reason, note| about(managed, normal(reason, "WriteManagedSecret", note));
            let held = |fingerprint: &str| status.bundle.iter().any(|anchor| anchor.fingerprint == fingerprint);
            let stays = |fingerprint: &str| trust.iter().any(|ca| ca.fingerprint == fingerprint);
            let added = trust.iter().filter(|ca| !held(&ca.fingerprint)).map(|ca| ca.subject.as_str());
            let added: Vec<_> = added.collect();
            let new = if added.is_empty() { String::new() } else { format!(", new: {}", added.join(", ")) };
            let mut told =
                vec![write("ManagedSecretWritten", format!("Secret {managed} holds {} CA(s){new}", trust.len()))];
            // What status did not know before was somebody else's write, undone.
            let known =
                former.status.bundle.iter().map(|anchor| (anchor.fingerprint.as_str(), anchor.subject.as_str()));
            let gone = known.filter(|(fingerprint, _)| held(fingerprint) && !stays(fingerprint));
            let gone: Vec<_> = gone.map(|(_, subject)| subject).collect();
            if !gone.is_empty() {
                told.push(write("OldCADropped", format!("gateways do not trust any more: {}", gone.join(", "))));
            }
            if *pair == PairOf::Root && !status.bundle.is_empty() {
                let note = format!("gateways get the certificate of Secret {}", former.source_name());
                told.push(write("ServingCertificateSwitched", note));
            }
            told
        }
        Step::WriteSibling { trust } => {
            let name = format!("{managed}{CACERT_SUFFIX}");
            let note =
                format!("Secret {name} holds {} CAs, for gateways that ask for client certificates", trust.len());
            vec![about(&name, normal("ManagedSecretWritten", "WriteManagedSecret", note))]
        }
        Step::WriteConfigMap { source, trust } => {
            let name = managed_config_map_name(source);
            let note = format!("ConfigMap {name}, kept from ConfigMap {source}, holds {} CAs", trust.len());
            vec![normal("ManagedConfigMapWritten", "WriteManagedConfigMap", note)]
        }
        Step::CopyRoot => {
            let note = format!("Secret {managed} is a copy of Secret {}", former.source_name());
            vec![about(managed, normal("ManagedSecretWritten", "WriteManagedSecret", note))]
        }
        Step::PromoteIssuer => {
            let name = former.issuer_name().unwrap_or_default();
            let note = format!("Secret {name} has the new CA: what is issued from now on is signed by it");
            vec![about(&name, normal("IssuerPromoted", "WriteIssuerSecret", note))]
        }
        Step::Reissue { certificate } => {
            let note = format!("cert-manager is asked to issue Certificate {certificate} anew");
            vec![normal("ReissueRequested", "Reissue", note)]
        }
    }
}

fn phase(former: &Entry, status: &GatewaySecretStatus) -> Option<StatusEvent> {
    let (before, phase) = (former.status.phase, status.phase?);
    if before == Some(phase) {
        return None;
    }
    let was = before.map(|before| format!(", was {before:?}")).unwrap_or_default();
    let ready = status.condition(READY).filter(|_| phase == Phase::Pending);
    let why = ready.map(|ready| format!(": {}", ready.message)).unwrap_or_default();
    let note = format!("the rotation is {phase:?}{was}{why}");
    let is_warning = phase == Phase::Pending && before.is_some();
    Some(StatusEvent { is_warning, ..normal("PhaseChanged", "Rotate", note) })
}

/// A condition that fails from now on, or for another reason, or not any more.
fn condition(
    former: &Entry,
    status: &GatewaySecretStatus,
    type_: &str,
    (failing, mended, action): (Option<&'static str>, &'static str, &'static str),
) -> Option<StatusEvent> {
    let fails = |condition: &&Condition| condition.status == ConditionStatus::False;
    let before = former.status.condition(type_).filter(fails);
    let now = status.condition(type_)?;
    match (before, fails(&now)) {
        (Some(before), true) if [SYNCED, WORKLOADS].contains(&type_) && before.reason == now.reason => None,
        (Some(before), true) if before.message == now.message => None,
        (_, true) => Some(StatusEvent { is_warning: true, ..normal(failing?, action, now.message.clone()) }),
        (Some(_), false) => Some(normal(mended, action, now.message.clone())),
        (None, false) => None,
    }
}

/// Clients that began to take too long.
fn clients(former: &Entry, status: &GatewaySecretStatus) -> Vec<StatusEvent> {
    let was = |name: &str| former.status.lagging.iter().any(|client| client.overdue && client.name == name);
    let overdue = status.lagging.iter().filter(|client| client.overdue && !was(&client.name));
    let told = |note, secret| StatusEvent { is_warning: true, secret, ..normal("ClientLagging", "AwaitClients", note) };
    let mut notices: Vec<_> = overdue
        .map(|client| {
            let (name, since) = (client.name.clone(), client.since);
            if TrustBundleTarget::is_readers(&name) {
                let note = format!(
                    "{name} hold the rotation back since {since}: the new CA is not there. Condition Synced or status.waits says why"
                );
                return told(note, None);
            }
            let note = format!(
                "client {name} holds the rotation back since {since}: it may still go by something of an old CA. Renew it, or \
                 restart what reads its Secret at start only"
            );
            told(note, Some(name))
        })
        .collect();
    let more = notices.len().saturating_sub(CLIENTS_TOLD);
    if more > 0 {
        notices.truncate(CLIENTS_TOLD);
        notices.push(told(format!("{more} more client(s) hold the rotation back: status.lagging names them"), None));
    }
    notices
}

#[cfg(test)]
mod tests;
