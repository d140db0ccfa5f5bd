//! Reconciles one GatewaySecret.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch::{self, error::RecvError};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::{Instant, timeout};

use super::apply::AppliedSteps;
use super::backoff::{self, Backoff, Retry};
use super::budget::NamespaceBudget;
use super::cluster_snapshot::{ClusterSnapshot, Unread};
use super::cluster_state::{self, ClusterState, WatchedNames};
use super::events::EventRecorder;
use super::lease::Leadership;
use super::permission::{self, Permissions};
use super::probe::{self, Prober};
use super::reconcile_trigger::ReconcileInput;
use super::reconciler_checks::{ReconcilerChecks, SourceOutcome};
use super::rollouts::RolloutStatuses;
use super::trust_bundles;
use super::watches::Watches;
use super::write_failures::WriteFailures;
use super::{AgentError, RECONCILE_TIMEOUT, apply, describe, observe_status, readiness, resolution};
use crate::api::{ConditionStatus, GatewaySecretStatus, SourceKind};
use crate::health::CheckResult;
use crate::registry::Entry;
use crate::rotation;
use crate::store::{RegistryCache, cluster, signers};

/// Shortest time between two reconciles, so that events in quick succession do not cause one each: cert-manager issues a certificate in
/// several writes. The first event after a quiet time is not delayed.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Shortest delay after an error.
const MIN_RETRY: Duration = Duration::from_secs(2);
/// Time until the status of other GatewaySecrets is read again whose gateways are waited for: no event reports that.
const OTHER_GATEWAYS_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of one write of the status. It leaves enough of the reconcile's time for the steps.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests that report a refused permission: the read that is refused, a read and a write of the GatewaySecret, and an Event.
const REPORTED_REFUSAL: u32 = 4;

/// Why a status was not written.
enum StatusError {
    /// The last write failed, and its backoff has not passed.
    BackingOff,
    /// The API server refused the write or failed.
    Failed(AgentError),
}

impl From<AgentError> for StatusError {
    fn from(error: AgentError) -> Self {
        Self::Failed(error)
    }
}

/// Reconciles one GatewaySecret.
pub(super) struct Reconciler {
    pub(super) budget: Arc<NamespaceBudget>,
    pub(super) permissions: Arc<Permissions>,
    /// Whether the source Secret may be read, according to the last answer.
    pub(super) is_permitted: bool,
    pub(super) leadership: Leadership,
    pub(super) snapshot: watch::Receiver<Arc<ClusterSnapshot>>,
    pub(super) rollouts: watch::Receiver<Arc<RolloutStatuses>>,
    pub(super) input: watch::Receiver<ReconcileInput>,
    pub(super) cache: Arc<RegistryCache>,
    pub(super) recorder: EventRecorder,
    pub(super) resync_interval: Duration,
    pub(super) legacy_copy: Option<bool>,
    pub(super) signers: Option<PathBuf>,
    pub(super) prober: Prober,
    pub(super) status_backoff: Backoff,
    /// Steps and other writes of the plan that failed.
    pub(super) failures: WriteFailures,
    pub(super) checks: ReconcilerChecks,
    /// What the current reconcile has found out.
    pub(super) source: SourceOutcome,
    /// Whether a reconcile has read all objects that are watched.
    pub(super) is_read: bool,
    /// Whether a reconcile had all permissions: one that is missing afterwards was taken away.
    pub(super) was_permitted: bool,
    /// Whether it was logged that its namespace has too many watches.
    pub(super) is_unwatched: bool,
}

impl Reconciler {
    /// Reconciles at each event and at the instants that the planner asks for, until the GatewaySecret is gone.
    pub(super) async fn run(mut self, names: WatchedNames) {
        let event = Arc::new(Notify::new());
        let mut watches = None;
        let mut retry = Retry::default();
        // What a reconcile was refused was reported by it.
        let mut is_reported = false;
        loop {
            if self.wait_for_permission(is_reported).await.is_err() {
                return;
            }
            is_reported = true;
            let turn = self.budget.reconcile().await;
            // A timeout can end a reconcile at any await, like a kill. The next one continues from what is stored. Boxed: otherwise the
            // task would have the memory of a reconcile while it waits.
            let reconcile = timeout(RECONCILE_TIMEOUT, Box::pin(self.reconcile()));
            let outcome = reconcile.await.unwrap_or(Err(AgentError::NoAnswer));
            let failed = outcome.is_err().then(|| self.input.borrow().entry.clone());
            let source = std::mem::take(&mut self.source);
            if outcome.as_ref().is_err_and(AgentError::is_refused_read) {
                (watches, self.is_read) = (None, false);
                self.is_permitted = !matches!(source, SourceOutcome::Unreadable(_));
            } else if watches.is_none() && self.is_read {
                watches = self.watch(&names, &event);
            }
            let failure = outcome.as_ref().err().or(self.failures.reported());
            self.was_permitted |= failure.is_none() && matches!(source, SourceOutcome::Read(_));
            let is_refused = |error: &&AgentError| error.has_code(403);
            let is_ordinary = failure.filter(is_refused).is_some_and(|refusal| self.is_ordinary(refusal));
            if !is_ordinary {
                self.checks.record(&self.input.borrow(), source, failure);
            }
            let mut pause = Duration::ZERO;
            let requeue_after = match outcome {
                Ok(requeue_after) => {
                    retry = Retry::default();
                    requeue_after.unwrap_or(self.resync_interval).min(self.resync_interval)
                }
                // The process may become the leader again. If it does not, this task is ended.
                Err(AgentError::NotLeading) => MIN_RETRY.min(self.resync_interval),
                // Conflict: retry immediately.
                Err(error) if error.has_code(409) => retry.next_delay(DEBOUNCE, self.resync_interval),
                Err(error) => {
                    // If the API server does not respond, this write fails, too.
                    let _ = timeout(RECONCILE_TIMEOUT, Box::pin(self.report_error(&error, is_ordinary))).await;
                    if !self.is_permitted {
                        continue;
                    }
                    pause = MIN_RETRY.min(self.resync_interval);
                    // The same attempt would fail again: the next resync comes soon enough for the steps that wait for a time.
                    let is_misconfigured = matches!(error.check_result(), CheckResult::Misconfigured(_));
                    let min = if is_misconfigured && !is_ordinary { self.resync_interval } else { MIN_RETRY };
                    retry.next_delay(min, self.resync_interval).saturating_sub(MIN_RETRY)
                }
            };
            drop(turn);
            let next = Instant::now() + DEBOUNCE;
            tokio::time::sleep(pause).await;
            tokio::select! {
                () = event.notified() => {}
                () = tokio::time::sleep(requeue_after) => {}
                changed = backoff::wait_for_change(&mut self.input, failed.as_deref()) => {
                    if changed.is_err() {
                        return;
                    }
                }
                _ = self.snapshot.changed() => {}
                _ = self.rollouts.changed() => {}
            }
            tokio::time::sleep_until(next).await;
        }
    }

    /// Waits until the source Secret may be read: nothing can be planned without it, so nothing else is requested before. A refusal is
    /// reported once, and the permission is then asked for at each resync interval.
    ///
    /// # Errors
    /// When the GatewaySecret is not reconciled any more.
    async fn wait_for_permission(&mut self, mut is_reported: bool) -> Result<(), RecvError> {
        // With a conflict nothing is read.
        while !self.is_permitted && !self.input.borrow_and_update().has_conflict {
            let turn = self.budget.ask().await;
            let entry = self.input.borrow().entry.clone();
            match Box::pin(self.ask(&entry, is_reported)).await {
                None => self.is_permitted = true,
                Some(requests) => self.permissions.wait_after_refusal(requests).await,
            }
            drop(turn);
            self.permissions.record(&entry, self.is_permitted);
            if !self.is_permitted {
                let was_ordinary = self.is_being_adopted(&entry);
                let interval = permission::next_question(was_ordinary, self.resync_interval);
                tokio::select! {
                    () = tokio::time::sleep(interval) => {
                        // From then on it is an error.
                        is_reported = was_ordinary == self.is_being_adopted(&entry);
                    }
                    changed = backoff::wait_for_change(&mut self.input, Some(&entry)) => {
                        changed?;
                        is_reported = false;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the source Secret may be read: `None`, or else the number of requests that were spent.
    async fn ask(&mut self, entry: &Entry, is_reported: bool) -> Option<u32> {
        // Its name is unknown until it is derived, which the same Role permits.
        let name = if entry.source_name().is_empty() { entry.managed_name() } else { entry.source_name() };
        if is_reported {
            let secret = (entry.namespace.as_str(), name);
            return (!permission::is_granted(&self.budget.client, SourceKind::Secret, secret).await).then_some(1);
        }
        let secrets = cluster_state::secrets(&self.budget.client, &entry.namespace);
        let read = timeout(RECONCILE_TIMEOUT, cluster_state::get(&secrets, "secrets", name)).await;
        // A reconcile reports any other failure.
        let refusal = read.ok()?.err().filter(|error| error.has_code(403))?;
        let is_ordinary = self.is_ordinary(&refusal);
        if !is_ordinary {
            let source = SourceOutcome::Unreadable(refusal.check_result());
            self.checks.record(&self.input.borrow(), source, Some(&refusal));
        }
        let _ = timeout(RECONCILE_TIMEOUT, self.report_error(&refusal, is_ordinary)).await;
        Some(REPORTED_REFUSAL)
    }

    fn is_being_adopted(&self, entry: &Entry) -> bool {
        // The status that a reconcile has written arrives later than a refusal may.
        !self.was_permitted && permission::is_being_adopted(entry, Timestamp::now())
    }

    /// Whether a refusal is no error yet, since permissions are granted after the GatewaySecret was created. Condition `Synced` says what to run.
    fn is_ordinary(&self, refusal: &AgentError) -> bool {
        let entry = &self.input.borrow().entry;
        let is_ordinary = self.is_being_adopted(entry);
        let (Entry { namespace, name, .. }, message) = (entry.as_ref(), refusal.condition_message());
        // The same message once.
        let is_said = entry.status.condition(rotation::SYNCED).is_some_and(|condition| condition.message == message);
        if is_ordinary && !is_said {
            tracing::info!(namespace, name, "waiting for permissions: {message}");
        }
        is_ordinary
    }

    /// Watches what was read. Without a permit, changes are found at each resync.
    fn watch(&mut self, names: &WatchedNames, event: &Arc<Notify>) -> Option<(Watches, OwnedSemaphorePermit)> {
        let entry = &self.input.borrow().entry;
        let permit = self.budget.watch(names.number());
        if permit.is_none() && !std::mem::replace(&mut self.is_unwatched, true) {
            let Entry { namespace, name, .. } = entry.as_ref();
            tracing::info!(
                namespace,
                name,
                "not watched: its namespace has too many watches. Changes are found at each resync"
            );
        }
        let permit = permit?;
        let budget = &self.budget;
        Some((Watches::start((&budget.client, &budget.shared_watches), entry, names, event), permit))
    }

    /// Reads the cluster, plans, and applies the steps. Returns when to reconcile again although nothing changes.
    async fn reconcile(&mut self) -> Result<Option<Duration>, AgentError> {
        let ReconcileInput { entry: known, has_conflict } = self.input.borrow_and_update().clone();
        let snapshot = self.snapshot.borrow_and_update().clone();
        // A new snapshot wakes this task.
        if has_conflict || snapshot.unread(&known) == Some(Unread::NotYet) {
            return Ok(None);
        }
        let Some(mut entry) = self.get_current(&known).await? else { return Ok(None) };
        let resolved = resolution::read(&self.budget.client, &entry).await.inspect_err(|error| {
            if matches!(error, AgentError::Unresolved(_)) {
                // Its Certificate was read, and is watched.
                self.is_read = true;
                self.source = SourceOutcome::Unreadable(error.check_result());
            }
        })?;
        if resolved != entry.resolved {
            // Watches and webhooks use the resolved names in the stored status.
            self.leadership.ensure_leader()?;
            let status = GatewaySecretStatus { resolved: Some(resolved), ..entry.status.clone() };
            self.write_status(&entry, &status).await?;
            return Ok(Some(DEBOUNCE));
        }
        // Its labels may have changed since.
        let unread = snapshot.unread(&entry);
        if unread == Some(Unread::NotYet) {
            return Ok(None);
        }
        let read = cluster_state::read_source_secret(&self.budget.client, &entry).await;
        let source = read.inspect_err(|error| self.source = SourceOutcome::Unreadable(error.check_result()))?;
        self.source = SourceOutcome::Read(CheckResult::Ok);
        if let Some(Unread::Failed(reason)) = unread {
            return Err(AgentError::Unlisted(reason));
        }
        let has_explicit_target = entry.policy.probe.target.is_some();
        let probe = snapshot.probe(&entry);
        // A derived target is used as if it were in the policy.
        entry.policy.probe.target = probe.as_ref().ok().map(|probe| probe.reach.clone());
        let others =
            self.cache.registry().map(|registry| registry.others(&entry).cloned().collect()).unwrap_or_default();
        let (client, readers) = (&self.budget.client, snapshot.readers(&entry));
        let mut state = ClusterState::read(client, &entry, source, readers, others).await?;
        self.is_read = true;
        let bundle_targets = trust_bundles::read(&self.budget.client, &entry).await;
        state.bundle_readers = trust_bundles::readers(&entry, &bundle_targets);
        match &probe {
            Ok(probe) => match self.prober.probe(&self.budget.client, &entry, probe, &state).await {
                Ok(result) => state.probe_result = Some(result),
                // After a success a refusal may pass: what was probed must not be forgotten for it.
                Err(error) if error.has_code(403) && !has_explicit_target && !self.prober.has_listed => {
                    state.not_probed = Some(error.condition_message());
                    entry.policy.probe.target = None;
                }
                Err(error) => return Err(error),
            },
            Err(reason) => state.not_probed = Some(reason.clone()),
        }
        // The clock is read after the Secrets: a certificate that was replaced between two reconciles may have been in use until now.
        let now = Timestamp::now();
        state.record_refused(&self.failures.refused_reissues());
        let planner_input = state.snapshot(&entry);
        if let Some(reason) = planner_input.source_fault() {
            self.source = SourceOutcome::Read(CheckResult::Misconfigured(reason));
        }
        let plan = rotation::planner::plan(&planner_input, &state.journal, now);
        // The journal is stored before the steps: a kill in between makes waits longer, never shorter.
        if plan.journal != state.journal {
            self.leadership.ensure_leader()?;
            apply::store_journal(&self.budget.client, &entry, &state, &plan.journal).await?;
        }
        let mut known = entry.clone();
        if let Some(namespaces) = &mut known.status.workload_namespaces {
            namespaces.retain(|namespace| !snapshot.is_unserved(&entry, namespace));
        }
        let observed = observe_status(known, state.stored_objects().chain(snapshot.of(&entry)), now);
        let mut status = rotation::report(&entry, &plan, observed, now);
        if let Some(found) = self.rollouts.borrow_and_update().get(&(entry.namespace.clone(), entry.name.clone())) {
            rotation::rollouts::tell(&entry, found, &mut status, now);
        }
        readiness::report(&entry, &state, &plan, &mut status, now);
        rotation::fit(&entry, &mut status, now);
        let mut outcome = apply::check_single_writer(&entry, &state);
        let mut taken = AppliedSteps::default();
        self.failures.retain(&plan, &entry.spec.trust_bundle_targets);
        if outcome.is_ok() {
            let (client, failures, may_write) =
                (&self.budget.client, &mut self.failures, || self.leadership.ensure_leader());
            outcome = apply::apply_steps(client, &entry, &state, &plan.steps, failures, may_write, &mut taken).await;
        }
        for step in &taken.applied {
            self.recorder.metrics.step_applied(&entry, step);
            tracing::info!(namespace = entry.namespace, name = entry.name, "{}", describe(step));
        }
        if !plan.client_bundle.is_empty() {
            self.leadership.ensure_leader()?;
            let signers = || signers::read(self.signers.as_deref(), now);
            trust_bundles::apply(&entry, bundle_targets, &plan, signers, &mut self.failures).await;
        }
        let synced = match (self.failures.reported(), self.failures.condition_message()) {
            (Some(error), Some(message)) => (ConditionStatus::False, error.reason(), message),
            _ => rotation::synced(&entry),
        };
        if outcome.is_ok() {
            rotation::set(&entry, &mut status, rotation::SYNCED, synced, now);
        }
        // With this, webhooks add the clients' bundle to their Secrets. Steps that depend on that wait until the bundle is in the stored
        // status (`Journal::offered`), so no step waits for this write.
        let stored = match status == entry.status {
            true => Ok(()),
            false => self.update_status(&entry, &mut status).await,
        };
        // Events about a status are recorded once it is stored.
        let reported = if stored.is_ok() { &status } else { &entry.status };
        self.recorder.record(&entry, rotation::notices(&entry, reported, &taken.applied));
        outcome?;
        match stored {
            Ok(()) => match self.failures.reported() {
                None => self.recorder.metrics.reconciled(&entry, now),
                Some(error) => self.recorder.metrics.reconcile_failed(&entry, error),
            },
            Err(StatusError::BackingOff) => {}
            Err(StatusError::Failed(error)) if error.has_code(409) || matches!(error, AgentError::NotLeading) => {
                return Err(error);
            }
            Err(StatusError::Failed(error)) => self.report_error(&error, false).await,
        }
        // The plan shows a refused reissue.
        if !taken.applied.is_empty() || taken.has_new_failure {
            // The next reconcile reads what was written, even if the watch is interrupted.
            return Ok(Some(DEBOUNCE));
        }
        let until = |wake: Timestamp| Duration::try_from(wake.duration_since(now)).unwrap_or_default();
        let wake = plan.wake.map(|wake| until(wake) + Duration::from_millis(1));
        // There is no event when a gateway has loaded a Secret, so the agent probes again after a while.
        let is_unseen = plan.endpoints.is_some_and(|endpoints| endpoints.unreachable > 0);
        let is_probed = entry.policy.probe.target.is_some() && (plan.journal.is_converging() || is_unseen);
        let interval = if plan.journal.is_converged() { probe::CALM_INTERVAL } else { probe::INTERVAL };
        let next_probe = is_probed.then_some(interval);
        let others = plan.awaits_other_gateways.then_some(OTHER_GATEWAYS_INTERVAL);
        let retries = [self.status_backoff.remaining(Instant::now()), self.failures.remaining()];
        Ok(wake.into_iter().chain(next_probe).chain(others).chain(retries.into_iter().flatten()).min())
    }

    /// Writes the status, and a reduced one where it is too large. Steps do not depend on this write: a failed one is retried with
    /// exponential backoff.
    async fn update_status(&mut self, entry: &Entry, status: &mut GatewaySecretStatus) -> Result<(), StatusError> {
        if self.status_backoff.remaining(Instant::now()).is_some() {
            return Err(StatusError::BackingOff);
        }
        self.leadership.ensure_leader()?;
        let mut written = self.write_status(entry, status).await;
        let failure = written.as_ref().err().map(AgentError::condition_message);
        if written.as_ref().is_err_and(AgentError::is_too_large) {
            *status = rotation::reduced(status);
            self.leadership.ensure_leader()?;
            written = self.write_status(entry, status).await;
        }
        if let Some(failure) = &failure {
            if self.status_backoff.is_reset() {
                self.recorder.record(entry, vec![rotation::status_not_written(failure)]);
                tracing::warn!(namespace = entry.namespace, name = entry.name, "status not written: {failure}");
            }
            self.recorder.metrics.status_write_failed(entry);
            self.status_backoff.record_failure(Instant::now(), self.resync_interval);
        } else {
            self.status_backoff = Backoff::default();
        }
        written.map_err(StatusError::Failed)
    }

    async fn write_status(&self, entry: &Entry, status: &GatewaySecretStatus) -> Result<(), AgentError> {
        let write = apply::store_status(&self.budget.client, entry, status);
        timeout(STATUS_TIMEOUT, write).await.unwrap_or(Err(AgentError::NoAnswer))
    }

    /// The stored GatewaySecret. The known one may be outdated while the watch is interrupted.
    async fn get_current(&self, known: &Entry) -> Result<Option<Entry>, AgentError> {
        let read = cluster::current(self.budget.client.clone(), known).await;
        let mut entry = read.map_err(|error| AgentError::api("get", "gatewaysecrets", &known.name, error))?;
        if let (Some(entry), Some(legacy)) = (&mut entry, self.legacy_copy) {
            entry.spec.mode = if legacy { crate::api::Mode::Copy } else { crate::api::Mode::Bundle };
        }
        Ok(entry)
    }

    /// Reports a failed reconcile in the metrics, condition `Synced` and Events. The health checks have logged it. There is no Event about an
    /// ordinary refusal: the right to write it is granted together with the others.
    async fn report_error(&self, error: &AgentError, is_ordinary: bool) {
        let known = self.input.borrow().entry.clone();
        self.recorder.metrics.reconcile_failed(&known, error);
        let Ok(Some(entry)) = self.get_current(&known).await else { return };
        let mut status = entry.status.clone();
        let (condition, now) = ((ConditionStatus::False, error.reason(), error.condition_message()), Timestamp::now());
        rotation::set(&entry, &mut status, rotation::SYNCED, condition, now);
        rotation::fit(&entry, &mut status, now);
        if status != entry.status && self.leadership.is_leader() {
            match apply::store_status(&self.budget.client, &entry, &status).await {
                Ok(()) if is_ordinary => {}
                Ok(()) => self.recorder.record(&entry, rotation::notices(&entry, &status, &[])),
                // The next reconcile writes it.
                Err(error) => tracing::debug!("{error}"),
            }
        }
    }
}
