//! The mutating webhook's decision.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use json_patch::jsonptr::PointerBuf;

use super::{
    Decision, Kind, Operation, Request, annotation_validation, ca_injection, carry_over, gateway_trust, keystores,
};
use crate::api::names::{CERTGEN_HASH, LOADED_HASH};
use crate::consumer;
use crate::json::Json;
use crate::registry::Registry;
use crate::rewrite::{PatchText, Write, rewrite};
use crate::trust::Certificate;

/// Rewrites a Gateway or workload to use the managed Secret, and adds CAs to the Secret of a declared client, or to one with the annotation
/// `trustspan.dev/carry-over`, unless the agent writes it. Never denies, and decides the same on a dry run.
pub fn mutate(request: &Request<'_>, registry: &Registry, now: Timestamp) -> Decision {
    let (Operation::Create | Operation::Update, "") = (request.operation, request.sub_resource) else {
        return Decision::default();
    };
    let Some(object) = request.object else { return Decision::default() };
    let old = request.old_object.filter(|_| request.operation == Operation::Update);
    if let Kind { group: "", version: "v1", kind: "Secret" } = request.kind {
        // Whatever the labels and annotations are that others give to what the agent writes: it would take out again what is added, and so on.
        let object = request.stored_object().filter(|_| !request.by_agent);
        let patch = object.map(|object| added_cas(object, old, request.namespace, registry, now));
        return Decision { patch: patch.unwrap_or_default(), ..Decision::default() };
    }
    let write = Write { kind: request.kind, namespace: request.namespace, object, old, by_agent: request.by_agent };
    let outcome = rewrite(&write, registry);
    let blocked = outcome.blockers.iter().map(|blocker| format!("not rewritten: {blocker}"));
    let unrecorded =
        outcome.unrecorded.then_some("annotations are full, so trustspan rewrite --undo cannot restore this object");
    let ca_sources = gateway_trust::notes(request.kind, object, request.namespace, registry);
    let interruption = (!request.by_agent).then(|| restart_interruption(object)).flatten();
    let notes = blocked.chain(unrecorded.map(str::to_owned)).chain(ca_sources).chain(interruption).collect();
    // Only a warning, whatever the severity of the rule: a Gateway or workload is never rejected for an annotation.
    let findings = annotation_validation::findings(request.kind, object, old);
    Decision { patch: outcome.patch, notes, findings, ..Decision::default() }
}

/// A warning that a restart leaves no ready pod of a workload, if a TrustConsumer or certgen restarts it: both leave an annotation in its pod
/// template.
fn restart_interruption(object: &Json<'_>) -> Option<String> {
    let annotations = &object["spec"]["template"]["metadata"]["annotations"];
    let is_restarted = [LOADED_HASH, CERTGEN_HASH].iter().any(|key| annotations[*key].is_string());
    let gap = is_restarted.then(|| consumer::gap(object))??;
    Some(format!("a restart leaves no ready pod: {gap}"))
}

/// The patch that adds CAs to a Secret.
fn added_cas(
    object: &Json<'_>,
    old: Option<&Json<'_>>,
    namespace: &str,
    registry: &Registry,
    now: Timestamp,
) -> PatchText {
    let injected = || ca_injection::wanted(object, old, namespace, registry, now).map(|cas| (ca_injection::KEY, cas));
    let carried = || carry_over::bundle(object, old?, namespace, registry, now);
    let Some((key, cas)) = injected().or_else(carried) else { return PatchText::default() };
    let text: String = cas.iter().map(Certificate::pem).collect();
    let mut patch = PatchText::add(PointerBuf::from_tokens(["data", key]).as_str(), &STANDARD.encode(text));
    keystores::render(object, old, &mut patch);
    patch
}
