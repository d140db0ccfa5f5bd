//! The agent: carries rotations through. It reads, asks [`crate::rotation::next`] what to do, does it, and reads again; all it
//! remembers stands in the cluster, so it may be killed at any instant.

mod content;
pub mod directory;
mod error;
mod events;
mod kept;
pub mod lease;
pub mod metrics;
mod retry;
mod rights;
mod rollouts;
mod surroundings;
mod sweep;
mod watches;
mod wire;
mod world;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, timeout};

use crate::api::ConditionStatus;
use crate::registry::{Entry, Registry};
use crate::rotation::{self, Inventory, Outlook};
use crate::store::{Live, cluster};
use events::Teller;
use lease::Leadership;
use retry::Retry;
use rollouts::Rounds;
use surroundings::Surroundings;
use wire::Lookout;
use world::World;

pub use error::AgentError;
pub use rights::role;
pub use write::reissue;

/// Field manager of what the agent writes.
const MANAGER: &str = "trustspan-agent";
/// Events come in flocks: a rotation at cert-manager is several writes.
const GATHER: Duration = Duration::from_millis(20);
/// The most that one look may take, with all that it writes.
const TICK: Duration = Duration::from_secs(30);
/// After an error, at least.
const RETRY: Duration = Duration::from_secs(2);

/// The agent's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Only GatewaySecrets in these namespaces are kept; empty: all.
    pub namespaces: Vec<String>,
    /// At least so often everything is looked at, should an event be lost.
    pub poll: Duration,
    /// `Some(true)`: every GatewaySecret is treated as of mode `Copy`; `Some(false)`: as of mode `Bundle`.
    pub legacy_copy: Option<bool>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { namespaces: Vec::new(), poll: Duration::from_secs(30), legacy_copy: None }
    }
}

impl Settings {
    /// Whether a GatewaySecret is kept.
    fn keeps(&self, entry: &Entry) -> bool {
        !entry.being_deleted && (self.namespaces.is_empty() || self.namespaces.contains(&entry.namespace))
    }
}

/// Keeps the GatewaySecrets of `live` while this process leads, and counts what it does.
pub async fn run(
    client: Client,
    live: Arc<Live>,
    mut leadership: Leadership,
    settings: Settings,
    tally: Arc<metrics::Tally>,
) {
    let (teller, telling) = events::teller(client.clone(), tally);
    let keeping = async {
        loop {
            leadership.gained().await;
            let mut end = leadership.clone();
            tokio::select! {
                () = end.lost() => {}
                () = keep_all(&client, &live, &leadership, &settings, &teller) => {}
            }
        }
    };
    tokio::join!(telling, keeping);
}

/// Looks around, and keeps one task for each GatewaySecret; all end with this one.
async fn keep_all(client: &Client, live: &Live, leadership: &Leadership, settings: &Settings, teller: &Teller) {
    let (around, surroundings) = watch::channel(Arc::new(Surroundings::default()));
    let (round, rounds) = watch::channel(Arc::default());
    tokio::join!(
        look_around(client, live, leadership, settings, around),
        rollouts::keep(client, live, leadership, settings, teller, round),
        keep_each(client, live, leadership, settings, surroundings, rounds, teller),
    );
}

/// Reads the surroundings again and again, and mends Gateways that slipped by.
async fn look_around(
    client: &Client,
    live: &Live,
    leadership: &Leadership,
    settings: &Settings,
    around: watch::Sender<Arc<Surroundings>>,
) {
    let mut published = live.published();
    while live.registry().is_none() && published.changed().await.is_ok() {}
    let mut ticks = tokio::time::interval(settings.poll);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(registry) = live.registry() else { continue };
        let look = async {
            let seen = Surroundings::read(client, registry.entries()).await;
            sweep::mend(client, leadership, &seen, &registry, settings).await;
            around.send_replace(Arc::new(seen));
        };
        if timeout(TICK, look).await.is_err() {
            tracing::warn!("the API server does not answer");
        }
    }
}

async fn keep_each(
    client: &Client,
    live: &Live,
    leadership: &Leadership,
    settings: &Settings,
    surroundings: watch::Receiver<Arc<Surroundings>>,
    rounds: watch::Receiver<Arc<Rounds>>,
    teller: &Teller,
) {
    let mut published = live.published();
    let mut kept: BTreeMap<(String, String), Kept> = BTreeMap::new();
    while published.changed().await.is_ok() {
        let Some(registry) = live.registry() else { continue };
        kept.retain(|key, _| find(&registry, key).is_some());
        let is_ours = |entry: &&Entry| settings.keeps(entry);
        for entry in registry.entries().iter().filter(is_ours) {
            let key = (entry.namespace.clone(), entry.name.clone());
            let names = world::names(entry);
            match kept.get(&key).filter(|kept| kept.names == names) {
                Some(kept) => {
                    kept.registry.send_replace((entry.clone(), registry.clone()));
                }
                None => {
                    let (sender, receiver) = watch::channel((entry.clone(), registry.clone()));
                    let keeper = Keeper {
                        client: client.clone(),
                        leadership: leadership.clone(),
                        surroundings: surroundings.clone(),
                        rounds: rounds.clone(),
                        entry: receiver,
                        teller: teller.clone(),
                        poll: settings.poll,
                        legacy_copy: settings.legacy_copy,
                        lookout: Lookout::default(),
                    };
                    let mut tasks = JoinSet::new();
                    tasks.spawn(keeper.keep(names.clone()));
                    kept.insert(key, Kept { names, registry: sender, _tasks: tasks });
                }
            }
        }
    }
}

fn find<'r>(registry: &'r Registry, (namespace, name): &(String, String)) -> Option<&'r Entry> {
    let entries = registry.entries().iter().filter(|entry| !entry.being_deleted);
    entries.into_iter().find(|entry| entry.namespace == *namespace && entry.name == *name)
}

/// A task that keeps a GatewaySecret. Ends when dropped.
struct Kept {
    names: Vec<String>,
    registry: watch::Sender<(Entry, Arc<Registry>)>,
    _tasks: JoinSet<()>,
}

/// Keeps one GatewaySecret.
struct Keeper {
    client: Client,
    leadership: Leadership,
    surroundings: watch::Receiver<Arc<Surroundings>>,
    rounds: watch::Receiver<Arc<Rounds>>,
    entry: watch::Receiver<(Entry, Arc<Registry>)>,
    teller: Teller,
    poll: Duration,
    legacy_copy: Option<bool>,
    lookout: Lookout,
}

impl Keeper {
    async fn keep(mut self, names: Vec<String>) {
        let event = Arc::new(Notify::new());
        let _watches = watches::start(&self.client, &self.entry.borrow().0, names, &event);
        let mut retry = Retry::default();
        loop {
            // Cut off at any place, as by a kill, it goes on right.
            let looked = timeout(TICK, self.tick()).await.unwrap_or(Err(AgentError::NoAnswer));
            let failed = looked.is_err().then(|| self.entry.borrow().0.clone());
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
                changed = retry::changed(&mut self.entry, failed.as_ref()) => {
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
        let (known, registry) = self.entry.borrow_and_update().clone();
        let around = self.surroundings.borrow_and_update().clone();
        if registry.conflict(&known).is_some() {
            return Ok(None);
        }
        let Some(entry) = self.current(&known).await? else { return Ok(None) };
        let mut world = World::read(&self.client, &entry).await?;
        world.wire = self.lookout.look(&self.client, &entry, &world).await?;
        // After all was read: what is seen to be replaced was in use until then.
        let now = Timestamp::now();
        let plan = rotation::next::next(&world.seen(&entry), &world.journal, now);
        // First what is remembered, then what was decided on: whoever comes after a kill in between waits longer, never shorter.
        if plan.journal != world.journal {
            self.leading()?;
            write::journal(&self.client, &entry, &world, &plan.journal).await?;
        }
        let seen = observed_with(&entry, world.held_objects().chain(around.of(&entry)), now);
        let mut status = rotation::report(&entry, &plan, seen, now);
        if let Some(found) = self.rounds.borrow_and_update().get(&(entry.namespace.clone(), entry.name.clone())) {
            rotation::rollouts::tell(&entry, found, &mut status, now);
        }
        if status.client_bundle != entry.status.client_bundle {
            // Webhooks are to give it to clients before anything relies on that.
            self.leading()?;
            write::status(&self.client, &entry, &status).await?;
        }
        let mut outcome = Ok(());
        let mut taken = 0;
        for step in &plan.steps {
            self.leading()?;
            outcome = write::take(&self.client, &entry, &world, step, now).await;
            if outcome.is_err() {
                break;
            }
            taken += 1;
            self.teller.tally.wrote(&entry, step);
            tracing::info!(namespace = entry.namespace, name = entry.name, "{}", sentence(step));
        }
        if !plan.client_bundle.is_empty() {
            self.leading()?;
            outcome = outcome.and(write::distribute(&self.client, &entry, &plan.client_bundle).await);
        }
        if outcome.is_ok() {
            rotation::set(&entry, &mut status, rotation::SYNCED, rotation::synced(&entry), now);
        }
        let mut stored = Ok(());
        if status != entry.status {
            self.leading()?;
            stored = write::status(&self.client, &entry, &status).await;
        }
        // What status does not say yet is told once it does.
        let said = if stored.is_ok() { &status } else { &entry.status };
        self.teller.tell(&entry, rotation::notices(&entry, said, &plan.steps[..taken]));
        stored?;
        outcome?;
        self.teller.tally.looked(&entry, now);
        if !plan.steps.is_empty() {
            // What was written shows in the next look; the watch may be cut.
            return Ok(Some(GATHER));
        }
        let until = |wake: Timestamp| Duration::try_from(wake.duration_since(now)).unwrap_or_default();
        let wake = plan.wake.map(|wake| until(wake) + Duration::from_millis(1));
        // Nobody tells when a gateway has loaded something.
        let look = (entry.spec.reach.is_some() && plan.journal.is_converging()).then_some(wire::PACE);
        Ok(wake.into_iter().chain(look).min())
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
        let known = self.entry.borrow().0.clone();
        tracing::warn!(namespace = known.namespace, name = known.name, "{}", error.advice(&known));
        self.teller.tally.failed(&known, error);
        let Ok(Some(entry)) = self.current(&known).await else { return };
        let mut status = entry.status.clone();
        let said = (ConditionStatus::False, error.reason(), error.advice(&entry));
        rotation::set(&entry, &mut status, rotation::SYNCED, said, Timestamp::now());
        if status != entry.status && self.leading().is_ok() {
            match write::status(&self.client, &entry, &status).await {
                Ok(()) => self.teller.tell(&entry, rotation::notices(&entry, &status, &[])),
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }

    fn leading(&self) -> Result<(), AgentError> {
        if self.leadership.holds() { Ok(()) } else { Err(AgentError::NotLeading) }
    }
}

/// The status that objects show.
fn observed_with<'o>(
    entry: &Entry,
    objects: impl Iterator<Item = &'o serde_json::Value>,
    now: Timestamp,
) -> crate::api::GatewaySecretStatus {
    let mut inventory = Inventory::new([entry.clone()]);
    objects.for_each(|object| inventory.take(object, &entry.namespace, now));
    let registry = inventory.into_registry(Outlook::Secrets, now);
    registry.entries().first().map(|entry| entry.status.clone()).unwrap_or_default()
}

fn sentence(step: &rotation::next::Step) -> String {
    use rotation::next::{PairOf, Step};
    match step {
        Step::WriteManaged { trust, pair: PairOf::Managed } => format!("managed Secret written: {} CA(s)", trust.len()),
        Step::WriteManaged { trust, pair: PairOf::Root } => {
            format!("managed Secret written: {} CA(s), with the root's leaf", trust.len())
        }
        Step::CopyRoot => "managed Secret written: a copy of the root".to_owned(),
        Step::PromoteIssuer => "the Issuer's Secret has the new CA".to_owned(),
        Step::Reissue { certificate } => format!("Certificate {certificate} is being re-issued"),
    }
}
