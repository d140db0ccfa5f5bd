//! Target: the parser of reviews, compared with serde_json.

use serde::de::IgnoredAny;
use serde_json::Value;

use crate::{
    bounded_json::{BoundedJsonError, parse},
    draw::Draw,
};

/// More than any input needs.
const ENOUGH: usize = 1 << 30;
/// Limits around what small inputs need, in bytes.
const LIMITS: [usize; 6] = [0, 64, 256, 1 << 10, 1 << 12, 1 << 16];

pub(crate) fn case(draw: &mut Draw) {
    let body = draw.rest();
    draw.show("body.json", &body);
    let other = serde_json::from_slice::<Value>(&body);
    let read = match (parse(&body, ENOUGH), other) {
        (Ok(read), Ok(other)) => {
            let kept = kept(other, &[]);
            assert_eq!(read, kept);
            assert_eq!(read.to_string(), kept.to_string(), "another order of fields");
            Some(read)
        }
        (Ok(read), Err(error)) => {
            // What is skipped may be nested more deeply, and have larger numbers, than a tree can.
            let skipped = serde_json::from_slice::<IgnoredAny>(&body);
            assert!(skipped.is_ok(), "accepted, and serde_json says: {error}");
            assert!(serde_json::from_str::<Value>(&read.to_string()).is_ok(), "{read}");
            Some(read)
        }
        (Err(BoundedJsonError::Json(error)), Ok(_)) => panic!("serde_json accepts it: {error}"),
        (Err(BoundedJsonError::Json(_)), Err(_)) => None,
        (Err(BoundedJsonError::TooCostly), _) => panic!("too costly for {ENOUGH} bytes"),
    };
    for limit in LIMITS {
        match (parse(&body, limit), &read) {
            (Ok(small), Some(read)) => {
                assert_eq!(small, *read, "another limit");
                assert!(least(&small) <= limit, "{} bytes, {limit} allowed", least(&small));
            }
            (Err(BoundedJsonError::Json(_)), None) | (Err(BoundedJsonError::TooCostly), _) => {}
            (small, _) => panic!("with a limit of {limit} bytes: {small:?}"),
        }
    }
}

/// A value without the fields that no decision needs. `path` has the names of the fields above it.
fn kept(value: Value, path: &[&str]) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(|item| kept(item, path)).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(name, _)| is_kept(path, name));
            fields.map(|(name, value)| (name.clone(), kept(value, &[path, &[name.as_str()]].concat()))).collect()
        }
        other => other,
    }
}

fn is_kept(path: &[&str], name: &str) -> bool {
    match path {
        [] => ["apiVersion", "kind", "request"].contains(&name),
        ["request"] => [
            "object",
            "oldObject",
            "uid",
            "kind",
            "operation",
            "subResource",
            "namespace",
            "name",
            "userInfo",
            "dryRun",
        ]
        .contains(&name),
        ["request", "object" | "oldObject", "metadata"] => !["managedFields", "finalizers"].contains(&name),
        ["request", "object" | "oldObject", "metadata", "ownerReferences"] => name == "uid",
        _ => true,
    }
}

/// The least memory that a tree takes, in bytes.
fn least(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| size_of::<Value>() + least(item)).sum(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| size_of::<(String, Value)>() + name.len() + least(value)).sum()
        }
        _ => 0,
    }
}
