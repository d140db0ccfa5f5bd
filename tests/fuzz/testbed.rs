//! Modules of other test binaries. Here, their generators draw from a fuzzing input.

#[path = "../bed/seed.rs"]
mod seed;

pub(crate) use crate::draw::Draw as Seed;
pub(crate) use seed::Seed as RunSeed;

/// The folder of the repository.
pub(crate) const ROOT: &str = env!("CARGO_MANIFEST_DIR");
