//! The source of GatewaySecrets for subcommands: a cluster or a directory of manifests.

use std::path::PathBuf;

use jiff::Timestamp;
use kube::Client;

use super::Failure;
use super::kube_args::KubeArgs;
use super::state_args::StateArgs;
use crate::agent;
use crate::consumer::ConsumerSummary;
use crate::registry::Entry;
use crate::store::{Unread, cluster};
use crate::text::printable;

/// The source of GatewaySecrets.
#[derive(Debug, clap::Args)]
pub(super) struct ClusterArgs {
    #[command(flatten)]
    kube: KubeArgs,

    /// Read manifests in this directory instead of a cluster.
    #[arg(short = 'f', long = "filename", value_name = "DIR", conflicts_with_all = ["kubeconfig", "context"])]
    pub(super) directory: Option<PathBuf>,

    /// Namespace of the GatewaySecrets. Default: all.
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(super) namespace: Option<String>,

    /// All namespaces, which is the default.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
}

impl ClusterArgs {
    /// Whether the source is a directory.
    pub(super) fn is_directory(&self) -> bool {
        self.directory.is_some()
    }

    /// Runs a request on the cluster.
    pub(super) fn on_cluster<T, E>(&self, request: impl AsyncFnOnce(Client) -> Result<T, E>) -> Result<T, Failure>
    where
        Failure: From<E>,
    {
        super::block_on_this_thread(async { Ok(request(self.kube.connect().await?).await?) })
    }

    /// The GatewaySecrets of the cluster with these names, or all when there are none.
    pub(super) fn read(&self, names: &[String]) -> Result<Vec<Entry>, Failure> {
        let (found, unread) = self.on_cluster(cluster::list)?;
        self.select(found, &unread, names, &[])
    }

    /// The same of the cluster, or of the directory and its state directory.
    pub(super) fn read_with(&self, state: &StateArgs, names: &[String]) -> Result<Vec<Entry>, Failure> {
        self.read_unless_known(state, names, &[])
    }

    /// The same. `known` are names of objects of another kind: no GatewaySecret has to have them.
    pub(super) fn read_unless_known(
        &self,
        state: &StateArgs,
        names: &[String],
        known: &[&str],
    ) -> Result<Vec<Entry>, Failure> {
        let (found, unread) = match &self.directory {
            Some(dir) => (agent::directory::report(&state.with(dir)?, Timestamp::now())?, Unread::new()),
            None => self.on_cluster(cluster::list)?,
        };
        self.select(found, &unread, names, known)
    }

    /// The TrustConsumers of the cluster with these names, or all when there are none. In a directory no agent restarts their workloads, so there
    /// are none.
    pub(super) fn trust_consumers(&self, names: &[String]) -> Result<Vec<ConsumerSummary>, Failure> {
        if self.is_directory() {
            return Ok(Vec::new());
        }
        let mut found = self.on_cluster(cluster::trust_consumers)?;
        let is_selected = |one: &ConsumerSummary| {
            self.namespace.as_ref().is_none_or(|name| *name == one.namespace)
                && (names.is_empty() || names.contains(&one.name))
        };
        found.retain(is_selected);
        found.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        Ok(found)
    }

    fn select(
        &self,
        mut found: Vec<Entry>,
        unread: &Unread,
        names: &[String],
        known: &[&str],
    ) -> Result<Vec<Entry>, Failure> {
        let is_selected = |namespace: &String| self.namespace.as_ref().is_none_or(|name| name == namespace);
        found.retain(|entry| is_selected(&entry.namespace));
        for ((namespace, name), why) in unread.iter().filter(|((namespace, _), _)| is_selected(namespace)) {
            let failure =
                Failure::UnreadGatewaySecret { namespace: namespace.clone(), name: name.clone(), why: why.clone() };
            if names.contains(name) {
                return Err(failure);
            } else if names.is_empty() {
                anstream::eprintln!("warning: {}", printable(&failure.to_string()));
            }
        }
        for name in names {
            if !found.iter().any(|entry| entry.name == *name) && !known.contains(&name.as_str()) {
                return Err(Failure::NoGatewaySecret(name.clone()));
            }
        }
        found.retain(|entry| names.is_empty() || names.contains(&entry.name));
        found.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        Ok(found)
    }
}
