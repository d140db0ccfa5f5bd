//! `trustspan crd`.

use std::io::{self, Write};
use std::process::ExitCode;

use super::Failure;
use super::inputs::unless_closed;

/// The CustomResourceDefinitions. A test generates them from `crate::api`, since the generator would be a megabyte of code.
pub(super) const DEFINITIONS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/base/crd.yaml"));

/// Print the CustomResourceDefinitions.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the subcommand.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(_args: Args) -> Result<ExitCode, Failure> {
    unless_closed(
        io::stdout().lock().write_all(DEFINITIONS.as_bytes()).map(|()| ExitCode::SUCCESS).map_err(Failure::from),
    )
}
