//! The objects that a run reads, and the changes that it makes.

use std::collections::BTreeMap;

use serde_json::Value;

/// A kind of object that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ObjectKind {
    /// `v1`, in the namespace.
    Secret,
    /// `apps/v1`, in the namespace.
    Deployment,
    /// `admissionregistration.k8s.io/v1`, of the cluster.
    MutatingWebhookConfiguration,
    /// `admissionregistration.k8s.io/v1`, of the cluster.
    ValidatingWebhookConfiguration,
}

impl ObjectKind {
    /// Group, version and kind.
    pub fn gvk(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Secret => ("", "v1", "Secret"),
            Self::Deployment => ("apps", "v1", "Deployment"),
            Self::MutatingWebhookConfiguration => {
                ("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration")
            }
            Self::ValidatingWebhookConfiguration => {
                ("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration")
            }
        }
    }

    /// Whether its objects are in a namespace.
    pub fn is_namespaced(self) -> bool {
        matches!(self, Self::Secret | Self::Deployment)
    }
}

/// An object by kind and name. All of a run are in one namespace, or in none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name.
    pub name: String,
}

impl ObjectRef {
    /// A reference.
    pub fn new(kind: ObjectKind, name: &str) -> Self {
        Self { kind, name: name.to_owned() }
    }

    /// A reference to a Secret.
    pub fn secret(name: &str) -> Self {
        Self::new(ObjectKind::Secret, name)
    }
}

impl std::fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind.gvk().2, self.name)
    }
}

/// The objects that exist in the cluster. Has no `Debug`, since Secrets hold private keys.
#[derive(Clone, Default)]
pub struct Objects(pub BTreeMap<ObjectRef, Value>);

impl Objects {
    /// An object, if it exists.
    pub fn get(&self, kind: ObjectKind, name: &str) -> Option<&Value> {
        self.0.get(&ObjectRef::new(kind, name))
    }

    /// Applies a change to these objects, as the API server would.
    pub fn apply(&mut self, change: Change) {
        match change.action {
            Action::Create(object) => drop(self.0.insert(change.target, object)),
            Action::Patch(patch) => {
                if let Some(object) = self.0.get_mut(&change.target) {
                    json_patch::merge(object, &patch);
                }
            }
            Action::Delete => drop(self.0.remove(&change.target)),
        }
    }
}

/// A write of one object. Has no `Debug`, since Secrets hold private keys.
pub struct Change {
    /// The object.
    pub target: ObjectRef,
    /// `metadata.resourceVersion` that it was computed from: if the object has another one, the write is rejected.
    pub resource_version: Option<String>,
    /// How the object is written.
    pub action: Action,
}

/// A kind of write.
pub enum Action {
    /// Create the object.
    Create(Value),
    /// Apply a merge patch (RFC 7396).
    Patch(Value),
    /// Delete the object.
    Delete,
}

impl Change {
    /// A change that creates an object.
    pub(super) fn create(target: ObjectRef, object: Value) -> Self {
        Self { target, resource_version: None, action: Action::Create(object) }
    }

    /// A change that patches an object, unless it has changed since it was read.
    pub(super) fn patch(target: ObjectRef, object: &Value, patch: Value) -> Self {
        Self { target, resource_version: resource_version(object), action: Action::Patch(patch) }
    }

    /// A change that deletes an object, unless it has changed since it was read.
    pub(super) fn delete(target: ObjectRef, object: &Value) -> Self {
        Self { target, resource_version: resource_version(object), action: Action::Delete }
    }
}

fn resource_version(object: &Value) -> Option<String> {
    object["metadata"]["resourceVersion"].as_str().map(str::to_owned)
}
