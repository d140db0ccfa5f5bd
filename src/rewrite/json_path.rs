//! A path in a JSON object: its value and its JSON Pointer (RFC 6901).

use std::borrow::Cow;
use std::fmt::Write;

use crate::json::Json;

/// The maximal number of steps from an object to a reference; the longest is
/// `/spec/template/spec/containers/0/env/0/valueFrom/secretKeyRef/name`.
const STEPS: usize = 10;

/// A value and its path. The JSON Pointer is formatted on demand, since hostile objects have hundreds of thousands of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JsonPath<'a> {
    pub(super) value: &'a Json<'a>,
    steps: [Step; STEPS],
    depth: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Key(&'static str),
    Index(usize),
}

impl<'a> JsonPath<'a> {
    pub(super) fn root(value: &'a Json<'a>) -> Self {
        Self { value, steps: [Step::Index(0); STEPS], depth: 0 }
    }

    /// The value below a key; null if it is absent.
    pub(super) fn get(&self, key: &'static str) -> Self {
        self.path(&[key])
    }

    /// The value below a key, if there is one.
    pub(super) fn find(&self, key: &'static str) -> Option<Self> {
        let mut node = *self;
        node.enter(self.value.get(key)?, Step::Key(key));
        Some(node)
    }

    /// The value below several keys; null if it is absent.
    pub(super) fn path(&self, keys: &[&'static str]) -> Self {
        let mut node = *self;
        keys.iter().for_each(|key| node.enter(&node.value[*key], Step::Key(key)));
        node
    }

    pub(super) fn items(&self) -> impl Iterator<Item = Self> + use<'a> {
        let list = *self;
        let items = list.value.as_array().into_iter().flatten().enumerate();
        items.map(move |(index, value)| {
            let mut item = list;
            item.enter(value, Step::Index(index));
            item
        })
    }

    /// The texts of the list below a key.
    pub(super) fn texts(&self, key: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let items = self.value[key].as_array().into_iter().flatten();
        items.filter_map(Json::as_str).filter(|text| !text.is_empty())
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        self.value.as_str().filter(|text| !text.is_empty())
    }

    /// The path as a JSON Pointer.
    pub(super) fn pointer(&self) -> String {
        let mut pointer = String::with_capacity(64);
        for step in self.steps() {
            match step {
                Step::Key(key) => push_step(&mut pointer, key),
                // Writing to a string cannot fail.
                Step::Index(index) => drop(write!(pointer, "/{index}")),
            }
        }
        pointer
    }

    /// The value at the same path in another object.
    pub(super) fn found_in<'v>(&self, object: &'v Json<'v>) -> Option<&'v Json<'v>> {
        self.steps().iter().try_fold(object, |value, step| match step {
            Step::Key(key) => value.get(key),
            Step::Index(index) => value.as_array()?.get(*index),
        })
    }

    /// The value at the same path in `copy`, which replaces the value below two keys.
    pub(super) fn found_below<'v>(&self, keys: [&'static str; 2], copy: &'v mut Json<'a>) -> Option<&'v mut Json<'a>> {
        let (_, inner) = self.steps().split_first_chunk().filter(|(outer, _)| **outer == keys.map(Step::Key))?;
        inner.iter().try_fold(copy, |value, step| match step {
            Step::Key(key) => value.as_object_mut()?.get_mut(key),
            Step::Index(index) => value.as_array_mut()?.get_mut(*index),
        })
    }

    fn steps(&self) -> &[Step] {
        &self.steps[..self.depth]
    }

    fn enter(&mut self, value: &'a Json<'a>, step: Step) {
        self.steps[self.depth] = step;
        (self.value, self.depth) = (value, self.depth + 1);
    }
}

/// Adds a key to a JSON Pointer (RFC 6901 §3).
pub(super) fn push_step(pointer: &mut String, key: &str) {
    pointer.push('/');
    let mut rest = key;
    while let Some(at) = rest.bytes().position(|byte| matches!(byte, b'~' | b'/')) {
        pointer.push_str(&rest[..at]);
        pointer.push_str(if rest.as_bytes()[at] == b'~' { "~0" } else { "~1" });
        rest = &rest[at + 1..];
    }
    pointer.push_str(rest);
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
