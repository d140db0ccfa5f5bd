//! How memory, start, requests at rest and the time of a write grow with the number of objects of one kind. `TRUSTSPAN_SCALE=curves` runs
//! this alone, and `tests/scale/plot.py` draws what it writes.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use trustspan::{api::GatewaySecret, store::cluster::connect};

use crate::{
    Size,
    crowd::{AT_ONCE, create_all, create_deployments, create_secrets},
    issuer::Issuer,
    testbed::{Agents, Authority, Cluster, Kept, Process, Request, Server, Source, User, base64, exported, wait_for},
    usage::Memory,
};

/// The resync interval, and the same as an argument: half of the default.
const POLL: (Duration, &str) = (Duration::from_secs(15), "15s");
/// Resync intervals in which requests are counted. The agent surveys workloads once in this time (`SURVEY_INTERVALS`).
const INTERVALS: u32 = 4;
/// The same number of default intervals in an hour.
const IN_AN_HOUR: usize = 3_600 / (30 * INTERVALS as usize);
/// Longer than the first reconcile of all GatewaySecrets takes.
const PATIENCE: Duration = Duration::from_secs(300);
/// Writes of a new CA in each measurement.
const WRITES: usize = 5;
/// GatewaySecrets of one namespace.
const OF_NAMESPACE: usize = 10;
/// The most that unrelated Secrets may add to the memory of a process, in KiB.
const GROWTH: u64 = 1024;

/// The numbers of objects.
const SECRETS: [usize; 4] = [100, 1_000, 10_000, 50_000];
const DEPLOYMENTS: [usize; 3] = [1_000, 3_000, 10_000];
const CLIENTS: [usize; 3] = [10, 100, 1_000];
const GATEWAY_SECRETS: [usize; 3] = [10, 100, 1_000];

pub(crate) fn curves(cluster: &Cluster, _: Size) -> Result<Vec<String>> {
    let [schemas] = exported("setup", &["schemas"], ["TRUSTSPAN_BED_SCHEMAS"])?;
    for kind in ["certificates", "certificaterequests"] {
        let file = Path::new(&schemas).join(format!("cert-manager/cert-manager.io_{kind}.yaml"));
        cluster.apply_crds(&fs::read_to_string(&file).with_context(|| file.display().to_string())?)?;
    }
    let (mut points, mut lines) = (Vec::new(), vec![Point::HEAD.to_owned()]);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("curves.json");
    for measure in [of_secrets, of_deployments, of_clients, of_gateway_secrets] {
        for point in measure(cluster)? {
            lines.push(point.line());
            points.push(point);
        }
        fs::write(&file, serde_json::to_string_pretty(&points.iter().map(Point::json).collect::<Vec<_>>())?)?;
    }
    lines.push(format!("{}: draw it with tests/scale/plot.py", file.display()));
    let of_secrets: Vec<_> = points.iter().take(SECRETS.len()).collect();
    for memory in [|point: &Point| point.agent.memory, |point: &Point| point.webhook.memory] {
        let all: Vec<_> = of_secrets.iter().map(|point| memory(point)).collect();
        let grown = all[all.len() - 1].saturating_sub(all[0]);
        ensure!(grown < GROWTH, "{} Secrets of others added {grown} KiB: {all:?}", SECRETS[SECRETS.len() - 1]);
    }
    Ok(lines)
}

/// Secrets in a namespace without a GatewaySecret.
fn of_secrets(cluster: &Cluster) -> Result<Vec<Point>> {
    let crowd = format!("crowd-{}", cluster.unique());
    cluster.kubectl(["create", "namespace", &crowd]).ok()?;
    cluster.with_temp_ns(|ns| {
        let mut bench = Bench::new(cluster, ns)?;
        let from = [0].into_iter().chain(SECRETS);
        let measure = |(from, to)| {
            create_secrets(cluster, &crowd, from..to)?;
            bench.measure("Secrets of others", to, 1)
        };
        from.zip(SECRETS).map(measure).collect()
    })
}

/// Deployments in the namespace of the GatewaySecret.
fn of_deployments(cluster: &Cluster) -> Result<Vec<Point>> {
    cluster.with_temp_ns(|ns| {
        let mut bench = Bench::new(cluster, ns)?;
        let from = [0].into_iter().chain(DEPLOYMENTS);
        let measure = |(from, to)| {
            create_deployments(cluster, ns, from..to)?;
            bench.measure("Deployments", to, 1)
        };
        from.zip(DEPLOYMENTS).map(measure).collect()
    })
}

/// Clients of one GatewaySecret, whose certificates cert-manager has issued.
fn of_clients(cluster: &Cluster) -> Result<Vec<Point>> {
    let measure = |count| {
        cluster.with_temp_ns(|ns| {
            let mut bench = Bench::new(cluster, ns)?;
            create_clients(cluster, ns, &bench.issuer.first, count)?;
            bench.is_followed = false;
            bench.measure("clients", count, 1)
        })
    };
    CLIENTS.into_iter().map(measure).collect()
}

/// GatewaySecrets, ten in each namespace.
fn of_gateway_secrets(cluster: &Cluster) -> Result<Vec<Point>> {
    cluster.with_temp_ns(|ns| {
        let mut bench = Bench::new(cluster, ns)?;
        // The rights that `trustspan rbac` prints would be thousands of objects, and do not change what the agent asks.
        let user = format!("--user={}", User::Agent.name());
        cluster.kubectl(["create", "clusterrolebinding", ns, "--clusterrole=cluster-admin", &user]).ok()?;
        let root = Kept::root(&Authority::new("root of all")?)?;
        let namespace = |number: usize| format!("{ns}-{}", number / OF_NAMESPACE);
        let mut from = 1;
        let mut points = Vec::new();
        for to in GATEWAY_SECRETS {
            for first in (from..to).filter(|number| *number == 1 || number.is_multiple_of(OF_NAMESPACE)) {
                cluster.kubectl(["create", "namespace", &namespace(first)]).ok()?;
                bench.kept.agents.more.extend(["--namespace".to_owned(), namespace(first)]);
            }
            create_all::<Secret>(cluster, from..to, |number| {
                let mut root = root.clone();
                root["metadata"] = json!({ "namespace": namespace(number), "name": format!("root-{number}") });
                root
            })?;
            create_all::<GatewaySecret>(cluster, from..to, |number| {
                json!({
                    "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret",
                    "metadata": { "namespace": namespace(number), "name": format!("gateway-{number}") },
                    "spec": { "sourceSecretName": format!("root-{number}"), "secretName": format!("managed-{number}") },
                })
            })?;
            from = to;
            points.push(bench.measure("GatewaySecrets", to, to)?);
        }
        Ok(points)
    })
}

/// Creates clients' Certificates with their last CertificateRequest, as cert-manager leaves them.
fn create_clients(cluster: &Cluster, ns: &str, authority: &Authority, count: usize) -> Result<()> {
    let issuer = json!({ "name": "clients" });
    let ready = json!([{
        "type": "Ready", "status": "True", "reason": "Issued", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    let objects = |name: &str| {
        let (certificate, _) = authority.issue_client(name)?;
        let template = json!({ "labels": { "trustspan.dev/client": "gateway" } });
        let annotations =
            json!({ "cert-manager.io/certificate-name": name, "cert-manager.io/certificate-revision": "1" });
        anyhow::Ok([
            json!({
                "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": { "name": name },
                "spec": { "secretName": name, "secretTemplate": template, "issuerRef": issuer, "commonName": name },
                "status": { "revision": 1, "conditions": ready },
            }),
            json!({
                "apiVersion": "cert-manager.io/v1", "kind": "CertificateRequest",
                "metadata": { "name": format!("{name}-1"), "annotations": annotations },
                "spec": { "issuerRef": issuer, "request": base64(name) },
                "status": { "conditions": ready, "certificate": base64(&certificate), "ca": base64(authority.pem()) },
            }),
        ])
    };
    Runtime::new()?.block_on(async {
        let client = connect(Some(Path::new(&cluster.kubeconfig(User::Admin)))).await?;
        let create = |number: usize| {
            let (client, objects) = (client.clone(), objects(&format!("client-{number}")));
            async move {
                for object in objects? {
                    let object: DynamicObject = serde_json::from_value(object)?;
                    let types = object.types.clone().context("no kind")?;
                    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
                    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), ns, &resource);
                    let name = object.metadata.name.as_deref().context("no name")?;
                    api.create(&PostParams::default(), &object).await?;
                    let status = Patch::Merge(json!({ "status": object.data["status"] }));
                    api.patch_status(name, &PatchParams::default(), &status).await?;
                }
                anyhow::Ok(())
            }
        };
        stream::iter(0..count).map(create).buffer_unordered(AT_ONCE).try_collect().await
    })
}

/// A GatewaySecret, whose agent and webhook are measured.
struct Bench<'c> {
    kept: Kept<'c>,
    issuer: Issuer,
    /// Whether its clients get new certificates, so that a rotation completes.
    is_followed: bool,
    writes: usize,
}

impl<'c> Bench<'c> {
    fn new(cluster: &'c Cluster, ns: &'c str) -> Result<Self> {
        let kept = Kept::new(cluster, ns, "50ms")?;
        kept.agents.grant()?;
        let issuer = Issuer::new(&kept)?;
        Ok(Self { kept, issuer, is_followed: true, writes: 0 })
    }

    /// Starts both processes, measures them at rest, and measures writes of a new CA.
    fn measure(&mut self, objects: &'static str, count: usize, gateway_secrets: usize) -> Result<Point> {
        let cluster = self.kept.cluster;
        let begun = Instant::now();
        let mut agent = self.kept.agents.start_with("measured", &cluster.kubeconfig(User::Agent), POLL.1)?;
        wait_for("all GatewaySecrets to be reconciled", PATIENCE, || Ok(reconciled(&agent)? == gateway_secrets))?;
        let agent_start = begun.elapsed();
        let begun = Instant::now();
        let mut server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let webhook_start = begun.elapsed();
        self.kept.wait_phase("Steady")?;

        let users = [User::Agent, User::Webhook];
        let requests = || users.map(|user| cluster.requests(user));
        let [before_agent, before_webhook] = requests();
        // Not a wait: the time in which requests are counted.
        std::thread::sleep(POLL.0 * INTERVALS);
        let [after_agent, after_webhook] = requests();
        let agent_requests = per_hour(&after_agent?[before_agent?.len()..]);
        let webhook_requests = per_hour(&after_webhook?[before_webhook?.len()..]);
        let agent_memory = Memory::of(agent.pid())?;
        let webhook_memory = Memory::of(server.pid().context("the webhook does not run")?)?;

        let mut writes = Vec::new();
        for _ in 0..WRITES {
            self.writes += 1;
            if self.is_followed {
                self.kept.wait_phase("Steady")?;
                writes.push(self.issuer.rotate(self.writes)?);
            } else {
                writes.push(self.issuer.begin(self.writes)?.1);
            }
        }
        writes.sort_unstable();
        agent.stop(PATIENCE)?;
        server.stop()?;
        let process = |memory: Memory, start, requests| Measured { memory: memory.resident, start, requests };
        let point = Point {
            objects,
            count,
            agent: process(agent_memory, agent_start, agent_requests),
            webhook: process(webhook_memory, webhook_start, webhook_requests),
            write: writes[WRITES / 2],
        };
        eprintln!("{}", point.line());
        Ok(point)
    }
}

/// Requests in an hour with the default resync interval, from those in some intervals. Only the Lease is renewed by time.
fn per_hour(requests: &[Request]) -> usize {
    let (by_time, by_interval): (Vec<_>, Vec<_>) = requests.iter().partition(|request| request.resource == "leases");
    let periods = 3_600 / (POLL.0 * INTERVALS).as_secs() as usize;
    by_time.len() * periods + by_interval.len() * IN_AN_HOUR
}

/// The number of GatewaySecrets that an agent has reconciled.
fn reconciled(agent: &Process) -> Result<usize> {
    let metrics = Agents::metrics(agent)?;
    Ok(metrics.lines().filter(|line| line.starts_with("trustspan_agent_last_reconcile_timestamp_seconds{")).count())
}

/// One of the two processes.
struct Measured {
    /// Resident memory at rest, in KiB.
    memory: u64,
    /// From the start of the process: the agent's until all GatewaySecrets are reconciled, the webhook's until it is ready.
    start: Duration,
    /// Requests to the API server in an hour at rest: see [`per_hour`].
    requests: usize,
}

/// What was measured with a number of objects.
struct Point {
    objects: &'static str,
    count: usize,
    agent: Measured,
    webhook: Measured,
    /// The median time from a new CA in the source Secret to the managed Secret.
    write: Duration,
}

impl Point {
    const HEAD: &str = "                             agent: RSS     start  requests/h   webhook: RSS     start  requests/h   CA written";

    fn line(&self) -> String {
        let of = |process: &Measured| {
            format!("{:>9} KiB {:>6} ms {:>11}", process.memory, process.start.as_millis(), process.requests)
        };
        let (agent, webhook) = (of(&self.agent), of(&self.webhook));
        format!("{:>7} {:<18} {agent}   {webhook} {:>9} ms", self.count, self.objects, self.write.as_millis())
    }

    fn json(&self) -> Value {
        let of = |process: &Measured| {
            json!({
                "memory_kib": process.memory, "start_ms": process.start.as_millis() as u64,
                "requests_per_hour": process.requests,
            })
        };
        json!({
            "objects": self.objects, "count": self.count, "agent": of(&self.agent), "webhook": of(&self.webhook),
            "write_ms": self.write.as_millis() as u64,
        })
    }
}
