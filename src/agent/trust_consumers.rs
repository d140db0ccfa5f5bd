//! Restarts the workloads of TrustConsumers. [`crate::consumer`] makes all decisions; this module reads and writes the
//! objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::apply::apply_params;
use super::budget::Budgets;
use super::cluster_state::{get, objects};
use super::events::{EventRecorder, reference};
use super::lease::Leadership;
use super::watches::{by_name, notify_each};
use super::{AgentError, FIELD_MANAGER, RECONCILE_TIMEOUT, Settings};
use crate::api::names::LOADED_HASH;
use crate::api::{
    GROUP, LoadedObject, SourceKind, TrustConsumer, TrustConsumerSpec, TrustConsumerStatus, VERSION, WorkloadRef,
};
use crate::consumer::{self, Absence, ConsumerState, Consumers, Content, ReadFailure, blocker, owners};
use crate::rotation::sentence;
use crate::store::watch::with_backoff;
use crate::text::excerpt;

type Key = (String, String);

/// Time between two reads of a workload whose rollout is in progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Events within this time cause one reconcile.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Time until deferred TrustConsumers are read, if the budgets allow it then.
const DEFERRED_INTERVAL: Duration = Duration::from_secs(1);
/// The most TrustConsumers of one namespace that are read in one reconcile. Further ones follow in the next, after other namespaces.
const MAX_READ: usize = 16;
/// The most restarts in one reconcile. Further ones follow in the next, after everything was read again.
const MAX_RESTARTS: usize = 16;

/// Reconciles all TrustConsumers, in rounds: at each change of one, or of an object that it names, and at each resync interval.
pub(super) async fn run(
    (client, budgets): (&Client, &Budgets),
    leadership: &Leadership,
    settings: &Settings,
    recorder: &EventRecorder,
) {
    let trigger = Arc::new(Trigger::default());
    let mut watches = JoinSet::new();
    watches.spawn(watch_consumers(client.clone(), trigger.clone()));
    let mut controller = ConsumerController {
        client,
        budgets,
        leadership,
        settings,
        recorder,
        trigger: trigger.clone(),
        known: BTreeMap::new(),
        deferred: BTreeSet::new(),
        consumers: Consumers::new(),
    };
    let mut resync_at = Instant::now();
    let mut last_error = String::new();
    loop {
        let is_resync = resync_at <= Instant::now();
        if is_resync {
            resync_at = Instant::now() + settings.poll;
        }
        match controller.round(is_resync).await {
            Ok(()) => last_error.clear(),
            Err(AgentError::NotLeading) => {}
            Err(error) => {
                let message = error.condition_message();
                if message != last_error {
                    tracing::warn!("TrustConsumers not reconciled: {message}");
                }
                last_error = message;
            }
        }
        let until_resync = resync_at.saturating_duration_since(Instant::now());
        let wake = controller.requeue_after().map_or(until_resync, |after| after.min(until_resync));
        tokio::select! {
            () = trigger.event.notified() => {}
            () = sleep(wake) => {}
        }
        sleep(DEBOUNCE).await;
    }
}

/// The TrustConsumers that have to be read again.
#[derive(Default)]
struct Trigger {
    changed: Mutex<BTreeSet<Key>>,
    event: Notify,
}

impl Trigger {
    fn mark(&self, key: Key) {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        self.event.notify_one();
    }

    fn take(&self) -> BTreeSet<Key> {
        std::mem::take(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Marks each TrustConsumer whose spec changes.
async fn watch_consumers(client: Client, trigger: Arc<Trigger>) {
    let api: Api<PartialObjectMeta<TrustConsumer>> = Api::all(client);
    let mut events = std::pin::pin!(with_backoff(watcher(api, watcher::Config::default())));
    let mut generations: BTreeMap<Key, (Option<String>, Option<i64>)> = BTreeMap::new();
    while let Some(event) = events.next().await {
        let (object, is_deleted) = match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => (object, false),
            Ok(Event::Delete(object)) => (object, true),
            Ok(Event::Init | Event::InitDone) => continue,
            Err(error) => {
                tracing::debug!("watch of TrustConsumers failed, retrying: {error}");
                continue;
            }
        };
        let key = (object.namespace().unwrap_or_default(), object.name_any());
        // A write of the status, the agent's own, does not change the generation.
        let version = (object.uid(), object.metadata.generation);
        if is_deleted || generations.get(&key) != Some(&version) {
            generations.insert(key.clone(), version);
            trigger.mark(key.clone());
        }
        if is_deleted {
            generations.remove(&key);
        }
    }
}

/// A TrustConsumer as it was read or written last.
struct KnownConsumer {
    uid: Option<String>,
    created: Option<Timestamp>,
    generation: Option<i64>,
    spec: TrustConsumerSpec,
    status: TrustConsumerStatus,
    /// When the objects that it names were read last.
    read_at: Option<Instant>,
    /// Whether a read of what it loads was refused.
    is_refused: bool,
    /// Watches of the objects that it loads, once they were read. They end when dropped.
    watches: Option<(JoinSet<()>, OwnedSemaphorePermit)>,
}

struct ConsumerController<'r> {
    client: &'r Client,
    budgets: &'r Budgets,
    leadership: &'r Leadership,
    settings: &'r Settings,
    recorder: &'r EventRecorder,
    trigger: Arc<Trigger>,
    known: BTreeMap<Key, KnownConsumer>,
    /// Those that have to be read, when the budgets allow it.
    deferred: BTreeSet<Key>,
    consumers: Consumers,
}

impl ConsumerController<'_> {
    /// Reads what may have changed, stores what the workloads have loaded, and then restarts workloads.
    async fn round(&mut self, is_resync: bool) -> Result<(), AgentError> {
        let mut keys = self.trigger.take();
        keys.append(&mut self.deferred);
        if is_resync {
            keys = self.list().await?;
        } else {
            let pending = self.consumers.iter().filter(|(_, state)| state.pending_since.is_some());
            keys.extend(pending.map(|(key, _)| key.clone()));
        }
        let keys = self.within_budget(keys);
        let mut result = Ok(());
        for (at, key) in keys.iter().enumerate() {
            match if is_resync { Ok(()) } else { self.get(key).await } {
                Ok(()) => self.observe(key).await,
                // They are read again soon.
                Err(AgentError::NoAnswer) => {
                    self.deferred.extend(keys[at..].iter().cloned());
                    return Err(AgentError::NoAnswer);
                }
                Err(error) => {
                    self.deferred.insert(key.clone());
                    result = result.and(Err(error));
                }
            }
        }
        for _ in 0..MAX_RESTARTS {
            // Stored before the restart: if this process ends now, the next one compares the content with what is
            // stored here.
            self.store_all().await?;
            let now = now();
            let next = consumer::next(&self.consumers, self.settings.max_concurrent_restarts, now);
            let Some((key, at)) = next.map(|(key, at)| (key.clone(), at)) else { return result };
            self.restart(&key, at).await?;
        }
        self.trigger.event.notify_one();
        result
    }

    /// Those that may be read now, in the order of their last reads. The others are deferred.
    fn within_budget(&mut self, keys: BTreeSet<Key>) -> Vec<Key> {
        let mut keys: Vec<_> = keys.into_iter().collect();
        keys.sort_by_key(|key| self.known.get(key).and_then(|known| known.read_at));
        let mut of_namespace: BTreeMap<String, usize> = BTreeMap::new();
        let (now, later): (Vec<_>, Vec<_>) = keys.into_iter().partition(|key| {
            let known = self.known.get(key);
            // Rollouts in progress count for the limit of concurrent restarts.
            if known.is_some_and(|known| known.status.workloads.iter().any(|one| one.rollout.is_some())) {
                return true;
            }
            let number = of_namespace.entry(key.0.clone()).or_default();
            *number += 1;
            *number <= MAX_READ
                && self.budgets.of(&key.0).is_within()
                && (known.is_none_or(|known| !known.is_refused) || self.budgets.ask_again())
        });
        self.deferred.extend(later);
        now
    }

    /// The time until the next reconcile, if nothing changes.
    fn requeue_after(&self) -> Option<Duration> {
        let now = Timestamp::now();
        let wake = consumer::wake(&self.consumers, now);
        let wake = wake.map(|wake| Duration::try_from(wake.duration_since(now)).unwrap_or_default());
        let rolling = self.known.values().flat_map(|known| &known.status.workloads).any(|one| one.rollout.is_some());
        let deferred = (!self.deferred.is_empty()).then_some(DEFERRED_INTERVAL);
        wake.into_iter().chain(rolling.then_some(PROGRESS_INTERVAL)).chain(deferred).min()
    }

    /// Lists all TrustConsumers. Returns their keys.
    async fn list(&mut self) -> Result<BTreeSet<Key>, AgentError> {
        let api: Api<DeserializeGuard<TrustConsumer>> = Api::all(self.client.clone());
        let listed = timeout(RECONCILE_TIMEOUT, api.list(&ListParams::default())).await;
        let listed = listed.map_err(|_| AgentError::NoAnswer)?;
        let listed = listed.map_err(|error| AgentError::api("list", "trustconsumers.trustspan.dev", "", error))?;
        let mut keys = BTreeSet::new();
        for object in listed {
            let key = (object.namespace().unwrap_or_default(), object.name_any());
            match object.0 {
                Ok(object) => self.know(&key, Some(object)),
                Err(error) => {
                    let (namespace, name) = (&key.0, &key.1);
                    tracing::error!(namespace, name, "TrustConsumer cannot be parsed: {}", excerpt(&error.to_string()));
                }
            }
            keys.insert(key);
        }
        let gone: Vec<_> = self.known.keys().filter(|key| !keys.contains(*key)).cloned().collect();
        gone.iter().for_each(|key| self.forget(key));
        Ok(keys)
    }

    async fn get(&mut self, key: &Key) -> Result<(), AgentError> {
        let api: Api<TrustConsumer> = Api::namespaced(self.budgets.of(&key.0).client.clone(), &key.0);
        let read = timeout(RECONCILE_TIMEOUT, api.get_opt(&key.1)).await.map_err(|_| AgentError::NoAnswer)?;
        let read = read.map_err(|error| AgentError::api("get", "trustconsumers.trustspan.dev", &key.1, error))?;
        self.know(key, read);
        Ok(())
    }

    fn know(&mut self, key: &Key, object: Option<TrustConsumer>) {
        let is_included = self.settings.namespaces.is_empty() || self.settings.namespaces.contains(&key.0);
        let object = object.filter(|object| object.metadata.deletion_timestamp.is_none() && is_included);
        let Some(TrustConsumer { metadata, spec, status }) = object else { return self.forget(key) };
        let before = self.known.remove(key).filter(|known| known.spec.loads == spec.loads);
        let (read_at, is_refused) = before.as_ref().map_or((None, false), |known| (known.read_at, known.is_refused));
        let known = KnownConsumer {
            uid: metadata.uid,
            created: metadata.creation_timestamp.map(|time| time.0),
            generation: metadata.generation,
            read_at,
            is_refused,
            watches: before.and_then(|known| known.watches),
            spec,
            status: status.unwrap_or_default(),
        };
        self.known.insert(key.clone(), known);
    }

    fn forget(&mut self, key: &Key) {
        self.known.remove(key);
        self.consumers.remove(key);
        self.recorder.metrics.consumers.forget(key);
    }

    /// Watches the objects that a TrustConsumer loads, by name: the agent may read no others. `None` when the namespace has too many
    /// watches: changes are then found at each resync.
    fn watch(&self, key: &Key, loads: &[LoadedObject]) -> Option<(JoinSet<()>, OwnedSemaphorePermit)> {
        let budget = self.budgets.of(&key.0);
        let permit = budget.watch(loads.len())?;
        let mut watches = JoinSet::new();
        for LoadedObject { kind, name, .. } in loads {
            let (client, trigger, changed) = (budget.client.clone(), self.trigger.clone(), key.clone());
            let mark = move || trigger.mark(changed.clone());
            match kind {
                SourceKind::Secret => {
                    let api: Api<PartialObjectMeta<Secret>> = Api::namespaced(client, &key.0);
                    watches.spawn(notify_each(watcher(api, by_name(name)), mark));
                }
                SourceKind::ConfigMap => {
                    let api: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(client, &key.0);
                    watches.spawn(notify_each(watcher(api, by_name(name)), mark));
                }
            }
        }
        Some((watches, permit))
    }

    /// Reads what a TrustConsumer names.
    async fn observe(&mut self, key: &Key) {
        let Some(known) = self.known.get(key) else { return };
        let namespace = &key.0;
        let mut stored = Vec::new();
        for LoadedObject { kind, name, .. } in &known.spec.loads {
            stored.push(match refusal(&stored) {
                Some(refusal) => Err(refusal.clone()),
                None => self.read(namespace, ("", kind.name(), kind.plural()), name).await,
            });
        }
        let refusal = refusal(&stored).cloned();
        let same_namespace = self.known.iter().filter(|((other, _), _)| other == namespace);
        let owners = owners(same_namespace.map(|((_, name), known)| (known.created, name.as_str(), &known.spec)));
        let mut workloads = Vec::new();
        for workload in &known.spec.workloads {
            let WorkloadRef { kind, name } = workload;
            let owner = owners.get(workload).filter(|owner| **owner != key.1);
            workloads.push(match (owner, &refusal) {
                (Some(owner), _) => Err(Absence::Owned((*owner).to_owned())),
                (None, Some(refusal)) => Err(Absence::Unread(refusal.clone())),
                (None, None) => match self.read(namespace, ("apps", kind.name(), kind.plural()), name).await {
                    Ok(object) => object.ok_or(Absence::Missing),
                    Err(failure) => Err(Absence::Unread(failure)),
                },
            });
        }
        let now = now();
        let content = Content::read(&known.spec, &stored, now);
        let state = ConsumerState::observe(&known.spec, &known.status, content, workloads, now);
        self.consumers.insert(key.clone(), state);
        let watches = match known.watches {
            None if refusal.is_none() => self.watch(key, &known.spec.loads),
            _ => None,
        };
        if let Some(known) = self.known.get_mut(key) {
            (known.read_at, known.is_refused) = (Some(Instant::now()), refusal.is_some());
            known.watches = if known.is_refused { None } else { watches.or(known.watches.take()) };
        }
    }

    async fn read(
        &self,
        namespace: &str,
        (group, kind, plural): (&str, &str, &'static str),
        name: &str,
    ) -> Result<Option<Value>, ReadFailure> {
        let api = objects(&self.budgets.of(namespace).client, namespace, group, "v1", kind);
        let read = timeout(RECONCILE_TIMEOUT, get(&api, plural, name)).await.unwrap_or(Err(AgentError::NoAnswer));
        let mut object = read.map_err(|error| failure(&error))?;
        if let Some(object) = &mut object {
            object["kind"] = kind.into();
        }
        Ok(object)
    }

    /// Writes each status that has changed.
    async fn store_all(&mut self) -> Result<(), AgentError> {
        let now = now();
        let mut unstored = Vec::new();
        for (key, state) in &self.consumers {
            let Some(known) = self.known.get_mut(key) else { continue };
            let blockers: Vec<_> = (0..state.workloads.len())
                .map(|at| blocker(&self.consumers, (key, at), self.settings.max_concurrent_restarts, now))
                .collect();
            let status = consumer::report((&key.0, known.generation), &known.status, state, &blockers, now);
            let blocked = consumer::blocked(state).map(|(workload, end)| (workload.label(), end.as_second()));
            self.recorder.metrics.consumers.report(key, &status, blocked.collect());
            if status == known.status {
                continue;
            }
            self.leadership.ensure_leader()?;
            match store_status(&self.budgets.of(&key.0).client, key, &status).await {
                Ok(()) => {
                    let regarding = reference("TrustConsumer", &key.0, &key.1, known.uid.clone());
                    self.recorder.record_on(&regarding, consumer::events(&known.status, &status));
                    known.status = status;
                }
                // The TrustConsumer was deleted meanwhile.
                Err(error) if error.has_code(404) => unstored.push((key.clone(), error)),
                Err(error) => {
                    tracing::warn!(
                        namespace = key.0,
                        name = key.1,
                        "status not written: {}",
                        error.condition_message()
                    );
                    unstored.push((key.clone(), error));
                }
            }
        }
        for (key, error) in unstored {
            let state = self.consumers.get_mut(&key);
            let readers =
                state.into_iter().flat_map(|state| &mut state.workloads).filter_map(|one| one.found.as_mut().ok());
            readers.for_each(|reader| reader.refused = Some(failure(&error)));
        }
        Ok(())
    }

    /// Restarts a workload, unless it has changed since it was read.
    async fn restart(&mut self, key: &Key, at: usize) -> Result<(), AgentError> {
        let Some(state) = self.consumers.get(key) else { return Ok(()) };
        let (Some(one), Some(hash)) = (state.workloads.get(at), &state.hash) else { return Ok(()) };
        let resource_version = one.found.as_ref().ok().and_then(|reader| reader.resource_version.clone());
        let workload = one.workload.clone();
        let patch = json!({
            "metadata": { "resourceVersion": resource_version },
            "spec": { "template": { "metadata": { "annotations": { LOADED_HASH: hash } } } },
        });
        self.leadership.ensure_leader()?;
        let api = objects(self.client, &key.0, "apps", "v1", workload.kind.name());
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patched = timeout(RECONCILE_TIMEOUT, api.patch(&workload.name, &params, &Patch::Merge(patch))).await;
        let refused = |error| AgentError::api("patch", workload.kind.plural(), &workload.name, error);
        match patched.map_or(Err(AgentError::NoAnswer), |patched| patched.map_err(refused)) {
            Ok(_) => {
                let (namespace, name) = key;
                tracing::info!(namespace, name, "restarting {}", workload.label());
                self.recorder.metrics.consumers.restarted(key);
                let uid = self.known.get(key).and_then(|known| known.uid.clone());
                let regarding = reference("TrustConsumer", namespace, name, uid);
                self.recorder.record_on(&regarding, vec![consumer::restarted(&workload)]);
                self.observe(key).await;
            }
            Err(error) if error.has_code(409) => self.observe(key).await,
            Err(error) => {
                tracing::warn!(namespace = key.0, name = key.1, "{}", error.condition_message());
                let state = self.consumers.get_mut(key);
                if let Some(Ok(reader)) = state.and_then(|state| Some(&mut state.workloads.get_mut(at)?.found)) {
                    reader.refused = Some(failure(&error));
                }
            }
        }
        Ok(())
    }
}

/// The current second: people read these timestamps in the status.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// The first read that was refused: nothing further is requested then.
fn refusal(stored: &[Result<Option<Value>, ReadFailure>]) -> Option<&ReadFailure> {
    stored.iter().filter_map(|read| read.as_ref().err()).find(|failure| failure.reason == "Forbidden")
}

fn failure(error: &AgentError) -> ReadFailure {
    ReadFailure { reason: error.reason(), message: sentence(&error.condition_message()) }
}

async fn store_status(
    client: &Client,
    (namespace, name): &Key,
    status: &TrustConsumerStatus,
) -> Result<(), AgentError> {
    let object = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "TrustConsumer", "metadata": { "name": name }, "status": status,
    });
    let api = objects(client, namespace, GROUP, VERSION, "TrustConsumer");
    let params = apply_params();
    let written = timeout(RECONCILE_TIMEOUT, api.patch_status(name, &params, &Patch::Apply(object))).await;
    let written = written.map_err(|_| AgentError::NoAnswer)?;
    written.map(drop).map_err(|error| AgentError::api("patch", "trustconsumers.trustspan.dev/status", name, error))
}
