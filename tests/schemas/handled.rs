//! Tests whether trustspan handles a field: an object gets a unique name in it, and the code is run on the object.

use serde_json::{Map, Value, json};
use trustspan::api::Kind;
use trustspan::json::Json;

use crate::crds::Shape;

/// A name that occurs nowhere else.
const SENTINEL: &str = "sentinel-of-schemas";

/// How trustspan handles a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handling {
    /// The text on the page.
    pub(crate) how: &'static str,
    /// What the user has to do.
    pub(crate) advice: &'static str,
}

/// How trustspan handles an object with the sentinel. A new part of the code that reads names has to be added here.
fn handling(kind: Kind<'_>, object: &Value) -> Option<Handling> {
    let object = Json::from(object);
    let names = trustspan::rewrite::names(kind, &object, "shop");
    let is_renamed = names.iter().any(|named| named.name == SENTINEL);
    is_renamed.then_some(Handling { how: "renamed to the managed Secret", advice: "nothing" })
}

/// How trustspan handles a field of a kind. `None`: it ignores the field.
pub(crate) fn of(kind: Kind<'_>, path: &str, shape: Shape) -> Option<Handling> {
    let leaves = match shape {
        Shape::Reference => vec![json!({"name": SENTINEL}), json!({"group": "", "kind": "Secret", "name": SENTINEL})],
        // Istio expects this suffix in the name of a Secret with CAs.
        _ => vec![json!(SENTINEL), json!(format!("{SENTINEL}-cacert"))],
    };
    leaves.into_iter().find_map(|leaf| handling(kind, &object(kind, path, leaf)))
}

/// A minimal object of a kind with a value at a path.
fn object(kind: Kind<'_>, path: &str, leaf: Value) -> Value {
    let api_version =
        if kind.group.is_empty() { kind.version.to_owned() } else { format!("{}/{}", kind.group, kind.version) };
    let mut object =
        json!({"apiVersion": api_version, "kind": kind.kind, "metadata": {"name": "least", "namespace": "shop"}});
    let value = path.rsplit('.').fold(leaf, |value, step| {
        let name = step.trim_end_matches(['[', ']', '{', '}']);
        let mut value = value;
        let mut rest = step;
        while let Some(before) = rest
            .strip_suffix("[]")
            .map(|before| (before, true))
            .or(rest.strip_suffix("{}").map(|before| (before, false)))
        {
            value = if before.1 { json!([value]) } else { json!({"any": value}) };
            rest = before.0;
        }
        Value::Object(Map::from_iter([(name.to_owned(), value)]))
    });
    if let (Value::Object(object), Value::Object(value)) = (&mut object, value) {
        object.extend(value);
    }
    object
}

#[test]
fn the_least_object_has_lists_and_maps_where_the_path_says_so() {
    let kind = Kind { group: "example.org", version: "v1", kind: "Example" };
    let least = object(kind, "spec.lists[].maps{}[].name", json!("x"));
    assert_eq!(least["spec"], json!({"lists": [{"maps": {"any": [{"name": "x"}]}}]}));
    assert_eq!(least["apiVersion"], "example.org/v1");
}
