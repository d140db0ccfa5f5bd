//! What is seen and what is remembered, as the steps ask for it.

use jiff::Timestamp;

use super::seen::{Seen, usable};
use crate::api::GatewaySecretSpec;
use crate::rotation::journal::{Authority, Journal, Version};
use crate::trust::credential::CA_KEYS;
use crate::trust::{Certificate, Finding, continuity, field, is_distrusted};

pub(super) struct View<'a> {
    pub(super) seen: &'a Seen<'a>,
    pub(super) journal: &'a Journal,
    pub(super) now: Timestamp,
}

impl<'a> View<'a> {
    pub(super) fn spec(&self) -> &'a GatewaySecretSpec {
        &self.seen.entry.spec
    }

    /// What gateways may still go by.
    pub(super) fn gateways_in_use(&self) -> impl Iterator<Item = &'a Version> {
        let (settle, now) = (self.spec().settle.gateways, self.now);
        self.journal.gateways.iter().filter(move |version| version.may_be_in_use(settle, now))
    }

    /// What declared clients may still go by, with their names.
    pub(super) fn clients_in_use(&self) -> impl Iterator<Item = (&'a str, &'a Version)> {
        let (settle, now) = (self.spec().settle.clients, self.now);
        let clients = self.journal.clients.iter();
        clients.flat_map(move |(name, client)| client.in_use(settle, now).map(move |version| (name.as_str(), version)))
    }

    /// The chain in the root Secret, when it can be served.
    pub(super) fn root_chain(&self) -> Option<&'a [Certificate]> {
        let root = usable((self.seen.root, self.seen.entry.root_name())).ok()?;
        Some(root.chain.as_slice()).filter(|chain| !chain.is_empty())
    }

    /// The chain in the managed Secret, when its pair is sound: a broken bundle beside it is no reason to change the leaf.
    pub(super) fn served_chain(&self) -> Option<&'a [Certificate]> {
        let is_of_bundle = |finding: &Finding| CA_KEYS.iter().any(|key| finding.field == field(key));
        let managed = self.seen.managed.filter(|managed| managed.denials.iter().all(is_of_bundle))?;
        Some(managed.chain.as_slice()).filter(|chain| !chain.is_empty())
    }

    /// The CAs that now sign, or shall sign, what clients present.
    pub(super) fn client_issuers(&self) -> Vec<Certificate> {
        self.sound(&self.journal.client_issuers)
    }

    /// The CAs that now sign, or shall sign, what gateways serve.
    pub(super) fn server_issuers(&self) -> Vec<Certificate> {
        self.sound(&self.journal.server_issuers)
    }

    /// What the source holds, without what is distrusted, unless nothing were left.
    pub(super) fn sound(&self, issuers: &[Authority]) -> Vec<Certificate> {
        let current =
            issuers.iter().filter(|authority| authority.current).map(|authority| authority.certificate.clone());
        let (distrusted, sound): (Vec<_>, Vec<_>) =
            current.partition(|certificate| is_distrusted(certificate, &self.spec().distrust));
        if sound.is_empty() { distrusted } else { sound }
    }
}

/// Whether gateways with this bundle accept a client's chain.
pub(super) fn admits(trust: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    continuity::admits(trust, chain, begun(chain, now))
}

/// Whether a client that trusts these CAs verifies a gateway's chain.
pub(super) fn verifies(trust: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    continuity::verifies(trust, chain, begun(chain, now))
}

/// By a clock that is behind, what is in use seems not to be valid yet. It is needed all the same.
fn begun(chain: &[Certificate], now: Timestamp) -> Timestamp {
    chain.iter().map(|certificate| certificate.not_before).fold(now, Timestamp::max)
}
