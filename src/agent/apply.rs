//! Applies steps. Each update carries the resourceVersion of the object that the plan was computed from, so the API server rejects it
//! with a conflict if the object has changed since.

use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::timeout;

use super::cluster_state::{ClusterState, config_maps, objects, secrets};
use super::desired_object::DesiredObject;
use super::owned_objects;
use super::write_failures::{PlannedWrite, WriteFailures};
use super::{AgentError, FIELD_MANAGER};
use crate::api::names::journal_name;
use crate::api::{GatewaySecretStatus, SourceKind};
use crate::registry::Entry;
use crate::rotation::journal::Journal;
use crate::rotation::planner::Step;
use crate::store::cluster;

/// Field manager of the condition that requests a reissue from cert-manager.
const REISSUE_MANAGER: &str = "trustspan-agent-reissue";

/// Timeout of one step, so that a request without an answer leaves time for the others. Admission webhooks have 10 s by default.
const STEP_TIMEOUT: Duration = Duration::from_secs(12);

/// Parameters of a server-side apply.
pub(super) fn apply_params() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}

/// Fails if cert-manager also writes one of the agent's Secrets: two writers would overwrite each other forever.
pub(super) fn check_single_writer(entry: &Entry, state: &ClusterState) -> Result<(), AgentError> {
    for name in owned_objects::written_names(entry) {
        if let Some(certificate) = state.writer(&name).map(str::to_owned) {
            let instead = if name == entry.managed_name() { entry.source_name() } else { "another name" }.to_owned();
            let owner = state.owner_of_certificate(&certificate).map(str::to_owned);
            return Err(AgentError::TwoWriters { name, certificate, instead, owner });
        }
    }
    Ok(())
}

/// What happened to the steps of a plan.
#[derive(Debug, Default)]
pub(super) struct AppliedSteps {
    /// Those that succeeded.
    pub(super) applied: Vec<Step>,
    /// Whether a step failed that had not failed before.
    pub(super) has_new_failure: bool,
}

/// Applies the steps of a plan. They are independent writes, so one that fails does not stop the others: it is recorded in `failures`, and tried
/// again after its backoff.
///
/// # Errors
/// When `may_write` fails, or an object has changed since it was read: a new plan is necessary. The steps before that are in `outcome`.
pub(super) async fn apply_steps(
    client: &Client,
    entry: &Entry,
    state: &ClusterState,
    steps: &[Step],
    failures: &mut WriteFailures,
    may_write: impl Fn() -> Result<(), AgentError>,
    outcome: &mut AppliedSteps,
) -> Result<(), AgentError> {
    for step in steps {
        let write = PlannedWrite::Step(step.clone());
        if !failures.is_due(&write) {
            continue;
        }
        may_write()?;
        let applied = timeout(STEP_TIMEOUT, apply_step(client, entry, state, step, Timestamp::now())).await;
        let applied = applied.unwrap_or(Err(AgentError::NoAnswer));
        match &applied {
            Ok(()) => outcome.applied.push(step.clone()),
            Err(error) if error.has_code(409) => return applied,
            Err(_) => {}
        }
        let failure = applied.as_ref().err().map(ToString::to_string);
        if failures.record(write, applied) {
            outcome.has_new_failure = true;
            let (namespace, name, failure) = (&entry.namespace, &entry.name, failure.unwrap_or_default());
            tracing::warn!(namespace, name, "step failed, retrying with a backoff: {failure}");
        }
    }
    Ok(())
}

/// Applies a step.
async fn apply_step(
    client: &Client,
    entry: &Entry,
    state: &ClusterState,
    step: &Step,
    now: Timestamp,
) -> Result<(), AgentError> {
    if let Step::Reissue { certificate } = step {
        let (namespace, name) = entry.place_of(certificate);
        return reissue(client, namespace, name, now).await;
    }
    let Some(desired) = DesiredObject::of(entry, state, step) else { return Ok(()) };
    let (namespace, name) = entry.place_of(&desired.name);
    let (api, plural) = match desired.kind {
        SourceKind::Secret => (secrets(client, namespace), "secrets"),
        SourceKind::ConfigMap => (config_maps(client, namespace), "configmaps"),
    };
    let Some(stored) = desired.stored(state) else {
        if namespace != entry.namespace {
            // RBAC does not prevent this: the agent is one user, with the permissions of all GatewaySecrets.
            let (name, allowed) = (desired.name.clone(), owned_objects::adopt_value(entry, namespace));
            return Err(AgentError::NotCreated { name, allowed });
        }
        // Server-side apply instead of a create: RBAC can limit `patch` to a name, but not `create`.
        let written = api.patch(name, &apply_params(), &Patch::Apply(desired.object(entry))).await;
        return written.map(drop).map_err(|e| AgentError::api("patch", plural, name, e));
    };
    if !owned_objects::is_owned_by(&stored.object, entry) {
        let (kind, allowed) = (desired.kind.name(), owned_objects::adopt_value(entry, namespace));
        return Err(AgentError::Foreign { kind, name: desired.name, allowed });
    }
    let object: DynamicObject =
        serde_json::from_value(desired.update(&stored.object, entry)).map_err(AgentError::Encode)?;
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    api.replace(name, &params, &object).await.map(drop).map_err(|e| AgentError::api("update", plural, name, e))
}

/// Requests a reissue from cert-manager by condition `Issuing`, as `cmctl renew` does.
pub async fn reissue(client: &Client, namespace: &str, name: &str, now: Timestamp) -> Result<(), AgentError> {
    let condition = json!({
        "type": "Issuing", "status": "True", "reason": "TrustRotated",
        "message": "Reissue requested by trustspan", "lastTransitionTime": now.strftime("%FT%TZ").to_string(),
    });
    let object = json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": { "name": name },
        "status": { "conditions": [condition] },
    });
    let api = cluster::certificates(client.clone(), namespace);
    let params = PatchParams::apply(REISSUE_MANAGER).force();
    let patched = api.patch_status(name, &params, &Patch::Apply(object)).await;
    patched.map(drop).map_err(|e| AgentError::api("patch", "certificates.cert-manager.io/status", name, e))
}

/// Stores the journal, unless it was changed since it was read.
pub(super) async fn store_journal(
    client: &Client,
    entry: &Entry,
    state: &ClusterState,
    journal: &Journal,
) -> Result<(), AgentError> {
    let name = journal_name(&entry.name);
    let api = config_maps(client, &entry.namespace);
    let mut object = owned_objects::journal_config_map(entry, journal);
    if let Some(stored) = &state.journal_object {
        object["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
    }
    let written = api.patch(&name, &apply_params(), &Patch::Apply(object)).await;
    written.map(drop).map_err(|e| AgentError::api("patch", "configmaps", &name, e))
}

/// Stores the status.
pub(super) async fn store_status(
    client: &Client,
    entry: &Entry,
    status: &GatewaySecretStatus,
) -> Result<(), AgentError> {
    let object = json!({
        "apiVersion": format!("{}/{}", crate::api::GROUP, crate::api::VERSION), "kind": "GatewaySecret",
        "metadata": { "name": entry.name }, "status": status,
    });
    let api = objects(client, &entry.namespace, crate::api::GROUP, crate::api::VERSION, "GatewaySecret");
    let written = api.patch_status(&entry.name, &apply_params(), &Patch::Apply(object)).await;
    written.map(drop).map_err(|e| AgentError::api("patch", "gatewaysecrets.trustspan.dev/status", &entry.name, e))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::http::{Request, Response};
    use kube::client::Body;

    use super::*;
    use crate::registry::tests::entry;

    const MAX: Duration = Duration::from_secs(30);

    /// A client of an API server that answers requests for some Certificates with a code, and the names that were requested.
    fn answering(answers: &'static [(&str, u16)]) -> (Client, Arc<Mutex<Vec<String>>>) {
        let requested = Arc::new(Mutex::new(Vec::new()));
        let log = requested.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let name = request.uri().path().rsplit('/').nth(1).unwrap_or_default().to_owned();
            let code = answers.iter().find(|(refused, _)| *refused == name).map_or(200, |(_, code)| *code);
            log.lock().expect("no panic").push(name.clone());
            async move {
                // Nothing answers.
                if code == 0 {
                    std::future::pending::<()>().await;
                }
                let body = match code {
                    200 => {
                        json!({ "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": { "name": name } })
                    }
                    code => json!({
                        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": "Refused",
                        "message": "admission webhook \"protect\" denied the request",
                    }),
                };
                Response::builder().status(code).body(Body::from(body.to_string().into_bytes()))
            }
        });
        (Client::new(service, "default"), requested)
    }

    struct Applied {
        names: Vec<String>,
        requested: Vec<String>,
        has_new_failure: bool,
        outcome: Result<(), AgentError>,
    }

    async fn apply(answers: &'static [(&str, u16)], failures: &mut WriteFailures) -> Applied {
        let ((client, requested), entry) = (answering(answers), entry("mesh", "root", "gw"));
        let state = ClusterState::from_objects(&entry, [], [], None, Timestamp::now());
        let steps = ["a", "b", "c"].map(|name| Step::Reissue { certificate: name.to_owned() });
        let mut taken = AppliedSteps::default();
        let outcome = apply_steps(&client, &entry, &state, &steps, failures, || Ok(()), &mut taken).await;
        let name = |step: Step| if let Step::Reissue { certificate } = step { certificate } else { String::new() };
        let requested = std::mem::take(&mut *requested.lock().expect("no panic"));
        Applied {
            names: taken.applied.into_iter().map(name).collect(),
            requested,
            has_new_failure: taken.has_new_failure,
            outcome,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_that_fails_does_not_stop_the_others_and_is_retried_after_its_backoff() {
        for code in [403, 422, 500, 0] {
            let answers: &[(&str, u16)] = match code {
                403 => &[("a", 403)],
                422 => &[("a", 422)],
                500 => &[("a", 500)],
                _ => &[("a", 0)],
            };
            let mut failures = WriteFailures::new(MAX);
            let first = apply(answers, &mut failures).await;
            assert_eq!((first.names, first.has_new_failure), (vec!["b".to_owned(), "c".to_owned()], true), "{code}");
            assert!(first.outcome.is_ok() && failures.reported().is_some());
            let refused = failures.refused_reissues();
            assert_eq!(refused.contains_key("a"), [403, 422].contains(&code), "{refused:?}");
            // An event does not repeat it.
            assert_eq!(apply(answers, &mut failures).await.requested, ["b", "c"], "{code}");
            for seconds in [2, 4, 8] {
                assert_eq!(failures.remaining(), Some(Duration::from_secs(seconds)));
                tokio::time::advance(Duration::from_secs(seconds)).await;
                let again = apply(answers, &mut failures).await;
                assert_eq!((again.requested[0].as_str(), again.has_new_failure), ("a", false), "{code}");
            }
            tokio::time::advance(MAX).await;
            assert_eq!(apply(&[], &mut failures).await.names, ["a", "b", "c"]);
            assert!(failures.reported().is_none() && failures.condition_message().is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_conflict_ends_the_plan() {
        let mut failures = WriteFailures::new(MAX);
        let applied = apply(&[("b", 409)], &mut failures).await;
        assert_eq!(applied.names, ["a"]);
        assert!(applied.outcome.is_err_and(|error| error.has_code(409)) && failures.reported().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_condition_counts_the_writes_that_fail() {
        let mut failures = WriteFailures::new(MAX);
        apply(&[("a", 500), ("b", 403)], &mut failures).await;
        let message = failures.condition_message().expect("two failures");
        assert!(message.starts_with("1 of 2 failed writes: An admission webhook or policy"), "{message}");
        assert_eq!(failures.reported().map(AgentError::reason), Some("Rejected"), "what needs a change comes first");
    }
}
