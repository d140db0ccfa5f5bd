//! An object being rewritten: the changes so far, what it looks like after them, and how to take them back.

use std::collections::{BTreeSet, HashMap};

use json_patch::{Patch, PatchOperation};
use serde_json::{Value, json};

use super::Outcome;
use super::annotation::{HASH, RECORD, replace, test};
use super::kinds::Reference;
use super::node::field;
use super::undo::{names, recorded};

pub(super) struct Draft<'a> {
    before: &'a Value,
    /// The object with the changes so far.
    pub(super) after: Value,
    patch: Vec<PatchOperation>,
    /// Pointers of renamed references.
    renamed: BTreeSet<String>,
    /// Takes the hash back.
    unhash: Option<PatchOperation>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(before: &'a Value) -> Self {
        Self { before, after: before.clone(), patch: Vec::new(), renamed: BTreeSet::new(), unhash: None }
    }

    /// Gives references the values that `choose` returns.
    pub(super) fn rename(
        &mut self,
        references: &[Reference<'_>],
        mut choose: impl FnMut(&Reference<'_>) -> Option<String>,
    ) {
        for reference in references {
            let Some(value) = choose(reference) else { continue };
            let Some(place) = self.after.pointer_mut(&reference.pointer) else { continue };
            *place = Value::String(value.clone());
            self.patch.push(replace(&reference.pointer, Value::String(value)));
            self.renamed.insert(reference.pointer.clone());
        }
    }

    /// Sets the rotation hash.
    pub(super) fn annotate(&mut self, hash: Option<String>) {
        let Some((set, unset)) = hash.and_then(|hash| HASH.set(self.before, &hash)) else { return };
        // The pointer was found or made by `set`, so applying it cannot fail.
        if json_patch::patch(&mut self.after, std::slice::from_ref(&set)).is_ok() {
            self.patch.push(set);
            self.unhash = Some(unset);
        }
    }

    /// Adds the record by which the whole is taken back.
    pub(super) fn finish(mut self, references: &[Reference<'_>]) -> Outcome {
        let known = recorded(self.before);
        // The first of a place counts. By place, since a hostile object has thousands of both.
        let mut earlier: HashMap<_, Vec<_>> = HashMap::new();
        names(&known).for_each(|name| earlier.entry(name.pointer).or_default().push(name));
        let (mut record, mut least) = (Vec::new(), 0);
        for reference in references {
            let pointer = &reference.pointer;
            let Some(written) = self.after.pointer(pointer) else { continue };
            // A rename of an earlier write counts while its result stands.
            let earlier = || earlier.get(pointer.as_str())?.iter().find(|name| name.written == written);
            let restore = match self.renamed.contains(pointer) {
                true => Some(replace(pointer, Value::String(reference.renamed(reference.name)))),
                false => earlier().map(|name| name.restore.clone()),
            };
            let Some(restore) = restore else { continue };
            record.extend([test(pointer, written.clone()), restore]);
            // A record that cannot fit is not made to its end.
            least += 2 * pointer.len();
            if least > ANNOTATIONS {
                break;
            }
        }
        if HASH.read(&self.after).is_some() {
            // What stood there before the first rewrite counts, not what stood there before this one.
            record.extend(known.iter().find(|entry| HASH.owns(entry)).cloned().or(self.unhash));
        }
        let mut unrecorded = false;
        if !record.is_empty() {
            let made_map = RECORD.set(self.before, "").map(|(_, unset)| unset).filter(|unset| !RECORD.is_at(unset));
            record.extend(known.iter().find(|entry| RECORD.owns(entry)).cloned().or(made_map));
            let text = json!(Patch(record)).to_string();
            unrecorded = RECORD.size_with(self.before, &text) > ANNOTATIONS;
            if !unrecorded {
                self.patch.extend(RECORD.set(self.before, &text).map(|(set, _)| set));
            }
        } else if RECORD.read(self.before).is_some() {
            self.patch.push(RECORD.unset());
        }
        let renamed = self.renamed.iter().map(|pointer| field(pointer)).collect();
        Outcome { patch: Patch(self.patch), renamed, holds: Vec::new(), unrecorded }
    }
}

/// Bytes that all annotations of an object may have together (`TotalAnnotationSizeLimitB` of apimachinery's validation).
const ANNOTATIONS: usize = 256 * 1024;
