//! `trustspan wait`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::Failure;
use super::cluster_args::ClusterArgs;
use super::controller_args::duration;
use super::state_args::StateArgs;
use crate::api::Phase;
use crate::registry::Entry;
use crate::text::printable;

/// The time between two reads.
pub(super) const EVERY: Duration = Duration::from_millis(500);

/// Wait for a rotation to reach a phase.
///
/// Exit code: 0 when the rotation is in this phase or a later one, 1 on timeout, 2 on an error.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the GatewaySecret.
    #[arg(value_name = "NAME")]
    name: String,

    #[command(flatten)]
    source: ClusterArgs,

    #[command(flatten)]
    state: StateArgs,

    /// The phase: Pending, TrustExpanded, Converged, ClientsMigrated, ServingCertificateSwitched or Steady, in this order.
    ///
    /// Steady is reached when the rotation is complete. Pending is always reached: it checks that the GatewaySecret exists.
    #[arg(long = "for", value_name = "PHASE", default_value = "Steady", value_parser = phase)]
    phase: Phase,

    /// The longest time to wait.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    timeout: Duration,
}

/// Runs the subcommand.
///
/// # Errors
/// When the cluster or the manifests cannot be read, or the GatewaySecret does not exist.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let read = || args.source.read_with(&args.state, std::slice::from_ref(&args.name));
    let is_reached = |entry: &Entry| rank(entry.status.phase.unwrap_or_default()) >= rank(args.phase);
    until(Instant::now(), args.timeout, read, is_reached)
}

/// Waits until GatewaySecrets have reached something, and prints their phases meanwhile. On timeout it prints what they wait for.
///
/// # Errors
/// When they cannot be read.
pub(super) fn until(
    started: Instant,
    timeout: Duration,
    read: impl Fn() -> Result<Vec<Entry>, Failure>,
    mut is_reached: impl FnMut(&Entry) -> bool,
) -> Result<ExitCode, Failure> {
    let mut printed = None;
    loop {
        let entries = read()?;
        let phases: Vec<_> = entries.iter().map(|entry| entry.status.phase.unwrap_or_default()).collect();
        if printed.as_ref() != Some(&phases) {
            for entry in &entries {
                let name = printable(&format!("{}/{}", entry.namespace, entry.name));
                anstream::eprintln!("{name}: {:?}", entry.status.phase.unwrap_or_default());
            }
        }
        if entries.iter().all(&mut is_reached) {
            return Ok(ExitCode::SUCCESS);
        }
        printed = Some(phases);
        if started.elapsed() >= timeout {
            for wait in entries.iter().flat_map(|entry| &entry.status.waits) {
                anstream::eprintln!("{:?} waits: {}", wait.step, printable(&wait.reason));
            }
            return Ok(ExitCode::FAILURE);
        }
        std::thread::sleep(EVERY);
    }
}

fn phase(text: &str) -> Result<Phase, String> {
    let unknown = |_| {
        "expected Pending, TrustExpanded, Converged, ClientsMigrated, ServingCertificateSwitched or Steady".to_owned()
    };
    serde_json::from_value(text.into()).map_err(unknown)
}

/// The order of the phases in a rotation.
fn rank(phase: Phase) -> u8 {
    match phase {
        Phase::Pending => 0,
        Phase::TrustExpanded => 1,
        Phase::Converged => 2,
        Phase::ClientsMigrated => 3,
        Phase::ServingCertificateSwitched => 4,
        Phase::Steady => 5,
    }
}
