//! What the certificate of a Secret is for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Gateway that uses the root or the managed Secret.
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

/// The role of a Secret. It selects the rules, whichever key of the Secret the certificate is under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecretUsage {
    /// A proxy serves its pair, and verifies peers by its bundle: the source and the managed Secret.
    #[default]
    Serving,
    /// An issuer signs with its pair: `spec.caSecretRef`, `spec.issuerSecretName`, `spec.clients.caSecretRef`. No proxy reads the
    /// Secret; its bundle gets into those that proxies verify by.
    SigningCa,
    /// Istio takes CAs and revocation lists from it, and never a pair: a `-cacert` sibling.
    TrustBundle,
}

/// Rules on what a proxy does with a Secret that it loads itself.
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
    pub fn heeds(self, rule: &str) -> bool {
        match self {
            Self::Serving => true,
            Self::SigningCa => !SERVING_ONLY.contains(&rule),
            Self::TrustBundle => !PAIR_ONLY.contains(&rule),
        }
    }

    /// What messages call the first certificate of the pair.
    pub(super) fn first_certificate(self) -> &'static str {
        match self {
            Self::SigningCa => "CA",
            Self::Serving | Self::TrustBundle => "leaf",
        }
    }
}
