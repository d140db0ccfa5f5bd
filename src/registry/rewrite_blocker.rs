//! Why a reference is not rewritten.

use super::Entry;

/// Why a reference to a source Secret is not rewritten. The text is a warning: what was found, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RewriteBlocker {
    /// The managed Secret does not exist or is invalid: the gateway would fail with it.
    #[error("not rewritten to Secret {managed}: GatewaySecret {name} is not Ready ({reason}). See its conditions")]
    NotReady {
        /// The GatewaySecret.
        name: String,
        /// Reason of its Ready condition.
        reason: String,
        /// The managed Secret.
        managed: String,
    },
    /// Istio prefers the CAs of `<source>-cacert`, which would not be used after the rewrite.
    #[error(
        "not rewritten to Secret {managed}: it lacks CAs of Secret {sibling} ({missing} missing). Add them to Secret {managed} first"
    )]
    Sibling {
        /// The `-cacert` Secret.
        sibling: String,
        /// The managed Secret.
        managed: String,
        /// Number of missing CAs.
        missing: usize,
    },
    /// No ReferenceGrant allows the managed object.
    #[error(
        "not rewritten to {managed}: no ReferenceGrant in namespace {namespace} allows Gateways in namespace {from} to use it. Add it to the grant"
    )]
    Ungranted {
        /// Namespace of the Gateway.
        from: String,
        /// Namespace of the object.
        namespace: String,
        /// Kind and name of the managed object.
        managed: String,
    },
    /// The managed ConfigMap does not contain CAs yet.
    #[error(
        "not rewritten from ConfigMap {config_map} to {managed}, which is not written yet. See the conditions of GatewaySecret {name}"
    )]
    NoConfigMap {
        /// The GatewaySecret.
        name: String,
        /// The ConfigMap of `spec.clients.caConfigMapNames`.
        config_map: String,
        /// The managed ConfigMap.
        managed: String,
    },
    /// The namespaces of the selected workloads are not observed yet.
    #[error(
        "Secret {secret} is not rewritten: the workloads that this Gateway selects are not observed yet. Retry when the agent runs"
    )]
    Unobserved {
        /// The source Secret.
        secret: String,
    },
    /// The status cannot list all namespaces of workloads or Gateways.
    #[error(
        "Secret {secret} is not rewritten: GatewaySecret {name} concerns {count} namespaces, more than its status can list. See its \
         condition StatusComplete"
    )]
    Unlisted {
        /// The GatewaySecret.
        name: String,
        /// Number of namespaces.
        count: u32,
        /// The source Secret.
        secret: String,
    },
    /// The selector matches no running workload.
    #[error(
        "Secret {secret} is not rewritten: no running workload matches this Gateway's selector. Check the selector, or deploy the workload first"
    )]
    NoWorkload {
        /// The source Secret.
        secret: String,
    },
    /// A namespace with selected workloads has no GatewaySecret for this source Secret.
    #[error(
        "Secret {secret} is not rewritten: this Gateway selects workloads in a namespace without a GatewaySecret for it. Create one there, or \
             narrow the selector"
    )]
    Unmapped {
        /// The source Secret.
        secret: String,
    },
    /// The namespaces of the selected workloads have different managed Secrets for this source Secret.
    #[error(
        "Secret {secret} is not rewritten: its GatewaySecrets in the namespaces of the selected workloads have different managed Secrets. Set \
             the same spec.secretName in each"
    )]
    Differs {
        /// The source Secret.
        secret: String,
    },
    /// The managed Secret's `ca.crt` contains another CA than the source Secret's, which the pod loads.
    #[error(
        "Secret {secret} is not rewritten to {managed}, whose ca.crt contains the clients' CA and not that of {secret}. Load only tls.crt and \
         tls.key to have it rewritten"
    )]
    OtherCa {
        /// The source Secret.
        secret: String,
        /// The managed Secret.
        managed: String,
    },
}

impl RewriteBlocker {
    pub(super) fn unlisted(entry: &Entry, count: u32) -> Self {
        Self::Unlisted { name: entry.name.clone(), count, secret: entry.source_name().to_owned() }
    }

    pub(super) fn not_ready(entry: &Entry, reason: &str) -> Self {
        Self::NotReady { name: entry.name.clone(), reason: reason.to_owned(), managed: entry.managed_name().to_owned() }
    }
}
