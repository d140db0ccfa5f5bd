//! Who reads certificates, and what that changes: which keys, which rules, which words.

use super::bundle::{self, Bundle};
use super::credential::{CA_KEYS, PAIR_KEYS};
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

/// Keys of a kubeconfig's user: the certificate, and its private key.
const CLIENT_PAIR: (&str, &str) = ("client-certificate-data", "client-key-data");

/// Rules on what only Envoy does. Go tries every CA of a subject and takes the one that leads to a sound chain, and no
/// server sends the subjects of its clients' bundle in a handshake.
const ENVOY_ONLY: [&str; 3] = ["expired-beside-renewed", "same-subject-ambiguity", "too-large"];

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

    /// Whether a rule, by its id, says something of what this reader does.
    pub fn heeds(self, rule: &str) -> bool {
        self == Self::Envoy || !ENVOY_ONLY.contains(&rule)
    }

    /// The keys of a CA bundle, the winning one first.
    pub fn ca_keys(self) -> &'static [&'static str] {
        match self {
            Self::Envoy => &CA_KEYS,
            Self::Go => &["caBundle", "certificate-authority-data"],
        }
    }

    /// The keys of pairs, certificate first, the winning pair first.
    pub fn pair_keys(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Envoy => &PAIR_KEYS,
            Self::Go => &[CLIENT_PAIR],
        }
    }

    /// Whether a certificate that is no CA may stand alone in a bundle. With Go that is how a webhook's self-signed
    /// certificate is trusted; in a gateway's bundle it is a leaf in the wrong place.
    pub(super) fn pins(self) -> bool {
        self == Self::Go
    }

    /// What messages call the reader.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Envoy => "the proxy",
            Self::Go => "Go",
        }
    }

    /// What a bundle without any certificate does.
    pub(super) fn without_ca(self) -> &'static str {
        match self {
            Self::Envoy => "a gateway that starts with this refuses every client",
            Self::Go => "with this no server can be verified",
        }
    }

    /// What half a pair does.
    pub(super) fn without_pair(self) -> &'static str {
        match self {
            Self::Envoy => "gateways cannot serve with this",
            Self::Go => "nobody can log in with this",
        }
    }

    /// What a pair does whose key cannot be used.
    pub(super) fn without_key(self) -> &'static str {
        match self {
            Self::Envoy => {
                "expected a PEM private key that proxies can serve with; with one that they cannot read they keep the old pair, \
                 and serve nothing after their next start"
            }
            Self::Go => "expected a PEM private key; with this nobody can log in",
        }
    }

    /// Who is verified by a bundle, and verifies a pair.
    pub(super) fn peer(self) -> &'static str {
        match self {
            Self::Envoy => "client",
            Self::Go => "server",
        }
    }
}
