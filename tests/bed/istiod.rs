//! istiod, as a process next to the cluster, with its own mesh CA.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result};
use serde_json::json;

use super::{
    assets::exported,
    cluster::{Cluster, SOON, documents},
    pki::Authority,
    process::Process,
    server::http_get,
    users::User,
    wait::{free_port, wait_for},
};

/// The namespace in which istiod believes that it runs.
const NAMESPACE: &str = "istio-system";
/// The name in its serving certificate that proxies verify.
pub(super) const SERVER_NAME: &str = "istiod.istio-system.svc";

/// A running istiod. Dropping it kills it.
pub(crate) struct Istiod {
    process: Mutex<Process>,
    mesh: Authority,
    pub(super) xds: SocketAddr,
}

impl Istiod {
    /// Installs Istio's CRDs, starts istiod and waits until it is ready.
    pub(crate) fn start(cluster: &Cluster) -> Result<Self> {
        cluster.apply_crds(&documents(&assets()?.join("crds"))?)?;
        Self::start_another(cluster)
    }

    /// Starts another istiod, with a separate mesh CA.
    pub(crate) fn start_another(cluster: &Cluster) -> Result<Self> {
        let assets = assets()?;
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } });
        cluster.kubectl(["apply", "-f", "-"]).stdin(namespace.to_string()).ok()?;
        let dir = cluster.temp_dir("istiod")?;
        let mesh = Authority::of_mesh("trustspan test mesh", &identity(NAMESPACE, "istiod"))?;
        mesh.write_ca(&dir, ["ca-key.pem", "ca-cert.pem", "root-cert.pem", "cert-chain.pem"])?;
        let port = || Ok::<_, anyhow::Error>(SocketAddr::from(([127, 0, 0, 1], free_port()?)));
        let (xds, http) = (port()?, port()?);
        let mesh_config = json!({
            "trustDomain": "cluster.local", "rootNamespace": NAMESPACE, "enableAutoMtls": false, "defaultProviders": {},
            "defaultConfig": { "discoveryAddress": xds.to_string() },
        });
        fs::write(dir.join("mesh.yaml"), mesh_config.to_string())?;
        fs::write(dir.join("networks.yaml"), json!({ "networks": {} }).to_string())?;
        let args = [
            "discovery".to_owned(),
            format!("--kubeconfig={}", cluster.kubeconfig(User::Admin).display()),
            format!("--meshConfig={}", dir.join("mesh.yaml").display()),
            format!("--networksConfig={}", dir.join("networks.yaml").display()),
            format!("--secureGRPCAddr={xds}"),
            format!("--httpAddr={http}"),
            format!("--grpcAddr={}", port()?),
            format!("--httpsAddr={}", port()?),
            format!("--monitoringAddr={}", port()?),
            format!("--ctrlz_port={}", free_port()?),
        ];
        let ca_dir = dir.display().to_string();
        let env = [
            ("POD_NAMESPACE", NAMESPACE),
            ("POD_NAME", "istiod-0"),
            ("REVISION", "default"),
            ("PILOT_CERT_PROVIDER", "istiod"),
            ("CLUSTER_ID", "Kubernetes"),
            ("ENABLE_CA_SERVER", "true"),
            ("ROOT_CA_DIR", &ca_dir),
            // Without Istio's injection webhook, and without Deployments for Gateways of the Gateway API.
            ("INJECTION_WEBHOOK_CONFIG_NAME", ""),
            ("VALIDATION_WEBHOOK_CONFIG_NAME", ""),
            ("PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER", "false"),
            ("PILOT_ENABLE_GATEWAY_API_STATUS", "false"),
            // These filters exist only in Istio's build of Envoy, not in the upstream one that the bed runs.
            ("PILOT_ENABLE_ALPN_FILTER", "false"),
            ("PILOT_ENABLE_METADATA_EXCHANGE", "false"),
        ];
        let name = format!("istiod-{}", cluster.unique());
        let mut process = cluster.spawn(&name, &assets.join("pilot-discovery"), args, &env)?;
        let ready = wait_for("istiod to be ready", SOON, || {
            Ok(process.exited()?.is_some() || http_get(http.port(), "/ready")?.0 == 200)
        });
        ready.with_context(|| process.log_tail(30))?;
        anyhow::ensure!(process.exited()?.is_none(), "istiod exited while starting\n{}", process.log_tail(30));
        Ok(Self { process: Mutex::new(process), mesh, xds })
    }

    /// Stops istiod with SIGSTOP: proxies keep their connections and get no updates.
    pub(crate) fn pause(&self) -> Result<()> {
        self.signal("STOP")
    }

    /// Resumes istiod after [`pause`](Self::pause).
    pub(crate) fn resume(&self) -> Result<()> {
        self.signal("CONT")
    }

    /// The last lines of its log.
    pub(crate) fn log_tail(&self, lines: usize) -> String {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).log_tail(lines)
    }

    /// Writes `tls.crt`, `tls.key` and `ca.crt` with which a proxy of a ServiceAccount connects.
    pub(super) fn issue_proxy(&self, ns: &str, service_account: &str, dir: &Path) -> Result<()> {
        self.mesh.issue_workload_to(&identity(ns, service_account), dir)
    }

    fn signal(&self, signal: &str) -> Result<()> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).signal(signal)
    }
}

fn assets() -> Result<PathBuf> {
    let [dir] = exported("setup", &["istiod"], ["TRUSTSPAN_BED_ISTIOD"])?;
    Ok(PathBuf::from(dir))
}

fn identity(ns: &str, service_account: &str) -> String {
    format!("spiffe://cluster.local/ns/{ns}/sa/{service_account}")
}
