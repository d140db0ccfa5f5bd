//! A real kube-apiserver whose `--client-ca-file` is mirrored from the managed Secret, while the CA of its clients rotates under load.

// A lock is poisoned only if the test has failed already.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::agent::kept;
use crate::mirror::report;
use crate::testbed::{Authority, Cluster, Kept, Mirror, MirrorRights, SOON, wait_for};

cases![mirrored_client_ca_of_an_api_server_rotates_under_load];

/// Rotations; `TRUSTSPAN_MIRROR_ROUNDS` sets another number.
const ROUNDS: usize = 1;
/// Time between two calls: 50 each second.
const INTERVAL: Duration = Duration::from_millis(20);
/// For the API server to load the file.
const DELAY: &str = "5s";

/// A client certificate, and a client that keeps its connections.
#[derive(Clone)]
struct Identity {
    name: String,
    config: Config,
    kept: Client,
}

/// Calls of the API server by all current identities in turn, every other one on a new connection.
#[derive(Default)]
struct Load {
    identities: Mutex<Vec<Identity>>,
    calls: Mutex<Vec<(String, bool)>>,
    refused: Mutex<Vec<String>>,
    other: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

impl Load {
    async fn run(self: Arc<Self>) {
        let mut number = 0;
        let mut at = tokio::time::Instant::now();
        let mut calls = tokio::task::JoinSet::new();
        while !self.is_over.load(SeqCst) {
            at += INTERVAL;
            tokio::time::sleep_until(at).await;
            let identity = {
                let identities = self.identities.lock().unwrap();
                identities.get(number % identities.len().max(1)).cloned()
            };
            let Some(identity) = identity else { continue };
            let is_new = number / 2 % 2 == 0;
            number += 1;
            let load = self.clone();
            calls.spawn(async move { load.call(identity, is_new).await });
            while calls.try_join_next().is_some() {}
        }
        while calls.join_next().await.is_some() {}
    }

    async fn call(&self, identity: Identity, is_new: bool) {
        let client = if is_new { Client::try_from(identity.config).ok() } else { Some(identity.kept) };
        let Some(client) = client else { return self.other.lock().unwrap().push("no client".to_owned()) };
        let answer = tokio::time::timeout(Duration::from_secs(20), client.apiserver_version()).await;
        self.calls.lock().unwrap().push((identity.name.clone(), is_new));
        match answer {
            Ok(Ok(_)) => {}
            Ok(Err(kube::Error::Api(status))) if status.code == 401 => {
                self.refused.lock().unwrap().push(format!("{}: {}", identity.name, status.message));
            }
            Ok(Err(error)) => self.other.lock().unwrap().push(format!("{}: {error}", identity.name)),
            Err(_) => self.other.lock().unwrap().push(format!("{}: no answer", identity.name)),
        }
    }
}

/// A client of the second API server with a certificate of a CA. Needs a runtime.
async fn identity(cluster: &Cluster, port: u16, name: &str, ca: &Authority) -> Result<Identity> {
    let (certificate, key) = ca.issue_client(name)?;
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bed",
        "clusters": [{ "name": "bed", "cluster": {
            "server": format!("https://127.0.0.1:{port}"), "certificate-authority-data": STANDARD.encode(cluster.bed_ca()?),
        } }],
        "users": [{ "name": "bed", "user": {
            "client-certificate-data": STANDARD.encode(certificate), "client-key-data": STANDARD.encode(key),
        } }],
        "contexts": [{ "name": "bed", "context": { "cluster": "bed", "user": "bed" } }],
    });
    let kubeconfig = Kubeconfig::from_yaml(&kubeconfig.to_string())?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Identity { name: name.to_owned(), kept: Client::try_from(config.clone())?, config })
}

/// Writes Secret `ca`, which signs clients.
pub(crate) fn write_ca(kept: &Kept<'_>, ca: &Authority) -> Result<()> {
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": { "name": "ca" },
        "stringData": { "ca.crt": ca.pem(), "tls.crt": ca.pem(), "tls.key": ca.key_pem() },
    });
    kept.cluster.apply(kept.ns, &object.to_string()).map(drop)
}

/// Whether Secret `issuer`, with which the issuer of clients signs, has this CA.
pub(crate) fn signs_with(kept: &Kept<'_>, ca: &Authority) -> Result<bool> {
    let stored = kept.cluster.get("secret", kept.ns, "issuer")?;
    let pem = STANDARD.decode(stored["data"]["tls.crt"].as_str().unwrap_or_default())?;
    Ok(String::from_utf8(pem)?.replace("\r\n", "\n") == ca.pem().replace("\r\n", "\n"))
}

/// The entry of `status.waits` that names a file.
fn wait_of(kept: &Kept<'_>) -> Result<Option<Value>> {
    let status = kept.status()?;
    let mut waits = status["waits"].as_array().into_iter().flatten();
    Ok(waits.find(|wait| wait["reason"].as_str().is_some_and(|reason| reason.starts_with("File "))).cloned())
}

fn mirrored_client_ca_of_an_api_server_rotates_under_load(cluster: &Cluster) -> Result<()> {
    let rounds = std::env::var("TRUSTSPAN_MIRROR_ROUNDS").map_or(Ok(ROUNDS), |number| number.parse())?;
    let started = Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    kept(cluster, |kept| {
        let ns = kept.ns;
        kept.set_gateway_delay(DELAY)?;
        kept.set("caSecretRef", &json!({ "name": "ca" }))?;
        kept.set("issuerSecretName", &json!("issuer"))?;
        kept.set("clients", &json!({ "allDeclared": true, "secretNames": ["client"] }))?;
        let mut ca = Authority::new("ca 0")?;
        write_ca(kept, &ca)?;
        kept.write_root(&ca)?;
        kept.write_client("client", &ca)?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        kept.wait_bundle(&[&ca])?;
        kept.wait_phase("Steady")?;

        let directory = cluster.temp_dir("client-ca")?;
        let file = directory.join("ca.crt");
        let rights = MirrorRights::grant(cluster, ns, "secret", "managed")?;
        // An operator adds each new root before its rotation.
        let signers = cluster.temp_dir("signers")?.join("ca.crt");
        let pin = |cas: &[&Authority]| fs::write(&signers, cas.iter().map(|ca| ca.pem()).collect::<String>());
        pin(&[&ca])?;
        let flags = ["--signers", signers.to_str().context("a path in UTF-8")?];
        let mirror = Mirror::start(cluster, &rights, &format!("secret/{ns}/managed"), &directory, &flags)?;
        mirror.wait_answer("/readyz", 200, "ok")?;
        let (api_server, port) = cluster.second_api_server(&file, &[])?;
        let mut old = runtime.block_on(identity(cluster, port, "client of ca 0", &ca))?;
        wait_for("the second API server to answer", SOON, || {
            Ok(runtime.block_on(old.kept.apiserver_version()).map(|_| true)?)
        })
        .with_context(|| api_server.log_tail(20))?;

        let load = Arc::new(Load::default());
        *load.identities.lock().unwrap() = vec![old.clone()];
        let calling = runtime.spawn(load.clone().run());
        for round in 1..=rounds {
            let name = format!("ca {round}");
            let new = Authority::new(&name)?;
            pin(&[&new, &ca])?;
            // The mirror does not run: the new CA is in the Secret, and not in the file.
            mirror.signal("STOP")?;
            let stopped = Instant::now();
            write_ca(kept, &new)?;
            kept.wait_bundle(&[&new, &ca])?;
            wait_for("a wait that names node and file", SOON, || {
                let wait = wait_of(kept)?.context("no wait names a file")?;
                let reason = wait["reason"].as_str().unwrap_or_default();
                let named = format!("File {} on node node-1 (MirroredFile {ns}/", file.display());
                ensure!(reason.starts_with(&named) && wait["step"] == "PromoteIssuer", "saw {wait}");
                Ok(true)
            })?;
            // Twice the delay after which the issuer would be promoted without the mirror.
            wait_for("two propagation delays", SOON, || {
                ensure!(signs_with(kept, &ca)?, "promoted while the mirror is stopped");
                Ok(stopped.elapsed() > Duration::from_secs(10))
            })?;
            ensure!(signs_with(kept, &ca)? && wait_of(kept)?.is_some(), "promoted while the mirror is stopped");
            mirror.signal("CONT")?;

            wait_for("the new CA to sign", SOON, || signs_with(kept, &new))?;
            // From this moment certificates of both CAs are in use.
            let next = runtime.block_on(identity(cluster, port, &format!("client of {name}"), &new))?;
            *load.identities.lock().unwrap() = vec![old.clone(), next.clone()];
            let made = load.calls.lock().unwrap().len();
            wait_for("calls of both", SOON, || Ok(load.calls.lock().unwrap().len() > made + 100))?;
            // The client is renewed, and uses the old certificate no more.
            *load.identities.lock().unwrap() = vec![next.clone()];
            kept.write_client_with("client", &new, &[&new, &ca])?;
            kept.write_root(&new)?;
            kept.wait_bundle(&[&new])?;
            kept.wait_phase("Steady")?;
            wait_for("the file without the old CA", SOON, || {
                Ok(fs::read_to_string(&file)? == new.pem().replace("\r\n", "\n"))
            })?;
            (ca, old) = (new, next);
        }
        load.is_over.store(true, SeqCst);
        if runtime.block_on(calling).is_err() {
            bail!("the load has panicked");
        }
        let calls = load.calls.lock().unwrap().clone();
        let (refused, other) = (load.refused.lock().unwrap().clone(), load.other.lock().unwrap().clone());
        println!(
            "mirror: {rounds} rotations of the client CA of a kube-apiserver, {} calls by {} identities, {} refused, {} other errors; {:.0?}",
            calls.len(),
            calls.iter().map(|(name, _)| name).collect::<std::collections::BTreeSet<_>>().len(),
            refused.len(),
            other.len(),
            started.elapsed(),
        );
        ensure!(refused.is_empty() && other.is_empty(), "refused: {refused:?}, other: {other:?}");
        ensure!(calls.len() > 300, "only {} calls", calls.len());
        ensure!(report(cluster, ns)?["status"]["conditions"][0]["status"] == "True");
        // An editor of the namespace appends a CA to the source Secret.
        let evil = Authority::new("evil")?;
        let appended = json!({ "stringData": { "ca.crt": ca.pem() + &evil.pem() } }).to_string();
        for secret in ["root", "ca"] {
            cluster.kubectl(["patch", "secret", secret, "--type=merge", "--patch", &appended]).ns(ns).ok()?;
        }
        let pem = evil.pem().replace("\r\n", "\n");
        wait_for("the CA in the managed Secret", SOON, || {
            let bundle = kept.bundle()?.unwrap_or_default();
            ensure!(bundle.contains(&pem), "{bundle} lacks {pem}");
            Ok(true)
        })?;
        mirror.wait_answer(
            &format!("/healthz/mirrored-file{}", file.display()),
            500,
            "CN=evil is neither in the file of --signers",
        )?;
        ensure!(fs::read_to_string(&file)? == ca.pem().replace("\r\n", "\n"), "the file has changed");
        is_refused(cluster, &runtime, port, &evil)
    })
}

/// The API server refuses the clients of a CA.
fn is_refused(cluster: &Cluster, runtime: &tokio::runtime::Runtime, port: u16, ca: &Authority) -> Result<()> {
    let stranger = runtime.block_on(identity(cluster, port, "stranger", ca))?;
    match runtime.block_on(stranger.kept.apiserver_version()) {
        Err(kube::Error::Api(status)) if status.code == 401 => Ok(()),
        other => bail!("expected 401, saw {other:?}"),
    }
}
