//! The cost of a cluster with many unrelated Secrets and Deployments: memory, and requests.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{
    ByteString,
    api::{apps::v1::Deployment, core::v1::Secret},
};
use kube::{Api, api::PostParams};
use serde_json::json;
use tokio::runtime::Runtime;
use trustspan::store::cluster::connect;

use crate::{
    Size,
    issuer::Issuer,
    testbed::{Authority, Cluster, Kept, Patience, Process, Registration, Request, Scope, Server, Source, User},
    usage::{Memory, is_idle, resyncs, summary, wait_quiet, wait_resyncs},
};

/// The agent's `--poll`.
const POLL: &str = "200ms";
/// Resyncs without a change, in each measurement.
const RESYNCS: usize = 10;
/// Rotations in each measurement.
const ROTATIONS: usize = 3;
/// The most that the memory of a process may grow, in KiB. As JSON, the objects of the short run are larger than that.
const GROWTH: u64 = 12 * 1024;
/// The size of a Secret without a pair, in bytes.
const OTHER: usize = 8 * 1024;
/// The number of objects that are created at the same time.
pub(crate) const AT_ONCE: usize = 16;
/// The only Secrets that the agent may read.
const NAMES: [&str; 4] = ["root", "root-cacert", "managed", "managed-cacert"];

pub(crate) fn by_name(cluster: &Cluster, size: Size) -> Result<Vec<String>> {
    let crowd = format!("crowd-{}", cluster.unique());
    cluster.kubectl(["create", "namespace", &crowd]).ok()?;
    cluster.with_temp_ns(|ns| {
        let kept = Kept::new(cluster, ns, "100ms")?;
        kept.agents.grant()?;
        let issuer = Issuer::new(&kept)?;
        let agent = kept.agents.start_with("crowded", &cluster.kubeconfig(User::Agent), POLL)?;
        let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let namespaces = Scope::Namespaces(vec![ns.to_owned(), crowd.clone()]);
        let _registration = Registration::new(cluster, &server, &namespaces, Patience::Shipped)?;
        kept.wait_phase("Steady")?;

        let mut run = Run { cluster, issuer: &issuer, agent: &agent, server: &server, rotations: 0 };
        let before = run.measure()?;
        let begun = Instant::now();
        let secrets = reviews(&server, r#"kind="Secret""#)?;
        create(cluster, &crowd, ns, size)?;
        let strangers = reviews(&server, r#"kind="Secret""#)? - secrets;
        let took = begun.elapsed();
        let after = run.measure()?;
        let mut lines = vec![HEAD.to_owned(), before.line("alone")];
        lines.push(after.line(&format!("{} Secrets, {} Deployments", size.secrets, size.deployments)));
        let reviews = reviews(&server, r#"kind="Deployment""#)?;
        lines.push(format!(
            "they were created in {took:.0?}: {reviews} Deployments and {strangers} Secrets were sent to the webhook"
        ));
        lines.push(format!("nothing changes, the agent asks: {}", after.asked));
        lines.extend(all_by_name(cluster)?);
        before.compare(&after).with_context(|| lines.join("\n"))?;
        ensure!(
            reviews >= size.deployments,
            "expected a review of each Deployment, {}, saw {reviews}",
            size.deployments
        );
        ensure!(strangers == 0, "{strangers} Secrets of an unguarded namespace were sent to the webhook");
        // The API server rejects this request, and still logs it, so a list of Secrets by the agent would be in the
        // log, too.
        cluster.kubectl(["get", "secrets"]).ns(ns).user(User::Agent).fails()?;
        ensure!(all_by_name(cluster).is_err(), "a list of all Secrets was not distinguished from one by name");
        Ok(lines)
    })
}

/// The number of reviews of a kind, by a label of the webhook's metric.
fn reviews(server: &Server<'_>, kind: &str) -> Result<usize> {
    let metrics = server.metrics()?;
    let counters = metrics.lines().filter(|line| line.starts_with("trustspan_admission_requests_total{"));
    let counters = counters.filter(|line| line.contains(kind));
    let counts = counters.map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse::<usize>()?));
    counts.sum()
}

/// All requests of the agent for Secrets were for single names, and the webhook made none.
fn all_by_name(cluster: &Cluster) -> Result<Vec<String>> {
    let (agent, webhook) = (cluster.requests(User::Agent)?, cluster.requests(User::Webhook)?);
    let on_secrets = |requests: &[Request]| {
        requests.iter().filter(|request| request.resource == "secrets").cloned().collect::<Vec<_>>()
    };
    let (by_agent, by_webhook) = (on_secrets(&agent), on_secrets(&webhook));
    let verbs = ["get", "list", "watch", "patch", "update"];
    let is_by_name = |request: &&Request| NAMES.contains(&&*request.name) && verbs.contains(&&*request.verb);
    let others: Vec<_> = by_agent.iter().filter(|request| !is_by_name(request)).collect();
    ensure!(others.is_empty(), "expected the agent to ask for {NAMES:?} only, each by name, saw {others:?}");
    ensure!(by_webhook.is_empty(), "expected no request of the webhook on Secrets, saw {by_webhook:?}");
    // An empty audit log would prove nothing.
    ensure!(!by_agent.is_empty() && !webhook.is_empty(), "the audit log holds no requests of either");
    Ok(vec![
        format!("requests on Secrets by the agent in this run, all by name: {}", summary(&by_agent)),
        format!("requests on Secrets by the webhook: none; all that it asked: {}", summary(&webhook)),
    ])
}

struct Run<'r> {
    cluster: &'r Cluster,
    issuer: &'r Issuer,
    agent: &'r Process,
    server: &'r Server<'r>,
    rotations: usize,
}

impl Run<'_> {
    /// Makes rotations and resyncs without a change, and measures their cost.
    fn measure(&mut self) -> Result<Cost> {
        for _ in 0..ROTATIONS {
            self.rotations += 1;
            self.issuer.rotate(self.rotations)?;
        }
        // The status after the last rotation may not be written yet.
        wait_quiet(self.cluster)?;
        let (from, begun) = (self.cluster.requests(User::Agent)?.len(), Instant::now());
        wait_resyncs(self.cluster, from, RESYNCS)?;
        let requests = self.cluster.requests(User::Agent)?.split_off(from);
        Ok(Cost {
            agent: Memory::of(self.agent.pid())?,
            webhook: Memory::of(self.server.pid().context("the webhook does not run")?)?,
            resyncs: resyncs(&requests),
            requests: requests.len(),
            of_resyncs: requests.iter().filter(|request| is_of_resync(request)).count(),
            took: begun.elapsed(),
            writes: requests.iter().filter(|request| !is_idle(request)).cloned().collect(),
            asked: summary(&requests),
        })
    }
}

/// Resources that the agent requests only at a resync.
const OF_RESYNCS: [&str; 3] = ["secrets", "configmaps", "gatewaysecrets"];

fn is_of_resync(request: &Request) -> bool {
    // The health check of the API server lists GatewaySecrets, by time.
    let is_health_check = request.resource == "gatewaysecrets" && request.verb == "list";
    OF_RESYNCS.contains(&&*request.resource) && !is_health_check
}

struct Cost {
    agent: Memory,
    webhook: Memory,
    resyncs: usize,
    requests: usize,
    /// The number of requests that only resyncs make.
    of_resyncs: usize,
    took: Duration,
    /// The writes while nothing changed.
    writes: Vec<Request>,
    asked: String,
}

const HEAD: &str = "in the cluster                     agent RSS (peak)    webhook RSS (peak)   requests resyncs  in";

impl Cost {
    fn line(&self, what: &str) -> String {
        let memory = |memory: Memory| format!("{:>6} ({:>6}) KiB", memory.resident, memory.peak);
        let (agent, webhook) = (memory(self.agent), memory(self.webhook));
        format!("{what:<32} {agent:>19} {webhook:>21} {:>10} {:>7}  {:.1?}", self.requests, self.resyncs, self.took)
    }

    fn compare(&self, after: &Self) -> Result<()> {
        for (who, before, after) in [("agent", self.agent, after.agent), ("webhook", self.webhook, after.webhook)] {
            let grown = after.peak.saturating_sub(before.peak);
            ensure!(grown < GROWTH, "expected the {who} to grow by less than {GROWTH} KiB, saw {grown}");
        }
        for cost in [self, after] {
            ensure!(cost.writes.is_empty(), "nothing changed, and the agent wrote {:?}", cost.writes);
        }
        // Leader election, cluster snapshots and retries of watches are driven by time.
        let (before, after) = (self.of_resyncs / self.resyncs.max(1), after.of_resyncs / after.resyncs.max(1));
        ensure!(after <= before + 1, "expected {before} requests per resync as before, saw {after}");
        Ok(())
    }
}

/// Creates Secrets, and a Deployment that mounts each. The agent searches those in the namespace of the GatewaySecret for outdated workloads.
fn create(cluster: &Cluster, crowd: &str, ns: &str, size: Size) -> Result<()> {
    create_secrets(cluster, crowd, 0..size.secrets)?;
    create_deployments(cluster, ns, 0..size.deployments)
}

/// Creates Secrets, half of them with a serving pair.
pub(crate) fn create_secrets(cluster: &Cluster, ns: &str, numbers: Range<usize>) -> Result<()> {
    let authority = Authority::new("somebody's CA")?;
    let (certificate, key) = authority.issue(&["shop.example.com"])?;
    let pair = BTreeMap::from(
        [("tls.crt", certificate), ("tls.key", key)]
            .map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes()))),
    );
    let other = BTreeMap::from([("release".to_owned(), ByteString(vec![b'x'; OTHER]))]);
    create_all::<Secret>(cluster, numbers, |number| {
        let (type_, data) = if number.is_multiple_of(2) { ("kubernetes.io/tls", &pair) } else { ("Opaque", &other) };
        json!({ "metadata": { "namespace": ns, "name": format!("other-{number}") }, "type": type_, "data": data })
    })
}

/// Creates Deployments without pods.
pub(crate) fn create_deployments(cluster: &Cluster, ns: &str, numbers: Range<usize>) -> Result<()> {
    create_all::<Deployment>(cluster, numbers, |number| {
        let labels = json!({ "app": format!("app-{number}") });
        let container =
            json!({ "name": "app", "image": "app", "volumeMounts": [{ "name": "pair", "mountPath": "/pair" }] });
        let volume = json!({ "name": "pair", "secret": { "secretName": format!("other-{number}") } });
        let template =
            json!({ "metadata": { "labels": labels }, "spec": { "containers": [container], "volumes": [volume] } });
        let spec =
            json!({ "replicas": 0, "paused": true, "selector": { "matchLabels": labels }, "template": template });
        json!({ "metadata": { "namespace": ns, "name": format!("app-{number}") }, "spec": spec })
    })
}

/// Creates objects, many at the same time.
pub(crate) fn create_all<K>(
    cluster: &Cluster,
    numbers: Range<usize>,
    object: impl Fn(usize) -> serde_json::Value,
) -> Result<()>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    Runtime::new()?.block_on(async {
        let client = connect(Some(Path::new(&cluster.kubeconfig(User::Admin)))).await?;
        let create = |number| {
            let (client, object) = (client.clone(), serde_json::from_value::<K>(object(number)));
            async move {
                let object = object?;
                let api: Api<K> = Api::namespaced(client, object.meta().namespace.as_deref().context("no namespace")?);
                api.create(&PostParams::default(), &object).await?;
                anyhow::Ok(())
            }
        };
        stream::iter(numbers).map(create).buffer_unordered(AT_ONCE).try_collect().await
    })
}
