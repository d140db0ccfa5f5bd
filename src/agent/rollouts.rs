//! Finds workloads that are behind, in the namespaces of GatewaySecrets, and rolls them where that is asked for: one at a time, by
//! an annotation of our own on the workload, so that it is the webhook that writes, and the user's next apply meets no conflict.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::cluster_state::objects;
use super::events::EventRecorder;
use super::lease::Leadership;
use super::{AgentError, MANAGER, Settings, TICK};
use crate::api::RestartMode;
use crate::api::names::RESYNC_REQUESTED_AT;
use crate::registry::{Entry, Registry};
use crate::rotation::rollouts::{Doing, Workload, WorkloadSurvey, next, rolled};
use crate::store::{RegistryCache, cluster, objects as store};

/// What was found for each GatewaySecret, by namespace and name.
pub(super) type RolloutStatuses = BTreeMap<(String, String), WorkloadSurvey>;

/// A look at all workloads of a namespace costs more than one at what is watched by name, and nothing breaks while one is behind:
/// so many times `Settings::poll` lie between two looks, unless a rollout is under way.
const SELDOM: u32 = 4;

const KINDS: [(&str, &str); 3] =
    [("Deployment", "deployments.apps"), ("StatefulSet", "statefulsets.apps"), ("DaemonSet", "daemonsets.apps")];

/// Looks again and again.
pub(super) async fn keep(
    client: &Client,
    live: &RegistryCache,
    leadership: &Leadership,
    settings: &Settings,
    teller: &EventRecorder,
    rounds: watch::Sender<Arc<RolloutStatuses>>,
) {
    let round = Round { client, leadership, teller };
    let mut known = RolloutStatuses::new();
    loop {
        let registry = live.awaited().await;
        let mut by_namespace: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in registry.entries().iter().filter(|entry| settings.keeps(entry)) {
            by_namespace.entry(&entry.namespace).or_default().push(entry);
        }
        known.retain(|kept, _| by_namespace.values().flatten().any(|entry| key(entry) == *kept));
        for (namespace, entries) in by_namespace {
            match timeout(TICK, round.look(namespace, &entries, &registry)).await {
                Ok(Ok(found)) => known.extend(found),
                // What was known stays: it is likely still so.
                Ok(Err(error)) => tracing::warn!(namespace, "workloads not looked at: {error}"),
                Err(_) => tracing::warn!(namespace, "workloads not looked at: {}", AgentError::NoAnswer),
            }
        }
        let is_rolling =
            |found: &WorkloadSurvey| matches!(found, WorkloadSurvey::Read { doing: Doing::Rolling(_), .. });
        let times = if known.values().any(is_rolling) { 1 } else { SELDOM };
        rounds.send_if_modified(|before| {
            let is_new = **before != known;
            *before = Arc::new(known.clone());
            is_new
        });
        sleep(settings.poll.saturating_mul(times).max(Duration::from_millis(1))).await;
    }
}

struct Round<'r> {
    client: &'r Client,
    leadership: &'r Leadership,
    teller: &'r EventRecorder,
}

impl Round<'_> {
    /// Looks at the workloads of a namespace for the GatewaySecrets there, and rolls at most one for each.
    async fn look(
        &self,
        namespace: &str,
        entries: &[&Entry],
        registry: &Registry,
    ) -> Result<RolloutStatuses, AgentError> {
        let mut workloads = Vec::new();
        for (kind, plural) in KINDS {
            let keep = |object: Value| workloads.extend(Workload::read(&object, namespace, registry));
            let listed = store::each(self.client, namespace, ("apps", "v1", kind), keep).await;
            match listed.map_err(|error| AgentError::api("list", plural, "", error)) {
                Err(error) if error.is(403) => {
                    let unread = |entry: &&Entry| (key(entry), WorkloadSurvey::Unread(error.advice()));
                    return Ok(entries.iter().map(unread).collect());
                }
                listed => listed?,
            }
        }
        let mut found = RolloutStatuses::new();
        for &known in entries {
            let entry = if known.policy.workload_restarts.mode == RestartMode::Enabled {
                self.current(known).await?
            } else {
                Some(known.clone())
            };
            let Some(entry) = entry else { continue };
            let doing = match next(&entry, &workloads, registry, Timestamp::now()) {
                Ok(workload) => self.roll(&entry, workload, registry).await,
                Err(doing) => doing,
            };
            found.insert(key(&entry), WorkloadSurvey::of(&entry, &workloads, doing));
        }
        Ok(found)
    }

    /// A watch that is cut would hide that somebody has paused it.
    async fn current(&self, known: &Entry) -> Result<Option<Entry>, AgentError> {
        let read = cluster::current(self.client.clone(), known).await;
        read.map_err(|error| AgentError::api("get", "gatewaysecrets", &known.name, error))
    }

    /// Has a workload written once more, if the webhook mends it by that: a dry run shows.
    async fn roll(&self, entry: &Entry, workload: &Workload, registry: &Registry) -> Doing {
        let label = workload.label();
        let answer = match self.touch(entry, workload, true).await {
            Ok(answer) => answer,
            Err(error) => return held(&error, &label),
        };
        if Workload::read(&answer, &entry.namespace, registry).is_some_and(|workload| workload.is_behind) {
            return Doing::Held(format!(
                "a dry run shows that the webhook does not mend {label}: is it up, and does it know this agent (--agent-username)?"
            ));
        }
        if !self.leadership.holds() {
            return Doing::Rolling(AgentError::NotLeading.to_string());
        }
        match self.touch(entry, workload, false).await {
            Ok(_) => {
                let Entry { namespace, name, .. } = entry;
                tracing::info!(namespace, name, "{label} is rolled");
                self.teller.tally.rolled(entry);
                self.teller.tell(entry, vec![rolled(workload)]);
                Doing::Rolling(format!("{label} has just been"))
            }
            Err(error) => held(&error, &label),
        }
    }

    /// Writes the annotation, unless the workload is not the one that was read any more. Returns it as stored.
    async fn touch(&self, entry: &Entry, workload: &Workload, dry_run: bool) -> Result<Value, AgentError> {
        let metadata = json!({
            "resourceVersion": workload.resource_version, "annotations": { RESYNC_REQUESTED_AT: Timestamp::now().to_string() },
        });
        let api = objects(self.client, &entry.namespace, "apps", "v1", &workload.kind);
        let params = PatchParams { dry_run, field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let patched = api.patch(&workload.name, &params, &Patch::Merge(json!({ "metadata": metadata }))).await;
        let patched = patched.map_err(|error| AgentError::api("patch", "the workload", &workload.label(), error))?;
        serde_json::to_value(patched).map_err(AgentError::Encode)
    }
}

fn held(error: &AgentError, label: &str) -> Doing {
    if error.is(409) {
        return Doing::Rolling(format!("somebody else has just written {label}; it is looked at again"));
    }
    Doing::Held(error.advice())
}

fn key(entry: &Entry) -> (String, String) {
    (entry.namespace.clone(), entry.name.clone())
}
