//! The kinds of workloads of `apps/v1`: the one table of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A kind of workload with a pod template that a rollout follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
pub enum WorkloadKind {
    /// A Deployment.
    Deployment,
    /// A StatefulSet.
    StatefulSet,
    /// A DaemonSet.
    DaemonSet,
}

impl WorkloadKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Deployment, Self::StatefulSet, Self::DaemonSet];
    /// Their names, as [`Self::name`] gives them.
    pub const NAMES: [&str; 3] = [Self::ALL[0].name(), Self::ALL[1].name(), Self::ALL[2].name()];

    /// The kind as Kubernetes writes it.
    pub const fn name(self) -> &'static str {
        self.names().0
    }

    /// The resource.
    pub const fn plural(self) -> &'static str {
        self.names().1
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// A workload of this kind as an argument of kubectl.
    pub fn label(self, name: &str) -> String {
        format!("{}/{name}", self.name().to_lowercase())
    }

    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Deployment => ("Deployment", "deployments"),
            Self::StatefulSet => ("StatefulSet", "statefulsets"),
            Self::DaemonSet => ("DaemonSet", "daemonsets"),
        }
    }
}
