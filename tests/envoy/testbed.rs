//! What this binary takes from the test bed: the real Envoy, processes that end with it, waiting for conditions, the seed.

// Each test binary uses its part of these.
#![allow(dead_code)]

#[path = "../bed/assets.rs"]
mod assets;
#[path = "../bed/envoy.rs"]
mod envoy;
#[path = "../bed/process.rs"]
mod process;
#[path = "../bed/seed.rs"]
mod seed;
#[path = "../bed/trials.rs"]
mod trials;
#[path = "../bed/wait.rs"]
mod wait;

pub(crate) use envoy::{Content, Envoy, Gateway, PATIENCE};
pub(crate) use process::Scratch;
pub(crate) use seed::Seed;
pub(crate) use trials::run as run_trials;
pub(crate) use wait::wait_for;
