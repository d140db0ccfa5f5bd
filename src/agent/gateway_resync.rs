//! Resyncs Gateways that the webhook missed while it was down. The agent changes only an annotation that it owns: the webhook rewrites the Gateway
//! during that write, and the user's next apply meets no conflict. Workloads are not resynced here, since that would be a rollout.

use jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::cluster_snapshot::ClusterSnapshot;
use super::lease::Leadership;
use super::{FIELD_MANAGER, Settings};
use crate::api::Kind;
use crate::api::names::RESYNC_REQUESTED_AT;
use crate::json::Json;
use crate::registry::Registry;
use crate::rewrite::{Write, rewrite};
use crate::store::cluster;

/// The shortest interval between two resyncs of a Gateway, since the webhook may still be down.
const MIN_INTERVAL: SignedDuration = SignedDuration::from_mins(1);

/// Requests a resync of the Gateways that still name a source Secret.
pub(super) async fn resync(
    client: &Client,
    leadership: &Leadership,
    snapshot: &ClusterSnapshot,
    registry: &Registry,
    settings: &Settings,
) {
    let included = registry.entries().iter().filter(|entry| settings.includes(entry)).cloned();
    let (registry, now) = (Registry::new(included), Timestamp::now());
    for gateway in snapshot.gateways().filter(|gateway| was_missed(gateway, &registry, now)) {
        if !leadership.is_leader() {
            return;
        }
        let (namespace, name) = (text(&gateway["metadata"]["namespace"]), text(&gateway["metadata"]["name"]));
        match request_resync(client, gateway, namespace, name, now).await {
            Ok(()) => {
                tracing::info!(
                    namespace,
                    name,
                    "requested a resync of a Gateway that names a source Secret or ConfigMap"
                )
            }
            Err(error) => {
                tracing::warn!(
                    namespace,
                    name,
                    "cannot request a resync of a Gateway that names a source Secret or ConfigMap: {}",
                    cluster::error_message(&error)
                )
            }
        }
    }
}

/// Whether the webhook would rewrite a Gateway that is stored.
fn was_missed(gateway: &Value, registry: &Registry, now: Timestamp) -> bool {
    let metadata = &gateway["metadata"];
    let requested_at =
        metadata["annotations"][RESYNC_REQUESTED_AT].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    let namespace = text(&metadata["namespace"]);
    let json = Json::from(gateway);
    let write = Write { kind: Kind::of(&json), namespace, object: &json, old: None, by_agent: true };
    requested_at.is_none_or(|at| now.duration_since(at) >= MIN_INTERVAL)
        && metadata["deletionTimestamp"].is_null()
        && rewrite(&write, registry).renamed().len() > 0
}

async fn request_resync(
    client: &Client,
    gateway: &Value,
    namespace: &str,
    name: &str,
    now: Timestamp,
) -> kube::Result<()> {
    let kind = Kind::of_value(gateway);
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(kind.group, kind.version, kind.kind));
    let api: Api<kube::api::DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let patch = json!({ "metadata": { "annotations": { RESYNC_REQUESTED_AT: now.to_string() } } });
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    api.patch(name, &params, &Patch::Merge(patch)).await.map(drop)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::tests::entry;

    fn gateway(credential: &str, annotations: Value) -> Value {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
            "metadata": {"namespace": "apps", "name": "public", "annotations": annotations},
            "spec": {"selector": {"istio": "ingressgateway"}, "servers": [{"tls": {"mode": "MUTUAL", "credentialName": credential}}]},
        })
    }

    #[test]
    fn only_gateways_that_the_webhook_would_rewrite_are_resynced() {
        let (registry, now) = (Registry::new([entry("mesh", "root", "gw")]), Timestamp::UNIX_EPOCH);
        let missed = |gateway: &Value| was_missed(gateway, &registry, now);
        assert!(missed(&gateway("root", json!({}))));
        assert!(!missed(&gateway("gw", json!({}))));
        assert!(!missed(&gateway("root", json!({"trustspan.dev/rewrite": "disabled"}))));
        assert!(
            !missed(&gateway("root", json!({RESYNC_REQUESTED_AT: "1970-01-01T00:00:00Z"}))),
            "the last request is too recent"
        );
        assert!(missed(&gateway("root", json!({RESYNC_REQUESTED_AT: "1969-12-31T23:00:00Z"}))));
        assert!(missed(&gateway("root", json!({RESYNC_REQUESTED_AT: "soon"}))));
    }
}
