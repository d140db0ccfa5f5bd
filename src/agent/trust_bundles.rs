//! Writes the clients' bundle to the objects of `spec.trustBundleTargets`.

use base64::{Engine, engine::general_purpose::STANDARD};
use kube::Client;
use kube::api::{Api, DynamicObject, Patch};
use kube::discovery::oneshot;
use serde_json::{Value, json};

use super::apply::apply_params;
use super::cluster_state::{config_maps, get, secrets};
use super::write_failures::{PlannedWrite, WriteFailures};
use super::{AgentError, owned_objects};
use crate::api::names::{ADOPT, CLIENT_LABEL, GATEWAY_SECRET};
use crate::api::{TrustBundleTarget, TrustBundleTargetKind};
use crate::registry::Entry;
use crate::rotation::planner::{ClientState, Plan, Trust};
use crate::trust::{Certificate, Signers, bundle};

/// A target of `spec.trustBundleTargets`, and its stored object.
pub(super) struct BundleTarget {
    target: TrustBundleTarget,
    found: Result<StoredTarget, AgentError>,
}

struct StoredTarget {
    api: Api<DynamicObject>,
    api_version: String,
    object: Option<Value>,
}

/// Reads all targets. An error is stored with its target, and reported after the steps of the rotation.
pub(super) async fn read(client: &Client, entry: &Entry) -> Vec<BundleTarget> {
    let mut targets = Vec::new();
    for target in &entry.spec.trust_bundle_targets {
        targets.push(BundleTarget { target: target.clone(), found: find(client, entry, target).await });
    }
    targets
}

async fn find(client: &Client, entry: &Entry, target: &TrustBundleTarget) -> Result<StoredTarget, AgentError> {
    let (api, api_version) = match target.kind {
        TrustBundleTargetKind::ConfigMap => (config_maps(client, namespace(entry, target)), "v1".to_owned()),
        TrustBundleTargetKind::Secret => (secrets(client, &entry.namespace), "v1".to_owned()),
        TrustBundleTargetKind::ClusterTrustBundle => cluster_trust_bundles(client).await?,
    };
    let object = get(&api, plural(target.kind), &target.name).await?;
    Ok(StoredTarget { api, api_version, object })
}

fn namespace<'e>(entry: &'e Entry, target: &'e TrustBundleTarget) -> &'e str {
    target.namespace.as_deref().unwrap_or(&entry.namespace)
}

/// The most stable version that the API server serves (v1beta1 from Kubernetes 1.33 on by feature gate, v1 from 1.37 on).
async fn cluster_trust_bundles(client: &Client) -> Result<(Api<DynamicObject>, String), AgentError> {
    const GROUP: &str = "certificates.k8s.io";
    let group = oneshot::group(client, GROUP).await;
    let group = group.map_err(|error| AgentError::api("discover", GROUP, "", error))?;
    let served = group.resources_by_stability().into_iter().find(|(resource, _)| resource.kind == "ClusterTrustBundle");
    let (resource, _) = served.ok_or(AgentError::NoClusterTrustBundles)?;
    Ok((Api::all_with(client.clone(), &resource), resource.api_version))
}

fn plural(kind: TrustBundleTargetKind) -> &'static str {
    match kind {
        TrustBundleTargetKind::ConfigMap => "configmaps",
        TrustBundleTargetKind::Secret => "secrets",
        TrustBundleTargetKind::ClusterTrustBundle => "clustertrustbundles.certificates.k8s.io",
    }
}

/// Whether more than the GatewaySecret's namespace reads a target.
fn leaves_namespace(entry: &Entry, target: &TrustBundleTarget) -> bool {
    target.kind == TrustBundleTargetKind::ClusterTrustBundle || namespace(entry, target) != entry.namespace
}

/// JSON pointer to the bundle in a target's object.
fn pointer(target: &TrustBundleTarget) -> String {
    match target.kind {
        TrustBundleTargetKind::ClusterTrustBundle => "/spec/trustBundle".to_owned(),
        // Keys of ConfigMaps and Secrets contain neither `/` nor `~`, so they need no escapes.
        TrustBundleTargetKind::ConfigMap | TrustBundleTargetKind::Secret => format!("/data/{}", target.key),
    }
}

/// The bundle as a target's object stores it.
fn value(target: &TrustBundleTarget, bundle: &str) -> Value {
    match target.kind {
        TrustBundleTargetKind::Secret => STANDARD.encode(bundle).into(),
        TrustBundleTargetKind::ConfigMap | TrustBundleTargetKind::ClusterTrustBundle => bundle.into(),
    }
}

/// The value of annotation `trustspan.dev/gateway-secret`: the GatewaySecret, with its namespace if the object is in another one.
fn owner(entry: &Entry, target: &TrustBundleTarget) -> String {
    match target.kind {
        TrustBundleTargetKind::ClusterTrustBundle => entry.name_in(""),
        TrustBundleTargetKind::ConfigMap | TrustBundleTargetKind::Secret => entry.name_in(namespace(entry, target)),
    }
}

/// Whether the agent owns an object for this GatewaySecret, or may adopt it. A cluster-scoped object is never taken over from another
/// GatewaySecret, which may be another tenant's. In another namespace the label of a client declares it.
fn is_owned_by(object: &Value, entry: &Entry, target: &TrustBundleTarget) -> bool {
    let metadata = &object["metadata"];
    let annotations = &metadata["annotations"];
    let namespace = namespace(entry, target);
    match target.kind {
        TrustBundleTargetKind::ClusterTrustBundle if annotations[GATEWAY_SECRET].is_null() => {
            annotations[ADOPT] == "true"
        }
        TrustBundleTargetKind::ClusterTrustBundle => annotations[GATEWAY_SECRET] == owner(entry, target),
        _ if namespace != entry.namespace => {
            metadata["labels"][CLIENT_LABEL].as_str().is_some_and(|label| entry.has_client(namespace, label))
        }
        TrustBundleTargetKind::ConfigMap | TrustBundleTargetKind::Secret => owned_objects::is_owned_by(object, entry),
    }
}

impl BundleTarget {
    /// The readers of the target, as one client without a certificate. A target that cannot be read or is not owned counts as empty.
    fn reader(&self, entry: &Entry) -> ClientState {
        let target = &self.target;
        let stored = self.found.as_ref().ok().and_then(|found| found.object.as_ref());
        let stored = stored.filter(|object| is_owned_by(object, entry, target));
        let bundle = stored.and_then(|object| object.pointer(&pointer(target))?.as_str());
        let text = bundle.map(|bundle| match target.kind {
            TrustBundleTargetKind::Secret => STANDARD.decode(bundle).unwrap_or_default(),
            TrustBundleTargetKind::ConfigMap | TrustBundleTargetKind::ClusterTrustBundle => bundle.as_bytes().to_vec(),
        });
        let trust = text.map(|text| bundle::read(&text).into_certificates()).unwrap_or_default();
        ClientState {
            name: target.readers(),
            chain: Vec::new(),
            trust: Trust::Read(trust),
            loads_once: false,
            is_retired: false,
            certificate: None,
            pending: None,
        }
    }

    /// Writes the bundle under its key. Other keys of the object may belong to other writers.
    async fn apply(self, entry: &Entry, bundle: &str) -> Result<(), AgentError> {
        let BundleTarget { target, found } = self;
        let (found, kind, value) = (found?, target.kind, value(&target, bundle));
        let stored = found.object.as_ref().and_then(|object| object.pointer(&pointer(&target)));
        if stored == Some(&value) {
            return Ok(());
        }
        let is_owned = found.object.as_ref().is_some_and(|object| is_owned_by(object, entry, &target));
        let namespace = namespace(entry, &target);
        if namespace != entry.namespace && !is_owned {
            return Err(AgentError::NotGranted {
                target: target.object(),
                namespace: namespace.to_owned(),
                label: format!("{}_{}", entry.namespace, entry.name),
            });
        }
        if stored.is_some() && !is_owned {
            return Err(AgentError::Foreign { kind: kind.name(), name: target.name, allowed: "true".to_owned() });
        }
        let metadata = json!({ "name": target.name, "annotations": { GATEWAY_SECRET: owner(entry, &target) } });
        let mut object = json!({ "apiVersion": found.api_version, "kind": kind.name(), "metadata": metadata });
        match kind {
            TrustBundleTargetKind::ClusterTrustBundle => object["spec"] = json!({ "trustBundle": value }),
            TrustBundleTargetKind::ConfigMap | TrustBundleTargetKind::Secret => {
                object["data"] = json!({ target.key: value })
            }
        }
        let written = found.api.patch(&target.name, &apply_params(), &Patch::Apply(object)).await;
        written.map(drop).map_err(|error| AgentError::api("patch", plural(kind), &target.name, error))
    }
}

/// The readers of all targets.
pub(super) fn readers(entry: &Entry, targets: &[BundleTarget]) -> Vec<ClientState> {
    targets.iter().map(|target| target.reader(entry)).collect()
}

/// Writes the bundle to all targets. An error of one does not block the others, and is recorded in `failures`. What leaves the namespace has
/// only CAs of the signers.
pub(super) async fn apply(
    entry: &Entry,
    targets: Vec<BundleTarget>,
    plan: &Plan,
    signers: impl FnOnce() -> Signers,
    failures: &mut WriteFailures,
) {
    let text: String = plan.client_bundle.iter().map(Certificate::pem).collect();
    let leaves = |target: &TrustBundleTarget| leaves_namespace(entry, target);
    // Most bundles stay in their namespace, and need no file and no signatures.
    let is_pinned = targets.iter().any(|target| leaves(&target.target));
    let refusal = is_pinned.then(|| signers().refusal(&plan.client_bundle)).flatten();
    for BundleTarget { target, found } in targets {
        let write = PlannedWrite::Target(target.clone());
        let keeps_order = plan.unordered.is_none() || target.kind.keeps_order();
        if !keeps_order || !failures.is_due(&write) {
            continue;
        }
        let outcome = match &refusal {
            Some(why) if leaves(&target) => Err(AgentError::NotOfSigners { target: target.object(), why: why.clone() }),
            _ => BundleTarget { target, found }.apply(entry, &text).await,
        };
        failures.record(write, outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::names::ADOPT;
    use crate::registry::tests::entry;

    fn target(kind: TrustBundleTargetKind, namespace: Option<&str>) -> TrustBundleTarget {
        let (name, key) = ("trust".to_owned(), "ca.crt".to_owned());
        TrustBundleTarget { kind, namespace: namespace.map(str::to_owned), name, key }
    }

    #[test]
    fn a_target_in_another_namespace_needs_the_label_and_its_namespace_in_the_spec() {
        let mut entry = entry("mesh", "root", "gw");
        let there = target(TrustBundleTargetKind::ConfigMap, Some("apps"));
        let labelled = |label: &str| json!({ "metadata": { "namespace": "apps", "labels": { CLIENT_LABEL: label } } });
        assert!(!is_owned_by(&labelled("mesh_gw"), &entry, &there), "its namespace is not listed");
        entry.spec.clients.namespaces = vec!["apps".to_owned()];
        assert!(is_owned_by(&labelled("mesh_gw"), &entry, &there));
        assert!(!is_owned_by(&labelled("other.gw"), &entry, &there));
        let adopted =
            json!({ "metadata": { "namespace": "apps", "annotations": { ADOPT: "true", GATEWAY_SECRET: "mesh/gw" } } });
        assert!(!is_owned_by(&adopted, &entry, &there), "the label alone declares it");
        assert_eq!(
            (owner(&entry, &there).as_str(), there.readers().as_str()),
            ("mesh/gw", "readers of ConfigMap apps/trust (ca.crt)")
        );
    }

    #[test]
    fn a_cluster_trust_bundle_of_another_gateway_secret_is_never_taken_over() {
        let entry = entry("mesh", "root", "gw");
        let is_owned = |annotations: Value| {
            let object = json!({ "metadata": { "annotations": annotations } });
            is_owned_by(&object, &entry, &target(TrustBundleTargetKind::ClusterTrustBundle, None))
        };
        assert!(is_owned(json!({ GATEWAY_SECRET: "mesh/gw" })));
        assert!(is_owned(json!({ ADOPT: "true" })));
        assert!(!is_owned(json!({})));
        assert!(!is_owned(json!({ GATEWAY_SECRET: "gw" })), "without a namespace");
        assert!(!is_owned(json!({ GATEWAY_SECRET: "other/gw", ADOPT: "true" })));
    }
}
