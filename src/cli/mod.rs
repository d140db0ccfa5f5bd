//! The command line: one file per subcommand.

use std::ffi::OsString;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub mod agent;
pub mod certgen;
pub mod check;
mod cluster_args;
pub mod completions;
mod consent;
pub(crate) mod controller_args;
pub mod crd;
mod diff;
pub mod extend_trust;
pub mod init;
mod inputs;
mod kube_args;
pub(crate) mod log;
pub mod observe;
pub mod policies;
pub mod preflight;
pub mod rbac;
pub mod rewrite;
pub mod rotate;
pub mod rules;
pub mod serve;
mod service_account;
mod severity;
mod state_args;
pub mod status;
pub mod uninstall;
pub mod verify;
pub mod verify_install;
pub mod wait;

pub use inputs::{Failure, Inputs};

/// Rotate the CA behind Istio gateways without a failed handshake.
#[derive(Debug, Parser)]
#[command(version = crate::VERSION)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// In the order of the help: processes, rotation, manifests, reference. Help texts are on the `Args` of each subcommand.
#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Agent(agent::Args),

    Init(init::Args),
    Rbac(rbac::Args),
    Status(status::Args),
    Rotate(rotate::Args),
    Wait(wait::Args),
    ExtendTrust(extend_trust::Args),
    Certgen(certgen::Args),
    Preflight(preflight::Args),
    VerifyInstall(verify_install::Args),
    Uninstall(uninstall::Args),

    Check(check::Args),
    Rewrite(rewrite::Args),
    Observe(observe::Args),
    Verify(verify::Args),

    Rules(rules::Args),
    Crd(crd::Args),
    Policies(policies::Args),
    Completions(completions::Args),
}

/// Parses the arguments and runs the subcommand. A usage error ends the process with exit code 2.
pub fn main() -> ExitCode {
    let mut command = Cli::command();
    if is_plugin(std::env::args_os().next()) {
        command = command.bin_name(PLUGIN);
    }
    let cli = Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    match cli.command {
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
        Command::Certgen(args) => end(certgen::run(args), 1),
        Command::Verify(args) => end(verify::run(args), 2),
        Command::Preflight(args) => end(preflight::run(args), 2),
        Command::VerifyInstall(args) => end(verify_install::run(args), 2),
        Command::Uninstall(args) => end(uninstall::run(args), 2),
        Command::Rules(args) => end(rules::run(args), 2),
        Command::Crd(args) => end(crd::run(args), 2),
        Command::Policies(args) => end(policies::run(args), 2),
        Command::Completions(args) => end(completions::run(args), 2),
    }
}

/// How a user runs a plugin of kubectl.
const PLUGIN: &str = "kubectl trustspan";

/// Whether the program is run by kubectl, by the name under which it finds plugins.
fn is_plugin(program: Option<OsString>) -> bool {
    let program = program.map(PathBuf::from);
    program.is_some_and(|program| program.file_stem().is_some_and(|name| name == "kubectl-trustspan"))
}

/// Runs a process until it ends. Threads that are still busy then are not waited for.
pub(crate) fn block_on<T, E: From<std::io::Error>>(main: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let end = runtime.block_on(erased(main));
    runtime.shutdown_background();
    end
}

/// Runs a process on this thread until it ends.
pub(crate) fn block_on_this_thread<T, E: From<std::io::Error>>(
    main: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(erased(main))
}

/// Without its type, of which the runtime would have a copy for each way in which it polls.
fn erased<'f, T>(future: impl Future<Output = T> + 'f) -> Pin<Box<dyn Future<Output = T> + 'f>> {
    Box::pin(future)
}

/// Prints an error to stderr and returns the exit code that the subcommand documents for errors.
pub(crate) fn end<E: std::error::Error>(result: Result<ExitCode, E>, code: u8) -> ExitCode {
    result.unwrap_or_else(|error| {
        anstream::eprintln!("error: {}", crate::text::printable_lines(&error.to_string()));
        ExitCode::from(code)
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn a_plugin_is_known_by_its_name() {
        let is_plugin = |program: &str| super::is_plugin(Some(program.into()));
        assert!(is_plugin("/opt/krew/bin/kubectl-trustspan") && !is_plugin("/usr/bin/trustspan"));
        assert!(!super::is_plugin(None));
    }

    #[test]
    fn command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
