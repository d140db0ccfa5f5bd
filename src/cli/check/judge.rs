//! Which objects are judged, and how.

use jiff::Timestamp;
use serde_json::Value;

use crate::admission;
use crate::cli::inputs::create;
use crate::registry::Registry;
use crate::store::directory;
use crate::trust::{self, Duty, Finding, Secret, Severity};

/// What the inputs say about the cluster.
pub(super) struct Context<'a> {
    pub(super) registry: Registry,
    /// Namespace of objects that name none.
    pub(super) namespace: &'a str,
}

/// `None`: not an object that is judged.
pub(super) fn judge(object: &Value, context: &Context<'_>, now: Timestamp) -> Option<Vec<Finding>> {
    let request = create(object, context.namespace);
    match (request.kind.group, request.kind.kind) {
        ("", "Secret") => has_trust_key(object).then(|| match Secret::from_value(object) {
            Ok(secret) => trust::judge(&secret, Duty::default(), now),
            Err(error) => vec![unreadable(error.to_string())],
        }),
        ("trustspan.dev", "GatewaySecret") => {
            let error = directory::entry(object, context.namespace).err();
            Some(error.map(|error| unreadable(error.to_string())).into_iter().collect())
        }
        ("networking.istio.io" | "gateway.networking.k8s.io", "Gateway")
        | ("apps", "Deployment" | "StatefulSet" | "DaemonSet") => {
            let decision = admission::mutate(&request, &context.registry);
            let notes = decision.notes.into_iter().map(|message| Finding {
                rule: "not-rewritten",
                severity: Severity::Warn,
                field: String::new(),
                message,
            });
            Some(decision.findings.into_iter().chain(notes).collect())
        }
        _ => None,
    }
}

/// The keys that Istio and Envoy take trust anchors and pairs from.
const TRUST_KEYS: [&str; 7] = ["ca.crt", "cacert", "tls.crt", "tls.key", "cert", "key", "ca.crl"];

fn has_trust_key(secret: &Value) -> bool {
    let has = |field: &str| TRUST_KEYS.iter().any(|key| secret[field].get(key).is_some());
    // A field that is no map is no Secret that could be applied: that is worth a word.
    let odd = |field: &str| !secret[field].is_null() && !secret[field].is_object();
    ["data", "stringData"].iter().any(|field| has(field) || odd(field))
}

/// The error's text begins with the field: `data[ca.crt]: not base64`.
fn unreadable(text: String) -> Finding {
    let (field, message) = match text.split_once(": ") {
        Some((field, message)) if !field.contains(' ') => (field.to_owned(), message.to_owned()),
        _ => (String::new(), text),
    };
    Finding { rule: "unreadable", severity: Severity::Deny, field, message }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(object: Value) -> Option<Vec<String>> {
        let context = Context { registry: Registry::default(), namespace: "default" };
        let findings = judge(&object, &context, Timestamp::UNIX_EPOCH)?;
        Some(findings.into_iter().map(|f| format!("{} {}: {}", f.rule, f.field, f.message)).collect())
    }

    #[test]
    fn what_is_judged() {
        assert_eq!(rules(json!({"apiVersion": "v1", "kind": "Secret", "data": {"password": "!"}})), None);
        assert_eq!(rules(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"ca.crt": "!"}})), None);
        assert_eq!(
            rules(json!({"apiVersion": "v1", "kind": "Secret", "data": {"ca.crt": "!"}})),
            Some(vec!["unreadable data[ca.crt]: not base64; put plain text under stringData".to_owned()])
        );
        assert_eq!(
            rules(json!({"apiVersion": "v1", "kind": "Secret", "data": "x"})),
            Some(vec!["unreadable data: not a map".to_owned()])
        );
        let spec = json!({"rootSecretName": 1});
        let object = json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": {"name": "gw"}, "spec": spec});
        assert!(rules(object).is_some_and(|r| r[0].contains("spec of GatewaySecret \"gw\": ")));
    }
}
