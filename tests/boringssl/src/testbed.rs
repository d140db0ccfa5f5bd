//! The modules of the test bed that the shared modules use: the real Envoy, child processes, waiting for conditions, the seed.

// This program uses only a part of these modules.
#![allow(dead_code)]

#[path = "../../bed/envoy.rs"]
mod envoy;
#[path = "../../bed/process.rs"]
mod process;
#[path = "../../bed/seed.rs"]
mod seed;
#[path = "../../bed/wait.rs"]
mod wait;

mod assets {
    use anyhow::{Context, Result};

    /// The variables that `./test` has exported before it started this program.
    pub(crate) fn exported<const N: usize>(_: &str, _: &[&str], variables: [&str; N]) -> Result<[String; N]> {
        let values = variables.map(|name| std::env::var(name).with_context(|| format!("{name} is not set")));
        let values = values.into_iter().collect::<Result<Vec<_>>>()?;
        values.try_into().map_err(|_| anyhow::anyhow!("expected {N} variables"))
    }
}

pub(crate) use envoy::{Content, Envoy, Gateway, PATIENCE};
pub(crate) use process::Scratch;
pub(crate) use seed::Seed;
pub(crate) use wait::wait_for;

/// The command that repeats a case.
pub(crate) fn again(case: &str) -> String {
    format!("TRUSTSPAN_SEED={} TRUSTSPAN_CASE={case} ./test boringssl", Seed::number())
}

/// The directory for the bytes of disagreements.
pub(crate) fn results() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/boringssl")
}
