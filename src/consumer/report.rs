//! The status of a TrustConsumer, and its Events.

use jiff::Timestamp;

use super::condition_types::{AVAILABLE, CONDITION_TYPES, LOADED, RESTARTABLE, VALID, WORKLOAD_MISSING};
use super::restarts::{RestartBlocker, next_allowed};
use super::state::{Absence, ConsumerState, Reader, WorkloadState, readers};
use crate::api::ConditionStatus::{False, True, Unknown};
use crate::api::{Condition, ConditionStatus, TrustConsumerStatus, WorkloadRef};
use crate::rotation::{StatusEvent, counted, few, normal, set_condition, transition};

/// Sentences in one message.
const SENTENCES: usize = 3;

/// What a workload waits for.
struct WorkloadReport {
    status: ConditionStatus,
    reason: &'static str,
    message: String,
    /// Whether a person has to act.
    needs_person: bool,
}

/// The status of a TrustConsumer. `blockers` has what blocks the restart of each workload.
pub fn report(
    (namespace, generation): (&str, Option<i64>),
    before: &TrustConsumerStatus,
    state: &ConsumerState,
    blockers: &[Option<RestartBlocker>],
    now: Timestamp,
) -> TrustConsumerStatus {
    let reports: Vec<_> = state
        .workloads
        .iter()
        .zip(blockers)
        .filter_map(|(workload, blocker)| of_workload(namespace, state, workload, blocker.as_ref()))
        .collect();
    let loaded = || readers(&state.workloads).filter_map(|reader| reader.loaded.as_ref());
    let allowed = readers(&state.workloads).filter(|one| one.is_pending).filter_map(|one| next_allowed(state, one));
    let records = state.workloads.iter().filter_map(|workload| match &workload.found {
        Ok(reader) => reader.loaded.clone(),
        Err(Absence::Missing) => None,
        // It may still be there as it was.
        Err(Absence::Unread(_) | Absence::Owned(_)) => {
            before.workloads.iter().find(|known| known.workload == workload.workload).cloned()
        }
    });
    let mut status = TrustConsumerStatus {
        conditions: before.conditions.clone(),
        hash: state.hash.clone(),
        loaded_hash: loaded()
            .find(|loaded| Some(&loaded.hash) != state.hash.as_ref())
            .or_else(|| loaded().next())
            .map(|loaded| loaded.hash.clone()),
        pending_since: state.pending_since,
        next_restart_not_before: allowed.filter(|at| *at > now).min(),
        first_expiry: loaded().filter_map(|loaded| loaded.first_expiry).min(),
        content: state.content.as_ref().map_or_else(|_| before.content.clone(), |content| content.keys.clone()),
        workloads: records.collect(),
    };
    for (type_, said) in [
        (VALID, valid(state)),
        (RESTARTABLE, restartable(&reports)),
        (AVAILABLE, available(state)),
        (LOADED, self::loaded(state, &reports)),
    ] {
        set_condition(&mut status.conditions, generation, type_, said, now);
    }
    status
}

type Said = (ConditionStatus, &'static str, String);

fn valid(state: &ConsumerState) -> Said {
    match &state.content {
        Ok(_) => (True, "Valid", "What the workloads load exists, and its CAs can be loaded.".to_owned()),
        Err(fault) => (fault.status, fault.reason, fault.message.clone()),
    }
}

fn restartable(reports: &[WorkloadReport]) -> Said {
    let blocked: Vec<_> = reports.iter().filter(|report| report.needs_person).collect();
    match blocked.first() {
        None => (True, "Restartable", "No restart waits for a person.".to_owned()),
        Some(first) => (first.status, first.reason, joined(blocked.iter().map(|report| report.message.as_str()))),
    }
}

fn available(state: &ConsumerState) -> Said {
    let gap = |workload: &WorkloadState| {
        let gap = workload.found.as_ref().ok()?.gap.as_ref()?;
        Some(format!("A restart leaves no ready pod of {} for a time: {gap}.", workload.workload.label()))
    };
    let gaps: Vec<_> = state.workloads.iter().filter_map(gap).collect();
    if !gaps.is_empty() {
        return (False, "LastPod", joined(gaps.iter().map(String::as_str)));
    }
    if readers(&state.workloads).next().is_none() {
        return (Unknown, "NoWorkload", "No workload of spec.workloads could be read.".to_owned());
    }
    (True, "PodsRemain", "The update strategies leave a ready pod of each workload.".to_owned())
}

fn loaded(state: &ConsumerState, reports: &[WorkloadReport]) -> Said {
    // What a person has to do comes first.
    let mut ordered: Vec<_> = reports.iter().collect();
    ordered.sort_by_key(|report| (!report.needs_person, report.status != False));
    if let Some(first) = ordered.first() {
        return (first.status, first.reason, joined(ordered.iter().map(|report| report.message.as_str())));
    }
    if state.hash.is_none() {
        let message = "The content was never valid, so it is not known what the workloads have loaded: see condition ContentValid.";
        return (Unknown, "ContentInvalid", message.to_owned());
    }
    let names = few(state.workloads.iter().map(|workload| workload.workload.label())).unwrap_or_default();
    let verb = if state.workloads.len() == 1 { "has" } else { "have" };
    (True, "Loaded", format!("{names} {verb} loaded the content."))
}

fn joined<'s>(sentences: impl Iterator<Item = &'s str>) -> String {
    let sentences: Vec<_> = sentences.collect();
    let mut text = sentences.iter().take(SENTENCES).copied().collect::<Vec<_>>().join(" ");
    if let Some(more) = sentences.len().checked_sub(SENTENCES).filter(|more| *more > 0) {
        text += &format!(" The same or another reason applies to {}.", counted(more, "more workload"));
    }
    text
}

/// What a workload waits for; `None` if it has loaded the content.
fn of_workload(
    namespace: &str,
    state: &ConsumerState,
    WorkloadState { workload, found }: &WorkloadState,
    blocker: Option<&RestartBlocker>,
) -> Option<WorkloadReport> {
    let label = workload.label();
    let waits = |reason, message| WorkloadReport { status: False, reason, message, needs_person: false };
    let needs_person = |reason, message| WorkloadReport { needs_person: true, ..waits(reason, message) };
    let unknown = |report| WorkloadReport { status: Unknown, ..report };
    let reader = match found {
        Ok(reader) => reader,
        Err(Absence::Missing) => {
            let message =
                format!("{label} does not exist, so it is not restarted. If it should, correct spec.workloads.");
            return Some(unknown(waits(WORKLOAD_MISSING, message)));
        }
        Err(Absence::Unread(failure)) => {
            let message = format!("{label} could not be read. {}", failure.message);
            return Some(unknown(needs_person(failure.reason, message)));
        }
        Err(Absence::Owned(by)) => {
            let message = format!(
                "{label} is restarted by TrustConsumer {by}, which is older and names it, too. Add what it loads there, and remove it here."
            );
            return Some(needs_person("Conflict", message));
        }
    };
    let earlier = format!("{label} has earlier content");
    if reader.is_pending {
        return Some(match blocker {
            Some(RestartBlocker::Refused(failure)) => {
                needs_person(failure.reason, format!("{earlier}, and could not be restarted. {}", failure.message))
            }
            Some(RestartBlocker::Paused) => needs_person(
                "Paused",
                format!(
                    "{earlier}{}, and is paused: it is restarted once, with the newest content, when it is resumed.{} Resume it: kubectl \
                     rollout resume -n {namespace} {label}",
                    since(state),
                    expiry(state, reader)
                ),
            ),
            Some(RestartBlocker::Content) => waits(
                "ContentInvalid",
                format!("{earlier}, and is not restarted until condition ContentValid is True."),
            ),
            Some(RestartBlocker::OwnRollout(why)) => {
                waits("Rolling", format!("{earlier}, and is restarted again when its rollout is complete ({why})."))
            }
            Some(RestartBlocker::Interval(until)) => {
                waits("Waiting", format!("{earlier}, and is restarted at {until} (spec.minRestartInterval)."))
            }
            Some(RestartBlocker::OtherRollouts(other)) => waits(
                "Waiting",
                format!(
                    "{earlier}, and is restarted when the rollout of {other} is complete. If that does not progress, fix it or roll it back."
                ),
            ),
            None => waits("Waiting", format!("{earlier}, and is restarted next.")),
        });
    }
    let Some(loaded) = &reader.loaded else { return None };
    loaded.rollout.as_ref()?;
    match reader.by_hand {
        Some(why) => Some(needs_person(
            if reader.is_paused { "Paused" } else { "ByHand" },
            format!("Pods of {label} still have earlier content{} ({why}).{}", since(state), expiry(state, reader)),
        )),
        None => {
            let why = reader.unfinished.as_deref().unwrap_or("some pods are not updated yet");
            let message =
                format!("{label} was restarted ({why}). If its rollout does not progress, fix it or roll it back.");
            Some(waits("Rolling", message))
        }
    }
}

fn since(state: &ConsumerState) -> String {
    state.pending_since.map(|since| format!(" since {since}")).unwrap_or_default()
}

fn expiry(state: &ConsumerState, reader: &Reader) -> String {
    first_expiry(state, reader)
        .map(|end| format!(" The first CA that it has loaded expires at {end}."))
        .unwrap_or_default()
}

/// When the first CA expires that a workload has loaded; if that is not known, the first in the content.
fn first_expiry(state: &ConsumerState, reader: &Reader) -> Option<Timestamp> {
    let loaded = reader.loaded.as_ref().and_then(|loaded| loaded.first_expiry);
    loaded.or_else(|| state.content.as_ref().ok().and_then(|content| content.first_expiry))
}

/// Workloads with earlier content that are paused or restarted by hand only, and when the first of their CAs expires.
pub fn blocked(state: &ConsumerState) -> impl Iterator<Item = (&WorkloadRef, Timestamp)> {
    state.workloads.iter().filter_map(|WorkloadState { workload, found }| {
        let reader = found.as_ref().ok()?;
        let has_rollout = reader.loaded.as_ref().is_some_and(|loaded| loaded.rollout.is_some());
        let is_held = reader.is_paused && reader.is_pending || reader.by_hand.is_some() && has_rollout;
        Some((workload, first_expiry(state, reader).filter(|_| is_held)?))
    })
}

/// The Events of a new status.
pub fn events(before: &TrustConsumerStatus, status: &TrustConsumerStatus) -> Vec<StatusEvent> {
    let condition =
        |status: &TrustConsumerStatus, type_: &str| -> Option<Condition> { status.condition(type_).cloned() };
    let of_type = |type_: &crate::rotation::ConditionType| {
        transition(type_, condition(before, type_.name).as_ref(), &condition(status, type_.name)?, false)
    };
    CONDITION_TYPES.iter().filter_map(of_type).collect()
}

/// The Event for a restart.
pub fn restarted(workload: &WorkloadRef) -> StatusEvent {
    let note = format!("The agent restarts {}: the content that it loads has changed.", workload.label());
    normal("WorkloadRestarted", "RollOut", note)
}
