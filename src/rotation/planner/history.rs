//! Writes down what is seen now beside what was seen before. To see a thing late is safe: an old content counts as in use
//! from the moment when another was *seen* in its place.
//!
//! A journal may be lost, or not be readable. What it knew of the time before is put together from status, as far as that tells;
//! the rest counts as written now, over something that is not known.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::probe;
use super::snapshot::{
    ClientState, Resolved, Snapshot, SourceState, Trust, TrustCopy, authorities, migrated, resolve, usable,
    verifies_to_the_end,
};
use crate::api::{LeafKind, Period, Phase, TrustAnchor, TrustBundleTarget};
use crate::rotation::journal::{Authority, Client, CutOff, Journal, Version};
use crate::trust::equivalence::are_equivalent;
use crate::trust::{Certificate, bundle, connectivity, is_distrusted};

/// The journal with what is seen.
pub(super) fn record(seen: &Snapshot<'_>, journal: &Journal, now: Timestamp) -> Journal {
    let mut journal = journal.clone();
    if is_lost(seen, &journal) {
        adopt(seen, &mut journal, now);
        recover(seen, &mut journal, now);
    } else if journal.gateways.is_empty() {
        adopt(seen, &mut journal, now);
    }
    told(&seen.entry.status.client_bundle, &mut journal, now);
    let is_shared = seen.entry.spec.clients.ca_secret_ref.is_none();
    let signing = seen.issuer.and_then(|issuer| issuer.chain.first());
    // A source that lost its CA is broken: what was there before goes on.
    if let Ok(source) = usable(seen.client_source())
        && !authorities(source).is_empty()
    {
        follow(&mut journal.client_issuers, &authorities(source), signing, now);
    }
    if let Ok(source) = usable(seen.server_source()) {
        let signing = signing.filter(|_| is_shared);
        follow(&mut journal.server_issuers, &authorities(source), signing, now);
    }
    if let Some(managed) = seen.managed.filter(|managed| !managed.anchors.is_empty()) {
        supersede(&mut journal.gateways, managed.anchors.clone(), managed.chain.clone(), now);
    }
    probe::record(seen, &mut journal.gateways, now);
    record_sources(seen, &mut journal, now);
    clients(seen, &mut journal, now);
    record_cut_off(&mut journal, seen.entry.policy.propagation_delays.clients, now);
    journal
}

/// Whether a journal remembers nothing although there was something to remember.
fn is_lost(seen: &Snapshot<'_>, journal: &Journal) -> bool {
    *journal == Journal::default() && (seen.managed.is_some() || !seen.entry.status.client_bundle.is_empty())
}

/// Puts down what gateways and clients may still go by.
fn recover(seen: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
    let status = &seen.entry.status;
    let shared = status.client_trust.as_deref().map(connectivity::observed);
    let replaced = |trust, chain| Version { replaced: Some(now), ..Version::new(trust, chain, now) };
    // All contents in use stood in status, oldest first. Each that verifies gateways trusts what all such have in common.
    for leaf in status.leaves.iter().flatten().filter(|leaf| leaf.kind == LeafKind::Client) {
        let chain = bundle::read_chain(leaf.pem.as_bytes()).into_certificates();
        for name in leaf.names() {
            // Status has one chain for many that are alike: where a client's own is seen, that one counts.
            let is_own = |client: &&ClientState| client.name == name && are_equivalent(&client.chain, &chain);
            let own = seen.clients.iter().find(is_own).map_or(&chain, |client| &client.chain);
            let version = replaced(shared.clone().unwrap_or_default(), own.clone());
            client(journal, name).versions.push(version);
        }
    }
    if is_calm(seen) {
        return;
    }
    // The least that all gateways trust, and the least that a client does which reads its Secret again.
    let everywhere = status.bundle.iter().filter(|anchor| anchor.converged == Some(true));
    let least = Version::new(connectivity::observed(everywhere), Vec::new(), now);
    journal.gateways.push(Version { guessed: true, ..least });
    for seen in seen.clients.iter().filter(|client| !client.loads_once) {
        if let Some(shared) = &shared {
            client(journal, &seen.name).versions.insert(0, replaced(shared.clone(), Vec::new()));
        }
    }
}

fn client<'j>(journal: &'j mut Journal, name: &str) -> &'j mut Client {
    journal.clients.entry(name.to_owned()).or_default()
}

/// Whether nothing shows that a rotation is on: neither the Secrets, nor status.
fn is_calm(seen: &Snapshot<'_>) -> bool {
    let status = &seen.entry.status;
    let in_source = |source| usable(source).map(authorities).unwrap_or_default();
    let is_told = |told: &[TrustAnchor], held: &[Certificate]| {
        told.is_empty() || told.iter().map(|anchor| &anchor.fingerprint).eq(held.iter().map(|ca| &ca.fingerprint))
    };
    let root = usable((seen.root, seen.entry.source_name()));
    seen.managed.is_some_and(|managed| {
        managed.anchors == in_source(seen.client_source())
            && root.is_ok_and(|root| root.chain == managed.chain)
            && is_told(&status.bundle, &managed.anchors)
    }) && is_told(&status.client_bundle, &in_source(seen.server_source()))
        && status.bundle.iter().all(|anchor| anchor.converged != Some(false))
        && status.phase.is_none_or(|phase| phase == Phase::Steady)
}

/// What the status tells webhooks to give to clients.
fn told(anchors: &[TrustAnchor], journal: &mut Journal, now: Timestamp) {
    let fingerprints = anchors.iter().map(|anchor| &anchor.fingerprint);
    let newest = journal.client_bundles.last();
    let is_known = newest.is_some_and(|newest| newest.trust.iter().map(|ca| &ca.fingerprint).eq(fingerprints));
    if !anchors.is_empty() && !is_known {
        supersede(&mut journal.client_bundles, connectivity::observed(anchors), Vec::new(), now);
    }
}

/// What is already trusted when it is first seen was needed by somebody: what the managed Secret holds, or else the root, which
/// gateways used until now; what status tells, should a journal be lost; and what the Issuer signs with.
fn adopt(seen: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
    // With a CA of the clients' own, the managed bundle says nothing of the gateways' certificate, nor the root of the clients'.
    let is_shared = seen.entry.spec.clients.ca_secret_ref.is_none();
    let root = usable((seen.root, seen.entry.source_name())).map(authorities).unwrap_or_default();
    let mut held = match seen.managed {
        Some(managed) => managed.anchors.clone(),
        None if is_shared => root.clone(),
        None => Vec::new(),
    };
    let status = &seen.entry.status;
    held.extend(connectivity::observed(&status.bundle));
    let signing = seen.issuer.filter(|issuer| issuer.denials.is_empty()).map(authorities).unwrap_or_default();
    let mut server = if is_shared { [held.as_slice(), &signing].concat() } else { root };
    server.extend(connectivity::observed(&status.client_bundle));
    for (list, found) in
        [(&mut journal.server_issuers, server), (&mut journal.client_issuers, [held, signing].concat())]
    {
        for certificate in found {
            if !list.iter().any(|known| known.certificate == certificate) {
                list.push(Authority { certificate, current: false, since: now, retired: Some(now) });
            }
        }
    }
}

/// The source holds `current` now. `signing`: the CA that the Issuer still signs with, whatever the source says.
fn follow(list: &mut Vec<Authority>, current: &[Certificate], signing: Option<&Certificate>, now: Timestamp) {
    let known = |certificate: &Certificate| list.iter().find(|authority| authority.certificate == *certificate);
    let in_source = |certificate: &Certificate| Authority {
        certificate: certificate.clone(),
        current: true,
        since: known(certificate).filter(|known| known.current).map_or(now, |known| known.since),
        retired: None,
    };
    let mut followed: Vec<_> = current.iter().map(in_source).collect();
    let previous = list.drain(..).filter(|authority| !current.contains(&authority.certificate));
    followed.extend(previous.map(|authority| {
        let is_signing = signing == Some(&authority.certificate);
        let retired = (!is_signing).then(|| authority.retired.unwrap_or(now));
        Authority { current: false, retired, ..authority }
    }));
    *list = followed;
}

/// Adds a version unless it is the newest already.
fn supersede(versions: &mut Vec<Version>, trust: Vec<Certificate>, chain: Vec<Certificate>, now: Timestamp) {
    if let Some(newest) = versions.last_mut() {
        if newest.trust == trust && newest.chain == chain {
            // The same, though a large journal may have stored an equivalent leaf for it.
            newest.chain = chain;
            newest.replaced = None;
            return;
        }
        newest.replaced = Some(now);
    }
    versions.push(Version::new(trust, chain, now));
}

/// Writes down what sources hold. One that no reader goes by any more counts until proxies have settled.
fn record_sources(seen: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
    let mut read = BTreeSet::new();
    // Only our own CAs matter, and a journal has no room for somebody else's thousands. A distrusted one counts for nothing from the first
    // moment on: its clients are re-issued, whatever a source still lets in.
    let counts = |authority: &Authority| {
        authority.current || !is_distrusted(&authority.certificate, &seen.entry.spec.distrusted_cas)
    };
    let issuers: Vec<_> =
        journal.client_issuers.iter().filter(|authority| counts(authority)).map(|ca| ca.certificate.clone()).collect();
    let is_ours = |held: &Certificate| issuers.iter().any(|ca| held.supersedes(ca));
    journal.trust_sources.values_mut().flatten().for_each(|version| version.trust.retain(is_ours));
    for reader in &seen.readers {
        match resolve(seen, reader) {
            Resolved::Source(source, SourceState::Holds(trust)) => {
                if !read.insert(source) {
                    continue;
                }
                let ours = trust.iter().filter(|held| is_ours(held)).cloned().collect();
                supersede(journal.trust_sources.entry(source.to_string()).or_default(), ours, Vec::new(), now);
            }
            // Proxies that run go on with what it held.
            Resolved::Source(source, _) => drop(read.insert(source)),
            Resolved::Nothing(sources) => read.extend(sources),
            Resolved::Follows | Resolved::Unknowable(_) | Resolved::Unlisted(_) => {}
        }
    }
    let names: BTreeSet<_> = read.iter().map(ToString::to_string).collect();
    retire(&mut journal.trust_sources, |name| names.contains(name), now);
    for also in &seen.presented_also {
        let versions = journal.presented_also.entry(also.name.clone()).or_default();
        if let Some(chain) = &also.chain {
            supersede(versions, Vec::new(), chain.clone(), now);
        }
    }
    retire(&mut journal.presented_also, |name| seen.presented_also.iter().any(|also| also.name == name), now);
    let gateways = seen.entry.policy.propagation_delays.gateways;
    for map in [&mut journal.trust_sources, &mut journal.presented_also] {
        map.values_mut().for_each(|versions| versions.retain(|version| version.may_be_in_use(gateways, now)));
        map.retain(|_, versions| !versions.is_empty());
    }
}

/// Ends what is not read any more.
fn retire(map: &mut BTreeMap<String, Vec<Version>>, is_read: impl Fn(&str) -> bool, now: Timestamp) {
    let gone = map.iter_mut().filter(|(name, _)| !is_read(name));
    for version in gone.flat_map(|(_, versions)| versions) {
        version.replaced.get_or_insert(now);
    }
}

fn clients(seen: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
    // One whose certificate is not known counts by what it trusts.
    let counts = |client: &&ClientState| match &client.trust {
        Trust::Read(trust) => !client.chain.is_empty() || !trust.is_empty(),
        Trust::Issued { .. } => !client.chain.is_empty(),
    };
    for client in seen.all_clients().filter(counts) {
        let known = journal.clients.get(&client.name).and_then(Client::newest);
        // What was found out of a content when it was new stays: bundles of later do not count for it.
        let trust = match known {
            Some(known) if known.chain == client.chain && matches!(client.trust, Trust::Issued { .. }) => {
                known.trust.clone()
            }
            _ => trusted(client, journal, seen.entry.policy.propagation_delays.admission, now),
        };
        let entry = journal.clients.entry(client.name.clone()).or_default();
        entry.loads_once = client.loads_once;
        supersede(&mut entry.versions, trust, client.chain.clone(), now);
    }
    // Who reads what is not kept any more is not known any more.
    journal
        .clients
        .retain(|name, _| !TrustBundleTarget::is_readers(name) || seen.all_clients().any(|one| one.name == *name));
    for (name, client) in &mut journal.clients {
        if !seen.all_clients().any(|seen| seen.name == *name) {
            // Its Secret is not declared any more, but whoever loaded it may go on.
            client.loads_once = true;
        }
    }
}

/// What a client's Secret holds at least: of the bundles that the webhook may have added, what they have in common.
fn trusted(client: &ClientState, journal: &Journal, lag: Period, now: Timestamp) -> Vec<Certificate> {
    let (ca, at) = match &client.trust {
        Trust::Read(trust) => return trust.clone(),
        Trust::Issued { ca, at } => (ca, *at),
    };
    let from = at.saturating_sub(lag.duration()).unwrap_or(Timestamp::MIN);
    let in_force = journal
        .client_bundles
        .iter()
        .filter(|bundle| bundle.since <= now && bundle.replaced.is_none_or(|replaced| replaced >= from));
    let in_force: Vec<_> = in_force.collect();
    let mut trust = ca.clone();
    // None was in force at the beginning of that time: the first writes may have passed without.
    if let Some((first, others)) = in_force.split_first().filter(|(first, _)| first.since <= from) {
        let in_offer = |ca: &Certificate| journal.offered.is_empty() || journal.offered.contains(ca);
        let in_all = |ca: &Certificate| in_offer(ca) && others.iter().all(|bundle| bundle.trust.contains(ca));
        let common = first.trust.iter().filter(|ca| in_all(ca));
        for certificate in common {
            if !trust.contains(certificate) {
                trust.push(certificate.clone());
            }
        }
    }
    trust
}

/// Writes down who is cut off. Whom nothing cuts off any more is forgotten.
fn record_cut_off(journal: &mut Journal, settle: Period, now: Timestamp) {
    let Some((newest, former)) = journal.gateways.split_last().filter(|(newest, _)| !newest.guessed) else { return };
    let admits = |gateway: &Version, held: &Version| migrated(&gateway.trust, &held.chain, now);
    // A leaf that is kept beyond its end was not put there in spite of anybody.
    let verifies = |gateway: &Version, held: &Version| verifies_to_the_end(&held.trust, &gateway.chain, now);
    for client in journal.clients.values_mut() {
        let was = std::mem::take(&mut client.cut_off);
        let mut is = CutOff::default();
        for held in client.in_use(settle, now) {
            let lost = |was: bool, gets_on: &dyn Fn(&Version, &Version) -> bool| {
                !gets_on(newest, held) && (was || former.iter().any(|gateway| gets_on(gateway, held)))
            };
            is.refused |= lost(was.refused, &admits);
            is.refuses |= lost(was.refuses, &verifies);
        }
        client.cut_off = is;
    }
}

/// Writes down what clients are to trust next, unless webhooks have been told so.
pub(super) fn offer(journal: &mut Journal, bundle: &[Certificate]) {
    let is_told = journal.client_bundles.last().is_some_and(|told| told.trust == bundle);
    journal.offered = if is_told { Vec::new() } else { bundle.to_vec() };
}

/// Forgets the CAs that are in no bundle and in no copy any more. `kept`: those that are in a bundle.
pub(super) fn forget_authorities(seen: &Snapshot<'_>, journal: &mut Journal, kept: &[Certificate], now: Timestamp) {
    let settle = seen.entry.policy.propagation_delays.gateways;
    // CAs in a source that its owner does not change would turn into a stranger's otherwise, and so would those in a copy that was not
    // written yet: nothing would ever take them out.
    let sources = || seen.source_sibling.into_iter().chain(seen.config_maps.iter().filter_map(|map| map.source));
    let copies = || seen.config_maps.iter().map(|map| map.managed).chain([seen.managed_sibling]);
    let written = || copies().filter_map(|copy| if let TrustCopy::Managed(facts) = copy { Some(facts) } else { None });
    let copied = || sources().chain(written());
    let is_copied = |ca: &Certificate| copied().flat_map(|facts| &facts.anchors).any(|held| held.supersedes(ca));
    let is_kept = |authority: &Authority| {
        authority.current
            || authority.retired.is_none()
            || kept.contains(&authority.certificate)
            || is_copied(&authority.certificate)
    };
    journal.client_issuers.retain(is_kept);
    // As a later look will see them: of all CAs in a source only ours count.
    let issuers = &journal.client_issuers;
    for version in journal.trust_sources.values_mut().flatten() {
        version.trust.retain(|held| issuers.iter().any(|authority| held.supersedes(&authority.certificate)));
    }
    // What nobody shall trust may still be what all clients trust.
    let serves = |authority: &Authority| {
        let ca = std::slice::from_ref(&authority.certificate);
        let served = journal.gateways.iter().chain(journal.presented_also.values().flatten());
        let mut served = served.filter(|version| version.may_be_in_use(settle, now));
        served.any(|version| verifies_to_the_end(ca, &version.chain, now))
    };
    journal.server_issuers.retain(|authority| is_kept(authority) || serves(authority));
}

/// Forgets the versions that are in use nowhere any more. What is seen on the wire is compared with them first.
pub(super) fn forget_versions(seen: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
    let settle = &seen.entry.policy.propagation_delays;
    journal.gateways.retain(|version| version.may_be_in_use(settle.gateways, now));
    let oldest = settle.admission.duration().saturating_add(settle.clients.duration());
    let since = now.saturating_sub(oldest).unwrap_or(Timestamp::MIN);
    journal.client_bundles.retain(|bundle| bundle.replaced.is_none_or(|replaced| replaced >= since));
    for client in journal.clients.values_mut() {
        let newest = client.versions.len().saturating_sub(1);
        let once = client.loads_once;
        let mut at = 0;
        client.versions.retain(|version| {
            at += 1;
            at > newest || version.is_live(now) && (once || version.may_be_in_use(settle.clients, now))
        });
    }
    let declared = |name: &str| seen.all_clients().any(|client| client.name == name);
    journal.clients.retain(|name, client| declared(name) || client.versions.iter().any(|version| version.is_live(now)));
}
