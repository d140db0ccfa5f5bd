//! Writes down what is seen now beside what was seen before. To see a thing late is safe: an old content counts as in use
//! from the moment when another was *seen* in its place.

use jiff::Timestamp;

use super::seen::{ClientSeen, Seen, Trust, authorities, usable};
use crate::api::Period;
use crate::rotation::journal::{Authority, Client, Journal, Version};
use crate::trust::Certificate;

/// The journal with what is seen.
pub(super) fn record(seen: &Seen<'_>, journal: &Journal, now: Timestamp) -> Journal {
    let mut journal = journal.clone();
    if journal.gateways.is_empty() {
        adopt(seen, &mut journal, now);
    }
    let signing = seen.issuer.and_then(|issuer| issuer.chain.first());
    if let Ok(source) = usable(seen.client_source()) {
        follow(&mut journal.client_issuers, &authorities(source), signing, now);
    }
    if let Ok(source) = usable(seen.server_source()) {
        follow(&mut journal.server_issuers, &authorities(source), signing, now);
    }
    if let Some(managed) = seen.managed.filter(|managed| !managed.anchors.is_empty()) {
        supersede(&mut journal.gateways, managed.anchors.clone(), managed.chain.clone(), now);
    }
    clients(seen, &mut journal, now);
    journal
}

/// What the managed Secret already holds when it is first seen was needed by somebody.
fn adopt(seen: &Seen<'_>, journal: &mut Journal, now: Timestamp) {
    let held = seen.managed.map(|managed| managed.anchors.as_slice()).unwrap_or_default();
    let previous = |certificate: &Certificate| Authority {
        certificate: certificate.clone(),
        current: false,
        since: now,
        retired: Some(now),
    };
    let list: Vec<_> = held.iter().map(previous).collect();
    journal.server_issuers = list.clone();
    journal.client_issuers = list;
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
            newest.replaced = None;
            return;
        }
        newest.replaced = Some(now);
    }
    versions.push(Version { trust, chain, since: now, replaced: None });
}

/// Writes down what clients are to trust from now on.
pub(super) fn offer(journal: &mut Journal, bundle: &[Certificate], now: Timestamp) {
    supersede(&mut journal.client_bundles, bundle.to_vec(), Vec::new(), now);
}

fn clients(seen: &Seen<'_>, journal: &mut Journal, now: Timestamp) {
    for client in seen.clients.iter().filter(|client| !client.chain.is_empty()) {
        let known = journal.clients.get(&client.name).and_then(Client::newest);
        // What was found out of a content when it was new stays: bundles of later do not count for it.
        let trust = match known {
            Some(known) if known.chain == client.chain && matches!(client.trust, Trust::Issued { .. }) => {
                known.trust.clone()
            }
            _ => trusted(client, journal, seen.entry.spec.settle.admission, now),
        };
        let entry = journal
            .clients
            .entry(client.name.clone())
            .or_insert_with(|| Client { loads_once: false, versions: Vec::new() });
        entry.loads_once = client.loads_once;
        supersede(&mut entry.versions, trust, client.chain.clone(), now);
    }
    for (name, client) in &mut journal.clients {
        if !seen.clients.iter().any(|seen| seen.name == *name) {
            // Its Secret is not declared any more, but whoever loaded it may go on.
            client.loads_once = true;
        }
    }
}

/// What a client's Secret holds at least: of the bundles that the webhook may have added, what they have in common.
fn trusted(client: &ClientSeen, journal: &Journal, lag: Period, now: Timestamp) -> Vec<Certificate> {
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
        let common = first.trust.iter().filter(|ca| others.iter().all(|bundle| bundle.trust.contains(ca)));
        for certificate in common {
            if !trust.contains(certificate) {
                trust.push(certificate.clone());
            }
        }
    }
    trust
}

/// Forgets what nobody uses any more.
pub(super) fn forget(seen: &Seen<'_>, journal: &mut Journal, kept: &[Certificate], now: Timestamp) {
    let settle = &seen.entry.spec.settle;
    let is_kept = |authority: &Authority| {
        authority.current || authority.retired.is_none() || kept.contains(&authority.certificate)
    };
    journal.client_issuers.retain(is_kept);
    journal.server_issuers.retain(is_kept);
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
    let declared = |name: &str| seen.clients.iter().any(|client| client.name == name);
    journal.clients.retain(|name, client| declared(name) || client.versions.iter().any(|version| version.is_live(now)));
}
