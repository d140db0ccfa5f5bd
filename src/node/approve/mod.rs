//! `trustspan-node approve`: the controller for ClientIdentities. [`crate::identity`] makes all decisions; this module reads and writes the objects.

mod attempts;
mod controller;
mod delivery;
mod error;
mod objects;
mod requests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;

use super::health_port;
use crate::agent::lease::{self, Candidate, LeaderElection, LeaseRefused};
use crate::cli;
use crate::cli::controller_args::duration;
use crate::cli::log::LogArgs;
use crate::health::Requirement;
use crate::store::{HealthState, cluster};
use crate::webhook::server::Signals;
use controller::{Approver, Settings};

/// Run the controller for ClientIdentities.
///
/// It gives each client its permissions and a bootstrap kubeconfig, approves its certificate signing requests, and makes a new bootstrap kubeconfig
/// when the certificate, the API server's CAs or its address have changed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Path to the kubeconfig. Default: the in-cluster configuration.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Namespace of the leader-election Lease.
    #[arg(long, value_name = "NAMESPACE", default_value = "trustspan-system")]
    lease_namespace: String,

    /// Name of the leader-election Lease.
    #[arg(long, value_name = "NAME", default_value = "trustspan-approver")]
    lease_name: String,

    /// How long other candidates wait for a renewal before they acquire the Lease, in whole seconds.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    lease_duration: Duration,

    /// Full resync interval: everything is read again this often, the CAs of API servers included.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    poll: Duration,

    /// Life of bootstrap tokens.
    #[arg(long, value_name = "DURATION", default_value = "60m", value_parser = duration)]
    token_lifetime: Duration,

    /// Also deliver bootstrap kubeconfigs (spec.delivery) to API servers on loopback and link-local addresses.
    #[arg(long)]
    allow_local_delivery: bool,

    /// HTTP address for /metrics, /livez, /readyz and /healthz.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:9402")]
    metrics_listen: SocketAddr,

    #[command(flatten)]
    log: LogArgs,
}

/// Why it cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// No client for the cluster could be created.
    #[error(transparent)]
    Cluster(#[from] cluster::ConnectError),
    /// The API server refuses the Lease.
    #[error(transparent)]
    Lease(#[from] LeaseRefused),
    /// The port cannot be listened on, or the operating system does not provide threads or signals.
    #[error("cannot run: {0}")]
    Io(#[from] std::io::Error),
}

/// Runs until SIGTERM or SIGINT, then releases the Lease.
///
/// # Errors
/// When it cannot start, or the API server refuses its Lease.
pub fn run(args: Args) -> Result<ExitCode, RunError> {
    args.log.start();
    cli::block_on(control(args))
}

async fn control(args: Args) -> Result<ExitCode, RunError> {
    let mut signals = Signals::new()?;
    let client = cluster::connect(args.kubeconfig.as_deref()).await?;
    let health = Arc::new(HealthState::default());
    let api_server = health.add("api-server", Requirement::AtStart);
    let election = LeaderElection {
        namespace: args.lease_namespace,
        name: args.lease_name,
        identity: lease::identity(),
        lease_duration: args.lease_duration.max(Duration::from_secs(1)),
    };
    let mut candidate = Candidate::start(client.clone(), election, health.add("leader-lease", Requirement::AtStart));
    let mut leadership = candidate.leadership();
    let lead = async {
        controller::wait_readable(&client, &api_server).await;
        loop {
            leadership.acquired().await;
            let mut end = leadership.clone();
            let token_lifetime = SignedDuration::try_from(args.token_lifetime).unwrap_or(SignedDuration::MAX);
            let settings = Settings { token_lifetime, allow_local_delivery: args.allow_local_delivery };
            let approver = Approver::new(&client, &leadership, &health, &api_server, settings);
            tokio::select! {
                () = end.lost() => {}
                () = approver.run(args.poll.max(Duration::from_millis(100))) => {}
            }
        }
    };
    let end = tokio::select! {
        refused = candidate.refused() => Err(refused.into()),
        () = lead => Ok(ExitCode::SUCCESS),
        error = health_port::serve(Some(args.metrics_listen), health.clone()) => Err(error.into()),
        () = signals.next() => {
            tracing::info!("shutting down");
            Ok(ExitCode::SUCCESS)
        }
    };
    // Nothing is written any more: another process may become the leader at once.
    candidate.release().await;
    end
}
