//! The object whose bundle is mirrored, watched by its name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::Notify;
use zeroize::Zeroizing;

use crate::agent::permission;
use crate::api::SourceKind;
use crate::consumer;
use crate::health::CheckResult;
use crate::store::{cluster, watch};

/// The object of `--from`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceRef {
    pub(super) kind: SourceKind,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl FromStr for SourceRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected secret/NAMESPACE/NAME or configmap/NAMESPACE/NAME".to_owned();
        let [kind, namespace, name] = text.split('/').collect::<Vec<_>>().try_into().map_err(|_| expected())?;
        let kind = match kind.to_ascii_lowercase().as_str() {
            "secret" => SourceKind::Secret,
            "configmap" => SourceKind::ConfigMap,
            _ => return Err(expected()),
        };
        if namespace.is_empty() || name.is_empty() {
            return Err(expected());
        }
        Ok(Self { kind, namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for SourceRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}/{}", self.kind.name(), self.namespace, self.name)
    }
}

/// What the API server said last about the source. Has no `Debug`: it holds the content of a Secret.
#[derive(Clone)]
pub(super) enum Stored {
    /// Nothing yet.
    Pending,
    /// The object does not exist, or has no such key: which.
    Missing(String),
    /// The bytes under the key.
    Holds(Zeroizing<Vec<u8>>),
}

/// The source, as far as its events are known.
pub(super) struct WatchedSource {
    source: SourceRef,
    key: String,
    pub(super) stored: Stored,
    /// Why it cannot be read now, if so.
    pub(super) failure: Option<CheckResult>,
    /// An object of a list in progress.
    listed: Option<Stored>,
}

type Events = BoxStream<'static, watcher::Result<Event<DynamicObject>>>;

/// Time between two questions whether the source may be read.
const PERMISSION_INTERVAL: Duration = Duration::from_secs(5);

/// Events of the source, and a notification at each answer of the API server that is no error.
///
/// Without the permission to read the source, the watch ends until there is one: each attempt would leave a denied request in the audit log.
pub(super) fn events(client: &Client, source: &SourceRef) -> (Events, Arc<Notify>) {
    let answered = Arc::new(Notify::new());
    let notify = answered.clone();
    let observed = cluster::observed(client, move || notify.notify_one());
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", source.kind.name()));
    let api: Api<DynamicObject> = Api::namespaced_with(observed, &source.namespace, &resource);
    let by_name = watcher::Config::default().fields(&format!("metadata.name={}", source.name));
    let watch = move || watch::with_backoff(watcher(api.clone(), by_name.clone())).boxed();
    let (client, source) = (client.clone(), source.clone());
    let is_granted = move || {
        let (client, source) = (client.clone(), source.clone());
        async move {
            permission::granted(&client, source.kind, (&source.namespace, &source.name), PERMISSION_INTERVAL).await;
        }
    };
    (until_forbidden(watch, is_granted), answered)
}

/// The events of a watch, which is started again when it may be.
fn until_forbidden<W: Future<Output = ()> + Send>(
    watch: impl Fn() -> Events + Clone + Send + 'static,
    is_granted: impl Fn() -> W + Clone + Send + 'static,
) -> Events {
    let first = watch();
    stream::unfold(Some(first), move |watching| {
        let (watch, is_granted) = (watch.clone(), is_granted.clone());
        async move {
            let mut watching = match watching {
                Some(watching) => watching,
                None => {
                    is_granted().await;
                    watch()
                }
            };
            let event = watching.next().await?;
            let is_forbidden = event.as_ref().is_err_and(cluster::is_forbidden);
            Some((event, (!is_forbidden).then_some(watching)))
        }
    })
    .boxed()
}

impl WatchedSource {
    pub(super) fn new(source: &SourceRef, key: &str) -> Self {
        Self { source: source.clone(), key: key.to_owned(), stored: Stored::Pending, failure: None, listed: None }
    }

    /// Records an event of the watch.
    pub(super) fn apply(&mut self, event: watcher::Result<Event<DynamicObject>>) {
        match event {
            Ok(Event::Init) => self.listed = None,
            Ok(Event::InitApply(object)) => self.listed = Some(self.content(object)),
            Ok(Event::InitDone) => {
                self.stored = self.listed.take().unwrap_or_else(|| self.missing());
                self.failure = None;
            }
            Ok(Event::Apply(object)) => {
                self.stored = self.content(object);
                self.failure = None;
            }
            Ok(Event::Delete(_)) => {
                self.stored = self.missing();
                self.failure = None;
            }
            Err(error) => {
                self.listed = None;
                let text = format!("cannot read {}: {}", self.source, cluster::watch_error_message(&error));
                if let Some(failure) = cluster::watch_failure(&error, text) {
                    self.failure = Some(failure);
                }
            }
        }
    }

    fn missing(&self) -> Stored {
        Stored::Missing(format!("{} does not exist", self.source))
    }

    fn content(&self, object: DynamicObject) -> Stored {
        let object = serde_json::to_value(object).unwrap_or(Value::Null);
        match consumer::value(self.source.kind, &object, &self.key) {
            Some(bytes) => Stored::Holds(bytes),
            None => Stored::Missing(format!("{} has no key {}", self.source, self.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_kind_a_namespace_and_a_name() {
        let parsed: SourceRef = "configmap/mesh/trust".parse().unwrap();
        assert_eq!(parsed.to_string(), "ConfigMap mesh/trust");
        assert_eq!("Secret/mesh/gw".parse::<SourceRef>().unwrap().kind, SourceKind::Secret);
        for text in ["secret/gw", "pod/mesh/gw", "secret//gw", "secret/mesh/", "secret/mesh/gw/ca.crt", ""] {
            assert!(text.parse::<SourceRef>().is_err(), "{text}");
        }
    }

    fn config_map(data: Value) -> DynamicObject {
        let object = serde_json::json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "trust" }, "data": data });
        serde_json::from_value(object).unwrap()
    }

    #[tokio::test]
    async fn a_forbidden_watch_is_not_repeated_until_it_is_granted() {
        use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
        let status = |code| kube::core::Status::failure("no", "Reason").with_code(code).boxed();
        let questions = Arc::new(AtomicUsize::new(0));
        let events = |code| {
            let watch = move || stream::iter([Err(watcher::Error::WatchError(status(code)))]).boxed();
            let asked = questions.clone();
            until_forbidden(watch, move || {
                asked.fetch_add(1, SeqCst);
                std::future::ready(())
            })
        };
        assert_eq!(events(503).take(3).count().await, 1, "the watch goes on, and this one has no further event");
        assert_eq!(questions.load(SeqCst), 0);
        assert_eq!(events(403).take(3).count().await, 3);
        assert_eq!(questions.load(SeqCst), 2, "a question before each further attempt");
    }

    #[test]
    fn a_failed_list_changes_nothing_and_a_complete_one_shows_that_the_object_is_gone() {
        let source = "configmap/mesh/trust".parse().unwrap();
        let mut watched = WatchedSource::new(&source, "ca.crt");
        let shown = |watched: &WatchedSource| match &watched.stored {
            Stored::Pending => "pending".to_owned(),
            Stored::Missing(which) => which.clone(),
            Stored::Holds(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        };
        watched.apply(Ok(Event::InitApply(config_map(serde_json::json!({ "ca.crt": "one" })))));
        watched.apply(Err(watcher::Error::NoResourceVersion));
        assert_eq!((shown(&watched).as_str(), watched.failure.is_some()), ("pending", true));
        watched.apply(Ok(Event::InitApply(config_map(serde_json::json!({ "ca.crt": "two" })))));
        watched.apply(Ok(Event::InitDone));
        assert_eq!((shown(&watched).as_str(), watched.failure.is_some()), ("two", false));
        watched.apply(Ok(Event::Apply(config_map(serde_json::json!({ "other": "two" })))));
        assert_eq!(shown(&watched), "ConfigMap mesh/trust has no key ca.crt");
        watched.apply(Ok(Event::InitDone));
        assert_eq!(shown(&watched), "ConfigMap mesh/trust does not exist");
    }
}
