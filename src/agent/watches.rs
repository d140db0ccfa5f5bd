//! Watches that trigger reconciles. Only the fact that an object changed is used: the reconcile reads the object itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

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

/// The watches of one GatewaySecret. They end when dropped, the shared ones with those of the last GatewaySecret that shares them.
pub(super) struct Watches {
    _own: JoinSet<()>,
    _shared: Vec<Arc<SharedWatch>>,
}

impl Watches {
    /// Watches the objects that a GatewaySecret's rotation depends on: Secrets and ConfigMaps by name, cert-manager's Certificates, and
    /// TrustConsumers and MirroredFiles. Notifies once all are watched, so a change since they were read is noticed.
    pub(super) fn start(
        (client, shared): (&Client, &SharedWatches),
        entry: &Entry,
        names: &WatchedNames,
        event: &Arc<Notify>,
    ) -> Self {
        let WatchedNames { secrets, config_maps, namespaces, consumer_namespaces } = names;
        let mut own = JoinSet::new();
        for name in secrets {
            let (namespace, name) = entry.place_of(name);
            let api: Api<PartialObjectMeta<Secret>> = Api::namespaced(client.clone(), namespace);
            own.spawn(notify(watcher(api, by_name(name)), event.clone()));
        }
        for name in config_maps {
            let api: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(client.clone(), &entry.namespace);
            own.spawn(notify(watcher(api, by_name(name)), event.clone()));
        }
        let certificates = namespaces.iter().map(|namespace| (Shared::Certificates, namespace));
        let consumers = consumer_namespaces.iter().map(|namespace| (Shared::TrustConsumers, namespace));
        let all = certificates.chain(consumers).chain([(Shared::MirroredFiles, &entry.namespace)]);
        let shared = all.map(|(kind, namespace)| shared.join(client, kind, namespace, event)).collect();
        Self { _own: own, _shared: shared }
    }
}

/// What is watched in a whole namespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Shared {
    Certificates,
    TrustConsumers,
    MirroredFiles,
}

/// Watches that GatewaySecrets of one namespace share: each is a connection.
#[derive(Default)]
pub(super) struct SharedWatches(Mutex<BTreeMap<(Shared, String), Weak<SharedWatch>>>);

/// A watch that ends when dropped.
struct SharedWatch {
    events: Arc<SharedEvents>,
    _task: JoinSet<()>,
}

impl SharedWatches {
    /// The watch of a kind in a namespace, which notifies from now on, and once at first: it may have passed a change since the objects
    /// were read.
    fn join(&self, client: &Client, kind: Shared, namespace: &str, event: &Arc<Notify>) -> Arc<SharedWatch> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, watch| watch.strong_count() > 0);
        let known = all.get(&(kind, namespace.to_owned())).and_then(Weak::upgrade);
        let watch = known.unwrap_or_else(|| {
            let watch = Arc::new(SharedWatch::start(client.clone(), kind, namespace));
            all.insert((kind, namespace.to_owned()), Arc::downgrade(&watch));
            watch
        });
        watch.events.add(event);
        event.notify_one();
        watch
    }
}

impl SharedWatch {
    fn start(client: Client, kind: Shared, namespace: &str) -> Self {
        let events = Arc::new(SharedEvents::default());
        let (notified, mut task) = (events.clone(), JoinSet::new());
        let notify = move || notified.notify();
        let all = watcher::Config::default();
        match kind {
            Shared::Certificates => {
                task.spawn(notify_each(watcher(cluster::certificates(client, namespace), all), notify))
            }
            Shared::TrustConsumers => {
                let api: Api<PartialObjectMeta<TrustConsumer>> = Api::namespaced(client, namespace);
                task.spawn(notify_each(watcher(api, all), notify))
            }
            Shared::MirroredFiles => {
                let api: Api<PartialObjectMeta<MirroredFile>> = Api::namespaced(client, namespace);
                task.spawn(notify_each(watcher(api, all), notify))
            }
        };
        Self { events, _task: task }
    }
}

/// The reconcilers that a shared watch notifies.
#[derive(Default)]
struct SharedEvents(Mutex<Vec<Weak<Notify>>>);

impl SharedEvents {
    fn add(&self, event: &Arc<Notify>) {
        let (event, mut all) = (Arc::downgrade(event), self.0.lock().unwrap_or_else(PoisonError::into_inner));
        // A reconciler that was refused a read joins again later.
        all.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&event));
        all.push(event);
    }

    fn notify(&self) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).for_each(|event| event.notify_one());
    }
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::{Request, Response};
    use futures::{FutureExt, future, stream};
    use kube::client::Body;
    use tokio::task::yield_now;

    use super::*;

    /// A client whose requests are counted and never answered.
    fn silent() -> (Client, Arc<AtomicUsize>) {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::SeqCst);
            future::pending::<Result<Response<Body>, kube::Error>>()
        });
        (Client::new(service, "default"), requests)
    }

    fn take(event: &Notify) -> bool {
        event.notified().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn gateway_secrets_of_a_namespace_share_a_watch_until_the_last_one_leaves() {
        let ((client, requests), shared) = (silent(), SharedWatches::default());
        let [one, other] = [(); 2].map(|()| Arc::new(Notify::new()));
        let join = |kind, event| shared.join(&client, kind, "mesh", event);
        let requests_made = async || {
            for _ in 0..100 {
                yield_now().await;
            }
            requests.load(Ordering::SeqCst)
        };
        let watches = [join(Shared::Certificates, &one), join(Shared::Certificates, &other)];
        assert_eq!(requests_made().await, 1);
        assert!(take(&one) && take(&other), "each may have missed a change before it joined");
        watches[0].events.notify();
        assert!(take(&one) && take(&other));

        let [first, last] = watches;
        drop(first);
        let third = join(Shared::MirroredFiles, &one);
        assert_eq!(requests_made().await, 2, "another kind");
        let again = join(Shared::Certificates, &one);
        again.events.notify();
        assert_eq!((requests_made().await, again.events.0.lock().unwrap().len()), (2, 2), "the watch is still there");
        drop((third, again, last));
        let _new = join(Shared::Certificates, &one);
        assert_eq!(requests_made().await, 3);
    }

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
