//! Applies steps. Each update carries the resourceVersion of the object that the plan was computed from, so the API server rejects it
//! with a conflict if the object has changed since.

use jiff::Timestamp;
use kube::Client;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::json;

use super::cluster_state::{ClusterState, config_maps, objects, secrets};
use super::desired_object::DesiredObject;
use super::owned_objects;
use super::{AgentError, FIELD_MANAGER};
use crate::api::names::journal_name;
use crate::api::{GatewaySecretStatus, SourceKind};
use crate::registry::Entry;
use crate::rotation::journal::Journal;
use crate::rotation::planner::Step;
use crate::store::cluster;

/// Field manager of the condition that requests a reissue from cert-manager.
const REISSUE_MANAGER: &str = "trustspan-agent-reissue";

/// Parameters of a server-side apply.
pub(super) fn apply_params() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}

/// Fails if cert-manager also writes one of the agent's Secrets: two writers would overwrite each other forever.
pub(super) fn check_single_writer(entry: &Entry, state: &ClusterState) -> Result<(), AgentError> {
    for name in owned_objects::written_names(entry) {
        if let Some(certificate) = state.writer(&name).map(str::to_owned) {
            let instead = if name == entry.managed_name() { entry.source_name() } else { "another name" }.to_owned();
            return Err(AgentError::TwoWriters { name, certificate, instead });
        }
    }
    Ok(())
}

/// Applies a step.
pub(super) async fn apply_step(
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
