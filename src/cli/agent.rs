//! `trustspan agent`: the rotation controller.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use super::controller_args::ControllerArgs;
use super::log::LogArgs;
use super::serve::{ClusterChecks, ListenError, listen};
use crate::agent::lease::{Candidate, LeaseRefused};
use crate::agent::{self, Settings};
use crate::certgen::{Profile, TRUSTSPAN_WEBHOOK};
use crate::health::Requirement;
use crate::store::{HealthState, RegistryCache, cluster};
use crate::webhook::health_server;
use crate::webhook::metrics::Metrics;
use crate::webhook::server::{self, Signals};

/// Run the rotation controller.
///
/// It maintains the managed Secrets of a cluster. A rotation first adds the new CA to all bundles, then reissues client
/// certificates, then switches the serving certificate, then removes the old CA.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Path to the kubeconfig. Default: the in-cluster configuration.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    controller: ControllerArgs,

    /// Keep the serving certificate of the webhook, without cert-manager, in this namespace: create and rotate Secret trustspan-webhook-tls, and
    /// write its CAs to caBundle of the webhook configurations. Default: somebody else writes both.
    #[arg(long, value_name = "NAMESPACE")]
    serving_certificate: Option<String>,

    /// Profile of `trustspan certgen` for the serving certificate: names, lifetime and propagation delay. Default: the built-in profile
    /// trustspan-webhook.
    #[arg(long, value_name = "FILE", requires = "serving_certificate")]
    serving_certificate_profile: Option<PathBuf>,

    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value_t = Ipv4Addr::UNSPECIFIED.into())]
    bind_address: IpAddr,

    /// HTTP port for /metrics, /livez, /readyz and /healthz.
    #[arg(long, value_name = "PORT", default_value_t = 9402)]
    metrics_port: u16,

    #[command(flatten)]
    log: LogArgs,
}

/// Why the controller cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The port cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The profile of the serving certificate cannot be used.
    #[error("--serving-certificate-profile: {0}")]
    Profile(String),
    /// No client for the cluster could be created.
    #[error(transparent)]
    Cluster(#[from] cluster::ConnectError),
    /// The API server refuses the Lease.
    #[error(transparent)]
    Lease(#[from] LeaseRefused),
    /// The operating system does not provide threads or signals.
    #[error("cannot run: {0}")]
    Io(#[from] std::io::Error),
}

/// Runs until SIGTERM or SIGINT, then releases the Lease.
///
/// # Errors
/// When it cannot start, or the API server refuses its Lease.
pub fn run(args: Args) -> Result<ExitCode, RunError> {
    args.log.start();
    super::block_on(control(args))
}

impl Args {
    /// The profile of the webhook's serving certificate, if the controller keeps it.
    fn serving_certificate(&self) -> Result<Option<Profile>, RunError> {
        let Some(namespace) = &self.serving_certificate else { return Ok(None) };
        let text = match &self.serving_certificate_profile {
            None => TRUSTSPAN_WEBHOOK.to_owned(),
            Some(file) => std::fs::read_to_string(file)
                .map_err(|error| RunError::Profile(format!("{}: {error}", file.display())))?,
        };
        Profile::read(&text, namespace, "cluster.local").map(Some).map_err(RunError::Profile)
    }
}

async fn control(args: Args) -> Result<ExitCode, RunError> {
    let mut signals = Signals::new()?;
    let settings = Settings { serving_certificate: args.serving_certificate()?, ..args.controller.settings() };
    let listener = listen(args.bind_address, args.metrics_port, "--metrics-port")?;
    let address = listener.local_addr()?;
    let client = cluster::connect(args.kubeconfig.as_deref()).await?;
    let registry = Arc::new(RegistryCache::default());
    let health = Arc::new(HealthState::default());
    let checks = ClusterChecks::new(&health);
    let lease_check = health.add("leader-lease", Requirement::AtStart);
    let mut candidate = Candidate::start(client.clone(), args.controller.election(), lease_check);
    let leadership = candidate.leadership();
    let agent_metrics = Arc::default();
    let metrics = Metrics::new(registry.clone(), None).with(health_server::collector(health.clone()));
    let metrics =
        metrics.with(agent::metrics::collector(registry.clone(), Arc::clone(&agent_metrics), leadership.clone()));
    let metrics = Arc::new(metrics);
    tracing::info!("listening on http://{address}: /metrics, /livez, /readyz, /healthz");
    let end = tokio::select! {
        refused = candidate.refused() => Err(refused.into()),
        () = checks.run(client.clone(), registry.clone()) => Ok(ExitCode::SUCCESS),
        error = server::plain(listener, health_server::router(health.clone(), move || metrics.encode())) => Err(error.into()),
        () = agent::run(client.clone(), registry, leadership, settings, agent_metrics, health) => Ok(ExitCode::SUCCESS),
        () = signals.next() => {
            tracing::info!("shutting down");
            Ok(ExitCode::SUCCESS)
        }
    };
    // Nothing is written any more: another process may become the leader at once.
    candidate.release().await;
    end
}
