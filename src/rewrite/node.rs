//! A place in a JSON object: its value and its JSON Pointer (RFC 6901), for walks that remember where they are.

use serde_json::Value;

/// A value and where it stands. A step into what is absent gives null.
#[derive(Clone, Debug)]
pub(super) struct Node<'a> {
    pub(super) value: &'a Value,
    pub(super) pointer: String,
}

impl<'a> Node<'a> {
    pub(super) fn root(value: &'a Value) -> Self {
        Self { value, pointer: String::new() }
    }

    pub(super) fn get(&self, key: &str) -> Self {
        Self { value: &self.value[key], pointer: format!("{}/{}", self.pointer, escape(key)) }
    }

    pub(super) fn path(&self, keys: &[&str]) -> Self {
        keys.iter().fold(self.clone(), |node, key| node.get(key))
    }

    pub(super) fn items(&self) -> impl Iterator<Item = Self> + use<'a> {
        let pointer = self.pointer.clone();
        let items = self.value.as_array().into_iter().flatten().enumerate();
        items.map(move |(index, value)| Self { value, pointer: format!("{pointer}/{index}") })
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        self.value.as_str().filter(|text| !text.is_empty())
    }
}

/// Escapes a key for a JSON Pointer (RFC 6901 §3).
pub(super) fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// A JSON Pointer as users write the field: `/spec/servers/0/tls` is `spec.servers[0].tls`.
pub(super) fn field(pointer: &str) -> String {
    let mut field = String::new();
    for step in pointer.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        if step.bytes().all(|b| b.is_ascii_digit()) || step.contains(['.', '/']) {
            field.push_str(&format!("[{step}]"));
        } else {
            let dot = if field.is_empty() { "" } else { "." };
            field.push_str(&format!("{dot}{step}"));
        }
    }
    field
}
