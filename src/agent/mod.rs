//! The agent: carries rotations through. It reads, asks [`crate::rotation::planner`] what to do, does it, and reads again; all it
//! remembers stands in the cluster, so it may be killed at any instant.

mod apply;
mod backoff;
mod cluster_snapshot;
mod cluster_state;
mod desired_object;
pub mod directory;
mod error;
mod events;
mod gateway_resync;
pub mod lease;
pub mod metrics;
mod owned_objects;
mod probe;
mod rbac;
mod readiness;
mod reconcile_trigger;
mod reconciler;
mod resolution;
mod rollouts;
mod trust_bundles;
mod watches;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, timeout};

use crate::registry::{Entry, Registry};
use crate::rotation::{self, Inventory, Outlook};
use crate::store::RegistryCache;
use cluster_snapshot::ClusterSnapshot;
use events::EventRecorder;
use lease::Leadership;
use probe::Prober;
use reconcile_trigger::Known;
use reconciler::Reconciler;
use rollouts::RolloutStatuses;

pub use apply::reissue;
pub use error::AgentError;
pub use rbac::{reader_role, role};

/// Field manager of what the agent writes.
const MANAGER: &str = "trustspan-agent";
/// The most that one look may take, with all that it writes.
const TICK: Duration = Duration::from_secs(30);

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
    live: Arc<RegistryCache>,
    mut leadership: Leadership,
    settings: Settings,
    tally: Arc<metrics::AgentMetrics>,
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
async fn keep_all(
    client: &Client,
    live: &RegistryCache,
    leadership: &Leadership,
    settings: &Settings,
    teller: &EventRecorder,
) {
    let (around, surroundings) = watch::channel(Arc::new(ClusterSnapshot::default()));
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
    live: &RegistryCache,
    leadership: &Leadership,
    settings: &Settings,
    around: watch::Sender<Arc<ClusterSnapshot>>,
) {
    let mut ticks = tokio::time::interval(settings.poll);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let registry = live.awaited().await;
        let look = async {
            let before = around.borrow().clone();
            let seen = ClusterSnapshot::read(client, registry.entries(), &before).await;
            gateway_resync::mend(client, leadership, &seen, &registry, settings).await;
            around.send_replace(Arc::new(seen));
        };
        if timeout(TICK, look).await.is_err() {
            tracing::warn!("the API server does not answer");
        }
    }
}

async fn keep_each(
    client: &Client,
    live: &RegistryCache,
    leadership: &Leadership,
    settings: &Settings,
    surroundings: watch::Receiver<Arc<ClusterSnapshot>>,
    rounds: watch::Receiver<Arc<RolloutStatuses>>,
    teller: &EventRecorder,
) {
    let mut published = live.published();
    let mut kept: BTreeMap<(String, String), Kept> = BTreeMap::new();
    while published.changed().await.is_ok() {
        let Some(registry) = live.registry() else { continue };
        kept.retain(|key, _| find(&registry, key).is_some());
        let is_ours = |entry: &&Entry| settings.keeps(entry);
        for entry in registry.entries().iter().filter(is_ours) {
            let key = (entry.namespace.clone(), entry.name.clone());
            let names = cluster_state::WatchedNames::of(entry);
            match kept.get(&key).filter(|kept| kept.names == names) {
                Some(kept) => reconcile_trigger::renew(&kept.known, entry, &registry),
                None => {
                    let (sender, receiver) = watch::channel(Known::of(entry, &registry));
                    let keeper = Reconciler {
                        client: client.clone(),
                        leadership: leadership.clone(),
                        surroundings: surroundings.clone(),
                        rounds: rounds.clone(),
                        known: receiver,
                        teller: teller.clone(),
                        poll: settings.poll,
                        legacy_copy: settings.legacy_copy,
                        lookout: Prober::default(),
                        status_backoff: backoff::Backoff::default(),
                    };
                    let mut tasks = JoinSet::new();
                    tasks.spawn(keeper.keep(names.clone()));
                    kept.insert(key, Kept { names, known: sender, _tasks: tasks });
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
    names: cluster_state::WatchedNames,
    known: watch::Sender<Known>,
    _tasks: JoinSet<()>,
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

fn sentence(step: &rotation::planner::Step) -> String {
    use rotation::planner::{PairOf, Step};
    match step {
        Step::WriteManaged { trust, pair: PairOf::Managed } => format!("managed Secret written: {} CA(s)", trust.len()),
        Step::WriteManaged { trust, pair: PairOf::Root } => {
            format!("managed Secret written: {} CA(s), with the root's leaf", trust.len())
        }
        Step::WriteSibling { trust } => format!("managed -cacert Secret written: {} CA(s)", trust.len()),
        Step::WriteConfigMap { source, trust } => {
            format!("ConfigMap kept from {source} written: {} CA(s)", trust.len())
        }
        Step::CopyRoot => "managed Secret written: a copy of the root".to_owned(),
        Step::PromoteIssuer => "the Issuer's Secret has the new CA".to_owned(),
        Step::Reissue { certificate } => format!("Certificate {certificate} is being re-issued"),
    }
}
