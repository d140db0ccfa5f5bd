//! The Secrets of a namespace as its consumers come to see them, and which of them each consumer has loaded.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1;
use kube::{
    Api, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use trustspan::trust::{Certificate, Secret};

/// A Secret at one of its versions.
pub(crate) struct Delivered {
    /// metadata.resourceVersion.
    pub(crate) version: String,
    pub(crate) secret: Secret,
}

/// What is known of the Secrets of a namespace.
#[derive(Default)]
pub(crate) struct Shelf {
    secrets: Mutex<BTreeMap<String, Arc<Delivered>>>,
    loaded: Mutex<BTreeMap<(String, String), Loaded>>,
}

/// What a consumer has loaded.
#[derive(Clone, Default)]
pub(crate) struct Loaded {
    pub(crate) version: String,
    /// How often it has loaded the Secret.
    pub(crate) times: u32,
    /// It does not read the Secret again before it restarts.
    pub(crate) load_once: bool,
}

impl Shelf {
    /// Watches, and never ends. A deleted Secret stays: neither istiod nor the kubelet takes it from a running process.
    pub(crate) async fn follow(self: Arc<Self>, secrets: Api<v1::Secret>) {
        let mut events =
            std::pin::pin!(watcher(secrets, watcher::Config::default()).default_backoff().applied_objects());
        while let Some(event) = events.next().await {
            // The watch recovers by itself; a wait for its events reports a missing one.
            let Ok(secret) = event else { continue };
            if let Ok(delivered) = delivered(&secret) {
                lock(&self.secrets).insert(secret.name_any(), Arc::new(delivered));
            }
        }
    }

    /// The newest version of a Secret that has been seen.
    pub(crate) fn newest(&self, name: &str) -> Option<Arc<Delivered>> {
        lock(&self.secrets).get(name).cloned()
    }

    /// A consumer has loaded a Secret.
    pub(crate) fn loaded(&self, consumer: &str, secret: &str, version: &str, load_once: bool) {
        let mut loaded = lock(&self.loaded);
        let entry = loaded.entry((consumer.to_owned(), secret.to_owned())).or_default();
        *entry = Loaded { version: version.to_owned(), times: entry.times + 1, load_once };
    }

    /// What has been loaded, by consumer and Secret.
    pub(crate) fn consumers(&self) -> BTreeMap<(String, String), Loaded> {
        lock(&self.loaded).clone()
    }
}

fn delivered(secret: &v1::Secret) -> Result<Delivered> {
    let version = secret.resource_version().context("a Secret without resourceVersion")?;
    Ok(Delivered { version, secret: Secret::from_value(&serde_json::to_value(secret)?)? })
}

/// Names certificates by their keys: CAs of all rotations have one subject.
pub(crate) fn names(certificates: &[Certificate]) -> String {
    let short = |id: &Option<Vec<u8>>| {
        let id = id.as_deref().unwrap_or_default();
        id.iter().take(3).map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let name = |certificate: &Certificate| match certificate.is_ca {
        true => format!("CA {}", short(&certificate.subject_key_id)),
        false => format!("leaf {:.6} of CA {}", certificate.fingerprint, short(&certificate.authority_key_id)),
    };
    certificates.iter().map(name).collect::<Vec<_>>().join(" + ")
}

/// A poisoned lock is as good as any: the thread that panicked has failed the run.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
