//! The input of rules: the content of a Secret, its role, and the current time.

use std::sync::OnceLock;

use jiff::Timestamp;

use super::duplicate_subjects::{self, Pairs, SameSubject};
use super::parsed_secret::{Pair, ParsedSecret, Text};
use super::revocation::Revocation;
use super::{Certificate, Resemblance, Secret, SecretUsage, UsageKind};

/// A Secret for rules. Has no `Debug`: it contains the Secret.
pub struct RuleContext<'a> {
    /// The Secret itself.
    pub secret: &'a Secret,
    /// How the Secret is used.
    pub usage: SecretUsage<'a>,
    /// The instant of the verdict.
    pub now: Timestamp,
    /// The instant at which the findings are read: no later than `now`.
    today: Timestamp,
    /// The CA bundle in use; `None` without a CA key.
    pub ca: Option<&'a Text>,
    /// The revocation lists in use; `None` without content.
    pub crl: Option<&'a Text>,
    /// The serving or signing pair; `None` without a complete one.
    pub pair: Option<&'a Pair>,
    /// The stored version, on an update.
    pub(super) before: Option<&'a ParsedSecret<'a>>,
    revocation: OnceLock<Option<Revocation>>,
    same_subjects: OnceLock<Pairs>,
}

impl<'a> RuleContext<'a> {
    /// The parts of a Secret that matter for its use; `contents` must be parsed for the reader in `usage`.
    pub fn new(contents: &'a ParsedSecret<'_>, usage: SecretUsage<'a>, now: Timestamp) -> Self {
        Self {
            secret: contents.secret,
            usage,
            now,
            today: now,
            ca: contents.ca(),
            // Proxies read no lists from a signing CA's Secret, and no pair from a bundle's.
            crl: contents.crl().filter(|_| usage.kind != UsageKind::SigningCa),
            pair: contents.pair().filter(|_| usage.kind != UsageKind::TrustBundle),
            before: None,
            revocation: OnceLock::new(),
            same_subjects: OnceLock::new(),
        }
    }

    /// The context of an update of this Secret.
    pub fn after(self, before: &'a ParsedSecret<'a>) -> Self {
        Self { before: Some(before), ..self }
    }

    /// The texts that the proxy loads. It rejects the update if one cannot be loaded.
    pub fn texts(&self) -> impl Iterator<Item = &'a Text> {
        self.ca.into_iter().chain(self.crl).chain(self.pair.map(|pair| &pair.chain))
    }

    /// Why a text has no PEM blocks, after a colon; empty if its encoding is not the reason.
    pub(super) fn encoding_of(&self, key: &str) -> String {
        let encoding = self.secret.data.get(key).and_then(|text| Resemblance::of_encoding(text));
        encoding.map(|encoding| format!(": {encoding}")).unwrap_or_default()
    }

    /// The CA bundle, if the proxy loads it.
    pub(crate) fn loaded_ca(&self) -> Option<&'a Text> {
        self.ca.filter(|ca| ca.is_loaded())
    }

    /// Moves the instant of the verdict.
    pub(crate) fn set_now(&mut self, now: Timestamp) {
        self.now = now;
        self.revocation = OnceLock::new();
    }

    /// Whether the verdict is about a later instant than the one at which it is read.
    pub(super) fn is_ahead(&self) -> bool {
        self.now > self.today
    }

    /// Whether a certificate is valid at the instant at which the findings are read.
    pub(super) fn is_valid_today(&self, certificate: &Certificate) -> bool {
        certificate.is_valid_at(self.today)
    }

    /// What an advice to remove a certificate ends with: what is valid today has clients today.
    pub(super) fn when_to_remove(&self) -> &'static str {
        if self.is_ahead() { " at that time" } else { "" }
    }

    /// CAs of the bundle that share a subject.
    pub(super) fn same_subjects(&self) -> Vec<SameSubject<'_>> {
        let Some(ca) = self.loaded_ca() else { return Vec::new() };
        let lists = self.crl.map_or(0, |crl| crl.bundle.crls.len());
        self.same_subjects.get_or_init(|| duplicate_subjects::pairs(ca, lists, self.usage.oldest_proxy)).of(ca)
    }

    /// The chain of the pair, if the proxy loads it, and its first certificate: a leaf, or a signing CA.
    pub(super) fn served(&self) -> Option<(&'a Text, &'a Certificate)> {
        let chain = &self.pair?.chain;
        let leaf = chain.bundle.entries.first().filter(|_| chain.is_loaded())?;
        Some((chain, &leaf.certificate))
    }

    /// The effect of revocation lists; `None` if the proxy checks none.
    pub(crate) fn revocation(&self) -> Option<&Revocation> {
        self.revocation.get_or_init(|| Revocation::of(self.loaded_ca()?, self.crl, self.now)).as_ref()
    }
}
