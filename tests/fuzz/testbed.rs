//! What this binary takes from the other test binaries. Their generators draw from a fuzzing input here.

#[path = "../bed/seed.rs"]
mod seed;

pub(crate) use crate::draw::Draw as Seed;
pub(crate) use seed::Seed as RunSeed;
