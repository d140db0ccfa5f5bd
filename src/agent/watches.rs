//! Watches that trigger reconciles. Only the fact that an object changed is used: the reconcile reads the object itself.

use std::sync::Arc;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::cluster_state::WatchedNames;
use crate::api::{MirroredFile, TrustConsumer};
use crate::registry::Entry;
use crate::store::{cluster, watch};

/// Watches the objects that a GatewaySecret's rotation depends on: Secrets and ConfigMaps by name, cert-manager's Certificates, and
/// TrustConsumers and MirroredFiles. Each watch notifies once it has listed its objects, so a change since they were read is noticed.
pub(super) fn start(client: &Client, entry: &Entry, names: WatchedNames, event: &Arc<Notify>) -> JoinSet<()> {
    let mut watches = JoinSet::new();
    let WatchedNames { secrets, config_maps, namespaces, consumer_namespaces } = names;
    for name in secrets {
        let (namespace, name) = entry.place_of(&name);
        let api: Api<PartialObjectMeta<Secret>> = Api::namespaced(client.clone(), namespace);
        watches.spawn(notify(watcher(api, by_name(name)), event.clone()));
    }
    for name in config_maps {
        let api: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(client.clone(), &entry.namespace);
        watches.spawn(notify(watcher(api, by_name(&name)), event.clone()));
    }
    for namespace in namespaces {
        let certificates = cluster::certificates(client.clone(), &namespace);
        watches.spawn(notify(watcher(certificates, watcher::Config::default()), event.clone()));
    }
    for namespace in consumer_namespaces {
        let consumers: Api<PartialObjectMeta<TrustConsumer>> = Api::namespaced(client.clone(), &namespace);
        watches.spawn(notify(watcher(consumers, watcher::Config::default()), event.clone()));
    }
    let mirrors: Api<PartialObjectMeta<MirroredFile>> = Api::namespaced(client.clone(), &entry.namespace);
    watches.spawn(notify(watcher(mirrors, watcher::Config::default()), event.clone()));
    watches
}

pub(super) fn by_name(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}

/// Notifies at every event of a watch.
async fn notify<T>(events: impl Stream<Item = watcher::Result<Event<T>>>, event: Arc<Notify>) {
    notify_each(events, || event.notify_one()).await;
}

/// Calls a function at every event of a watch.
pub(super) async fn notify_each<T>(events: impl Stream<Item = watcher::Result<Event<T>>>, event: impl Fn()) {
    let mut events = std::pin::pin!(watch::with_backoff(events));
    while let Some(result) = events.next().await {
        match result {
            Ok(_) => event(),
            Err(error) => tracing::debug!("watch failed, retrying: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, stream};

    use super::*;

    async fn is_notified(events: Vec<watcher::Result<Event<()>>>) -> bool {
        let event = Arc::new(Notify::new());
        notify(stream::iter(events), event.clone()).await;
        event.notified().now_or_never().is_some()
    }

    fn lost<T>() -> watcher::Result<Event<T>> {
        Err(watcher::Error::NoResourceVersion)
    }

    #[tokio::test(start_paused = true)]
    async fn events_trigger_a_reconcile_and_failures_of_a_watch_do_not() {
        assert!(!is_notified(vec![Ok(Event::Init), lost(), Ok(Event::Init), lost()]).await);
        assert!(is_notified(vec![Ok(Event::Init), lost(), Ok(Event::Init), Ok(Event::InitDone)]).await, "listed again");
        assert!(is_notified(vec![Ok(Event::Apply(()))]).await);
        assert!(is_notified(vec![Ok(Event::Delete(()))]).await);
    }
}
