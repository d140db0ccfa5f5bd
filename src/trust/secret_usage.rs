//! The role of a Secret, and the Gateways that use it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Gateway that uses the source or the managed Secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayUse {
    /// API group of the Gateway: `networking.istio.io` or `gateway.networking.k8s.io`.
    pub group: String,
    /// Namespace of the Gateway object.
    pub namespace: String,
    /// Name of the Gateway object.
    pub name: String,
    /// Hosts that it serves with that Secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

/// The role of a Secret, which selects the rules that apply to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecretUsage {
    /// A proxy serves its pair, and verifies peers with its bundle: the source and the managed Secret.
    #[default]
    Serving,
    /// An issuer signs with its pair: `spec.caSecretRef`, `spec.issuerSecretName`, `spec.clients.caSecretRef`, `spec.additionalTrust`.
    /// No proxy reads the Secret; its CAs get into bundles that proxies verify with.
    SigningCa,
    /// Istio reads CAs and revocation lists from it, and no pair: a `-cacert` sibling.
    TrustBundle,
}

/// Rules on Secrets that a proxy loads itself.
const SERVING_ONLY: [&str; 7] = [
    "refused-by-clients",
    "crl-missing",
    "crl-partial",
    "crl-expired",
    "leaf-not-trusted",
    "hosts-not-covered",
    "cacert-sibling-wins",
];

/// Rules on pairs.
const PAIR_ONLY: [&str; 5] =
    ["pair-incomplete", "key-mismatch", "refused-by-clients", "leaf-not-trusted", "hosts-not-covered"];

impl SecretUsage {
    /// Whether a rule, by its id, applies to a Secret of this role.
    pub fn applies(self, rule: &str) -> bool {
        match self {
            Self::Serving => true,
            Self::SigningCa => !SERVING_ONLY.contains(&rule),
            Self::TrustBundle => !PAIR_ONLY.contains(&rule),
        }
    }

    /// The word for the first certificate of the pair in messages.
    pub(super) fn first_certificate(self) -> &'static str {
        match self {
            Self::SigningCa => "CA",
            Self::Serving | Self::TrustBundle => "leaf",
        }
    }
}
