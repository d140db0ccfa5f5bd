//! The `GatewaySecret` resource: what is rotated.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(feature = "edge")]
use super::GatewaySecretStatus;
use super::schema::{DNS_SUBDOMAIN, is_default, without_default};
use super::{AdditionalTrust, Clients, Mode, Resolved, SecretRef, TrustBundleTarget};

/// A managed Secret between the source Secret, which an issuer writes, and the gateways that use it.
///
/// It is in the namespace of the gateway workloads, where Istio reads Secrets. A RotationPolicy says how carefully it is rotated.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(
    feature = "edge",
    derive(kube::CustomResource),
    kube(
        group = "trustspan.dev",
        version = "v1alpha1",
        kind = "GatewaySecret",
        plural = "gatewaysecrets",
        shortname = "gws",
        category = "trustspan",
        namespaced,
        status = "GatewaySecretStatus",
        doc = "GatewaySecret rotates the CA behind gateways: they use a managed Secret, which the agent writes from the source Secret of an issuer and which keeps trust in the old CA while it is needed.",
        validation = kube::core::cel::Rule::new("has(self.spec.certificateRef) != has(self.spec.sourceSecretName)")
            .message("set either spec.certificateRef (the cert-manager Certificate of the gateways) or spec.sourceSecretName"),
        validation = kube::core::cel::Rule::new(
            "!has(self.spec.sourceSecretName) || self.spec.sourceSecretName != (has(self.spec.secretName) ? self.spec.secretName : self.metadata.name)"
        )
        .message("the managed Secret needs another name than the source Secret: spec.secretName (default: metadata.name) equals spec.sourceSecretName"),
        validation = kube::core::cel::Rule::new(
            "!has(self.spec.issuerSecretName) || !(self.spec.issuerSecretName in [has(self.spec.sourceSecretName) ? self.spec.sourceSecretName : '', has(self.spec.secretName) ? self.spec.secretName : self.metadata.name, has(self.spec.caSecretRef) ? self.spec.caSecretRef.name : '', has(self.spec.clients) && has(self.spec.clients.caSecretRef) ? self.spec.clients.caSecretRef.name : ''])"
        )
        .message("spec.issuerSecretName needs another name than the other Secrets: the agent writes that Secret"),
        validation = kube::core::cel::Rule::new(
            "!has(self.spec.trustBundleTargets) || self.spec.trustBundleTargets.all(target, target.kind != 'Secret' || !(target.name in [has(self.spec.secretName) ? self.spec.secretName : self.metadata.name, (has(self.spec.secretName) ? self.spec.secretName : self.metadata.name) + '-cacert', has(self.spec.issuerSecretName) ? self.spec.issuerSecretName : '']))"
        )
        .message("a Secret of spec.trustBundleTargets needs another name than the managed Secret, its -cacert Secret and spec.issuerSecretName: gateways and the Issuer use these"),
        printcolumn(name = "Source", type_ = "string", json_path = ".status.resolved.sourceSecretName"),
        printcolumn(name = "Managed", type_ = "string", json_path = ".status.secretName"),
        printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
        printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
        printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
        printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason", priority = 1),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )
)]
pub struct GatewaySecretSpec {
    /// The cert-manager Certificate of the gateways, in the same namespace. Its Secret is the source Secret, and its issuer determines the
    /// Secret of the CA. `status.resolved` shows both. Required, unless `sourceSecretName` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // Not nullable: the CEL rule asks `has()`, which a null passes.
    #[schemars(with = "CertificateRef")]
    pub certificate_ref: Option<CertificateRef>,

    /// The source Secret, if no Certificate writes it. It is only read. Required, unless `certificateRef` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub source_secret_name: Option<String>,

    /// The name of the managed Secret, which the agent writes and gateways use. Default: the name of this GatewaySecret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub secret_name: Option<String>,

    /// The Secret of the CA that signs the serving certificate. It is only read. Default: derived from `certificateRef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SecretRef")]
    pub ca_secret_ref: Option<SecretRef>,

    /// The Secret with which the Issuer of the clients signs, in the namespace of their CA. The agent writes it: a copy of the Secret of the
    /// CA, which gets a new CA only when all gateways trust it. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub issuer_secret_name: Option<String>,

    /// The clients of the gateways, and the objects that hold their CAs.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(transform = without_default)]
    pub clients: Clients,

    /// Further signers of client certificates: their CAs follow those of the rotation in the managed Secret, in this order. Each signer rotates
    /// on its own. A CA that its object no longer holds, or whose object is deleted, stays while a certificate needs it. Mode `Copy`
    /// ignores it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16), transform = without_default)]
    pub additional_trust: Vec<AdditionalTrust>,

    /// ConfigMaps, Secrets and ClusterTrustBundles into which the agent writes the CAs that clients have to trust.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16), transform = without_default)]
    pub trust_bundle_targets: Vec<TrustBundleTarget>,

    /// CAs that are removed from all bundles at once, by the SHA-256 fingerprint (hex) of their certificate or of their public key. The
    /// last CA of a bundle stays.
    #[serde(default, rename = "distrustedCAs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Fingerprint>", extend("maxItems" = 64, "x-kubernetes-list-type" = "set"), transform = without_default)]
    pub distrusted_cas: Vec<String>,

    /// Labels of the gateway pods. Default: `istio: ingressgateway`. Only Istio Gateways that select these labels are rewritten.
    #[serde(default = "default_workload_labels", skip_serializing_if = "is_default_workload_labels")]
    #[schemars(extend("minProperties" = 1, "x-kubernetes-map-type" = "atomic"), transform = without_default)]
    pub workload_labels: BTreeMap<String, String>,

    /// `Bundle` keeps trust in the old CA while it is needed. `Copy` makes the managed Secret a plain copy of the source Secret.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(extend("default" = "Bundle"))]
    pub mode: Mode,

    /// Pauses disruptive steps: reissuing certificates, promoting a CA and switching the serving certificate. New CAs are still added.
    /// Shortly before a certificate expires, the step that replaces it is taken regardless.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(transform = without_default)]
    pub paused: bool,

    /// Name of the RotationPolicy in this namespace, and of the ClusterRotationPolicy for fields that it does not set. Default: `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub policy_name: Option<String>,
}

/// A cert-manager Certificate in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct CertificateRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub name: String,
}

/// A SHA-256 fingerprint in hex.
#[derive(JsonSchema)]
struct Fingerprint(
    #[schemars(regex(pattern = r"^[0-9a-fA-F]{64}$"))]
    #[allow(dead_code)]
    String,
);

fn default_workload_labels() -> BTreeMap<String, String> {
    BTreeMap::from([("istio".to_owned(), "ingressgateway".to_owned())])
}

fn is_default_workload_labels(labels: &BTreeMap<String, String>) -> bool {
    *labels == default_workload_labels()
}

impl GatewaySecretSpec {
    /// The Secrets that it names. Those that it leaves out are the ones that were derived last.
    pub fn resolved(&self, last: Option<&Resolved>) -> Resolved {
        let last = last.filter(|_| self.certificate_ref.is_some()).cloned().unwrap_or_default();
        Resolved {
            source_secret_name: self.source_secret_name.clone().unwrap_or(last.source_secret_name),
            ca_secret_ref: self.ca_secret_ref.clone().or(last.ca_secret_ref),
            derived_from: last.derived_from,
        }
    }

    /// The managed Secret's name, for a GatewaySecret called `own_name`.
    pub fn managed_name<'a>(&'a self, own_name: &'a str) -> &'a str {
        self.secret_name.as_deref().unwrap_or(own_name)
    }

    /// The name of its policies.
    pub fn policy_name(&self) -> &str {
        self.policy_name.as_deref().unwrap_or("default")
    }
}
