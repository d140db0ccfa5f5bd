//! Keeps one GatewaySecret.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use super::backoff::{self, Backoff, Retry};
use super::cluster_snapshot::ClusterSnapshot;
use super::cluster_state::{ClusterState, WatchedNames};
use super::events::EventRecorder;
use super::lease::Leadership;
use super::probe::{self, Prober};
use super::reconcile_trigger::Known;
use super::rollouts::RolloutStatuses;
use super::trust_bundles;
use super::{AgentError, TICK, apply, observed_with, readiness, resolution, sentence, watches};
use crate::api::{ConditionStatus, GatewaySecretStatus};
use crate::registry::Entry;
use crate::rotation;
use crate::store::cluster;

/// Events come in flocks: a rotation at cert-manager is several writes.
const GATHER: Duration = Duration::from_millis(20);
/// After an error, at least.
const RETRY: Duration = Duration::from_secs(2);

/// Why a status is not stored.
enum Unreported {
    /// Its turn has not come: the last write failed.
    Waiting,
    /// The API server refused it, or failed.
    Failed(AgentError),
}

impl From<AgentError> for Unreported {
    fn from(error: AgentError) -> Self {
        Self::Failed(error)
    }
}

/// The most that one write of a status may take.
const STORE: Duration = Duration::from_secs(5);

/// Keeps one GatewaySecret.
pub(super) struct Reconciler {
    pub(super) client: Client,
    pub(super) leadership: Leadership,
    pub(super) surroundings: watch::Receiver<Arc<ClusterSnapshot>>,
    pub(super) rounds: watch::Receiver<Arc<RolloutStatuses>>,
    pub(super) known: watch::Receiver<Known>,
    pub(super) teller: EventRecorder,
    pub(super) poll: Duration,
    pub(super) legacy_copy: Option<bool>,
    pub(super) lookout: Prober,
    pub(super) status_backoff: Backoff,
}

impl Reconciler {
    pub(super) async fn keep(mut self, names: WatchedNames) {
        let event = Arc::new(Notify::new());
        let _watches = watches::start(&self.client, &self.known.borrow().entry, names, &event);
        let mut retry = Retry::default();
        loop {
            // Cut off at any place, as by a kill, it goes on right.
            let looked = timeout(TICK, self.tick()).await.unwrap_or(Err(AgentError::NoAnswer));
            let failed = looked.is_err().then(|| self.known.borrow().entry.clone());
            let rest = match looked {
                Ok(next) => {
                    retry = Retry::default();
                    next.unwrap_or(self.poll).min(self.poll)
                }
                // Perhaps for a moment only; if for good, this task is ended.
                Err(AgentError::NotLeading) => RETRY.min(self.poll),
                // Somebody was faster: look again.
                Err(error) if error.is(409) => retry.rest(GATHER, self.poll),
                Err(error) => {
                    // An API server that does not answer does not take this, either.
                    let _ = timeout(TICK, self.complain(&error)).await;
                    tokio::time::sleep(RETRY.min(self.poll)).await;
                    retry.rest(RETRY, self.poll).saturating_sub(RETRY)
                }
            };
            tokio::select! {
                () = event.notified() => {}
                () = tokio::time::sleep(rest) => {}
                changed = backoff::changed(&mut self.known, failed.as_ref()) => {
                    if changed.is_err() {
                        return;
                    }
                }
                _ = self.surroundings.changed() => {}
                _ = self.rounds.changed() => {}
            }
            tokio::time::sleep(GATHER).await;
        }
    }

    /// Looks, decides, writes. In how much time to look again, when time alone changes something.
    async fn tick(&mut self) -> Result<Option<Duration>, AgentError> {
        let Known { entry: known, is_held_off } = self.known.borrow_and_update().clone();
        let around = self.surroundings.borrow_and_update().clone();
        if is_held_off {
            return Ok(None);
        }
        let Some(mut entry) = self.current(&known).await? else { return Ok(None) };
        let resolved = resolution::read(&self.client, &entry).await?;
        if resolved != entry.resolved {
            // Watches and webhooks go by what is stored.
            self.leading()?;
            let status = GatewaySecretStatus { resolved: Some(resolved), ..entry.status.clone() };
            self.store(&entry, &status).await?;
            return Ok(Some(GATHER));
        }
        let is_told = entry.policy.probe.target.is_some();
        let probe = around.probe(&entry);
        // What is found counts as if it was told.
        entry.policy.probe.target = probe.as_ref().ok().map(|probe| probe.reach.clone());
        let mut world = ClusterState::read(&self.client, &entry, around.readers(&entry)).await?;
        let distributed = trust_bundles::read(&self.client, &entry).await;
        world.bundle_readers = trust_bundles::readers(&entry, &distributed);
        match &probe {
            Ok(probe) => match self.lookout.look(&self.client, &entry, probe, &world).await {
                Ok(wire) => world.wire = wire,
                Err(error) if error.is(403) && !is_told => {
                    world.unprobed = Some(error.advice());
                    entry.policy.probe.target = None;
                }
                Err(error) => return Err(error),
            },
            Err(why) => world.unprobed = Some(why.clone()),
        }
        // After all was read: what is seen to be replaced was in use until then.
        let now = Timestamp::now();
        let plan = rotation::planner::plan(&world.seen(&entry), &world.journal, now);
        // First what is remembered, then what was decided on: whoever comes after a kill in between waits longer, never shorter.
        if plan.journal != world.journal {
            self.leading()?;
            apply::journal(&self.client, &entry, &world, &plan.journal).await?;
        }
        let seen = observed_with(&entry, world.held_objects().chain(around.of(&entry)), now);
        let mut status = rotation::report(&entry, &plan, seen, now);
        if let Some(found) = self.rounds.borrow_and_update().get(&(entry.namespace.clone(), entry.name.clone())) {
            rotation::rollouts::tell(&entry, found, &mut status, now);
        }
        readiness::report(&entry, &world, &plan, &mut status, now);
        rotation::fit(&entry, &mut status, now);
        let mut stored = Ok(());
        if status.client_bundle != entry.status.client_bundle {
            // Webhooks are to give it to clients before anything relies on that. Steps that do wait until it is seen in the stored
            // status (`Journal::offered`), so the others need not wait for this write.
            stored = self.report(&entry, &mut status).await;
        }
        let mut outcome = apply::has_one_writer(&entry, &world);
        let mut taken = 0;
        let steps = if outcome.is_ok() { plan.steps.as_slice() } else { &[] };
        for step in steps {
            self.leading()?;
            outcome = apply::take(&self.client, &entry, &world, step, now).await;
            if outcome.is_err() {
                break;
            }
            taken += 1;
            self.teller.tally.wrote(&entry, step);
            tracing::info!(namespace = entry.namespace, name = entry.name, "{}", sentence(step));
        }
        if !plan.client_bundle.is_empty() {
            self.leading()?;
            outcome = outcome.and(trust_bundles::keep(&entry, distributed, &plan).await);
        }
        if outcome.is_ok() {
            rotation::set(&entry, &mut status, rotation::SYNCED, rotation::synced(&entry), now);
        }
        if stored.is_ok() && status != entry.status {
            stored = self.report(&entry, &mut status).await;
        }
        // Events on what status does not say yet follow once it does.
        let said = if stored.is_ok() { &status } else { &entry.status };
        self.teller.tell(&entry, rotation::notices(&entry, said, &plan.steps[..taken]));
        outcome?;
        match stored {
            Ok(()) => self.teller.tally.looked(&entry, now),
            Err(Unreported::Waiting) => {}
            Err(Unreported::Failed(error)) if error.is(409) || matches!(error, AgentError::NotLeading) => {
                return Err(error);
            }
            Err(Unreported::Failed(error)) => self.complain(&error).await,
        }
        if !plan.steps.is_empty() {
            // What was written shows in the next look; the watch may be cut.
            return Ok(Some(GATHER));
        }
        let until = |wake: Timestamp| Duration::try_from(wake.duration_since(now)).unwrap_or_default();
        let wake = plan.wake.map(|wake| until(wake) + Duration::from_millis(1));
        // Nobody tells when a gateway has loaded something.
        let look = (entry.policy.probe.target.is_some() && plan.journal.is_converging()).then_some(probe::PACE);
        Ok(wake.into_iter().chain(look).chain(self.status_backoff.rest(Instant::now())).min())
    }

    /// Stores the status, a reduced one where it is too large. Steps do not wait for one that cannot be stored: it is tried again
    /// later, ever more rarely.
    async fn report(&mut self, entry: &Entry, status: &mut GatewaySecretStatus) -> Result<(), Unreported> {
        if self.status_backoff.rest(Instant::now()).is_some() {
            return Err(Unreported::Waiting);
        }
        self.leading()?;
        let mut written = self.store(entry, status).await;
        let failure = written.as_ref().err().map(|error| error.advice());
        if written.as_ref().is_err_and(AgentError::is_too_large) {
            *status = rotation::reduced(status);
            self.leading()?;
            written = self.store(entry, status).await;
        }
        if let Some(failure) = &failure {
            if self.status_backoff.is_first() {
                self.teller.tell(entry, vec![rotation::status_not_written(failure)]);
            }
            tracing::warn!(namespace = entry.namespace, name = entry.name, "status not written: {failure}");
            self.teller.tally.status_not_written(entry);
            self.status_backoff.failed(Instant::now(), self.poll);
        } else {
            self.status_backoff = Backoff::default();
        }
        written.map_err(Unreported::Failed)
    }

    /// Writes a status, in a time that leaves enough of the look for its steps.
    async fn store(&self, entry: &Entry, status: &GatewaySecretStatus) -> Result<(), AgentError> {
        timeout(STORE, apply::status(&self.client, entry, status)).await.unwrap_or(Err(AgentError::NoAnswer))
    }

    /// The GatewaySecret as it stands. A watch that is cut would hide its changes, and which status is stored already.
    async fn current(&self, known: &Entry) -> Result<Option<Entry>, AgentError> {
        let read = cluster::current(self.client.clone(), known).await;
        let mut entry = read.map_err(|error| AgentError::api("get", "gatewaysecrets", &known.name, error))?;
        if let (Some(entry), Some(legacy)) = (&mut entry, self.legacy_copy) {
            entry.spec.mode = if legacy { crate::api::Mode::Copy } else { crate::api::Mode::Bundle };
        }
        Ok(entry)
    }

    /// Says why nothing was done, in the status too.
    async fn complain(&self, error: &AgentError) {
        let known = self.known.borrow().entry.clone();
        tracing::warn!(namespace = known.namespace, name = known.name, "{}", error.advice());
        self.teller.tally.failed(&known, error);
        let Ok(Some(entry)) = self.current(&known).await else { return };
        let mut status = entry.status.clone();
        let (said, now) = ((ConditionStatus::False, error.reason(), error.advice()), Timestamp::now());
        rotation::set(&entry, &mut status, rotation::SYNCED, said, now);
        rotation::fit(&entry, &mut status, now);
        if status != entry.status && self.leading().is_ok() {
            match apply::status(&self.client, &entry, &status).await {
                Ok(()) => self.teller.tell(&entry, rotation::notices(&entry, &status, &[])),
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }

    fn leading(&self) -> Result<(), AgentError> {
        if self.leadership.holds() { Ok(()) } else { Err(AgentError::NotLeading) }
    }
}
