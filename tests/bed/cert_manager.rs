//! cert-manager's controllers, as a process outside of the cluster.

use std::path::PathBuf;

use anyhow::Result;

use super::{
    assets::exported,
    cluster::{Cluster, documents},
    process::Process,
    users::User,
};

/// cert-manager's cluster resource namespace (see its main.go): where a ClusterIssuer's Secrets are.
pub(crate) const CLUSTER_RESOURCES: &str = "default";

/// The running controllers. Dropping them kills them.
pub(crate) struct CertManager {
    binary: PathBuf,
    _process: Process,
}

impl CertManager {
    /// Installs its CRDs and starts the controllers. Returns when they issue a certificate.
    pub(crate) fn start(cluster: &Cluster) -> Result<Self> {
        Self::start_with(cluster, &[])
    }

    /// The same with gateway-shim, which makes Certificates for annotated Gateways of the Gateway API.
    pub(crate) fn start_with_gateway_shim(cluster: &Cluster) -> Result<Self> {
        Self::start_with(cluster, &["--gateway-shim"])
    }

    fn start_with(cluster: &Cluster, flags: &[&str]) -> Result<Self> {
        let [dir] = exported("setup", &["cert-manager"], ["TRUSTSPAN_BED_CERT_MANAGER"])?;
        let dir = PathBuf::from(dir);
        cluster.apply_crds(&documents(&dir.join("crds"))?)?;
        let binary = dir.join("cert-manager");
        let process = cluster.spawn(
            "cert-manager",
            &binary,
            flags.iter().map(|&flag| flag.to_owned()).chain([kubeconfig(cluster)]),
            &[],
        )?;
        Ok(Self { binary, _process: process })
    }

    /// Starts cainjector, which writes `caBundle` of webhook configurations with its annotation.
    pub(crate) fn start_cainjector(&self, cluster: &Cluster) -> Result<Process> {
        cluster.spawn("cainjector", &self.binary, ["--cainjector".to_owned(), kubeconfig(cluster)], &[])
    }
}

fn kubeconfig(cluster: &Cluster) -> String {
    format!("--kubeconfig={}", cluster.kubeconfig(User::Admin).display())
}
