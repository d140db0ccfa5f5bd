//! The rotation controller. A reconcile reads the cluster, computes the next steps with [`crate::rotation::planner`] and writes them. All
//! state is stored in the cluster, so the process can be killed at any time.

mod apply;
mod backoff;
mod budget;
mod cluster_snapshot;
mod cluster_state;
mod consent;
mod consumer_metrics;
mod desired_object;
pub mod directory;
mod error;
mod events;
mod gateway_pods;
mod gateway_resync;
pub mod lease;
pub mod metrics;
mod owned_objects;
pub(crate) mod permission;
mod probe;
mod rbac;
mod readiness;
mod reconcile_trigger;
mod reconciler;
mod reconciler_checks;
mod resolution;
mod rollouts;
mod serving_certificate;
pub mod state_directory;
mod trust_bundles;
mod trust_consumers;
mod watches;
mod write_failures;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, sleep, timeout};

use crate::api::Mode;
use crate::certgen::Profile;
use crate::registry::Entry;
use crate::rotation::{self, Inventory, Outlook, counted};
use crate::store::{HealthState, RegistryCache};
use budget::Budgets;
use cluster_snapshot::ClusterSnapshot;
use events::EventRecorder;
use lease::Leadership;
use permission::Permissions;
use probe::Prober;
use reconcile_trigger::ReconcileInput;
use reconciler::Reconciler;
use reconciler_checks::{ReconcilerChecks, SourceOutcome};
use rollouts::RolloutStatuses;

pub use apply::reissue;
pub use cluster_state::issued_ca;
pub use consent::Consent;
pub use error::AgentError;
pub use rbac::{Rights, ServiceAccount, consumer_role, reader_role, role};

/// Field manager of the agent's writes.
const FIELD_MANAGER: &str = "trustspan-agent";
/// Timeout of one reconcile, with all its writes.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(30);
/// Permissions that are granted within this time cause one read of the cluster snapshot.
const GRANT_DEBOUNCE: Duration = Duration::from_secs(1);

/// The controller's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Only GatewaySecrets and TrustConsumers in these namespaces are reconciled; empty: all.
    pub namespaces: Vec<String>,
    /// Full resync interval, in case a watch lost an event.
    pub poll: Duration,
    /// `Some(true)`: every GatewaySecret is treated as mode `Copy`; `Some(false)`: as mode `Bundle`.
    pub legacy_copy: Option<bool>,
    /// Workloads of TrustConsumers whose rollouts may be in progress at the same time, over all namespaces.
    pub max_concurrent_restarts: usize,
    /// File of the CAs that may leave a namespace, with those that they signed. Without it, all may.
    pub signers: Option<PathBuf>,
    /// The profile of the webhook's serving certificate, if the agent keeps it.
    pub serving_certificate: Option<Profile>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            namespaces: Vec::new(),
            poll: Duration::from_secs(30),
            legacy_copy: None,
            max_concurrent_restarts: 1,
            signers: None,
            serving_certificate: None,
        }
    }
}

impl Settings {
    /// Whether a GatewaySecret is reconciled.
    fn includes(&self, entry: &Entry) -> bool {
        !entry.being_deleted && (self.namespaces.is_empty() || self.namespaces.contains(&entry.namespace))
    }
}

/// Reconciles the GatewaySecrets of `cache` while this process is the leader, and adds the checks of each to `health`.
pub async fn run(
    client: Client,
    cache: Arc<RegistryCache>,
    mut leadership: Leadership,
    settings: Settings,
    metrics: Arc<metrics::AgentMetrics>,
    health: Arc<HealthState>,
) {
    let (recorder, record_events) = events::recorder(client.clone(), metrics);
    let reconcile = async {
        loop {
            leadership.acquired().await;
            let mut end = leadership.clone();
            tokio::select! {
                () = end.lost() => tracing::warn!("leadership lost: reconciles stop until this process leads again"),
                () = run_as_leader(&client, &cache, &leadership, &settings, &recorder, &health) => {}
            }
        }
    };
    tokio::join!(record_events, reconcile);
}

/// Runs one reconciler for each GatewaySecret, what they share, and the one for TrustConsumers. All tasks end with this one.
async fn run_as_leader(
    client: &Client,
    cache: &Arc<RegistryCache>,
    leadership: &Leadership,
    settings: &Settings,
    recorder: &EventRecorder,
    health: &Arc<HealthState>,
) {
    let (snapshot_sender, snapshot) = watch::channel(Arc::new(ClusterSnapshot::default()));
    let (rollouts_sender, rollouts) = watch::channel(Arc::default());
    let permissions = Arc::new(Permissions::default());
    let budgets = Budgets::new(client.clone(), settings.poll);
    tokio::join!(
        refresh_snapshot(client, cache, leadership, settings, &permissions, snapshot_sender),
        rollouts::run(client, cache, leadership, settings, (recorder, &permissions), rollouts_sender),
        run_reconcilers(&budgets, cache, leadership, settings, (snapshot, rollouts), (recorder, health, &permissions)),
        trust_consumers::run((client, &budgets), leadership, settings, recorder),
        serving_certificate::run(client, leadership, settings, (health, &recorder.metrics)),
    );
}

/// Reads the cluster snapshot at each resync interval and after permissions were granted, and resyncs Gateways that the webhook missed.
async fn refresh_snapshot(
    client: &Client,
    cache: &RegistryCache,
    leadership: &Leadership,
    settings: &Settings,
    permissions: &Permissions,
    sender: watch::Sender<Arc<ClusterSnapshot>>,
) {
    let mut granted = permissions.subscribe();
    let mut interval = tokio::time::interval(settings.poll);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            _ = granted.changed() => sleep(GRANT_DEBOUNCE.min(settings.poll)).await,
        }
        granted.mark_unchanged();
        let registry = cache.wait_for_registry().await;
        let refresh = async {
            let before = sender.borrow().clone();
            let entries = registry.entries().iter().map(Arc::as_ref);
            let permitted: Vec<_> = entries.filter(|entry| permissions.has(entry)).collect();
            let snapshot = ClusterSnapshot::read(client, &permitted, &before).await;
            gateway_resync::resync(client, leadership, &snapshot, &registry, settings).await;
            // A change wakes all reconcilers.
            sender.send_if_modified(|before| {
                let is_changed = **before != snapshot;
                *before = Arc::new(snapshot);
                is_changed
            });
        };
        if timeout(RECONCILE_TIMEOUT, refresh).await.is_err() {
            tracing::warn!(
                "Gateways, Services and pods were not listed within {} s. GatewaySecrets without an earlier list wait",
                RECONCILE_TIMEOUT.as_secs()
            );
        }
    }
}

async fn run_reconcilers(
    budgets: &Budgets,
    cache: &Arc<RegistryCache>,
    leadership: &Leadership,
    settings: &Settings,
    (snapshot, rollouts): (watch::Receiver<Arc<ClusterSnapshot>>, watch::Receiver<Arc<RolloutStatuses>>),
    (recorder, health, permissions): (&EventRecorder, &Arc<HealthState>, &Arc<Permissions>),
) {
    let mut published = cache.subscribe();
    let mut running: BTreeMap<(String, String), RunningReconciler> = BTreeMap::new();
    while published.changed().await.is_ok() {
        let Some(registry) = cache.registry() else { continue };
        let key_of = |entry: &Entry| (entry.namespace.clone(), entry.name.clone());
        let included: Vec<_> = registry.entries().iter().filter(|entry| settings.includes(entry)).collect();
        let keys: BTreeSet<_> = included.iter().map(|entry| key_of(entry)).collect();
        running.retain(|key, _| keys.contains(key));
        permissions.retain(|key| keys.contains(key));
        for entry in included {
            let key = key_of(entry);
            match running.get(&key).filter(|reconciler| reconciler.watches(entry)) {
                Some(reconciler) => reconcile_trigger::update(&reconciler.input, entry, &registry),
                None => {
                    if let Some(warning) = settings.legacy_copy.and_then(|copy| copy_warning(entry, copy)) {
                        tracing::warn!(namespace = entry.namespace, name = entry.name, "{warning}");
                    }
                    let names = cluster_state::WatchedNames::of(entry);
                    let (sender, receiver) = watch::channel(ReconcileInput::of(entry, &registry));
                    let reconciler = Reconciler {
                        budget: budgets.of(&entry.namespace),
                        permissions: permissions.clone(),
                        is_permitted: false,
                        leadership: leadership.clone(),
                        snapshot: snapshot.clone(),
                        rollouts: rollouts.clone(),
                        input: receiver,
                        cache: cache.clone(),
                        recorder: recorder.clone(),
                        resync_interval: settings.poll,
                        legacy_copy: settings.legacy_copy,
                        signers: settings.signers.clone(),
                        prober: Prober::default(),
                        status_backoff: backoff::Backoff::default(),
                        failures: write_failures::WriteFailures::new(settings.poll),
                        checks: ReconcilerChecks::new(health.clone()),
                        source: SourceOutcome::default(),
                        is_read: false,
                        was_permitted: false,
                        is_unwatched: false,
                    };
                    let mut tasks = JoinSet::new();
                    tasks.spawn(reconciler.run(names.clone()));
                    running.insert(key, RunningReconciler { names, input: sender, _tasks: tasks });
                }
            }
        }
    }
}

/// The task of a [`Reconciler`]. Ends when dropped.
struct RunningReconciler {
    names: cluster_state::WatchedNames,
    input: watch::Sender<ReconcileInput>,
    _tasks: JoinSet<()>,
}

impl RunningReconciler {
    /// Whether it watches what the GatewaySecret names now.
    fn watches(&self, entry: &Arc<Entry>) -> bool {
        Arc::ptr_eq(&self.input.borrow().entry, entry) || self.names == cluster_state::WatchedNames::of(entry)
    }
}

/// What flag `--legacy-copy` changes for a GatewaySecret that was in mode `Bundle`: said before the managed Secret is written.
fn copy_warning(entry: &Entry, copy: bool) -> Option<String> {
    if !copy || entry.status.mode != Some(Mode::Bundle) {
        return None;
    }
    let names = entry.status.cut_off_by_copy.as_deref().unwrap_or_default();
    let all = entry.status.cut_off_by_copy_count.map_or(names.len(), |all| all as usize);
    let flag = "--legacy-copy: the managed Secret becomes a copy of the source Secret";
    Some(match rotation::few(names) {
        None if entry.status.cut_off_by_copy.is_some() => format!("{flag}. No declared client is cut off"),
        None => format!("{flag}. The clients that it cuts off are unknown"),
        Some(names) => {
            let clients = counted(all, "client");
            format!(
                "{flag}, and {clients} cannot connect until reissued: {names}. To keep them, start the agent without the flag"
            )
        }
    })
}

/// The status of a GatewaySecret that these objects show.
fn observe_status<'o>(
    entry: Entry,
    objects: impl Iterator<Item = &'o serde_json::Value>,
    now: Timestamp,
) -> crate::api::GatewaySecretStatus {
    let namespace = entry.namespace.clone();
    let mut inventory = Inventory::new([entry]);
    objects.for_each(|object| inventory.take(object, &namespace, now));
    let registry = inventory.into_registry(Outlook::Secrets, now);
    registry.entries().first().map(|entry| entry.status.clone()).unwrap_or_default()
}

/// A step that was applied, for the log.
fn describe(step: &rotation::planner::Step) -> String {
    use rotation::planner::{PairOf, Step};
    match step {
        Step::WriteManaged { trust, pair: PairOf::Managed } => {
            format!("wrote the managed Secret with {}", counted(trust.len(), "CA"))
        }
        Step::WriteManaged { trust, pair: PairOf::Source } => {
            let cas = counted(trust.len(), "CA");
            format!("wrote the managed Secret with {cas} and the serving certificate of the source Secret")
        }
        Step::WriteSibling { trust } => {
            format!("wrote the managed -cacert Secret with {}", counted(trust.len(), "CA"))
        }
        Step::WriteConfigMap { source, trust } => {
            format!("wrote the managed ConfigMap of {source} with {}", counted(trust.len(), "CA"))
        }
        Step::CopySource => "wrote the managed Secret as a copy of the source Secret".to_owned(),
        Step::PromoteIssuer => "wrote the new CA to the Issuer's Secret".to_owned(),
        Step::Reissue { certificate } => format!("requested a reissue of Certificate {certificate}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::tests::entry;

    #[test]
    fn the_flag_for_copies_names_the_clients_that_it_cuts_off() {
        let mut entry = entry("mesh", "root", "gw");
        entry.status.mode = Some(Mode::Bundle);
        let said = |entry: &Entry| copy_warning(entry, true).unwrap_or_default();
        assert!(said(&entry).ends_with("The clients that it cuts off are unknown"), "{}", said(&entry));
        entry.status.cut_off_by_copy = Some(Vec::new());
        assert!(said(&entry).ends_with("No declared client is cut off"), "{}", said(&entry));
        entry.status.cut_off_by_copy = Some(vec!["payments".to_owned(), "checkout".to_owned()]);
        entry.status.cut_off_by_copy_count = Some(5);
        assert!(
            said(&entry).contains("5 clients cannot connect until reissued: payments, checkout."),
            "{}",
            said(&entry)
        );
        assert_eq!(copy_warning(&entry, false), None);
        entry.status.mode = Some(Mode::Copy);
        assert_eq!(copy_warning(&entry, true), None, "it is a copy already");
    }
}
