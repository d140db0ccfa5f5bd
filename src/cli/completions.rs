//! `trustspan completions`.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use super::inputs::unless_closed;
use super::{Cli, Failure};

/// Print a shell completion script.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell to complete for.
    shell: Shell,
}

/// Runs the subcommand.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    // The generator panics when a write fails (a closed pipe), so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "trustspan", &mut script);
    unless_closed(io::stdout().lock().write_all(&script).map(|()| ExitCode::SUCCESS).map_err(Failure::from))
}
