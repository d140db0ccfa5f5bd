//! Which Secrets and ConfigMaps are judged for what they hold: one rule, for the webhook, `trustspan check` and docs/guard.md.
//!
//! Either they ask for it by a label, or their namespace has label [`GUARD`] and they hold something under a key from which
//! gateways take it. The selectors and conditions of `manifests/base/webhooks.yaml` send no others; a cluster test compares.

use serde_json::Value;

use super::rules::NAMESPACE_UNGUARDED;
use super::{Kind, Operation, Request};
use crate::api::names::{BREAK_GLASS_PREFIX, GUARD, GUARD_ENABLED, MANAGED_LABEL, PREFIX};
use crate::trust::Finding;
use crate::trust::credential::CA_KEYS;

/// Keys under which a gateway takes certificates from a Secret. Private keys and revocation lists alone are nothing to it: a Secret of an
/// ACME account holds `tls.key`.
const CERTIFICATE_KEYS: [&str; 4] = ["ca.crt", "tls.crt", "cacert", "cert"];

/// Keys under which a gateway takes something from a Secret.
pub(crate) const GATEWAY_KEYS: [&str; 8] = ["ca.crt", "tls.crt", "tls.key", "ca.crl", "cacert", "cert", "key", "crl"];

/// Namespaces of which nothing is sent, whatever the labels.
const NEVER_SENT: [&str; 3] = ["kube-system", "kube-node-lease", "trustspan-system"];

/// Whether a Secret or ConfigMap is judged for what it holds. What it was counts too: taking the label off, or the CA out, is
/// judged.
pub(super) fn is_guarded(request: &Request<'_>) -> bool {
    any_of(request, |object| asks(object) || (request.in_guarded_namespace && holds_trust(request.kind, object)))
}

/// Whether the API server sends a Secret or ConfigMap at all: one that is guarded, or has anything of trustspan in its metadata.
pub(super) fn is_sent(request: &Request<'_>) -> bool {
    let is_ours = |key: &String| key.starts_with(PREFIX) || key.starts_with(BREAK_GLASS_PREFIX);
    let has_ours = |map: &Value| map.as_object().is_some_and(|map| map.keys().any(is_ours));
    is_guarded(request)
        || any_of(request, |object| ["labels", "annotations"].iter().any(|map| has_ours(&object["metadata"][*map])))
}

/// Whether something is so of the object as it was or as it will be.
fn any_of(request: &Request<'_>, is_so: impl FnMut(&Value) -> bool) -> bool {
    let mut objects = [request.object, request.old_object].into_iter().flatten();
    !NEVER_SENT.contains(&request.namespace) && objects.any(is_so)
}

fn asks(object: &Value) -> bool {
    let labels = &object["metadata"]["labels"];
    labels[GUARD] == GUARD_ENABLED || labels[MANAGED_LABEL] == "true"
}

/// Whether there is something of a gateway in it. The cluster's own CA, which every namespace has in ConfigMap kube-root-ca.crt and in tokens,
/// is the API server's.
pub(super) fn holds_trust(kind: Kind<'_>, object: &Value) -> bool {
    let has = |field: &str, keys: &[&str]| match &object[field] {
        Value::Object(contents) => keys.iter().any(|key| contents.contains_key(*key)),
        odd => !odd.is_null(),
    };
    match kind.kind {
        "Secret" => {
            object["type"] != "kubernetes.io/service-account-token"
                && ["data", "stringData"].iter().any(|field| has(field, &CERTIFICATE_KEYS))
        }
        "ConfigMap" => object["metadata"]["name"] != "kube-root-ca.crt" && has("data", &CA_KEYS),
        _ => false,
    }
}

/// Judges a new GatewaySecret, or a change of its spec, by the namespace that it is in.
pub(super) fn gateway_secret(request: &Request<'_>) -> Option<Finding> {
    let object = request.object.filter(|_| !request.is_being_deleted() && !request.in_guarded_namespace)?;
    let is_new =
        request.operation == Operation::Create || request.old_object.is_some_and(|old| old["spec"] != object["spec"]);
    is_new.then(|| unguarded(object, request.namespace))
}

/// What to say of a GatewaySecret in a namespace whose Secrets the API server does not send.
pub(super) fn unguarded(object: &Value, namespace: &str) -> Finding {
    let source = object["spec"]["sourceSecretName"].as_str().unwrap_or_default();
    // Clients show 120 characters of a warning: what to do comes first.
    let message = format!(
        "namespace {namespace} is not guarded: label it {GUARD}={GUARD_ENABLED}. until then an invalid Secret {source} is stored, and \
         blocks the next rotation"
    );
    NAMESPACE_UNGUARDED.finding("metadata.namespace", message)
}

#[cfg(test)]
mod tests;
