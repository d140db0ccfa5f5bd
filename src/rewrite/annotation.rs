//! The two annotations that a rewrite sets, as JSON Patch operations and their inverses.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation};
use serde_json::{Value, json};

use super::json_path::escape;
use crate::api::names::{ROTATION_HASH, UNDO};

/// An annotation at a fixed place. The maps around it may be missing, null or empty.
pub(super) struct Slot {
    metadata: &'static str,
    key: &'static str,
}

/// The rotation hash, in the pod template.
pub(super) const HASH: Slot = Slot { metadata: "/spec/template/metadata", key: ROTATION_HASH };
/// The record that takes a rewrite back, on the object.
pub(super) const RECORD: Slot = Slot { metadata: "/metadata", key: UNDO };

impl Slot {
    /// The annotation's value.
    pub(super) fn read<'a>(&self, object: &'a Value) -> Option<&'a str> {
        object.pointer(&self.pointer())?.as_str()
    }

    /// The operation that sets the value, and the one that takes it back. `None` where it stands already, or where the
    /// maps around it are no maps.
    pub(super) fn set(&self, object: &Value, value: &str) -> Option<(PatchOperation, PatchOperation)> {
        let mut fresh = json!(value);
        for (pointer, key) in [(self.pointer(), self.key), (self.annotations(), "annotations")] {
            let parent = pointer.rsplit_once('/')?.0;
            match (object.pointer(parent), object.pointer(&pointer)) {
                (Some(Value::Object(_)), None) => return Some((add(&pointer, fresh), remove(&pointer))),
                (Some(Value::Object(_)), Some(old)) if old.is_null() || key == self.key => {
                    let set = (*old != fresh).then(|| (replace(&pointer, fresh), replace(&pointer, old.clone())));
                    return set;
                }
                (None | Some(Value::Null), _) => fresh = json!({ key: fresh }),
                _ => return None,
            }
        }
        match object.pointer(self.metadata) {
            None => Some((add(self.metadata, fresh), remove(self.metadata))),
            Some(Value::Null) => Some((replace(self.metadata, fresh), replace(self.metadata, Value::Null))),
            Some(_) => None,
        }
    }

    /// The size of all annotations beside this one, once it has this value.
    pub(super) fn size_with(&self, object: &Value, value: &str) -> usize {
        let others = object.pointer(&self.annotations()).and_then(Value::as_object).into_iter().flatten();
        let others = others.filter(|(key, _)| *key != self.key);
        let sizes = others.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len));
        self.key.len() + value.len() + sizes.sum::<usize>()
    }

    /// The operation that removes the annotation.
    pub(super) fn unset(&self) -> PatchOperation {
        remove(&self.pointer())
    }

    /// Takes the value back as a recorded inverse says. A map that has gained other entries since keeps them.
    pub(super) fn restore(&self, object: &Value, inverse: &PatchOperation) -> PatchOperation {
        let size = |pointer: &str| object.pointer(pointer).and_then(Value::as_object).map_or(0, serde_json::Map::len);
        let path = inverse.path().as_str();
        let alone = size(&self.annotations()) == 1;
        if self.is_at(inverse) || alone && (path == self.annotations() || size(self.metadata) == 1) {
            inverse.clone()
        } else if alone && path == self.metadata {
            remove(&self.annotations())
        } else {
            self.unset()
        }
    }

    /// Whether a recorded operation takes this annotation back: by restoring its own text, or the emptiness of a map that
    /// was made for it. Whoever edits an object can write a record, so nothing else counts.
    pub(super) fn owns(&self, operation: &PatchOperation) -> bool {
        let path = operation.path().as_str();
        let ours = self.is_at(operation) || path == self.annotations() || path == self.metadata;
        ours && match operation {
            PatchOperation::Remove(_) => true,
            PatchOperation::Replace(ReplaceOperation { value: Value::String(_), .. }) => self.is_at(operation),
            PatchOperation::Replace(ReplaceOperation { value: Value::Null, .. }) => !self.is_at(operation),
            _ => false,
        }
    }

    /// Whether an operation is on the annotation itself, not on a map around it.
    pub(super) fn is_at(&self, operation: &PatchOperation) -> bool {
        operation.path().as_str() == self.pointer()
    }

    fn annotations(&self) -> String {
        format!("{}/annotations", self.metadata)
    }

    fn pointer(&self) -> String {
        format!("{}/{}", self.annotations(), escape(self.key))
    }
}

/// `replace`, for a pointer that is well formed because a walk or [`escape`] made it.
pub(super) fn replace(pointer: impl Into<String>, value: Value) -> PatchOperation {
    PatchOperation::Replace(ReplaceOperation { path: path(pointer), value })
}

/// `test`: the patch applies only while the place holds this value.
pub(super) fn test(pointer: &str, value: Value) -> PatchOperation {
    PatchOperation::Test(TestOperation { path: path(pointer), value })
}

fn add(pointer: &str, value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: path(pointer), value })
}

fn remove(pointer: &str) -> PatchOperation {
    PatchOperation::Remove(RemoveOperation { path: path(pointer) })
}

fn path(pointer: impl Into<String>) -> PointerBuf {
    PointerBuf::parse(pointer).unwrap_or_default()
}
