//! Outdated workloads: the webhook missed them, or their Secret has changed since their last rollout. Pure: workloads,
//! the registry and `now` in; which workloads are outdated, and which is restarted next, out.

pub(crate) mod progress;

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::condition_types::{WORKLOADS, set};
use super::events::{StatusEvent, normal};
use super::name_list::{counted, sentence};
use super::planner::Pause;
use crate::api::names::{REWRITE, REWRITE_DISABLED};
use crate::api::{ConditionStatus, GatewaySecretStatus, Kind, RestartMode, WindowState, WorkloadKind};
use crate::json::Json;
use crate::registry::{Entry, Registry, Role};
use crate::rewrite::{self, Write};

/// The number of names in a message.
const NAMED: usize = 3;

/// A workload that names a Secret of a GatewaySecret, and is outdated or has a rollout in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its kind.
    pub kind: WorkloadKind,
    /// Its name.
    pub name: String,
    /// `metadata.resourceVersion`, as it was read.
    pub resource_version: Option<String>,
    /// Whether the webhook would name another Secret in it, or give it another rotation hash, if it were created now.
    pub is_behind: bool,
    /// What is missing until its rollout is complete.
    unfinished: Option<String>,
    /// Why a rollout would not restart all its pods.
    by_hand: Option<&'static str>,
    /// The GatewaySecrets in its namespace whose Secrets it names.
    gateway_secrets: BTreeSet<String>,
}

impl Workload {
    /// Reads a workload. `None`: it names none of the Secrets, opted out, is being deleted, or is up to date.
    pub fn read(object: &Value, namespace: &str, registry: &Registry) -> Option<Self> {
        let (kind, metadata) = (Kind::of_value(object), &object["metadata"]);
        let workload_kind = WorkloadKind::named(kind.kind)?;
        if metadata["annotations"][REWRITE] == REWRITE_DISABLED || !metadata["deletionTimestamp"].is_null() {
            return None;
        }
        let json = Json::from(object);
        let named = rewrite::names(kind, &json, namespace);
        let claimed = named.iter().filter_map(|named| registry.role(namespace, named.name));
        let claimed = claimed.filter(|(_, role)| *role != Role::CacertSibling);
        let gateway_secrets: BTreeSet<_> = claimed.map(|(entry, _)| entry.name.clone()).collect();
        if gateway_secrets.is_empty() {
            return None;
        }
        let is_behind =
            rewrite::rewrite(&Write { kind, namespace, object: &json, old: None, by_agent: true }, registry).rolls();
        let unfinished = progress::unfinished(object);
        (is_behind || unfinished.is_some()).then(|| Self {
            kind: workload_kind,
            name: metadata["name"].as_str().unwrap_or_default().to_owned(),
            resource_version: metadata["resourceVersion"].as_str().map(str::to_owned),
            is_behind,
            unfinished,
            by_hand: progress::restarts_by_hand(object),
            gateway_secrets,
        })
    }

    /// Its name as an argument of kubectl.
    pub fn label(&self) -> String {
        self.kind.label(&self.name)
    }
}

/// What is known of the workloads of one GatewaySecret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadSurvey {
    /// They cannot be read: why, and what fixes that.
    Unread(String),
    /// They were read.
    Read {
        /// The number of outdated workloads.
        behind: u32,
        /// The names of the first ones, each with the reason if a person has to restart its pods.
        named: Vec<String>,
        /// Their names as arguments of kubectl.
        labels: Vec<String>,
        /// What the agent does about them.
        doing: Doing,
    },
}

/// What the agent does about outdated workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Workloads are only reported.
    Reporting,
    /// Workloads are restarted. The text is the progress.
    Rolling(String),
    /// A restart is blocked. The text says by what.
    Held(String),
}

impl WorkloadSurvey {
    /// The survey of these workloads. `doing` is what the agent does about them.
    pub fn of(entry: &Entry, workloads: &[Workload], doing: Doing) -> Self {
        let behind: Vec<_> = behind(entry, workloads).collect();
        let named = |workload: &&Workload| match workload.by_hand {
            Some(why) => format!("{} ({why})", workload.label()),
            None => workload.label(),
        };
        Self::Read {
            behind: u32::try_from(behind.len()).unwrap_or(u32::MAX),
            named: behind.iter().take(NAMED).map(named).collect(),
            labels: behind.iter().take(NAMED).map(|workload| workload.label()).collect(),
            doing,
        }
    }
}

fn of<'w>(entry: &Entry, workloads: &'w [Workload]) -> impl Iterator<Item = &'w Workload> {
    workloads.iter().filter(move |workload| workload.gateway_secrets.contains(&entry.name))
}

fn behind<'w>(entry: &Entry, workloads: &'w [Workload]) -> impl Iterator<Item = &'w Workload> {
    of(entry, workloads).filter(|workload| workload.is_behind)
}

/// The workload of a GatewaySecret to restart now, among those in its namespace.
///
/// # Errors
/// What the agent does instead, if no workload is restarted now.
pub fn next<'w>(
    entry: &Entry,
    workloads: &'w [Workload],
    registry: &Registry,
    now: Timestamp,
) -> Result<&'w Workload, Doing> {
    if entry.policy.workload_restarts.mode == RestartMode::Disabled {
        return Err(Doing::Reporting);
    }
    if let Some(pause) = Pause::of(entry, WindowState::of(&entry.policy.change_windows, now)) {
        return Err(Doing::Held(pause.reason));
    }
    if let Some((workload, why)) = of(entry, workloads).find_map(|w| Some((w, w.unfinished.as_ref()?))) {
        let label = workload.label();
        return Err(Doing::Rolling(format!(
            "the next follows when the rollout of {label} is complete ({why}). If that does not progress, fix it or roll it back"
        )));
    }
    if !is_propagated(entry, now) {
        let why = "the content has just changed, and may not have reached all replicas of the webhook yet (propagationDelays.admission)";
        return Err(Doing::Rolling(why.to_owned()));
    }
    let is_paced = |name: &String| {
        let others =
            registry.entries().iter().filter(|other| other.namespace == entry.namespace && other.name == *name);
        others
            .into_iter()
            .all(|other| other.name == entry.name || other.policy.workload_restarts.mode == RestartMode::Enabled)
    };
    let all_paced = |workload: &&Workload| workload.gateway_secrets.iter().all(is_paced);
    let why = "a person has to restart their pods, or they name Secrets of another GatewaySecret without workloadRestarts.mode: Enabled";
    let mut free = behind(entry, workloads).filter(|workload| workload.by_hand.is_none());
    free.find(all_paced).ok_or_else(|| Doing::Held(why.to_owned()))
}

/// Whether every replica of the webhook knows the content. One that does not would write an older hash, which would
/// cause a second rollout. Revisions are Unix times.
fn is_propagated(entry: &Entry, now: Timestamp) -> bool {
    let newest = entry.status.hashes.values().filter_map(|hash| i64::try_from(hash.revision).ok()).max();
    let newest = newest.and_then(|revision| Timestamp::from_second(revision).ok());
    // Revisions count whole seconds, rounded down.
    let delay = entry.policy.propagation_delays.admission.duration().as_secs().saturating_add(1);
    newest.is_none_or(|newest| now.duration_since(newest).as_secs() >= delay)
}

/// Adds the survey to `status`.
pub fn tell(entry: &Entry, found: &WorkloadSurvey, status: &mut GatewaySecretStatus, now: Timestamp) {
    status.workloads_behind = None;
    let said = match found {
        _ if !status.is_ready() => {
            let message = "No workload is rewritten or restarted until the managed Secret is Ready.".to_owned();
            (ConditionStatus::Unknown, "NotReady", message)
        }
        WorkloadSurvey::Unread(why) => (ConditionStatus::Unknown, "Unread", sentence(why)),
        WorkloadSurvey::Read { behind, named, labels, doing } => {
            status.workloads_behind = Some(*behind);
            read(entry, *behind, named, labels, doing)
        }
    };
    set(entry, status, WORKLOADS, said, now);
}

fn read(
    entry: &Entry,
    behind: u32,
    named: &[String],
    labels: &[String],
    doing: &Doing,
) -> (ConditionStatus, &'static str, String) {
    let (source, managed, namespace) = (entry.source_name(), entry.managed_name(), &entry.namespace);
    if behind == 0 {
        let message = format!("No workload names Secret {source}, or runs with earlier content of Secret {managed}.");
        return (ConditionStatus::True, "Current", message);
    }
    let more = if behind as usize > named.len() { ", …" } else { "" };
    let verbs = if behind == 1 { "names" } else { "name" };
    let runs = if behind == 1 { "runs" } else { "run" };
    let verbs = format!("{verbs} Secret {source}, or {runs}");
    let who = format!(
        "{} {verbs} with earlier content of Secret {managed}: {}{more}.",
        counted(behind as usize, "workload"),
        named.join(", ")
    );
    let (reason, then) = match doing {
        Doing::Reporting => (
            "Behind",
            format!(
                "While the webhook runs, a restart updates them: kubectl rollout restart -n {namespace} {}{}; with workloadRestarts.mode: \
                 Enabled in the RotationPolicy the agent restarts them one by one.",
                labels.join(" "),
                if more.is_empty() { "" } else { " …" }
            ),
        ),
        Doing::Rolling(how) => {
            ("Rolling", format!("The agent restarts them one by one: {}.", how.trim_end_matches('.')))
        }
        Doing::Held(why) => ("Held", format!("The agent restarts none now: {}.", why.trim_end_matches('.'))),
    };
    (ConditionStatus::False, reason, format!("{who} {then}"))
}

/// The Event for a workload that was restarted.
pub fn rolled(workload: &Workload) -> StatusEvent {
    let note = format!(
        "The agent restarts {}: the webhook updated the Secrets that it names, and its hash.",
        workload.label()
    );
    normal("WorkloadRolled", "RollOut", note)
}

#[cfg(test)]
mod tests;
