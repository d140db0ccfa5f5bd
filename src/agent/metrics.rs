//! What Prometheus reads of the agent: what status says of each GatewaySecret, and what this process did. Series go with their
//! GatewaySecret, and each label has a bounded set of values.

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
use super::lease::Leadership;
use crate::api::{ConditionStatus, LeafKind, Phase, StepName, TrustAnchor};
use crate::registry::Entry;
use crate::rotation::CONDITION_TYPES;
use crate::rotation::planner::Step;
use crate::store::RegistryCache;

/// Clients that have a series of their own, for each GatewaySecret.
const CLIENTS_NAMED: usize = 20;

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

/// What the agent did since it was started.
#[derive(Debug, Default)]
pub struct AgentMetrics {
    kept: Mutex<BTreeMap<(String, String), Counts>>,
    events_lost: AtomicU64,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    looked: Option<Timestamp>,
    writes: BTreeMap<&'static str, u64>,
    failures: BTreeMap<&'static str, u64>,
}

impl AgentMetrics {
    /// A look ended, with all that it had to do done.
    pub(super) fn looked(&self, entry: &Entry, at: Timestamp) {
        self.of(entry, |counts| counts.looked = Some(at));
    }

    /// A step was taken.
    pub(super) fn wrote(&self, entry: &Entry, step: &Step) {
        let what = match step {
            Step::WriteManaged { .. } | Step::WriteSibling { .. } | Step::CopyRoot => "managed_secret",
            Step::WriteConfigMap { .. } => "managed_config_map",
            Step::PromoteIssuer => "issuer_secret",
            Step::Reissue { .. } => "reissue",
        };
        self.count(entry, what);
    }

    /// A workload was rolled.
    pub(super) fn rolled(&self, entry: &Entry) {
        self.count(entry, "rollout");
    }

    fn count(&self, entry: &Entry, what: &'static str) {
        self.of(entry, |counts| *counts.writes.entry(what).or_default() += 1);
    }

    /// A look failed.
    pub(super) fn failed(&self, entry: &Entry, error: &AgentError) {
        self.of(entry, |counts| *counts.failures.entry(error.reason()).or_default() += 1);
    }

    /// A status was not written, or not whole.
    pub(super) fn status_not_written(&self, entry: &Entry) {
        self.of(entry, |counts| *counts.failures.entry("StatusNotWritten").or_default() += 1);
    }

    /// An Event was not written.
    pub(super) fn event_lost(&self) {
        self.events_lost.fetch_add(1, Ordering::Relaxed);
    }

    fn of(&self, entry: &Entry, count: impl FnOnce(&mut Counts)) {
        count(self.kept().entry((entry.namespace.clone(), entry.name.clone())).or_default());
    }

    /// Counts are whole at any time: a thread that panicked spoils none.
    fn kept(&self) -> MutexGuard<'_, BTreeMap<(String, String), Counts>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads everything at each scrape.
pub fn collector(live: Arc<RegistryCache>, tally: Arc<AgentMetrics>, leadership: Leadership) -> Box<dyn Collector> {
    Box::new(Reported { live, tally, leadership })
}

#[derive(Debug)]
struct Reported {
    live: Arc<RegistryCache>,
    tally: Arc<AgentMetrics>,
    leadership: Leadership,
}

/// A label beside `namespace` and `name`, if there is one, and the value.
type Sample = (Option<(&'static str, String)>, i64);
type Told = (&'static str, &'static str, fn(&Entry) -> Vec<Sample>);

/// What status says.
const TOLD: [Told; 9] = [
    ("gatewaysecret_phase", "1 for the phase that the rotation is in, 0 for the others", phase),
    ("gatewaysecret_phase_since_timestamp_seconds", "When that phase began", phase_since),
    ("gatewaysecret_condition", "1 when the condition is True, -1 when it is Unknown, else 0", conditions),
    ("gatewaysecret_waiting", "1 when the step is held back", waits),
    ("gatewaysecret_lagging_clients", "Declared clients that do not follow the rotation yet", lagging),
    (
        "gatewaysecret_client_lagging_since_timestamp_seconds",
        "Since when a client does not follow: 20 at most, those that are overdue first",
        lagging_since,
    ),
    (
        "gatewaysecret_workloads_behind",
        "Workloads that name the root Secret, or run with older content of the managed one",
        workloads_behind,
    ),
    ("gatewaysecret_endpoints", "Endpoints of the gateways, by what they showed when they were looked at", endpoints),
    ("gatewaysecret_not_after_timestamp_seconds", "End of validity of the served leaf and of CAs", not_after),
];

fn phase(entry: &Entry) -> Vec<Sample> {
    let now = entry.status.phase;
    PHASES.map(|phase| (Some(("phase", format!("{phase:?}"))), i64::from(now == Some(phase)))).into()
}

fn phase_since(entry: &Entry) -> Vec<Sample> {
    entry.status.phase_since.iter().map(|since| (None, since.as_second())).collect()
}

fn conditions(entry: &Entry) -> Vec<Sample> {
    let value = |type_: &str| match entry.status.condition(type_).map(|condition| condition.status) {
        Some(ConditionStatus::True) => 1,
        // What is not known does not fail.
        Some(ConditionStatus::Unknown) => -1,
        Some(ConditionStatus::False) | None => 0,
    };
    let sample = |type_: &'static str| (Some(("type", type_.to_owned())), value(type_));
    let types =
        CONDITION_TYPES.iter().filter(|type_| type_.is_permanent || entry.status.condition(type_.name).is_some());
    types.map(|type_| sample(type_.name)).collect()
}

fn waits(entry: &Entry) -> Vec<Sample> {
    let held = |step| entry.status.waits.iter().any(|wait| wait.step == step);
    STEPS.map(|step| (Some(("step", format!("{step:?}"))), i64::from(held(step)))).into()
}

fn lagging(entry: &Entry) -> Vec<Sample> {
    let listed = i64::try_from(entry.status.lagging.len()).unwrap_or(i64::MAX);
    vec![(None, entry.status.lagging_count.map_or(listed, i64::from))]
}

fn lagging_since(entry: &Entry) -> Vec<Sample> {
    let (overdue, others): (Vec<_>, Vec<_>) = entry.status.lagging.iter().partition(|client| client.overdue);
    let named = overdue.into_iter().chain(others).take(CLIENTS_NAMED);
    named.map(|client| (Some(("client", client.name.clone())), client.since.as_second())).collect()
}

fn workloads_behind(entry: &Entry) -> Vec<Sample> {
    entry.status.workloads_behind.iter().map(|count| (None, i64::from(*count))).collect()
}

fn endpoints(entry: &Entry) -> Vec<Sample> {
    let Some(seen) = entry.status.endpoints else { return Vec::new() };
    let shown =
        [("total", seen.total), ("current", seen.current), ("former", seen.former), ("unreachable", seen.unreachable)];
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

/// The newest CA of a bundle, and the first end among the others.
fn cas(bundle: &[TrustAnchor], kinds: [&'static str; 2]) -> [(&'static str, Option<Timestamp>); 2] {
    let newest = bundle.iter().max_by_key(|ca| ca.not_before);
    let others = bundle.iter().filter(|ca| newest.is_some_and(|newest| newest.fingerprint != ca.fingerprint));
    [(kinds[0], newest.map(|ca| ca.not_after)), (kinds[1], others.map(|ca| ca.not_after).min())]
}

impl Collector for Reported {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let registry = self.live.registry();
        let entries = registry.iter().flat_map(|registry| registry.entries());
        let entries: Vec<_> = entries.filter(|entry| !entry.being_deleted).collect();
        for (name, help, of) in TOLD {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for entry in &entries {
                each(&mut family, entry, of(entry), |value, metric| ConstGauge::new(value).encode(metric))?;
            }
        }
        let help = "1 while the GatewaySecret cannot be read as it stands";
        let mut family = encoder.encode_descriptor("gatewaysecret_unreadable", help, None, MetricType::Gauge)?;
        for (namespace, name) in self.live.unread().keys() {
            let labels = [("namespace", namespace.as_str()), ("name", name)];
            ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
        }
        let mut tally = self.tally.kept();
        if registry.is_some() {
            tally.retain(|key, _| entries.iter().any(|entry| (&entry.namespace, &entry.name) == (&key.0, &key.1)));
        }
        let counts = |entry: &Entry| tally.get(&(entry.namespace.clone(), entry.name.clone())).cloned();
        let kept: Vec<_> = entries.iter().filter_map(|entry| Some((*entry, counts(entry)?))).collect();
        drop(tally);
        let name = "agent_last_look_timestamp_seconds";
        let help = "When this process last looked, and did all that was to be done";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (entry, counts) in &kept {
            let looked = counts.looked.iter().map(|at| (None, at.as_second())).collect();
            each(&mut family, entry, looked, |value, metric| ConstGauge::new(value).encode(metric))?;
        }
        type Of = fn(&Counts) -> &BTreeMap<&'static str, u64>;
        let counters: [(&str, &str, &str, Of); 2] = [
            ("agent_writes", "Steps taken, and workloads rolled, by this process", "what", |counts| &counts.writes),
            ("agent_failures", "Looks of this process that failed", "reason", |counts| &counts.failures),
        ];
        for (name, help, label, of) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (entry, counts) in &kept {
                let samples = of(counts).iter().map(|(value, count)| (Some((label, (*value).to_owned())), *count));
                each(&mut family, entry, samples.collect(), |value, metric| ConstCounter::new(value).encode(metric))?;
            }
        }
        let lost = ConstCounter::new(self.tally.events_lost.load(Ordering::Relaxed));
        lost.encode(encoder.encode_descriptor(
            "agent_events_lost",
            "Events not written",
            None,
            MetricType::Counter,
        )?)?;
        let leads = ConstGauge::new(i64::from(self.leadership.holds()));
        leads.encode(encoder.encode_descriptor(
            "agent_leading",
            "1 while this process leads",
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
