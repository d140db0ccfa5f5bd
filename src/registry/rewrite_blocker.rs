//! Why a reference is not rewritten.

use super::Entry;
use crate::trust::counted;

/// Why a reference to a source Secret is not rewritten yet. Its text is a warning: what was found, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RewriteBlocker {
    /// The managed Secret does not exist or is invalid, so that the gateway could not serve with it.
    #[error(
        "GatewaySecret {name} is not Ready ({reason}), so Secret {managed} cannot be used yet; do what its condition Ready says"
    )]
    NotReady {
        /// The GatewaySecret.
        name: String,
        /// Reason of its Ready condition.
        reason: String,
        /// Name of the managed Secret.
        managed: String,
    },
    /// Istio takes CAs from `<source>-cacert` first, which would not apply to the managed Secret.
    #[error("Secret {managed} lacks {} of Secret {sibling}; add them there first", counted(*missing, "CA"))]
    Sibling {
        /// The `-cacert` Secret.
        sibling: String,
        /// The managed Secret.
        managed: String,
        /// The number of missing CAs.
        missing: usize,
    },
    /// A ReferenceGrant does not include the managed object.
    #[error("no ReferenceGrant in namespace {namespace} allows namespace {from} to use {managed}; add it to the grant")]
    Ungranted {
        /// Namespace of the Gateway.
        from: String,
        /// Namespace of the object.
        namespace: String,
        /// Kind and name of the managed object.
        managed: String,
    },
    /// The managed ConfigMap has no CAs yet.
    #[error(
        "ConfigMap {managed} does not exist yet, so ConfigMap {config_map} stays in use; conditions of GatewaySecret {name} say why"
    )]
    NoConfigMap {
        /// The GatewaySecret.
        name: String,
        /// The ConfigMap of `spec.clients.caConfigMapNames`.
        config_map: String,
        /// The managed ConfigMap.
        managed: String,
    },
    /// The namespaces of the selected workloads are not in status yet.
    #[error(
        "the workloads of this Gateway have not been observed yet, so Secret {secret} stays in use; write the Gateway again later"
    )]
    Unobserved {
        /// The source Secret.
        secret: String,
    },
    /// The status of the GatewaySecret does not list all affected namespaces, so this object may be in one of them.
    #[error(
        "GatewaySecret {name} affects {count} namespaces, more than its status can list, so Secret {secret} stays in use; do what \
         condition StatusComplete says"
    )]
    Unlisted {
        /// The GatewaySecret.
        name: String,
        /// The number of namespaces.
        count: u32,
        /// The source Secret.
        secret: String,
    },
    /// The selector matches no known workload.
    #[error(
        "no running workload matches this Gateway's selector, so Secret {secret} stays in use; start one, then write the Gateway again"
    )]
    NoWorkload {
        /// The source Secret.
        secret: String,
    },
    /// A namespace with selected workloads has no GatewaySecret for this source Secret.
    #[error("a namespace with workloads of this Gateway has no GatewaySecret for Secret {secret}; create one there")]
    Unmapped {
        /// The source Secret.
        secret: String,
    },
    /// The namespaces of the selected workloads have different managed names for the source Secret.
    #[error(
        "the namespaces of this Gateway's workloads have different managed Secrets for Secret {secret}; use one spec.secretName"
    )]
    Differs {
        /// The source Secret.
        secret: String,
    },
    /// The Gateway does not select the workload labels of the GatewaySecret for this source Secret, or has no selector.
    #[error("it does not select workloadLabels; name {managed} instead of {secret} if its pods use that Secret")]
    OtherWorkloads {
        /// The source Secret.
        secret: String,
        /// The managed Secret.
        managed: String,
    },
    /// cert-manager would make another Certificate, which writes the managed Secret, and delete the one that writes the source Secret.
    #[error(
        "cert-manager would issue Secret {managed} by annotation {annotation}; remove that: Certificate {secret} stays"
    )]
    IssuedByAnnotation {
        /// The annotation.
        annotation: &'static str,
        /// The source Secret, and the name of its Certificate.
        secret: String,
        /// The managed Secret.
        managed: String,
    },
    /// The managed Secret's `ca.crt` differs from the one that the pod loads from the source Secret.
    #[error(
        "Secret {managed} has the clients' CA in ca.crt, not the CA of {secret}; mount only tls.crt and tls.key to use it"
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
