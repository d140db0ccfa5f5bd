//! A place in a JSON object: its value and its JSON Pointer (RFC 6901), for walks that remember where they are.

use std::borrow::Cow;

use serde_json::Value;

/// A value and where it stands. A step into what is absent gives null, whose place is not written: hostile objects have
/// hundreds of thousands of fields that are not there.
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
        let value = &self.value[key];
        let pointer = if value.is_null() { String::new() } else { [&self.pointer, "/", &*escape(key)].concat() };
        Self { value, pointer }
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
pub(super) fn escape(key: &str) -> Cow<'_, str> {
    if key.contains(['~', '/']) { key.replace('~', "~0").replace('/', "~1").into() } else { key.into() }
}

/// A JSON Pointer as users write the field: `/spec/servers/0/tls` is `spec.servers[0].tls`.
pub(super) fn field(pointer: &str) -> String {
    let mut field = String::new();
    for step in pointer.split('/').skip(1) {
        let step = match step.contains('~') {
            true => Cow::Owned(step.replace("~1", "/").replace("~0", "~")),
            false => Cow::Borrowed(step),
        };
        let (before, after) = match step.bytes().all(|b| b.is_ascii_digit()) || step.contains(['.', '/']) {
            true => ("[", "]"),
            false if field.is_empty() => ("", ""),
            false => (".", ""),
        };
        field.extend([before, &step, after]);
    }
    field
}
