//! `trustspan-node identity`: keeps a kubeconfig of a ClientIdentity. [`crate::identity::client`] makes all decisions; this module carries them out.

mod error;
mod request;
mod store;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::time::{Instant, sleep};

use super::health_port;
use crate::cli;
use crate::cli::controller_args::duration;
use crate::cli::log::LogArgs;
use crate::health::{CheckResult, Requirement};
use crate::identity::IdentityName;
use crate::identity::client::{Acceptance, Memory, Progress, Step, Target, Via, View, decide, needs_nothing};
use crate::identity::kubeconfig::{self, ClientKubeconfig};
use crate::store::{CheckHandle, HealthState, cluster};
use crate::trust::fingerprint_of;
use crate::webhook::server::Signals;
use error::StepError;
use request::Requester;
use store::{IdentityStore, Stored, StoredKey};

/// Keep the kubeconfig of a ClientIdentity.
///
/// It makes a key, requests a certificate with a bootstrap kubeconfig, renews it after 70 to 90 % of its life, and bootstraps again when the API
/// server, its CAs or its client CA have changed. The old kubeconfig is replaced after the new one has worked. The key stays where the kubeconfig is.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The ClientIdentity.
    #[arg(value_name = "NAMESPACE/NAME")]
    identity: IdentityName,

    /// File with the bootstrap kubeconfig. It may be missing until it is needed.
    #[arg(long, value_name = "FILE", required_unless_present = "bootstrap_from", conflicts_with = "bootstrap_from")]
    bootstrap_kubeconfig: Option<PathBuf>,

    /// Secret with the bootstrap kubeconfig, under the key `kubeconfig`, in the cluster of --kubeconfig.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    bootstrap_from: Option<ObjectName>,

    /// Directory for the kubeconfig (file `kubeconfig`) and a key without a certificate (file `pending.key`).
    #[arg(long, value_name = "DIR", required_unless_present = "to_secret", conflicts_with = "to_secret")]
    to: Option<PathBuf>,

    /// Secret for both, in the cluster of --kubeconfig.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    to_secret: Option<ObjectName>,

    /// Path to the kubeconfig for --bootstrap-from and --to-secret. Default: the in-cluster configuration.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Life of the certificates, in seconds: 600 or more, and not more than spec.expirationSeconds of the ClientIdentity.
    #[arg(long, value_name = "SECONDS", default_value_t = crate::api::DEFAULT_EXPIRATION_SECONDS, value_parser = clap::value_parser!(i32).range(600..))]
    expiration_seconds: i32,

    /// Time between two checks of the kubeconfig, and between two reads of the bootstrap kubeconfig.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    interval: Duration,

    /// HTTP address for /metrics, /livez, /readyz and /healthz, such as 127.0.0.1:9404. Default: none.
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,

    #[command(flatten)]
    log: LogArgs,
}

type ObjectName = (String, String);

fn object_name(text: &str) -> Result<ObjectName, &'static str> {
    let parts = text.split_once('/').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    parts.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())).ok_or("expected NAMESPACE/NAME of a Secret")
}

/// Why it cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// No client for the cluster could be created.
    #[error(transparent)]
    Cluster(#[from] cluster::ConnectError),
    /// The port cannot be listened on, or the operating system does not provide threads or signals.
    #[error("cannot run: {0}")]
    Io(#[from] std::io::Error),
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start.
pub fn run(args: Args) -> Result<ExitCode, RunError> {
    args.log.start();
    cli::block_on_this_thread(keep(args))
}

async fn keep(args: Args) -> Result<ExitCode, RunError> {
    let mut signals = Signals::new()?;
    let health = Arc::new(HealthState::default());
    let check = health.add(format!("client-identity/{}", args.identity), Requirement::AtStart);
    let needs_cluster = args.bootstrap_from.is_some() || args.to_secret.is_some();
    let client = if needs_cluster { Some(cluster::connect(args.kubeconfig.as_deref()).await?) } else { None };
    let secrets = |namespace: &str| client.as_ref().map(|client| Api::namespaced(client.clone(), namespace));
    let source = match (&args.bootstrap_from, &args.bootstrap_kubeconfig) {
        (Some((namespace, name)), _) => {
            secrets(namespace).map(|api| BootstrapSource::Secret(Box::new(api), name.clone()))
        }
        (None, file) => file.clone().map(BootstrapSource::File),
    };
    let store = match (&args.to_secret, &args.to) {
        (Some((namespace, name)), _) => {
            secrets(namespace).map(|api| IdentityStore::Secret(Box::new(api), name.clone()))
        }
        (None, directory) => directory.clone().map(IdentityStore::Directory),
    };
    if let Some(directory) = &args.to {
        store::remove_temporary_files(directory);
    }
    // clap requires one of each.
    let (Some(source), Some(store)) = (source, store) else { return Ok(ExitCode::from(2)) };
    let controller = IdentityController {
        requester: Requester { identity: args.identity, expiration_seconds: args.expiration_seconds },
        source,
        store,
        check,
        interval: args.interval.max(Duration::from_millis(100)),
        memory: Memory::default(),
        bootstrap: None,
        bootstrap_read_at: None,
        failure: None,
    };
    tokio::select! {
        () = controller.run() => {}
        error = health_port::serve(args.metrics_listen, health) => return Err(error.into()),
        () = signals.next() => tracing::info!("shutting down"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the bootstrap kubeconfig is.
enum BootstrapSource {
    File(PathBuf),
    Secret(Box<Api<Secret>>, String),
}

impl fmt::Display for BootstrapSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Secret(_, name) => write!(f, "Secret {name}"),
        }
    }
}

impl BootstrapSource {
    /// The bootstrap kubeconfig, if there is one.
    async fn read(&self) -> Result<Option<ClientKubeconfig>, StepError> {
        let text = match self {
            Self::File(path) => read_file(path)?,
            Self::Secret(api, name) => store::text(&store::secret(api, name).await?, store::KUBECONFIG)?,
        };
        let parsed = text.map(|text| kubeconfig::parse(&text)).transpose();
        let parsed = parsed.map_err(|error| StepError::misconfigured(format!("bootstrap kubeconfig: {error}")))?;
        Ok(parsed.map(|(kubeconfig, _)| kubeconfig))
    }
}

/// The text of a file, or `None` if it does not exist.
fn read_file(path: &Path) -> Result<Option<zeroize::Zeroizing<String>>, StepError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(zeroize::Zeroizing::new(text))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StepError::misconfigured(format!("cannot read {}: {error}", path.display()))),
    }
}

struct IdentityController {
    requester: Requester,
    source: BootstrapSource,
    store: IdentityStore,
    check: CheckHandle,
    interval: Duration,
    memory: Memory,
    /// The bootstrap kubeconfig that was read last.
    bootstrap: Option<ClientKubeconfig>,
    bootstrap_read_at: Option<Instant>,
    /// Why the last step failed.
    failure: Option<CheckResult>,
}

impl IdentityController {
    async fn run(mut self) {
        loop {
            if let Err(error) = self.turn().await {
                self.fail(error);
                self.memory.record_failure(Timestamp::now());
                self.report(false);
                sleep(self.interval.min(Duration::from_secs(1))).await;
            }
        }
    }

    /// Reads everything, and makes one step.
    async fn turn(&mut self) -> Result<(), StepError> {
        self.read_bootstrap().await?;
        let stored = self.store.read().await?;
        let target = self.bootstrap.as_ref().map(|kubeconfig| Target::from(&kubeconfig.server));
        let now = Timestamp::now();
        let current = stored.current.as_ref().map(|(_, current)| current);
        let view = View {
            current,
            pending: stored.pending.as_ref().map(|key| &key.pending),
            bootstrap: target.as_ref(),
            memory: &self.memory,
        };
        let step = decide(&view, now);
        if needs_nothing(&view, now) && self.memory.acceptance() == Acceptance::Accepted {
            self.failure = None;
        }
        self.report(current.is_some());
        if let Step::Idle(until) = step {
            let wait = until.map(|until| Duration::try_from(until.duration_since(now)).unwrap_or_default());
            sleep(wait.map_or(self.interval, |wait| wait.min(self.interval))).await;
            return Ok(());
        }
        self.execute(step, &stored, now).await
    }

    /// The source is read at each interval. While it cannot be read, the last bootstrap kubeconfig counts.
    async fn read_bootstrap(&mut self) -> Result<(), StepError> {
        if self.bootstrap_read_at.is_some_and(|at| at.elapsed() < self.interval) {
            return Ok(());
        }
        self.bootstrap_read_at = Some(Instant::now());
        match self.source.read().await {
            Ok(Some(read)) if self.bootstrap.as_ref() != Some(&read) => {
                let hash = fingerprint_of(read.text.as_bytes());
                tracing::info!(server = read.server.endpoint, sha256 = &hash[..8], "bootstrap kubeconfig read");
                self.bootstrap = Some(read);
                self.memory.record_new_bootstrap();
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(error) if self.memory.acceptance() == Acceptance::Accepted => {
                tracing::debug!("bootstrap kubeconfig not read: {error}");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Remembers why a step failed, and logs it once.
    fn fail(&mut self, error: StepError) {
        let failure = error.into_check_result();
        if self.failure.as_ref() != Some(&failure)
            && let CheckResult::Unreachable(reason) | CheckResult::Misconfigured(reason) = &failure
        {
            tracing::warn!("{reason}");
        }
        self.failure = Some(failure);
    }

    fn report(&self, has_kubeconfig: bool) {
        let result = match &self.failure {
            Some(failure) => failure.clone(),
            None if has_kubeconfig && self.memory.acceptance() == Acceptance::Accepted => CheckResult::Ok,
            None if !has_kubeconfig && self.bootstrap.is_none() => CheckResult::Unreachable(format!(
                "no kubeconfig exists, and no bootstrap kubeconfig in {}",
                self.source
            )),
            None => CheckResult::Unreachable("no kubeconfig has worked yet".to_owned()),
        };
        self.check.record(result);
    }

    async fn execute(&mut self, step: Step, stored: &Stored, now: Timestamp) -> Result<(), StepError> {
        let interval = SignedDuration::try_from(self.interval).unwrap_or(SignedDuration::MAX);
        match step {
            Step::Idle(_) => {}
            Step::Check => {
                let Some((kubeconfig, _)) = &stored.current else { return Ok(()) };
                let checked = self.requester.check(kubeconfig).await;
                let acceptance = match &checked {
                    Ok(()) => Some(Acceptance::Accepted),
                    Err(StepError::Refused(_)) => Some(Acceptance::Refused),
                    Err(_) => None,
                };
                let before = self.memory.acceptance();
                self.memory.record_check(acceptance, now, interval);
                if acceptance.is_some_and(|acceptance| acceptance != before) {
                    tracing::info!("the API server's answer to the kubeconfig: {acceptance:?}");
                }
                if let Err(error) = checked {
                    self.fail(error);
                }
            }
            Step::CreateKey => self.store.set_pending(Some(&StoredKey::generate(now)?)).await?,
            Step::Discard => {
                self.store.set_pending(None).await?;
                self.memory.record_discarded();
            }
            Step::Request(via) | Step::Poll(via) | Step::Install(via) => {
                let Some(key) = &stored.pending else { return Ok(()) };
                let by = match via {
                    Via::Bootstrap => self.bootstrap.clone(),
                    Via::Renewal => stored.current.as_ref().map(|(kubeconfig, _)| kubeconfig.clone()),
                };
                let Some(by) = by else { return Ok(()) };
                let target = Target::from(&by.server);
                match step {
                    Step::Request(_) => self.requester.send(&by, key).await?,
                    Step::Poll(_) => {}
                    _ => return self.install(via, &by, key, now, interval).await,
                }
                match self.requester.progress(&by, key).await? {
                    request::Progress::Waiting => self.memory.record_waiting(via, &target, Timestamp::now()),
                    request::Progress::Issued(_) => self.memory.record_request(via, &target, Progress::Issued),
                    request::Progress::Lost(why) => {
                        self.memory.record_request(via, &target, Progress::Lost);
                        return Err(StepError::misconfigured(why));
                    }
                }
            }
        }
        Ok(())
    }

    /// Tries the new kubeconfig, and replaces the old one by it.
    async fn install(
        &mut self,
        via: Via,
        by: &ClientKubeconfig,
        key: &StoredKey,
        now: Timestamp,
        interval: SignedDuration,
    ) -> Result<(), StepError> {
        let target = Target::from(&by.server);
        let request::Progress::Issued(certificate) = self.requester.progress(by, key).await? else {
            self.memory.record_request(via, &target, Progress::Lost);
            return Ok(());
        };
        let new = kubeconfig::with_certificate(&self.requester.identity, &by.server, &certificate, &key.pem());
        match self.requester.check(&new).await {
            Ok(()) => {
                self.store.install(&new).await?;
                self.memory.record_installed(now, interval);
                self.failure = None;
                tracing::info!(
                    server = by.server.endpoint,
                    "{}",
                    match via {
                        Via::Bootstrap => "bootstrapped: the new kubeconfig works and is in use",
                        Via::Renewal => "renewed: the new kubeconfig works and is in use",
                    }
                );
            }
            Err(error @ StepError::Refused(_)) => {
                self.memory.record_refusal(via, &target, now);
                self.fail(error);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// A client for the API server of a kubeconfig.
async fn connect(kubeconfig: &ClientKubeconfig) -> Result<Client, StepError> {
    // Errors of kube could quote the text.
    let unusable = || StepError::misconfigured("the kubeconfig cannot be used".to_owned());
    let parsed = kube::config::Kubeconfig::from_yaml(&kubeconfig.text).map_err(|_| unusable())?;
    let config = kube::Config::from_custom_kubeconfig(parsed, &kube::config::KubeConfigOptions::default()).await;
    Client::try_from(config.map_err(|_| unusable())?).map_err(|_| unusable())
}
