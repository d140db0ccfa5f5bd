//! Which CAs each side has to trust: the source's, and of the previous ones those that something live still needs.

use jiff::Timestamp;

use super::view::View;
use crate::rotation::journal::Authority;
use crate::trust::{Certificate, continuity, is_distrusted};

/// A bundle, and what was against making it smaller.
#[derive(Clone, Debug, Default)]
pub(super) struct Bundle {
    /// The CAs, new first: order decides between namesakes in Envoy, and an expired one before its renewal hides it.
    pub(super) trust: Vec<Certificate>,
    /// How many previous CAs are kept because live leaves need them.
    pub(super) needed: usize,
    /// The last instant to which a previous CA is kept for nobody in particular.
    pub(super) until: Option<Timestamp>,
}

/// What gateways are to trust.
pub(super) fn of_gateways(view: &View<'_>) -> Bundle {
    let chains: Vec<_> = view.clients_in_use().map(|(_, version)| version.chain.as_slice()).collect();
    bundle(view, &view.journal.client_issuers, &chains, continuity::admits)
}

/// What clients are to trust.
pub(super) fn of_clients(view: &View<'_>) -> Bundle {
    let served = view.gateways_in_use().map(|version| version.chain.as_slice());
    let next = view.root_chain();
    let chains: Vec<_> = served.chain(next).filter(|chain| !chain.is_empty()).collect();
    bundle(view, &view.journal.server_issuers, &chains, continuity::verifies)
}

type Accepts = fn(&[Certificate], &[Certificate], Timestamp) -> bool;

fn bundle(view: &View<'_>, issuers: &[Authority], chains: &[&[Certificate]], accepts: Accepts) -> Bundle {
    let (now, spec) = (view.now, view.spec());
    let distrusted = |certificate: &&Certificate| is_distrusted(certificate, &spec.distrust);
    let current = issuers.iter().filter(|authority| authority.current).map(|authority| &authority.certificate);
    let sound: Vec<_> = current.clone().filter(|certificate| !distrusted(certificate)).cloned().collect();
    // A bundle is never emptied.
    let trust = if sound.is_empty() { current.cloned().collect() } else { sound };
    let mut bundle = Bundle { trust, ..Bundle::default() };
    let mut open: Vec<_> = chains.iter().filter(|chain| !accepts(&bundle.trust, chain, now)).collect();
    let mut idle = Vec::new();
    for authority in issuers.iter().filter(|authority| !authority.current) {
        let certificate = &authority.certificate;
        if certificate.is_expired(now) || distrusted(&certificate) || bundle.trust.contains(certificate) {
            continue;
        }
        bundle.trust.push(certificate.clone());
        let before = open.len();
        open.retain(|chain| !accepts(&bundle.trust, chain, now));
        if open.len() < before {
            bundle.needed += 1;
            continue;
        }
        bundle.trust.pop();
        idle.push(authority);
    }
    // What no known leaf needs: a leaf may be signed that was not seen yet, or one that is not known at all.
    for authority in idle {
        let certificate = &authority.certificate;
        let room = spec.max_previous_cas.is_none_or(|most| previous(&bundle.trust, issuers) < most as usize);
        let until = unseen_until(view, authority);
        if now < until && room && !bundle.trust.iter().any(|held| held.supersedes(certificate)) {
            bundle.until = bundle.until.max(Some(until));
            bundle.trust.push(certificate.clone());
        }
    }
    bundle.trust.sort_by_key(|held| issuers.iter().position(|authority| authority.certificate == *held));
    bundle
}

/// How many of a bundle's CAs the source does not hold.
fn previous(trust: &[Certificate], issuers: &[Authority]) -> usize {
    let is_current = |certificate: &Certificate| issuers.iter().any(|a| a.current && a.certificate == *certificate);
    trust.iter().filter(|certificate| !is_current(certificate)).count()
}

/// Until when leaves of a previous CA may be in use that nobody has seen.
fn unseen_until(view: &View<'_>, authority: &Authority) -> Timestamp {
    let spec = view.spec();
    let end = authority.certificate.not_after;
    let Some(retired) = authority.retired else { return end };
    let seen_late = spec.settle.clients.after(retired);
    let undeclared = match spec.clients.max_leaf_lifetime {
        _ if spec.clients.complete => seen_late,
        Some(lifetime) => lifetime.after(retired).max(seen_late),
        None => end,
    };
    undeclared.min(end)
}

/// Whether `trust` holds all of `wanted`, or what supersedes them.
pub(super) fn holds(trust: &[Certificate], wanted: &[Certificate]) -> bool {
    wanted.iter().all(|certificate| trust.iter().any(|held| held.supersedes(certificate)))
}
