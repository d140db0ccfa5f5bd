//! `trustspan certgen`.

mod target;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use self::target::Target;
use super::Failure;
use super::controller_args::duration;
use super::kube_args::KubeArgs;
use crate::certgen::{BUILT_IN, Intent, ObjectKind, Objects, Options, Profile, built_in};
use crate::store::certgen::{CertgenStep, Written, next_step};
use crate::text::printable;

/// How often the objects are read again while a rollout progresses.
const EVERY: Duration = Duration::from_secs(1);
/// The same while readers load a Secret: somebody else may change it.
const EVERY_DELAY: Duration = Duration::from_secs(5);
/// How long an API server that has answered before may be unreachable.
const OUTAGE: Duration = Duration::from_secs(60);
/// How often a write that is undone, or that conflicts with others, is repeated.
const REPEATED: u32 = 5;

/// Create or rotate the keys and certificates of a control plane that has no cert-manager.
///
/// Existing Secrets stay as they are. With --overwrite the CA and all certificates are rotated in stages, so that no connection fails: the new
/// CA is trusted next to the old one before a certificate of it is used. Between the stages the command waits until readers have loaded the Secrets:
/// propagationDelay of the profile, 3m by default (the kubelet's syncFrequency of 1m, its cache of 1m, and 1m for the program). A run that was
/// interrupted is resumed by the next one.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    profile: ProfileArgs,

    /// Namespace of the Secrets.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: String,

    /// Rotate: replace the CA and the certificates, or resume a rotation that was interrupted.
    #[arg(long)]
    overwrite: bool,

    /// Write certificate and CA of each Secret at once, without stages. Connections fail until all readers have loaded both.
    #[arg(long, requires = "overwrite")]
    single_write: bool,

    /// The longest time to wait for the rollouts of restarted Deployments.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    timeout: Duration,

    /// How many old CAs a bundle keeps, in place of maxPreviousCAs of the profile (1 for the built-in ones). A higher number repairs Secrets whose
    /// certificates are of several CAs.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    max_previous_cas: Option<u16>,

    /// DNS domain of the cluster, for {clusterDomain} in the profile.
    #[arg(long, value_name = "DOMAIN", env = "KUBERNETES_CLUSTER_DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,

    #[command(flatten)]
    kube: KubeArgs,

    /// Read and write manifests in this directory instead of a cluster, one file for each Secret. There are no stages.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "context", "single_write", "timeout"])]
    output_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct ProfileArgs {
    /// A built-in profile.
    #[arg(long, value_name = "NAME", value_parser = BUILT_IN)]
    profile: Option<String>,

    /// A file with a profile.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl ProfileArgs {
    fn text(&self) -> Result<String, Failure> {
        match (&self.file, self.profile.as_deref().and_then(built_in)) {
            (None, Some(text)) => Ok(text.to_owned()),
            (file, _) => {
                let path = file.clone().unwrap_or_default();
                let wrap = |error| Failure::Unreadable(format!("{}: {error}", path.display()));
                std::fs::read_to_string(&path).map_err(wrap)
            }
        }
    }
}

/// Runs the subcommand.
///
/// # Errors
/// When the profile or the objects cannot be used, when a write is rejected, or when a rollout does not complete in time.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let text = args.profile.text()?;
    let mut profile = Profile::read(&text, &args.namespace, &args.cluster_domain)
        .map_err(|error| Failure::Unreadable(format!("the profile: {error}")))?;
    if let Some(number) = args.max_previous_cas {
        profile.max_previous_cas = number.into();
    }
    super::block_on_this_thread(async {
        let target = match args.output_dir {
            Some(dir) => Target::Directory(dir),
            None => Target::Cluster(args.kube.connect().await?),
        };
        let intent = if args.overwrite { Intent::Rotate } else { Intent::Create };
        // A directory has no readers.
        let single_write = args.single_write || !target.is_cluster();
        Run { profile, target, options: Options { intent, single_write }, timeout: args.timeout }.carry_out().await
    })
}

struct Run {
    profile: Profile,
    target: Target,
    options: Options,
    timeout: Duration,
}

impl Run {
    async fn carry_out(mut self) -> Result<ExitCode, Failure> {
        let (mut written, mut waited) = (BTreeMap::<String, u32>::new(), None::<(String, Instant)>);
        let mut answered = None::<Instant>;
        loop {
            let objects = match (self.target.read(&self.profile).await, answered) {
                (Ok(objects), _) => objects,
                // An API server that has just started may not know any rights yet.
                (Err(_), Some(last)) if self.target.is_cluster() && last.elapsed() < OUTAGE => {
                    tokio::time::sleep(EVERY).await;
                    continue;
                }
                (Err(error), _) => return Err(error),
            };
            answered = Some(Instant::now());
            let is_pending = objects.get(ObjectKind::Secret, &self.profile.pending_secret_name).is_some();
            if is_pending && self.options.intent == Intent::Rotate {
                self.options.intent = Intent::Resume;
            }
            let step = next_step(&self.profile, &objects, self.options, Timestamp::now()).map_err(impossible)?;
            let (what, change) = match step {
                CertgenStep::Done(what) => {
                    anstream::println!("{}", printable(&what));
                    return Ok(ExitCode::SUCCESS);
                }
                CertgenStep::Wait { until, why } => {
                    self.wait(until, &why, &mut waited).await?;
                    continue;
                }
                CertgenStep::Write { what, change } => (what, change),
            };
            waited = None;
            self.write(&objects, what, change, &mut written).await?;
        }
    }

    async fn write(
        &self,
        objects: &Objects,
        what: String,
        change: crate::certgen::Change,
        written: &mut BTreeMap<String, u32>,
    ) -> Result<(), Failure> {
        let what = printable(&what);
        let times = written.entry(what.clone()).or_default();
        *times += 1;
        if *times > REPEATED {
            return Err(Failure::Impossible(format!(
                "{what}: done {REPEATED} times, and each time somebody else changed the object: find the controller or admission webhook that \
                 does, then run again"
            )));
        }
        if self.target.write(&self.profile, objects, change).await? == Written::Yes {
            anstream::println!("{what}");
        }
        Ok(())
    }

    async fn wait(
        &self,
        until: Option<Timestamp>,
        why: &str,
        waited: &mut Option<(String, Instant)>,
    ) -> Result<(), Failure> {
        let why = printable(why);
        if waited.as_ref().is_none_or(|(last, _)| *last != why) {
            anstream::println!("waiting {why}");
        }
        let Some(until) = until else {
            let since = waited.take().map_or_else(Instant::now, |(_, since)| since);
            if since.elapsed() >= self.timeout {
                return Err(Failure::Impossible(format!(
                    "waited {:?} {why}: make the rollout complete, then run again. Until then the old and the new CA are trusted",
                    self.timeout
                )));
            }
            *waited = Some((why, since));
            tokio::time::sleep(EVERY).await;
            return Ok(());
        };
        *waited = Some((why, Instant::now()));
        let left = Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default();
        tokio::time::sleep(left.min(EVERY_DELAY)).await;
        Ok(())
    }
}

fn impossible(error: impl std::fmt::Display) -> Failure {
    Failure::Impossible(error.to_string())
}
