//! The command line of `trustspan-node`, which runs where files and keys are used: one module per subcommand. It has its own image and
//! rights, and nothing else imports it.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::cli;

pub mod approve;
mod health_port;
pub mod identity;
pub mod mirror;

/// Keep certificates in files on a node.
#[derive(Debug, Parser)]
#[command(name = "trustspan-node", version = crate::VERSION, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Help texts are on the `Args` of each subcommand.
#[derive(Debug, Subcommand)]
enum Command {
    Mirror(mirror::Args),
    Identity(identity::Args),
    Approve(approve::Args),
}

/// Parses the arguments and runs the subcommand. A usage error ends the process with exit code 2.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Mirror(args) => cli::end(mirror::run(args), 1),
        Command::Identity(args) => cli::end(identity::run(args), 1),
        Command::Approve(args) => cli::end(approve::run(args), 1),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
