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
pub struct RegistryCache {
    registry: ArcSwapOption<Registry>,
    unread: ArcSwap<Unread>,
    failures: AtomicU64,
    published: watch::Sender<()>,
}

impl RegistryCache {
    /// The latest registry; `None` until all GatewaySecrets were read for the first time.
    pub fn registry(&self) -> Option<Arc<Registry>> {
        self.registry.load_full()
    }

    /// The same, waited for until there is one.
    pub async fn awaited(&self) -> Arc<Registry> {
        let mut published = self.published();
        loop {
            if let Some(registry) = self.registry() {
                return registry;
            }
            // Fails when nobody can publish any more, which takes what is borrowed here.
            let _ = published.changed().await;
        }
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

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::registry::tests::entry;

    #[tokio::test]
    async fn the_first_registry_is_waited_for_and_a_later_one_is_there_at_once() {
        let live = RegistryCache::default();
        let mut first = std::pin::pin!(live.awaited());
        assert!(first.as_mut().now_or_never().is_none(), "nothing is read yet");
        live.publish(Registry::default());
        assert_eq!(first.await.entries().len(), 0);
        live.publish(Registry::new([entry("mesh", "root", "gw")]));
        assert_eq!(live.awaited().now_or_never().expect("a registry").entries().len(), 1);
    }
}
