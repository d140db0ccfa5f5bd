//! One admission request to one decision. Pure: the webhook and the CLI call the same two functions.

mod annotation_validation;
mod break_glass;
mod bundles;
mod ca_injection;
mod carry_over;
mod check;
mod connectivity;
mod delete_warnings;
mod gateway_trust;
mod guard;
mod managed_name;
mod mutate;
mod owned_objects;
mod policy;
mod rules;
mod secret_role;
mod spec_change;
mod unknown_gateway_secret;
mod validate;

use json_patch::Patch;
use serde_json::Value;

pub use crate::api::Kind;
use crate::trust::{Finding, Severity, Verdict};
pub use break_glass::Override;
pub use check::{Context, check};
pub(crate) use guard::GATEWAY_KEYS;
pub use mutate::mutate;
pub(crate) use rules::INVALID_RESOURCE;
pub use rules::{RuleInfo, rules};
pub use validate::validate;

/// What the API server asks about (`admission.k8s.io/v1` AdmissionRequest), as far as decisions need it.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// What is being done.
    pub operation: Operation,
    /// `request.kind`: the kind as sent to the webhook.
    pub kind: Kind<'a>,
    /// `request.subResource`; empty for the object itself.
    pub sub_resource: &'a str,
    /// Namespace of the request (an object in a CREATE may leave its own out).
    pub namespace: &'a str,
    /// Name; empty for `generateName`.
    pub name: &'a str,
    /// `userInfo.username`.
    pub username: &'a str,
    /// The user is trustspan's own agent.
    pub by_agent: bool,
    /// The API server has found that the user may override rules (docs/adr/0006).
    pub may_break_glass: bool,
    /// The API server has found that the namespace has label `trustspan.dev/guard: enabled` (docs/guard.md).
    pub in_guarded_namespace: bool,
    /// The object as it shall be; `None` for DELETE.
    pub object: Option<&'a Value>,
    /// The object as it is; `None` for CREATE.
    pub old_object: Option<&'a Value>,
}

impl<'a> Request<'a> {
    /// The CREATE of an object by a user without rights, in a namespace without a guard.
    pub fn create(object: &'a Value, namespace: &'a str) -> Self {
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
            object: Some(object),
            old_object: None,
        }
    }

    /// Whether the object is on its way out: its finalizers can be taken off whatever it holds.
    ///
    /// A new object never is. One that server-side apply creates with a `metadata.deletionTimestamp` is stored with it
    /// (measured with 1.36; any other create takes it off), and gateways read it as they read any other.
    pub(super) fn is_being_deleted(&self) -> bool {
        self.operation == Operation::Update
            && self.object.is_some_and(|object| object["metadata"]["deletionTimestamp"].is_string())
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A new object.
    Create,
    /// A change of an object.
    Update,
    /// The end of an object.
    Delete,
    /// A connection (`exec`, `proxy`): never judged.
    Connect,
}

/// What to answer.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// Changes to owned fields; empty when nothing changes.
    pub patch: Patch,
    /// What rules found. A `deny` among them refuses the request; the others are warnings.
    pub findings: Vec<Finding>,
    /// Warnings that are not findings of a rule, e.g. why a rewrite was held back. One sentence each, at most 120 characters.
    pub notes: Vec<String>,
    /// Denials that were turned into warnings.
    pub overrides: Vec<Override>,
}

impl Decision {
    /// The verdict that the findings add up to.
    pub fn verdict(&self) -> Verdict {
        Verdict::of(&self.findings)
    }

    /// The findings that refuse the request.
    pub fn denials(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| f.severity == Severity::Deny)
    }
}

#[cfg(test)]
mod tests;
