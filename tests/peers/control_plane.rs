//! The Secrets of Envoy Gateway's control plane in a namespace, and the programs that rotate them.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1;
use kube::{Api, Client};
use tokio::runtime::Runtime;
use trustspan::store::cluster::connect;

use crate::{
    shelf::{Delivered, Shelf},
    testbed::{Cluster, Process, SOON, Seed, User, exported, wait_for_value},
};

/// The Secrets with certificates.
pub(crate) const SECRETS: [&str; 3] = ["envoy-gateway", "envoy", "envoy-rate-limit"];
/// Longer than all parties need to load a change: [`LONGEST_SYNC`], and the delay of a busy machine.
const PROPAGATION_DELAY: &str = "4s";
/// A party loads a change at most this long after it appeared.
pub(crate) const LONGEST_SYNC: Duration = Duration::from_secs(2);
const PROFILE: &str = include_str!("../../src/certgen/envoy-gateway.yaml");

/// What rotates the Secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rotator {
    /// `trustspan certgen --overwrite`.
    Staged,
    /// `trustspan certgen --overwrite --single-write`.
    SingleWrite,
    /// `envoy-gateway certgen --overwrite`.
    EnvoyGateway,
}

/// A namespace with these Secrets, created by `envoy-gateway certgen`, as on a cluster that trustspan takes over.
pub(crate) struct ControlPlane<'c> {
    pub(crate) cluster: &'c Cluster,
    pub(crate) ns: &'c str,
    pub(crate) runtime: Runtime,
    pub(crate) client: Client,
    shelf: Arc<Shelf>,
    profile: String,
    envoy_gateway: PathBuf,
}

impl<'c> ControlPlane<'c> {
    pub(crate) fn new(cluster: &'c Cluster, ns: &'c str) -> Result<Self> {
        let [folder] = exported("setup", &["envoy-gateway"], ["TRUSTSPAN_BED_ENVOY_GATEWAY"])?;
        let profile = cluster.temp_dir("certgen")?.join("profile.yaml");
        fs::write(&profile, format!("{PROFILE}propagationDelay: {PROPAGATION_DELAY}\n"))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(connect(Some(&cluster.kubeconfig(User::Admin))))?;
        let shelf = Arc::new(Shelf::default());
        runtime.spawn(Arc::clone(&shelf).follow(Api::<v1::Secret>::namespaced(client.clone(), ns)));
        let envoy_gateway = Path::new(&folder).join("envoy-gateway");
        let profile = profile.display().to_string();
        let this = Self { cluster, ns, runtime, client, shelf, profile, envoy_gateway };
        let status = this.spawn_envoy_gateway(&[])?.wait(SOON)?;
        ensure!(status == 0, "envoy-gateway certgen ended with {status}");
        for name in SECRETS {
            wait_for_value(&format!("Secret {name}"), SOON, || Ok(this.shelf.newest(name)))?;
        }
        Ok(this)
    }

    /// Starts a rotation.
    pub(crate) fn rotate(&self, rotator: Rotator) -> Result<Process> {
        match rotator {
            Rotator::Staged => self.spawn_trustspan(&["--overwrite"]),
            Rotator::SingleWrite => self.spawn_trustspan(&["--overwrite", "--single-write"]),
            Rotator::EnvoyGateway => self.spawn_envoy_gateway(&["--overwrite"]),
        }
    }

    fn spawn_trustspan(&self, more: &[&str]) -> Result<Process> {
        let kubeconfig = self.kubeconfig();
        let mut args = vec!["certgen", "-f", &self.profile, "-n", self.ns, "--kubeconfig", &kubeconfig];
        args.extend(more);
        let name = format!("trustspan-{}", self.cluster.unique());
        self.cluster.spawn(&name, Path::new(env!("CARGO_BIN_EXE_trustspan")), args, &[])
    }

    /// Envoy Gateway's certgen also patches its webhook configuration, which does not exist in these tests.
    fn spawn_envoy_gateway(&self, more: &[&str]) -> Result<Process> {
        let kubeconfig = self.kubeconfig();
        let mut args = vec!["certgen", "--disable-topology-injector"];
        args.extend(more);
        let env = [("KUBECONFIG", kubeconfig.as_str()), ("ENVOY_GATEWAY_NAMESPACE", self.ns)];
        let name = format!("envoy-gateway-{}", self.cluster.unique());
        self.cluster.spawn(&name, &self.envoy_gateway, args, &env)
    }

    fn kubeconfig(&self) -> String {
        self.cluster.kubeconfig(User::Admin).display().to_string()
    }

    /// The newest version of a Secret that the watch has delivered.
    pub(crate) fn newest(&self, secret: &str) -> Result<Arc<Delivered>> {
        self.shelf.newest(secret).with_context(|| format!("Secret {secret} is missing"))
    }

    /// Whether the watch has delivered everything that is stored.
    pub(crate) fn is_delivered(&self) -> Result<bool> {
        let api = Api::<v1::Secret>::namespaced(self.client.clone(), self.ns);
        for name in SECRETS {
            let stored = self.runtime.block_on(api.get_metadata(name))?;
            if stored.metadata.resource_version.as_ref() != Some(&self.newest(name)?.version) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The Secret that a party has loaded. It loads a new version some time after the write, as a process does with files
/// that the kubelet updates.
pub(crate) struct Reader {
    pub(crate) secret: &'static str,
    pub(crate) loaded: Arc<Delivered>,
    due: Option<Instant>,
}

impl Reader {
    pub(crate) fn new(control_plane: &ControlPlane<'_>, secret: &'static str) -> Result<Self> {
        Ok(Self { secret, loaded: control_plane.newest(secret)?, due: None })
    }

    /// Loads the newest version if it is time. Returns whether it did.
    pub(crate) fn sync(&mut self, control_plane: &ControlPlane<'_>, seed: &mut Seed) -> Result<bool> {
        let newest = control_plane.newest(self.secret)?;
        if newest.version == self.loaded.version {
            return Ok(false);
        }
        let now = Instant::now();
        let mut at = || now + Duration::from_millis(seed.below(LONGEST_SYNC.as_millis() as u64));
        if *self.due.get_or_insert_with(&mut at) > now {
            return Ok(false);
        }
        (self.due, self.loaded) = (None, newest);
        Ok(true)
    }

    /// Whether it has loaded the newest version.
    pub(crate) fn is_synced(&self, control_plane: &ControlPlane<'_>) -> Result<bool> {
        Ok(self.loaded.version == control_plane.newest(self.secret)?.version)
    }
}
