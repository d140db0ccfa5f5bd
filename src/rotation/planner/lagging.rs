//! Which declared clients do not follow: what everything else of a rotation waits for.

use super::expiry;
use super::readers;
use super::steps::{migrated, signs_current};
use super::trust::holds;
use super::view::{View, verifies_to_the_end};
use crate::rotation::journal::Version;
use crate::trust::Certificate;

/// The clients that may still go by something of an old CA, although all was asked of them that can be; sorted. While re-issues
/// are held back, by a pause, by a Certificate's own renewal policy or for the gateways, nobody lags.
pub(super) fn lagging(view: &View<'_>) -> Vec<String> {
    let held = || view.pause().is_some() || readers::hold(view, expiry::of_issuer(view)).is_some();
    if !view.journal.offered.is_empty() || !signs_current(view) || held() {
        return Vec::new();
    }
    let (issuers, anchors) = (view.client_issuers(), view.server_issuers());
    let served = view.served_chain().unwrap_or_default();
    // One that does not go by these CAs at all is not waited for.
    let trusts_old = |trust: &[Certificate]| {
        !served.is_empty() && verifies_to_the_end(trust, served, view.now) && !holds(trust, &anchors)
    };
    let lags = |held: &Version| !migrated(&issuers, &held.chain, view.now) || trusts_old(&held.trust);
    // What its Certificate's own renewal policy holds back, or a server that pins it, was not asked of it yet.
    let newest = |name: &str| view.journal.clients.get(name).and_then(|client| client.newest());
    let is_pinned = |name: &str| newest(name).is_some_and(|held| readers::pin(view, held).is_some());
    let is_held = |name: &str| {
        let client = view.seen.clients.iter().find(|client| client.name == name);
        client.is_some_and(|client| view.client_pause(client).is_some() || is_pinned(name))
    };
    // Sorted already: the journal is a map.
    let mut names: Vec<_> =
        view.clients_in_use().filter(|(_, held)| lags(held)).map(|(name, _)| name.to_owned()).collect();
    names.retain(|name| !is_held(name));
    names.dedup();
    names
}
