//! The schema of the CustomResourceDefinitions, which the API server applies before it calls a webhook.
//!
//! `kubectl apply` validates strictly by default, so an unknown field is an error
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#setting-the-field-validation-level>). CEL rules are not evaluated here.

use jsonschema::error::ValidationErrorKind;
use jsonschema::{ValidationError, Validator};
use serde_json::{Value, json};

use crate::admission::INVALID_RESOURCE;
use crate::api::{GROUP, Kind, VERSION};
use crate::cli::Failure;
use crate::cli::crd::DEFINITIONS;
use crate::trust::Finding;

/// Validates objects of trustspan's API group.
pub(super) struct Schemas(Vec<Schema>);

/// The schema of one kind.
struct Schema {
    kind: String,
    schema: Value,
    validator: Validator,
}

impl Schemas {
    /// The schemas of the CustomResourceDefinitions that `trustspan crd` prints.
    ///
    /// # Errors
    /// When they are not YAML, or one is not a JSON Schema.
    pub(super) fn new() -> Result<Self, Failure> {
        let definitions: Vec<Value> =
            serde_saphyr::from_multiple(DEFINITIONS).map_err(|error| Failure::Impossible(error.to_string()))?;
        Ok(Self(definitions.iter().map(Schema::new).collect::<Result<_, _>>()?))
    }

    /// What the API server would reject in an object of trustspan's API group; empty for other objects.
    pub(super) fn findings(&self, object: &Value) -> Vec<Finding> {
        let kind = Kind::of_value(object);
        if kind.group != GROUP {
            return Vec::new();
        }
        let Some(schema) = self.0.iter().find(|schema| (kind.version, kind.kind) == (VERSION, &schema.kind)) else {
            let kinds: Vec<_> = self.0.iter().map(|schema| schema.kind.as_str()).collect();
            let message = format!("unknown kind. expected apiVersion {GROUP}/{VERSION} and kind {}", kinds.join(", "));
            return vec![INVALID_RESOURCE.finding("kind", message)];
        };
        schema.validator.iter_errors(object).flat_map(|error| schema.found(&error)).collect()
    }
}

impl Schema {
    fn new(definition: &Value) -> Result<Self, Failure> {
        let mut schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        // Only the controller writes the status, and another version of it may write other fields.
        for name in ["metadata", "status"] {
            schema["properties"][name] = json!({"type": "object"});
        }
        for name in ["apiVersion", "kind"] {
            schema["properties"][name] = json!({"type": "string"});
        }
        reject_unknown_fields(&mut schema);
        let validator = jsonschema::validator_for(&schema).map_err(|error| Failure::Impossible(error.to_string()))?;
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap_or_default().to_owned();
        Ok(Self { kind, schema, validator })
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
                    let message = format!("unknown field: the API server rejects it. {}", expected(name, &known));
                    INVALID_RESOURCE.finding(child(&field, name), message)
                });
                unknown.collect()
            }
            ValidationErrorKind::Required { property } => {
                let field = child(&field, property.as_str().unwrap_or_default());
                vec![
                    INVALID_RESOURCE.finding(field, "missing: the API server rejects the object without it".to_owned()),
                ]
            }
            // The masked text does not quote the object.
            _ => {
                let message = format!("{}: the API server rejects it", error.masked_with("the value"));
                vec![INVALID_RESOURCE.finding(field, message)]
            }
        }
    }
}

/// Turns a structural schema into a JSON Schema that rejects unknown fields.
fn reject_unknown_fields(schema: &mut Value) {
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
    properties.into_iter().flat_map(|properties| properties.values_mut()).for_each(reject_unknown_fields);
    for name in ["items", "additionalProperties"] {
        schema.get_mut(name).into_iter().for_each(reject_unknown_fields);
    }
}

/// The field that was probably meant, or all known fields.
fn expected(name: &str, known: &[&str]) -> String {
    const MIN_SIMILARITY: f64 = 0.85;
    let similar = known.iter().map(|known| (strsim::jaro_winkler(name, known), known));
    match similar.filter(|(similarity, _)| *similarity >= MIN_SIMILARITY).max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((_, known)) => format!("did you mean {known}?"),
        None => format!("expected one of {}", known.join(", ")),
    }
}

fn child(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

/// A JSON pointer in the notation for fields: `changeWindows[0].days`.
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
        let findings = Schemas::new().expect("a schema").findings(&object);
        findings.into_iter().map(|found| format!("{}: {}", found.field, found.message)).collect()
    }

    #[test]
    fn suggests_the_field_that_was_meant() {
        assert_eq!(
            found(&json!({"sourceSecretName": "source", "paussed": true, "caSecretRef": {"nam": "a", "xyz": 1}})),
            [
                "spec.caSecretRef.nam: unknown field: the API server rejects it. did you mean name?",
                "spec.caSecretRef.xyz: unknown field: the API server rejects it. expected one of name, namespace",
                "spec.caSecretRef.name: missing: the API server rejects the object without it",
                "spec.paussed: unknown field: the API server rejects it. did you mean paused?",
            ]
        );
        let policy = json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "ClusterRotationPolicy",
            "metadata": {"name": "default"}, "spec": {"changeWindos": [], "propagationDelays": {"gateways": "soon"}}});
        let findings = Schemas::new().expect("schemas").findings(&policy);
        let mut fields: Vec<_> = findings.iter().map(|found| found.field.as_str()).collect();
        fields.sort_unstable();
        assert_eq!(fields, ["spec.changeWindos", "spec.propagationDelays.gateways"]);
    }

    #[test]
    fn rejects_invalid_values() {
        let found = found(&json!({"mode": "Bundel", "paused": "yes", "certificateRef": "gw", "distrustedCAs": [3]}));
        let mut fields: Vec<_> = found.iter().map(|found| found.split_once(": ").unwrap_or_default().0).collect();
        fields.sort_unstable();
        assert_eq!(fields, ["spec.certificateRef", "spec.distrustedCAs[0]", "spec.mode", "spec.paused"]);
        assert!(found.iter().all(|found| !found.contains("Bundel") && !found.contains("yes")), "{found:#?}");
    }

    #[test]
    fn accepts_every_field_of_the_api() {
        let minimal = json!({"sourceSecretName": "source"});
        assert_eq!(found(&minimal), [""; 0]);
        let spec: crate::api::GatewaySecretSpec = serde_json::from_value(minimal).expect("a spec");
        assert_eq!(found(&json!(spec)), [""; 0], "with its defaults");
    }

    #[test]
    fn rejects_unknown_kinds_of_the_group() {
        let object = json!({"apiVersion": "trustspan.dev/v1", "kind": "GatewaySecret", "spec": {}});
        assert_eq!(Schemas::new().expect("a schema").findings(&object).len(), 1);
        assert_eq!(Schemas::new().expect("a schema").findings(&json!({"apiVersion": "v1", "kind": "Secret"})), []);
    }
}
