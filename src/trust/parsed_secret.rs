//! The texts of a Secret that are in use, each parsed once, on first use, since a mebibyte takes time to parse.

use std::sync::OnceLock;

use super::bundle::Bundle;
use super::certificate::{hex, sha256};
use super::credential::{self, ServingPair};
use super::private_key::KeyError;
use super::secret::field;
use super::{Certificate, Secret, TlsConsumer};

/// The CA bundle, serving pair and revocation lists of a Secret, parsed as a TLS consumer reads them. Has no `Debug`: it contains the Secret.
pub struct ParsedSecret<'a> {
    /// The Secret itself.
    pub secret: &'a Secret,
    /// The TLS consumer that reads it.
    pub reader: TlsConsumer,
    ca: OnceLock<Option<Text>>,
    crl: OnceLock<Option<Text>>,
    pair: OnceLock<Option<Pair>>,
}

/// A parsed PEM text.
pub struct Text {
    /// The key under `data`.
    pub key: &'static str,
    /// Its reader.
    pub reader: TlsConsumer,
    /// Its content.
    pub bundle: Bundle,
    /// SHA-256 over the bytes of a text with a fault or without certificates, to recognize it.
    digest: Option<String>,
}

/// A parsed serving pair.
pub struct Pair {
    /// The chain, leaf first.
    pub chain: Text,
    /// The key under `data` of the private key.
    pub private_key_key: &'static str,
    /// The private key's SubjectPublicKeyInfo.
    pub public_key: Result<Vec<u8>, KeyError>,
    /// SHA-256 over the bytes of the private key, to recognize a broken one. Never shown.
    pub(crate) private_key_digest: String,
}

impl<'a> ParsedSecret<'a> {
    /// A Secret that is parsed on first use.
    pub fn new(secret: &'a Secret, reader: TlsConsumer) -> Self {
        Self { secret, reader, ca: OnceLock::new(), crl: OnceLock::new(), pair: OnceLock::new() }
    }

    /// The CA bundle in use; `None` without a CA key.
    pub fn ca(&self) -> Option<&Text> {
        let text = || {
            let ca = credential::ca_bundle_of(self.reader, self.secret)?;
            Some(Text::new(ca.key, ca.pem, self.reader, TlsConsumer::bundle))
        };
        self.ca.get_or_init(text).as_ref()
    }

    /// The revocation lists in use; `None` without content.
    pub fn crl(&self) -> Option<&Text> {
        let text = || {
            let crl = credential::revocation_lists(self.secret)?;
            Some(Text::new(crl.key, crl.pem, self.reader, TlsConsumer::bundle))
        };
        self.crl.get_or_init(text).as_ref()
    }

    /// The serving pair in use; `None` without a complete one.
    pub fn pair(&self) -> Option<&Pair> {
        let pair = || Some(Pair::new(credential::pair_of(self.reader, self.secret)?, self.reader));
        self.pair.get_or_init(pair).as_ref()
    }

    /// Whether the pair belongs to a CA that may sign.
    pub fn presents_ca(&self) -> bool {
        self.pair().and_then(|pair| pair.chain.certificates().next()).is_some_and(|first| first.is_ca && first.may_sign)
    }

    /// The anchors that a proxy loads. A bundle that it rejects has none.
    pub(crate) fn anchors(&self) -> impl Iterator<Item = &Certificate> + Clone {
        self.ca().filter(|ca| ca.is_loaded()).into_iter().flat_map(Text::certificates)
    }

    /// The chain that a proxy serves. Without the leaf's own key it serves none.
    pub(crate) fn served(&self) -> impl Iterator<Item = &Certificate> + Clone {
        let is_own = |pair: &&Pair| {
            let leaf = pair.chain.certificates().next();
            leaf.is_some_and(|leaf| pair.public_key.as_ref().is_ok_and(|key| *key == leaf.public_key))
        };
        self.pair()
            .filter(|pair| pair.chain.is_loaded())
            .filter(is_own)
            .into_iter()
            .flat_map(|p| p.chain.certificates())
    }
}

impl Text {
    fn new(key: &'static str, pem: &[u8], reader: TlsConsumer, read: fn(TlsConsumer, &[u8]) -> Bundle) -> Self {
        let bundle = read(reader, pem);
        let is_valid = bundle.rejected.is_none() && !bundle.is_too_long && !bundle.entries.is_empty();
        Self { key, reader, bundle, digest: (!is_valid).then(|| hex(&sha256(pem))) }
    }

    /// Whether the proxy loads it. Only `unparsable` reports on a text that it rejects.
    pub fn is_loaded(&self) -> bool {
        self.bundle.rejected.is_none()
    }

    /// Identifies a text with a fault, or without certificates; empty for any other.
    pub(super) fn digest(&self) -> &str {
        self.digest.as_deref().unwrap_or_default()
    }

    /// The field, as users write it.
    pub fn field(&self) -> String {
        field(self.key)
    }

    /// Its certificates, in their order.
    pub(crate) fn certificates(&self) -> impl Iterator<Item = &Certificate> + Clone {
        self.bundle.entries.iter().map(|entry| &entry.certificate)
    }
}

impl Pair {
    fn new(pair: ServingPair<'_>, reader: TlsConsumer) -> Self {
        Self {
            chain: Text::new(pair.chain_key, pair.chain, reader, TlsConsumer::chain),
            private_key_key: pair.private_key_key,
            public_key: reader.public_key(pair.private_key),
            private_key_digest: hex(&sha256(pair.private_key)),
        }
    }
}
