//! The record of a rewrite: a JSON Patch in an annotation, by which `rewrite --undo` restores what the user wrote,
//! without a cluster and without the GatewaySecret.

use json_patch::{Patch, PatchOperation};
use serde_json::Value;

use super::annotation::{HASH, RECORD};

/// The patch that takes the rewrite of an object back; `None` when the object carries no record of one.
pub fn undo(object: &Value) -> Option<Patch> {
    RECORD.read(object)?;
    let record = recorded(object);
    let mut patch: Vec<_> = record.iter().filter(|entry| restores_name(entry, object)).cloned().collect();
    if let Some(inverse) = record.iter().find(|entry| HASH.owns(entry))
        && HASH.read(object).is_some()
    {
        patch.push(HASH.restore(object, inverse));
    }
    let inverse = record.iter().find(|entry| RECORD.owns(entry)).cloned().unwrap_or_else(|| RECORD.unset());
    patch.push(RECORD.restore(object, &inverse));
    Some(Patch(patch))
}

/// The record that an object carries; empty when there is none that can be read.
pub(super) fn recorded(object: &Value) -> Vec<PatchOperation> {
    RECORD.read(object).and_then(|text| serde_json::from_str::<Patch>(text).ok()).unwrap_or_default().0
}

fn restores_name(entry: &PatchOperation, object: &Value) -> bool {
    let PatchOperation::Replace(replace) = entry else { return false };
    let about_maps = HASH.owns(entry) || RECORD.owns(entry);
    !about_maps && replace.value.is_string() && object.pointer(replace.path.as_str()).is_some_and(Value::is_string)
}
