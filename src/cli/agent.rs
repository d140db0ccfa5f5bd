//! `trustspan agent`: carries rotations through.

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

/// Keeps the managed Secrets of a cluster, and carries a rotation through: trust first, then clients, then the leaf, then the
/// old CA goes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kubeconfig of the cluster. Default: the cluster that this process is a pod of.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Namespace of the Lease by which one of several agents leads.
    #[arg(long, value_name = "NAMESPACE", default_value = "trustspan-system")]
    lease_namespace: String,

    /// Name of that Lease.
    #[arg(long, value_name = "NAME", default_value = "trustspan-agent")]
    lease_name: String,

    /// How long the Lease lasts when it is not renewed; whole seconds.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    lease_duration: Duration,

    /// This process' name in the Lease. Default: the pod's name, and a random part.
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,

    /// Everything is looked at so often, should an event of a watch be lost.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    poll: Duration,

    /// Keep only the GatewaySecrets in this namespace; may be given more than once. Default: all.
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Vec<String>,

    /// Address of the HTTP port.
    #[arg(long, value_name = "ADDRESS", default_value_t = Ipv4Addr::UNSPECIFIED.into())]
    bind_address: IpAddr,

    /// Plain HTTP port: /metrics, /livez, /readyz.
    #[arg(long, value_name = "PORT", default_value_t = 9402)]
    metrics_port: u16,

    /// true: treat every GatewaySecret as of mode Copy; false: as of mode Bundle. Default: as its spec.mode says.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    legacy_copy: Option<bool>,

    #[command(flatten)]
    log: LogArgs,
}

/// Why the agent does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The port cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// There is no client for the cluster.
    #[error(transparent)]
    Cluster(#[from] cluster::ConnectError),
    /// The operating system refuses threads or signals.
    #[error("cannot run: {0}")]
    Io(#[from] std::io::Error),
}

/// Runs until SIGTERM or SIGINT, and lets the Lease go then.
///
/// # Errors
/// When it cannot start.
pub fn run(args: Args) -> Result<ExitCode, RunError> {
    args.log.start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let end = runtime.block_on(keep(args));
    runtime.shutdown_background();
    end
}

async fn keep(args: Args) -> Result<ExitCode, RunError> {
    let mut signals = Signals::new()?;
    let listener = listen(args.bind_address, args.metrics_port, "--metrics-port")?;
    let address = listener.local_addr()?;
    let client = cluster::connect(args.kubeconfig.as_deref()).await?;
    let live = Arc::new(RegistryCache::default());
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
    let tally = Arc::default();
    let metrics = Metrics::new(live.clone(), None);
    let metrics = metrics.with(agent::metrics::collector(live.clone(), Arc::clone(&tally), leadership.clone()));
    tracing::info!("listening on http://{address}: /metrics, /livez, /readyz");
    let end = tokio::select! {
        () = contend => Ok(ExitCode::SUCCESS),
        () = cluster::follow(client.clone(), live.clone()) => Ok(ExitCode::SUCCESS),
        error = server::plain(listener, health_server::router(live.clone(), metrics)) => Err(error.into()),
        () = agent::run(client.clone(), live, leadership, settings, tally) => Ok(ExitCode::SUCCESS),
        () = signals.next() => {
            tracing::info!("ending");
            Ok(ExitCode::SUCCESS)
        }
    };
    // Nothing is written any more: another may begin at once.
    lease::release(client, &candidate).await;
    end
}
