//! Writes JSON Patches (RFC 6902) as text, with less work than serde_json for the many short texts of a patch and of its record.

use json_patch::{AddOperation, Patch, PatchOperation, ReplaceOperation};
use serde::Serialize;
use serde_json::Value;

/// Appends a patch.
pub fn write_patch(out: &mut String, patch: &Patch) {
    write_list(out, &patch.0, write_operation);
}

/// Appends an array.
pub(super) fn write_list<T>(out: &mut String, items: &[T], mut write: impl FnMut(&mut String, &T)) {
    out.push('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write(out, item);
    }
    out.push(']');
}

/// Appends an operation.
pub(super) fn write_operation(out: &mut String, operation: &PatchOperation) {
    match operation {
        PatchOperation::Add(AddOperation { path, value }) => write_value_at(out, "add", path.as_str(), value),
        PatchOperation::Replace(ReplaceOperation { path, value }) => {
            write_value_at(out, "replace", path.as_str(), value)
        }
        other => out.push_str(&written(other)),
    }
}

/// Appends an operation whose value is a text.
pub(super) fn write_text_at(out: &mut String, op: &str, path: &str, text: &str) {
    write_start(out, op, path);
    write_text(out, text);
    out.push('}');
}

fn write_value_at(out: &mut String, op: &str, path: &str, value: &Value) {
    write_start(out, op, path);
    write_value(out, value);
    out.push('}');
}

fn write_start(out: &mut String, op: &str, path: &str) {
    out.push_str(r#"{"op":""#);
    out.push_str(op);
    out.push_str(r#"","path":"#);
    write_text(out, path);
    out.push_str(r#","value":"#);
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::String(text) => write_text(out, text),
        // An annotation, in the maps that it needs.
        Value::Object(fields) if fields.len() == 1 => {
            for (key, value) in fields {
                out.push('{');
                write_text(out, key);
                out.push(':');
                write_value(out, value);
                out.push('}');
            }
        }
        other => out.push_str(&written(other)),
    }
}

/// Appends a text as a JSON string (RFC 8259 section 7). Names and paths seldom have a character to escape.
fn write_text(out: &mut String, text: &str) {
    if text.bytes().fold(false, |found, byte| found | matches!(byte, ..b' ' | b'"' | b'\\')) {
        out.push_str(&written(text));
        return;
    }
    out.push('"');
    out.push_str(text);
    out.push('"');
}

fn written(value: &(impl Serialize + ?Sized)) -> String {
    // Writing to memory cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use json_patch::{RemoveOperation, TestOperation};
    use proptest::prelude::*;

    use super::*;

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![any::<String>(), "[\"\\\\/a\n\u{7f}é]{0,40}"]
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![text().prop_map(Value::from), Just(Value::Null), any::<u64>().prop_map(Value::from)];
        leaf.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map(text(), inner, 0..3).prop_map(|fields| fields.into_iter().collect()),
            ]
        })
    }

    fn operation() -> impl Strategy<Value = PatchOperation> {
        (0..4, prop::collection::vec(text(), 0..4), value()).prop_map(|(op, path, value)| {
            let path = json_patch::jsonptr::PointerBuf::from_tokens(&path);
            match op {
                0 => PatchOperation::Add(AddOperation { path, value }),
                1 => PatchOperation::Replace(ReplaceOperation { path, value }),
                2 => PatchOperation::Test(TestOperation { path, value }),
                _ => PatchOperation::Remove(RemoveOperation { path }),
            }
        })
    }

    proptest! {
        #[test]
        fn writes_what_serde_json_writes(patch in prop::collection::vec(operation(), 0..4).prop_map(Patch)) {
            let mut text = String::new();
            write_patch(&mut text, &patch);
            prop_assert_eq!(text, serde_json::to_string(&patch).unwrap());
        }

        #[test]
        fn an_operation_with_a_text_is_the_same_operation(path in text(), value in text()) {
            let path = json_patch::jsonptr::PointerBuf::from_tokens([&path]);
            let (mut written, mut expected) = (String::new(), String::new());
            write_text_at(&mut written, "replace", path.as_str(), &value);
            write_operation(&mut expected, &PatchOperation::Replace(ReplaceOperation { path, value: value.into() }));
            prop_assert_eq!(written, expected);
        }
    }
}
