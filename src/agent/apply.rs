//! Takes steps. Each write says which version of the object it was decided on, and is refused by the API server when that
//! is not the stored one any more.

use jiff::Timestamp;
use kube::Client;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::json;

use super::cluster_state::{ClusterState, config_maps, objects, secrets};
use super::desired_object::DesiredObject;
use super::owned_objects;
use super::{AgentError, MANAGER};
use crate::api::names::journal_name;
use crate::api::{GatewaySecretStatus, SourceKind};
use crate::registry::Entry;
use crate::rotation::journal::Journal;
use crate::rotation::planner::Step;
use crate::store::cluster;

/// Field manager of requests to cert-manager: of that one condition, and nothing else.
const REISSUE_MANAGER: &str = "trustspan-agent-reissue";

pub(super) fn apply() -> PatchParams {
    PatchParams::apply(MANAGER).force()
}

/// Whether the agent is the only writer of what it keeps. Two writers would undo each other without end.
pub(super) fn has_one_writer(entry: &Entry, world: &ClusterState) -> Result<(), AgentError> {
    for name in owned_objects::written_names(entry) {
        if let Some(certificate) = world.writer(&name).map(str::to_owned) {
            let instead = if name == entry.managed_name() { entry.source_name() } else { "another name" }.to_owned();
            return Err(AgentError::TwoWriters { name, certificate, instead });
        }
    }
    Ok(())
}

/// Takes a step.
pub(super) async fn take(
    client: &Client,
    entry: &Entry,
    world: &ClusterState,
    step: &Step,
    now: Timestamp,
) -> Result<(), AgentError> {
    if let Step::Reissue { certificate } = step {
        let (namespace, name) = entry.place_of(certificate);
        return reissue(client, namespace, name, now).await;
    }
    let Some(content) = DesiredObject::of(entry, world, step) else { return Ok(()) };
    let (namespace, name) = entry.place_of(&content.name);
    let (api, plural) = match content.kind {
        SourceKind::Secret => (secrets(client, namespace), "secrets"),
        SourceKind::ConfigMap => (config_maps(client, namespace), "configmaps"),
    };
    let Some(held) = content.held(world) else {
        if namespace != entry.namespace {
            // Another GatewaySecret may have the rights for it that this one lacks: the agent is one user.
            let (name, allowed) = (content.name.clone(), owned_objects::adoption(entry, namespace));
            return Err(AgentError::NotCreated { name, allowed });
        }
        // Applied, not created: a right to create cannot be limited to a name, one to patch can.
        let written = api.patch(name, &apply(), &Patch::Apply(content.object(entry))).await;
        return written.map(drop).map_err(|e| AgentError::api("patch", plural, name, e));
    };
    if !owned_objects::is_kept_for(&held.object, entry) {
        let (kind, allowed) = (content.kind.name(), owned_objects::adoption(entry, namespace));
        return Err(AgentError::Foreign { kind, name: content.name, allowed });
    }
    let object: DynamicObject =
        serde_json::from_value(content.put_into(&held.object, entry)).map_err(AgentError::Encode)?;
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    api.replace(name, &params, &object).await.map(drop).map_err(|e| AgentError::api("update", plural, name, e))
}

/// Asks cert-manager for a new issue, as `cmctl renew` does: never by deleting a Secret.
pub async fn reissue(client: &Client, namespace: &str, name: &str, now: Timestamp) -> Result<(), AgentError> {
    let condition = json!({
        "type": "Issuing", "status": "True", "reason": "TrustRotated",
        "message": "asked for by trustspan", "lastTransitionTime": now.strftime("%FT%TZ").to_string(),
    });
    let object = json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": { "name": name },
        "status": { "conditions": [condition] },
    });
    let api = cluster::certificates(client.clone(), namespace);
    let params = PatchParams::apply(REISSUE_MANAGER).force();
    let asked = api.patch_status(name, &params, &Patch::Apply(object)).await;
    asked.map(drop).map_err(|e| AgentError::api("patch", "certificates.cert-manager.io/status", name, e))
}

/// Stores the journal, unless somebody else has stored another since it was read.
pub(super) async fn journal(
    client: &Client,
    entry: &Entry,
    world: &ClusterState,
    journal: &Journal,
) -> Result<(), AgentError> {
    let name = journal_name(&entry.name);
    let api = config_maps(client, &entry.namespace);
    let mut object = owned_objects::journal(entry, journal);
    if let Some(stored) = &world.journal_object {
        object["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
    }
    let written = api.patch(&name, &apply(), &Patch::Apply(object)).await;
    written.map(drop).map_err(|e| AgentError::api("patch", "configmaps", &name, e))
}

/// Stores the status.
pub(super) async fn status(client: &Client, entry: &Entry, status: &GatewaySecretStatus) -> Result<(), AgentError> {
    let object = json!({
        "apiVersion": format!("{}/{}", crate::api::GROUP, crate::api::VERSION), "kind": "GatewaySecret",
        "metadata": { "name": entry.name }, "status": status,
    });
    let api = objects(client, &entry.namespace, crate::api::GROUP, crate::api::VERSION, "GatewaySecret");
    let written = api.patch_status(&entry.name, &apply(), &Patch::Apply(object)).await;
    written.map(drop).map_err(|e| AgentError::api("patch", "gatewaysecrets.trustspan.dev/status", &entry.name, e))
}
