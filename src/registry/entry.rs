//! A GatewaySecret as the registry takes it.

use jiff::Timestamp;

use crate::api::{GatewaySecretSpec, GatewaySecretStatus};

/// Identity, spec and status of a GatewaySecret, without the rest of the object.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `metadata.creationTimestamp`: of two that claim the same name, the older wins. `None` (a manifest) counts as newest.
    pub created: Option<Timestamp>,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// Spec.
    pub spec: GatewaySecretSpec,
    /// Status.
    pub status: GatewaySecretStatus,
}

impl Entry {
    /// The root Secret's name.
    pub fn root_name(&self) -> &str {
        &self.spec.root_secret_name
    }

    /// The managed Secret's name.
    pub fn managed_name(&self) -> &str {
        self.spec.managed_name(&self.name)
    }

    /// Sorts the oldest first; name and namespace decide between equals, so that every replica comes to the same order.
    pub(super) fn seniority(&self) -> (bool, Option<Timestamp>, &str, &str) {
        (self.created.is_none(), self.created, &self.name, &self.namespace)
    }
}
