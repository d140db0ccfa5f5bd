//! Finds workloads with outdated Secrets in the namespaces of GatewaySecrets, and restarts them where the policy allows it: one at a time,
//! by an annotation on the workload. The webhook updates the pod template during that write, and the user's next apply meets no conflict.

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
use super::permission::Permissions;
use super::{AgentError, FIELD_MANAGER, GRANT_DEBOUNCE, RECONCILE_TIMEOUT, Settings};
use crate::api::names::RESYNC_REQUESTED_AT;
use crate::api::{RestartMode, WorkloadKind};
use crate::registry::{Entry, Registry};
use crate::rotation::rollouts::{Doing, Workload, WorkloadSurvey, next, rolled};
use crate::store::{RegistryCache, cluster, objects as store};

/// The state of each GatewaySecret's workloads, by namespace and name.
pub(super) type RolloutStatuses = BTreeMap<(String, String), WorkloadSurvey>;

/// A survey is made once in this many resync intervals, unless a rollout is in progress. Listing all workloads of a
/// namespace is expensive, and an outdated one breaks nothing.
const SURVEY_INTERVALS: u32 = 4;

/// Surveys workloads periodically.
pub(super) async fn run(
    client: &Client,
    cache: &RegistryCache,
    leadership: &Leadership,
    settings: &Settings,
    (recorder, permissions): (&EventRecorder, &Permissions),
    sender: watch::Sender<Arc<RolloutStatuses>>,
) {
    let controller = RolloutController { client, leadership, recorder };
    let mut statuses = RolloutStatuses::new();
    let mut failures: BTreeMap<String, String> = BTreeMap::new();
    let mut granted = permissions.subscribe();
    loop {
        granted.mark_unchanged();
        let registry = cache.wait_for_registry().await;
        let mut by_namespace: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in registry.entries().iter().filter(|entry| permissions.has(entry)) {
            by_namespace.entry(&entry.namespace).or_default().push(entry);
        }
        statuses.retain(|known, _| by_namespace.values().flatten().any(|entry| key(entry) == *known));
        for (namespace, entries) in by_namespace {
            let survey = timeout(RECONCILE_TIMEOUT, controller.survey(namespace, &entries, &registry)).await;
            match survey.unwrap_or(Err(AgentError::NoAnswer)) {
                Ok(found) => {
                    statuses.extend(found);
                    failures.remove(namespace);
                }
                // The last statuses are kept, since they are probably still correct.
                Err(error) => {
                    let failure = error.to_string();
                    if failures.get(namespace) != Some(&failure) {
                        tracing::warn!(namespace, "workloads not surveyed: {failure}");
                        failures.insert(namespace.to_owned(), failure);
                    }
                }
            }
        }
        let is_rolling =
            |found: &WorkloadSurvey| matches!(found, WorkloadSurvey::Read { doing: Doing::Rolling(_), .. });
        let intervals = if statuses.values().any(is_rolling) { 1 } else { SURVEY_INTERVALS };
        sender.send_if_modified(|before| {
            let is_new = **before != statuses;
            *before = Arc::new(statuses.clone());
            is_new
        });
        tokio::select! {
            () = sleep(settings.poll.saturating_mul(intervals).max(Duration::from_millis(1))) => {}
            _ = granted.changed() => sleep(GRANT_DEBOUNCE.min(settings.poll)).await,
        }
    }
}

struct RolloutController<'r> {
    client: &'r Client,
    leadership: &'r Leadership,
    recorder: &'r EventRecorder,
}

impl RolloutController<'_> {
    /// Lists the workloads of a namespace for its GatewaySecrets, and restarts at most one for each.
    async fn survey(
        &self,
        namespace: &str,
        entries: &[&Entry],
        registry: &Registry,
    ) -> Result<RolloutStatuses, AgentError> {
        let mut workloads = Vec::new();
        for kind in WorkloadKind::ALL {
            let collect = |object: Value| workloads.extend(Workload::read(&object, namespace, registry));
            let listed = store::each(self.client, namespace, ("apps", "v1", kind.name()), collect).await;
            match listed.map_err(|error| AgentError::api("list", kind.plural(), "", error)) {
                Err(error) if error.has_code(403) => {
                    let unread = |entry: &&Entry| (key(entry), WorkloadSurvey::Unread(error.condition_message()));
                    return Ok(entries.iter().map(unread).collect());
                }
                listed => listed?,
            }
        }
        let mut found = RolloutStatuses::new();
        for &known in entries {
            let entry = if known.policy.workload_restarts.mode == RestartMode::Enabled {
                self.get_current(known).await?
            } else {
                Some(known.clone())
            };
            let Some(entry) = entry else { continue };
            let doing = match next(&entry, &workloads, registry, Timestamp::now()) {
                Ok(workload) => self.restart(&entry, workload, registry).await,
                Err(doing) => doing,
            };
            found.insert(key(&entry), WorkloadSurvey::of(&entry, &workloads, doing));
        }
        Ok(found)
    }

    /// The stored GatewaySecret. While the watch is interrupted, the known one may lack a pause.
    async fn get_current(&self, known: &Entry) -> Result<Option<Entry>, AgentError> {
        let read = cluster::current(self.client.clone(), known).await;
        read.map_err(|error| AgentError::api("get", "gatewaysecrets", &known.name, error))
    }

    /// Restarts a workload, if a dry run shows that the webhook updates its pod template.
    async fn restart(&self, entry: &Entry, workload: &Workload, registry: &Registry) -> Doing {
        let label = workload.label();
        let written = match self.request_resync(entry, workload, true).await {
            Ok(written) => written,
            Err(error) => return after_error(&error, &label),
        };
        if Workload::read(&written, &entry.namespace, registry).is_some_and(|workload| workload.is_behind) {
            return Doing::Held(format!(
                "a dry run shows that the webhook does not update {label}. Check that the webhook is available, and that its \
                 --agent-username is this agent's user"
            ));
        }
        if !self.leadership.is_leader() {
            return Doing::Rolling(AgentError::NotLeading.to_string());
        }
        match self.request_resync(entry, workload, false).await {
            Ok(_) => {
                let Entry { namespace, name, .. } = entry;
                tracing::info!(namespace, name, "restarting {label}");
                self.recorder.metrics.workload_restarted(entry);
                self.recorder.record(entry, vec![rolled(workload)]);
                Doing::Rolling(format!("{label} was restarted just now"))
            }
            Err(error) => after_error(&error, &label),
        }
    }

    /// Writes the annotation, unless the workload has changed since it was read. Returns the workload as stored.
    async fn request_resync(&self, entry: &Entry, workload: &Workload, dry_run: bool) -> Result<Value, AgentError> {
        let metadata = json!({
            "resourceVersion": workload.resource_version, "annotations": { RESYNC_REQUESTED_AT: Timestamp::now().to_string() },
        });
        let api = objects(self.client, &entry.namespace, "apps", "v1", workload.kind.name());
        let params = PatchParams { dry_run, field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patched = api.patch(&workload.name, &params, &Patch::Merge(json!({ "metadata": metadata }))).await;
        let patched = patched.map_err(|error| AgentError::api("patch", "the workload", &workload.label(), error))?;
        serde_json::to_value(patched).map_err(AgentError::Encode)
    }
}

fn after_error(error: &AgentError, label: &str) -> Doing {
    if error.has_code(409) {
        return Doing::Rolling(format!("{label} was changed by another client; retrying"));
    }
    Doing::Held(error.condition_message())
}

fn key(entry: &Entry) -> (String, String) {
    (entry.namespace.clone(), entry.name.clone())
}
