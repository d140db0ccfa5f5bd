//! The mutating webhook's decision.

use super::{Decision, Operation, Request};
use crate::registry::Registry;
use crate::rewrite::{Write, rewrite};

/// Rewrites a Gateway or workload to name the managed Secret. Never denies; the same under dry-run.
pub fn mutate(request: &Request<'_>, registry: &Registry) -> Decision {
    let (Operation::Create | Operation::Update, "") = (request.operation, request.sub_resource) else {
        return Decision::default();
    };
    let Some(object) = request.object else { return Decision::default() };
    let old = request.old_object.filter(|_| request.operation == Operation::Update);
    let write = Write { kind: request.kind, namespace: request.namespace, object, old, by_agent: request.by_agent };
    let outcome = rewrite(&write, registry);
    let held = outcome.holds.iter().map(|hold| format!("not rewritten: {hold}"));
    let unrecorded =
        outcome.unrecorded.then_some("annotations are full: trustspan rewrite --undo will not restore this object");
    let notes = held.chain(unrecorded.map(str::to_owned)).collect();
    Decision { patch: outcome.patch, notes, ..Decision::default() }
}
