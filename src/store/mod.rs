//! Where objects live: a cluster, or a directory of manifests. Both feed the same [`Live`] registry.

pub mod cluster;
pub mod directory;
mod live;
pub mod manifest;
pub mod objects;
pub mod poll;
pub mod watch;

pub use live::{Live, Unread};
