//! Builds the patch of a rewrite, with the record for undoing it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::iter::zip;

use json_patch::{Patch, PatchOperation};

use super::Outcome;
use super::annotation::{ANNOTATIONS, HASH, RECORD, replace};
use super::kinds::Reference;
use super::patch_text::{write_list, write_operation, write_text_at};
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

    /// Sets the rotation hash.
    pub(super) fn annotate(&mut self, hash: Option<String>) {
        self.hash = hash.and_then(|hash| HASH.set(self.before, hash));
    }

    /// Completes the patch with the record for undoing it.
    pub(super) fn finish(self) -> Outcome {
        let Self { before, references, chosen, hash } = self;
        let change = |(reference, chosen): (&'a Reference<'a>, Option<String>)| {
            (reference, chosen.map(|chosen| (reference.node.pointer(), chosen)))
        };
        let changes: Vec<_> = zip(references, chosen).map(change).collect();
        let known = recorded(before);
        let mut record = recorded_names(&changes, &known);
        let (hash, unhash) = hash.unzip();
        if unhash.is_some() || HASH.read(before).is_some() {
            // Undoing restores the value before the first rewrite, not the one before this rewrite.
            record.extend(known.iter().find(|entry| HASH.owns(entry)).cloned().or(unhash).map(Recorded::Annotation));
        }
        let (mut unrecorded, mut set_record) = (false, None);
        if !record.is_empty() {
            let owned = known.iter().find(|entry| RECORD.owns(entry)).cloned();
            record.extend(owned.or_else(|| RECORD.removes_map(before)).map(Recorded::Annotation));
            // With room for a usual operation each, so that the text seldom has to grow.
            let mut text = String::with_capacity(128 * record.len());
            write_list(&mut text, &record, |text, entry| entry.write(text));
            unrecorded = RECORD.size_with(before, &text) > ANNOTATIONS;
            set_record = RECORD.set(before, text).filter(|_| !unrecorded).map(|(set, _)| set);
        } else if RECORD.read(before).is_some() {
            set_record = Some(RECORD.unset());
        }
        let renames = changes.into_iter().filter_map(|(_, change)| change);
        let mut patch: Vec<_> = renames.map(|(pointer, chosen)| replace(pointer, chosen.into())).collect();
        let (renames, rehashes) = (patch.len(), hash.is_some());
        patch.extend(hash.into_iter().chain(set_record));
        Outcome { patch: Patch(patch), renames, rehashes, blockers: Vec::new(), unrecorded }
    }
}

/// An operation of a record.
enum Recorded<'r> {
    /// On a field that names a Secret or ConfigMap.
    Name { op: &'static str, path: Cow<'r, str>, value: &'r str },
    /// On an annotation.
    Annotation(PatchOperation),
}

impl Recorded<'_> {
    fn write(&self, out: &mut String) {
        match self {
            Self::Name { op, path, value } => write_text_at(out, op, path, value),
            Self::Annotation(operation) => write_operation(out, operation),
        }
    }
}

/// The record that restores the names, including those of earlier writes. Stops once it cannot fit.
fn recorded_names<'r>(
    changes: &'r [(&Reference<'r>, Option<(String, String)>)],
    known: &'r [PatchOperation],
) -> Vec<Recorded<'r>> {
    // The first record of a path counts. The records are indexed by path, since a hostile object has thousands of records and references.
    let mut earlier: HashMap<_, Vec<_>> = HashMap::new();
    names(known).for_each(|name| earlier.entry(name.pointer).or_default().push(name));
    let (mut record, mut least) = (Vec::new(), 0);
    for (reference, change) in changes {
        let (path, written, restored) = match change {
            Some((pointer, chosen)) => (Cow::from(pointer), chosen.as_str(), reference.node.text().unwrap_or_default()),
            None if earlier.is_empty() => continue,
            // The record of an earlier rename stays while the field still has the name that the rename wrote.
            None => {
                let pointer = reference.node.pointer();
                let same_path = earlier.get(pointer.as_str()).into_iter().flatten();
                let Some(name) = same_path.clone().find(|name| reference.is(name.written)) else { continue };
                (Cow::from(pointer), name.written, name.restored)
            }
        };
        least += 2 * path.len();
        record.extend([("test", written), ("replace", restored)].map(|(op, value)| Recorded::Name {
            op,
            path: path.clone(),
            value,
        }));
        if least > ANNOTATIONS {
            break;
        }
    }
    record
}
