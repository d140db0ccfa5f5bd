//! The real rate limit service of Envoy Gateway, while Secrets are rotated. A client calls it with the pair of Secret `envoy`. The service
//! follows its serving certificate, and reads its clients' CAs once. It gets its limits over mutual TLS, and reads the pair and the CAs of
//! that connection once, too.
//!
//! There is no node: [`Node`] is a stand-in for the kubelet and for the Service. It runs a process for each Pod of the real Deployment
//! controller, updates mounted files as the kubelet does, some time after the Secret has changed, and gives clients the address of the newest
//! ready Pod. The program `limits` is a stand-in for Envoy Gateway's xDS server.

use std::{
    fmt, fs,
    net::TcpStream,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    control_plane::{ControlPlane, Reader, Rotator},
    shelf::Delivered,
    testbed::{Cluster, Process, SOON, Seed, exported, free_port, wait_for},
};

/// The Deployment that trustspan's profile restarts.
const DEPLOYMENT: &str = "envoy-ratelimit";
const ROTATIONS: usize = 2;
/// The number of calls that must succeed in each state of the service.
const CALLS: usize = 60;
/// The pause between two reads of Pods and Secrets.
const PAUSE: Duration = Duration::from_millis(50);
/// Longer than a staged rotation takes with its delays and a rollout.
const ROTATED: Duration = Duration::from_secs(180);

pub(crate) fn trustspan(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let control_plane = ControlPlane::new(cluster, ns)?;
        let mut node = Node::start(&control_plane)?;
        for rotation in 1..=ROTATIONS {
            node.rotate(Rotator::Staged).with_context(|| format!("rotation {rotation}"))?;
            node.wait_lines(CALLS)?;
        }
        let [calls, connections] = node.lines();
        println!(
            "trustspan: {ROTATIONS} rotations, {} Pods; calls: {calls}; connections for limits: {connections}",
            node.started
        );
        ensure!(calls.failed() == 0 && connections.failed() == 0, "calls: {calls}; connections: {connections}");
        let pods = 1 + 2 * ROTATIONS;
        ensure!(node.started == pods, "expected {pods} Pods, saw {}", node.started);
        Ok(())
    })
}

pub(crate) fn envoy_gateway(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let control_plane = ControlPlane::new(cluster, ns)?;
        let mut node = Node::start(&control_plane)?;
        node.rotate(Rotator::EnvoyGateway)?;
        let [before, connections] = node.wait_lines(CALLS)?;
        println!("envoy-gateway: once all files are synced: calls: {before}; connections for limits: {connections}");
        let pod = node.pods.first().context("a Pod")?.name.clone();
        cluster.kubectl(["rollout", "restart", &format!("deployment/{DEPLOYMENT}")]).ns(ns).ok()?;
        node.step_until("the restart", SOON, |node| Ok(node.pods.len() == 1 && node.pods[0].name != pod))?;
        let [after, connections] = node.wait_lines(CALLS)?;
        println!(
            "envoy-gateway: after a restart of the service: calls: {after}; connections for limits: {connections}"
        );
        ensure!(before.failed() == before.0.len(), "the service accepts clients of a CA that it has not loaded");
        ensure!(after.failed() == 0, "calls: {after}");
        Ok(())
    })
}

/// The lines that a program has printed about its connections.
struct Lines(Vec<String>);

impl Lines {
    fn failed(&self) -> usize {
        self.0.iter().filter(|line| *line != "ok").count()
    }
}

impl fmt::Display for Lines {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}, {} failed", self.0.len(), self.failed())?;
        self.0.iter().find(|line| *line != "ok").map_or(Ok(()), |line| write!(to, ", such as \"{line}\""))
    }
}

/// A stand-in for a node and its kubelet.
struct Node<'a> {
    control_plane: &'a ControlPlane<'a>,
    seed: Seed,
    programs: PathBuf,
    dir: PathBuf,
    pods: Vec<Pod>,
    /// The number of Pods that were started.
    started: usize,
    /// The Secrets of the other parties.
    mounted: [Reader; 2],
    limits: Process,
    limits_port: u16,
    caller: Option<Process>,
}

/// A Pod of the rate limit service.
struct Pod {
    name: String,
    reader: Reader,
    certificates: PathBuf,
    port: u16,
    process: Process,
    is_ready: bool,
}

impl<'a> Node<'a> {
    /// Starts the service, the server of its limits, and a client that calls it.
    fn start(control_plane: &'a ControlPlane<'a>) -> Result<Self> {
        let [programs] = exported("setup", &["ratelimit"], ["TRUSTSPAN_BED_RATELIMIT"])?;
        let (cluster, ns) = (control_plane.cluster, control_plane.ns);
        let dir = cluster.temp_dir("node")?;
        let mounted = [Reader::new(control_plane, "envoy")?, Reader::new(control_plane, "envoy-gateway")?];
        mounted.iter().try_for_each(|reader| mount(&dir.join(reader.secret), &reader.loaded))?;
        let programs = PathBuf::from(programs);
        let spawn = |program: &str, args: &[String]| {
            cluster.spawn(&format!("{program}-{}", cluster.unique()), &programs.join(program), args, &[])
        };
        let file = |name: &str| dir.join(name).display().to_string();
        let limits_port = free_port()?;
        let limits = spawn("limits", &[file("envoy-gateway"), limits_port.to_string()])?;
        let mut node = Self {
            control_plane,
            seed: Seed::of_run("node"),
            programs: programs.clone(),
            dir: dir.clone(),
            pods: Vec::new(),
            started: 0,
            mounted,
            limits,
            limits_port,
            caller: None,
        };
        cluster.apply(ns, &deployment().to_string())?;
        node.step_until("the first Pod", SOON, |node| Ok(node.pods.iter().any(|pod| pod.is_ready)))?;
        node.caller = Some(spawn("caller", &[file("envoy"), file("address"), format!("{DEPLOYMENT}.{ns}")])?);
        let [calls, connections] = node.wait_lines(10)?;
        ensure!(calls.failed() == 0 && connections.failed() == 0, "calls: {calls}; connections: {connections}");
        Ok(node)
    }

    /// Rotates the Secrets, and waits until all files are updated.
    fn rotate(&mut self, rotator: Rotator) -> Result<()> {
        let mut process = self.control_plane.rotate(rotator)?;
        self.step_until("the rotation", ROTATED, |node| {
            let Some(status) = process.exited()? else { return Ok(false) };
            if status != 0 {
                bail!("{rotator:?} ended with {status}\n{}", process.log_tail(10));
            }
            let control_plane = node.control_plane;
            let mut synced = control_plane.is_delivered()?;
            for reader in node.mounted.iter().chain(node.pods.iter().map(|pod| &pod.reader)) {
                synced &= reader.is_synced(control_plane)?;
            }
            Ok(synced)
        })
    }

    /// Waits for this many further calls, and at least one further connection for limits. Those in progress do not
    /// count.
    fn wait_lines(&mut self, calls: usize) -> Result<[Lines; 2]> {
        let from = self.lines().map(|lines| lines.0.len() + 1);
        self.step_until("calls and connections", SOON, |node| {
            let [seen, connections] = node.lines();
            Ok(seen.0.len() >= from[0] + calls && connections.0.len() > from[1])
        })?;
        let [seen, connections] = self.lines();
        Ok([Lines(seen.0[from[0]..].to_vec()), Lines(connections.0[from[1]..].to_vec())])
    }

    /// All calls, and all connections for limits.
    fn lines(&self) -> [Lines; 2] {
        [self.caller.as_ref(), Some(&self.limits)].map(|process| {
            let log = process.map(Process::log).unwrap_or_default();
            // The last line may be incomplete, because it is still being written.
            Lines(log.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect())
        })
    }

    fn step_until(
        &mut self,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut(&Self) -> Result<bool>,
    ) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            self.step()?;
            if condition(self)? {
                return Ok(());
            }
            ensure!(Instant::now() < end, "waited {limit:?} for {what}");
            thread::sleep(PAUSE);
        }
    }

    fn step(&mut self) -> Result<()> {
        for reader in &mut self.mounted {
            if reader.sync(self.control_plane, &mut self.seed)? {
                mount(&self.dir.join(reader.secret), &reader.loaded)?;
            }
        }
        for pod in &mut self.pods {
            if pod.reader.sync(self.control_plane, &mut self.seed)? {
                mount(&pod.certificates, &pod.reader.loaded)?;
            }
        }
        let api = Api::<v1::Pod>::namespaced(self.control_plane.client.clone(), self.control_plane.ns);
        let selected = ListParams::default().labels(&format!("app={DEPLOYMENT}"));
        let stored = self.control_plane.runtime.block_on(api.list(&selected))?;
        let names: Vec<_> = stored.iter().map(ResourceExt::name_any).collect();
        for name in &names {
            if self.pods.iter().all(|pod| pod.name != *name) {
                let pod = self.start_pod(name)?;
                self.pods.push(pod);
            }
        }
        for at in 0..self.pods.len() {
            let pod = &mut self.pods[at];
            let status = pod.process.exited()?;
            ensure!(status.is_none(), "the service ended with {status:?}\n{}", pod.process.log_tail(20));
            if !pod.is_ready && TcpStream::connect(("127.0.0.1", pod.port)).is_ok() {
                pod.is_ready = true;
                replace(&self.dir.join("address"), &format!("127.0.0.1:{}", pod.port))?;
                let now = jiff::Timestamp::now().to_string();
                let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": now });
                let patch = Patch::Merge(json!({ "status": { "phase": "Running", "conditions": [ready] } }));
                let params = PatchParams::default();
                self.control_plane.runtime.block_on(api.patch_status(&pod.name, &params, &patch))?;
            }
        }
        let is_gone = |pod: &Pod| !names.contains(&pod.name);
        if self.pods.iter().any(is_gone) {
            // The call in progress may have used the old address.
            let calls = || self.lines()[0].0.len();
            let seen = calls();
            wait_for("two calls", SOON, || Ok(self.caller.is_none() || calls() >= seen + 2))?;
            for pod in self.pods.extract_if(.., |pod| is_gone(pod)) {
                let mut process = pod.process;
                process.stop(SOON)?;
            }
        }
        Ok(())
    }

    /// Starts a Pod, which mounts the newest versions.
    fn start_pod(&mut self, name: &str) -> Result<Pod> {
        let reader = Reader::new(self.control_plane, "envoy-rate-limit")?;
        let certificates = self.dir.join(name);
        mount(&certificates, &reader.loaded)?;
        let file = |name: &str| certificates.join(name).display().to_string();
        let port = free_port()?;
        let [grpc, http, debug] = [port, free_port()?, free_port()?].map(|port| port.to_string());
        let (certificate, key, ca) = (file("tls.crt"), file("tls.key"), file("ca.crt"));
        let limits = format!("127.0.0.1:{}", self.limits_port);
        let env = [
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", &certificate),
            ("GRPC_SERVER_TLS_KEY", &key),
            ("GRPC_CLIENT_TLS_CACERT", &ca),
            ("GRPC_HOST", "127.0.0.1"),
            ("GRPC_PORT", &grpc),
            ("HOST", "127.0.0.1"),
            ("PORT", &http),
            ("DEBUG_HOST", "127.0.0.1"),
            ("DEBUG_PORT", &debug),
            // The service answers these calls without its storage, since they have no limit.
            ("BACKEND_TYPE", "memcache"),
            ("USE_STATSD", "false"),
            ("DISABLE_STATS", "true"),
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", &limits),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &certificate),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca),
            ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway"),
            ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "100ms"),
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "100ms"),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "200ms"),
        ];
        self.started += 1;
        let cluster = self.control_plane.cluster;
        let none: [&str; 0] = [];
        let process = cluster.spawn(name, &self.programs.join("service_cmd"), none, &env)?;
        Ok(Pod { name: name.to_owned(), reader, certificates, port, process, is_ready: false })
    }
}

/// Writes files as the kubelet mounts a Secret: they are links through `..data`, which is replaced atomically. The
/// kubelet would also remove the previous version, which a process may still be reading here.
fn mount(dir: &Path, delivered: &Delivered) -> Result<()> {
    let version = format!("..{}", delivered.version);
    fs::create_dir_all(dir.join(&version))?;
    for (key, value) in &delivered.secret.data {
        fs::write(dir.join(&version).join(key), value.as_slice())?;
        let link = dir.join(key);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new("..data").join(key), link)?;
        }
    }
    symlink(&version, dir.join("..data_tmp"))?;
    fs::rename(dir.join("..data_tmp"), dir.join("..data"))?;
    Ok(())
}

/// Replaces a file atomically.
fn replace(path: &Path, text: &str) -> Result<()> {
    let unnamed = path.with_extension("new");
    fs::write(&unnamed, text)?;
    Ok(fs::rename(unnamed, path)?)
}

fn deployment() -> serde_json::Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": DEPLOYMENT },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": { "app": DEPLOYMENT } },
            "template": {
                "metadata": { "labels": { "app": DEPLOYMENT } },
                "spec": {
                    "containers": [{
                        "name": "envoy-ratelimit", "image": "envoyproxy/ratelimit",
                        "readinessProbe": { "tcpSocket": { "port": 8081 } },
                        "volumeMounts": [{ "name": "certs", "mountPath": "/certs" }],
                    }],
                    "volumes": [{ "name": "certs", "secret": { "secretName": "envoy-rate-limit" } }],
                },
            },
        },
    })
}
