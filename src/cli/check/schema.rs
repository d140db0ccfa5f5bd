//! The schema of the CustomResourceDefinition, as the API server applies it before any webhook is called.
//!
//! `kubectl apply` validates strictly by default, so an unknown field is an error there
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#setting-the-field-validation-level>). The CEL rules of the definition are
//! not evaluated here.

use jsonschema::error::ValidationErrorKind;
use jsonschema::{ValidationError, Validator};
use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::admission::INVALID_GATEWAY_SECRET;
use crate::api::{GROUP, GatewaySecret, Kind, VERSION};
use crate::cli::Failure;
use crate::trust::Finding;

/// Validates objects of trustspan's API group.
pub(super) struct Schema {
    schema: Value,
    validator: Validator,
}

impl Schema {
    /// The schema of the definition that `trustspan crd` prints.
    ///
    /// # Errors
    /// When it is no JSON Schema.
    pub(super) fn new() -> Result<Self, Failure> {
        let definition = json!(GatewaySecret::crd());
        let mut schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        // Only the agent writes the status, and an agent of another version may write other fields.
        for name in ["metadata", "status"] {
            schema["properties"][name] = json!({"type": "object"});
        }
        for name in ["apiVersion", "kind"] {
            schema["properties"][name] = json!({"type": "string"});
        }
        close(&mut schema);
        let validator = jsonschema::validator_for(&schema).map_err(|error| Failure::Impossible(error.to_string()))?;
        Ok(Self { schema, validator })
    }

    /// What the API server would refuse in an object of trustspan's API group; empty for other objects.
    pub(super) fn findings(&self, object: &Value) -> Vec<Finding> {
        let kind = Kind::of(object);
        if kind.group != GROUP {
            return Vec::new();
        }
        if (kind.version, kind.kind) != (VERSION, "GatewaySecret") {
            let message = format!(
                "the API server has no such kind. expected apiVersion {GROUP}/{VERSION} and kind GatewaySecret"
            );
            return vec![INVALID_GATEWAY_SECRET.finding("kind", message)];
        }
        self.validator.iter_errors(object).flat_map(|error| self.found(&error)).collect()
    }

    fn found(&self, error: &ValidationError<'_>) -> Vec<Finding> {
        let field = field(error.instance_path().as_str());
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                let keyword = error.schema_path().as_str();
                let known = keyword
                    .strip_suffix("additionalProperties")
                    .and_then(|parent| self.schema.pointer(&format!("{parent}properties"))?.as_object());
                let known: Vec<_> = known.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
                let unknown = unexpected.iter().map(|name| {
                    let message = format!("no such field: the API server refuses it. {}", expected(name, &known));
                    INVALID_GATEWAY_SECRET.finding(child(&field, name), message)
                });
                unknown.collect()
            }
            ValidationErrorKind::Required { property } => {
                let field = child(&field, property.as_str().unwrap_or_default());
                vec![
                    INVALID_GATEWAY_SECRET
                        .finding(field, "missing: the API server refuses the object without it".to_owned()),
                ]
            }
            // The masked text quotes nothing of the object.
            _ => {
                let message = format!("{}: the API server refuses it", error.masked_with("the value"));
                vec![INVALID_GATEWAY_SECRET.finding(field, message)]
            }
        }
    }
}

/// Turns a structural schema into a JSON Schema that refuses unknown fields.
fn close(schema: &mut Value) {
    let Some(keywords) = schema.as_object_mut() else { return };
    // An OpenAPI 3.0 keyword.
    if keywords.get("nullable") == Some(&Value::Bool(true)) {
        if let Some(type_) = keywords.get_mut("type") {
            *type_ = json!([type_, "null"]);
        }
        if let Some(values) = keywords.get_mut("enum").and_then(Value::as_array_mut) {
            values.push(Value::Null);
        }
    }
    if keywords.contains_key("properties") {
        keywords.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    let properties = keywords.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(|properties| properties.values_mut()).for_each(close);
    for name in ["items", "additionalProperties"] {
        schema.get_mut(name).into_iter().for_each(close);
    }
}

/// The field that was probably meant, or all that there are.
fn expected(name: &str, known: &[&str]) -> String {
    const ALIKE: f64 = 0.85;
    let alike = known.iter().map(|known| (strsim::jaro_winkler(name, known), known));
    match alike.filter(|(likeness, _)| *likeness >= ALIKE).max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((_, known)) => format!("did you mean {known}?"),
        None => format!("expected one of {}", known.join(", ")),
    }
}

fn child(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

/// A JSON pointer as users write fields: `spec.windows[0].days`.
fn field(pointer: &str) -> String {
    pointer.split('/').skip(1).fold(String::new(), |field, part| match part.parse::<usize>() {
        Ok(index) => format!("{field}[{index}]"),
        Err(_) => child(&field, &part.replace("~1", "/").replace("~0", "~")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(spec: &Value) -> Vec<String> {
        let object = json!({
            "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret",
            "metadata": {"name": "gateway", "creationTimestamp": null}, "spec": spec, "status": {"a": "later version"},
        });
        let findings = Schema::new().expect("a schema").findings(&object);
        findings.into_iter().map(|found| format!("{}: {}", found.field, found.message)).collect()
    }

    #[test]
    fn names_unknown_fields_and_what_was_meant() {
        assert_eq!(
            found(
                &json!({"rootSecretName": "source", "paussed": true, "windos": [], "reach": {"hots": "a", "xyz": 1}})
            ),
            [
                "spec.reach.host: missing: the API server refuses the object without it",
                "spec.reach.serviceName: missing: the API server refuses the object without it",
                "spec.reach.hots: no such field: the API server refuses it. did you mean host?",
                "spec.reach.xyz: no such field: the API server refuses it. expected one of canarySecretName, host, portName, serviceName",
                "spec.paussed: no such field: the API server refuses it. did you mean paused?",
                "spec.windos: no such field: the API server refuses it. did you mean windows?",
            ]
        );
    }

    #[test]
    fn rejects_what_the_definition_does_not_allow() {
        let found = found(&json!({"mode": "Bundel", "paused": "yes", "oldestEnvoy": "1.2", "distrust": [3]}));
        let mut fields: Vec<_> = found.iter().map(|found| found.split_once(": ").unwrap_or_default().0).collect();
        fields.sort_unstable();
        assert_eq!(fields, ["spec.distrust[0]", "spec.mode", "spec.oldestEnvoy", "spec.paused", "spec.rootSecretName"]);
        assert!(found.iter().all(|found| !found.contains("Bundel") && !found.contains("yes")), "{found:#?}");
    }

    #[test]
    fn accepts_every_field_of_the_api() {
        let minimal = json!({"rootSecretName": "source"});
        assert_eq!(found(&minimal), [""; 0]);
        let spec: crate::api::GatewaySecretSpec = serde_json::from_value(minimal).expect("a spec");
        assert_eq!(found(&json!(spec)), [""; 0], "with its defaults");
    }

    #[test]
    fn rejects_another_kind_of_the_group() {
        let object = json!({"apiVersion": "trustspan.dev/v1", "kind": "GatewaySecret", "spec": {}});
        assert_eq!(Schema::new().expect("a schema").findings(&object).len(), 1);
        assert_eq!(Schema::new().expect("a schema").findings(&json!({"apiVersion": "v1", "kind": "Secret"})), []);
    }
}
