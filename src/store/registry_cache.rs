//! The latest registry, written by a store and read by the webhook and the controller.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;

use crate::registry::Registry;

/// GatewaySecrets that cannot be parsed, by namespace and name, with the reason.
pub type Unread = BTreeMap<(String, String), String>;

/// The latest registry. Reading it never waits. It stays in place while the store cannot be read.
#[derive(Debug, Default)]
pub struct RegistryCache {
    registry: ArcSwapOption<Registry>,
    unread: ArcSwap<Unread>,
    failures: AtomicU64,
    published: watch::Sender<()>,
}

impl RegistryCache {
    /// The latest registry; `None` until all GatewaySecrets were read once.
    pub fn registry(&self) -> Option<Arc<Registry>> {
        self.registry.load_full()
    }

    /// Waits for the first registry.
    pub async fn wait_for_registry(&self) -> Arc<Registry> {
        let mut published = self.subscribe();
        loop {
            if let Some(registry) = self.registry() {
                return registry;
            }
            // Cannot fail: `self` owns the sender.
            let _ = published.changed().await;
        }
    }

    /// Replaces the registry.
    pub fn publish(&self, registry: Registry) {
        self.registry.store(Some(Arc::new(registry)));
        self.published.send_replace(());
    }

    /// The GatewaySecrets that cannot be parsed now. The registry may still contain an earlier version of them.
    pub fn unread(&self) -> Arc<Unread> {
        self.unread.load_full()
    }

    /// Replaces the GatewaySecrets that cannot be parsed.
    pub fn publish_unread(&self, unread: Unread) {
        self.unread.store(Arc::new(unread));
    }

    /// Notifies of each new registry, including one that was published before the call.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        let mut receiver = self.published.subscribe();
        receiver.mark_changed();
        receiver
    }

    /// Counts a failed read of the store.
    pub fn record_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of failed reads.
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
    async fn waits_for_the_first_registry_only() {
        let cache = RegistryCache::default();
        let mut first = std::pin::pin!(cache.wait_for_registry());
        assert!(first.as_mut().now_or_never().is_none(), "nothing is read yet");
        cache.publish(Registry::default());
        assert_eq!(first.await.entries().len(), 0);
        cache.publish(Registry::new([entry("mesh", "root", "gw")]));
        assert_eq!(cache.wait_for_registry().now_or_never().expect("a registry").entries().len(), 1);
    }
}
