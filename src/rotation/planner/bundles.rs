//! Which CAs are in which bundle: the current ones, and previous ones that a certificate in use still needs.

use jiff::Timestamp;

use super::deadlines::client_deadline;
use super::history::{View, admits, current, verifies, verifies_to_the_end};
use super::revocation::{ListedBundle, list_source};
use super::rules::{Rule, applies};
use super::snapshot::{CaConfigMap, TrustCopy};
use crate::api::Mode;
use crate::api::names::{CACERT_SUFFIX, managed_config_map_name};
use crate::rotation::SecretSummary;
use crate::rotation::journal::{Authority, Version};
use crate::rotation::name_list::few;
use crate::trust::{Certificate, is_distrusted};

/// A planned bundle, and why it still has previous CAs.
#[derive(Clone, Debug, Default)]
pub(super) struct PlannedBundle {
    /// The CAs, new ones first. Of CAs with one subject Envoy uses the first, so an expired one must not precede its
    /// renewal.
    pub(super) trust: Vec<Certificate>,
    /// How many previous CAs are kept because certificates in use need them.
    pub(super) needed: usize,
    /// Until when previous CAs are kept because unknown certificates of them may be in use.
    pub(super) until: Option<Timestamp>,
    /// Those of them that are kept only because clients may exist that are not declared.
    pub(super) for_undeclared: Vec<Certificate>,
    /// The CA that the bundle lacks although it should have it.
    pub(super) left_out: Option<LeftOut>,
}

/// A CA that is not added to a bundle, since a chain that is accepted now would be refused with it.
#[derive(Clone, Debug)]
pub(super) struct LeftOut {
    /// Its subject.
    pub(super) subject: String,
    /// The clients that would be refused, as text.
    pub(super) refused: Option<String>,
    /// When it is added regardless.
    pub(super) until: Option<Timestamp>,
}

/// The bundles that gateways and clients are to trust.
pub(super) struct Bundles {
    pub(super) gateways: PlannedBundle,
    pub(super) clients: PlannedBundle,
    /// The CAs to write to the managed Secret now.
    pub(super) managed: Vec<Certificate>,
    /// Why an object does not get a new CA: it has revocation lists, and none of that CA.
    pub(super) unlisted: Vec<String>,
    /// The CAs to write to `<managed>-cacert`, if any.
    pub(super) sibling: Option<Vec<Certificate>>,
    /// The copies of ConfigMaps of `spec.clients.caConfigMapNames` to write: names of the ConfigMaps, and the CAs.
    pub(super) config_maps: Vec<(String, Vec<Certificate>)>,
}

impl Bundles {
    pub(super) fn plan(view: &View<'_>) -> Self {
        let clients = view.clients_in_use.iter().map(|(_, version)| *version);
        // Gateways that use mTLS to their upstreams present the serving certificate there as clients.
        let is_client = view.snapshot.readers.iter().any(|reader| reader.is_client);
        let clients = clients.chain(view.gateways_in_use.iter().copied().filter(|_| is_client));
        // Admission rejects a certificate until gateways accept it.
        let pending = view.snapshot.declared_clients().filter_map(|client| client.pending.as_ref());
        let pending =
            pending.map(|pending| pending.chain.as_slice()).filter(|_| applies(Rule::PendingCertificatesKeepTheirCa));
        let presented = distinct(clients.map(|version| version.chain.as_slice()).chain(pending));
        let stored = view.snapshot.managed.map(|managed| managed.anchors.as_slice()).unwrap_or_default();
        let gateways = bundle(view, &view.journal.client_issuers, &presented, admits, unseen_clients);
        // Gateways serve an expired certificate while there is no new one: clients that ignore dates still need its CA.
        let clients = bundle(
            view,
            &view.journal.server_issuers,
            &served_chains(view),
            verifies_to_the_end,
            unseen_serving_certificates,
        );
        let gateways = keeping_connections(view, gateways, stored, &presented, admits);
        let published = view.journal.client_bundles.last().map(|bundle| bundle.trust.as_slice()).unwrap_or_default();
        let clients = keeping_connections(view, clients, published, &served_chains(view), verifies);
        let source = format!("Secret {}", view.entry.source_name());
        let managed = ListedBundle::of(view, &gateways.trust, stored, (list_source(view.snapshot), &source));
        let mut unlisted: Vec<_> = managed.left_out.into_iter().collect();
        let sibling = sibling_bundle(view, &gateways.trust, &mut unlisted);
        let mut config_maps = Vec::new();
        for map in &view.snapshot.config_maps {
            let wanted = config_map_bundle(view, map, &gateways.trust, &mut unlisted);
            config_maps.extend(wanted.map(|trust| (map.name.clone(), trust)));
        }
        Self { gateways, clients, managed: managed.trust, unlisted, sibling, config_maps }
    }
}

/// The chains that gateways serve, or are to serve next.
pub(super) fn served_chains<'v>(view: &View<'v>) -> Vec<&'v [Certificate]> {
    let also = view.presented_also.iter().map(|(_, version)| *version);
    let served = view.gateways_in_use.iter().copied().chain(also);
    distinct(served.map(|version| version.chain.as_slice()).chain(view.source_chain))
}

fn distinct<'a>(chains: impl Iterator<Item = &'a [Certificate]>) -> Vec<&'a [Certificate]> {
    chains.filter(|chain| !chain.is_empty()).fold(Vec::new(), |mut known, chain| {
        if !known.contains(&chain) {
            known.push(chain);
        }
        known
    })
}

type Accepts = fn(&[Certificate], &[Certificate], Timestamp) -> bool;
/// A function that computes until when unknown certificates of a CA may be in use.
type UnseenUntil = fn(&View<'_>, &Authority) -> Timestamp;

fn bundle(
    view: &View<'_>,
    issuers: &[Authority],
    chains: &[&[Certificate]],
    accepts: Accepts,
    unseen_until: UnseenUntil,
) -> PlannedBundle {
    let (now, distrusted_cas) = (view.now, &view.entry.spec.distrusted_cas);
    let mut bundle = PlannedBundle { trust: current(issuers, distrusted_cas, now), ..PlannedBundle::default() };
    let in_some_order = |trust: &[Certificate], chain: &[Certificate], at| {
        accepts(trust, chain, at) || trust.len() > 1 && accepts(&reversed(trust), chain, at)
    };
    let mut open: Vec<_> = chains.iter().filter(|chain| !in_some_order(&bundle.trust, chain, now)).collect();
    let mut idle = Vec::new();
    let is_candidate = |authority: &&Authority| {
        let certificate = &authority.certificate;
        !authority.current && !certificate.is_expired(now) && !is_distrusted(certificate, distrusted_cas)
    };
    // If several CAs have one key (a renewed CA keeps its key), the one that expires last is used: a certificate that
    // it signed outlasts the others.
    let outlasts = |other: &Authority, certificate: &Certificate| {
        let other = &other.certificate;
        other.supersedes(certificate) && other.not_after > certificate.not_after && !other.is_not_yet_valid(now)
    };
    let candidates: Vec<_> = issuers.iter().filter(is_candidate).collect();
    for &authority in &candidates {
        let certificate = &authority.certificate;
        if bundle.trust.contains(certificate) {
            continue;
        }
        if candidates.iter().any(|other| outlasts(other, certificate)) {
            idle.push(authority);
            continue;
        }
        bundle.trust.push(certificate.clone());
        let before = open.len();
        // If the clock is slow, a renewed CA does not seem valid yet. It is judged at the start of its validity.
        let begun = now.max(certificate.not_before);
        open.retain(|chain| !in_some_order(&bundle.trust, chain, begun));
        if open.len() < before {
            bundle.needed += 1;
            continue;
        }
        bundle.trust.pop();
        idle.push(authority);
    }
    // No known certificate needs these CAs. A certificate that they signed may still be unknown, or belong to an
    // unknown client.
    for authority in idle {
        let certificate = &authority.certificate;
        let until = unseen_until(view, authority);
        if now < until && !bundle.trust.iter().any(|held| held.supersedes(certificate)) {
            bundle.until = bundle.until.max(Some(until));
            bundle.trust.push(certificate.clone());
            let is_for_undeclared = !view.knows_all_clients() && !view.has_unknown_clients();
            if is_for_undeclared && until > delivered(view, authority) {
                bundle.for_undeclared.push(certificate.clone());
            }
        }
    }
    bundle.trust.sort_by_key(|held| issuers.iter().position(|authority| authority.certificate == *held));
    let accepted = |trust: &[Certificate]| chains.iter().filter(|chain| accepts(trust, chain, now)).count();
    if bundle.needed > 0 && accepted(&reversed(&bundle.trust)) > accepted(&bundle.trust) {
        // A chain without key identifiers fits two CAs of one subject. The CA that works now comes first.
        bundle.trust.reverse();
    }
    bundle
}

/// A planned bundle with which no chain is refused that is accepted with the stored one. Adding a CA can do that: Envoy builds each path to the top
/// of the bundle, by names where a certificate has no key identifier, and refuses it if that CA has expired or has another key. The bundle then
/// lacks this CA, or stays as it is, until the CA of such a chain is about to expire.
fn keeping_connections(
    view: &View<'_>,
    planned: PlannedBundle,
    stored: &[Certificate],
    chains: &[&[Certificate]],
    accepts: Accepts,
) -> PlannedBundle {
    let distrusted_cas = &view.entry.spec.distrusted_cas;
    // A distrusted CA is meant to lose its clients.
    let stored: Vec<_> = stored.iter().filter(|ca| !is_distrusted(ca, distrusted_cas)).cloned().collect();
    let accepted: Vec<_> = chains.iter().filter(|chain| accepts(&stored, chain, view.now)).collect();
    let loses = |trust: &[Certificate]| accepted.iter().any(|chain| !accepts(trust, chain, view.now));
    if !applies(Rule::WritesKeepConnections) || !loses(&planned.trust) {
        return planned;
    }
    let is_lost =
        |chain: &[Certificate]| accepts(&stored, chain, view.now) && !accepts(&planned.trust, chain, view.now);
    let lost: Vec<_> = view.clients_in_use.iter().filter(|(_, version)| is_lost(&version.chain)).collect();
    let until = lost.iter().filter_map(|(_, version)| client_deadline(view, version)).min();
    if until.is_some_and(|until| view.now >= until) {
        return planned;
    }
    let added = planned.trust.iter().filter(|ca| !stored.contains(ca));
    let without = added.clone().find_map(|ca| {
        let rest: Vec<_> = planned.trust.iter().filter(|other| *other != ca).cloned().collect();
        (!rest.is_empty() && !loses(&rest)).then(|| (ca.subject.clone(), rest))
    });
    let (subject, trust) = without.unwrap_or_else(|| {
        let subjects = few(added.map(|ca| ca.subject.clone()));
        (subjects.unwrap_or_else(|| "the next bundle".to_owned()), stored.clone())
    });
    let refused = few(lost.iter().map(|(name, _)| (*name).to_owned()));
    PlannedBundle { trust, left_out: Some(LeftOut { subject, refused, until }), ..planned }
}

fn reversed(trust: &[Certificate]) -> Vec<Certificate> {
    trust.iter().rev().cloned().collect()
}

fn unseen_clients(view: &View<'_>, authority: &Authority) -> Timestamp {
    let delivered = delivered(view, authority);
    if view.knows_all_clients() && !view.has_unknown_clients() {
        return delivered;
    }
    match (authority.retired, view.entry.policy.max_certificate_lifetime) {
        (Some(retired), Some(lifetime)) => lifetime.after(retired).max(delivered),
        _ => authority.certificate.not_after,
    }
}

/// Later if it is unknown what gateways had before.
fn unseen_serving_certificates(view: &View<'_>, authority: &Authority) -> Timestamp {
    let end = authority.certificate.not_after;
    if view.snapshot.presented_also.iter().any(|also| also.chain.is_none()) {
        return end;
    }
    let delay = view.entry.policy.propagation_delays.gateways;
    let propagated = |version: &&Version| match version.replaced {
        Some(replaced) if version.seen.is_empty() => delay.after(replaced).min(end),
        _ => end,
    };
    let guessed = view.gateways_in_use.iter().filter(|version| version.guessed).map(propagated);
    guessed.fold(delivered(view, authority), Timestamp::max)
}

/// When the last certificate that a previous CA signed has been delivered.
fn delivered(view: &View<'_>, authority: &Authority) -> Timestamp {
    let end = authority.certificate.not_after;
    authority.retired.map_or(end, |retired| view.entry.policy.propagation_delays.clients.after(retired).min(end))
}

/// The CAs to write to `<managed>-cacert`: those of `<source>-cacert`, with ours replaced by the managed bundle. A Gateway that is rewritten
/// from one to the other then accepts the same clients as before. `None` if nothing is to be written.
fn sibling_bundle(view: &View<'_>, bundle: &[Certificate], unlisted: &mut Vec<String>) -> Option<Vec<Certificate>> {
    let written = match view.snapshot.managed_sibling {
        TrustCopy::Foreign => return None,
        TrustCopy::Absent => None,
        TrustCopy::Managed(written) => Some(written),
    };
    let source = view.snapshot.source_sibling;
    let lists = (source, &*format!("Secret {}{CACERT_SUFFIX}", view.entry.source_name()));
    let used = written.map(|written| written.anchors.as_slice()).unwrap_or_default();
    let ListedBundle { trust: bundle, left_out } = ListedBundle::of(view, bundle, used, lists);
    let bundle = bundle.as_slice();
    unlisted.extend(left_out);
    let wanted = match source {
        // Without a sibling istiod takes the bundle of the Secret itself.
        None => written.map(|_| bundle.to_vec())?,
        Some(source) => with_managed_bundle(view, &source.anchors, bundle),
    };
    let revocation = source.and_then(|source| source.revocation.as_ref());
    let is_current = |written: &SecretSummary| {
        written.anchors == wanted && (source.is_none() || written.revocation.as_ref() == revocation)
    };
    (!wanted.is_empty() && !written.is_some_and(is_current)).then_some(wanted)
}

/// The CAs to write to the copy of a ConfigMap of `spec.clients.caConfigMapNames`. `None` if nothing is to be written.
fn config_map_bundle(
    view: &View<'_>,
    map: &CaConfigMap<'_>,
    bundle: &[Certificate],
    unlisted: &mut Vec<String>,
) -> Option<Vec<Certificate>> {
    let written = match map.managed {
        TrustCopy::Foreign => return None,
        TrustCopy::Absent => None,
        TrustCopy::Managed(written) => Some(written),
    };
    let bundle = match view.entry.spec.mode {
        Mode::Bundle => bundle,
        // Only after the managed Secret has become a copy of the source Secret.
        Mode::Copy => {
            let [source, managed] =
                [view.snapshot.source?, view.snapshot.managed?].map(|secret| secret.anchors.as_slice());
            (source == managed).then_some(managed)?
        }
    };
    // Gateways name the copy, so it stays when its source is deleted.
    let source = config_map_fault(view, map).is_none().then_some(map.source).flatten().or(written)?;
    let used = written.map(|written| written.anchors.as_slice()).unwrap_or_default();
    let lists = (Some(source), &*format!("ConfigMap {}", map.name));
    let ListedBundle { trust: bundle, left_out } = ListedBundle::of(view, bundle, used, lists);
    unlisted.extend(left_out);
    let wanted = with_managed_bundle(view, &source.anchors, &bundle);
    let is_current = |written: &SecretSummary| written.anchors == wanted && written.revocation == source.revocation;
    (!bundle.is_empty() && !wanted.is_empty() && !written.is_some_and(is_current)).then_some(wanted)
}

/// Why a ConfigMap of `spec.clients.caConfigMapNames` is not copied. The copy then keeps the foreign CAs that it has.
pub(super) fn config_map_fault(view: &View<'_>, map: &CaConfigMap<'_>) -> Option<String> {
    let Some(source) = map.source else {
        return Some("does not exist. Create it, or remove it from spec.clients.caConfigMapNames".to_owned());
    };
    if let Some(finding) = source.denials.first() {
        return Some(format!("is not used: {}: {}: {}", finding.rule, finding.field, finding.message));
    }
    if source.anchors.is_empty() {
        return Some("holds no CA. Add one, or remove it from spec.clients.caConfigMapNames".to_owned());
    }
    let has_ours = |held: &SecretSummary| held.anchors.iter().any(|ca| is_ours(view, ca));
    match map.managed {
        TrustCopy::Managed(written) if has_ours(written) && !has_ours(source) => Some(format!(
            "no longer holds a CA that signs client certificates, but ConfigMap {managed} keeps them. Add one; or, to reject these \
             clients, let the Gateway use another ConfigMap",
            managed = managed_config_map_name(&map.name)
        )),
        _ => None,
    }
}

fn is_ours(view: &View<'_>, ca: &Certificate) -> bool {
    view.journal.client_issuers.iter().any(|authority| ca.supersedes(&authority.certificate))
}

/// The CAs of another source, with ours replaced by the managed bundle.
fn with_managed_bundle(view: &View<'_>, held: &[Certificate], bundle: &[Certificate]) -> Vec<Certificate> {
    let at = held.iter().position(|ca| is_ours(view, ca));
    let mut trust: Vec<_> = held.iter().filter(|ca| !is_ours(view, ca)).cloned().collect();
    if let Some(at) = at {
        trust.splice(at..at, bundle.iter().cloned());
    }
    trust
}
