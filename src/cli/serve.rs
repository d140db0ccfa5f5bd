//! `trustspan serve`: the admission webhooks.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinSet;

use super::controller_args::{ControllerArgs, duration};
use super::log::LogArgs;
use super::severity::SeverityArgs;
use crate::agent::{self, lease};
use crate::api::names::AGENT_USERNAME;
use crate::store::{RegistryCache, cluster, directory, poll};
use crate::webhook::metrics::Metrics;
use crate::webhook::server::{self, Drain, End, Signals};
use crate::webhook::tls::{CERTIFICATE, KEY, ServingCertificate, ServingCertificateError};
use crate::webhook::{Decide, Webhook, self_signed};

/// Answers admission requests over HTTPS, from the GatewaySecrets of a cluster or of a directory.
#[derive(Debug, clap::Args)]
#[command(mut_group("ControllerArgs", |flags| flags.requires("with_agent").conflicts_with("manifests")))]
pub struct Args {
    /// Kubeconfig of the cluster. Default: the cluster that this process is a pod of.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Take GatewaySecrets from the manifests in this directory instead of a cluster; changes are followed.
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig")]
    manifests: Option<PathBuf>,

    /// Address of both ports. Default: 127.0.0.1 with --manifests, else 0.0.0.0.
    #[arg(long, value_name = "ADDRESS")]
    bind_address: Option<IpAddr>,

    /// HTTPS port: /mutate, /validate, /validate-guarded, the latter two with -breakglass too, /livez, /readyz.
    #[arg(long, value_name = "PORT", default_value_t = 8443)]
    port: u16,

    /// Plain HTTP port: /metrics, /livez, /readyz.
    #[arg(long, value_name = "PORT", default_value_t = 9402)]
    metrics_port: u16,

    /// Directory of the serving certificate, tls.crt and tls.key; a changed pair is taken while serving. With
    /// --manifests and neither file there, a certificate is made at start and that of its CA written here as ca.crt.
    #[arg(long, value_name = "DIR", default_value = "certs")]
    cert_dir: PathBuf,

    #[command(flatten)]
    severity: SeverityArgs,

    /// Username of trustspan's own agent, which rolls workloads by a newer hash.
    #[arg(long, value_name = "NAME", default_value = AGENT_USERNAME)]
    agent_username: String,

    /// Also run the rotation controller in this process.
    #[arg(long)]
    with_agent: bool,

    #[command(flatten)]
    log: LogArgs,

    /// How long to go on serving after SIGTERM, not ready any more, until endpoints forget this pod. Default: 5s, and none
    /// with --manifests.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    drain_delay: Option<Duration>,

    /// How long requests in flight may take after that.
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = duration)]
    drain_timeout: Duration,

    // Last: its heading applies to all flags that follow.
    #[command(flatten, next_help_heading = "Rotation controller on a cluster (with --with-agent)")]
    controller: ControllerArgs,
}

/// Why the server does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A port cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The manifests cannot be read.
    #[error("--manifests {}: {reason}", dir.display())]
    Manifests {
        /// The directory.
        dir: PathBuf,
        /// Why.
        reason: String,
    },
    /// There is no serving certificate.
    #[error("no serving certificate: {0}")]
    Certificate(#[from] ServingCertificateError),
    /// The certificate cannot be served.
    #[error("cannot serve TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// There is no client for the cluster.
    #[error(transparent)]
    Cluster(#[from] cluster::ConnectError),
    /// The operating system refuses threads, signals or a listener.
    #[error("cannot serve: {0}")]
    Io(#[from] io::Error),
}

/// A port cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; choose another with {flag} or --bind-address")]
pub struct ListenError {
    address: SocketAddr,
    flag: &'static str,
    source: io::Error,
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start, or a listener fails.
pub fn run(args: Args) -> Result<ExitCode, ServeError> {
    args.log.start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let end = runtime.block_on(serve(args));
    // Not waiting for threads that still judge: their callers are gone.
    runtime.shutdown_background();
    Ok(match end? {
        End::Drained => ExitCode::SUCCESS,
        End::Cut => ExitCode::FAILURE,
    })
}

async fn serve(args: Args) -> Result<End, ServeError> {
    // First, so that a signal during the start is not lost.
    let signals = Signals::new()?;
    let default = if args.manifests.is_some() { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
    let address = args.bind_address.unwrap_or(default.into());
    let https = listen(address, args.port, "--port")?;
    let metrics = listen(address, args.metrics_port, "--metrics-port")?;

    let live = Arc::new(RegistryCache::default());
    let mut controller = None;
    let certificate = certificate(&args, address)?;
    let config = certificate.server_config()?;
    let mut metrics_of = Metrics::new(live.clone(), Some(certificate.clone()));
    match &args.manifests {
        Some(dir) => {
            let failed = |e: &dyn std::fmt::Display| ServeError::Manifests { dir: dir.clone(), reason: e.to_string() };
            let severities = args.severity.severities();
            let with_agent = args.with_agent;
            let load = move |dir: &Path, now| match with_agent {
                true => agent::directory::load(dir, &severities, now),
                false => Ok(directory::load(dir, &severities, now)?),
            };
            live.publish(load(dir, Timestamp::now()).map_err(|e| failed(&e))?);
            tokio::spawn(poll::follow(dir.clone(), live.clone(), load));
            if args.with_agent {
                tokio::spawn(agent::directory::run(dir.clone(), args.severity.severities()));
            }
        }
        None => {
            let client = cluster::connect(args.kubeconfig.as_deref()).await?;
            tokio::spawn(cluster::follow(client.clone(), live.clone()));
            if args.with_agent {
                let election = args.controller.election();
                let (leadership, elect) = lease::elect(client.clone(), election.clone());
                let agent_metrics = Arc::default();
                let collector = agent::metrics::collector(live.clone(), Arc::clone(&agent_metrics), leadership.clone());
                metrics_of = metrics_of.with(collector);
                let settings = args.controller.settings();
                let mut tasks = JoinSet::new();
                tasks.spawn(elect);
                tasks.spawn(agent::run(client.clone(), live.clone(), leadership, settings, agent_metrics));
                controller = Some((client, election, tasks));
            }
        }
    }

    tracing::info!(
        "listening on https://{}: /mutate, /validate[-guarded][-breakglass], /livez, /readyz",
        https.local_addr()?
    );
    tracing::info!("listening on http://{}: /metrics, /livez, /readyz", metrics.local_addr()?);
    let severities = args.severity.severities();
    let webhook = Webhook::new(live, metrics_of, Decide::default(), severities, args.agent_username);
    let endpoints = if args.manifests.is_some() { Duration::ZERO } else { Duration::from_secs(5) };
    let drain = Drain { delay: args.drain_delay.unwrap_or(endpoints), timeout: args.drain_timeout };
    let end = server::run(&webhook, (https, config), metrics, drain, signals).await;
    if let Some((client, election, mut tasks)) = controller {
        tasks.shutdown().await;
        // Nothing is written any more: another process may become the leader at once.
        lease::release(client, &election).await;
    }
    Ok(end?)
}

/// A pair that is there is followed; one that was made here lives as long as the process.
fn certificate(args: &Args, address: IpAddr) -> Result<Arc<ServingCertificate>, ServingCertificateError> {
    let dir = &args.cert_dir;
    if args.manifests.is_some() && !dir.join(CERTIFICATE).exists() && !dir.join(KEY).exists() {
        let (certificate, ca) = self_signed::make(dir, address, Timestamp::now())?;
        tracing::info!("serving certificate made for this run; its CA is in {}", ca.display());
        return Ok(Arc::new(certificate));
    }
    let certificate = Arc::new(ServingCertificate::read(dir)?);
    tokio::spawn(certificate.clone().follow(dir.clone()));
    Ok(certificate)
}

pub(super) fn listen(address: IpAddr, port: u16, flag: &'static str) -> Result<TcpListener, ListenError> {
    let address = SocketAddr::new(address, port);
    TcpListener::bind(address).map_err(|source| ListenError { address, flag, source })
}
