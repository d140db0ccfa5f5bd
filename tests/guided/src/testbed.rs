//! Modules of other test binaries. Here, all their generators draw from the fuzzing input.

use std::cell::RefCell;

#[allow(unused_imports)] // Its seed: here, choices are read from an input.
#[path = "../../boringssl/src/testbed.rs"]
mod shared;

pub(crate) use crate::draw::Draw as Seed;
pub(crate) use shared::{Content, Envoy, Gateway, PATIENCE, Scratch, wait_for};

/// The folder of the repository.
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// How to repeat a case.
pub(crate) fn again(_case: &str) -> String {
    "with the input that libFuzzer writes".to_owned()
}

thread_local! {
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Sets the input of the next case.
pub(crate) fn set_input(bytes: &[u8]) {
    INPUT.replace(bytes.to_vec());
}

impl Seed {
    /// The choices of this case. Each purpose reads the input from its start.
    pub(crate) fn of_run(_purpose: &str) -> Self {
        INPUT.with_borrow(|input| Self::new(input))
    }
}

/// The directory for the bytes of disagreements.
pub(crate) fn results() -> std::path::PathBuf {
    std::path::Path::new(ROOT).join("target/guided/boringssl")
}
