//! The serving certificate that `trustspan agent` keeps, with the rights of `manifests/base`: two replicas of `trustspan serve` behind one
//! address, webhooks with failurePolicy Fail, and requests that they must admit. In place of kubelets, tasks copy the Secret to the files that
//! the replicas serve.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};
use tokio::{
    runtime::{Handle, Runtime},
    sync::RwLock,
    task::JoinSet,
    time::{sleep, sleep_until},
};
use trustspan::certgen::{ObjectKind, TRUSTSPAN_WEBHOOK};
use trustspan::store::{certgen::api, cluster::connect};

use crate::secrets::reviews;
use crate::testbed::{
    Agents, Authority, Balancer, Cluster, Process, Registration, SOON, Server, Source, User, base64, mount, shipped,
    wait_for,
};

cases![
    requests_are_admitted_while_the_certificate_is_rotated,
    a_reverted_ca_bundle_is_repaired_in_each_stage,
    requests_are_admitted_while_replicas_restart_and_reload,
    only_requests_in_flight_fail_when_a_replica_is_killed,
    requests_fail_while_a_ca_is_replaced_at_once,
];

/// Number of rotations, of restarts of each replica, and of kills; `TRUSTSPAN_SERVING_ROTATIONS` sets another, such as 10.
const ROTATIONS: usize = 1;
/// Changes of each replica's files after each of its restarts: with both replicas and ten restarts, 60.
const RELOADS: usize = 3;
/// Tasks that send requests, and how often each does: 50 requests in a second.
const SENDERS: u32 = 10;
const SENDER_INTERVAL: Duration = Duration::from_millis(200);
/// How often all connections to the webhooks are closed, so that new handshakes are made.
const CONNECTION_LIFE: Duration = Duration::from_secs(1);
/// When the stand-ins for the kubelet write a changed Secret. In between, replicas serve different certificates.
const MOUNT_DELAYS: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(2)];
/// The lifetime of a certificate. A rotation begins after two thirds of it.
const LIFETIME: &str = "75s";
/// The lifetime where the propagation delay begins again with each repair: on a busy machine the certificate would expire before it is replaced.
const LONG_LIFETIME: &str = "120s";
/// Longer than the longest mount delay, and the interval of two seconds in which the server reads its files.
const PROPAGATION_DELAY: &str = "8s";
/// Limit for a rotation: its begin, two propagation delays, and what a busy machine adds.
const ROTATION: Duration = Duration::from_secs(240);

/// The promised limit for the repair of a reverted caBundle.
const REPAIR: Duration = Duration::from_secs(5);
/// Requests that are admitted in a row after a repair, before the next failure would count as undisturbed.
const ADMITTED_AGAIN: usize = 20;

const SECRET: &str = "trustspan-webhook-tls";
const PENDING: &str = "trustspan-webhook-certgen-pending";
const KINDS: [ObjectKind; 2] = [ObjectKind::MutatingWebhookConfiguration, ObjectKind::ValidatingWebhookConfiguration];
/// Label of the requests of this test.
const LABEL: &str = "serving-certificate-test";

/// Requests, by what happens meanwhile.
type Counts = BTreeMap<&'static str, Count>;

#[derive(Clone, Default)]
struct Count {
    sent: usize,
    failed: usize,
    /// Why the first one failed.
    error: String,
}

/// The number of requests, none of which failed.
fn none_failed(counts: &Counts, meanwhile: &str) -> Result<usize> {
    let Count { sent, failed, error } = counts.get(meanwhile).cloned().unwrap_or_default();
    ensure!(sent > 0 && failed == 0, "{meanwhile}: {failed} of {sent} requests failed. The first one: {error}");
    Ok(sent)
}

/// Two replicas behind one address, whose certificate an agent keeps.
struct Bed<'c> {
    cluster: &'c Cluster,
    ns: &'c str,
    /// The name of both webhook configurations.
    name: String,
    servers: Vec<Server<'c>>,
    balancer: Balancer,
    client: Client,
    runtime: Runtime,
    agents: Agents<'c>,
    agent: Mutex<Process>,
}

impl<'c> Bed<'c> {
    fn start(cluster: &'c Cluster, ns: &'c str) -> Result<Self> {
        Self::start_with(cluster, ns, LIFETIME)
    }

    fn start_with(cluster: &'c Cluster, ns: &'c str, lifetime: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let client = runtime.block_on(connect(Some(&cluster.kubeconfig(User::Admin))))?;
        let name = format!("serving-certificate-{}", cluster.unique());
        let start = |_| Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=2s"]);
        let servers = MOUNT_DELAYS.iter().map(start).collect::<Result<Vec<_>>>()?;
        let balancer = Balancer::start(runtime.handle(), servers.iter().map(Server::port).collect())?;
        register(cluster, ns, &name, balancer.port())?;
        grant(cluster, ns, &name)?;

        let profile = cluster.temp_dir("serving-profile")?.join("profile.yaml");
        std::fs::write(&profile, profile_text(&name, lifetime)?)?;
        let mut agents = Agents::new(cluster, ns)?;
        let profile = profile.display().to_string();
        // Agents are killed, and the next one waits for the end of the lease.
        agents.lease = Some("5s");
        agents.more =
            ["--serving-certificate", ns, "--serving-certificate-profile", &profile].map(str::to_owned).into();
        let agent = Mutex::new(agents.start("a")?);
        for (server, delay) in servers.iter().zip(MOUNT_DELAYS) {
            let dir = server.cert_dir().to_owned();
            mount(runtime.handle(), client.clone(), (ns, SECRET), dir, delay);
        }
        let bed = Self { cluster, ns, name, servers, balancer, client, runtime, agents, agent };
        bed.wait_served()?;
        Ok(bed)
    }

    fn get(&self, kind: ObjectKind, name: &str) -> Result<Value> {
        let object = self.runtime.block_on(api(&self.client, self.ns, kind).get(name))?;
        Ok(serde_json::to_value(object)?)
    }

    /// The bundle of the Secret in base64, and its leaf.
    fn stored(&self) -> Result<(String, String)> {
        let secret = self.get(ObjectKind::Secret, SECRET)?;
        let field = |key: &str| secret["data"][key].as_str().map(str::to_owned).with_context(|| key.to_owned());
        Ok((field("ca.crt")?, field("tls.crt")?))
    }

    /// The caBundle of each webhook.
    fn ca_bundles(&self) -> Result<Vec<Value>> {
        let bundle = |kind| Ok(self.get(kind, &self.name)?["webhooks"][0]["clientConfig"]["caBundle"].clone());
        KINDS.into_iter().map(bundle).collect()
    }

    /// Writes a caBundle to both configurations, as somebody else.
    fn write_ca_bundles(&self, bundle: &str) -> Result<()> {
        for kind in KINDS {
            // The agent may write at the same time.
            wait_for("a write of the caBundle", SOON, || {
                let mut configuration = self.get(kind, &self.name)?;
                configuration["webhooks"][0]["clientConfig"]["caBundle"] = bundle.into();
                let api = api(&self.client, self.ns, kind);
                let object = serde_json::from_value(configuration)?;
                self.runtime.block_on(api.replace(&self.name, &PostParams::default(), &object))?;
                Ok(true)
            })?;
        }
        Ok(())
    }

    /// Replaces the caBundle as somebody else does, waits for its repair, and until requests are admitted again.
    fn revert(&self, load: &Load, meanwhile: &'static str, bundle: &str) -> Result<()> {
        load.state().meanwhile = Some(meanwhile);
        self.write_ca_bundles(bundle)?;
        let reverted = Instant::now();
        wait_for("the repair of the caBundle", REPAIR, || self.is_written())?;
        println!("{}: {meanwhile}: repaired after {:?}", self.ns, reverted.elapsed());
        self.wait_admitted(load)
    }

    /// Waits until requests are admitted again. Failures after that are undisturbed ones.
    fn wait_admitted(&self, load: &Load) -> Result<()> {
        // Before, requests can be admitted because the API server does not know the reverted caBundle yet.
        Registration::wait_current(self.cluster, self.ns)?;
        let begin = Instant::now();
        wait_for("requests to be admitted again", SOON, || {
            Ok(load.state().successes.iter().filter(|begun| **begun > begin).count() >= ADMITTED_AGAIN)
        })?;
        load.state().meanwhile = None;
        Ok(())
    }

    fn is_written(&self) -> Result<bool> {
        let (bundle, _) = self.stored()?;
        Ok(self.ca_bundles()?.iter().all(|stored| *stored == bundle.as_str()))
    }

    /// Waits until all caBundle fields have the CAs of the Secret, and all replicas serve its certificate.
    fn wait_served(&self) -> Result<()> {
        wait_for("the certificate to be served", ROTATION, || {
            let (_, leaf) = self.stored()?;
            let is_served = |server: &Server<'_>| {
                let file = std::fs::read(server.cert_dir().join("..data/tls.crt")).unwrap_or_default();
                anyhow::Ok(base64(&file) == leaf && not_after(server)? == end_of(&file)?)
            };
            let are_served = self.servers.iter().map(is_served).collect::<Result<Vec<_>>>()?;
            Ok(are_served.into_iter().all(|is_served| is_served) && self.is_written()?)
        })
    }

    fn agent(&self) -> MutexGuard<'_, Process> {
        self.agent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the agent, and starts another one.
    fn replace_agent(&self) -> Result<()> {
        let mut agent = self.agent();
        agent.kill()?;
        *agent = self.agents.start(&format!("agent-{}", self.cluster.unique()))?;
        Ok(())
    }

    fn pending(&self) -> Result<Option<Value>> {
        let pending = self.runtime.block_on(api(&self.client, self.ns, ObjectKind::Secret).get_opt(PENDING))?;
        Ok(pending.map(serde_json::to_value).transpose()?)
    }

    /// Whether a rotation has written the new CA everywhere.
    fn is_trust_written(&self) -> Result<bool> {
        let pending = self.pending()?.unwrap_or_default();
        Ok(pending["metadata"]["annotations"]["trustspan.dev/certgen-trust-written-at"].is_string())
    }

    /// Waits for the end of a rotation that changes this leaf.
    fn wait_rotated(&self, leaf: &str) -> Result<()> {
        wait_for("a rotation", ROTATION, || Ok(self.stored()?.1 != leaf && self.pending()?.is_none()))?;
        self.wait_served()
    }

    /// Runs `act` under load. Returns the requests that were sent, and those that failed, by what happened meanwhile.
    fn under_load<T>(&self, act: impl FnOnce(&Load) -> Result<T>) -> Result<(T, Counts)> {
        let load = Load::default();
        let mut senders = load.start(self.runtime.handle(), self.client.clone(), self.ns);
        let is_over = AtomicBool::new(false);
        let result = std::thread::scope(|scope| {
            let closing = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(CONNECTION_LIFE);
                    self.runtime.block_on(async {
                        let _none_in_flight = load.turn.write().await;
                        self.balancer.close_connections().await
                    })?;
                }
                anyhow::Ok(())
            });
            let result = act(&load);
            is_over.store(true, Ordering::Relaxed);
            closing.join().map_err(|_| anyhow::anyhow!("closing connections panicked"))??;
            result
        });
        self.runtime.block_on(senders.shutdown());
        let counts = load.state().counts.clone();
        for (meanwhile, Count { sent, failed, .. }) in &counts {
            println!("{}: {meanwhile}: {sent} requests, {failed} failed", self.ns);
        }
        Ok((result?, counts))
    }
}

impl Drop for Bed<'_> {
    fn drop(&mut self) {
        for kind in KINDS.map(|kind| kind.gvk().2).into_iter().chain(["clusterrole", "clusterrolebinding"]) {
            if let Err(error) = self.cluster.kubectl(["delete", kind, &self.name, "--ignore-not-found"]).ok() {
                eprintln!("{error:#}");
            }
        }
    }
}

/// Requests that the webhooks must admit.
#[derive(Clone, Default)]
struct Load {
    /// Locked by each request; the connections are closed while there is none.
    turn: Arc<RwLock<()>>,
    state: Arc<Mutex<LoadState>>,
}

#[derive(Default)]
struct LoadState {
    meanwhile: Option<&'static str>,
    counts: Counts,
    /// When requests began that succeeded after the last failure.
    successes: Vec<Instant>,
}

const UNDISTURBED: &str = "undisturbed";
const AT_ONCE: &str = "CA and certificate replaced at once";
const KILLED: &str = "a replica is killed";
const HOLDING: &str = "reverted to a caBundle that holds the CA in service";
const LACKING: &str = "reverted to a caBundle without the CA in service";

impl Load {
    fn state(&self) -> MutexGuard<'_, LoadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, runtime: &Handle, client: Client, ns: &str) -> JoinSet<()> {
        let api: Api<Secret> = Api::namespaced(client, ns);
        let mut senders = JoinSet::new();
        for number in 0..SENDERS {
            let (load, api) = (self.clone(), api.clone());
            senders.spawn_on(async move { load.send(&api, number).await }, runtime);
        }
        senders
    }

    async fn send(&self, api: &Api<Secret>, number: u32) {
        sleep(SENDER_INTERVAL * number / SENDERS).await;
        let secret: Secret = serde_json::from_value(json!({
            "metadata": { "name": format!("load-{number}"), "labels": { LABEL: "" } }, "stringData": { "password": "x" },
        }))
        .expect("a Secret");
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let mut next = tokio::time::Instant::now();
        loop {
            sleep_until(next).await;
            next = (next + SENDER_INTERVAL).max(tokio::time::Instant::now());
            let _turn = self.turn.read().await;
            let (started, before) = (Instant::now(), self.state().meanwhile);
            let result = api.create(&params, &secret).await;
            let mut state = self.state();
            // A request counts as disturbed if it was at its begin or at its end.
            let meanwhile = before.or(state.meanwhile).unwrap_or(UNDISTURBED);
            let count = state.counts.entry(meanwhile).or_default();
            count.sent += 1;
            match result {
                Ok(_) => state.successes.push(started),
                Err(error) => {
                    count.failed += 1;
                    if count.failed == 1 {
                        count.error = error.to_string();
                    }
                    state.successes.clear();
                }
            }
        }
    }
}

/// The built-in profile with this name of both configurations, and shorter times.
fn profile_text(name: &str, lifetime: &str) -> Result<String> {
    let mut profile: Value = serde_saphyr::from_str(TRUSTSPAN_WEBHOOK)?;
    profile["duration"] = lifetime.into();
    profile["propagationDelay"] = PROPAGATION_DELAY.into();
    profile["mutatingWebhookConfigurations"] = json!([name]);
    profile["validatingWebhookConfigurations"] = json!([name, format!("{name}-absent")]);
    Ok(profile.to_string())
}

/// Registers webhooks without a caBundle. The API server reaches the address of an ExternalName Service, and verifies the name of the Service.
fn register(cluster: &Cluster, ns: &str, name: &str, port: u16) -> Result<()> {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "trustspan-webhook" },
        "spec": { "type": "ExternalName", "externalName": "localhost" },
    });
    cluster.apply(ns, &service.to_string())?;
    for (kind, path) in
        [("MutatingWebhookConfiguration", "/mutate"), ("ValidatingWebhookConfiguration", "/validate-guarded")]
    {
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": { "name": name },
            "webhooks": [{
                "name": "serving-certificate.trustspan.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "failurePolicy": "Fail", "timeoutSeconds": 30,
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": ns } },
                "objectSelector": { "matchExpressions": [{ "key": LABEL, "operator": "Exists" }] },
                "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["CREATE"] }],
                "clientConfig": { "service": { "name": "trustspan-webhook", "namespace": ns, "path": path, "port": port } },
            }],
        });
        cluster.kubectl(["create", "-f", "-"]).stdin(configuration.to_string()).ok()?;
    }
    Ok(())
}

/// Grants the agent the rights of `manifests/base`, in this namespace and for these configurations.
fn grant(cluster: &Cluster, ns: &str, name: &str) -> Result<()> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(&shipped("rbac.yaml")?)?;
    let mut granted = String::new();
    for mut object in documents {
        if object["metadata"]["name"] != "trustspan-agent-serving-certificate" {
            continue;
        }
        if object["metadata"]["namespace"].is_null() {
            object["metadata"]["name"] = name.into();
            if object["kind"] == "ClusterRoleBinding" {
                object["roleRef"]["name"] = name.into();
            }
            for rule in object["rules"].as_array_mut().into_iter().flatten() {
                rule["resourceNames"] = json!([name, format!("{name}-absent")]);
            }
        } else {
            object["metadata"]["namespace"] = ns.into();
        }
        granted += &format!("---\n{object}\n");
    }
    cluster.kubectl(["apply", "-f", "-"]).stdin(granted).ok().map(drop)
}

/// When the certificate that a server serves expires, in seconds.
fn not_after(server: &Server<'_>) -> Result<i64> {
    let metrics = server.metrics()?;
    let name = "trustspan_serving_certificate_not_after_timestamp_seconds ";
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)).context("no such metric")?;
    value.trim().parse().with_context(|| value.to_owned())
}

/// The same of a chain in PEM.
fn end_of(pem: &[u8]) -> Result<i64> {
    let chain = trustspan::trust::bundle::read_chain(pem).into_certificates();
    Ok(chain.first().context("no certificate")?.not_after.as_second())
}

fn rotations() -> Result<usize> {
    Ok(std::env::var("TRUSTSPAN_SERVING_ROTATIONS").map_or(Ok(ROTATIONS), |number| number.parse())?)
}

fn requests_are_admitted_while_the_certificate_is_rotated(cluster: &Cluster) -> Result<()> {
    let rotations = rotations()?;
    cluster.with_temp_ns(|ns| {
        let bed = Bed::start(cluster, ns)?;
        let ((), counts) = bed.under_load(|_| {
            for number in 1..=rotations {
                let (bundle, leaf) = bed.stored()?;
                wait_for("a stage of the rotation", ROTATION, || match number % 3 {
                    0 => Ok(bed.pending()?.is_some()),
                    1 => bed.is_trust_written(),
                    _ => Ok(bed.stored()?.1 != leaf),
                })?;
                bed.replace_agent()?;
                bed.wait_rotated(&leaf)?;
                ensure!(bed.stored()?.0 != bundle, "rotation {number}: the same CAs");
            }
            Ok(())
        })?;
        let reviewed = bed.servers.iter().map(reviews).collect::<Result<Vec<_>>>()?;
        println!("{ns}: {rotations} rotations, reviews of the replicas: {reviewed:?}");
        let sent = none_failed(&counts, UNDISTURBED)?;
        ensure!(reviewed.iter().all(|reviews| *reviews > 0), "expected reviews of both replicas, saw {reviewed:?}");
        // Each request is sent to two webhooks.
        let total = usize::try_from(reviewed.iter().sum::<u64>())?;
        ensure!(total >= 2 * sent, "expected {sent} requests to be reviewed twice, saw {reviewed:?}");
        Ok(())
    })
}

/// Restarts as a Deployment makes them: connections go to a replica until it is not ready, and again once it is.
fn requests_are_admitted_while_replicas_restart_and_reload(cluster: &Cluster) -> Result<()> {
    let rotations = rotations()?;
    cluster.with_temp_ns(|ns| {
        let mut bed = Bed::start(cluster, ns)?;
        let mut servers = std::mem::take(&mut bed.servers);
        let ports: Vec<_> = servers.iter().map(Server::port).collect();
        let (reloads, counts) = bed.under_load(|_| {
            let mut reloads = 0;
            for number in 0..rotations * ports.len() {
                let server = &mut servers[number % ports.len()];
                server.begin_stop()?;
                wait_for("the replica to be not ready", SOON, || Ok(server.status_of("/readyz")? != 200))?;
                bed.balancer.set_servers(ports.iter().copied().filter(|port| *port != server.port()).collect());
                ensure!(server.wait_stopped()? == 0, "the replica failed while it ended");
                server.start_again()?;
                bed.balancer.set_servers(ports.clone());
                for _ in 0..RELOADS {
                    reload(server)?;
                    reloads += 1;
                }
            }
            Ok(reloads)
        })?;
        println!("{ns}: {rotations} rolling restarts, {reloads} reloads");
        none_failed(&counts, UNDISTURBED).map(drop)
    })
}

/// Changes the replica's file, and waits until it is loaded.
fn reload(server: &Server<'_>) -> Result<()> {
    let reloads = || {
        let metrics = server.metrics()?;
        let name = "trustspan_serving_certificate_reloads_total ";
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)).context("no such metric")?;
        anyhow::Ok(value.trim().parse::<u64>()?)
    };
    let before = reloads()?;
    let file = server.cert_dir().join("..data/tls.crt");
    let changed = server.cert_dir().join("changed");
    std::fs::write(&changed, std::fs::read_to_string(&file)? + "\n")?;
    std::fs::rename(&changed, &file)?;
    wait_for("the replica to load its file", SOON, || Ok(reloads()? > before))
}

/// Connections go to the other replica, as soon as the killed one accepts none.
fn only_requests_in_flight_fail_when_a_replica_is_killed(cluster: &Cluster) -> Result<()> {
    let kills = rotations()?;
    cluster.with_temp_ns(|ns| {
        let mut bed = Bed::start(cluster, ns)?;
        let mut servers = std::mem::take(&mut bed.servers);
        let ports: Vec<_> = servers.iter().map(Server::port).collect();
        let ((), counts) = bed.under_load(|load| {
            for number in 0..kills {
                let server = &mut servers[number % ports.len()];
                load.state().meanwhile = Some(KILLED);
                server.kill();
                bed.wait_admitted(load)?;
                // It accepts connections before it is ready, and a Service has only ready endpoints.
                bed.balancer.set_servers(ports.iter().copied().filter(|port| *port != server.port()).collect());
                server.start_again()?;
                bed.balancer.set_servers(ports.clone());
            }
            Ok(())
        })?;
        none_failed(&counts, UNDISTURBED).context("both replicas ran, or only one")?;
        let failed = counts.get(KILLED).map_or(0, |count| count.failed);
        let in_flight = kills * SENDERS as usize;
        ensure!(failed <= in_flight, "{failed} requests failed, and {in_flight} could be in flight");
        Ok(())
    })
}

/// The first CA of a bundle, both in base64.
fn newest(bundle: &str) -> Result<String> {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let cas = trustspan::trust::bundle::read(&STANDARD.decode(bundle)?).into_certificates();
    Ok(base64(cas.first().context("no CA")?.pem().as_bytes()))
}

fn a_reverted_ca_bundle_is_repaired_in_each_stage(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let bed = Bed::start_with(cluster, ns, LONG_LIFETIME)?;
        let foreign = base64(Authority::new("another program")?.pem().as_bytes());
        let ((), counts) = bed.under_load(|load| {
            let (bundle, leaf) = bed.stored()?;
            bed.revert(load, LACKING, &foreign)?;
            bed.revert(load, LACKING, "")?;
            wait_for("the new CA to be trusted", ROTATION, || bed.is_trust_written())?;
            bed.revert(load, HOLDING, &bundle)?;
            ensure!(bed.stored()?.1 == leaf, "the certificate was written before the delay was over");
            bed.revert(load, LACKING, &foreign)?;
            wait_for("the new certificate", ROTATION, || Ok(bed.stored()?.1 != leaf))?;
            // Replicas serve either certificate now.
            bed.revert(load, LACKING, &bundle)?;
            bed.wait_rotated(&leaf)?;
            bed.revert(load, HOLDING, &newest(&bed.stored()?.0)?)?;
            bed.revert(load, LACKING, &bundle)
        })?;
        for meanwhile in [UNDISTURBED, HOLDING] {
            none_failed(&counts, meanwhile)?;
        }

        let annotate = |change: &str| {
            let kind = KINDS[1].gvk().2;
            cluster.kubectl(["annotate", kind, &bed.name, change]).ok()
        };
        annotate("cert-manager.io/inject-ca-from=a/b")?;
        bed.write_ca_bundles(&foreign)?;
        wait_for("the agent to report cert-manager", SOON, || {
            let (_, body) = Agents::request(&bed.agent(), "/healthz/serving-certificate")?;
            Ok(body.contains("cert-manager writes the caBundle of ValidatingWebhookConfiguration"))
        })?;
        ensure!(bed.ca_bundles()?.iter().all(|bundle| *bundle == foreign.as_str()), "it was overwritten");
        annotate("cert-manager.io/inject-ca-from-")?;
        wait_for("the repair of the caBundle", REPAIR, || bed.is_written())
    })
}

/// The comparison: certificate and CA are replaced at once, as by an issuer that knows no stages.
fn requests_fail_while_a_ca_is_replaced_at_once(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let bed = Bed::start(cluster, ns)?;
        bed.agent().kill()?;
        let ((), counts) = bed.under_load(|load| {
            let authority = Authority::new("another CA")?;
            let (certificate, key) = authority.issue(&[&format!("trustspan-webhook.{ns}.svc")])?;
            let bundle = base64(authority.pem().as_bytes());
            let data = json!({ "ca.crt": bundle, "tls.crt": base64(certificate.as_bytes()), "tls.key": base64(key.as_bytes()) });
            let patch = json!({ "data": data }).to_string();
            load.state().meanwhile = Some(AT_ONCE);
            cluster.kubectl(["patch", "secret", SECRET, "--patch", &patch]).ns(ns).ok()?;
            bed.write_ca_bundles(&bundle)?;
            bed.wait_served()?;
            bed.wait_admitted(load)
        })?;
        let Count { sent, failed, .. } = counts.get(AT_ONCE).cloned().unwrap_or_default();
        ensure!(failed > 0, "none of {sent} requests failed: the other tests prove nothing");
        Ok(())
    })
}
