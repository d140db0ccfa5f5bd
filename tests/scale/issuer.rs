//! Writes the source Secret through the API, and watches the managed Secret.

use std::{
    path::Path,
    sync::mpsc::{Receiver, Sender, channel},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use tokio::runtime::Runtime;
use trustspan::store::cluster::connect;

use crate::testbed::{Authority, Kept, SOON, User};

/// Writes the source Secret.
pub(crate) struct Issuer {
    runtime: Runtime,
    secrets: Api<Secret>,
    /// The first CA.
    pub(crate) first: Authority,
    /// Each `ca.crt` of the managed Secret, and when it was seen.
    seen: Receiver<(Instant, String)>,
}

impl Issuer {
    /// Writes the first source Secret, and starts to watch.
    pub(crate) fn new(kept: &Kept<'_>) -> Result<Self> {
        let first = Authority::new("root 0")?;
        kept.write_root(&first)?;
        let runtime = Runtime::new()?;
        let client = runtime.block_on(connect(Some(Path::new(&kept.cluster.kubeconfig(User::Admin)))))?;
        let secrets: Api<Secret> = Api::namespaced(client, kept.ns);
        let (sender, seen) = channel();
        runtime.spawn(follow(secrets.clone(), sender));
        Ok(Self { runtime, secrets, first, seen })
    }

    /// Writes a source Secret with a new CA. Returns the time until the managed Secret has it first, after the managed
    /// Secret has no other.
    pub(crate) fn rotate(&self, number: usize) -> Result<Duration> {
        let (ca, took) = self.begin(number)?;
        self.wait(&format!("root {number} alone"), |bundle| bundle == ca)?;
        Ok(took)
    }

    /// Writes a source Secret with a new CA. Returns the CA, and the time until the managed Secret has it.
    pub(crate) fn begin(&self, number: usize) -> Result<(String, Duration)> {
        let authority = Authority::new(&format!("root {number}"))?;
        let ca = authority.pem().replace("\r\n", "\n");
        let root = Patch::Merge(Kept::root(&authority)?);
        let begun = Instant::now();
        self.runtime.block_on(self.secrets.patch("root", &PatchParams::default(), &root))?;
        let written = self.wait(&format!("root {number} in the managed Secret"), |bundle| bundle.starts_with(&ca))?;
        Ok((ca, written.saturating_duration_since(begun)))
    }

    /// When a bundle was seen that satisfies a condition.
    fn wait(&self, what: &str, mut wanted: impl FnMut(&str) -> bool) -> Result<Instant> {
        let begun = Instant::now();
        loop {
            let (at, bundle) = self
                .seen
                .recv_timeout(SOON.saturating_sub(begun.elapsed()))
                .with_context(|| format!("waited {SOON:?} for {what}"))?;
            if wanted(&bundle) {
                return Ok(at);
            }
        }
    }
}

async fn follow(secrets: Api<Secret>, seen: Sender<(Instant, String)>) {
    let managed = watcher::Config::default().fields("metadata.name=managed");
    let mut events = std::pin::pin!(watcher(secrets, managed).default_backoff().applied_objects());
    while let Some(event) = events.next().await {
        // The watch reconnects by itself. A wait for its events reports one that is missing.
        let Ok(secret) = event else { continue };
        let bundle = secret.data.and_then(|mut data| data.remove("ca.crt")).unwrap_or_default();
        if seen.send((Instant::now(), String::from_utf8_lossy(&bundle.0).into_owned())).is_err() {
            return;
        }
    }
}
