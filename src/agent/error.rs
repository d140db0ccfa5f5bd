//! Why the agent did not do something, and what mends it.

use crate::registry::ResolutionError;
use crate::store::cluster;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The API server refused or failed.
    #[error("cannot {verb} {resource} {name}: {}", cluster::told(source))]
    Api {
        /// What was tried.
        verb: &'static str,
        /// On which resource.
        resource: &'static str,
        /// Of which name.
        name: String,
        /// Why not.
        source: Box<kube::Error>,
    },
    /// An object stands where the agent would write, and it is somebody else's.
    #[error(
        "{kind} {name} was not made by trustspan: it is not overwritten. Delete it, or allow it with the annotation \
         trustspan.dev/adopt: \"{allowed}\""
    )]
    Foreign {
        /// Its kind.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The value of the annotation that allows it.
        allowed: String,
    },
    /// A Secret in another namespace does not exist.
    #[error(
        "Secret {name} does not exist, and the agent creates none in another namespace. Create it empty, with the annotation \
         trustspan.dev/adopt: {allowed}"
    )]
    NotCreated {
        /// Its namespace and name.
        name: String,
        /// The value of the annotation that lets the agent write it.
        allowed: String,
    },
    /// cert-manager writes a Secret that the agent is to keep.
    #[error(
        "Certificate {certificate} writes Secret {name}, too: it is left to cert-manager. Set spec.secretName of the Certificate to \
         {instead}"
    )]
    TwoWriters {
        /// The Secret.
        name: String,
        /// The Certificate.
        certificate: String,
        /// What the Certificate may write.
        instead: String,
    },
    /// An object of `spec.trustBundleTargets` in another namespace is not declared by its owner, or its namespace is not listed.
    #[error(
        "{place} is not written: it needs the label trustspan.dev/client: {label}, which its owner sets, and {namespace} in \
         spec.clients.namespaces"
    )]
    NotGranted {
        /// Kind, namespace and name.
        place: String,
        /// Its namespace.
        namespace: String,
        /// The value of the label.
        label: String,
    },
    /// `spec.trustBundleTargets` names a ClusterTrustBundle, and there is no such kind.
    #[error(
        "this API server serves no ClusterTrustBundles (certificates.k8s.io), which spec.trustBundleTargets names. Switch them on (feature \
         gate ClusterTrustBundle and --runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true, from Kubernetes 1.33 \
         on), or name a ConfigMap"
    )]
    NoClusterTrustBundles,
    /// The managed Secret got another name under its users.
    #[error(
        "Secret {former} is in use: who names it would not follow to Secret {managed}, and its pair is not to be had for that. \
         Nothing is done until spec.secretName is {former} again"
    )]
    Renamed {
        /// The name under which it stands.
        former: String,
        /// The name that the spec has now.
        managed: String,
    },
    /// What the spec leaves to be derived cannot be.
    #[error(transparent)]
    Unresolved(#[from] ResolutionError),
    /// An object cannot be sent.
    #[error("cannot encode an object: {0}")]
    Encode(serde_json::Error),
    /// The API server does not answer.
    #[error("the API server does not answer")]
    NoAnswer,
    /// Another process leads by now.
    #[error("leadership lost")]
    NotLeading,
}

impl AgentError {
    pub(super) fn api(verb: &'static str, resource: &'static str, name: &str, source: kube::Error) -> Self {
        Self::Api { verb, resource, name: name.to_owned(), source: Box::new(source) }
    }

    pub(super) fn is(&self, code: u16) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(status) if status.code == code))
    }

    /// Whether the API server, or its storage, refuses an object for its size: a request of 3 MiB (413), etcd's limit of 1.5 MiB, gRPC's
    /// of 2 MiB, a ConfigMap's of 1 MiB.
    pub(super) fn is_too_large(&self) -> bool {
        let Self::Api { source, .. } = self else { return false };
        let kube::Error::Api(status) = &**source else { return false };
        let words = ["too large", "larger than max", "Too long"];
        status.code == 413 || words.iter().any(|said| status.message.contains(said))
    }

    /// Whether the API server does not know what is written into a GatewaySecret: its CRD is another version's.
    fn is_of_other_crd(&self) -> bool {
        let Self::Api { resource, source, .. } = self else { return false };
        let kube::Error::Api(status) = &**source else { return false };
        // What a server-side apply says (structured-merge-diff), and what `fieldValidation=Strict` does.
        let is_unknown =
            ["field not declared in schema", "unknown field"].iter().any(|said| status.message.contains(said));
        // What this version writes fits its own schema.
        resource.starts_with("gatewaysecrets") && (is_unknown || status.code == 422) && !self.is_too_large()
    }

    /// What mends it, and what happened. The same from look to look, as long as the cause is: it is written into the status.
    pub(super) fn advice(&self) -> String {
        if self.is_of_other_crd() {
            // The field that the API server names is another one each time.
            return "the cluster's CRD is not of this version, and what is told in the status does not fit it. An administrator \
                    applies it: trustspan crd | kubectl apply -f -"
                .to_owned();
        }
        if self.is(403) {
            return format!(
                "a right of the agent is missing. An administrator grants it: kubectl get trustspan -A -o yaml | trustspan rbac -f - | \
                 kubectl apply -f -. {self}"
            );
        }
        self.to_string()
    }

    /// A word for a condition.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Foreign { .. } => "ForeignObject",
            Self::NotCreated { .. } | Self::NotGranted { .. } => "NotGranted",
            Self::Renamed { .. } => "ManagedRenamed",
            Self::TwoWriters { .. } => "TwoWriters",
            Self::Unresolved(_) => "Unresolved",
            Self::NoClusterTrustBundles => "NoClusterTrustBundles",
            error if error.is_of_other_crd() => "CRDOutdated",
            error if error.is(403) => "Forbidden",
            error if error.is_too_large() => "TooLarge",
            _ => "Failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn refused(resource: &'static str, code: u16, message: &str) -> AgentError {
        let status = Status::failure(message, "Reason").with_code(code);
        AgentError::api("patch", resource, "gw", kube::Error::Api(status.boxed()))
    }

    fn told(error: &AgentError) -> (&'static str, String) {
        (error.reason(), error.advice())
    }

    #[test]
    fn an_older_crd_is_told_in_the_same_words_whichever_field_the_api_server_names() {
        const STATUS: &str = "gatewaysecrets.trustspan.dev/status";
        let unknown = |field: &str| {
            let message = format!(
                "failed to create typed patch object (mesh/gw; GatewaySecret): {field}: field not declared in schema"
            );
            told(&refused(STATUS, 500, &message))
        };
        assert_eq!(unknown(".status.waits"), unknown(".status.phaseSince"));
        let (reason, advice) = unknown(".status.waits");
        assert_eq!(reason, "CRDOutdated");
        assert!(advice.contains("trustspan crd | kubectl apply -f -"), "{advice}");
        assert_eq!(told(&refused(STATUS, 400, "strict decoding error: unknown field \"status.waits\"")).0, reason);
        assert_eq!(
            told(&refused(STATUS, 422, "status.phase: Unsupported value: \"ServingCertificateSwitched\"")).0,
            reason
        );
        assert_eq!(told(&refused(STATUS, 500, "etcdserver: request timed out")).0, "Failed");
        assert_eq!(told(&refused("secrets", 422, "Secret \"gw\" is invalid")).0, "Failed");
    }

    #[test]
    fn a_missing_right_begins_with_how_it_is_granted() {
        let (reason, advice) = told(&refused("secrets", 403, "secrets \"gw\" is forbidden"));
        assert_eq!(reason, "Forbidden");
        let mend = "kubectl get trustspan -A -o yaml | trustspan rbac -f - | kubectl apply -f -";
        let at = advice.find(mend).expect("the mend");
        assert!(at < advice.find("is forbidden").expect("what the API server said"), "{advice}");
    }

    #[test]
    fn rejects_what_is_for_programmers_in_a_sentence() {
        let error = refused("secrets", 500, "no quorum");
        assert_eq!(error.to_string(), "cannot patch secrets gw: no quorum");
        assert_eq!(told(&error), ("Failed", error.to_string()));
        assert_eq!(
            told(&refused("gatewaysecrets.trustspan.dev/status", 500, "etcdserver: request is too large")).0,
            "TooLarge"
        );
        assert_eq!(told(&refused("gatewaysecrets.trustspan.dev/status", 413, "limit is 3145728")).0, "TooLarge");
        assert_eq!(refused("secrets", 503, "").to_string(), "cannot patch secrets gw: Reason");
    }
}
