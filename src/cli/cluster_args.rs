//! Where subcommands that ask for GatewaySecrets look them up.

use std::path::PathBuf;

use jiff::Timestamp;
use kube::Client;

use super::Failure;
use super::sanitize::printable;
use crate::agent;
use crate::registry::Entry;
use crate::store::{Unread, cluster};

/// Where GatewaySecrets are looked up.
#[derive(Debug, clap::Args)]
pub(super) struct ClusterArgs {
    /// Kubeconfig of the cluster. Default: as kubectl finds it.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// A directory of manifests instead of a cluster.
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig")]
    pub(super) manifests: Option<PathBuf>,

    /// Their namespace. Default: all.
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(super) namespace: Option<String>,
}

impl ClusterArgs {
    /// Whether it is a directory.
    pub(super) fn is_directory(&self) -> bool {
        self.manifests.is_some()
    }

    /// Asks the cluster something.
    pub(super) fn on_cluster<T, E>(&self, ask: impl AsyncFnOnce(Client) -> Result<T, E>) -> Result<T, Failure>
    where
        Failure: From<E>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { Ok(ask(cluster::connect_as_kubectl(self.kubeconfig.as_deref()).await?).await?) })
    }

    /// The GatewaySecrets there, those with one of the names, or all.
    pub(super) fn read(&self, names: &[String]) -> Result<Vec<Entry>, Failure> {
        let (mut found, unread) = match &self.manifests {
            Some(dir) => (agent::directory::report(dir, Timestamp::now())?, Unread::new()),
            None => self.on_cluster(cluster::list)?,
        };
        let is_asked_for = |namespace: &String| self.namespace.as_ref().is_none_or(|name| name == namespace);
        found.retain(|entry| is_asked_for(&entry.namespace));
        for ((namespace, name), why) in unread.iter().filter(|((namespace, _), _)| is_asked_for(namespace)) {
            let failure =
                Failure::UnreadGatewaySecret { namespace: namespace.clone(), name: name.clone(), why: why.clone() };
            if names.contains(name) {
                return Err(failure);
            } else if names.is_empty() {
                anstream::eprintln!("warning: {}", printable(&failure.to_string()));
            }
        }
        for name in names {
            if !found.iter().any(|entry| entry.name == *name) {
                return Err(Failure::NoGatewaySecret(name.clone()));
            }
        }
        found.retain(|entry| names.is_empty() || names.contains(&entry.name));
        found.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        Ok(found)
    }
}
