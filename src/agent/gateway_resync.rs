//! Finds Gateways that slipped by while the webhook was down, and has them written once more. Only an annotation of our own
//! is touched, so that it is the webhook that rewrites, and the user's next apply meets no conflict. Workloads are
//! not mended here: that is a rollout.

use jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::cluster_snapshot::ClusterSnapshot;
use super::lease::Leadership;
use super::{MANAGER, Settings};
use crate::api::Kind;
use crate::api::names::RESYNC_REQUESTED_AT;
use crate::registry::Registry;
use crate::rewrite::{Write, rewrite};
use crate::store::cluster;

/// A Gateway is not touched again so soon: the webhook may be down still.
const AGAIN: SignedDuration = SignedDuration::from_mins(1);

/// Touches the Gateways that name a root Secret which they should not name any more.
pub(super) async fn mend(
    client: &Client,
    leadership: &Leadership,
    around: &ClusterSnapshot,
    registry: &Registry,
    settings: &Settings,
) {
    let kept = registry.entries().iter().filter(|entry| settings.keeps(entry)).cloned();
    let (registry, now) = (Registry::new(kept), Timestamp::now());
    for gateway in around.gateways().filter(|gateway| slipped_by(gateway, &registry, now)) {
        if !leadership.holds() {
            return;
        }
        let (namespace, name) = (text(&gateway["metadata"]["namespace"]), text(&gateway["metadata"]["name"]));
        match touch(client, gateway, namespace, name, now).await {
            Ok(()) => {
                tracing::info!(namespace, name, "Gateway written once more: it names a source Secret or ConfigMap")
            }
            Err(error) => {
                tracing::warn!(
                    namespace,
                    name,
                    "Gateway names a source Secret or ConfigMap, and cannot be touched: {}",
                    cluster::told(&error)
                )
            }
        }
    }
}

/// Whether the webhook would write a Gateway otherwise than it is.
fn slipped_by(gateway: &Value, registry: &Registry, now: Timestamp) -> bool {
    let metadata = &gateway["metadata"];
    let swept = metadata["annotations"][RESYNC_REQUESTED_AT].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    let namespace = text(&metadata["namespace"]);
    let write = Write { kind: Kind::of(gateway), namespace, object: gateway, old: None, by_agent: true };
    swept.is_none_or(|at| now.duration_since(at) >= AGAIN)
        && metadata["deletionTimestamp"].is_null()
        && rewrite(&write, registry).renamed().len() > 0
}

async fn touch(client: &Client, gateway: &Value, namespace: &str, name: &str, now: Timestamp) -> kube::Result<()> {
    let kind = Kind::of(gateway);
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(kind.group, kind.version, kind.kind));
    let api: Api<kube::api::DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let patch = json!({ "metadata": { "annotations": { RESYNC_REQUESTED_AT: now.to_string() } } });
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
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
    fn accepts_only_what_the_webhook_would_rewrite() {
        let (registry, now) = (Registry::new([entry("mesh", "root", "gw")]), Timestamp::UNIX_EPOCH);
        let slipped = |gateway: &Value| slipped_by(gateway, &registry, now);
        assert!(slipped(&gateway("root", json!({}))));
        assert!(!slipped(&gateway("gw", json!({}))));
        assert!(!slipped(&gateway("root", json!({"trustspan.dev/rewrite": "disabled"}))));
        assert!(
            !slipped(&gateway("root", json!({RESYNC_REQUESTED_AT: "1970-01-01T00:00:00Z"}))),
            "it was touched just now"
        );
        assert!(slipped(&gateway("root", json!({RESYNC_REQUESTED_AT: "1969-12-31T23:00:00Z"}))));
        assert!(slipped(&gateway("root", json!({RESYNC_REQUESTED_AT: "soon"}))));
    }
}
