//! Clients that connect to the gateways of several GatewaySecrets of one namespace. The label of a client names one of them; each of them waits for
//! the client.

#[cfg(feature = "edge")]
use std::collections::BTreeSet;

use jiff::Timestamp;

use super::history::{View, admits, authorities, holds};
#[cfg(feature = "edge")]
use super::snapshot::{ClientState, Snapshot};
use crate::connectivity;
use crate::registry::Entry;
#[cfg(feature = "edge")]
use crate::rotation::journal::Journal;
use crate::rotation::journal::Version;
use crate::trust::Certificate;

/// Whether the managed Secrets of two GatewaySecrets have a CA in common, by their status.
#[cfg(feature = "edge")]
pub(crate) fn share_a_ca(one: &Entry, other: &Entry) -> bool {
    let known: BTreeSet<_> = one.status.bundle.iter().map(|anchor| &anchor.fingerprint).collect();
    other.status.bundle.iter().any(|anchor| known.contains(&anchor.fingerprint))
}

/// The clients among those of other GatewaySecrets that these gateways accept, too: a CA that this GatewaySecret knows has signed their
/// certificate, or its journal has them.
#[cfg(feature = "edge")]
pub(crate) fn shared_clients(
    of_others: Vec<ClientState>,
    snapshot: &Snapshot<'_>,
    journal: &Journal,
    now: Timestamp,
) -> Vec<ClientState> {
    let mut known: Vec<_> = journal.client_issuers.iter().map(|authority| authority.certificate.clone()).collect();
    known.extend(snapshot.managed.map(|managed| managed.anchors.clone()).unwrap_or_default());
    known.extend(snapshot.usable_client_ca().map(authorities).unwrap_or_default());
    let mut unique = BTreeSet::new();
    known.retain(|ca| unique.insert(ca.fingerprint.clone()));
    // Each alone: the order of a bundle can hide one CA behind another.
    let is_accepted = |client: &ClientState| {
        !client.chain.is_empty() && known.iter().any(|ca| admits(std::slice::from_ref(ca), &client.chain, now))
    };
    let mut shared = of_others;
    shared.retain(|client| journal.clients.contains_key(&client.name) || is_accepted(client));
    shared
}

/// Another GatewaySecret whose gateways may not trust the CA that signs clients from now on.
pub(super) struct GatewaysBehind<'a> {
    pub(super) entry: &'a Entry,
    bundle: Vec<Certificate>,
    /// Its managed Secret has the CA.
    pub(super) is_written: bool,
}

/// The GatewaySecrets of the namespace that share a CA of clients with this one, and whose gateways may not trust the next one yet.
pub(super) fn gateways_behind<'a>(view: &View<'a>) -> Vec<GatewaysBehind<'a>> {
    let signing = signing(view);
    if !view.rotates() || signing.is_empty() {
        return Vec::new();
    }
    let issuers = &view.journal.client_issuers;
    let shares = |other: &&&Entry| {
        let mut bundle = other.status.bundle.iter();
        bundle.any(|anchor| issuers.iter().any(|issuer| issuer.certificate.fingerprint == anchor.fingerprint))
    };
    let behind = |other: &&'a Entry| {
        let bundle = &other.status.bundle;
        let has_it = |held: &[Certificate]| signing.iter().any(|ca| holds(held, std::slice::from_ref(ca), view.now));
        let converged = connectivity::observed(bundle.iter().filter(|anchor| anchor.converged != Some(false)));
        if has_it(&converged) {
            return None;
        }
        let bundle = connectivity::observed(bundle);
        let is_written = has_it(&bundle);
        Some(GatewaysBehind { entry: other, bundle, is_written })
    };
    view.snapshot.other_gateway_secrets.iter().filter(shares).filter_map(behind).collect()
}

/// The CA that signs clients, or the CAs of which one does.
pub(super) fn signing(view: &View<'_>) -> Vec<Certificate> {
    let Ok(source) = view.snapshot.usable_client_ca() else { return Vec::new() };
    let signing = source.chain.first().filter(|signing| source.anchors.contains(signing));
    signing.map_or_else(|| authorities(source), |signing| vec![signing.clone()])
}

impl GatewaysBehind<'_> {
    /// Whether its gateways accept a version of a client.
    pub(super) fn accept(&self, held: &Version, now: Timestamp) -> bool {
        !held.chain.is_empty() && admits(&self.bundle, &held.chain, now)
    }
}
