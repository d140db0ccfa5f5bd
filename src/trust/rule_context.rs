//! What rules look at: what a Secret holds, what it is relied on for, and the instant.

use std::sync::OnceLock;

use jiff::Timestamp;

use super::duplicate_subjects::{self, Namesakes, Pairs};
use super::parsed_secret::{Pair, ParsedSecret, Text};
use super::revocation::Revocation;
use super::{Certificate, Duty, Secret, SecretUsage};

/// A Secret as rules see it. Has no `Debug`: it holds the Secret.
pub struct RuleContext<'a> {
    /// The Secret itself.
    pub secret: &'a Secret,
    /// What it is relied on for.
    pub duty: Duty<'a>,
    /// The instant of the verdict.
    pub now: Timestamp,
    /// The CA bundle in force; `None` without a CA key.
    pub ca: Option<&'a Text>,
    /// The revocation lists in force; `None` without content.
    pub crl: Option<&'a Text>,
    /// The pair that is served, or signs; `None` without a complete one.
    pub pair: Option<&'a Pair>,
    revocation: OnceLock<Option<Revocation>>,
    namesakes: OnceLock<Pairs>,
}

impl<'a> RuleContext<'a> {
    /// What is judged of a Secret's contents; they are of the duty's reader.
    pub fn new(contents: &'a ParsedSecret<'_>, duty: Duty<'a>, now: Timestamp) -> Self {
        Self {
            secret: contents.secret,
            duty,
            now,
            ca: contents.ca(),
            // Of a signing CA's Secret no proxy reads lists, and of a bundle's no pair.
            crl: contents.crl().filter(|_| duty.usage != SecretUsage::SigningCa),
            pair: contents.pair().filter(|_| duty.usage != SecretUsage::TrustBundle),
            revocation: OnceLock::new(),
            namesakes: OnceLock::new(),
        }
    }

    /// The texts that the proxy loads, each of which makes it reject the update when it cannot.
    pub fn texts(&self) -> impl Iterator<Item = &'a Text> {
        self.ca.into_iter().chain(self.crl).chain(self.pair.map(|pair| &pair.chain))
    }

    /// The CA bundle, if the proxy takes it.
    pub(crate) fn loaded_ca(&self) -> Option<&'a Text> {
        self.ca.filter(|ca| ca.is_loaded())
    }

    /// Moves the instant of the verdict.
    pub(crate) fn set_now(&mut self, now: Timestamp) {
        self.now = now;
        self.revocation = OnceLock::new();
    }

    /// CAs of the bundle that have one subject.
    pub(super) fn namesakes(&self) -> Vec<Namesakes<'_>> {
        let Some(ca) = self.loaded_ca() else { return Vec::new() };
        let lists = self.crl.map_or(0, |crl| crl.bundle.crls.len());
        self.namesakes.get_or_init(|| duplicate_subjects::pairs(ca, lists)).of(ca)
    }

    /// The chain of the pair, if the proxy takes it, and the certificate of the private key: a leaf, or the CA that signs.
    pub(super) fn served(&self) -> Option<(&'a Text, &'a Certificate)> {
        let chain = &self.pair?.chain;
        let leaf = chain.bundle.entries.first().filter(|_| chain.is_loaded())?;
        Some((chain, &leaf.certificate))
    }

    /// What revocation lists do to clients; `None` when the proxy looks at none.
    pub(crate) fn revocation(&self) -> Option<&Revocation> {
        self.revocation.get_or_init(|| Revocation::of(self.loaded_ca()?, self.crl, self.now)).as_ref()
    }
}
