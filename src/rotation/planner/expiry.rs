//! What no pause and no closed window outlives: the end of a CA that something live still goes by. A leaf that chains to it ends with
//! it, whatever its own date says.

use jiff::Timestamp;

use super::view::{View, admits, verifies};
use crate::rotation::journal::{Authority, Version};
use crate::trust::Certificate;

/// By when the Issuer is to sign with the new CA: before the one ends that it signs with.
pub(super) fn of_issuer(view: &View<'_>) -> Option<Timestamp> {
    let signing = view.seen.issuer.and_then(|issuer| issuer.chain.first())?;
    Some(before(view, signing.not_after))
}

/// By when a client is to be re-issued: before the CA of its leaf ends, or the one by which it verifies gateways.
pub(super) fn of_client(view: &View<'_>, held: &Version) -> Option<Timestamp> {
    let leaf = last(&view.journal.client_issuers, |ca| admits(ca, &held.chain, view.now));
    let served = view.served_chain().unwrap_or_default();
    let trusted = |ca: &[Certificate]| held.trust.contains(&ca[0]) && verifies(ca, served, view.now);
    let gateways = last(&view.journal.server_issuers, trusted);
    leaf.into_iter().chain(gateways).min().map(|end| before(view, end))
}

/// By when the root is to be re-issued: before the CA of its leaf ends.
pub(super) fn of_root(view: &View<'_>, root: &[Certificate]) -> Option<Timestamp> {
    last(&view.journal.server_issuers, |ca| verifies(ca, root, view.now)).map(|end| before(view, end))
}

/// When clients stop to verify what gateways serve: at the end of the leaf, or of the CA behind it.
pub(super) fn of_served(view: &View<'_>, served: &[Certificate]) -> Option<Timestamp> {
    let leaf = served.first()?.not_after;
    let ca = last(&view.journal.server_issuers, |ca| verifies(ca, served, view.now));
    Some(ca.map_or(leaf, |ca| ca.min(leaf)))
}

/// The end of the CA that lasts longest of those that alone suffice.
fn last(issuers: &[Authority], suffices: impl Fn(&[Certificate]) -> bool) -> Option<Timestamp> {
    let certificates = issuers.iter().map(|authority| &authority.certificate);
    certificates.filter(|ca| suffices(std::slice::from_ref(*ca))).map(|ca| ca.not_after).max()
}

/// Before an end, twice the time that all the steps up to it take.
fn before(view: &View<'_>, end: Timestamp) -> Timestamp {
    let settle = &view.policy().propagation_delays;
    let hops = [settle.gateways, settle.admission, settle.clients].map(|hop| hop.duration());
    let once = hops.into_iter().fold(jiff::SignedDuration::ZERO, jiff::SignedDuration::saturating_add);
    end.saturating_sub(once.saturating_mul(2)).unwrap_or(Timestamp::MIN)
}
