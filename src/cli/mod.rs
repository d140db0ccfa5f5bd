//! The command line: one file for each subcommand.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub mod serve;

/// Rotates the CA behind Istio gateways without one failed handshake.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answers admission requests.
    Serve(serve::Args),
}

/// Runs the command that the process was started with. Usage errors end it with code 2.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => end(serve::run(args), 1),
    }
}

/// One sentence on stderr for an error, and the code that the subcommand promises for it.
fn end<E: std::error::Error>(result: Result<ExitCode, E>, code: u8) -> ExitCode {
    result.unwrap_or_else(|error| {
        anstream::eprintln!("error: {error}");
        ExitCode::from(code)
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
