//! Which CAs each side has to trust: the source's, and of the previous ones those that something live still needs.
//!
//! Some readers may take the CAs of a bundle in any order: of two that a certificate does not tell apart, they take the first, whatever
//! comes of it. What they hold is judged by the worst order.

use jiff::Timestamp;

use super::snapshot::{CaConfigMap, TrustCopy, View, admits, presented_also, usable, verifies, verifies_to_the_end};
use crate::api::names::managed_config_map_name;
use crate::api::{Mode, TrustBundleTarget};
use crate::rotation::SecretSummary;
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
fn of_served<'v>(view: &'v View<'_>) -> Vec<&'v [Certificate]> {
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

/// Why a bundle must not be given to such readers: in some order it does not verify what gateways serve.
pub(super) fn unordered(view: &View<'_>, bundle: &[Certificate]) -> Option<String> {
    let place = places(view).next()?;
    let verifies = |order: &[Certificate], chain: &[Certificate]| verifies_to_the_end(order, chain, view.now);
    let is_refused =
        |chain: &&[Certificate]| verifies(bundle, chain) && orders(bundle).any(|order| !verifies(&order, chain));
    let leaf = of_served(view).into_iter().find(is_refused)?.first()?;
    Some(format!(
        "{} {} is not changed: its readers may take the CAs in any order, and two CAs of the clients' bundle have one name, which \
         {} does not tell apart for want of key identifiers (SKI, AKI). Give the new CA another name, or name a ConfigMap in \
         spec.trustPlannedBundleTargets",
        place.kind.name(),
        place.name,
        leaf.subject
    ))
}

fn places<'a>(view: &View<'a>) -> impl Iterator<Item = &'a TrustBundleTarget> {
    view.seen.entry.spec.trust_bundle_targets.iter().filter(|place| !place.kind.keeps_order())
}

/// Whether some who read what is distributed take its CAs in any order, by the name under which they stand in the journal.
pub(super) fn is_unordered(view: &View<'_>, readers: &str) -> bool {
    places(view).any(|place| place.readers() == readers)
}

/// The orders that differ for a verifier: each CA first. It tries the others only where the first one does not fit.
pub(super) fn orders(trust: &[Certificate]) -> impl Iterator<Item = Vec<Certificate>> {
    (0..trust.len()).map(|first| {
        let mut order = trust.to_vec();
        order[..=first].rotate_right(1);
        order
    })
}

/// What `<managed>-cacert` is to hold: the CAs of `<source>-cacert`, with each of ours replaced by the managed bundle. So a
/// Gateway that is rewritten from one to the other lets in the same clients as before. `None`: nothing is to be written.
pub(super) fn sibling_bundle(view: &View<'_>, bundle: &[Certificate]) -> Option<Vec<Certificate>> {
    let written = match view.seen.managed_sibling {
        TrustCopy::Foreign => return None,
        TrustCopy::Absent => None,
        TrustCopy::Managed(facts) => Some(facts),
    };
    let source = view.seen.source_sibling;
    let wanted = match source {
        // istiod takes the bundle of the Secret itself where there is no sibling.
        None => written.map(|_| bundle.to_vec())?,
        Some(source) => with_overlap(view, &source.anchors, bundle),
    };
    let revocation = source.and_then(|source| source.revocation.as_ref());
    let stands = |written: &SecretSummary| {
        written.anchors == wanted && (source.is_none() || written.revocation.as_ref() == revocation)
    };
    (!wanted.is_empty() && !written.is_some_and(stands)).then_some(wanted)
}

/// What the ConfigMap is to hold that is kept from one of `spec.clients.caConfigMapNames`. `None`: nothing is to be written.
pub(super) fn config_map_bundle(
    view: &View<'_>,
    map: &CaConfigMap<'_>,
    bundle: &[Certificate],
) -> Option<Vec<Certificate>> {
    let written = match map.managed {
        TrustCopy::Foreign => return None,
        TrustCopy::Absent => None,
        TrustCopy::Managed(facts) => Some(facts),
    };
    let bundle = match view.spec().mode {
        Mode::Bundle => bundle,
        // Once the managed Secret is the copy that it is to be.
        Mode::Copy => {
            let [root, managed] = [view.seen.root?, view.seen.managed?].map(|facts| facts.anchors.as_slice());
            (root == managed).then_some(managed)?
        }
    };
    // What is kept outlives its source: gateways name it.
    let source = config_map_trouble(view, map).is_none().then_some(map.source).flatten().or(written)?;
    let wanted = with_overlap(view, &source.anchors, bundle);
    let stands = |written: &SecretSummary| written.anchors == wanted && written.revocation == source.revocation;
    (!bundle.is_empty() && !wanted.is_empty() && !written.is_some_and(stands)).then_some(wanted)
}

/// Why nothing is taken over from one of `spec.clients.caConfigMapNames`: what is kept from it holds on to the CAs of others that it has.
pub(super) fn config_map_trouble(view: &View<'_>, map: &CaConfigMap<'_>) -> Option<String> {
    let Some(source) = map.source else { return Some("does not exist".to_owned()) };
    if let Some(finding) = source.denials.first() {
        return Some(format!("is not used: {}: {}: {}", finding.rule, finding.field, finding.message));
    }
    if source.anchors.is_empty() {
        return Some("holds no CA".to_owned());
    }
    let has_ours = |facts: &SecretSummary| facts.anchors.iter().any(|ca| is_ours(view, ca));
    match map.managed {
        TrustCopy::Managed(written) if has_ours(written) && !has_ours(source) => Some(format!(
            "holds none of the CAs any more that sign the clients' certificates, and ConfigMap {managed} keeps them: add one, or, if \
             these clients are to be refused, let the Gateway take its clients' CAs from another ConfigMap",
            managed = managed_config_map_name(&map.name)
        )),
        _ => None,
    }
}

/// CAs, with those of ours replaced by the managed bundle.
fn with_overlap(view: &View<'_>, held: &[Certificate], bundle: &[Certificate]) -> Vec<Certificate> {
    let at = held.iter().position(|ca| is_ours(view, ca));
    let mut trust: Vec<_> = held.iter().filter(|ca| !is_ours(view, ca)).cloned().collect();
    if let Some(at) = at {
        trust.splice(at..at, bundle.iter().cloned());
    }
    trust
}

fn is_ours(view: &View<'_>, ca: &Certificate) -> bool {
    view.journal.client_issuers.iter().any(|authority| ca.supersedes(&authority.certificate))
}

/// The declared clients that get on with the managed Secret of mode `Bundle`, and would not with a copy of the root: gateways refuse
/// them, or they refuse the gateways.
pub(super) fn cut_off_by_copy(view: &View<'_>) -> Vec<String> {
    let (seen, now) = (view.seen, view.now);
    let root = usable((seen.root, seen.entry.source_name())).ok();
    let (Some(root), Some(managed), Mode::Bundle) = (root, seen.managed, view.spec().mode) else { return Vec::new() };
    let refused =
        |held: &Version| admits(&managed.anchors, &held.chain, now) && !admits(&root.anchors, &held.chain, now);
    let refuses =
        |held: &Version| verifies(&held.trust, &managed.chain, now) && !verifies(&held.trust, &root.chain, now);
    let lost = view.clients_in_use().filter(|(_, held)| refused(held) || refuses(held));
    let mut names: Vec<_> = lost.map(|(name, _)| name.to_owned()).collect();
    names.dedup();
    names
}
