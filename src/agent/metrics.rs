//! Prometheus metrics of the controller: the status of each GatewaySecret and TrustConsumer, and what this process did. The series of a GatewaySecret end
//! when it is deleted, and each label has a bounded set of values.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::AgentError;
use super::consumer_metrics::ConsumerMetrics;
use super::lease::Leadership;
use crate::api::{LeafKind, Phase, StepName, TrustAnchor};
use crate::registry::Entry;
use crate::rotation::CONDITION_TYPES;
use crate::rotation::planner::Step;
use crate::store::RegistryCache;

/// Limit of clients of one GatewaySecret with a separate time series.
const MAX_CLIENT_SERIES: usize = 20;

const PHASES: [Phase; 6] = [
    Phase::Pending,
    Phase::Steady,
    Phase::TrustExpanded,
    Phase::Converged,
    Phase::ClientsMigrated,
    Phase::ServingCertificateSwitched,
];
const STEPS: [StepName; 6] = [
    StepName::ExpandTrust,
    StepName::PromoteIssuer,
    StepName::ReissueClients,
    StepName::ReissueServingCertificate,
    StepName::SwitchServingCertificate,
    StepName::DropOldCA,
];

/// Counters since the process started.
#[derive(Debug, Default)]
pub struct AgentMetrics {
    counts: Mutex<BTreeMap<(String, String), Counts>>,
    events_dropped: AtomicU64,
    serving_certificate_writes: AtomicU64,
    /// The series of TrustConsumers.
    pub(super) consumers: ConsumerMetrics,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    reconciled_at: Option<Timestamp>,
    writes: BTreeMap<&'static str, u64>,
    failures: BTreeMap<&'static str, u64>,
}

impl AgentMetrics {
    /// Records a reconcile that completed all of its writes.
    pub(super) fn reconciled(&self, entry: &Entry, at: Timestamp) {
        self.update(entry, |counts| counts.reconciled_at = Some(at));
    }

    /// Counts a step that was applied.
    pub(super) fn step_applied(&self, entry: &Entry, step: &Step) {
        let what = match step {
            Step::WriteManaged { .. } | Step::WriteSibling { .. } | Step::CopySource => "managed_secret",
            Step::WriteConfigMap { .. } => "managed_config_map",
            Step::PromoteIssuer => "issuer_secret",
            Step::Reissue { .. } => "reissue",
        };
        self.count_write(entry, what);
    }

    /// Counts a restart of a workload.
    pub(super) fn workload_restarted(&self, entry: &Entry) {
        self.count_write(entry, "rollout");
    }

    fn count_write(&self, entry: &Entry, what: &'static str) {
        self.update(entry, |counts| *counts.writes.entry(what).or_default() += 1);
    }

    /// Counts a failed reconcile.
    pub(super) fn reconcile_failed(&self, entry: &Entry, error: &AgentError) {
        self.update(entry, |counts| *counts.failures.entry(error.reason()).or_default() += 1);
    }

    /// Counts a status that was not written, or only in part.
    pub(super) fn status_write_failed(&self, entry: &Entry) {
        self.update(entry, |counts| *counts.failures.entry("StatusNotWritten").or_default() += 1);
    }

    /// Counts an Event that was not written.
    pub(super) fn event_dropped(&self) {
        self.events_dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a write of the webhook's serving certificate, or of a caBundle.
    pub(super) fn serving_certificate_written(&self) {
        self.serving_certificate_writes.fetch_add(1, Ordering::Relaxed);
    }

    fn update(&self, entry: &Entry, change: impl FnOnce(&mut Counts)) {
        change(self.lock().entry((entry.namespace.clone(), entry.name.clone())).or_default());
    }

    /// A panic leaves no count inconsistent, so a poisoned lock is used.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, String), Counts>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A collector that reads everything at each scrape.
pub fn collector(cache: Arc<RegistryCache>, metrics: Arc<AgentMetrics>, leadership: Leadership) -> Box<dyn Collector> {
    Box::new(AgentCollector { cache, metrics, leadership })
}

#[derive(Debug)]
struct AgentCollector {
    cache: Arc<RegistryCache>,
    metrics: Arc<AgentMetrics>,
    leadership: Leadership,
}

/// A label in addition to `namespace` and `name`, and the value.
type Sample = (Option<(&'static str, String)>, i64);
type StatusGauge = (&'static str, &'static str, fn(&Entry) -> Vec<Sample>);

/// Gauges that are computed from the status.
const STATUS_GAUGES: [StatusGauge; 10] = [
    ("gatewaysecret_phase", "1 for the phase that the rotation is in, 0 for the others", phase),
    ("gatewaysecret_phase_since_timestamp_seconds", "When that phase began", phase_since),
    (
        "gatewaysecret_rotation_duration_seconds",
        "How long a CA rotation takes, as simulated before it started",
        rotation_duration,
    ),
    ("gatewaysecret_condition", "1 when the condition is True, -1 when it is Unknown, else 0", conditions),
    ("gatewaysecret_waiting", "1 when the step is blocked or waits", waits),
    ("gatewaysecret_lagging_clients", "Declared clients that the rotation waits for", lagging),
    (
        "gatewaysecret_client_lagging_since_timestamp_seconds",
        "Since when the rotation waits for a client: at most 20 clients, overdue ones first",
        lagging_since,
    ),
    (
        "gatewaysecret_workloads_behind",
        "Workloads that name the source Secret, or run with an older managed Secret",
        workloads_behind,
    ),
    (
        "gatewaysecret_endpoints",
        "Endpoints of the gateways, by the certificate that they showed when probed",
        endpoints,
    ),
    ("gatewaysecret_not_after_timestamp_seconds", "End of validity of the serving certificate and of CAs", not_after),
];

fn phase(entry: &Entry) -> Vec<Sample> {
    let now = entry.status.phase;
    PHASES.map(|phase| (Some(("phase", format!("{phase:?}"))), i64::from(now == Some(phase)))).into()
}

fn phase_since(entry: &Entry) -> Vec<Sample> {
    entry.status.phase_since.iter().map(|since| (None, since.as_second())).collect()
}

fn rotation_duration(entry: &Entry) -> Vec<Sample> {
    entry.status.rotation_duration.iter().map(|takes| (None, takes.duration().as_secs())).collect()
}

fn conditions(entry: &Entry) -> Vec<Sample> {
    let value = |type_: &str| entry.status.condition(type_).map_or(0, |condition| condition.status.gauge_value());
    let sample = |type_: &'static str| (Some(("type", type_.to_owned())), value(type_));
    let types =
        CONDITION_TYPES.iter().filter(|type_| type_.is_permanent || entry.status.condition(type_.name).is_some());
    types.map(|type_| sample(type_.name)).collect()
}

fn waits(entry: &Entry) -> Vec<Sample> {
    let is_waiting = |step| entry.status.waits.iter().any(|wait| wait.step == step);
    STEPS.map(|step| (Some(("step", format!("{step:?}"))), i64::from(is_waiting(step)))).into()
}

fn lagging(entry: &Entry) -> Vec<Sample> {
    let listed = i64::try_from(entry.status.lagging.len()).unwrap_or(i64::MAX);
    vec![(None, entry.status.lagging_count.map_or(listed, i64::from))]
}

fn lagging_since(entry: &Entry) -> Vec<Sample> {
    let (overdue, others): (Vec<_>, Vec<_>) = entry.status.lagging.iter().partition(|client| client.overdue);
    let named = overdue.into_iter().chain(others).take(MAX_CLIENT_SERIES);
    named.map(|client| (Some(("client", client.name.clone())), client.since.as_second())).collect()
}

fn workloads_behind(entry: &Entry) -> Vec<Sample> {
    entry.status.workloads_behind.iter().map(|count| (None, i64::from(*count))).collect()
}

fn endpoints(entry: &Entry) -> Vec<Sample> {
    let Some(endpoints) = entry.status.endpoints else { return Vec::new() };
    let shown = [
        ("total", endpoints.total),
        ("current", endpoints.current),
        ("stale", endpoints.stale),
        ("unreachable", endpoints.unreachable),
    ];
    shown.map(|(shown, count)| (Some(("shown", shown.to_owned())), i64::from(count))).into()
}

fn not_after(entry: &Entry) -> Vec<Sample> {
    let status = &entry.status;
    let leaf = status.leaves.iter().flatten().find(|leaf| leaf.kind == LeafKind::Server);
    let mut ends = vec![("leaf", leaf.map(|leaf| leaf.not_after))];
    ends.extend(cas(&status.bundle, ["client_ca", "previous_client_ca"]));
    ends.extend(cas(&status.client_bundle, ["server_ca", "previous_server_ca"]));
    ends.into_iter().filter_map(|(kind, end)| Some((Some(("kind", kind.to_owned())), end?.as_second()))).collect()
}

/// When the newest CA of a bundle expires, and when the first of the others does.
fn cas(bundle: &[TrustAnchor], kinds: [&'static str; 2]) -> [(&'static str, Option<Timestamp>); 2] {
    let newest = bundle.iter().max_by_key(|ca| ca.not_before);
    let others = bundle.iter().filter(|ca| newest.is_some_and(|newest| newest.fingerprint != ca.fingerprint));
    [(kinds[0], newest.map(|ca| ca.not_after)), (kinds[1], others.map(|ca| ca.not_after).min())]
}

impl Collector for AgentCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let registry = self.cache.registry();
        let entries = registry.iter().flat_map(|registry| registry.entries());
        let entries: Vec<_> = entries.filter(|entry| !entry.being_deleted).collect();
        for (name, help, of) in STATUS_GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for entry in &entries {
                each(&mut family, entry, of(entry), |value, metric| ConstGauge::new(value).encode(metric))?;
            }
        }
        let help = "1 while the stored GatewaySecret cannot be read";
        let mut family = encoder.encode_descriptor("gatewaysecret_unreadable", help, None, MetricType::Gauge)?;
        for (namespace, name) in self.cache.unread().keys() {
            let labels = [("namespace", namespace.as_str()), ("name", name)];
            ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
        }
        let mut all_counts = self.metrics.lock();
        if registry.is_some() {
            all_counts.retain(|key, _| entries.iter().any(|entry| (&entry.namespace, &entry.name) == (&key.0, &key.1)));
        }
        let counts = |entry: &Entry| all_counts.get(&(entry.namespace.clone(), entry.name.clone())).cloned();
        let reconciled: Vec<_> = entries.iter().filter_map(|entry| Some((*entry, counts(entry)?))).collect();
        drop(all_counts);
        let name = "agent_last_reconcile_timestamp_seconds";
        let help = "When this process last reconciled the GatewaySecret without an error";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (entry, counts) in &reconciled {
            let reconciled_at = counts.reconciled_at.iter().map(|at| (None, at.as_second())).collect();
            each(&mut family, entry, reconciled_at, |value, metric| ConstGauge::new(value).encode(metric))?;
        }
        type Of = fn(&Counts) -> &BTreeMap<&'static str, u64>;
        let counters: [(&str, &str, &str, Of); 2] = [
            ("agent_writes", "Steps applied, and workloads restarted, by this process", "what", |counts| {
                &counts.writes
            }),
            ("agent_failures", "Failed reconciles of this process", "reason", |counts| &counts.failures),
        ];
        for (name, help, label, of) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (entry, counts) in &reconciled {
                let samples = of(counts).iter().map(|(value, count)| (Some((label, (*value).to_owned())), *count));
                each(&mut family, entry, samples.collect(), |value, metric| ConstCounter::new(value).encode(metric))?;
            }
        }
        self.metrics.consumers.encode(&mut encoder, self.leadership.is_leader())?;
        for (name, help, count) in [
            ("agent_events_lost", "Events not written", &self.metrics.events_dropped),
            (
                "agent_serving_certificate_writes",
                "Writes of the webhook's serving certificate and of caBundle fields by this process",
                &self.metrics.serving_certificate_writes,
            ),
        ] {
            let counter = ConstCounter::new(count.load(Ordering::Relaxed));
            counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        let leads = ConstGauge::new(i64::from(self.leadership.is_leader()));
        leads.encode(encoder.encode_descriptor(
            "agent_leading",
            "1 while this process is the leader",
            None,
            MetricType::Gauge,
        )?)
    }
}

/// Writes the samples of one GatewaySecret.
fn each<V>(
    family: &mut MetricEncoder<'_>,
    entry: &Entry,
    samples: Vec<(Option<(&'static str, String)>, V)>,
    write: impl Fn(V, MetricEncoder<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    for (label, value) in samples {
        let mut labels = vec![("namespace", entry.namespace.clone()), ("name", entry.name.clone())];
        labels.extend(label);
        write(value, family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
