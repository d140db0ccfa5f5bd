//! docs/reference/api.md: the fields of the CustomResourceDefinitions.

use kube::CustomResourceExt;
use serde_json::{Value, json};
use trustspan::api::{
    ClientIdentity, ClusterRotationPolicy, GatewaySecret, MirroredFile, RotationPolicy, TrustConsumer,
};

const HEAD: &str = "<!-- Generated: TRUSTSPAN_WRITE=1 cargo test --test reference -->
# API

The kinds of group `trustspan.dev`, version `v1alpha1`, from their CustomResourceDefinitions (`trustspan crd`). `[]` is an element of a list,
`{}` a value of a map. Fields are optional unless they are marked as required. To install the definitions by themselves, pipe this into
`kubectl apply -f -`:

```sh
cargo run -q -- crd
```
";

/// The CustomResourceDefinitions as YAML.
pub(crate) fn definitions() -> String {
    let definitions = [
        GatewaySecret::crd(),
        RotationPolicy::crd(),
        ClusterRotationPolicy::crd(),
        TrustConsumer::crd(),
        MirroredFile::crd(),
        ClientIdentity::crd(),
    ];
    definitions.map(|definition| serde_saphyr::to_string(&definition).unwrap()).join("---\n")
}

pub(crate) fn markdown() -> String {
    let mut page = HEAD.to_owned();
    let kinds =
        [GatewaySecret::crd(), RotationPolicy::crd(), TrustConsumer::crd(), MirroredFile::crd(), ClientIdentity::crd()];
    for definition in kinds {
        let definition = json!(definition);
        page += &head(&definition);
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        page += &rules(schema);
        for part in ["spec", "status"].into_iter().filter(|part| schema["properties"][part].is_object()) {
            page += &format!("\n### {} `{part}`\n\n", kind(&definition));
            page += "| field | type | default | description |\n|---|---|---|---|\n";
            rows(&schema["properties"][part], part, &mut page);
        }
    }
    page + &head(&json!(ClusterRotationPolicy::crd())) + "\nIts `spec` is that of [RotationPolicy](#rotationpolicy).\n"
}

fn kind(definition: &Value) -> &str {
    definition["spec"]["names"]["kind"].as_str().unwrap()
}

fn head(definition: &Value) -> String {
    let (spec, kind) = (&definition["spec"], kind(definition));
    let schema = &spec["versions"][0]["schema"]["openAPIV3Schema"];
    let names = spec["names"]["shortNames"].as_array().into_iter().flatten().chain([&spec["names"]["plural"]]);
    let names: Vec<_> = names.map(|name| format!("`{}`", name.as_str().unwrap())).collect();
    let scope = spec["scope"].as_str().unwrap();
    format!("\n## {kind}\n\n{} {scope}; in kubectl {}.\n", text(&schema["description"]), names.join(" or "))
}

fn rules(schema: &Value) -> String {
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    let lines: String = rules.map(|rule| format!("- {}\n", text(&rule["message"]))).collect();
    if lines.is_empty() { lines } else { format!("\nThe API server validates:\n\n{lines}") }
}

/// A row for each field below an object.
fn rows(schema: &Value, path: &str, page: &mut String) {
    let is_required = |name: &str| schema["required"].as_array().into_iter().flatten().any(|one| one == name);
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let (mut path, mut inner) = (format!("{path}.{name}"), field);
        let field_path = path.clone();
        loop {
            if inner["items"].is_object() {
                (path, inner) = (format!("{path}[]"), &inner["items"]);
            } else if inner["additionalProperties"].is_object() {
                (path, inner) = (format!("{path}{{}}"), &inner["additionalProperties"]);
            } else {
                break;
            }
        }
        let default = match &field["default"] {
            Value::Null if is_required(name) => "required".to_owned(),
            Value::Null => String::new(),
            value => format!("`{}`", value.as_str().map_or_else(|| value.to_string(), str::to_owned)),
        };
        let rules = field["x-kubernetes-validations"]
            .as_array()
            .into_iter()
            .chain(inner["x-kubernetes-validations"].as_array());
        let rules: String = rules.flatten().map(|rule| format!(" Validated: {}.", text(&rule["message"]))).collect();
        *page +=
            &format!("| `{field_path}` | {} | {default} | {}{rules} |\n", type_of(field), text(&field["description"]));
        rows(inner, &path, page);
    }
}

fn type_of(schema: &Value) -> String {
    if schema["items"].is_object() {
        return format!("list of {}", type_of(&schema["items"]));
    }
    if schema["additionalProperties"].is_object() {
        return format!("map of {}", type_of(&schema["additionalProperties"]));
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<_> = values.iter().filter_map(Value::as_str).map(|value| format!("`{value}`")).collect();
        return values.join(", ");
    }
    match (schema["type"].as_str().unwrap_or("any"), schema["format"].as_str()) {
        ("string", Some("date-time")) => "time".to_owned(),
        (name, _) => name.to_owned(),
    }
}

/// A description in a cell of a table. Outside of code, a placeholder such as `<name>` would be read as HTML.
fn text(value: &Value) -> String {
    let words: Vec<_> = value.as_str().unwrap_or_default().split_whitespace().collect();
    let text = words.join(" ").replace('|', "\\|");
    let parts = text.split('`').enumerate();
    let parts: Vec<_> =
        parts.map(|(at, part)| if at % 2 == 0 { part.replace('<', "&lt;") } else { part.to_owned() }).collect();
    parts.join("`")
}
