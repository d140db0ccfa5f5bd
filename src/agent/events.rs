//! Tells people what happened, by Events (events.k8s.io/v1) on the GatewaySecret. Nothing waits for one to be written: what cannot
//! be told is logged and lost.

use std::collections::BTreeMap;
use std::sync::Arc;
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

/// Name of the agent in Events.
const REPORTER: &str = "trustspan.dev/agent";
/// Notices that wait to be written; more are lost.
const WAITING: usize = 256;
/// The most that writing one may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Different notices that are remembered, so that the same once more counts up an Event's series.
const KNOWN: usize = 256;
/// Bytes of a note that the API server takes (`k8s.io/kubernetes/pkg/apis/core/validation/events.go`, `NoteLengthLimit`).
const NOTE: usize = 1024;

/// Takes notices.
#[derive(Clone, Debug)]
pub(super) struct EventRecorder {
    waiting: mpsc::Sender<(ObjectReference, StatusEvent)>,
    /// What this process did.
    pub(super) tally: Arc<AgentMetrics>,
}

impl EventRecorder {
    /// Takes notices on a GatewaySecret, and returns at once.
    pub(super) fn tell(&self, entry: &Entry, notices: Vec<StatusEvent>) {
        for notice in notices {
            if self.waiting.try_send((regarding(entry), notice)).is_err() {
                self.tally.event_lost();
                tracing::debug!(namespace = entry.namespace, name = entry.name, "an Event is lost: too many wait");
            }
        }
    }
}

/// A teller, and the task that writes what it takes.
pub(super) fn teller(client: Client, tally: Arc<AgentMetrics>) -> (EventRecorder, impl Future<Output = ()>) {
    let (sender, mut waiting) = mpsc::channel::<(ObjectReference, StatusEvent)>(WAITING);
    let teller = EventRecorder { waiting: sender, tally: tally.clone() };
    let task = async move {
        let mut known: BTreeMap<(Option<String>, StatusEvent), Recorder> = BTreeMap::new();
        while let Some((regarding, notice)) = waiting.recv().await {
            if known.len() >= KNOWN {
                known.clear();
            }
            // A recorder folds Events of one reason into a series, whatever they say: so each notice has its own.
            let recorder = known
                .entry((regarding.uid.clone(), notice.clone()))
                .or_insert_with(|| Recorder::new(client.clone(), Reporter::from(REPORTER)));
            let event = event(&notice, &regarding);
            let written = timeout(PATIENCE, recorder.publish(&event, &regarding)).await;
            if let Err(error) = written.unwrap_or_else(|_| Err(kube::Error::Service("no answer".into()))) {
                tally.event_lost();
                let reason = notice.reason;
                let error = cluster::told(&error);
                tracing::warn!("Event {reason} not written: {error}; `trustspan rbac` prints the right to");
            }
        }
    };
    (teller, task)
}

fn event(notice: &StatusEvent, regarding: &ObjectReference) -> Event {
    let secret = |name: &String| {
        let (namespace, name) = match name.split_once('/') {
            Some((namespace, name)) => (Some(namespace.to_owned()), name),
            None => (regarding.namespace.clone(), name.as_str()),
        };
        let (api_version, kind) = (Some("v1".to_owned()), Some("Secret".to_owned()));
        ObjectReference { api_version, kind, namespace, name: Some(name.to_owned()), ..ObjectReference::default() }
    };
    Event {
        type_: if notice.is_warning { EventType::Warning } else { EventType::Normal },
        reason: notice.reason.to_owned(),
        note: Some(cut(&notice.note).to_owned()),
        action: notice.action.to_owned(),
        secondary: notice.secret.as_ref().map(secret),
    }
}

/// As much of a note as the API server takes.
fn cut(note: &str) -> &str {
    &note[..note.floor_char_boundary(NOTE)]
}

fn regarding(entry: &Entry) -> ObjectReference {
    ObjectReference {
        api_version: Some(format!("{GROUP}/{VERSION}")),
        kind: Some("GatewaySecret".to_owned()),
        namespace: Some(entry.namespace.clone()),
        name: Some(entry.name.clone()),
        uid: entry.uid.clone(),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_notes_of_any_length() {
        assert_eq!(cut("short"), "short");
        let long = "ä".repeat(NOTE);
        assert_eq!(cut(&long).len(), NOTE);
        assert_eq!(cut(&format!("a{long}")).len(), NOTE - 1, "no character is cut in two");
    }
}
