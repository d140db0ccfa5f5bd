use super::*;
use crate::api::{ConditionStatus, Endpoints, LaggingClient, Wait};
use crate::registry::{Registry, tests::entry};
use crate::rotation::{JOURNAL, LEAF, WINDOWS, planner::PairOf, set};
use crate::webhook::health_server;
use crate::webhook::metrics::Metrics;

fn scrape(entries: &[Entry], agent_metrics: &Arc<AgentMetrics>) -> String {
    let cache = Arc::new(RegistryCache::default());
    cache.publish(Registry::new(entries.to_vec()));
    let leadership = Leadership::default();
    let metrics = Metrics::new(cache.clone(), None).with(collector(cache, agent_metrics.clone(), leadership));
    let metrics = metrics.with(health_server::collector(Arc::default()));
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
fn reports_status_and_counts_for_each_gateway_secret() {
    let mut entry = entry("mesh", "root", "gw");
    entry.status.phase = Some(Phase::Converged);
    entry.status.phase_since = Some(Timestamp::from_second(100).expect("an instant"));
    entry.status.rotation_duration = Some(crate::api::Period::from_secs(600));
    entry.status.waits = vec![Wait {
        step: StepName::SwitchServingCertificate,
        reason: String::new(),
        until: None,
        needs_action: false,
    }];
    // An old CA with the same subject can be the first in the bundle, and end later.
    entry.status.bundle = vec![anchor("old", 1, 900), anchor("new", 2, 800), anchor("older", 0, 700)];
    entry.status.workloads_behind = Some(2);
    entry.status.endpoints = Some(Endpoints { total: 3, current: 1, stale: 0, unreachable: 2 });
    for (type_, value) in
        [(LEAF, ConditionStatus::Unknown), (JOURNAL, ConditionStatus::False), (WINDOWS, ConditionStatus::False)]
    {
        let (before, condition) = (entry.clone(), (value, "Reason", String::new()));
        set(&before, &mut entry.status, type_, condition, Timestamp::UNIX_EPOCH);
    }
    let agent_metrics = Arc::new(AgentMetrics::default());
    agent_metrics.step_applied(&entry, &Step::CopySource);
    agent_metrics.step_applied(&entry, &Step::CopySource);
    agent_metrics.reconcile_failed(&entry, &AgentError::NoAnswer);
    agent_metrics.reconciled(&entry, Timestamp::from_second(50).expect("an instant"));
    let text = scrape(&[entry.clone()], &agent_metrics);
    for line in [
        r#"gatewaysecret_phase{namespace="mesh",name="gw",phase="Converged"} 1"#,
        r#"gatewaysecret_phase{namespace="mesh",name="gw",phase="Steady"} 0"#,
        r#"gatewaysecret_phase_since_timestamp_seconds{namespace="mesh",name="gw"} 100"#,
        r#"gatewaysecret_rotation_duration_seconds{namespace="mesh",name="gw"} 600"#,
        r#"gatewaysecret_condition{namespace="mesh",name="gw",type="Ready"} 1"#,
        r#"gatewaysecret_condition{namespace="mesh",name="gw",type="Synced"} 0"#,
        r#"gatewaysecret_condition{namespace="mesh",name="gw",type="ServingCertificateTrusted"} -1"#,
        r#"gatewaysecret_condition{namespace="mesh",name="gw",type="JournalComplete"} 0"#,
        r#"gatewaysecret_condition{namespace="mesh",name="gw",type="ChangeWindowsValid"} 0"#,
        r#"gatewaysecret_waiting{namespace="mesh",name="gw",step="SwitchServingCertificate"} 1"#,
        r#"gatewaysecret_waiting{namespace="mesh",name="gw",step="DropOldCA"} 0"#,
        r#"gatewaysecret_lagging_clients{namespace="mesh",name="gw"} 0"#,
        r#"gatewaysecret_workloads_behind{namespace="mesh",name="gw"} 2"#,
        r#"gatewaysecret_endpoints{namespace="mesh",name="gw",shown="current"} 1"#,
        r#"gatewaysecret_endpoints{namespace="mesh",name="gw",shown="unreachable"} 2"#,
        r#"gatewaysecret_not_after_timestamp_seconds{namespace="mesh",name="gw",kind="client_ca"} 800"#,
        r#"gatewaysecret_not_after_timestamp_seconds{namespace="mesh",name="gw",kind="previous_client_ca"} 700"#,
        r#"agent_last_reconcile_timestamp_seconds{namespace="mesh",name="gw"} 50"#,
        r#"agent_writes_total{namespace="mesh",name="gw",what="managed_secret"} 2"#,
        r#"agent_failures_total{namespace="mesh",name="gw",reason="Failed"} 1"#,
        "agent_events_lost_total 0",
        "agent_serving_certificate_writes_total 0",
        "agent_leading 0",
    ] {
        assert!(text.contains(&format!("trustspan_{line}\n")), "{line} not in:\n{text}");
    }
    assert!(!text.contains("server_ca") && !text.contains("DistrustApplied"), "{text}");
    // A deleted GatewaySecret has no series.
    let text = scrape(&[], &agent_metrics);
    assert!(!text.contains("mesh"), "{text}");
    assert!(!scrape(&[entry], &agent_metrics).contains("agent_writes_total{"), "its counts are dropped");
}

#[test]
fn the_documentation_lists_exactly_these_metrics() {
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md"));
    let text = scrape(&[], &Arc::default());
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE trustspan_")?.split_once(' '));
    let name = |(name, kind): (&str, &str)| format!("{name}{}", if kind == "counter" { "_total" } else { "" });
    let names: Vec<_> = types.map(name).collect();
    let ours = |name: &&String| name.starts_with("gatewaysecret_") || name.starts_with("agent_");
    for name in names.iter().filter(ours) {
        assert!(page.contains(&format!("| `{name}`")), "docs/operations.md does not list {name}");
    }
    for word in page
        .split("trustspan_")
        .skip(1)
        .filter_map(|rest| rest.split(|c: char| c != '_' && !c.is_alphanumeric()).next())
    {
        assert!(word.is_empty() || names.iter().any(|name| name == word), "docs/operations.md lists {word}");
    }
}

#[test]
fn the_documentation_lists_all_writes() {
    let (entry, agent_metrics) = (entry("mesh", "root", "gw"), Arc::new(AgentMetrics::default()));
    let write = Step::WriteManaged { trust: Vec::new(), pair: PairOf::Managed };
    for step in [write, Step::CopySource, Step::PromoteIssuer, Step::Reissue { certificate: "payments".to_owned() }] {
        agent_metrics.step_applied(&entry, &step);
    }
    agent_metrics.workload_restarted(&entry);
    let text = scrape(&[entry], &agent_metrics);
    let counts =
        text.lines().filter_map(|line| line.strip_prefix("trustspan_agent_writes_total{")?.split_once("what=\""));
    let counts: Vec<_> = counts.filter_map(|(_, count)| count.split_once("\"} ")).collect();
    assert_eq!(counts, [("issuer_secret", "1"), ("managed_secret", "2"), ("reissue", "1"), ("rollout", "1")]);
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md"));
    let row = page.lines().find(|line| line.starts_with("| `agent_writes_total`")).expect("a row");
    for (what, _) in counts {
        assert!(row.contains(&format!("`{what}`")), "docs/operations.md does not list {what}: {row}");
    }
}

#[test]
fn reports_gateway_secrets_that_cannot_be_read() {
    let cache = Arc::new(RegistryCache::default());
    let key = ("mesh".to_owned(), "gw".to_owned());
    cache.publish_unread([(key, "a bad duration".to_owned())].into());
    let metrics = Metrics::new(cache.clone(), None).with(collector(cache, Arc::default(), Leadership::default()));
    let text = metrics.encode().expect("metrics");
    assert!(text.contains(r#"trustspan_gatewaysecret_unreadable{namespace="mesh",name="gw"} 1"#), "{text}");
}

#[test]
fn client_series_are_limited() {
    let mut entry = entry("mesh", "root", "gw");
    let client =
        |n: usize| LaggingClient { name: format!("client-{n:03}"), since: Timestamp::UNIX_EPOCH, overdue: n == 99 };
    entry.status.lagging = (0..100).map(client).collect();
    let text = scrape(&[entry], &Arc::default());
    assert!(text.contains(r#"lagging_clients{namespace="mesh",name="gw"} 100"#), "{text}");
    assert_eq!(text.matches("client=\"").count(), MAX_CLIENT_SERIES);
    assert!(text.contains("client=\"client-099\"") && !text.contains("client=\"client-019\""), "{text}");
}
