//! Workloads that are behind: they slipped by while the webhook was down, or load what has changed since their last rollout. Pure:
//! workloads, the registry and `now` in; who is behind, and who is rolled next, out.

mod progress;

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::conditions::set;
use super::events::{StatusEvent, normal};
use super::planner::Pause;
use crate::api::names::{REWRITE, REWRITE_DISABLED};
use crate::api::{ConditionStatus, GatewaySecretStatus, Kind, RestartMode, WindowState};
use crate::registry::{Entry, Registry, Role};
use crate::rewrite::{self, Write};

/// The condition that tells whether workloads have what they load now.
pub const WORKLOADS: &str = "WorkloadsCurrent";
/// Names that a message gives.
const NAMED: usize = 3;

/// A workload that names a Secret of a GatewaySecret, and is behind, or in the middle of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// `Deployment`, `StatefulSet` or `DaemonSet`, of `apps/v1`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// `metadata.resourceVersion`, as it was read.
    pub resource_version: Option<String>,
    /// Whether the webhook would name another Secret in it, or give it another rotation hash, if it were made now.
    pub is_behind: bool,
    /// What is missing until its rollout is complete.
    unfinished: Option<String>,
    /// Why a rollout would not restart all its pods.
    by_hand: Option<&'static str>,
    /// The GatewaySecrets in its namespace whose Secrets it names.
    gateway_secrets: BTreeSet<String>,
}

impl Workload {
    /// What of it matters; `None` when nothing does: it names none of the Secrets, opted out, is being deleted, or is as it
    /// should be.
    pub fn read(object: &Value, namespace: &str, registry: &Registry) -> Option<Self> {
        let (kind, metadata) = (Kind::of(object), &object["metadata"]);
        if metadata["annotations"][REWRITE] == REWRITE_DISABLED || !metadata["deletionTimestamp"].is_null() {
            return None;
        }
        let named = rewrite::names(kind, object, namespace);
        let claimed = named.iter().filter_map(|named| registry.role(namespace, named.name));
        let claimed = claimed.filter(|(_, role)| *role != Role::CacertSibling);
        let gateway_secrets: BTreeSet<_> = claimed.map(|(entry, _)| entry.name.clone()).collect();
        if gateway_secrets.is_empty() {
            return None;
        }
        let is_behind =
            rewrite::rewrite(&Write { kind, namespace, object, old: None, by_agent: true }, registry).rolls();
        let unfinished = progress::unfinished(object);
        (is_behind || unfinished.is_some()).then(|| Self {
            kind: kind.kind.to_owned(),
            name: metadata["name"].as_str().unwrap_or_default().to_owned(),
            resource_version: metadata["resourceVersion"].as_str().map(str::to_owned),
            is_behind,
            unfinished,
            by_hand: progress::restarts_by_hand(object),
            gateway_secrets,
        })
    }

    /// As kubectl names it.
    pub fn label(&self) -> String {
        format!("{}/{}", self.kind.to_lowercase(), self.name)
    }
}

/// What is known of the workloads of one GatewaySecret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadSurvey {
    /// They cannot be read: why, and what mends it.
    Unread(String),
    /// They were read.
    Read {
        /// How many are behind.
        behind: u32,
        /// The first of them, with what is to be known of each.
        named: Vec<String>,
        /// The same as arguments of kubectl.
        labels: Vec<String>,
        /// What is done about them.
        doing: Doing,
    },
}

/// What the agent does about workloads that are behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It reports them.
    Reporting,
    /// It rolls them, and this is how far that is.
    Rolling(String),
    /// It would roll them, and this holds it back.
    Held(String),
}

impl WorkloadSurvey {
    /// What is found when `doing` is what is done about these workloads.
    pub fn of(entry: &Entry, workloads: &[Workload], doing: Doing) -> Self {
        let behind: Vec<_> = behind(entry, workloads).collect();
        let told = |workload: &&Workload| match workload.by_hand {
            Some(why) => format!("{} ({why})", workload.label()),
            None => workload.label(),
        };
        Self::Read {
            behind: u32::try_from(behind.len()).unwrap_or(u32::MAX),
            named: behind.iter().take(NAMED).map(told).collect(),
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

/// The one workload to roll now for a GatewaySecret, out of those in its namespace.
///
/// # Errors
/// When none is rolled now: what is done about those that are behind instead.
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
            "the next follows when the rollout of {label} is complete ({why}). Should it stay so, mend it first"
        )));
    }
    if !is_heard_of(entry, now) {
        let why = "content has just changed, and replicas of the webhook have yet to hear of it (propagationDelays.admission)";
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
    let why = "their pods are restarted by hand, or they name Secrets of another GatewaySecret without workloadRestarts.mode: Enabled";
    let mut free = behind(entry, workloads).filter(|workload| workload.by_hand.is_none());
    free.find(all_paced).ok_or_else(|| Doing::Held(why.to_owned()))
}

/// Whether every replica of the webhook knows the content. One that does not would stamp an older hash, and so cost a second
/// rollout. Revisions are Unix times.
fn is_heard_of(entry: &Entry, now: Timestamp) -> bool {
    let newest = entry.status.hashes.values().filter_map(|hash| i64::try_from(hash.revision).ok()).max();
    let newest = newest.and_then(|revision| Timestamp::from_second(revision).ok());
    // Revisions count whole seconds, rounded down.
    let settle = entry.policy.propagation_delays.admission.duration().as_secs().saturating_add(1);
    newest.is_none_or(|newest| now.duration_since(newest).as_secs() >= settle)
}

/// Adds to `status` what was found.
pub fn tell(entry: &Entry, found: &WorkloadSurvey, status: &mut GatewaySecretStatus, now: Timestamp) {
    status.workloads_behind = None;
    let told = match found {
        _ if !status.is_ready() => {
            let message = "until the managed Secret is Ready nothing is renamed, and nothing is rolled".to_owned();
            (ConditionStatus::Unknown, "NotReady", message)
        }
        WorkloadSurvey::Unread(why) => (ConditionStatus::Unknown, "Unread", why.clone()),
        WorkloadSurvey::Read { behind, named, labels, doing } => {
            status.workloads_behind = Some(*behind);
            read(entry, *behind, named, labels, doing)
        }
    };
    set(entry, status, WORKLOADS, told, now);
}

fn read(
    entry: &Entry,
    behind: u32,
    named: &[String],
    labels: &[String],
    doing: &Doing,
) -> (ConditionStatus, &'static str, String) {
    let (root, managed, namespace) = (entry.source_name(), entry.managed_name(), &entry.namespace);
    if behind == 0 {
        let message = format!("no workload names Secret {root}, or runs with older content of Secret {managed}");
        return (ConditionStatus::True, "Current", message);
    }
    let more = if behind as usize > named.len() { ", …" } else { "" };
    let who = format!(
        "{behind} workload(s) name Secret {root}, or run with older content of Secret {managed}: {}{more}",
        named.join(", ")
    );
    let (reason, then) = match doing {
        Doing::Reporting => (
            "Behind",
            format!(
                "While the webhook is up a restart mends them: kubectl rollout restart -n {namespace} {}{}; with workloadRestarts.mode: \
                 Enabled in the RotationPolicy the agent does it, one after the other",
                labels.join(" "),
                if more.is_empty() { "" } else { " …" }
            ),
        ),
        Doing::Rolling(how) => ("Rolling", format!("The agent rolls them one after the other: {how}")),
        Doing::Held(why) => ("Held", format!("None is rolled now: {why}")),
    };
    (ConditionStatus::False, reason, format!("{who}. {then}"))
}

/// What to tell when a workload was rolled.
pub fn rolled(workload: &Workload) -> StatusEvent {
    let note =
        format!("{} is rolled: the webhook gave it the names and the hash of what it loads now", workload.label());
    normal("WorkloadRolled", "RollOut", note)
}

#[cfg(test)]
mod tests;
