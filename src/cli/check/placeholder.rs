//! Placeholders: encrypted values and templates.

use std::borrow::Cow;

use serde_json::Value;

use crate::admission::GATEWAY_KEYS;
use crate::api::Kind;

/// Why a text is not the value that the cluster will have.
fn placeholder(text: &str) -> Option<&'static str> {
    let between = |begin, end| text.split_once(begin).is_some_and(|(_, rest)| rest.contains(end));
    if text.starts_with("ENC[") && text.ends_with(']') {
        // https://getsops.io/docs/#message-authentication-code
        return Some("encrypted by SOPS: decrypt it first (sops --decrypt FILE | trustspan check -f -)");
    }
    is_template(text)
        .then_some("a Helm or Go template: render it first (helm template CHART | trustspan check -f -)")
        .or_else(|| between("${", "}").then_some("a text with a variable (${…}): substitute it first"))
        .or_else(|| text.starts_with("<path:").then_some("a path of argocd-vault-plugin: render it first"))
}

/// Whether a text contains an action of a Go template.
pub(super) fn is_template(text: &str) -> bool {
    text.split_once("{{").is_some_and(|(_, rest)| rest.contains("}}"))
}

/// The object without the placeholders in the fields for CAs and pairs, and a sentence about each: `data[ca.crt] is encrypted …`.
pub(super) fn without_placeholders(object: &Value) -> (Cow<'_, Value>, Vec<String>) {
    let mut object = Cow::Borrowed(object);
    let mut why = Vec::new();
    match Kind::of_value(&object) {
        Kind { group: "", version: "v1", kind: "Secret" | "ConfigMap" } => {
            for (map, key) in ["data", "stringData"].iter().flat_map(|map| GATEWAY_KEYS.map(|key| (*map, key))) {
                if let Some(reason) = object[map][key].as_str().and_then(placeholder) {
                    object.to_mut()[map][key].take();
                    why.push(format!("{map}[{key}] is {reason}"));
                }
            }
        }
        Kind { group: "bitnami.com", kind: "SealedSecret", .. } => {
            let sealed = &object["spec"]["encryptedData"];
            let keys = GATEWAY_KEYS.iter().filter(|key| sealed[**key].is_string());
            why.extend(keys.map(|key| format!("spec.encryptedData[{key}] is encrypted; only the cluster has the key")));
        }
        Kind { group: "apiextensions.k8s.io" | "apiregistration.k8s.io" | "admissionregistration.k8s.io", .. } => {
            let mut bundles = Vec::new();
            ca_bundles(&object, String::new(), &mut bundles);
            for (pointer, reason) in bundles {
                why.push(format!("{} is {reason}", pointer[1..].replace('/', ".")));
                object.to_mut().pointer_mut(&pointer).map(Value::take);
            }
        }
        _ => {}
    }
    (object, why)
}

/// JSON pointers of the placeholders in `caBundle` fields. The depth of a document is limited, so the recursion is too.
fn ca_bundles(value: &Value, pointer: String, found: &mut Vec<(String, &'static str)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let pointer = format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
                match value.as_str().filter(|_| name == "caBundle") {
                    Some(text) => found.extend(placeholder(text).map(|reason| (pointer, reason))),
                    None => ca_bundles(value, pointer, found),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                ca_bundles(item, format!("{pointer}/{index}"), found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_placeholders_in_fields_for_cas_and_pairs() {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "data": {
            "ca.crt": "ENC[AES256_GCM,data:Zm9v,iv:AA==,tag:AA==,type:str]", "tls.crt": "{{ .Values.crt | b64enc }}",
            "password": "${PASSWORD}", "cacert": "Zm9v",
        }, "stringData": {"tls.key": "${KEY}", "crl": "<path:secret/data/pki#crl>"}});
        let (rest, why) = without_placeholders(&secret);
        let fields: Vec<_> = why.iter().map(|why| why.split_once(" is ").unwrap_or_default().0).collect();
        assert_eq!(fields, ["data[ca.crt]", "data[tls.crt]", "stringData[tls.key]", "stringData[crl]"]);
        assert_eq!(rest["data"], json!({"ca.crt": null, "tls.crt": null, "password": "${PASSWORD}", "cacert": "Zm9v"}));
        let webhooks = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "webhooks": [{"clientConfig": {"caBundle": "{{ .ca }}"}}, {"clientConfig": {"caBundle": "Zm9v"}}]});
        let (rest, why) = without_placeholders(&webhooks);
        assert!(why.len() == 1 && why[0].starts_with("webhooks.0.clientConfig.caBundle is a Helm"), "{why:?}");
        assert_eq!(rest["webhooks"][1], webhooks["webhooks"][1]);
    }

    #[test]
    fn accepts_values_without_placeholders() {
        for text in
            ["-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n", "", "ENC[", "a {{ b", "$(CA)", "}} {{"]
        {
            assert_eq!(placeholder(text), None, "{text}");
        }
    }
}
