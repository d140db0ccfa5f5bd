//! Where objects live: a cluster, or a directory of manifests. Both feed the same [`RegistryCache`] registry.

pub mod cluster;
pub mod directory;
pub mod manifest;
pub mod objects;
pub mod poll;
mod registry_cache;
pub mod watch;

pub use registry_cache::{RegistryCache, Unread};
