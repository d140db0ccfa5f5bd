//! The decision on one admission request. Pure: the webhook and the CLI call the same two functions.

mod annotation_validation;
mod break_glass;
mod bundles;
mod ca_injection;
mod carry_over;
mod check;
mod connectivity;
mod delete_warnings;
mod gateway_secret;
mod gateway_trust;
mod guard;
mod keystores;
mod mutate;
mod owned_objects;
mod policies;
mod policy;
mod rules;
mod secret_checks;
mod secret_usage;
mod secret_write;
mod unknown_gateway_secret;
mod validate;

use crate::json::Json;
use crate::rewrite::PatchText;

pub use crate::api::Kind;
use crate::trust::{Finding, Severity, Verdict};
pub use break_glass::Override;
pub use check::{Context, check};
pub(crate) use guard::GATEWAY_KEYS;
pub use mutate::mutate;
pub use policies::policies;
pub(crate) use rules::INVALID_RESOURCE;
pub use rules::{RuleInfo, rules};
pub use validate::validate;

/// The fields of an AdmissionRequest (`admission.k8s.io/v1`) that decisions need.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// `request.operation`.
    pub operation: Operation,
    /// `request.kind`: the kind as sent to the webhook.
    pub kind: Kind<'a>,
    /// `request.subResource`; empty for the object itself.
    pub sub_resource: &'a str,
    /// Namespace of the request: the object of a CREATE may have none.
    pub namespace: &'a str,
    /// Name of the object; empty for `generateName`, and for each object of a `deletecollection`.
    pub name: &'a str,
    /// `userInfo.username`.
    pub username: &'a str,
    /// The user is trustspan's agent.
    pub by_agent: bool,
    /// The user may override rules, according to the API server (docs/adr/0006).
    pub may_break_glass: bool,
    /// The namespace has label `trustspan.dev/guard: enabled`, according to the API server (docs/guard.md).
    pub in_guarded_namespace: bool,
    /// Gateways take CAs from the object, according to the API server (docs/guard.md).
    pub decides_trust: bool,
    /// The new object; `None` for DELETE.
    pub object: Option<&'a Json<'a>>,
    /// The stored object; `None` for CREATE.
    pub old_object: Option<&'a Json<'a>>,
}

impl<'a> Request<'a> {
    /// The CREATE of an object by a user without special rights, in an unguarded namespace.
    pub fn create(object: &'a Json<'a>, namespace: &'a str) -> Self {
        Self {
            operation: Operation::Create,
            kind: Kind::of(object),
            sub_resource: "",
            namespace,
            name: object["metadata"]["name"].as_str().unwrap_or_default(),
            username: "",
            by_agent: false,
            may_break_glass: false,
            in_guarded_namespace: false,
            decides_trust: false,
            object: Some(object),
            old_object: None,
        }
    }

    /// The request with the name of its object, which the API server leaves out for each object of a `deletecollection`.
    pub(super) fn named(&self) -> Self {
        let object = self.object.or(self.old_object).filter(|_| self.name.is_empty());
        let name = object.and_then(|object| object["metadata"]["name"].as_str()).unwrap_or(self.name);
        Self { name, ..self.clone() }
    }

    /// The object that an allowed request stores. `None` for a deletion, and for one that only drains.
    pub(super) fn stored_object(&self) -> Option<&'a Json<'a>> {
        let is_write = matches!(self.operation, Operation::Create | Operation::Update);
        self.object.filter(|_| is_write && !self.is_draining())
    }

    /// Whether an object that is being deleted keeps its content, labels and annotations: its finalizers can be removed whatever these are.
    /// Its readers, such as gateways and istiod, load it until then, so another update is judged.
    ///
    /// A new object is not draining. Server-side apply can create one with a `metadata.deletionTimestamp` (measured with Kubernetes 1.36; any
    /// other create removes the field).
    pub(super) fn is_draining(&self) -> bool {
        let (Operation::Update, Some(object)) = (self.operation, self.object) else { return false };
        let Some(old) = self.old_object else { return false };
        let is_kept = |pointer: &&str| object.pointer(pointer) == old.pointer(pointer);
        object["metadata"]["deletionTimestamp"].is_string() && LOADED.iter().all(is_kept)
    }
}

#[cfg(test)]
impl<'a> Request<'a> {
    /// A write in the guarded namespace `mesh`, by a user without special rights: a CREATE, an UPDATE of an old object or, without a new one,
    /// a DELETE.
    pub(crate) fn fixture(kind: Kind<'a>, object: Option<&'a Json<'a>>, old_object: Option<&'a Json<'a>>) -> Self {
        let operation = match (object, old_object) {
            (Some(_), None) => Operation::Create,
            (Some(_), Some(_)) => Operation::Update,
            (None, _) => Operation::Delete,
        };
        let named = object.or(old_object).unwrap_or(&Json::Null);
        Self { operation, kind, in_guarded_namespace: true, object, old_object, ..Self::create(named, "mesh") }
    }
}

/// What readers take from an object of any kind that is judged, and what decides whether it is judged, as in `manifests/base/webhooks.yaml`.
const LOADED: [&str; 8] =
    ["/data", "/binaryData", "/type", "/immutable", "/spec", "/webhooks", "/metadata/labels", "/metadata/annotations"];

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `CREATE`.
    Create,
    /// `UPDATE`.
    Update,
    /// `DELETE`.
    Delete,
    /// `CONNECT` (`exec`, `proxy`): never judged.
    Connect,
}

/// The response to a request.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// Changes to the object; empty for none.
    pub patch: PatchText,
    /// Findings of rules. One with severity `deny` rejects the request; the others are warnings.
    pub findings: Vec<Finding>,
    /// Warnings that are not findings of a rule, such as the reason for which a rewrite is blocked. At most 120 characters each.
    pub notes: Vec<String>,
    /// Denials that were overridden.
    pub overrides: Vec<Override>,
}

impl Decision {
    /// The verdict of all findings together.
    pub fn verdict(&self) -> Verdict {
        Verdict::of(&self.findings)
    }

    /// The denials that were overridden; none if another one still rejects the request.
    pub fn effective_overrides(&self) -> &[Override] {
        if self.verdict() == Verdict::Deny { &[] } else { &self.overrides }
    }

    /// The findings that reject the request.
    pub fn denials(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| f.severity == Severity::Deny)
    }
}

#[cfg(test)]
mod tests;
