//! Records Events (events.k8s.io/v1) on GatewaySecrets and TrustConsumers. Nothing waits for their writes: an Event that cannot be written is logged and
//! dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::metrics::AgentMetrics;
use crate::api::{GROUP, VERSION};
use crate::registry::Entry;
use crate::rotation::StatusEvent;
use crate::store::cluster;
use crate::text::excerpt;

/// Name of the agent in Events.
const REPORTER: &str = "trustspan.dev/agent";
/// The length of the queue; further Events are dropped.
const QUEUE_LENGTH: usize = 256;
/// Places of the queue for one namespace, so that its Events do not replace those of others.
const MAX_QUEUED: usize = QUEUE_LENGTH / 4;
/// Timeout of one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of different Events that are remembered, so that a repeated one increments the count of its series.
const MAX_REMEMBERED: usize = 256;

/// Records Events.
#[derive(Clone, Debug)]
pub(super) struct EventRecorder {
    queue: mpsc::Sender<(ObjectReference, StatusEvent)>,
    queued: Arc<QueuedEvents>,
    pub(super) metrics: Arc<AgentMetrics>,
}

impl EventRecorder {
    /// Queues Events on a GatewaySecret, without waiting.
    pub(super) fn record(&self, entry: &Entry, events: Vec<StatusEvent>) {
        let regarding = reference("GatewaySecret", &entry.namespace, &entry.name, entry.uid.clone());
        self.record_on(&regarding, events);
    }

    /// Queues Events on an object, without waiting.
    pub(super) fn record_on(&self, regarding: &ObjectReference, events: Vec<StatusEvent>) {
        for event in events {
            let has_place = self.queued.add(regarding.namespace.as_ref());
            if !has_place || self.queue.try_send((regarding.clone(), event)).is_err() {
                if has_place {
                    self.queued.remove(regarding.namespace.as_ref());
                }
                self.metrics.event_dropped();
                tracing::debug!(
                    namespace = regarding.namespace,
                    name = regarding.name,
                    "Event dropped: the queue is full, or its namespace has no place in it"
                );
            }
        }
    }
}

/// The number of queued Events of each namespace.
#[derive(Debug, Default)]
struct QueuedEvents(Mutex<BTreeMap<Option<String>, usize>>);

impl QueuedEvents {
    /// Counts one, if the namespace has a place for it.
    fn add(&self, namespace: Option<&String>) -> bool {
        let mut queued = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = queued.entry(namespace.cloned()).or_default();
        let has_place = *number < MAX_QUEUED;
        *number += usize::from(has_place);
        has_place
    }

    fn remove(&self, namespace: Option<&String>) {
        let mut queued = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = queued.get_mut(&namespace.cloned()) {
            *number = number.saturating_sub(1);
        }
        queued.retain(|_, number| *number > 0);
    }
}

/// A recorder, and the task that writes its Events.
pub(super) fn recorder(client: Client, metrics: Arc<AgentMetrics>) -> (EventRecorder, impl Future<Output = ()>) {
    let (sender, mut queue) = mpsc::channel::<(ObjectReference, StatusEvent)>(QUEUE_LENGTH);
    let queued = Arc::new(QueuedEvents::default());
    let recorder = EventRecorder { queue: sender, queued: queued.clone(), metrics: metrics.clone() };
    let task = async move {
        let mut series: BTreeMap<(Option<String>, StatusEvent), Recorder> = BTreeMap::new();
        while let Some((regarding, event)) = queue.recv().await {
            queued.remove(regarding.namespace.as_ref());
            if series.len() >= MAX_REMEMBERED {
                series.clear();
            }
            // kube's Recorder counts all Events of one reason as one series, whatever their notes say: each note has its own.
            let recorder = series
                .entry((regarding.uid.clone(), event.clone()))
                .or_insert_with(|| Recorder::new(client.clone(), Reporter::from(REPORTER)));
            let written = timeout(WRITE_TIMEOUT, recorder.publish(&to_kube(&event, &regarding), &regarding)).await;
            if let Err(error) = written.unwrap_or_else(|_| Err(kube::Error::Service("no answer".into()))) {
                metrics.event_dropped();
                let reason = event.reason;
                let error = cluster::error_message(&error);
                tracing::warn!("Event {reason} not written: {error}; `trustspan rbac` prints the permission");
            }
        }
    };
    (recorder, task)
}

fn to_kube(event: &StatusEvent, regarding: &ObjectReference) -> Event {
    let secret = |name: &String| {
        let (namespace, name) = match name.split_once('/') {
            Some((namespace, name)) => (Some(namespace.to_owned()), name),
            None => (regarding.namespace.clone(), name.as_str()),
        };
        let (api_version, kind) = (Some("v1".to_owned()), Some("Secret".to_owned()));
        ObjectReference { api_version, kind, namespace, name: Some(name.to_owned()), ..ObjectReference::default() }
    };
    Event {
        type_: if event.is_warning { EventType::Warning } else { EventType::Normal },
        reason: event.reason.to_owned(),
        // The API server accepts 1 KiB (`k8s.io/kubernetes/pkg/apis/core/validation/events.go`, `NoteLengthLimit`).
        note: Some(excerpt(&event.note)),
        action: event.action.to_owned(),
        secondary: event.secret.as_ref().map(secret),
    }
}

/// An object of trustspan's API group, for Events on it.
pub(super) fn reference(kind: &str, namespace: &str, name: &str, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some(format!("{GROUP}/{VERSION}")),
        kind: Some(kind.to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid,
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_namespace_leave_places_for_others() {
        let (queued, hostile, other) = (QueuedEvents::default(), "hostile".to_owned(), "other".to_owned());
        let added = (0..QUEUE_LENGTH).filter(|_| queued.add(Some(&hostile))).count();
        assert_eq!(added, MAX_QUEUED);
        assert!(queued.add(Some(&other)));
        queued.remove(Some(&hostile));
        assert!(queued.add(Some(&hostile)) && !queued.add(Some(&hostile)));
        (0..MAX_QUEUED).for_each(|_| queued.remove(Some(&hostile)));
        queued.remove(Some(&other));
        assert!(queued.0.lock().expect("no panic").is_empty(), "namespaces without Events are forgotten");
    }
}
