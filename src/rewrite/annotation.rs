//! The two annotations that a rewrite sets, as JSON Patch operations and their inverses.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, RemoveOperation, ReplaceOperation};
use serde_json::{Value, json};

use super::node::escape;
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

    /// Whether a recorded operation is about this annotation or the maps made for it.
    pub(super) fn owns(&self, operation: &PatchOperation) -> bool {
        let path = operation.path().as_str();
        self.is_at(operation) || path == self.annotations() || path == self.metadata
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
pub(super) fn replace(pointer: &str, value: Value) -> PatchOperation {
    PatchOperation::Replace(ReplaceOperation { path: path(pointer), value })
}

fn add(pointer: &str, value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: path(pointer), value })
}

fn remove(pointer: &str) -> PatchOperation {
    PatchOperation::Remove(RemoveOperation { path: path(pointer) })
}

fn path(pointer: &str) -> PointerBuf {
    PointerBuf::parse(pointer).unwrap_or_default()
}
