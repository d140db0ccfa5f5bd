//! Labels, annotations and Secret keys that trustspan reads or writes.

use crate::json::Json;

/// Prefix of the labels and annotations that trustspan reads or writes, except [`BREAK_GLASS_PREFIX`].
pub const PREFIX: &str = "trustspan.dev/";

pub use crate::trust::{CLIENT_LABEL, MANAGED_LABEL};

/// Label of a Namespace whose TLS Secrets and CA bundles are validated at admission, or of a single Secret or ConfigMap:
/// `trustspan.dev/guard: enabled`. No GatewaySecret has to name them.
pub const GUARD: &str = "trustspan.dev/guard";
/// The value of [`GUARD`].
pub const GUARD_ENABLED: &str = "enabled";

/// Pod-template annotation `<revision>-<scope>-<SHA-256>` over the public certificates that the pod loads from managed Secrets.
pub const ROTATION_HASH: &str = "trustspan.dev/rotation-hash";

/// Pod-template annotation of a workload that certgen restarts: a hash of the content that its pods load when they start.
pub const CERTGEN_HASH: &str = "trustspan.dev/certgen-hash";

/// Annotation of a rewritten object: the JSON Patch (RFC 6902) that undoes the rewrite.
pub const UNDO: &str = "trustspan.dev/undo";

/// Annotations of a Gateway, ListenerSet or Ingress by which cert-manager makes a Certificate for each Secret that it names
/// (`pkg/controller/certificate-shim/sync.go`, `hasShimAnnotation`).
pub const ISSUER_ANNOTATIONS: [&str; 2] = ["cert-manager.io/issuer", "cert-manager.io/cluster-issuer"];
/// Annotation with the names of listeners for which cert-manager makes no Certificate, separated by commas.
pub const IGNORED_LISTENERS: &str = "cert-manager.io/ignore-tls-listeners";

/// Annotation by which an object opts out of rewriting: `trustspan.dev/rewrite: disabled`.
pub const REWRITE: &str = "trustspan.dev/rewrite";
/// The value of [`REWRITE`] that opts out.
pub const REWRITE_DISABLED: &str = "disabled";

/// Prefix of the annotations by which a Secret overrides a rule: `breakglass.trustspan.dev/<rule>: <reason>`.
pub const BREAK_GLASS_PREFIX: &str = "breakglass.trustspan.dev/";

/// Username of the agent that the shipped manifests install.
pub const AGENT_USERNAME: &str = "system:serviceaccount:trustspan-system:trustspan-agent";

/// Suffix of the Secret that Istio prefers as CA source in mode `MUTUAL`
/// (istiod `pilot/pkg/credentials/kube/secrets.go`, `GatewaySdsCaSuffix`).
pub const CACERT_SUFFIX: &str = "-cacert";

/// Annotation of a Secret or ConfigMap that the agent writes: the name of its GatewaySecret.
pub const GATEWAY_SECRET: &str = "trustspan.dev/gateway-secret";

/// Annotation that lets the agent take over a Secret that it did not create: `trustspan.dev/adopt: "true"`, or
/// `NAMESPACE/NAME` of a GatewaySecret in another namespace.
pub const ADOPT: &str = "trustspan.dev/adopt";

/// Annotation of a client's Secret (`Certificate.spec.secretTemplate`) whose reader loads it once, at start:
/// `trustspan.dev/reload: never`.
pub const RELOAD: &str = "trustspan.dev/reload";
/// The value of [`RELOAD`].
pub const RELOAD_NEVER: &str = "never";

/// Annotation of a client's Secret (`Certificate.spec.secretTemplate`) that no workload uses any more: `trustspan.dev/retired: "true"`.
pub const RETIRED: &str = "trustspan.dev/retired";

/// Annotation of a Secret that keeps its old CAs when new ones are written: `"true"`, or the number to keep.
pub const CARRY_OVER: &str = "trustspan.dev/carry-over";

/// Annotation by which the agent has a Gateway or a workload rewritten: when it requested that. It is ignored if anyone else writes it.
pub const RESYNC_REQUESTED_AT: &str = "trustspan.dev/resync-requested-at";

/// Pod-template annotation of a workload that a TrustConsumer names: a hash of the content that its pods load when they start.
pub const LOADED_HASH: &str = "trustspan.dev/loaded-hash";

/// Annotation of a ClientIdentity: the certificate that was issued last, as in its status. It survives a restore without status.
pub const CLIENT_CERTIFICATE: &str = "trustspan.dev/client-certificate";

/// Annotation of a ClientIdentity whose client needs a new bootstrap kubeconfig, such as after a lost disk: when that was requested (RFC 3339).
pub const BOOTSTRAP_REQUESTED_AT: &str = "trustspan.dev/bootstrap-requested-at";

/// Annotation of the ClusterRole of a ClientIdentity: the public part of its bootstrap token.
pub const BOOTSTRAP_TOKEN: &str = "trustspan.dev/bootstrap-token";

/// Label of the cluster-scoped objects of a ClientIdentity: its namespace.
pub const IDENTITY_NAMESPACE: &str = "trustspan.dev/client-identity-namespace";

/// Label of the objects of a ClientIdentity: its name.
pub const IDENTITY_NAME: &str = "trustspan.dev/client-identity-name";

/// Name of the ConfigMap that the agent writes from one of `spec.clients.caConfigMapNames`.
pub fn managed_config_map_name(source: &str) -> String {
    format!("{source}.trustspan")
}

/// Name of the ConfigMap that holds the journal of a GatewaySecret.
pub fn journal_name(gateway_secret: &str) -> String {
    format!("{gateway_secret}.trustspan-journal")
}

/// Whether cert-manager's cainjector fills in the caBundle fields of an object, by an annotation `cert-manager.io/inject-…`.
pub(crate) fn is_ca_injected(object: &Json<'_>) -> bool {
    let annotations = object["metadata"]["annotations"].as_object().into_iter().flatten();
    annotations.into_iter().any(|(key, _)| key.starts_with("cert-manager.io/inject-"))
}

/// Bytes of the name of an object: a DNS subdomain (RFC 1123; Kubernetes' "Object Names and IDs").
pub(crate) const NAME_LENGTH: usize = 253;

/// Checks that Kubernetes accepts the name of an object.
///
/// # Errors
/// When it does not: what was found, and what was expected.
pub(crate) fn check_object_name(name: &str) -> Result<(), String> {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        label.bytes().all(|byte| is_alphanumeric(byte) || byte == b'-')
            && label.bytes().next().is_some_and(is_alphanumeric)
            && label.bytes().last().is_some_and(is_alphanumeric)
    };
    if name.len() <= NAME_LENGTH && name.split('.').all(is_label) {
        Ok(())
    } else {
        Err(format!("{name:?} is not a valid object name: expected lower-case letters, digits, - and ."))
    }
}
