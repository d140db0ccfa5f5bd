//! Errors of the controller, and how to fix them.

use crate::health::CheckResult;
use crate::registry::{ResolutionError, rename_secret};
use crate::store::cluster;

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The API server refused a request or failed.
    #[error("cannot {verb} {resource} {name}: {}", cluster::error_message(source))]
    Api {
        /// Verb of the request.
        verb: &'static str,
        /// Resource.
        resource: &'static str,
        /// Name of the object.
        name: String,
        /// The cause.
        source: Box<kube::Error>,
    },
    /// The agent does not own an object that it would write.
    #[error(
        "{kind} {name} was not created by trustspan and is not overwritten. Delete it, or let trustspan adopt it with the annotation \
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
        "Secret {name} does not exist, and the agent creates no Secrets in other namespaces. Create it empty, with the annotation \
         trustspan.dev/adopt: {allowed}"
    )]
    NotCreated {
        /// Its namespace and name.
        name: String,
        /// The value of the annotation that allows it.
        allowed: String,
    },
    /// cert-manager writes a Secret that the agent should write.
    #[error(
        "Certificate {certificate} also writes Secret {name}, so the agent does not write it. {}",
        rename_secret(owner.as_deref(), instead)
    )]
    TwoWriters {
        /// The Secret.
        name: String,
        /// The Certificate.
        certificate: String,
        /// The Secret that the Certificate can write instead.
        instead: String,
        /// The Gateway, ListenerSet or Ingress for which cert-manager makes the Certificate.
        owner: Option<String>,
    },
    /// An object of `spec.trustBundleTargets` in another namespace is not declared by its owner, or its namespace is not listed.
    #[error(
        "{target} is not written. Its owner must set the label trustspan.dev/client: {label}, and spec.clients.namespaces must list \
         {namespace}"
    )]
    NotGranted {
        /// Kind, namespace and name.
        target: String,
        /// Its namespace.
        namespace: String,
        /// The value of the label.
        label: String,
    },
    /// A CA would leave the namespace without the operator's consent.
    #[error("{target} is not written: {why}")]
    NotOfSigners {
        /// Kind, namespace and name.
        target: String,
        /// The CA, and what to do: part of a sentence.
        why: String,
    },
    /// `spec.trustBundleTargets` names a ClusterTrustBundle, which the API server does not serve.
    #[error(
        "spec.trustBundleTargets names a ClusterTrustBundle (certificates.k8s.io), which this API server does not serve. Enable the kind \
         (feature gate ClusterTrustBundle and --runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true, Kubernetes 1.33 or \
         later), or name a ConfigMap"
    )]
    NoClusterTrustBundles,
    /// The managed Secret was renamed while it is in use.
    #[error(
        "Secret {stored_name} is in use, and the Gateways and workloads that name it would not switch to Secret {managed}. Nothing is written \
         until spec.secretName is {stored_name} again: set it back"
    )]
    Renamed {
        /// The stored Secret's name.
        stored_name: String,
        /// The name in the spec.
        managed: String,
    },
    /// The source Secret cannot be derived from `certificateRef`.
    #[error(transparent)]
    Unresolved(#[from] ResolutionError),
    /// An object cannot be encoded.
    #[error("cannot encode an object: {0}")]
    Encode(serde_json::Error),
    /// Lists that decide how gateways are probed failed, and never succeeded in this process.
    #[error("how to probe the gateways is unknown, so nothing is written: {0}")]
    Unlisted(String),
    /// The API server does not answer.
    #[error("the API server does not answer")]
    NoAnswer,
    /// Another process may be the leader.
    #[error("this process is not the leader any more")]
    NotLeading,
}

impl AgentError {
    pub(super) fn api(verb: &'static str, resource: &'static str, name: &str, source: kube::Error) -> Self {
        Self::Api { verb, resource, name: name.to_owned(), source: Box::new(source) }
    }

    /// The result of a health check of what failed.
    pub(super) fn check_result(&self) -> CheckResult {
        let message = self.condition_message();
        match self {
            Self::NoAnswer | Self::NotLeading | Self::Unlisted(_) => CheckResult::Unreachable(message),
            Self::Api { source, .. } if self.reason() == "Failed" => cluster::check_failure(source, message),
            _ => CheckResult::Misconfigured(message),
        }
    }

    /// Whether the API server answered with this status code.
    pub(super) fn has_code(&self, code: u16) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(status) if status.code == code))
    }

    /// Whether the API server refuses a read, so that nothing can be planned.
    pub(super) fn is_refused_read(&self) -> bool {
        matches!(self, Self::Api { verb: "get" | "list", .. }) && self.has_code(403)
    }

    /// Whether an admission webhook or a ValidatingAdmissionPolicy rejects a write. Both can answer with 403, as for a missing permission
    /// (`apiserver/pkg/admission/plugin/webhook/errors/statuserror.go`, `apiserver/pkg/admission/plugin/policy/validating/dispatcher.go`).
    fn is_denied_by_admission(&self) -> bool {
        let Self::Api { source, .. } = self else { return false };
        let kube::Error::Api(status) = &**source else { return false };
        let words = ["denied the request", "denied request"];
        (400..500).contains(&status.code) && words.iter().any(|words| status.message.contains(words))
    }

    /// Whether the API server or etcd refuses an object for its size. The limits are 3 MiB for a request (413), 1.5 MiB for etcd, 2 MiB for
    /// gRPC and 1 MiB for a ConfigMap.
    pub(super) fn is_too_large(&self) -> bool {
        let Self::Api { source, .. } = self else { return false };
        let kube::Error::Api(status) = &**source else { return false };
        let words = ["too large", "larger than max", "Too long"];
        status.code == 413 || words.iter().any(|words| status.message.contains(words))
    }

    /// Whether the cluster's CRD rejects a field of a GatewaySecret, because it is another version's.
    fn is_crd_mismatch(&self) -> bool {
        let Self::Api { resource, source, .. } = self else { return false };
        let kube::Error::Api(status) = &**source else { return false };
        // The messages of server-side apply (structured-merge-diff) and of `fieldValidation=Strict`.
        let is_unknown =
            ["field not declared in schema", "unknown field"].iter().any(|words| status.message.contains(words));
        // A status fits the schema of the version that writes it.
        let is_ours = ["gatewaysecrets", "trustconsumers"].iter().any(|ours| resource.starts_with(ours));
        is_ours && (is_unknown || status.code == 422) && !self.is_too_large()
    }

    /// The message of a condition: what happened and how to fix it. It is the same in each reconcile while the cause is the same: a
    /// changed message would be another write of the status.
    pub(super) fn condition_message(&self) -> String {
        if self.is_crd_mismatch() {
            // The API server's message names another field each time.
            return "The cluster's CustomResourceDefinition is of another version of trustspan, and rejects the status. Apply the current \
                    one: trustspan crd | kubectl apply -f -"
                .to_owned();
        }
        if self.is_denied_by_admission() {
            return format!(
                "An admission webhook or policy of the cluster rejects a write of the agent. Do what its answer says, or exempt the agent \
                 from it. The API server's answer: {self}"
            );
        }
        if self.has_code(403) {
            return format!(
                "The agent lacks a permission. Grant it: kubectl get trustspan,certificates,issuers,clusterissuers -A -o yaml | trustspan rbac -f - | kubectl apply -f -. \
                 It prints no rights in other namespaces without consent, and says which. The API server's answer: {self}"
            );
        }
        let message = self.to_string();
        let mut rest = message.chars();
        // Names of fields stay as they are.
        match rest.next().filter(|_| !message.starts_with("spec.")) {
            Some(first) => format!("{}{}", first.to_uppercase(), rest.as_str()),
            None => message,
        }
    }

    /// The reason of a condition.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Foreign { .. } => "ForeignObject",
            Self::NotCreated { .. } | Self::NotGranted { .. } | Self::NotOfSigners { .. } => "NotGranted",
            Self::Renamed { .. } => "ManagedRenamed",
            Self::TwoWriters { .. } => "TwoWriters",
            Self::Unresolved(_) => "Unresolved",
            Self::NoClusterTrustBundles => "NoClusterTrustBundles",
            error if error.is_crd_mismatch() => "CRDOutdated",
            error if error.is_denied_by_admission() => "Rejected",
            error if error.has_code(403) => "Forbidden",
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

    fn reported(error: &AgentError) -> (&'static str, String) {
        (error.reason(), error.condition_message())
    }

    #[test]
    fn a_crd_mismatch_has_the_same_message_for_every_field() {
        const STATUS: &str = "gatewaysecrets.trustspan.dev/status";
        let unknown = |field: &str| {
            let message = format!(
                "failed to create typed patch object (mesh/gw; GatewaySecret): {field}: field not declared in schema"
            );
            reported(&refused(STATUS, 500, &message))
        };
        assert_eq!(unknown(".status.waits"), unknown(".status.phaseSince"));
        let (reason, message) = unknown(".status.waits");
        assert_eq!(reason, "CRDOutdated");
        assert!(message.contains("trustspan crd | kubectl apply -f -"), "{message}");
        assert_eq!(reported(&refused(STATUS, 400, "strict decoding error: unknown field \"status.waits\"")).0, reason);
        assert_eq!(
            reported(&refused(STATUS, 422, "status.phase: Unsupported value: \"ServingCertificateSwitched\"")).0,
            reason
        );
        assert_eq!(reported(&refused(STATUS, 500, "etcdserver: request timed out")).0, "Failed");
        assert_eq!(reported(&refused("secrets", 422, "Secret \"gw\" is invalid")).0, "Failed");
    }

    #[test]
    fn failures_that_need_a_change_differ_from_those_that_pass() {
        let is_misconfigured = |error: &AgentError| matches!(error.check_result(), CheckResult::Misconfigured(_));
        for error in [
            refused("secrets", 403, "secrets \"gw\" is forbidden"),
            refused("secrets", 422, "Secret \"gw\" is invalid"),
            refused("gatewaysecrets.trustspan.dev/status", 500, "etcdserver: request is too large"),
            refused("gatewaysecrets.trustspan.dev/status", 500, ".status.waits: field not declared in schema"),
        ] {
            assert!(is_misconfigured(&error), "{error}");
        }
        for code in [429, 500, 503, 504] {
            assert!(!is_misconfigured(&refused("secrets", code, "etcdserver: request timed out")), "{code}");
        }
        assert!(!is_misconfigured(&AgentError::NoAnswer));
    }

    #[test]
    fn a_missing_permission_begins_with_how_to_grant_it() {
        let (reason, message) = reported(&refused("secrets", 403, "secrets \"gw\" is forbidden"));
        assert_eq!(reason, "Forbidden");
        let command = "kubectl get trustspan,certificates,issuers,clusterissuers -A -o yaml | trustspan rbac -f - | kubectl apply -f -";
        let at = message.find(command).expect("the command");
        assert!(at < message.find("is forbidden").expect("the API server's answer"), "{message}");
    }

    #[test]
    fn a_rejection_by_admission_is_no_missing_permission() {
        for (code, answer) in [
            (403, "admission webhook \"protect.example.com\" denied the request: not now"),
            (
                422,
                "certificates \"payments\" is forbidden: ValidatingAdmissionPolicy 'protect' with binding 'all' denied request: not now",
            ),
        ] {
            let (reason, message) = reported(&refused("certificates.cert-manager.io/status", code, answer));
            assert_eq!(reason, "Rejected");
            assert!(message.contains("exempt the agent") && message.ends_with(answer), "{message}");
        }
    }

    #[test]
    fn only_a_refused_read_ends_watches() {
        let error = |verb, code| {
            let status = Status::failure("no", "Reason").with_code(code);
            AgentError::api(verb, "secrets", "gw", kube::Error::Api(status.boxed()))
        };
        assert!(error("get", 403).is_refused_read() && error("list", 403).is_refused_read());
        assert!(!error("patch", 403).is_refused_read() && !error("update", 403).is_refused_read());
        assert!(!error("get", 500).is_refused_read());
    }

    #[test]
    fn messages_do_not_contain_a_dump_of_the_response() {
        let error = refused("secrets", 500, "no quorum");
        assert_eq!(error.to_string(), "cannot patch secrets gw: no quorum");
        assert_eq!(reported(&error), ("Failed", "Cannot patch secrets gw: no quorum".to_owned()));
        assert_eq!(
            reported(&refused("gatewaysecrets.trustspan.dev/status", 500, "etcdserver: request is too large")).0,
            "TooLarge"
        );
        assert_eq!(reported(&refused("gatewaysecrets.trustspan.dev/status", 413, "limit is 3145728")).0, "TooLarge");
        assert_eq!(refused("secrets", 503, "").to_string(), "cannot patch secrets gw: Reason");
    }
}
