//! Labels, annotations and Secret keys that trustspan reads or writes.

/// Prefix of the labels and annotations that trustspan reads or writes, save for [`BREAK_GLASS_PREFIX`].
pub const PREFIX: &str = "trustspan.dev/";

pub use crate::trust::{CLIENT_LABEL, MANAGED_LABEL};

/// Label of a Namespace whose TLS Secrets and CA bundles are judged at admission, or of a single Secret or ConfigMap:
/// `trustspan.dev/guard: enabled`. No GatewaySecret has to name them.
pub const GUARD: &str = "trustspan.dev/guard";
/// The value of [`GUARD`].
pub const GUARD_ENABLED: &str = "enabled";

/// Pod-template annotation `<revision>-<scope>-<SHA-256>` over the public certificates that the pod loads from managed Secrets.
pub const ROTATION_HASH: &str = "trustspan.dev/rotation-hash";

/// Annotation of a rewritten object: the JSON Patch (RFC 6902) that takes the rewrite back.
pub const UNDO: &str = "trustspan.dev/undo";

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

/// Annotation of a Secret or ConfigMap that the agent keeps: the name of its GatewaySecret.
pub const KEPT_FOR: &str = "trustspan.dev/kept-for";

/// Annotation that lets the agent take over a Secret that it did not make: `trustspan.dev/adopt: "true"`, or
/// `NAMESPACE/NAME` of a GatewaySecret in another namespace.
pub const ADOPT: &str = "trustspan.dev/adopt";

/// Annotation of a client's Secret (`Certificate.spec.secretTemplate`) whose reader loads it once, at start:
/// `trustspan.dev/reload: never`.
pub const RELOAD: &str = "trustspan.dev/reload";
/// The value of [`RELOAD`].
pub const RELOAD_NEVER: &str = "never";

/// Annotation of a Secret that keeps its old CAs beside new ones: `"true"`, or how many.
pub const CARRY_OVER: &str = "trustspan.dev/carry-over";

/// Annotation by which the agent has a Gateway or a workload written once more: when it did so. From anybody else it means nothing.
pub const RESYNC_REQUESTED_AT: &str = "trustspan.dev/resync-requested-at";

/// Name of the ConfigMap that the agent keeps from another one, of `spec.clients.caConfigMapNames`.
pub fn managed_config_map_name(source: &str) -> String {
    format!("{source}.trustspan")
}

/// Name of the ConfigMap that holds the journal of a GatewaySecret.
pub fn journal_name(gateway_secret: &str) -> String {
    format!("{gateway_secret}.trustspan-journal")
}
