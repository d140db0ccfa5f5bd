//! Writes down what is seen now beside what was seen before. To see a thing late is safe: an old content counts as in use
//! from the moment when another was *seen* in its place.

use jiff::Timestamp;

use super::snapshot::{ClientState, Snapshot, Trust, TrustCopy, authorities, usable};
use super::view::verifies_to_the_end;
use super::{cut_off, lost_journal, probe, readers};
use crate::api::{Period, TrustAnchor, TrustBundleTarget};
use crate::connectivity;
use crate::rotation::journal::{Authority, Client, Journal, Version};
use crate::trust::Certificate;

/// The journal with what is seen.
pub(super) fn record(seen: &Snapshot<'_>, journal: &Journal, now: Timestamp) -> Journal {
    let mut journal = journal.clone();
    if lost_journal::is_lost(seen, &journal) {
        adopt(seen, &mut journal, now);
        lost_journal::recover(seen, &mut journal, now);
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
    readers::record(seen, &mut journal, now);
    clients(seen, &mut journal, now);
    cut_off::record(&mut journal, seen.entry.policy.propagation_delays.clients, now);
    journal
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
pub(super) fn supersede(versions: &mut Vec<Version>, trust: Vec<Certificate>, chain: Vec<Certificate>, now: Timestamp) {
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

/// Writes down what clients are to trust next, unless webhooks have been told so.
pub(super) fn offer(journal: &mut Journal, bundle: &[Certificate]) {
    let is_told = journal.client_bundles.last().is_some_and(|told| told.trust == bundle);
    journal.offered = if is_told { Vec::new() } else { bundle.to_vec() };
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
