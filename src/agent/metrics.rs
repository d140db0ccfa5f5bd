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
use crate::api::{ConditionStatus, LeafKind, Phase, READY, StepName, TrustAnchor};
use crate::registry::Entry;
use crate::rotation::next::Step;
use crate::rotation::{CLIENTS, CONNECT, DISTRUST, JOURNAL, LEAF, SOURCES, SYNCED, WORKLOADS};
use crate::store::Live;

/// Clients that have a series of their own, for each GatewaySecret.
const CLIENTS_NAMED: usize = 20;

const PHASES: [Phase; 6] = [
    Phase::Pending,
    Phase::Steady,
    Phase::TrustExpanded,
    Phase::Converged,
    Phase::ClientsMigrated,
    Phase::LeafSwitched,
];
const STEPS: [StepName; 6] = [
    StepName::ExpandTrust,
    StepName::PromoteIssuer,
    StepName::ReissueClients,
    StepName::ReissueRoot,
    StepName::SwitchLeaf,
    StepName::DropOldCa,
];

/// What the agent did since it was started.
#[derive(Debug, Default)]
pub struct Tally {
    kept: Mutex<BTreeMap<(String, String), Counts>>,
    events_lost: AtomicU64,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    looked: Option<Timestamp>,
    writes: BTreeMap<&'static str, u64>,
    failures: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// A look ended, with all that it had to do done.
    pub(super) fn looked(&self, entry: &Entry, at: Timestamp) {
        self.of(entry, |counts| counts.looked = Some(at));
    }

    /// A step was taken.
    pub(super) fn wrote(&self, entry: &Entry, step: &Step) {
        let what = match step {
            Step::WriteManaged { .. } | Step::CopyRoot => "managed_secret",
            Step::PromoteIssuer => "issuer_secret",
            Step::Reissue { .. } => "reissue",
        };
        self.of(entry, |counts| *counts.writes.entry(what).or_default() += 1);
    }

    /// A look failed.
    pub(super) fn failed(&self, entry: &Entry, error: &AgentError) {
        self.of(entry, |counts| *counts.failures.entry(error.reason()).or_default() += 1);
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
pub fn collector(live: Arc<Live>, tally: Arc<Tally>, leadership: Leadership) -> Box<dyn Collector> {
    Box::new(Reported { live, tally, leadership })
}

#[derive(Debug)]
struct Reported {
    live: Arc<Live>,
    tally: Arc<Tally>,
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
        "Since when a client does not follow: the first 20 by name, those that are overdue first",
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
    let at_times = [DISTRUST, JOURNAL].into_iter().filter(|type_| entry.status.condition(type_).is_some());
    [READY, SOURCES, SYNCED, CLIENTS, CONNECT, LEAF, WORKLOADS].into_iter().chain(at_times).map(sample).collect()
}

fn waits(entry: &Entry) -> Vec<Sample> {
    let held = |step| entry.status.waits.iter().any(|wait| wait.step == step);
    STEPS.map(|step| (Some(("step", format!("{step:?}"))), i64::from(held(step)))).into()
}

fn lagging(entry: &Entry) -> Vec<Sample> {
    vec![(None, i64::try_from(entry.status.lagging.len()).unwrap_or(i64::MAX))]
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
            ("agent_writes", "Steps taken by this process", "what", |counts| &counts.writes),
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
mod tests {
    use super::*;
    use crate::api::{Endpoints, LaggingClient, Wait};
    use crate::registry::{Registry, tests::entry};
    use crate::rotation::set;
    use crate::webhook::metrics::Metrics;

    fn scraped(entries: &[Entry], tally: &Arc<Tally>) -> String {
        let live = Arc::new(Live::default());
        live.publish(Registry::new(entries.to_vec()));
        let leadership = Leadership::default();
        let metrics = Metrics::new(live.clone(), None).with(collector(live, tally.clone(), leadership));
        metrics.encode().expect("metrics")
    }

    fn anchor(fingerprint: &str, from: i64, to: i64) -> TrustAnchor {
        let at = |second| Timestamp::from_second(second).expect("an instant");
        let fingerprint = fingerprint.to_owned();
        TrustAnchor {
            subject: String::new(),
            fingerprint,
            not_before: at(from),
            not_after: at(to),
            pem: None,
            converged: None,
        }
    }

    #[test]
    fn status_and_what_was_done_are_told_for_each_gateway_secret() {
        let mut entry = entry("mesh", "root", "gw");
        entry.status.phase = Some(Phase::Converged);
        entry.status.phase_since = Some(Timestamp::from_second(100).expect("an instant"));
        entry.status.waits = vec![Wait { step: StepName::SwitchLeaf, reason: String::new(), until: None }];
        // An old CA that ends later stands first while a namesake needs that.
        entry.status.bundle = vec![anchor("old", 1, 900), anchor("new", 2, 800), anchor("older", 0, 700)];
        entry.status.workloads_behind = Some(2);
        entry.status.endpoints = Some(Endpoints { total: 3, current: 1, former: 0, unreachable: 2 });
        for (type_, value) in [(LEAF, ConditionStatus::Unknown), (JOURNAL, ConditionStatus::False)] {
            let (former, said) = (entry.clone(), (value, "Reason", String::new()));
            set(&former, &mut entry.status, type_, said, Timestamp::UNIX_EPOCH);
        }
        let tally = Arc::new(Tally::default());
        tally.wrote(&entry, &Step::CopyRoot);
        tally.wrote(&entry, &Step::CopyRoot);
        tally.failed(&entry, &AgentError::NoAnswer);
        tally.looked(&entry, Timestamp::from_second(50).expect("an instant"));
        let text = scraped(&[entry.clone()], &tally);
        for line in [
            r#"gatewaysecret_phase{namespace="mesh",name="gw",phase="Converged"} 1"#,
            r#"gatewaysecret_phase{namespace="mesh",name="gw",phase="Steady"} 0"#,
            r#"gatewaysecret_phase_since_timestamp_seconds{namespace="mesh",name="gw"} 100"#,
            r#"gatewaysecret_condition{namespace="mesh",name="gw",type="Ready"} 1"#,
            r#"gatewaysecret_condition{namespace="mesh",name="gw",type="Synced"} 0"#,
            r#"gatewaysecret_condition{namespace="mesh",name="gw",type="LeafMayChange"} -1"#,
            r#"gatewaysecret_condition{namespace="mesh",name="gw",type="JournalKept"} 0"#,
            r#"gatewaysecret_waiting{namespace="mesh",name="gw",step="SwitchLeaf"} 1"#,
            r#"gatewaysecret_waiting{namespace="mesh",name="gw",step="DropOldCa"} 0"#,
            r#"gatewaysecret_lagging_clients{namespace="mesh",name="gw"} 0"#,
            r#"gatewaysecret_workloads_behind{namespace="mesh",name="gw"} 2"#,
            r#"gatewaysecret_endpoints{namespace="mesh",name="gw",shown="current"} 1"#,
            r#"gatewaysecret_endpoints{namespace="mesh",name="gw",shown="unreachable"} 2"#,
            r#"gatewaysecret_not_after_timestamp_seconds{namespace="mesh",name="gw",kind="client_ca"} 800"#,
            r#"gatewaysecret_not_after_timestamp_seconds{namespace="mesh",name="gw",kind="previous_client_ca"} 700"#,
            r#"agent_last_look_timestamp_seconds{namespace="mesh",name="gw"} 50"#,
            r#"agent_writes_total{namespace="mesh",name="gw",what="managed_secret"} 2"#,
            r#"agent_failures_total{namespace="mesh",name="gw",reason="Failed"} 1"#,
            "agent_events_lost_total 0",
            "agent_leading 0",
        ] {
            assert!(text.contains(&format!("trustspan_{line}\n")), "{line} not in:\n{text}");
        }
        assert!(!text.contains("server_ca") && !text.contains("Distrusted"), "{text}");
        // With the GatewaySecret its series go.
        let text = scraped(&[], &tally);
        assert!(!text.contains("mesh"), "{text}");
        assert!(!scraped(&[entry], &tally).contains("agent_writes_total{"), "it was forgotten");
    }

    #[test]
    fn the_page_names_every_metric_and_its_alerts_no_other() {
        let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md"));
        let text = scraped(&[], &Arc::default());
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE trustspan_")?.split_once(' '));
        let name = |(name, kind): (&str, &str)| format!("{name}{}", if kind == "counter" { "_total" } else { "" });
        let names: Vec<_> = types.map(name).collect();
        let ours = |name: &&String| name.starts_with("gatewaysecret_") || name.starts_with("agent_");
        for name in names.iter().filter(ours) {
            assert!(page.contains(&format!("| `{name}`")), "docs/operations.md does not tell of {name}");
        }
        for word in page
            .split("trustspan_")
            .skip(1)
            .filter_map(|rest| rest.split(|c: char| c != '_' && !c.is_alphanumeric()).next())
        {
            assert!(word.is_empty() || names.iter().any(|name| name == word), "docs/operations.md tells of {word}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_told_by_name() {
        let live = Arc::new(Live::default());
        let key = ("mesh".to_owned(), "gw".to_owned());
        live.publish_unread([(key, "a bad duration".to_owned())].into());
        let metrics = Metrics::new(live.clone(), None).with(collector(live, Arc::default(), Leadership::default()));
        let text = metrics.encode().expect("metrics");
        assert!(text.contains(r#"trustspan_gatewaysecret_unreadable{namespace="mesh",name="gw"} 1"#), "{text}");
    }

    #[test]
    fn series_of_clients_are_bounded() {
        let mut entry = entry("mesh", "root", "gw");
        let client =
            |n: usize| LaggingClient { name: format!("client-{n:03}"), since: Timestamp::UNIX_EPOCH, overdue: n == 99 };
        entry.status.lagging = (0..100).map(client).collect();
        let text = scraped(&[entry], &Arc::default());
        assert!(text.contains(r#"lagging_clients{namespace="mesh",name="gw"} 100"#), "{text}");
        assert_eq!(text.matches("client=\"").count(), CLIENTS_NAMED);
        assert!(text.contains("client=\"client-099\"") && !text.contains("client=\"client-019\""), "{text}");
    }
}
