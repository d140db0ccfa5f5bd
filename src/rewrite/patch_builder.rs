//! Builds the patch of a rewrite, with the record for undoing it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::iter::zip;

use json_patch::{Patch, PatchOperation};

use super::Outcome;
use super::annotation::{ANNOTATIONS, HASH, RECORD, replace, test};
use super::kinds::Reference;
use super::undo::{names, recorded};
use crate::json::Json;

pub(super) struct PatchBuilder<'a> {
    before: &'a Json<'a>,
    references: &'a [Reference<'a>],
    /// The new value of each reference.
    chosen: Vec<Option<String>>,
    /// The operation that sets the hash, and its inverse.
    hash: Option<(PatchOperation, PatchOperation)>,
}

impl<'a> PatchBuilder<'a> {
    /// Sets references to the values that `choose` returns.
    pub(super) fn new(
        before: &'a Json<'a>,
        references: &'a [Reference<'a>],
        choose: impl FnMut(&Reference<'a>) -> Option<String>,
    ) -> Self {
        Self { before, references, chosen: references.iter().map(choose).collect(), hash: None }
    }

    /// The pod template with the new names.
    pub(super) fn template(&self) -> Cow<'a, Json<'a>> {
        let mut template = Cow::Borrowed(&self.before["spec"]["template"]);
        for (reference, chosen) in zip(self.references, &self.chosen) {
            let Some(chosen) = chosen else { continue };
            if let Some(place) = reference.node.found_below(["spec", "template"], template.to_mut()) {
                *place = Json::Text(chosen.clone().into());
            }
        }
        template
    }

    /// Sets the rotation hash.
    pub(super) fn annotate(&mut self, hash: Option<String>) {
        self.hash = hash.and_then(|hash| HASH.set(self.before, &hash));
    }

    /// Completes the patch with the record for undoing it.
    pub(super) fn finish(self) -> Outcome {
        let known = recorded(self.before);
        let mut record = self.record(&known);
        let (hash, unhash) = self.hash.unzip();
        if unhash.is_some() || HASH.read(self.before).is_some() {
            // Undoing restores the value before the first rewrite, not the one before this rewrite.
            record.extend(known.iter().find(|entry| HASH.owns(entry)).cloned().or(unhash));
        }
        let changes = zip(self.references, self.chosen);
        let renames = changes.filter_map(|(reference, value)| Some(replace(reference.node.pointer(), value?.into())));
        let mut patch: Vec<_> = renames.collect();
        let (renames, rehashes, mut unrecorded) = (patch.len(), hash.is_some(), false);
        patch.extend(hash);
        if !record.is_empty() {
            let created_map = RECORD.set(self.before, "").map(|(_, unset)| unset).filter(|unset| !RECORD.is_at(unset));
            record.extend(known.iter().find(|entry| RECORD.owns(entry)).cloned().or(created_map));
            let text = serde_json::to_string(&record).ok();
            let text = text.filter(|text| RECORD.size_with(self.before, text) <= ANNOTATIONS);
            unrecorded = text.is_none();
            patch.extend(text.and_then(|text| RECORD.set(self.before, &text)).map(|(set, _)| set));
        } else if RECORD.read(self.before).is_some() {
            patch.push(RECORD.unset());
        }
        Outcome { patch: Patch(patch), renames, rehashes, blockers: Vec::new(), unrecorded }
    }

    /// The record that restores the names, including those of earlier writes. Stops once it cannot fit.
    fn record(&self, known: &[PatchOperation]) -> Vec<PatchOperation> {
        // The first record of a path counts. The records are indexed by path, since a hostile object has thousands of
        // records and references.
        let mut earlier: HashMap<_, Vec<_>> = HashMap::new();
        names(known).for_each(|name| earlier.entry(name.pointer).or_default().push(name));
        let (mut record, mut least) = (Vec::new(), 0);
        for (reference, chosen) in zip(self.references, &self.chosen) {
            if chosen.is_none() && earlier.is_empty() {
                continue;
            }
            let pointer = reference.node.pointer();
            let pair = match chosen {
                Some(chosen) => {
                    let restore = reference.renamed(reference.name);
                    [test(&pointer, chosen.as_str().into()), replace(&pointer, restore.into())]
                }
                // The record of an earlier rename stays while the field still has the name that the rename wrote.
                None => {
                    let all = earlier.get(pointer.as_str());
                    let earlier = all.and_then(|all| all.iter().find(|name| reference.is(name.written)));
                    let Some(earlier) = earlier else { continue };
                    [test(&pointer, earlier.written.into()), earlier.restore.clone()]
                }
            };
            record.extend(pair);
            least += 2 * pointer.len();
            if least > ANNOTATIONS {
                break;
            }
        }
        record
    }
}
