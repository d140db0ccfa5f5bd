//! Metrics of TrustConsumers, of the process that leads.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::sync::{Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::api::TrustConsumerStatus;
use crate::consumer::CONDITION_TYPES;

type Key = (String, String);

/// The last status of each TrustConsumer.
#[derive(Debug, Default)]
pub(super) struct ConsumerMetrics(Mutex<BTreeMap<Key, Series>>);

#[derive(Clone, Debug, Default)]
struct Series {
    status: TrustConsumerStatus,
    /// Workloads whose restart waits for a person, and when the first of their CAs expires.
    blocked: Vec<(String, i64)>,
    restarts: u64,
}

/// A label in addition to `namespace` and `name`, and the value.
type Sample = (Option<(&'static str, String)>, i64);
type Gauge = (&'static str, &'static str, fn(&Series) -> Vec<Sample>);

const GAUGES: [Gauge; 4] = [
    ("trustconsumer_condition", "1 when the condition is True, -1 when it is Unknown, else 0", conditions),
    ("trustconsumer_pending_since_timestamp_seconds", "Since when a workload has not loaded the content", |series| {
        series.status.pending_since.iter().map(|since| (None, since.as_second())).collect()
    }),
    (
        "trustconsumer_not_after_timestamp_seconds",
        "End of validity of the first CA that a workload has loaded",
        |series| series.status.first_expiry.iter().map(|end| (None, end.as_second())).collect(),
    ),
    (
        "trustconsumer_blocked_not_after_timestamp_seconds",
        "The same of a workload whose restart waits for a person, for example because it is paused",
        |series| series.blocked.iter().map(|(workload, end)| (Some(("workload", workload.clone())), *end)).collect(),
    ),
];

fn conditions(series: &Series) -> Vec<Sample> {
    let sample = |type_: &'static str| {
        let condition = series.status.condition(type_)?;
        Some((Some(("type", type_.to_owned())), condition.status.gauge_value()))
    };
    CONDITION_TYPES.iter().filter_map(|type_| sample(type_.name)).collect()
}

impl ConsumerMetrics {
    /// Sets the status of a TrustConsumer.
    pub(super) fn report(&self, key: &Key, status: &TrustConsumerStatus, blocked: Vec<(String, i64)>) {
        let mut all = self.lock();
        let series = all.entry(key.clone()).or_default();
        (series.status, series.blocked) = (status.clone(), blocked);
    }

    /// Counts a restart.
    pub(super) fn restarted(&self, key: &Key) {
        self.lock().entry(key.clone()).or_default().restarts += 1;
    }

    /// Ends the series of a TrustConsumer.
    pub(super) fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    /// Writes all series. A process that does not lead has none: its statuses may be outdated.
    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>, is_leader: bool) -> Result<(), Error> {
        let all = if is_leader { self.lock().clone() } else { BTreeMap::new() };
        for (name, help, of) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (key, series) in &all {
                for (label, value) in of(series) {
                    write(&mut family, key, label, &ConstGauge::new(value))?;
                }
            }
        }
        let help = "Workloads that this process restarted";
        let mut family = encoder.encode_descriptor("trustconsumer_restarts", help, None, MetricType::Counter)?;
        for (key, series) in &all {
            write(&mut family, key, None, &ConstCounter::new(series.restarts))?;
        }
        Ok(())
    }

    /// A panic leaves no series inconsistent, so a poisoned lock is used.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Series>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes one sample.
fn write(
    family: &mut MetricEncoder<'_>,
    (namespace, name): &Key,
    label: Option<(&'static str, String)>,
    metric: &impl EncodeMetric,
) -> Result<(), Error> {
    let mut labels = vec![("namespace", namespace.clone()), ("name", name.clone())];
    labels.extend(label);
    metric.encode(family.encode_family(&labels)?)
}
