//! Real Java clients, for `./test java`: one JVM runs `Clients.java` with the files of all clients' Secrets, as the kubelet mounts them.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};

use crate::{
    client::Target,
    journal::{Failure, Journal, Side},
    testbed::{SOON, wait_for, write_mount},
    truststores::PASSWORD,
};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/istio/Clients.java");
/// Milliseconds between two connections of a client.
const EVERY: &str = "150";

/// Whether real Java clients connect.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os("TRUSTSPAN_JDK").is_some()
}

/// Compiles the clients into a directory.
fn compiled(dir: &Path) -> Result<PathBuf> {
    let classes = dir.join("classes");
    let compiler = Command::new("javac").arg("-d").arg(&classes).arg(SOURCE).stdin(Stdio::null()).output();
    let output = compiler
        .context("starting javac: install a JDK (Debian: default-jdk-headless), with java and javac in PATH")?;
    ensure!(output.status.success(), "javac: {}", String::from_utf8_lossy(&output.stderr));
    Ok(classes)
}

/// The running JVM. It ends with its standard input.
pub(crate) struct Jdk {
    jvm: Child,
    reader: Option<JoinHandle<()>>,
}

impl Jdk {
    /// Writes each version of the clients' Secrets to files, and starts the clients. `clients`: their names, and whether they read PKCS#12.
    pub(crate) fn start(
        runtime: &tokio::runtime::Handle,
        dir: &Path,
        secrets: &Api<Secret>,
        clients: &[(String, bool)],
        targets: &[Target],
        journal: Arc<Journal>,
    ) -> Result<Self> {
        let classes = compiled(dir)?;
        let mounts = dir.join("mounts");
        runtime.spawn(follow(secrets.clone(), clients.iter().map(|(name, _)| name.clone()).collect(), mounts.clone()));
        let data = |name: &str| mounts.join(name).join("..data");
        for (name, _) in clients {
            wait_for(&format!("files of {name}"), SOON, || Ok(fs::exists(data(name))?))?;
        }
        let target = |target: &Target| format!("{},{},{}", target.host, target.address.ip(), target.address.port());
        let targets: Vec<_> = targets.iter().map(target).collect();
        let extension = |is_pkcs12| if is_pkcs12 { "p12" } else { "jks" };
        let client =
            |(name, is_pkcs12): &(String, bool)| format!("{name},{},{}", data(name).display(), extension(*is_pkcs12));
        let mut jvm = Command::new("java")
            .args(["-Xmx256m", "-cp"])
            .arg(classes)
            .args(["Clients", PASSWORD, EVERY, &targets.join(" ")])
            .args(clients.iter().map(client))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting java: install a JDK (Debian: default-jdk-headless), with java and javac in PATH")?;
        let lines = BufReader::new(jvm.stdout.take().context("standard output")?).lines();
        let reader = thread::spawn(move || lines.map_while(Result::ok).for_each(|line| record(&journal, &line)));
        Ok(Self { jvm, reader: Some(reader) })
    }

    /// Ends the clients.
    pub(crate) fn finish(&mut self) -> Result<()> {
        drop(self.jvm.stdin.take());
        let status = self.jvm.wait()?;
        self.reader.take().map(JoinHandle::join);
        ensure!(status.success(), "java: {status}");
        Ok(())
    }
}

impl Drop for Jdk {
    fn drop(&mut self) {
        drop(self.jvm.stdin.take());
        let _ = self.jvm.wait();
    }
}

/// Writes each version of these Secrets, all keys at once, and never returns.
async fn follow(secrets: Api<Secret>, names: Vec<String>, mounts: PathBuf) {
    let mut events = std::pin::pin!(watcher(secrets, watcher::Config::default()).default_backoff().applied_objects());
    let mut version = 0;
    while let Some(event) = events.next().await {
        // The watch reconnects by itself.
        let Ok(secret) = event else { continue };
        let name = secret.name_any();
        let has_certificate = secret.data.as_ref().is_some_and(|data| data.contains_key("tls.crt"));
        if names.contains(&name) && has_certificate {
            version += 1;
            if let Err(error) = write_mount(&mounts.join(&name), version, &secret) {
                eprintln!("{name}: {error:#}");
            }
        }
    }
}

/// Records a line of the clients.
fn record(journal: &Journal, line: &str) {
    let mut fields = line.split('\t');
    let mut field = || fields.next().unwrap_or_default().to_owned();
    let (client, host, micros, result) = (field(), field(), field(), field());
    let took = Duration::from_micros(micros.parse().unwrap_or_default());
    let began = Instant::now().checked_sub(took).unwrap_or_else(Instant::now);
    let side = match result.as_str() {
        "ok" => return journal.ended(began, None),
        "client" => Side::Client,
        "gateway" => Side::Gateway,
        _ => Side::Neither,
    };
    journal.ended(began, Some(Failure { side, client, load_once: false, host, story: field() }));
}
