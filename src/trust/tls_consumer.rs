//! Programs that read certificates, with the rules and words that depend on them.

use super::bundle::{self, Bundle};
use super::go;
use super::private_key::{self, KeyError};

/// The program that reads a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsConsumer {
    /// Envoy (BoringSSL) in a gateway: verifies clients, and serves the pair.
    #[default]
    Envoy,
    /// Go's crypto/x509 and crypto/tls in the API server and client-go: verifies servers, and presents the pair to them.
    Go,
}

/// Rules that apply to Envoy only. Go tries every CA with a subject until a chain is valid, and a client sends no subjects of its bundle
/// in a handshake.
const ENVOY_ONLY: [&str; 5] =
    ["expired-beside-renewed", "same-subject-ambiguity", "broken-path", "too-large", "taken-away"];

impl TlsConsumer {
    /// Reads a CA bundle.
    pub fn bundle(self, pem: &[u8]) -> Bundle {
        match self {
            Self::Envoy => bundle::read(pem),
            Self::Go => go::read(pem),
        }
    }

    /// Reads a chain, leaf first.
    pub fn chain(self, pem: &[u8]) -> Bundle {
        match self {
            Self::Envoy => bundle::read_chain(pem),
            Self::Go => go::read_chain(pem),
        }
    }

    /// The SubjectPublicKeyInfo (DER) of a private key.
    ///
    /// # Errors
    /// When there is no usable key.
    pub fn public_key(self, pem: &[u8]) -> Result<Vec<u8>, KeyError> {
        match self {
            Self::Envoy => private_key::public_key(pem),
            Self::Go => go::public_key(pem),
        }
    }

    /// Whether a rule, by its id, applies to this reader.
    pub fn applies(self, rule: &str) -> bool {
        self == Self::Envoy || !ENVOY_ONLY.contains(&rule)
    }

    /// Whether a bundle without a CA may be intended. With Go that pins a webhook's self-signed certificate; in a gateway's bundle it is a
    /// leaf in the wrong place.
    pub(super) fn pins(self) -> bool {
        self == Self::Go
    }

    /// The word for the reader in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Envoy => "the proxy",
            Self::Go => "Go",
        }
    }

    /// A further effect of a block that is skipped, after what it has everywhere. The API server parses the caBundle of a
    /// CustomResourceDefinition as a whole (apiextensions-apiserver, ValidateCABundle).
    pub(super) fn after_skipped(self) -> &'static str {
        match self {
            Self::Envoy => "",
            Self::Go => "; in a CustomResourceDefinition the whole caBundle is then invalid",
        }
    }

    /// The effect of a bundle without any certificate.
    pub(super) fn without_ca(self) -> &'static str {
        match self {
            Self::Envoy => "a gateway that starts with this bundle refuses every client",
            Self::Go => "no server can be verified with it",
        }
    }

    /// The effect of an incomplete pair.
    pub(super) fn without_pair(self) -> &'static str {
        match self {
            Self::Envoy => "gateways cannot serve with one of them",
            Self::Go => "users cannot log in with one of them",
        }
    }

    /// The effect of a key that cannot be used.
    pub(super) fn without_key(self) -> &'static str {
        match self {
            Self::Envoy => {
                "expected a PEM private key that proxies can serve with: otherwise they keep the previous pair until they restart, then \
                 have none; replace it"
            }
            Self::Go => "expected a PEM private key: users cannot log in with this one; replace it",
        }
    }

    /// The peer that a bundle verifies, and that verifies a pair.
    pub(super) fn peer(self) -> &'static str {
        match self {
            Self::Envoy => "client",
            Self::Go => "server",
        }
    }
}
