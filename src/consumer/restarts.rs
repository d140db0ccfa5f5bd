//! Which workload is restarted next.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::content::ReadFailure;
use super::state::{ConsumerState, Reader, readers};

/// How long a rollout delays restarts in other namespaces, and a further restart of the same workload: the default of a Deployment's
/// `progressDeadlineSeconds`. One that hangs longer is its namespace's problem.
const ROLLOUT_DEADLINE: SignedDuration = SignedDuration::from_mins(10);

/// All TrustConsumers, by namespace and name.
pub type Consumers = BTreeMap<(String, String), ConsumerState>;

/// Why a workload with earlier content is not restarted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestartBlocker {
    /// The API server refused the restart.
    Refused(ReadFailure),
    /// Its rollouts are paused.
    Paused,
    /// The content is missing or invalid.
    Content,
    /// Its own rollout is in progress: what is missing until it completes.
    OwnRollout(String),
    /// It was restarted recently: when `minRestartInterval` allows the next restart.
    Interval(Timestamp),
    /// Other rollouts are in progress: one of them, with its namespace.
    OtherRollouts(String),
}

/// What blocks the restart of a workload; `None` if it may be restarted now, or need not be.
pub fn blocker(
    consumers: &Consumers,
    (key, at): (&(String, String), usize),
    max_concurrent: usize,
    now: Timestamp,
) -> Option<RestartBlocker> {
    let state = consumers.get(key)?;
    let reader = state.workloads.get(at)?.found.as_ref().ok().filter(|reader| reader.is_pending)?;
    if let Some(failure) = &reader.refused {
        return Some(RestartBlocker::Refused(failure.clone()));
    }
    if reader.is_paused {
        return Some(RestartBlocker::Paused);
    }
    if state.content.is_err() {
        return Some(RestartBlocker::Content);
    }
    if let Some(unfinished) = own_rollout(reader, now) {
        return Some(RestartBlocker::OwnRollout(unfinished.to_owned()));
    }
    if let Some(until) = next_allowed(state, reader).filter(|until| now < *until) {
        return Some(RestartBlocker::Interval(until));
    }
    let mut others = in_progress(consumers).filter(|(other, index, rolling)| {
        let is_itself = (*other, *index) == (key, at);
        !is_itself && (other.0 == key.0 || deadline(rolling).is_none_or(|deadline| now < deadline))
    });
    others.nth(max_concurrent.max(1) - 1).map(|((namespace, name), index, _)| {
        let state = consumers.get(&(namespace.clone(), name.clone()));
        let workload = state.and_then(|state| state.workloads.get(index));
        let label = workload.map(|workload| workload.workload.label()).unwrap_or_default();
        RestartBlocker::OtherRollouts(format!("{label} in namespace {namespace}"))
    })
}

/// The workload to restart now: that of the TrustConsumer that has waited longest.
pub fn next(consumers: &Consumers, max_concurrent: usize, now: Timestamp) -> Option<(&(String, String), usize)> {
    let workloads = consumers.iter().flat_map(|(key, state)| (0..state.workloads.len()).map(move |at| (key, at)));
    let is_pending = |(key, at): &(&(String, String), usize)| {
        let workload = consumers.get(*key).and_then(|state| state.workloads.get(*at));
        workload.is_some_and(|workload| workload.found.as_ref().is_ok_and(|reader| reader.is_pending))
    };
    let free = workloads.filter(is_pending).filter(|one| blocker(consumers, *one, max_concurrent, now).is_none());
    free.min_by_key(|(key, at)| (consumers.get(*key).and_then(|state| state.pending_since), *key, *at))
}

/// When time alone allows a further restart.
pub fn wake(consumers: &Consumers, now: Timestamp) -> Option<Timestamp> {
    let intervals = consumers.values().flat_map(|state| {
        let pending = readers(&state.workloads).filter(|reader| reader.is_pending);
        pending.filter_map(|reader| next_allowed(state, reader))
    });
    let deadlines = in_progress(consumers).filter_map(|(_, _, reader)| deadline(reader));
    intervals.chain(deadlines).filter(|at| *at > now).min()
}

/// When `minRestartInterval` allows the next restart of a workload.
pub(super) fn next_allowed(state: &ConsumerState, reader: &Reader) -> Option<Timestamp> {
    let restarted_at = reader.loaded.as_ref()?.restarted_at?;
    Some(state.min_interval.after(restarted_at))
}

/// What is missing until the rollout of a workload's own restart is complete. A rollout that hangs does not block a further restart: newer
/// content may be what it needs.
fn own_rollout(reader: &Reader, now: Timestamp) -> Option<&str> {
    let unfinished = reader.unfinished.as_deref().filter(|_| is_in_progress(reader))?;
    deadline(reader).is_none_or(|deadline| now < deadline).then_some(unfinished)
}

/// Restarts whose rollouts proceed without a person.
fn in_progress(consumers: &Consumers) -> impl Iterator<Item = (&(String, String), usize, &Reader)> {
    consumers.iter().flat_map(|(key, state)| {
        let readers =
            state.workloads.iter().enumerate().filter_map(move |(at, one)| Some((key, at, one.found.as_ref().ok()?)));
        readers.filter(|(_, _, reader)| is_in_progress(reader))
    })
}

fn is_in_progress(reader: &Reader) -> bool {
    reader.by_hand.is_none() && reader.loaded.as_ref().is_some_and(|loaded| loaded.rollout.is_some())
}

fn deadline(reader: &Reader) -> Option<Timestamp> {
    let restarted_at = reader.loaded.as_ref()?.restarted_at?;
    Some(restarted_at.saturating_add(ROLLOUT_DEADLINE).unwrap_or(Timestamp::MAX))
}
