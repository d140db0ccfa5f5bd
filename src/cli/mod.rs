//! The command line: one file for each subcommand.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub mod agent;
pub mod check;
mod cluster_args;
pub mod completions;
mod controller_args;
pub mod crd;
mod diff;
pub mod extend_trust;
pub mod init;
mod inputs;
mod log;
pub mod observe;
pub mod rbac;
pub mod rewrite;
pub mod rotate;
pub mod rules;
mod sanitize;
pub mod serve;
mod severity;
pub mod status;
pub mod verify;
pub mod wait;

pub use inputs::{Failure, Inputs};

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
    /// Carries rotations through.
    Agent(agent::Args),
    /// Judges manifests as the validating webhook would.
    Check(check::Args),
    /// Prints manifests as the mutating webhook would leave them.
    Rewrite(rewrite::Args),
    /// Prints GatewaySecrets with the status that the manifests show.
    Observe(observe::Args),
    /// Proposes GatewaySecrets for the Gateways that are there.
    Init(init::Args),
    /// Print the rights that the agent needs for GatewaySecrets and TrustConsumers.
    Rbac(rbac::Args),
    /// Show rotation status.
    Status(status::Args),
    /// Wait for a rotation to reach a phase.
    Wait(wait::Args),
    /// Starts a rotation.
    Rotate(rotate::Args),
    /// Add the CAs of a managed Secret to another object from which gateways take their clients' CAs.
    ExtendTrust(extend_trust::Args),
    /// Tells whether a gateway or a client would accept a certificate chain.
    Verify(verify::Args),
    /// Lists the rules that findings name.
    Rules(rules::Args),
    /// Prints the GatewaySecret CustomResourceDefinition.
    Crd(crd::Args),
    /// Prints a shell's completion script.
    Completions(completions::Args),
}

/// Runs the command that the process was started with. Usage errors end it with code 2.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => end(serve::run(args), 1),
        Command::Agent(args) => end(agent::run(args), 1),
        Command::Check(args) => end(check::run(args), 2),
        Command::Rewrite(args) => end(rewrite::run(args), 2),
        Command::Observe(args) => end(observe::run(args), 2),
        Command::Init(args) => end(init::run(args), 2),
        Command::Rbac(args) => end(rbac::run(args), 2),
        Command::Status(args) => end(status::run(args), 2),
        Command::Wait(args) => end(wait::run(args), 2),
        Command::Rotate(args) => end(rotate::run(args), 2),
        Command::ExtendTrust(args) => end(extend_trust::run(args), 2),
        Command::Verify(args) => end(verify::run(args), 2),
        Command::Rules(args) => end(rules::run(args), 2),
        Command::Crd(args) => end(crd::run(args), 2),
        Command::Completions(args) => end(completions::run(args), 2),
    }
}

/// One sentence on stderr for an error, and the code that the subcommand promises for it.
fn end<E: std::error::Error>(result: Result<ExitCode, E>, code: u8) -> ExitCode {
    result.unwrap_or_else(|error| {
        anstream::eprintln!("error: {}", sanitize::printable_lines(&error.to_string()));
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
