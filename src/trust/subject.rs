//! What rules look at: a Secret, parsed once.

use std::sync::OnceLock;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::bundle::Bundle;
use super::certificate::hex;
use super::namesakes::{self, Namesakes, Pairs};
use super::private_key::KeyError;
use super::revocation::Revocation;
use super::{Certificate, Duty, Reader, Secret, credential};

/// A Secret as rules see it. Has no `Debug`: it holds the Secret.
pub struct Subject<'a> {
    /// The Secret itself.
    pub secret: &'a Secret,
    /// What it is relied on for.
    pub duty: Duty<'a>,
    /// The instant of the verdict.
    pub now: Timestamp,
    /// The CA bundle in force; `None` without a CA key.
    pub ca: Option<Text>,
    /// The revocation lists in force; `None` without content.
    pub crl: Option<Text>,
    /// The serving pair in force; `None` without a complete one.
    pub pair: Option<Pair>,
    revocation: OnceLock<Option<Revocation>>,
    namesakes: OnceLock<Pairs>,
}

/// A parsed PEM text.
pub struct Text {
    /// The key under `data`.
    pub key: &'static str,
    /// Who reads it.
    pub reader: Reader,
    /// What it holds.
    pub bundle: Bundle,
    /// SHA-256 over the bytes, to know a broken text again.
    pub digest: String,
}

/// A parsed serving pair.
pub struct Pair {
    /// The chain, leaf first.
    pub chain: Text,
    /// The key under `data` of the private key.
    pub private_key_key: &'static str,
    /// The private key's SubjectPublicKeyInfo.
    pub public_key: Result<Vec<u8>, KeyError>,
    /// SHA-256 over the bytes of the private key, to know a broken one again. Never shown.
    pub(crate) private_key_digest: String,
}

impl<'a> Subject<'a> {
    /// Parses a Secret.
    pub fn new(secret: &'a Secret, duty: Duty<'a>, now: Timestamp) -> Self {
        let reader = duty.reader;
        let text = |key, pem: &[u8], bundle| Text { key, reader, bundle, digest: hex(&Sha256::digest(pem)) };
        Self {
            secret,
            duty,
            now,
            ca: credential::ca_bundle_of(reader, secret).map(|ca| text(ca.key, ca.pem, reader.bundle(ca.pem))),
            crl: credential::revocation_lists(secret).map(|crl| text(crl.key, crl.pem, reader.bundle(crl.pem))),
            revocation: OnceLock::new(),
            namesakes: OnceLock::new(),
            pair: credential::pair_of(reader, secret).map(|pair| Pair {
                chain: text(pair.chain_key, pair.chain, reader.chain(pair.chain)),
                private_key_key: pair.private_key_key,
                public_key: reader.public_key(pair.private_key),
                private_key_digest: hex(&Sha256::digest(pair.private_key)),
            }),
        }
    }

    /// The texts that the proxy loads, each of which makes it reject the update when it cannot.
    pub fn texts(&self) -> impl Iterator<Item = &Text> {
        self.ca.iter().chain(&self.crl).chain(self.pair.iter().map(|pair| &pair.chain))
    }

    /// The CA bundle, if the proxy takes it.
    pub(crate) fn loaded_ca(&self) -> Option<&Text> {
        self.ca.as_ref().filter(|ca| ca.is_loaded())
    }

    /// Moves the instant of the verdict.
    pub(crate) fn set_now(&mut self, now: Timestamp) {
        self.now = now;
        self.revocation = OnceLock::new();
    }

    /// CAs of the bundle that have one subject.
    pub(super) fn namesakes(&self) -> Vec<Namesakes<'_>> {
        let Some(ca) = self.loaded_ca() else { return Vec::new() };
        let lists = self.crl.as_ref().map_or(0, |crl| crl.bundle.crls.len());
        self.namesakes.get_or_init(|| namesakes::pairs(ca, lists)).of(ca)
    }

    /// The serving pair, if the proxy takes its chain, and the chain's leaf.
    pub(super) fn served(&self) -> Option<(&Text, &Certificate)> {
        let chain = &self.pair.as_ref()?.chain;
        let leaf = chain.bundle.entries.first().filter(|_| chain.is_loaded())?;
        Some((chain, &leaf.certificate))
    }

    /// What revocation lists do to clients; `None` when the proxy looks at none.
    pub(crate) fn revocation(&self) -> Option<&Revocation> {
        self.revocation.get_or_init(|| Revocation::of(self.loaded_ca()?, self.crl.as_ref(), self.now)).as_ref()
    }
}

impl Text {
    /// Whether the proxy takes it at all. The other rules have nothing to say of a text that it rejects.
    pub fn is_loaded(&self) -> bool {
        self.bundle.rejected.is_none()
    }

    /// The field, as users write it.
    pub fn field(&self) -> String {
        field(self.key)
    }
}

/// A key under `data`, as users write it.
pub(crate) fn field(key: &str) -> String {
    format!("data[{key}]")
}
