//! Which CAs each side has to trust: the source's, and of the previous ones those that something live still needs.

use jiff::Timestamp;

use super::readers::presented_also;
use super::view::{View, admits, verifies_to_the_end};
use crate::rotation::journal::{Authority, Version};
use crate::trust::{Certificate, is_distrusted};

/// A bundle, and what was against making it smaller.
#[derive(Clone, Debug, Default)]
pub(super) struct PlannedBundle {
    /// The CAs, new first: order decides between namesakes in Envoy, and an expired one before its renewal hides it.
    pub(super) trust: Vec<Certificate>,
    /// How many previous CAs are kept because live leaves need them.
    pub(super) needed: usize,
    /// The last instant to which a previous CA is kept for nobody in particular.
    pub(super) until: Option<Timestamp>,
    /// RegistryCache leaves need more previous CAs than `maxPreviousCAs`.
    pub(super) over_cap: bool,
}

/// What gateways are to trust.
pub(super) fn of_gateways(view: &View<'_>) -> PlannedBundle {
    let clients = view.clients_in_use().map(|(_, version)| version);
    // To an upstream behind these gateways their own certificate is a client's.
    let is_client = view.seen.readers.iter().any(|reader| reader.is_client);
    let clients = clients.chain(view.gateways_in_use().filter(|_| is_client));
    let chains = clients.map(|version| version.chain.as_slice()).filter(|chain| !chain.is_empty());
    bundle(view, &view.journal.client_issuers, &each_once(chains), admits, unseen_clients)
}

/// What clients are to trust. A leaf that is kept beyond its end needs its CA still.
pub(super) fn of_clients(view: &View<'_>) -> PlannedBundle {
    bundle(view, &view.journal.server_issuers, &of_served(view), verifies_to_the_end, unseen_leaves)
}

/// The chains that gateways serve, or shall serve next.
pub(super) fn of_served<'v>(view: &'v View<'_>) -> Vec<&'v [Certificate]> {
    let served = view
        .gateways_in_use()
        .chain(presented_also(view).map(|(_, version)| version))
        .map(|version| version.chain.as_slice());
    each_once(served.chain(view.root_chain()).filter(|chain| !chain.is_empty()))
}

fn each_once<'a>(chains: impl Iterator<Item = &'a [Certificate]>) -> Vec<&'a [Certificate]> {
    chains.fold(Vec::new(), |mut known, chain| {
        if !known.contains(&chain) {
            known.push(chain);
        }
        known
    })
}

type Accepts = fn(&[Certificate], &[Certificate], Timestamp) -> bool;
/// Until when what a CA signed may be in use that nobody has seen. The last: whether the cap has room for it.
type Unseen = fn(&View<'_>, &Authority, bool) -> Timestamp;

fn bundle(
    view: &View<'_>,
    issuers: &[Authority],
    chains: &[&[Certificate]],
    accepts: Accepts,
    unseen_until: Unseen,
) -> PlannedBundle {
    let (now, spec) = (view.now, view.spec());
    let mut bundle = PlannedBundle { trust: view.sound(issuers), ..PlannedBundle::default() };
    let in_some_order = |trust: &[Certificate], chain: &[Certificate], at| {
        accepts(trust, chain, at) || trust.len() > 1 && accepts(&reversed(trust), chain, at)
    };
    let mut open: Vec<_> = chains.iter().filter(|chain| !in_some_order(&bundle.trust, chain, now)).collect();
    let mut idle = Vec::new();
    for authority in issuers.iter().filter(|authority| !authority.current) {
        let certificate = &authority.certificate;
        if certificate.is_expired(now)
            || is_distrusted(certificate, &spec.distrusted_cas)
            || bundle.trust.contains(certificate)
        {
            continue;
        }
        bundle.trust.push(certificate.clone());
        let before = open.len();
        // By a clock that is behind, a CA that was renewed seems not to be valid yet. It is needed all the same.
        let begun = now.max(certificate.not_before);
        open.retain(|chain| !in_some_order(&bundle.trust, chain, begun));
        if open.len() < before {
            bundle.needed += 1;
            continue;
        }
        bundle.trust.pop();
        idle.push(authority);
    }
    bundle.over_cap = view.policy().max_previous_cas.is_some_and(|most| bundle.needed > most as usize);
    // What no known leaf needs: a leaf may be signed that was not seen yet, or one that is not known at all.
    for authority in idle {
        let certificate = &authority.certificate;
        let room = view.policy().max_previous_cas.is_none_or(|most| previous(&bundle.trust, issuers) < most as usize);
        let until = unseen_until(view, authority, room);
        if now < until && !bundle.trust.iter().any(|held| held.supersedes(certificate)) {
            bundle.until = bundle.until.max(Some(until));
            bundle.trust.push(certificate.clone());
        }
    }
    bundle.trust.sort_by_key(|held| issuers.iter().position(|authority| authority.certificate == *held));
    let accepted = |trust: &[Certificate]| chains.iter().filter(|chain| accepts(trust, chain, now)).count();
    if bundle.needed > 0 && accepted(&reversed(&bundle.trust)) > accepted(&bundle.trust) {
        // A chain that does not say which of two namesakes signed it. What works now comes first.
        bundle.trust.reverse();
    }
    bundle
}

fn reversed(trust: &[Certificate]) -> Vec<Certificate> {
    trust.iter().rev().cloned().collect()
}

/// How many of a bundle's CAs the source does not hold.
fn previous(trust: &[Certificate], issuers: &[Authority]) -> usize {
    let is_current = |certificate: &Certificate| issuers.iter().any(|a| a.current && a.certificate == *certificate);
    trust.iter().filter(|certificate| !is_current(certificate)).count()
}

/// Until when leaves of clients may be in use that nobody has seen. The cap is for those, not for leaves that are under way.
fn unseen_clients(view: &View<'_>, authority: &Authority, room: bool) -> Timestamp {
    let all_known = view.seen.knows_all_clients();
    match (authority.retired, view.policy().max_certificate_lifetime) {
        _ if !room => seen_late(view, authority),
        (Some(retired), Some(lifetime)) if !all_known => lifetime.after(retired).max(seen_late(view, authority)),
        _ if !all_known => authority.certificate.not_after,
        _ => seen_late(view, authority),
    }
}

/// Until when gateways may serve a leaf that nobody has seen: longer where it is not known what they had.
fn unseen_leaves(view: &View<'_>, authority: &Authority, _: bool) -> Timestamp {
    let end = authority.certificate.not_after;
    if view.seen.presented_also.iter().any(|also| also.chain.is_none()) {
        return end;
    }
    let settled = |version: &Version| match version.replaced {
        Some(replaced) if version.seen.is_empty() => view.policy().propagation_delays.gateways.after(replaced).min(end),
        _ => end,
    };
    let guessed = view.gateways_in_use().filter(|version| version.guessed).map(settled);
    guessed.fold(seen_late(view, authority), Timestamp::max)
}

/// Until when a leaf may be seen that a previous CA signed last.
fn seen_late(view: &View<'_>, authority: &Authority) -> Timestamp {
    let end = authority.certificate.not_after;
    authority.retired.map_or(end, |retired| view.policy().propagation_delays.clients.after(retired).min(end))
}

/// Whether `trust` holds all of `wanted`, or what supersedes them.
pub(super) fn holds(trust: &[Certificate], wanted: &[Certificate]) -> bool {
    wanted.iter().all(|certificate| trust.iter().any(|held| held.supersedes(certificate)))
}
