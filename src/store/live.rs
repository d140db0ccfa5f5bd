//! The latest registry, shared between the store that feeds it and the webhook that reads it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;

use crate::registry::Registry;

/// Objects that cannot be read as they stand, by namespace and name: why not.
pub type Unread = BTreeMap<(String, String), String>;

/// The latest registry; reading it never waits. What was good stays until something better comes.
#[derive(Debug, Default)]
pub struct Live {
    registry: ArcSwapOption<Registry>,
    unread: ArcSwap<Unread>,
    failures: AtomicU64,
    published: watch::Sender<()>,
}

impl Live {
    /// The latest registry; `None` until all GatewaySecrets were read for the first time.
    pub fn registry(&self) -> Option<Arc<Registry>> {
        self.registry.load_full()
    }

    /// Replaces the registry.
    pub fn publish(&self, registry: Registry) {
        self.registry.store(Some(Arc::new(registry)));
        self.published.send_replace(());
    }

    /// The GatewaySecrets that cannot be read as they stand, whether or not an earlier state of them is known.
    pub fn unread(&self) -> Arc<Unread> {
        self.unread.load_full()
    }

    /// Replaces these.
    pub fn publish_unread(&self, unread: Unread) {
        self.unread.store(Arc::new(unread));
    }

    /// Tells of each new registry; what was published before the call is told too.
    pub fn published(&self) -> watch::Receiver<()> {
        let mut published = self.published.subscribe();
        published.mark_changed();
        published
    }

    /// Counts a read that failed.
    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// How many reads failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}
