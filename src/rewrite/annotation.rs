//! The two annotations that a rewrite sets, as JSON Patch operations with their inverses.

use json_patch::jsonptr::PointerBuf;
use json_patch::{PatchOperation, RemoveOperation, ReplaceOperation};
use serde_json::Value;

use super::json_path::push_step;
use super::patch_text::PatchText;
use crate::api::names::{ROTATION_HASH, UNDO};
use crate::json::{Json, Object};

/// An annotation at a fixed path. The maps around it may be missing, null or empty.
pub(super) struct AnnotationPath {
    /// The fields to the metadata.
    metadata: &'static [&'static str],
    /// The keys from the metadata to the value.
    keys: [&'static str; 2],
}

/// The innermost map around an annotation that exists.
pub(super) struct AnnotationPlace<'a> {
    pub(super) pointer: String,
    /// The keys of the maps that are missing, and of the value in them.
    pub(super) missing: &'static [&'static str],
    /// What is there now.
    old: Option<&'a Json<'a>>,
}

impl AnnotationPlace<'_> {
    /// The annotation's value now.
    pub(super) fn text(&self) -> Option<&str> {
        self.old?.as_str()
    }

    /// Adds the operation that sets the value, which `value` writes.
    pub(super) fn set(&self, patch: &mut PatchText, value: impl FnOnce(&mut PatchText)) {
        let op = if self.old.is_some() { "replace" } else { "add" };
        patch.set_in_maps(op, &self.pointer, self.missing, value);
    }

    /// Adds the operation that restores what is there now.
    pub(super) fn restore(&self, patch: &mut PatchText) {
        match self.old {
            None => patch.remove(&self.pointer),
            Some(old) => patch.set_in_maps("replace", &self.pointer, &[], |patch| patch.json(&Value::from(old))),
        }
    }
}

/// The rotation hash, an annotation of the pod template.
pub(super) static HASH: AnnotationPath =
    AnnotationPath { metadata: &["spec", "template", "metadata"], keys: ["annotations", ROTATION_HASH] };
/// The record for undoing a rewrite, an annotation of the object.
pub(super) static RECORD: AnnotationPath = AnnotationPath { metadata: &["metadata"], keys: ["annotations", UNDO] };

/// Maximal size of all annotations of an object (`TotalAnnotationSizeLimitB` of apimachinery's validation).
pub(super) const ANNOTATIONS: usize = 256 * 1024;

impl AnnotationPath {
    /// The annotation's value.
    pub(super) fn read<'a>(&self, object: &'a Json<'a>) -> Option<&'a str> {
        self.annotations(object)?.get(self.key())?.as_str()
    }

    /// Where the value is set. `None` if the fields around it are not maps.
    pub(super) fn place<'a>(&'static self, object: &'a Json<'a>) -> Option<AnnotationPlace<'a>> {
        let (metadata, annotations) = (self.metadata(object), self.annotations(object));
        let (pointer, missing, old) = match (metadata, annotations) {
            (_, Some(Json::Object(all))) => (self.pointer(), &self.keys[2..], all.get(self.key())),
            (Some(Json::Object(_)), None | Some(Json::Null)) => {
                (self.annotations_pointer(), &self.keys[1..], annotations)
            }
            (None | Some(Json::Null), _) => (self.metadata_pointer(), &self.keys[..], metadata),
            _ => return None,
        };
        Some(AnnotationPlace { pointer, missing, old })
    }

    /// The size of all annotations after this one was set to a value of so many bytes.
    pub(super) fn size_with(&self, object: &Json<'_>, value: usize) -> usize {
        let others = self.annotations(object).and_then(Json::as_object).into_iter().flatten();
        let others = others.filter(|(key, _)| *key != self.key());
        let sizes = others.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len));
        self.key().len() + value + sizes.sum::<usize>()
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

    fn key(&self) -> &'static str {
        self.keys[1]
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

    pub(super) fn pointer(&self) -> String {
        let mut pointer = self.annotations_pointer();
        push_step(&mut pointer, self.key());
        pointer
    }
}

/// `replace`, for a pointer from [`JsonPath`](super::json_path::JsonPath) or [`push_step`], which is well formed.
pub(super) fn replace(pointer: impl Into<String>, value: Value) -> PatchOperation {
    PatchOperation::Replace(ReplaceOperation { path: path(pointer), value })
}

fn remove(pointer: impl Into<String>) -> PatchOperation {
    PatchOperation::Remove(RemoveOperation { path: path(pointer) })
}

fn path(pointer: impl Into<String>) -> PointerBuf {
    PointerBuf::parse(pointer).unwrap_or_default()
}
