//! A real Prometheus scrapes rotations with the shipped alerts: one whose old CA expires before it can be complete, one that is in time, and one
//! that waits for a client. Run by `./test monitoring`.

#[path = "../bed/mod.rs"]
mod testbed;

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, ExitCode},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Arguments;
use serde_json::{Value, json};
use testbed::{Agents, Authority, Cluster, Kept, Process, SOON, endpoint_slice, free_port, own_address, wait_for};

/// The old CA of the rotation that is late expires after this time, and each of its delays is an hour.
const LEFT: Duration = Duration::from_secs(30 * 60);
/// A metric without a series here: only a GatewaySecret of another version's CRD is unreadable.
const WITHOUT_SERIES: &str = "trustspan_gatewaysecret_unreadable";

fn main() -> ExitCode {
    let trials = |cluster: Option<&Arc<Cluster>>| {
        let name = "prometheus_has_every_series_and_alerts_of_the_rotation_that_is_late";
        vec![testbed::trial(cluster, name, |cluster| cluster.run(scrape))]
    };
    testbed::run_trials(&Arguments::from_args(), Cluster::boot, trials, Cluster::scan_for_keys)
}

fn scrape(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|late| {
        cluster.with_temp_ns(|in_time| cluster.with_temp_ns(|waiting| scrape_in(cluster, late, in_time, waiting)))
    })
}

fn scrape_in(cluster: &Cluster, late: &str, in_time: &str, waiting: &str) -> Result<()> {
    let (late, late_agent) = steady(cluster, late, "1h", &Authority::lasting("short", LEFT)?, &[])?;
    let (in_time, in_time_agent) = steady(cluster, in_time, "1s", &Authority::new("long")?, &[])?;
    let (waiting, waiting_agent) = steady(cluster, waiting, "1s", &Authority::new("long")?, &["by-hand"])?;
    let (server, _registration) = in_time.judged()?;
    let agents = [&late_agent, &in_time_agent, &waiting_agent];
    let mut ports = agents.into_iter().map(Agents::port).collect::<Result<Vec<_>>>()?;
    ports.push(server.metrics_port());
    let prometheus = Prometheus::start(cluster, &ports)?;

    // An admission request without a verdict, and an overridden rule.
    ensure!(server.post("/validate", "{}").is_err(), "an empty review got a verdict");
    let empty = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "overridden", "annotations": { "breakglass.trustspan.dev/empty": "a test" } },
        "stringData": { "ca.crt": "no PEM" },
    });
    cluster.apply(in_time.ns, &empty.to_string())?;
    paused_workload(&in_time)?;
    // Nothing listens there.
    cluster.apply(waiting.ns, &endpoint_slice("gateway", (own_address()?, free_port()?).into()).to_string())?;
    let target = json!({ "serviceName": "gateway", "host": "shop.example.com", "clientSecretName": "by-hand" });
    waiting.set_policy("probe", &json!({ "target": target }))?;
    for rotation in [&late, &in_time, &waiting] {
        rotation.write_root(&Authority::new("new")?)?;
    }

    for metric in metrics()? {
        wait_for(&format!("a series of {metric}"), SOON, || Ok(!prometheus.query(&metric)?.is_empty()))?;
    }
    let alert = "ALERTS{alertname=\"TrustspanRotationTooLate\", alertstate=\"firing\"}";
    wait_for("the alert of the rotation that is late", SOON, || Ok(!prometheus.query(alert)?.is_empty()))?;
    let firing = prometheus.query(alert)?;
    let namespaces: BTreeSet<_> = firing.iter().map(|series| series["metric"]["namespace"].as_str()).collect();
    ensure!(namespaces == BTreeSet::from([Some(late.ns)]), "the alert fires for {namespaces:?}");
    let durations = prometheus.query("trustspan_gatewaysecret_rotation_duration_seconds")?;
    ensure!(durations.iter().any(|series| series["metric"]["namespace"] == in_time.ns), "no duration: {durations:?}");
    Ok(())
}

/// A GatewaySecret in phase Steady, with clients that are renewed by hand, and its agent.
fn steady<'c>(
    cluster: &'c Cluster,
    ns: &'c str,
    delay: &str,
    authority: &Authority,
    clients: &[&str],
) -> Result<(Kept<'c>, Process)> {
    let kept = Kept::new(cluster, ns, delay)?;
    kept.set("clients", &json!({ "allDeclared": true, "secretNames": clients }))?;
    kept.write_root(authority)?;
    clients.iter().try_for_each(|client| kept.write_client(client, authority))?;
    // Without its rights, the agent reports a failure.
    let agent = kept.agents.start("a")?;
    kept.wait_condition("Synced", "Forbidden", &[])?;
    kept.agents.grant()?;
    kept.wait_phase("Steady")?;
    Ok((kept, agent))
}

/// A Deployment that loads a Secret once, and is paused when the Secret changes.
fn paused_workload(kept: &Kept<'_>) -> Result<()> {
    let (cluster, ns) = (kept.cluster, kept.ns);
    let write = |authority: &Authority| {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "ca" }, "stringData": { "ca.crt": authority.pem() },
        });
        cluster.apply(ns, &secret.to_string())
    };
    write(&Authority::new("one")?)?;
    let labels = json!({ "app": "app" });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "app" },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "app", "image": "app:1" }] } },
        },
    });
    cluster.apply(ns, &deployment.to_string())?;
    let consumer = json!({
        "apiVersion": "trustspan.dev/v1alpha1", "kind": "TrustConsumer", "metadata": { "name": "app" },
        "spec": {
            "workloads": [{ "kind": "Deployment", "name": "app" }],
            "loads": [{ "kind": "Secret", "name": "ca", "keys": ["ca.crt"] }],
        },
    });
    cluster.apply(ns, &consumer.to_string())?;
    kept.agents.grant()?;
    cluster.come_up(ns, "app")?;
    let reason = |type_: &str, reason: &str| {
        wait_for(&format!("condition {type_} of the TrustConsumer to say {reason}"), SOON, || {
            let stored = cluster.get("trustconsumer", ns, "app")?;
            let mut conditions = stored["status"]["conditions"].as_array().into_iter().flatten();
            Ok(conditions.any(|condition| condition["type"] == type_ && condition["reason"] == reason))
        })
    };
    reason("Loaded", "Loaded")?;
    cluster.kubectl(["rollout", "pause", "deployment/app"]).ns(ns).ok()?;
    write(&Authority::new("two")?)?;
    reason("Restartable", "Paused")
}

/// The names of the metrics in the shipped alerts and dashboard.
fn metrics() -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for file in ["prometheusrule.yaml", "dashboard.json"] {
        for word in shipped(file)?.split(|c: char| !(c.is_ascii_lowercase() || c == '_')) {
            if word.starts_with("trustspan_") && word != WITHOUT_SERIES {
                names.insert(word.to_owned());
            }
        }
    }
    Ok(names)
}

fn shipped(name: &str) -> Result<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/monitoring").join(name);
    fs::read_to_string(&file).with_context(|| file.display().to_string())
}

/// A real Prometheus. Dropping it ends it.
struct Prometheus {
    port: u16,
    _process: Process,
}

impl Prometheus {
    /// Scrapes these ports, and evaluates the shipped alerts, every second.
    fn start(cluster: &Cluster, ports: &[u16]) -> Result<Self> {
        let dir = cluster.temp_dir("prometheus")?;
        let rule = shipped("prometheusrule.yaml")?;
        let (_, groups) = rule.split_once("\nspec:\n").context("no spec")?;
        fs::write(dir.join("rules.yaml"), groups.replace("\n  ", "\n").trim_start())?;
        let targets: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        // JSON is YAML.
        let config = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{ "job_name": "trustspan", "honor_labels": true, "static_configs": [{ "targets": targets }] }],
        });
        fs::write(dir.join("prometheus.yaml"), config.to_string())?;
        let port = free_port()?;
        let args = [
            format!("--config.file={}", dir.join("prometheus.yaml").display()),
            format!("--storage.tsdb.path={}", dir.join("data").display()),
            format!("--web.listen-address=127.0.0.1:{port}"),
        ];
        let missing = "Prometheus is missing: install it (Debian: prometheus)";
        Command::new("prometheus").arg("--version").output().context(missing)?;
        let process = cluster.spawn("prometheus", Path::new("prometheus"), args, &[])?;
        let prometheus = Self { port, _process: process };
        wait_for(
            "Prometheus to scrape every target",
            SOON,
            || Ok(prometheus.query("up == 1")?.len() == targets.len()),
        )?;
        Ok(prometheus)
    }

    /// The series of an instant query.
    fn query(&self, query: &str) -> Result<Vec<Value>> {
        let url = format!("http://127.0.0.1:{}/api/v1/query", self.port);
        let query = format!("query={query}");
        let args = ["--silent", "--show-error", "--fail-with-body", "--noproxy", "*", "--get", "--data-urlencode"];
        let output = Command::new("curl").args(args).args([&query, &url]).output().context("starting curl")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut answer: Value = serde_json::from_slice(&output.stdout)?;
        Ok(serde_json::from_value(answer["data"]["result"].take())?)
    }
}
