//! Sources of objects: a cluster, or a directory of manifests. Both publish their GatewaySecrets in a [`RegistryCache`].
//! [`atomic_file`] writes files, [`certgen`] the objects of a certgen profile.

pub mod api_server;
pub mod atomic_file;
pub mod certgen;
pub mod cluster;
pub mod directory;
mod health_state;
pub mod manifest;
pub mod objects;
pub mod poll;
mod registry_cache;
pub(crate) mod signers;
pub mod watch;

pub use health_state::{CheckHandle, HealthState};
pub use registry_cache::{RegistryCache, Unread};
