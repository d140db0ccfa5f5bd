//! Takes steps. Each write says which version of the object it was decided on, and is refused by the API server when that
//! is not the stored one any more.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use kube::Client;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::world::{JOURNAL_KEY, World, objects, secrets};
use super::{AgentError, MANAGER};
use crate::api::GatewaySecretStatus;
use crate::api::names::{KEPT_FOR, MANAGED_LABEL, journal_name};
use crate::registry::Entry;
use crate::rotation::journal::Journal;
use crate::rotation::next::{PairOf, Step};
use crate::trust::Certificate;

/// Field manager of requests to cert-manager: of that one condition, and nothing else.
const REISSUE_MANAGER: &str = "trustspan-agent-reissue";

fn apply() -> PatchParams {
    PatchParams::apply(MANAGER).force()
}

/// Takes a step.
pub(super) async fn take(
    client: &Client,
    entry: &Entry,
    world: &World,
    step: &Step,
    now: Timestamp,
) -> Result<(), AgentError> {
    let root = || world.held(entry.root_name()).map(|held| &held.object);
    match step {
        Step::WriteManaged { trust, pair } => {
            let from = match pair {
                PairOf::Managed => entry.managed_name(),
                PairOf::Root => entry.root_name(),
            };
            let Some((chain, key)) = world.held(from).and_then(|held| held.pair()) else { return Ok(()) };
            let data = json!({ "ca.crt": encoded(trust), "tls.crt": chain, "tls.key": key });
            write_secret(client, entry, world, entry.managed_name(), "kubernetes.io/tls", data).await
        }
        Step::CopyRoot => {
            let Some(root) = root() else { return Ok(()) };
            let type_ = root["type"].as_str().unwrap_or("Opaque");
            write_secret(client, entry, world, entry.managed_name(), type_, root["data"].clone()).await
        }
        Step::PromoteIssuer => {
            let spec = &entry.spec;
            let from = spec.client_ca.as_ref().map(|ca| ca.secret_name.as_str()).or(spec.ca_secret_name.as_deref());
            let source = world.held(from.unwrap_or(entry.root_name())).map(|held| &held.object);
            let (Some(name), Some(source)) = (&spec.issuer_secret_name, source) else { return Ok(()) };
            let keys = ["ca.crt", "tls.crt", "tls.key"].into_iter().filter(|key| source["data"][*key].is_string());
            let data = keys.map(|key| (key.to_owned(), source["data"][key].clone())).collect::<serde_json::Map<_, _>>();
            write_secret(client, entry, world, name, "kubernetes.io/tls", data.into()).await
        }
        Step::Reissue { certificate } => reissue(client, &entry.namespace, certificate, now).await,
    }
}

/// The whole content of a Secret that the agent keeps.
async fn write_secret(
    client: &Client,
    entry: &Entry,
    world: &World,
    name: &str,
    type_: &str,
    data: Value,
) -> Result<(), AgentError> {
    let api = secrets(client, &entry.namespace);
    let Some(held) = world.held(name) else {
        // Applied, not created: a right to create cannot be limited to a name, one to patch can.
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "type": type_, "data": data,
            "metadata": {
                "name": name, "labels": { MANAGED_LABEL: "true" }, "annotations": { KEPT_FOR: entry.name },
            },
        });
        let written = api.patch(name, &apply(), &Patch::Apply(object)).await;
        return written.map(drop).map_err(|e| AgentError::api("patch", "secrets", name, e));
    };
    if !held.is_kept_for(entry) {
        return Err(AgentError::Foreign { name: name.to_owned() });
    }
    let mut object = held.object.clone();
    object["data"] = data;
    for (field, key, value) in [("labels", MANAGED_LABEL, "true"), ("annotations", KEPT_FOR, entry.name.as_str())] {
        object["metadata"][field][key] = value.into();
    }
    let object: DynamicObject = serde_json::from_value(object).map_err(AgentError::Encode)?;
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    api.replace(name, &params, &object).await.map(drop).map_err(|e| AgentError::api("update", "secrets", name, e))
}

fn encoded(certificates: &[Certificate]) -> String {
    STANDARD.encode(certificates.iter().map(Certificate::pem).collect::<String>())
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
    let api = objects(client, namespace, "cert-manager.io", "v1", "Certificate");
    let params = PatchParams::apply(REISSUE_MANAGER).force();
    let asked = api.patch_status(name, &params, &Patch::Apply(object)).await;
    asked.map(drop).map_err(|e| AgentError::api("patch", "certificates.cert-manager.io/status", name, e))
}

/// Stores the journal.
pub(super) async fn journal(client: &Client, entry: &Entry, journal: &Journal) -> Result<(), AgentError> {
    let name = journal_name(&entry.name);
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "labels": { MANAGED_LABEL: "true" }, "annotations": { KEPT_FOR: entry.name } },
        "data": { JOURNAL_KEY: journal.to_text() },
    });
    let api = objects(client, &entry.namespace, "", "v1", "ConfigMap");
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
