//! A JSON Patch (RFC 6902) as text. The record for undoing a rewrite is a patch in an annotation that another patch sets, so it is written with
//! the escapes of a JSON string from the start: to escape it afterwards took a seventh of the answer.

use std::borrow::Cow;

use json_patch::{Patch, PatchOperation};
use serde::Serialize;

/// Bytes of most patches, so that writing one seldom has to grow its buffer.
const USUAL: usize = 2048;

/// A JSON Patch, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchText {
    /// An array; empty without operations.
    text: String,
    /// It is written as in a JSON string: each quote after a backslash.
    in_string: bool,
}

impl PatchText {
    /// A patch that adds a text.
    pub fn add(path: &str, value: &str) -> Self {
        let mut patch = Self::default();
        patch.set("add", path, value);
        patch
    }

    /// Appends an operation that adds a text.
    pub fn append(&mut self, path: &str, value: &str) {
        self.set("add", path, value);
    }

    /// A patch that is written into another one.
    pub(super) fn in_string() -> Self {
        Self { in_string: true, ..Self::default() }
    }

    /// Whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The array of the operations; empty without any.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The operations.
    pub fn parse(&self) -> Patch {
        // It was written as JSON.
        serde_json::from_str(&self.unescaped()).unwrap_or_default()
    }

    /// The text without the escapes of a JSON string.
    pub(super) fn unescaped(&self) -> Cow<'_, str> {
        if self.in_string {
            serde_json::from_str(&["\"", &self.text, "\""].concat()).unwrap_or_default()
        } else {
            Cow::Borrowed(&self.text)
        }
    }

    /// Adds an operation whose value is a text.
    pub(super) fn set(&mut self, op: &str, path: &str, value: &str) {
        self.set_in_maps(op, path, &[], |patch| patch.quoted(value));
    }

    /// Adds an operation whose value is written by `value`, in a map below each of the keys.
    pub(super) fn set_in_maps(&mut self, op: &str, path: &str, keys: &[&str], value: impl FnOnce(&mut Self)) {
        self.begin(op, path);
        self.text.push_str(if self.in_string { r#",\"value\":"# } else { r#","value":"# });
        for key in keys {
            self.text.push('{');
            self.quoted(key);
            self.text.push(':');
        }
        value(self);
        keys.iter().for_each(|_| self.text.push('}'));
        self.end();
    }

    /// Adds an operation that removes a value.
    pub(super) fn remove(&mut self, path: &str) {
        self.begin("remove", path);
        self.end();
    }

    /// Adds an operation.
    pub(super) fn push(&mut self, operation: &PatchOperation) {
        self.separate();
        self.json(operation);
        self.text.push(']');
    }

    /// Writes a text as a value.
    pub(super) fn quoted(&mut self, text: &str) {
        // Names and paths seldom have a character to escape (RFC 8259 section 7).
        if text.bytes().fold(false, |found, byte| found | matches!(byte, ..b' ' | b'"' | b'\\')) {
            return self.json(text);
        }
        let quote = if self.in_string { r#"\""# } else { r#"""# };
        self.text.push_str(quote);
        self.text.push_str(text);
        self.text.push_str(quote);
    }

    /// Writes a patch as a value: a text.
    pub(super) fn nested(&mut self, inner: &Self) {
        debug_assert!(inner.in_string && !self.in_string, "one is written as in a string");
        self.text.push('"');
        self.text.push_str(&inner.text);
        self.text.push('"');
    }

    /// Writes any value.
    pub(super) fn json(&mut self, value: &(impl Serialize + ?Sized)) {
        // Writing to memory cannot fail.
        let written = serde_json::to_string(value).unwrap_or_default();
        if self.in_string {
            let escaped = serde_json::to_string(&written).unwrap_or_default();
            self.text.push_str(&escaped[1..escaped.len() - 1]);
        } else {
            self.text.push_str(&written);
        }
    }

    fn begin(&mut self, op: &str, path: &str) {
        self.separate();
        let [start, middle] =
            if self.in_string { [r#"{\"op\":\""#, r#"\",\"path\":"#] } else { [r#"{"op":""#, r#"","path":"#] };
        self.text.push_str(start);
        self.text.push_str(op);
        self.text.push_str(middle);
        self.quoted(path);
    }

    fn end(&mut self) {
        self.text.push_str("}]");
    }

    /// Opens the array for another operation.
    fn separate(&mut self) {
        if self.text.pop().is_some() {
            self.text.push(',');
        } else {
            self.text.reserve(USUAL);
            self.text.push('[');
        }
    }
}

#[cfg(test)]
mod tests {
    use json_patch::jsonptr::PointerBuf;
    use json_patch::{AddOperation, RemoveOperation, ReplaceOperation, TestOperation};
    use proptest::prelude::*;
    use serde_json::{Value, json};

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
            let path = PointerBuf::from_tokens(&path);
            match op {
                0 => PatchOperation::Add(AddOperation { path, value }),
                1 => PatchOperation::Replace(ReplaceOperation { path, value }),
                2 => PatchOperation::Test(TestOperation { path, value }),
                _ => PatchOperation::Remove(RemoveOperation { path }),
            }
        })
    }

    /// Writes an operation by the method for its kind.
    fn write(patch: &mut PatchText, operation: &PatchOperation) {
        let path = operation.path().as_str();
        match operation {
            PatchOperation::Remove(_) => patch.remove(path),
            PatchOperation::Test(TestOperation { value: Value::String(text), .. }) => patch.set("test", path, text),
            PatchOperation::Replace(ReplaceOperation { value: Value::String(text), .. }) => {
                patch.set("replace", path, text);
            }
            PatchOperation::Add(AddOperation { value, .. }) => patch.set_in_maps("add", path, &[], |p| p.json(value)),
            other => patch.push(other),
        }
    }

    proptest! {
        #[test]
        fn writes_the_operations(operations in prop::collection::vec(operation(), 0..4)) {
            for mut patch in [PatchText::default(), PatchText::in_string()] {
                operations.iter().for_each(|operation| write(&mut patch, operation));
                prop_assert_eq!(patch.parse(), Patch(operations.clone()));
                let expected = if operations.is_empty() { String::new() } else { json!(operations).to_string() };
                prop_assert_eq!(patch.unescaped(), expected);
            }
        }

        #[test]
        fn a_patch_in_another_one_is_a_text(inner in prop::collection::vec(operation(), 1..3), keys in prop::collection::vec(text(), 0..3)) {
            let mut nested = PatchText::in_string();
            inner.iter().for_each(|operation| write(&mut nested, operation));
            let mut outer = PatchText::default();
            outer.set("test", "/before", "");
            let keys: Vec<_> = keys.iter().map(String::as_str).collect();
            outer.set_in_maps("add", "/a", &keys, |patch| patch.nested(&nested));
            let value = keys.iter().rfold(json!(nested.unescaped()), |value, key| json!({ *key: value }));
            let expected = json!([{"op": "test", "path": "/before", "value": ""}, {"op": "add", "path": "/a", "value": value}]);
            prop_assert_eq!(serde_json::from_str::<Value>(outer.as_str()).unwrap(), expected);
        }
    }
}
