//! Reports in a MirroredFile what the file holds. Rotations wait for it.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::decision::Disk;
use super::file::{FileResult, FileState};
use crate::api::{ConditionStatus, GROUP, MIRROR_SYNCED, MirroredFile, MirroredFileSpec, MirroredFileStatus, VERSION};
use crate::health::CheckResult;
use crate::rotation::{sentence, set_condition};
use crate::store::{CheckHandle, cluster};
use crate::trust::fingerprint_of;

const FIELD_MANAGER: &str = "trustspan-node-mirror";
/// Time between two reports without a change: a MirroredFile that somebody deleted is created again.
const INTERVAL: Duration = Duration::from_secs(300);
/// Time after a report that failed.
const RETRY: Duration = Duration::from_secs(5);
/// Limit of one report.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Characters of the node's name in the name of the object.
const NODE_PART: usize = 60;

/// The object that describes a file.
pub(super) struct Reporter {
    client: Client,
    namespace: String,
    name: String,
    spec: MirroredFileSpec,
    check: CheckHandle,
}

/// The name of the MirroredFile of a file on a node: a DNS subdomain, different for each node and path.
pub(super) fn object_name(spec: &MirroredFileSpec) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let node: String = spec.node.to_ascii_lowercase().chars().take(NODE_PART).collect();
    let node = node.replace(|c: char| !is_plain(c), "-");
    let hash = fingerprint_of(format!("{}\n{}", spec.node, spec.path).as_bytes());
    format!("{}-{}", node.trim_matches('-'), &hash[..16]).trim_start_matches('-').to_owned()
}

impl Reporter {
    pub(super) fn new(client: Client, namespace: &str, spec: MirroredFileSpec, check: CheckHandle) -> Self {
        Self { client, namespace: namespace.to_owned(), name: object_name(&spec), spec, check }
    }

    /// Reports each state that arrives, and repeats a report that failed. Never returns while the sender lives.
    pub(super) async fn run(self, mut states: watch::Receiver<Option<FileState>>) {
        let mut stored: Option<MirroredFileStatus> = None;
        loop {
            let state = states.borrow_and_update().clone();
            let mut next = INTERVAL;
            if let Some(state) = state {
                let written = timeout(TIMEOUT, self.report(&state, &mut stored)).await;
                let result = match written {
                    Ok(Ok(())) => CheckResult::Ok,
                    Ok(Err(error)) => cluster::check_failure(&error, self.describe(&error)),
                    Err(_) => CheckResult::Unreachable(format!("no answer within {} s", TIMEOUT.as_secs())),
                };
                if !result.is_ok() {
                    next = RETRY;
                }
                self.check.record(result);
            }
            tokio::select! {
                changed = states.changed() => if changed.is_err() { return },
                () = sleep(next) => {}
            }
        }
    }

    fn describe(&self, error: &kube::Error) -> String {
        let (namespace, name, message) = (&self.namespace, &self.name, cluster::error_message(error));
        match error {
            kube::Error::Api(status) if status.code == 404 => {
                format!(
                    "cannot report in MirroredFile {namespace}/{name}: the namespace or the kind does not exist ({message})"
                )
            }
            _ => format!("cannot report in MirroredFile {namespace}/{name}: {message}"),
        }
    }

    async fn report(&self, state: &FileState, stored: &mut Option<MirroredFileStatus>) -> kube::Result<()> {
        let api: Api<MirroredFile> = Api::namespaced(self.client.clone(), &self.namespace);
        let before = match stored.take() {
            Some(known) => known,
            None => api.get_opt(&self.name).await?.and_then(|object| object.status).unwrap_or_default(),
        };
        let status = status(&before, state, Timestamp::now());
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let head = |body: Value| {
            let mut object = json!({ "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "MirroredFile" });
            for (key, value) in body.as_object().into_iter().flatten() {
                object[key] = value.clone();
            }
            Patch::Apply(object)
        };
        let mut metadata = json!({ "name": self.name });
        if let Some(owner) = self.owner().await {
            metadata["ownerReferences"] = json!([owner]);
        }
        api.patch(&self.name, &params, &head(json!({ "metadata": metadata, "spec": self.spec }))).await?;
        let body = json!({ "metadata": { "name": self.name }, "status": status });
        api.patch_status(&self.name, &params, &head(body)).await?;
        *stored = Some(status);
        Ok(())
    }

    /// The Node, so that the object is deleted with it. Without the right to read it, or without a Node of that name, there is none.
    async fn owner(&self) -> Option<Value> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let uid = nodes.get_opt(&self.spec.node).await.ok()??.metadata.uid?;
        Some(json!({ "apiVersion": "v1", "kind": "Node", "name": self.spec.node, "uid": uid }))
    }
}

/// The status that describes a state, with the times of an earlier status for what has not changed.
fn status(before: &MirroredFileStatus, state: &FileState, now: Timestamp) -> MirroredFileStatus {
    let content = match &state.disk {
        Disk::Holds(content) => Some(content),
        Disk::Absent | Disk::Unusable(_) => None,
    };
    let sha256 = content.map(|content| content.hash());
    let since = if sha256 == before.sha256 { before.since } else { None };
    let (status, reason, message) = condition(&state.result);
    let mut conditions = before.conditions.clone();
    set_condition(&mut conditions, None, MIRROR_SYNCED, (status, reason, sentence(&message)), now);
    MirroredFileStatus {
        conditions,
        since: sha256.as_ref().map(|_| since.unwrap_or(now)),
        sha256,
        first_expiry: content.and_then(|content| content.first_expiry(now)),
        last_drift: state.last_drift.or(before.last_drift),
    }
}

fn condition(result: &FileResult) -> (ConditionStatus, &'static str, String) {
    match result {
        FileResult::Current => (ConditionStatus::True, "Mirrored", "The file holds what the source has".to_owned()),
        FileResult::Pending => (ConditionStatus::Unknown, "Pending", "The source was not read yet".to_owned()),
        FileResult::SourceMissing(which) => (
            ConditionStatus::False,
            "SourceMissing",
            format!("{which}. The file stays as it is. Create it, or change --from or --key of the mirror"),
        ),
        FileResult::SourceUnreadable(failure) => {
            (ConditionStatus::Unknown, "SourceUnreadable", format!("The file stays as it is: {}", text(failure)))
        }
        FileResult::Refused(why) => (
            ConditionStatus::False,
            "Refused",
            format!(
                "The file stays as it is, since the content of the source would break trust: {why}. Correct the source"
            ),
        ),
        FileResult::NotWritten(failure) => (ConditionStatus::False, "NotWritten", text(failure)),
    }
}

fn text(failure: &CheckResult) -> String {
    match failure {
        CheckResult::Ok => String::new(),
        CheckResult::Unreachable(text) | CheckResult::Misconfigured(text) => text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{MirrorSource, SourceKind};
    use crate::node::mirror::decision::Content;
    use crate::trust::fixtures::{ca, now, parsed};

    fn spec(node: &str, path: &str) -> MirroredFileSpec {
        let source = MirrorSource { kind: SourceKind::Secret, name: "gw".to_owned(), key: "ca.crt".to_owned() };
        MirroredFileSpec { node: node.to_owned(), path: path.to_owned(), source }
    }

    #[test]
    fn each_node_and_path_has_an_object_with_a_valid_name() {
        let long = "n".repeat(253);
        let nodes = ["node-1", "node-1.example.com", "Node_1", "-", "ü", "", long.as_str()];
        let names: Vec<_> = nodes.iter().map(|node| object_name(&spec(node, "/etc/ca.crt"))).collect();
        for name in &names {
            crate::api::names::check_object_name(name).unwrap();
            assert!(name.len() <= 80, "{name}");
        }
        assert!(names[0].starts_with("node-1-"), "{names:?}");
        let distinct: std::collections::BTreeSet<_> =
            names.iter().cloned().chain([object_name(&spec("node-1", "/etc/other.crt"))]).collect();
        assert_eq!(distinct.len(), nodes.len() + 1);
    }

    #[test]
    fn times_stay_while_nothing_changes() {
        let disk = Disk::Holds(Content(vec![parsed(ca("one").der())]));
        let state = |result| FileState { disk: disk.clone(), last_drift: None, result };
        let first = status(&MirroredFileStatus::default(), &state(FileResult::Current), now());
        assert_eq!((first.since, first.conditions[0].status), (Some(now()), ConditionStatus::True));
        let later = now() + jiff::SignedDuration::from_hours(1);
        assert_eq!(status(&first, &state(FileResult::Current), later), first);
        let refused = status(&first, &state(FileResult::Refused("no PEM".to_owned())), later);
        assert_eq!((refused.since, refused.sha256.as_ref()), (Some(now()), first.sha256.as_ref()));
        assert_eq!(refused.conditions[0].last_transition_time, later);
        let gone = FileState { disk: Disk::Absent, last_drift: Some(later), result: FileResult::Current };
        let gone = status(&first, &gone, later);
        assert_eq!((gone.sha256, gone.since, gone.last_drift), (None, None, Some(later)));
    }
}
