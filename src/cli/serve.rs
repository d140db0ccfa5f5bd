//! `trustspan serve`: the admission webhooks.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use tokio::task::JoinSet;

use super::controller_args::{ControllerArgs, duration};
use super::log::LogArgs;
use super::severity::SeverityArgs;
use super::state_args::StateArgs;
use crate::agent;
use crate::agent::lease::{Candidate, LeaseRefused};
use crate::agent::state_directory::StateDirectoryError;
use crate::api::names::AGENT_USERNAME;
use crate::health::Requirement;
use crate::store::{CheckHandle, HealthState, RegistryCache, api_server, cluster, directory, poll};
use crate::webhook::client_ca::ClientCa;
use crate::webhook::metrics::Metrics;
use crate::webhook::self_signed::GeneratedCa;
use crate::webhook::server::{self, Drain, End, Signals};
use crate::webhook::tls::{CERTIFICATE, KEY, ServingCertificate, ServingCertificateError};
use crate::webhook::{Decide, Limits, Webhook, health_server, self_signed};

/// Serve the admission webhooks.
///
/// They use the GatewaySecrets of a cluster or of a directory of manifests.
#[derive(Debug, clap::Args)]
#[command(mut_group("ControllerArgs", |flags| flags.requires("with_agent").conflicts_with("directory")))]
#[command(mut_group("StateArgs", |flags| flags.requires("with_agent")))]
pub struct Args {
    /// Path to the kubeconfig. Default: the in-cluster configuration.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Watch manifests in this directory instead of a cluster.
    #[arg(short = 'f', long = "filename", value_name = "DIR", conflicts_with = "kubeconfig")]
    directory: Option<PathBuf>,

    /// Address to listen on. Default: 127.0.0.1 with -f, otherwise 0.0.0.0.
    #[arg(long, value_name = "ADDRESS")]
    bind_address: Option<IpAddr>,

    /// HTTPS port for /mutate, /validate, /validate-guarded, /validate-trust (the latter three with -breakglass, too), and for /livez, /readyz and /healthz without names of checks.
    #[arg(long, value_name = "PORT", default_value_t = 8443)]
    port: u16,

    /// HTTP port for /metrics, /livez, /readyz and /healthz.
    #[arg(long, value_name = "PORT", default_value_t = 9402)]
    metrics_port: u16,

    /// Directory of the serving certificate: tls.crt and tls.key. Certificates are reloaded when the files change.
    ///
    /// With -f and without these files, a certificate is generated at start, and the certificate of its CA is written to ca.crt
    /// in this directory. A second process needs another directory.
    #[arg(long, value_name = "DIR", default_value = "certs")]
    cert_dir: PathBuf,

    /// Require a client certificate of one of the CAs in this file on the HTTPS port. The file is reloaded when it changes.
    ///
    /// The API server shows a certificate if its AdmissionConfiguration says so; kubelets show none, so probes need the metrics port.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,

    /// Accept only client certificates with this common name or DNS name. Can be given more than once.
    #[arg(long = "client-name", value_name = "NAME", requires = "client_ca_file")]
    client_names: Vec<String>,

    #[command(flatten)]
    severity: SeverityArgs,

    /// Username of the rotation controller. Only it may restart workloads by setting the rotation hash.
    #[arg(long, value_name = "NAME", default_value = AGENT_USERNAME)]
    agent_username: String,

    /// Also run the rotation controller in this process.
    #[arg(long)]
    with_agent: bool,

    #[command(flatten)]
    state: StateArgs,

    #[command(flatten)]
    log: LogArgs,

    /// How long to accept connections after SIGTERM, while not ready, until endpoints are updated. Default: 5s, 0s with -f.
    #[arg(long, value_name = "DURATION", value_parser = duration, help_heading = "Shutdown")]
    drain_delay: Option<Duration>,

    /// Maximum time for requests in flight after that.
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = duration, help_heading = "Shutdown")]
    drain_timeout: Duration,

    // Last: its heading applies to all flags that follow.
    #[command(flatten, next_help_heading = "Rotation controller on a cluster (with --with-agent)")]
    controller: ControllerArgs,
}

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The process cannot listen on a port.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The manifests cannot be read.
    #[error("-f {}: {reason}", dir.display())]
    Manifests {
        /// The directory.
        dir: PathBuf,
        /// Why.
        reason: String,
    },
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateDirectoryError),
    /// The serving certificate cannot be loaded.
    #[error("no serving certificate: {0}")]
    Certificate(#[from] ServingCertificateError),
    /// The CAs of clients cannot be loaded.
    #[error("--client-ca-file: {0}")]
    ClientCa(#[source] ServingCertificateError),
    /// The serving certificate cannot be used.
    #[error("cannot serve TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// No client for the cluster could be created.
    #[error(transparent)]
    Cluster(#[from] cluster::ConnectError),
    /// The API server refuses the Lease of the rotation controller.
    #[error(transparent)]
    Lease(#[from] LeaseRefused),
    /// The operating system does not provide threads, signals or a listener.
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
/// When it cannot start, a listener fails, or the API server refuses the Lease.
pub fn run(args: Args) -> Result<ExitCode, ServeError> {
    args.log.start();
    // Threads that still evaluate requests are not waited for: their callers are gone.
    Ok(match super::block_on(serve(args))? {
        End::Drained => ExitCode::SUCCESS,
        End::Cut => ExitCode::FAILURE,
    })
}

async fn serve(args: Args) -> Result<End, ServeError> {
    // Registered first, so that a signal during startup is not lost.
    let signals = Signals::new()?;
    let default = if args.directory.is_some() { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
    let address = args.bind_address.unwrap_or(default.into());
    let https = listen(address, args.port, "--port")?;
    let metrics = listen(address, args.metrics_port, "--metrics-port")?;

    let registry = Arc::new(RegistryCache::default());
    let health = Arc::new(HealthState::default());
    let mut controller = None;
    let certificate_check = health.add("serving-certificate", Requirement::AtStart);
    let (certificate, cert_dir, _generated_ca) = certificate(&args, address)?;
    let client_ca = match &args.client_ca_file {
        Some(file) => Some(Arc::new(ClientCa::read(file, args.client_names.clone()).map_err(ServeError::ClientCa)?)),
        None => None,
    };
    if let Some(client_ca) = &client_ca {
        tokio::spawn(client_ca.clone().follow(health.add("client-ca", Requirement::AtStart)));
    }
    let config = certificate.server_config(client_ca.map(|clients| clients as _))?;
    let mut webhook_metrics =
        Metrics::new(registry.clone(), Some(certificate.clone())).with(health_server::collector(health.clone()));
    match &args.directory {
        Some(dir) => {
            let failed = |e: &dyn std::fmt::Display| ServeError::Manifests { dir: dir.clone(), reason: e.to_string() };
            let severities = args.severity.severities();
            let check = health.add(CACHE_CHECK, Requirement::AtStart);
            if args.with_agent {
                let directories = args.state.with(dir)?;
                let read = directories.clone();
                let load = move |now| agent::directory::load(&read, &severities, now);
                registry.publish(load(Timestamp::now()).map_err(|e| failed(&e))?);
                let lock = directories.lock()?;
                tracing::info!("managed Secrets and journals are written to {}", directories.state().display());
                tokio::spawn(poll::follow(directories.all(), registry.clone(), check, load));
                tokio::spawn(agent::directory::run(directories, lock, args.severity.severities()));
            } else {
                let manifests = vec![dir.clone()];
                let read = manifests.clone();
                let load = move |now| directory::load(&read, &severities, now);
                registry.publish(load(Timestamp::now()).map_err(|e| failed(&e))?);
                tokio::spawn(poll::follow(manifests, registry.clone(), check, load));
            }
        }
        None => {
            let client = cluster::connect(args.kubeconfig.as_deref()).await?;
            let checks = ClusterChecks::new(&health);
            if args.with_agent {
                let lease_check = health.add("leader-lease", Requirement::AtStart);
                let candidate = Candidate::start(client.clone(), args.controller.election(), lease_check);
                let leadership = candidate.leadership();
                let agent_metrics = Arc::default();
                let collector =
                    agent::metrics::collector(registry.clone(), Arc::clone(&agent_metrics), leadership.clone());
                webhook_metrics = webhook_metrics.with(collector);
                let settings = args.controller.settings();
                let mut tasks = JoinSet::new();
                tasks.spawn(agent::run(
                    client.clone(),
                    registry.clone(),
                    leadership,
                    settings,
                    agent_metrics,
                    health.clone(),
                ));
                controller = Some((candidate, tasks));
            }
            tokio::spawn(checks.run(client, registry.clone()));
        }
    }

    tracing::info!(
        "listening on https://{}: /mutate, /validate[-guarded|-trust][-breakglass], /livez, /readyz, /healthz",
        https.local_addr()?
    );
    tracing::info!("listening on http://{}: /metrics, /livez, /readyz, /healthz", metrics.local_addr()?);
    tokio::spawn(certificate.follow(cert_dir, certificate_check));
    let severities = args.severity.severities();
    let limits = Limits::of_container();
    tracing::info!("{limits}");
    let webhook =
        Webhook::new(registry, health, webhook_metrics, Decide::default(), severities, args.agent_username, limits);
    let default_delay = if args.directory.is_some() { Duration::ZERO } else { Duration::from_secs(5) };
    let drain = Drain { delay: args.drain_delay.unwrap_or(default_delay), timeout: args.drain_timeout };
    let refused = async {
        match &mut controller {
            Some((candidate, _)) => candidate.refused().await,
            None => std::future::pending().await,
        }
    };
    let end = tokio::select! {
        end = server::run(&webhook, (https, config), metrics, drain, signals) => end.map_err(ServeError::from),
        refused = refused => Err(refused.into()),
    };
    if let Some((candidate, mut tasks)) = controller {
        tasks.shutdown().await;
        // Nothing is written any more: another process may become the leader at once.
        candidate.release().await;
    }
    end
}

/// A serving certificate, with the directory of its files or its generated CA.
type LoadedCertificate = (Arc<ServingCertificate>, Option<PathBuf>, Option<GeneratedCa>);

/// An existing certificate is reloaded when the files in the returned directory change; a generated one lasts as long as the process, which keeps
/// its CA.
fn certificate(args: &Args, address: IpAddr) -> Result<LoadedCertificate, ServingCertificateError> {
    let dir = &args.cert_dir;
    if args.directory.is_some() && !dir.join(CERTIFICATE).exists() && !dir.join(KEY).exists() {
        let (certificate, ca) = self_signed::make(dir, address, Timestamp::now())?;
        tracing::info!("generated a serving certificate for this run; its CA is in {}", ca.path.display());
        return Ok((Arc::new(certificate), None, Some(ca)));
    }
    Ok((Arc::new(ServingCertificate::read(dir)?), Some(dir.clone()), None))
}

/// Name of the check of the GatewaySecrets that were read.
const CACHE_CHECK: &str = "gatewaysecret-cache";

/// The checks of every process on a cluster.
pub(super) struct ClusterChecks {
    api_server: CheckHandle,
    cache: CheckHandle,
}

impl ClusterChecks {
    pub(super) fn new(health: &Arc<HealthState>) -> Self {
        Self {
            api_server: health.add("api-server", Requirement::AtStart),
            cache: health.add(CACHE_CHECK, Requirement::AtStart),
        }
    }

    /// Follows the cluster, and records how that goes. Never returns.
    pub(super) async fn run(self, client: Client, registry: Arc<RegistryCache>) {
        tokio::join!(api_server::probe(client.clone(), self.api_server), cluster::follow(client, registry, self.cache),);
    }
}

pub(super) fn listen(address: IpAddr, port: u16, flag: &'static str) -> Result<TcpListener, ListenError> {
    let address = SocketAddr::new(address, port);
    TcpListener::bind(address).map_err(|source| ListenError { address, flag, source })
}
