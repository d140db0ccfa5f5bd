//! What all GatewaySecrets together claim: which root is renamed to which managed Secret, and where that is allowed now.

use crate::api::{GatewaySecretSpec, GatewaySecretStatus};
use jiff::Timestamp;

/// A GatewaySecret as the registry takes it: identity, spec and status, without the rest of the object.
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

/// A snapshot of all GatewaySecrets. Cheap to build and to read; memory grows with GatewaySecrets, never with Secrets.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    entries: Vec<Entry>,
}

impl Registry {
    /// Builds the snapshot.
    pub fn new(entries: impl IntoIterator<Item = Entry>) -> Self {
        Self { entries: entries.into_iter().collect() }
    }

    /// The GatewaySecrets.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}
