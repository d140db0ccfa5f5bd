//! The object whose bundle is mirrored, watched by its name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::Notify;
use zeroize::Zeroizing;

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

/// Events of the source, and a notification at each answer of the API server that is no error.
pub(super) fn events(
    client: &Client,
    source: &SourceRef,
) -> (impl Stream<Item = watcher::Result<Event<DynamicObject>>> + use<>, Arc<Notify>) {
    let answered = Arc::new(Notify::new());
    let notify = answered.clone();
    let client = cluster::observed(client, move || notify.notify_one());
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", source.kind.name()));
    let api: Api<DynamicObject> = Api::namespaced_with(client, &source.namespace, &resource);
    let by_name = watcher::Config::default().fields(&format!("metadata.name={}", source.name));
    (watch::with_backoff(watcher(api, by_name)).boxed(), answered)
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
