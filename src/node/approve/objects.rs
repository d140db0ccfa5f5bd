//! The objects of a ClientIdentity, as they are applied.

use aws_lc_rs::rand;
use jiff::Timestamp;
use kube::api::ObjectMeta;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::error::ApproveError;
use crate::api::names::{IDENTITY_NAME, IDENTITY_NAMESPACE};
use crate::api::{GROUP, PolicyRule, VERSION};
use crate::identity::{IdentityName, SUBRESOURCE};

const RBAC: &str = "rbac.authorization.k8s.io";

/// Field manager of the approver's writes.
pub(super) const FIELD_MANAGER: &str = "trustspan-approver";

/// Checks that a Secret has the labels of an identity.
pub(super) fn check_owner(metadata: &ObjectMeta, name: &str, identity: &IdentityName) -> Result<(), ApproveError> {
    let label = |key| metadata.labels.as_ref()?.get(key).map(String::as_str);
    if (label(IDENTITY_NAMESPACE), label(IDENTITY_NAME)) == (Some(&identity.namespace), Some(&identity.name)) {
        return Ok(());
    }
    Err(ApproveError::Invalid(format!(
        "Secret {name} exists and is not of ClientIdentity {identity}, so it is not overwritten. Delete it, or name another one in the spec"
    )))
}

fn labels(identity: &IdentityName) -> Value {
    json!({ IDENTITY_NAMESPACE: identity.namespace, IDENTITY_NAME: identity.name, "app.kubernetes.io/managed-by": "trustspan" })
}

/// Metadata of an object in the namespace of the identity. It is deleted with the identity, whether or not the approver runs.
fn owned(identity: &IdentityName, uid: &str, name: &str) -> Value {
    let owner = json!({ "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ClientIdentity", "name": identity.name, "uid": uid });
    json!({ "name": name, "namespace": identity.namespace, "labels": labels(identity), "ownerReferences": [owner] })
}

/// The Role with the declared rules, its RoleBinding, and the ClusterRole with its binding by which the client requests certificates. The latter two
/// cannot have an owner in a namespace; they allow only requests.
pub(super) fn permissions(identity: &IdentityName, uid: &str, rules: &[PolicyRule]) -> [(&'static str, Value); 4] {
    let (role, cluster_role) = (identity.role_name(), identity.cluster_role_name());
    let user = json!({ "apiGroup": RBAC, "kind": "User", "name": identity.user() });
    let token = json!({ "apiGroup": RBAC, "kind": "Group", "name": identity.bootstrap_group() });
    let reference = |kind: &str, name: &str| json!({ "apiGroup": RBAC, "kind": kind, "name": name });
    let object = |kind: &str, metadata: Value, rest: Value| {
        let mut object = json!({ "apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": metadata });
        for (key, value) in rest.as_object().into_iter().flatten() {
            object[key] = value.clone();
        }
        object
    };
    let cluster = || json!({ "name": cluster_role, "labels": labels(identity) });
    let requests = "certificatesigningrequests";
    let rules_of_requests = json!([
        { "apiGroups": ["certificates.k8s.io"], "resources": [requests], "verbs": ["create", "get"] },
        {
            "apiGroups": ["certificates.k8s.io"],
            "resources": [format!("{requests}/{SUBRESOURCE}")],
            "resourceNames": [identity.resource_name()],
            "verbs": ["create"],
        },
    ]);
    [
        ("Role", object("Role", owned(identity, uid, &role), json!({ "rules": rules }))),
        (
            "RoleBinding",
            object(
                "RoleBinding",
                owned(identity, uid, &role),
                json!({ "roleRef": reference("Role", &role), "subjects": [user] }),
            ),
        ),
        ("ClusterRole", object("ClusterRole", cluster(), json!({ "rules": rules_of_requests }))),
        (
            "ClusterRoleBinding",
            object(
                "ClusterRoleBinding",
                cluster(),
                json!({ "roleRef": reference("ClusterRole", &cluster_role), "subjects": [user, token] }),
            ),
        ),
    ]
}

/// A Secret with a bootstrap kubeconfig; `uid` is that of its owner in the same cluster.
pub(super) fn bootstrap_secret(
    identity: &IdentityName,
    uid: Option<&str>,
    (namespace, name): (&str, &str),
    kubeconfig: &str,
) -> Value {
    let metadata = match uid {
        Some(uid) => owned(identity, uid, name),
        None => json!({ "name": name, "namespace": namespace, "labels": labels(identity) }),
    };
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": { "kubeconfig": kubeconfig } })
}

/// Name of the Secret of a bootstrap token. The API server reads it by this name.
pub(super) fn token_secret_name(token_id: &str) -> String {
    format!("bootstrap-token-{token_id}")
}

/// The Secret of a bootstrap token (Kubernetes, "Authenticating with Bootstrap Tokens").
pub(super) fn token_secret(identity: &IdentityName, token_id: &str, secret: &str, expiration: Timestamp) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": token_secret_name(token_id), "labels": labels(identity) },
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "description": format!("Bootstrap token of ClientIdentity {identity}, made by trustspan."),
            "token-id": token_id,
            "token-secret": secret,
            "expiration": expiration.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": identity.bootstrap_group(),
        },
    })
}

/// Random lower-case letters and digits, all with the same probability. `None`: the system has no random bytes.
pub(super) fn random_text(length: usize) -> Option<Zeroizing<String>> {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut text = Zeroizing::new(String::with_capacity(length));
    while text.len() < length {
        let mut byte = [0];
        rand::fill(&mut byte).ok()?;
        // Seven times 36; what is above would make the first letters more probable.
        if byte[0] < 252 {
            text.push(char::from(LETTERS[usize::from(byte[0]) % LETTERS.len()]));
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_the_form_that_the_api_server_expects() {
        let (id, secret) = (random_text(6).unwrap(), random_text(16).unwrap());
        assert_eq!((id.len(), secret.len()), (6, 16));
        let is_valid = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        assert!(is_valid(&id) && is_valid(&secret));
        let object = token_secret(&IdentityName::new("shop", "payments"), &id, &secret, Timestamp::UNIX_EPOCH);
        assert_eq!(object["stringData"]["expiration"], "1970-01-01T00:00:00Z");
        assert_eq!(object["stringData"]["auth-extra-groups"], "system:bootstrappers:trustspan:shop:payments");
    }

    #[test]
    fn a_client_may_only_request_certificates_of_its_identity() {
        let identity = IdentityName::new("shop", "payments");
        let [role, _, cluster_role, cluster_binding] = permissions(&identity, "uid", &[]).map(|(_, object)| object);
        assert_eq!(role["metadata"]["ownerReferences"][0]["uid"], "uid");
        assert_eq!(cluster_role["rules"][1]["resourceNames"], json!(["shop:payments"]));
        assert_eq!(cluster_role["rules"].as_array().unwrap().len(), 2);
        let names: Vec<_> = cluster_binding["subjects"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(
            names,
            ["trustspan.dev:client-identity:shop:payments", "system:bootstrappers:trustspan:shop:payments"]
        );
    }
}
