//! The two annotations that a rewrite sets, as JSON Patch operations with their inverses.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, RemoveOperation, ReplaceOperation};
use serde_json::{Value, json};

use super::json_path::push_step;
use crate::api::names::{ROTATION_HASH, UNDO};
use crate::json::{Json, Object};

/// An annotation at a fixed path. The maps around it may be missing, null or empty.
pub(super) struct AnnotationPath {
    /// The fields to the metadata.
    metadata: &'static [&'static str],
    key: &'static str,
}

/// The rotation hash, an annotation of the pod template.
pub(super) const HASH: AnnotationPath =
    AnnotationPath { metadata: &["spec", "template", "metadata"], key: ROTATION_HASH };
/// The record for undoing a rewrite, an annotation of the object.
pub(super) const RECORD: AnnotationPath = AnnotationPath { metadata: &["metadata"], key: UNDO };

/// Maximal size of all annotations of an object (`TotalAnnotationSizeLimitB` of apimachinery's validation).
pub(super) const ANNOTATIONS: usize = 256 * 1024;

impl AnnotationPath {
    /// The annotation's value.
    pub(super) fn read<'a>(&self, object: &'a Json<'a>) -> Option<&'a str> {
        self.annotations(object)?.get(self.key)?.as_str()
    }

    /// The operation that sets the value, and its inverse. `None` if the value is set already, or if the fields around
    /// it are not maps.
    pub(super) fn set(&self, object: &Json<'_>, value: String) -> Option<(PatchOperation, PatchOperation)> {
        let (metadata, annotations) = (self.metadata(object), self.annotations(object));
        let (pointer, old, value) = match (metadata, annotations) {
            (_, Some(Json::Object(all))) => (self.pointer(), all.get(self.key), value.into()),
            (Some(Json::Object(_)), None | Some(Json::Null)) => {
                (self.annotations_pointer(), annotations, json!({ self.key: value }))
            }
            (None | Some(Json::Null), _) => {
                (self.metadata_pointer(), metadata, json!({ "annotations": { self.key: value } }))
            }
            _ => return None,
        };
        match old {
            None => Some((add(&pointer, value), remove(pointer))),
            Some(old) if *old == Json::from(&value) => None,
            Some(old) => Some((replace(&*pointer, value), replace(pointer, old.into()))),
        }
    }

    /// The operation that removes the map in which the annotation is set, if setting it adds that map.
    pub(super) fn removes_map(&self, object: &Json<'_>) -> Option<PatchOperation> {
        let (_, inverse) = self.set(object, String::new())?;
        Some(inverse).filter(|inverse| !self.is_at(inverse))
    }

    /// The size of all annotations after this one was set to a value.
    pub(super) fn size_with(&self, object: &Json<'_>, value: &str) -> usize {
        let others = self.annotations(object).and_then(Json::as_object).into_iter().flatten();
        let others = others.filter(|(key, _)| *key != self.key);
        let sizes = others.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len));
        self.key.len() + value.len() + sizes.sum::<usize>()
    }

    /// The operation that removes the annotation.
    pub(super) fn unset(&self) -> PatchOperation {
        remove(self.pointer())
    }

    /// The operation that undoes the value by a recorded inverse. A map that has gained other entries since keeps them.
    pub(super) fn restore(&self, object: &Json<'_>, inverse: &PatchOperation) -> PatchOperation {
        let size = |map: Option<&Json<'_>>| map.and_then(Json::as_object).map_or(0, Object::len);
        let path = inverse.path().as_str();
        let is_only = size(self.annotations(object)) == 1;
        let is_alone = || path == self.annotations_pointer() || size(self.metadata(object)) == 1;
        if self.is_at(inverse) || is_only && is_alone() {
            inverse.clone()
        } else if is_only && path == self.metadata_pointer() {
            remove(self.annotations_pointer())
        } else {
            self.unset()
        }
    }

    /// Whether a recorded operation restores this annotation, or removes a map that was created for it. Any user who
    /// edits an object can write a record, so other operations are ignored.
    pub(super) fn owns(&self, operation: &PatchOperation) -> bool {
        let path = operation.path().as_str();
        let ours = self.is_at(operation) || path == self.annotations_pointer() || path == self.metadata_pointer();
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

    fn metadata<'a>(&self, object: &'a Json<'a>) -> Option<&'a Json<'a>> {
        self.metadata.iter().try_fold(object, |value, field| value.get(field))
    }

    fn annotations<'a>(&self, object: &'a Json<'a>) -> Option<&'a Json<'a>> {
        self.metadata(object)?.get("annotations")
    }

    fn metadata_pointer(&self) -> String {
        let mut pointer = String::with_capacity(96);
        self.metadata.iter().for_each(|field| push_step(&mut pointer, field));
        pointer
    }

    fn annotations_pointer(&self) -> String {
        let mut pointer = self.metadata_pointer();
        push_step(&mut pointer, "annotations");
        pointer
    }

    fn pointer(&self) -> String {
        let mut pointer = self.annotations_pointer();
        push_step(&mut pointer, self.key);
        pointer
    }
}

/// `replace`, for a pointer from [`JsonPath`](super::json_path::JsonPath) or [`push_step`], which is well formed.
pub(super) fn replace(pointer: impl Into<String>, value: Value) -> PatchOperation {
    PatchOperation::Replace(ReplaceOperation { path: path(pointer), value })
}

fn add(pointer: &str, value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: path(pointer), value })
}

fn remove(pointer: impl Into<String>) -> PatchOperation {
    PatchOperation::Remove(RemoveOperation { path: path(pointer) })
}

fn path(pointer: impl Into<String>) -> PointerBuf {
    PointerBuf::parse(pointer).unwrap_or_default()
}
