//! Watches that say when to look again. What they tell of is read anew: only that something happened counts.

use std::sync::Arc;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::cluster_state::WatchedNames;
use crate::registry::Entry;
use crate::store::{cluster, watch};

/// Watches what a GatewaySecret's rotation depends on: Secrets and ConfigMaps by these names, and cert-manager's Certificates.
pub(super) fn start(client: &Client, entry: &Entry, names: WatchedNames, event: &Arc<Notify>) -> JoinSet<()> {
    let mut watches = JoinSet::new();
    let WatchedNames { secrets, config_maps, namespaces } = names;
    for name in secrets {
        let (namespace, name) = entry.place_of(&name);
        let api: Api<PartialObjectMeta<Secret>> = Api::namespaced(client.clone(), namespace);
        watches.spawn(tell(watcher(api, only(name)), event.clone()));
    }
    for name in config_maps {
        let api: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(client.clone(), &entry.namespace);
        watches.spawn(tell(watcher(api, only(&name)), event.clone()));
    }
    // A new revision is a change of status, which changes the metadata too.
    for namespace in namespaces {
        let certificates = cluster::certificates(client.clone(), &namespace);
        watches.spawn(tell(watcher(certificates, watcher::Config::default()), event.clone()));
    }
    watches
}

fn only(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}

/// Tells of every event of a watch.
async fn tell<T>(events: impl Stream<Item = watcher::Result<Event<T>>>, event: Arc<Notify>) {
    let mut events = std::pin::pin!(watch::with_backoff(events));
    while let Some(happened) = events.next().await {
        match happened {
            Ok(_) => event.notify_one(),
            Err(error) => tracing::debug!("watch lost, trying again: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, stream};

    use super::*;

    async fn is_told(events: Vec<watcher::Result<Event<()>>>) -> bool {
        let event = Arc::new(Notify::new());
        tell(stream::iter(events), event.clone()).await;
        event.notified().now_or_never().is_some()
    }

    fn lost<T>() -> watcher::Result<Event<T>> {
        Err(watcher::Error::NoResourceVersion)
    }

    #[tokio::test(start_paused = true)]
    async fn accepts_what_happened_and_rejects_a_watch_that_fails() {
        assert!(!is_told(vec![Ok(Event::Init), lost(), Ok(Event::Init), lost()]).await);
        assert!(is_told(vec![Ok(Event::Init), lost(), Ok(Event::Init), Ok(Event::InitDone)]).await, "it is back");
        assert!(is_told(vec![Ok(Event::Apply(()))]).await);
        assert!(is_told(vec![Ok(Event::Delete(()))]).await);
    }
}
