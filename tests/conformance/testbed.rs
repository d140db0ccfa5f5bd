//! The modules of the test bed that this binary uses: the real Envoy, child processes, waiting for conditions.

// Each test binary uses only a part of these modules.
#![allow(dead_code)]

#[path = "../bed/assets.rs"]
mod assets;
#[path = "../bed/envoy.rs"]
mod envoy;
#[path = "../bed/process.rs"]
mod process;
#[path = "../bed/wait.rs"]
mod wait;

pub(crate) use assets::exported;
pub(crate) use envoy::{Content, Envoy, Gateway};
pub(crate) use process::Scratch;
