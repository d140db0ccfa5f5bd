//! The Secrets and ConfigMaps whose content is judged: one function, for the webhook, `trustspan check` and docs/guard.md.
//!
//! Gateways take CAs from them, or they have a label, or their namespace has label [`GUARD`] and they have a key that gateways load. The
//! selectors and conditions of `manifests/base/webhooks.yaml` send no others; a cluster test compares.

use super::{Kind, Request};
use crate::api::names::{BREAK_GLASS_PREFIX, GUARD, GUARD_ENABLED, MANAGED_LABEL, PREFIX};
use crate::json::Json;
use crate::trust::credential::CA_KEYS;

/// Keys with certificates that a gateway loads from a Secret. A private key or a revocation list alone is of no use to a gateway: the Secret
/// of an ACME account has `tls.key`.
const CERTIFICATE_KEYS: [&str; 4] = ["ca.crt", "tls.crt", "cacert", "cert"];

/// All keys that a gateway loads from a Secret.
pub(crate) const GATEWAY_KEYS: [&str; 8] = ["ca.crt", "tls.crt", "tls.key", "ca.crl", "cacert", "cert", "key", "crl"];

/// Namespaces whose objects are never sent, whatever their labels.
const NEVER_SENT: [&str; 3] = ["kube-system", "kube-node-lease", "trustspan-system"];

/// Whether the content of a Secret or ConfigMap is judged. The stored version counts too, so that the removal of the label or of the CA is
/// judged.
pub(super) fn is_guarded(request: &Request<'_>) -> bool {
    let holds_trust = |object: &Json<'_>| request.in_guarded_namespace && holds_trust(request.kind, object);
    any_of(request, |object| request.decides_trust || has_label(object) || holds_trust(object))
}

/// Labels or annotations of one object that the API server reads, so that it spends the same on every object.
const READ: usize = 100;

/// Whether the API server sends a Secret or ConfigMap: if it is guarded, has a label or annotation of trustspan, or more than it reads.
pub(super) fn is_sent(request: &Request<'_>) -> bool {
    let is_ours = |key: &str| key.starts_with(PREFIX) || key.starts_with(BREAK_GLASS_PREFIX);
    let has_ours = |map: &Json<'_>| map.as_object().is_some_and(|map| map.len() > READ || map.keys().any(is_ours));
    is_guarded(request)
        || any_of(request, |object| ["labels", "annotations"].iter().any(|map| has_ours(&object["metadata"][*map])))
}

/// Whether the new or the stored object satisfies a condition.
fn any_of(request: &Request<'_>, condition: impl FnMut(&Json<'_>) -> bool) -> bool {
    let mut objects = [request.object, request.old_object].into_iter().flatten();
    !NEVER_SENT.contains(&request.namespace) && objects.any(condition)
}

fn has_label(object: &Json<'_>) -> bool {
    let labels = &object["metadata"]["labels"];
    labels[GUARD] == GUARD_ENABLED || labels[MANAGED_LABEL] == "true"
}

/// Whether an object has certificates for a gateway. The CA of the API server, which every namespace has in ConfigMap kube-root-ca.crt and in
/// tokens, is none.
pub(super) fn holds_trust(kind: Kind<'_>, object: &Json<'_>) -> bool {
    let has = |field: &str, keys: &[&str]| match &object[field] {
        Json::Object(contents) => keys.iter().any(|key| contents.contains_key(key)),
        value => !value.is_null(),
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

#[cfg(test)]
mod tests;
