//! How a Secret is used, and by which Gateways.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Proxy, TlsConsumer};

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

/// How a Secret is used: what rules need to know apart from its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SecretUsage<'a> {
    /// The kind of use.
    pub kind: UsageKind,
    /// Gateways take their trust anchors from this Secret, so it must have a CA bundle.
    pub ca_required: bool,
    /// Gateways present its certificate, so it must have a pair.
    pub pair_required: bool,
    /// The TLS consumer that reads it.
    pub reader: TlsConsumer,
    /// The oldest proxy that verifies peers with it.
    pub oldest_proxy: Proxy,
    /// It is the source or managed Secret of a GatewaySecret: rotations change it.
    pub is_rotated: bool,
    /// A GatewaySecret takes CAs from it: status and journal hold them, next to the previous ones.
    pub is_source_of_cas: bool,
    /// Clients take their trust from its bundle ([`crate::connectivity::distributes`]), so it must verify its serving pair.
    pub distributes_trust: bool,
    /// The `-cacert` Secret from which Istio takes CAs instead.
    pub sibling: Option<&'a str>,
    /// The Gateways that serve with it.
    pub gateways: &'a [GatewayUse],
}

/// The kind of use, which selects the rules that apply to a Secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageKind {
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

impl UsageKind {
    /// Whether a rule, by its id, applies to a Secret that is used so.
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
