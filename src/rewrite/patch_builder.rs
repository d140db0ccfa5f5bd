//! Builds the patch of a rewrite, with the record for undoing it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::iter::zip;

use json_patch::PatchOperation;

use super::Outcome;
use super::annotation::{ANNOTATIONS, AnnotationPlace, HASH, RECORD};
use super::kinds::Reference;
use super::patch_text::PatchText;
use super::undo::{names, recorded};
use crate::json::Json;

pub(super) struct PatchBuilder<'a> {
    before: &'a Json<'a>,
    references: &'a [Reference<'a>],
    /// The new value of each reference.
    chosen: Vec<Option<String>>,
    /// The hash, and where it is set.
    hash: Option<(AnnotationPlace<'a>, String)>,
}

impl<'a> PatchBuilder<'a> {
    /// Sets references to the values that `choose` returns.
    pub(super) fn new(
        before: &'a Json<'a>,
        references: &'a [Reference<'a>],
        choose: impl FnMut(&'a Reference<'a>) -> Option<String>,
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

    /// Sets the rotation hash, unless that is its value.
    pub(super) fn annotate(&mut self, hash: Option<String>) {
        let set = |hash: String| Some((HASH.place(self.before).filter(|place| place.text() != Some(&*hash))?, hash));
        self.hash = hash.and_then(set);
    }

    /// Completes the patch with the record for undoing it.
    pub(super) fn finish(self) -> Outcome {
        let Self { before, references, chosen, hash } = self;
        let known = recorded(before);
        let (mut patch, mut record) = (PatchText::default(), PatchText::in_string());
        let renamed = rename(references, &chosen, &known, &mut patch, &mut record);
        if let Some((place, hash)) = &hash {
            place.set(&mut patch, |patch| patch.quoted(hash));
        }
        if hash.is_some() || HASH.read(before).is_some() {
            // Undoing restores the value before the first rewrite, not the one before this rewrite.
            match known.iter().find(|entry| HASH.owns(entry)) {
                Some(first) => record.push(first),
                None => hash.iter().for_each(|(place, _)| place.restore(&mut record)),
            }
        }
        let mut unrecorded = false;
        if !record.is_empty() {
            let place = RECORD.place(before);
            match known.iter().find(|entry| RECORD.owns(entry)) {
                Some(first) => record.push(first),
                // The map in which the record is set is removed, too.
                None => place.iter().filter(|p| !p.missing.is_empty()).for_each(|p| p.restore(&mut record)),
            }
            let is_too_large = |bytes| RECORD.size_with(before, bytes) > ANNOTATIONS;
            unrecorded = is_too_large(record.as_str().len()) && is_too_large(record.unescaped().len());
            let place = place.filter(|place| !unrecorded && place.text().is_none_or(|old| old != record.unescaped()));
            if let Some(place) = place {
                place.set(&mut patch, |patch| patch.nested(&record));
            }
        } else if RECORD.read(before).is_some() {
            patch.remove(&RECORD.pointer());
        }
        Outcome { patch, renamed, rehashes: hash.is_some(), blockers: Vec::new(), unrecorded }
    }
}

/// Writes the patch that sets the chosen names, and the record that restores them, with those of earlier writes. Returns the JSON Pointers of
/// the names that are set.
fn rename(
    references: &[Reference<'_>],
    chosen: &[Option<String>],
    known: &[PatchOperation],
    patch: &mut PatchText,
    record: &mut PatchText,
) -> Vec<String> {
    // The first record of a path counts. The records are indexed by path, since a hostile object has thousands of records and references.
    let mut earlier: HashMap<_, Vec<_>> = HashMap::new();
    names(known).for_each(|name| earlier.entry(name.pointer).or_default().push(name));
    let mut renamed = Vec::new();
    for (reference, chosen) in zip(references, chosen) {
        if chosen.is_none() && earlier.is_empty() {
            continue;
        }
        let pointer = reference.node.pointer();
        let (written, restored) = match chosen {
            Some(chosen) => {
                patch.set("replace", &pointer, chosen);
                (chosen.as_str(), reference.node.text().unwrap_or_default())
            }
            // The record of an earlier rename stays while the field still has the name that the rename wrote.
            None => {
                let mut same_path = earlier.get(pointer.as_str()).into_iter().flatten();
                let Some(name) = same_path.find(|name| reference.is(name.written)) else { continue };
                (name.written, name.restored)
            }
        };
        // Without its escapes it has at least half of the bytes: beyond that, it cannot fit.
        if record.as_str().len() <= 2 * ANNOTATIONS {
            record.set("test", &pointer, written);
            record.set("replace", &pointer, restored);
        }
        if chosen.is_some() {
            renamed.push(pointer);
        }
    }
    renamed
}
