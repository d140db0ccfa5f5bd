//! Sources of objects: a cluster, or a directory of manifests. Both publish their GatewaySecrets in a [`RegistryCache`].
//! [`atomic_file`] writes files.

pub mod atomic_file;
pub mod cluster;
pub mod directory;
pub mod manifest;
pub mod objects;
pub mod poll;
mod registry_cache;
pub mod watch;

pub use registry_cache::{RegistryCache, Unread};
