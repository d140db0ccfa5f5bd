//! The deadlines at which a step is taken regardless of what blocks it, because a CA in use expires soon after.

use jiff::{SignedDuration, Timestamp};

use super::history::{View, admits, end_of_intermediates, verifies};
use super::rules::{Rule, applies};
use crate::api::PropagationDelays;
use crate::rotation::journal::{Authority, Version};
use crate::trust::Certificate;

/// Whether a deadline, if there is one, is in the future.
pub(super) fn is_ahead(view: &View<'_>, deadline: Option<Timestamp>) -> bool {
    deadline.is_none_or(|at| view.now < at)
}

/// The time in which another replica takes over from an agent that has stopped.
const TAKEOVER: SignedDuration = SignedDuration::from_mins(1);

/// When the serving certificate is switched regardless of clients: shortly before it expires, since clients would then
/// reject it anyway.
pub(super) fn switch_deadline(view: &View<'_>, served: &[Certificate]) -> Option<Timestamp> {
    let margin = switch_margin(&view.entry.policy.propagation_delays);
    end_of_serving(view, served).map(|end| end.saturating_sub(margin).unwrap_or(view.now))
}

/// How long before the end of the serving certificate it is switched at the latest.
pub(super) fn switch_margin(delays: &PropagationDelays) -> SignedDuration {
    delays.gateways.duration().saturating_mul(2).saturating_add(TAKEOVER)
}

/// When clients begin to reject what gateways serve: when the certificate or its CA expires.
pub(super) fn end_of_serving(view: &View<'_>, served: &[Certificate]) -> Option<Timestamp> {
    let end = served.first()?.not_after;
    let ca = last_end(&view.journal.server_issuers, |ca| verifies(ca, served, view.now));
    ca.into_iter().chain(end_of_intermediates(served)).chain([end]).min()
}

/// When a serving certificate must be reissued at the latest: before its CA expires.
pub(super) fn serving_deadline(view: &View<'_>, chain: &[Certificate]) -> Option<Timestamp> {
    let ca = last_end(&view.journal.server_issuers, |ca| verifies(ca, chain, view.now));
    ca.into_iter().chain(end_of_intermediates(chain)).min().map(|end| deadline(view, end))
}

/// When a client must be reissued at the latest: before the CA of its certificate expires, or the CA by which it
/// verifies gateways.
pub(super) fn client_deadline(view: &View<'_>, version: &Version) -> Option<Timestamp> {
    // Any of the CAs may have issued a certificate that is unknown.
    let is_unknown = version.is_unknown() && applies(Rule::UnknownMayEndFirst);
    let own = match is_unknown {
        true => first_end(&view.journal.client_issuers, view.now),
        false => last_end(&view.journal.client_issuers, |ca| admits(ca, &version.chain, view.now)),
    };
    let served = view.served_chain.unwrap_or_default();
    let is_trusted =
        |ca: &[Certificate]| (is_unknown || version.trust.contains(&ca[0])) && verifies(ca, served, view.now);
    let gateways = last_end(&view.journal.server_issuers, is_trusted);
    let intermediate = end_of_intermediates(&version.chain);
    // A client that lacks the current CAs would refuse what gateways serve after their chains end.
    let lacks = view.server_issuers.iter().any(|ca| !version.trust.contains(ca));
    let also = view.presented_also.iter().map(|(_, also)| also.chain.as_slice());
    let chains = also.chain([served]).filter_map(end_of_intermediates).filter(|_| lacks);
    own.into_iter().chain(gateways).chain(intermediate).chain(chains).min().map(|end| deadline(view, end))
}

/// The latest expiry of the CAs for which `suffices` holds.
fn last_end(issuers: &[Authority], suffices: impl Fn(&[Certificate]) -> bool) -> Option<Timestamp> {
    let certificates = issuers.iter().map(|authority| &authority.certificate);
    certificates.filter(|ca| suffices(std::slice::from_ref(*ca))).map(|ca| ca.not_after).max()
}

/// The earliest expiry of the CAs that have not expired.
fn first_end(issuers: &[Authority], now: Timestamp) -> Option<Timestamp> {
    issuers.iter().map(|authority| authority.certificate.not_after).filter(|end| *end > now).min()
}

/// When a serving certificate is reissued although single clients do not trust the CA of the next one: late enough that the clients that are
/// reissued at [`serving_deadline`] do.
pub(super) fn last_reissue(view: &View<'_>, chain: &[Certificate]) -> Option<Timestamp> {
    let deadline = serving_deadline(view, chain).filter(|_| applies(Rule::TheEndOverridesClients))?;
    Some(deadline.saturating_add(view.entry.policy.propagation_delays.sum()).unwrap_or(Timestamp::MAX))
}

/// The deadline for what depends on a CA that expires at `end`: earlier by twice the time that all steps take.
pub(super) fn deadline(view: &View<'_>, end: Timestamp) -> Timestamp {
    view.entry.policy.propagation_delays.deadline(end)
}
