//! The modules of the test bed that this binary uses: the real Envoy, child processes, waiting for conditions, the seed.

// Each test binary uses only a part of these modules.
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

pub(crate) use envoy::{Content, Envoy, Gateway, PATIENCE, envoy_version};
pub(crate) use process::Scratch;
pub(crate) use seed::Seed;
pub(crate) use trials::run as run_trials;
pub(crate) use wait::wait_for;

/// The command that repeats a case.
pub(crate) fn again(case: &str) -> String {
    format!("TRUSTSPAN_SEED={} TRUSTSPAN_CASE={case} ./test envoy", Seed::number())
}

/// The directory for the bytes of disagreements.
pub(crate) fn results() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("envoy")
}
