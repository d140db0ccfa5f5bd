//! Metrics for Prometheus. Every label has a bounded set of values, whatever a review contains.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::tls::ServingCertificate;
use crate::admission::{Decision, Kind, Operation, rules};
use crate::store::RegistryCache;
use crate::trust::{Severity, Verdict};

/// Content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const OTHER: &str = "other";

/// The kinds with separate labels; all others are `other`.
const KINDS: [(&str, &str); 13] = [
    ("", "ConfigMap"),
    ("", "Secret"),
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ("apiregistration.k8s.io", "APIService"),
    ("apps", "DaemonSet"),
    ("apps", "Deployment"),
    ("apps", "StatefulSet"),
    ("cert-manager.io", "Certificate"),
    ("gateway.networking.k8s.io", "Gateway"),
    ("networking.istio.io", "Gateway"),
    ("trustspan.dev", "GatewaySecret"),
    ("trustspan.dev", "RotationPolicy"),
    ("trustspan.dev", "ClusterRotationPolicy"),
];

/// Counters of the webhook, and the state of its registry and certificate.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    findings: Family<FindingLabels, Counter>,
    break_glass: Family<RuleLabel, Counter>,
    duration: Family<WebhookLabel, Histogram, fn() -> Histogram>,
}

/// The labels for the object of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReviewedObject {
    group: &'static str,
    kind: &'static str,
    operation: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    webhook: &'static str,
    group: &'static str,
    kind: &'static str,
    operation: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FindingLabels {
    rule: &'static str,
    severity: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RuleLabel {
    rule: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WebhookLabel {
    webhook: &'static str,
}

impl ReviewedObject {
    /// The labels of a request that could not be parsed.
    pub const UNREAD: Self = Self { group: OTHER, kind: OTHER, operation: OTHER };

    /// The labels of a request.
    pub fn of(kind: Kind<'_>, operation: Operation) -> Self {
        let (group, kind) = KINDS.into_iter().find(|known| *known == (kind.group, kind.kind)).unwrap_or((OTHER, OTHER));
        let operation = match operation {
            Operation::Create => "create",
            Operation::Update => "update",
            Operation::Delete => "delete",
            Operation::Connect => "connect",
        };
        Self { group, kind, operation }
    }
}

impl Metrics {
    /// Counters at zero; the state of `cache` and `certificate` is read at each scrape.
    pub fn new(cache: Arc<RegistryCache>, certificate: Option<Arc<ServingCertificate>>) -> Self {
        let mut registry = Registry::with_prefix("trustspan");
        registry.register("build", "The version that runs", Info::new([("version", crate::VERSION)]));
        let (requests, findings) = (Family::default(), Family::default());
        let break_glass = Family::<RuleLabel, Counter>::default();
        // `increase()` misses the first increment of a series that was absent.
        for rule in rules().filter(|rule| !rule.is_fixed()) {
            drop(break_glass.get_or_create(&RuleLabel { rule: rule.id }));
        }
        // 0.25 ms to 4 s: the timeouts of the webhooks are at most 5 s.
        let duration: Family<_, _, fn() -> _> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.000_25, 2.0, 15)));
        registry.register("admission_requests", "Admission requests answered", Family::clone(&requests));
        registry.register("admission_findings", "Findings of rules in admission requests", Family::clone(&findings));
        registry.register("break_glass", "Denials that were overridden", Family::clone(&break_glass));
        registry.register(
            "admission_duration_seconds",
            "Time from the head of a request to its response",
            duration.clone(),
        );
        registry.register_collector(Box::new(State { cache, certificate }));
        Self { registry, requests, findings, break_glass, duration }
    }

    /// Adds a collector, which is read at each scrape.
    pub fn with(mut self, collector: Box<dyn Collector>) -> Self {
        self.registry.register_collector(collector);
        self
    }

    /// Counts a decision.
    pub fn decided(&self, webhook: &'static str, subject: ReviewedObject, decision: &Decision) {
        let result = match decision.verdict() {
            Verdict::Deny => "denied",
            _ if !decision.patch.is_empty() => "patched",
            Verdict::Warn => "warned",
            Verdict::Allow if !decision.notes.is_empty() => "warned",
            Verdict::Allow => "allowed",
        };
        self.count(webhook, subject, result);
        for finding in &decision.findings {
            let severity = match finding.severity {
                Severity::Warn => "warn",
                Severity::Deny => "deny",
            };
            self.findings.get_or_create(&FindingLabels { rule: finding.rule, severity }).inc();
        }
    }

    /// Counts the denials that were overridden: none if another denial still rejects the request.
    pub fn overrode(&self, decision: &Decision) {
        for applied in decision.effective_overrides() {
            self.break_glass.get_or_create(&RuleLabel { rule: applied.rule }).inc();
        }
    }

    /// Counts a request without a decision.
    pub fn failed(&self, webhook: &'static str, subject: ReviewedObject) {
        self.count(webhook, subject, "error");
    }

    /// Records the time that a response took.
    pub fn took(&self, webhook: &'static str, time: Duration) {
        self.duration.get_or_create(&WebhookLabel { webhook }).observe(time.as_secs_f64());
    }

    /// The text that Prometheus scrapes.
    ///
    /// # Errors
    /// When a metric cannot be written as text.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }

    fn count(
        &self,
        webhook: &'static str,
        ReviewedObject { group, kind, operation }: ReviewedObject,
        result: &'static str,
    ) {
        self.requests.get_or_create(&RequestLabels { webhook, group, kind, operation, result }).inc();
    }
}

#[derive(Debug)]
struct State {
    cache: Arc<RegistryCache>,
    certificate: Option<Arc<ServingCertificate>>,
}

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let registry = self.cache.registry();
        let mut gauge = |name, help, value: i64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        gauge("store_synced", "1 after all GatewaySecrets have been read", i64::from(registry.is_some()))?;
        let known = registry.map_or(0, |r| r.entries().len());
        gauge("gatewaysecrets", "GatewaySecrets known", i64::try_from(known).unwrap_or(i64::MAX))?;
        if let Some(certificate) = &self.certificate {
            let name = "serving_certificate_not_after_timestamp_seconds";
            gauge(name, "End of validity of the serving certificate", certificate.not_after().as_second())?;
        }
        let mut counter = |name, help, value: u64| {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
        };
        counter(
            "store_failures",
            "Failed reads of GatewaySecrets; the previous ones stay in use",
            self.cache.failures(),
        )?;
        if let Some(certificate) = &self.certificate {
            let help = "Changed serving certificates that were loaded";
            counter("serving_certificate_reloads", help, certificate.reloads())?;
            counter(
                "serving_certificate_reload_failures",
                "Serving certificates that could not be loaded; the previous one stays in use",
                certificate.failures(),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Override;
    use crate::trust::Finding;

    #[test]
    fn does_not_count_overrides_of_a_rejected_request() {
        let metrics = Metrics::new(Arc::default(), None);
        let finding = |rule, severity| Finding { rule, severity, field: String::new(), message: String::new() };
        let overrides = vec![Override { rule: "empty", reason: "ticket 7".to_owned() }];
        let mut decision =
            Decision { findings: vec![finding("empty", Severity::Warn)], overrides, ..Decision::default() };
        metrics.overrode(&decision);
        decision.findings.push(finding("key-mismatch", Severity::Deny));
        metrics.overrode(&decision);
        let text = metrics.encode().unwrap();
        assert!(text.contains(r#"trustspan_break_glass_total{rule="empty"} 1"#), "{text}");
    }

    #[test]
    fn overrides_of_each_rule_are_counted_from_zero() {
        let text = Metrics::new(Arc::default(), None).encode().unwrap();
        assert!(text.contains(r#"trustspan_break_glass_total{rule="expired"} 0"#), "{text}");
    }

    #[test]
    fn labels_are_bounded() {
        let metrics = Metrics::new(Arc::default(), None);
        for n in 0..100 {
            let kind = format!("Kind{n}");
            let subject = ReviewedObject::of(Kind { group: "apps", version: "v1", kind: &kind }, Operation::Create);
            metrics.decided("mutate", subject, &Decision::default());
        }
        let secret = ReviewedObject::of(Kind { group: "", version: "v1", kind: "Secret" }, Operation::Update);
        metrics.failed("validate", secret);
        let text = metrics.encode().unwrap();
        assert_eq!(text.matches("trustspan_admission_requests_total{").count(), 2, "{text}");
        for line in [
            r#"trustspan_admission_requests_total{webhook="mutate",group="other",kind="other",operation="create",result="allowed"} 100"#,
            r#"trustspan_admission_requests_total{webhook="validate",group="",kind="Secret",operation="update",result="error"} 1"#,
            "trustspan_store_synced 0",
            "trustspan_gatewaysecrets 0",
            "trustspan_store_failures_total 0",
        ] {
            assert!(text.contains(line), "{line} not in:\n{text}");
        }
    }
}
