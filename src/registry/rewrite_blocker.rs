//! Why a rename is held back, as users read it.

use super::Entry;

/// Why a reference to a managed root keeps its name for now. Its text is a warning: what was seen, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RewriteBlocker {
    /// The managed Secret does not exist, or is not sound: naming it would cut the gateway off.
    #[error("GatewaySecret {name} is not Ready ({reason}): Secret {managed} cannot be named yet")]
    NotReady {
        /// The GatewaySecret.
        name: String,
        /// Reason of its Ready condition.
        reason: String,
        /// The managed Secret.
        managed: String,
    },
    /// Istio takes CAs from `<root>-cacert` first; after a rename it would no longer apply.
    #[error("Secret {sibling} holds {missing} CA(s) that Secret {managed} lacks: add them there first")]
    Sibling {
        /// The sibling.
        sibling: String,
        /// The managed Secret.
        managed: String,
        /// How many CAs are missing.
        missing: usize,
    },
    /// A ReferenceGrant names what the owner wrote only.
    #[error("no known ReferenceGrant in {namespace} lets namespace {from} use {managed}: add it to the grant")]
    Ungranted {
        /// Namespace of the Gateway.
        from: String,
        /// Namespace of the object.
        namespace: String,
        /// Kind and name of what the agent keeps.
        managed: String,
    },
    /// The ConfigMap that the agent is to keep does not hold CAs yet.
    #[error(
        "ConfigMap {managed} is not kept yet: ConfigMap {config_map} keeps its name. Conditions of GatewaySecret {name} say why"
    )]
    NoConfigMap {
        /// The GatewaySecret.
        name: String,
        /// The ConfigMap of `spec.clients.caConfigMapNames`.
        config_map: String,
        /// What is to be kept from it.
        managed: String,
    },
    /// No status says where the selected workloads run.
    #[error("where the workloads of this Gateway run is not observed yet: Secret {root} keeps its name")]
    Unobserved {
        /// The root Secret.
        root: String,
    },
    /// The status of the GatewaySecret cannot hold all namespaces that matter: any could be one of them.
    #[error(
        "GatewaySecret {name} concerns {count} namespaces, more than its status can list: Secret {root} keeps its name. \
         Condition StatusComplete says what to do"
    )]
    Unlisted {
        /// The GatewaySecret.
        name: String,
        /// How many namespaces.
        count: u32,
        /// The root Secret.
        root: String,
    },
    /// The selector picks no known workload.
    #[error("no workload that this Gateway selects is known: Secret {root} keeps its name")]
    NoWorkload {
        /// The root Secret.
        root: String,
    },
    /// A namespace with selected workloads has no GatewaySecret for this root.
    #[error("a namespace whose workloads this Gateway selects has no GatewaySecret for Secret {root}")]
    Unmapped {
        /// The root Secret.
        root: String,
    },
    /// The namespaces of the selected workloads map the root to different names.
    #[error("the namespaces of the selected workloads rename Secret {root} differently: use one spec.secretName")]
    Differs {
        /// The root Secret.
        root: String,
    },
    /// The managed Secret's `ca.crt` is not the one that the pod loads from the root.
    #[error(
        "Secret {managed} holds the clients' CA in ca.crt, not {root}'s: load tls.crt and tls.key alone to follow it"
    )]
    OtherCa {
        /// The root Secret.
        root: String,
        /// The managed Secret.
        managed: String,
    },
}

impl RewriteBlocker {
    pub(super) fn unlisted(entry: &Entry, count: u32) -> Self {
        Self::Unlisted { name: entry.name.clone(), count, root: entry.source_name().to_owned() }
    }

    pub(super) fn not_ready(entry: &Entry, reason: &str) -> Self {
        Self::NotReady { name: entry.name.clone(), reason: reason.to_owned(), managed: entry.managed_name().to_owned() }
    }
}
