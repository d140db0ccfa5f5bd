//! `trustspan-node mirror`: keeps a CA bundle in a file on a node.

mod decision;
mod file;
mod metrics;
mod report;
mod source;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use axum::Router;
use futures::StreamExt;
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use self::file::{FileResult, MirroredPath};
use self::metrics::MirrorMetrics;
use self::report::Reporter;
use self::source::{SourceRef, Stored, WatchedSource};
use super::health_port;
use crate::api::{MirrorSource, MirroredFileSpec};
use crate::cli;
use crate::cli::controller_args::duration;
use crate::cli::log::LogArgs;
use crate::health::{CheckResult, Requirement};
use crate::store::{HealthState, atomic_file, cluster};
use crate::webhook::server::{self, Signals};

/// How long the first answer of the API server may take before it counts as unreachable.
const FIRST_ANSWER: Duration = Duration::from_secs(10);

/// Keep a CA bundle from a Secret or ConfigMap in a file on this node.
///
/// The file is replaced atomically, and only when the certificates have changed. It is never removed, and content that would break trust is
/// refused. What it holds stays when the source cannot be read or is deleted. A file that something else changed or removed is written again.
/// What the file holds is reported in a MirroredFile in the namespace of the source, and rotations of GatewaySecrets wait for it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Object with the bundle: secret/NAMESPACE/NAME or configmap/NAMESPACE/NAME.
    #[arg(long, value_name = "OBJECT")]
    from: SourceRef,

    /// Key with the bundle.
    #[arg(long, value_name = "KEY", default_value = "ca.crt")]
    key: String,

    /// Directory of the file.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,

    /// File with CAs: only these, and CAs that they signed, are written. It may change while the mirror runs.
    ///
    /// Who may write the source could otherwise add another CA, and with it become any user for the programs that read the file.
    #[arg(long, value_name = "FILE", required_unless_present = "any_signer")]
    signers: Option<PathBuf>,

    /// Write every CA of the source: who may write it decides what this node trusts.
    #[arg(long, conflicts_with = "signers")]
    any_signer: bool,

    /// Name of the file. Default: the key.
    #[arg(long, value_name = "NAME")]
    file_name: Option<String>,

    /// Permission bits of a new file, in octal. A file that exists keeps its mode and owner.
    #[arg(long, value_name = "MODE", default_value = "0644", value_parser = mode)]
    mode: u32,

    /// File with a bundle to start with, for when the file does not exist and the source cannot be read.
    #[arg(long, value_name = "FILE")]
    bootstrap: Option<PathBuf>,

    /// Name of this node in the report. Default: the host name.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node: Option<String>,

    /// Path to the kubeconfig. Default: the in-cluster configuration.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// How often the file is compared with the source, in case something else has changed it.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    poll: Duration,

    /// HTTP address for /metrics, /livez, /readyz and /healthz, such as 127.0.0.1:9404. Default: none.
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,

    #[command(flatten)]
    log: LogArgs,
}

/// Why a mirror cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A flag does not name a file in a directory.
    #[error("--file-name {0:?}: expected a name without a slash; set the directory with --to")]
    FileName(String),
    /// The address cannot be listened on.
    #[error("--metrics-listen {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// No client for the cluster could be created.
    #[error(transparent)]
    Cluster(#[from] cluster::ConnectError),
    /// The host name cannot be read.
    #[error("the host name cannot be read ({0}): set --node")]
    Node(io::Error),
    /// The operating system does not provide threads or signals.
    #[error("cannot run: {0}")]
    Io(#[from] io::Error),
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "expected permission bits in octal, such as 0644".to_owned())
}

/// Runs until SIGTERM or SIGINT. The file stays.
///
/// # Errors
/// When it cannot start.
pub fn run(args: Args) -> Result<ExitCode, RunError> {
    args.log.start();
    cli::block_on(mirror(args))
}

/// The absolute path of the file.
fn path(args: &Args) -> Result<PathBuf, RunError> {
    let name = args.file_name.as_ref().unwrap_or(&args.key);
    if name.contains('/') || [".", "..", ""].contains(&name.as_str()) {
        return Err(RunError::FileName(name.clone()));
    }
    Ok(std::path::absolute(&args.to)?.join(name))
}

/// The name of this node.
fn node(args: &Args) -> Result<String, RunError> {
    match &args.node {
        Some(name) => Ok(name.clone()),
        None => Ok(fs::read_to_string("/proc/sys/kernel/hostname").map_err(RunError::Node)?.trim().to_owned()),
    }
}

async fn mirror(args: Args) -> Result<ExitCode, RunError> {
    let mut signals = Signals::new()?;
    let path = path(&args)?;
    let health = Arc::new(HealthState::default());
    let mut registry = health_port::registry();
    let metrics = Arc::new(MirrorMetrics::new(&mut registry));
    let check = health.add(format!("mirrored-file{}", path.display()), Requirement::AtStart);
    let source = MirrorSource { kind: args.from.kind, name: args.from.name.clone(), key: args.key.clone() };
    let spec = MirroredFileSpec { node: node(&args)?, path: path.display().to_string(), source };
    let report_check = health.add(format!("mirrored-file-report{}", path.display()), Requirement::AtStart);
    if let Some(address) = args.metrics_listen {
        serve(address, health_port::router(health, registry)).await?;
    }
    let client = cluster::connect(args.kubeconfig.as_deref()).await?;
    remove_temporary_files(&path);
    let (states, reported) = watch::channel(None);
    let reporter = Reporter::new(client.clone(), &args.from.namespace, spec, report_check);
    tokio::spawn(reporter.run(reported));
    let mut watched = WatchedSource::new(&args.from, &args.key);
    let (mut events, answered) = source::events(&client, &args.from);
    let mut file = MirroredPath::new(path, args.mode, args.bootstrap, args.signers, metrics);
    let poll = args.poll.max(Duration::from_millis(100));
    let started = Instant::now();
    loop {
        tokio::select! {
            Some(event) = events.next() => watched.apply(event),
            () = answered.notified() => watched.failure = None,
            () = sleep(poll) => {}
            () = signals.next() => {
                tracing::info!("shutting down, the file stays");
                return Ok(ExitCode::SUCCESS);
            }
        }
        if matches!(watched.stored, Stored::Pending) && watched.failure.is_none() && started.elapsed() >= FIRST_ANSWER {
            watched.failure = Some(CheckResult::Unreachable(format!("no answer within {} s", FIRST_ANSWER.as_secs())));
        }
        // On the thread of this loop: the health server has others.
        let state = file.reconcile(&watched, Timestamp::now());
        check.record(state.result.health());
        if state.result != FileResult::Pending {
            states.send_if_modified(|known| {
                let is_change = known.as_ref() != Some(&state);
                *known = Some(state);
                is_change
            });
        }
    }
}

/// A killed process leaves the new content in a hidden file.
fn remove_temporary_files(path: &Path) {
    match atomic_file::remove_temporary_files(path) {
        Ok(0) => {}
        Ok(number) => tracing::info!(number, "removed temporary files of an earlier run"),
        Err(error) => tracing::warn!("temporary files of earlier runs not removed: {error}"),
    }
}

async fn serve(address: SocketAddr, router: Router) -> Result<(), RunError> {
    let listener = TcpListener::bind(address).await.and_then(TcpListener::into_std);
    let listener = listener.map_err(|source| RunError::Listen { address, source })?;
    tracing::info!("listening on http://{}: /metrics, /livez, /readyz, /healthz", listener.local_addr()?);
    tokio::spawn(async move {
        let error = server::plain(listener, router).await;
        tracing::error!("health and metrics are not served any more: {error}");
    });
    Ok(())
}
