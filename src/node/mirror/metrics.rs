//! Prometheus metrics of one mirrored file.

use std::sync::atomic::AtomicI64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::decision::Cause;

/// Counters of this process, and the state of the file.
#[derive(Debug)]
pub(super) struct MirrorMetrics {
    writes: Family<CauseLabel, Counter>,
    pub(super) failures: Counter,
    pub(super) first_expiry: Gauge<i64, AtomicI64>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CauseLabel {
    cause: &'static str,
}

impl MirrorMetrics {
    /// Metrics that `registry` has, too.
    pub(super) fn new(registry: &mut Registry) -> Self {
        let (writes, failures, first_expiry) = (Family::default(), Counter::default(), Gauge::default());
        registry.register("mirror_writes", "Times that the file was written, by cause", Family::clone(&writes));
        registry.register("mirror_write_failures", "Writes of the file that failed", failures.clone());
        registry.register(
            "mirror_first_expiry_timestamp_seconds",
            "When the first CA in the file expires; 0 if it has none",
            first_expiry.clone(),
        );
        for cause in [Cause::Update, Cause::Drift, Cause::Bootstrap] {
            drop(writes.get_or_create(&CauseLabel { cause: name(cause) }));
        }
        Self { writes, failures, first_expiry }
    }

    pub(super) fn wrote(&self, cause: Cause) {
        self.writes.get_or_create(&CauseLabel { cause: name(cause) }).inc();
    }
}

fn name(cause: Cause) -> &'static str {
    match cause {
        Cause::Update => "update",
        Cause::Drift => "drift",
        Cause::Bootstrap => "bootstrap",
    }
}
