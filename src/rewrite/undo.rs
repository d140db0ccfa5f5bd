//! The record of a rewrite: a JSON Patch in an annotation, by which `rewrite --undo` restores what the user wrote,
//! without a cluster and without the GatewaySecret.
//!
//! Each name is a pair of operations: `test` for the name that the rewrite wrote, `replace` with the previous one. Everyone who edits an
//! object can write a record, and an administrator applies it, so a record is not trusted: it may change references to Secrets and
//! trustspan's own annotations in this object, and nothing else.

use std::collections::HashSet;

use json_patch::{Patch, PatchOperation};

use super::annotation::{ANNOTATIONS, HASH, RECORD, replace};
use super::kinds;
use crate::api::Kind;
use crate::json::Json;

/// The result of undoing a rewrite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undo {
    /// The patch that restores the object.
    pub patch: Patch,
    /// The number of recorded names that are not restored: the field has changed since, or a rewrite does not change it.
    pub passed_over: usize,
}

/// The patch that undoes the rewrite of an object; `None` if the object has no record of one.
pub fn undo(object: &Json<'_>) -> Option<Undo> {
    let text = RECORD.read(object)?;
    let record = recorded(object);
    let references = kinds::find(Kind::of(object)).map(|rule| (rule.references)(object, "")).unwrap_or_default();
    // By path, since a hostile object has thousands of both.
    let paths: HashSet<_> = references.iter().map(|reference| reference.node.pointer()).collect();
    let is_current = |name: &UndoName<'_>| object.pointer(name.pointer).and_then(Json::as_str) == Some(name.written);
    let (fit, unfit): (Vec<_>, Vec<_>) =
        names(&record).partition(|name| paths.contains(name.pointer) && is_current(name));
    let mut patch: Vec<_> = fit.iter().map(|name| replace(name.pointer, name.restored.into())).collect();
    if let Some(inverse) = record.iter().find(|entry| HASH.owns(entry))
        && HASH.read(object).is_some()
    {
        patch.push(HASH.restore(object, inverse));
    }
    let inverse = record.iter().find(|entry| RECORD.owns(entry)).cloned().unwrap_or_else(|| RECORD.unset());
    patch.push(RECORD.restore(object, &inverse));
    let unreadable = usize::from(record.is_empty() && text.trim() != "[]");
    Some(Undo { patch: Patch(patch), passed_over: unfit.len() + unreadable })
}

/// The record of an object; empty if it is missing or cannot be read, or is longer than any that the API server stores.
pub(super) fn recorded(object: &Json<'_>) -> Vec<PatchOperation> {
    let text = RECORD.read(object).filter(|text| text.len() <= ANNOTATIONS);
    text.and_then(|text| serde_json::from_str::<Patch>(text).ok()).unwrap_or_default().0
}

/// A recorded rename.
pub(super) struct UndoName<'a> {
    pub(super) pointer: &'a str,
    /// The name that the rewrite wrote.
    pub(super) written: &'a str,
    /// The previous name.
    pub(super) restored: &'a str,
}

/// The renames of a record: a `test` and a `replace` of a string, at the same path.
pub(super) fn names(record: &[PatchOperation]) -> impl Iterator<Item = UndoName<'_>> {
    record.windows(2).filter_map(|pair| match pair {
        [PatchOperation::Test(test), PatchOperation::Replace(replace)] if test.path == replace.path => {
            let (written, restored) = (test.value.as_str()?, replace.value.as_str()?);
            Some(UndoName { pointer: test.path.as_str(), written, restored })
        }
        _ => None,
    })
}
