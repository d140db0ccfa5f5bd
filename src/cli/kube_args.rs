//! The flags by which commands find a cluster, as kubectl has them.

use std::path::PathBuf;

use kube::Client;

use crate::store::cluster::{self, ConnectError};

/// How to connect to a cluster.
#[derive(Debug, clap::Args)]
pub(super) struct KubeArgs {
    /// Path to the kubeconfig. Default: as for kubectl.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig. Default: its current one.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl KubeArgs {
    pub(super) async fn connect(&self) -> Result<Client, ConnectError> {
        cluster::connect_as_kubectl(self.kubeconfig.as_deref(), self.context.as_deref()).await
    }
}
