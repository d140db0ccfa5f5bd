//! `trustspan agent`: the rotation controller.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::log::LogArgs;
use super::serve::{ListenError, duration, listen};
use crate::agent::lease::{self, Candidate};
use crate::agent::{self, Settings};
use crate::store::{RegistryCache, cluster};
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

    /// Namespace of the leader-election Lease.
    #[arg(long, value_name = "NAMESPACE", default_value = "trustspan-system", help_heading = "Leader election")]
    lease_namespace: String,

    /// Name of the leader-election Lease.
    #[arg(long, value_name = "NAME", default_value = "trustspan-agent", help_heading = "Leader election")]
    lease_name: String,

    /// Duration of the Lease without a renewal, in whole seconds.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration, help_heading = "Leader election")]
    lease_duration: Duration,

    /// Identity of this process in the Lease. Default: the pod name with a random suffix.
    #[arg(long, value_name = "NAME", help_heading = "Leader election")]
    identity: Option<String>,

    /// Full resync interval.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    poll: Duration,

    /// Reconcile GatewaySecrets in this namespace only. Repeatable. Default: all.
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Vec<String>,

    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value_t = Ipv4Addr::UNSPECIFIED.into())]
    bind_address: IpAddr,

    /// HTTP port for /metrics, /livez and /readyz.
    #[arg(long, value_name = "PORT", default_value_t = 9402)]
    metrics_port: u16,

    /// Override spec.mode of every GatewaySecret: true for Copy, false for Bundle.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    legacy_copy: Option<bool>,

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
    /// No client for the cluster could be created.
    #[error(transparent)]
    Cluster(#[from] cluster::ConnectError),
    /// The operating system does not provide threads or signals.
    #[error("cannot run: {0}")]
    Io(#[from] std::io::Error),
}

/// Runs until SIGTERM or SIGINT, then releases the Lease.
///
/// # Errors
/// When it cannot start.
pub fn run(args: Args) -> Result<ExitCode, RunError> {
    args.log.start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let end = runtime.block_on(run_until_signal(args));
    runtime.shutdown_background();
    end
}

async fn run_until_signal(args: Args) -> Result<ExitCode, RunError> {
    let mut signals = Signals::new()?;
    let listener = listen(args.bind_address, args.metrics_port, "--metrics-port")?;
    let address = listener.local_addr()?;
    let client = cluster::connect(args.kubeconfig.as_deref()).await?;
    let registry = Arc::new(RegistryCache::default());
    let candidate = Candidate {
        namespace: args.lease_namespace,
        lease: args.lease_name,
        identity: args.identity.unwrap_or_else(lease::identity),
        duration: args.lease_duration.max(Duration::from_secs(1)),
    };
    let (leadership, contend) = lease::contend(client.clone(), candidate.clone());
    let settings = Settings {
        namespaces: args.namespace,
        poll: args.poll.max(Duration::from_millis(100)),
        legacy_copy: args.legacy_copy,
    };
    let agent_metrics = Arc::default();
    let metrics = Metrics::new(registry.clone(), None);
    let metrics =
        metrics.with(agent::metrics::collector(registry.clone(), Arc::clone(&agent_metrics), leadership.clone()));
    tracing::info!("listening on http://{address}: /metrics, /livez, /readyz");
    let end = tokio::select! {
        () = contend => Ok(ExitCode::SUCCESS),
        () = cluster::follow(client.clone(), registry.clone()) => Ok(ExitCode::SUCCESS),
        error = server::plain(listener, health_server::router(registry.clone(), metrics)) => Err(error.into()),
        () = agent::run(client.clone(), registry, leadership, settings, agent_metrics) => Ok(ExitCode::SUCCESS),
        () = signals.next() => {
            tracing::info!("shutting down");
            Ok(ExitCode::SUCCESS)
        }
    };
    // This process writes nothing more, so another one can lead at once.
    lease::release(client, &candidate).await;
    end
}
