//! Clients that connect to the gateways of several GatewaySecrets of one namespace. The label of a client names one of them; each of them waits for
//! the client.

#[cfg(feature = "edge")]
use std::collections::BTreeSet;

use jiff::Timestamp;

use super::clients::clients_that;
use super::deadlines::{client_deadline, is_ahead};
use super::history::{View, admits, authorities, holds};
use super::pause::Pause;
#[cfg(feature = "edge")]
use super::snapshot::Snapshot;
use super::snapshot::{ClientState, REPORT_TIMEOUT};
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
    entry: &'a Entry,
    bundle: Vec<Certificate>,
    /// Its managed Secret has the CA.
    is_written: bool,
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
fn signing(view: &View<'_>) -> Vec<Certificate> {
    let Ok(source) = view.snapshot.usable_client_ca() else { return Vec::new() };
    let signing = source.chain.first().filter(|signing| source.anchors.contains(signing));
    signing.map_or_else(|| authorities(source), |signing| vec![signing.clone()])
}

/// Removes the clients that these gateways block from those to reissue, and returns why.
pub(super) fn block(view: &View<'_>, behind: &[GatewaysBehind<'_>], lagging: &mut Vec<&ClientState>) -> Vec<Pause> {
    let mut pauses = Vec::new();
    for gateways in behind {
        let before = lagging.len();
        lagging
            .retain(|client| !view.journal.newest_of(&client.name).is_some_and(|newest| gateways.block(view, newest)));
        pauses.extend(if lagging.len() < before { gateways.pause(view) } else { None });
    }
    pauses
}

impl GatewaysBehind<'_> {
    /// Why certificates of the new CA have to wait: some of this GatewaySecret's clients connect to those gateways, too.
    pub(super) fn pause(&self, view: &View<'_>) -> Option<Pause> {
        let clients = clients_that(view, |_, version| self.accept(version, view.now))?;
        let Entry { name, .. } = self.entry;
        if self.is_written {
            let reason = format!(
                "Gateways of GatewaySecret {name} accept {clients}, too, and some may not trust the new CA yet. Status of {name} says which"
            );
            return Some(Pause::without_action(None, reason));
        }
        // The agent reconciles one after the other.
        let signing = signing(view);
        let signers = view.journal.client_issuers.iter().filter(|issuer| signing.contains(&issuer.certificate));
        let since = signers.map(|issuer| issuer.since).max();
        let is_late = since.is_some_and(|since| view.now.duration_since(since) > REPORT_TIMEOUT);
        let reason = format!(
            "Gateways of GatewaySecret {name} accept {clients}, too, and do not have the new CA. Add it to Secret {} or to spec.additionalTrust \
             of {name}",
            self.entry.client_ca_name()
        );
        Some(Pause { needs_action: is_late, ..Pause::for_action(reason) })
    }

    /// Whether a version of a client must not be replaced before these gateways trust the new CA. Shortly before a CA that it depends on expires,
    /// nothing blocks it.
    pub(super) fn block(&self, view: &View<'_>, version: &Version) -> bool {
        self.accept(version, view.now) && is_ahead(view, client_deadline(view, version))
    }

    fn accept(&self, version: &Version, now: Timestamp) -> bool {
        !version.chain.is_empty() && admits(&self.bundle, &version.chain, now)
    }
}
