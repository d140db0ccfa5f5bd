//! The Secrets of a namespace as a watch delivers them, and the version of each that a consumer has loaded.

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

/// A version of a Secret.
pub(crate) struct Delivered {
    /// metadata.resourceVersion.
    pub(crate) version: String,
    pub(crate) secret: Secret,
}

/// The delivered Secrets of a namespace, and what consumers have loaded.
#[derive(Default)]
pub(crate) struct Shelf {
    secrets: Mutex<BTreeMap<String, Arc<Delivered>>>,
    loaded: Mutex<BTreeMap<(String, String), Loaded>>,
}

/// The version that a consumer has loaded.
#[derive(Clone, Default)]
pub(crate) struct Loaded {
    pub(crate) version: String,
    /// The number of times that it has loaded the Secret.
    pub(crate) times: u32,
    /// Whether it reads the Secret only when it starts.
    pub(crate) load_once: bool,
}

impl Shelf {
    /// Watches the Secrets, and never returns. A deleted Secret stays: neither istiod nor the kubelet removes it from a
    /// running process.
    pub(crate) async fn follow(self: Arc<Self>, secrets: Api<v1::Secret>) {
        let mut events =
            std::pin::pin!(watcher(secrets, watcher::Config::default()).default_backoff().applied_objects());
        while let Some(event) = events.next().await {
            // The watch reconnects by itself. A wait for its events reports one that is missing.
            let Ok(secret) = event else { continue };
            if let Ok(delivered) = delivered(&secret) {
                lock(&self.secrets).insert(secret.name_any(), Arc::new(delivered));
            }
        }
    }

    /// The newest version of a Secret that was delivered.
    pub(crate) fn newest(&self, name: &str) -> Option<Arc<Delivered>> {
        lock(&self.secrets).get(name).cloned()
    }

    /// Records that a consumer has loaded a version.
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

/// Names certificates by their keys, since the CAs of all rotations have the same subject.
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

/// A poisoned lock can be used: the thread that panicked has failed the run already.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
