//! The flags of the operator's consent to rights outside of the namespaces of GatewaySecrets.

use crate::agent::Consent;
use crate::rotation::Grants;

/// What the operator consents to.
#[derive(Debug, clap::Args)]
pub(super) struct ConsentArgs {
    /// Print rights in this namespace, for all GatewaySecrets that name objects in it. Repeatable. Without it, rights outside of the namespace of a GatewaySecret are left
    /// out, unless a ReferenceGrant among the manifests lets that namespace's GatewaySecrets use the object. None is enough in kube-system.
    #[arg(long, value_name = "NAMESPACE")]
    allow_namespace: Vec<String>,

    /// Print the right to create and change this ClusterTrustBundle. Repeatable.
    #[arg(long, value_name = "NAME")]
    allow_cluster_trust_bundle: Vec<String>,
}

impl ConsentArgs {
    pub(super) fn consent(&self, grants: Grants) -> Consent {
        Consent::new(&self.allow_namespace, &self.allow_cluster_trust_bundle, grants)
    }
}
