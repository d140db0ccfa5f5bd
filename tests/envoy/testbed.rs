//! What this binary takes from the test bed: processes that end with it, waiting for conditions, the seed.

// Each test binary uses its part of these.
#![allow(dead_code)]

#[path = "../bed/process.rs"]
mod process;
#[path = "../bed/seed.rs"]
mod seed;
#[path = "../bed/wait.rs"]
mod wait;

pub(crate) use process::{Process, Scratch};
pub(crate) use seed::Seed;
pub(crate) use wait::{free_port, wait_for};
