//! What is known of a GatewaySecret: what a snapshot says, the journal that records it, and the [`View`] of both that all steps take.
//!
//! An observation that comes late does no harm: a version counts as in use until another was *observed* in its place.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::rules::{Rule, applies};
use super::snapshot::{ClientState, Snapshot, SourceState, Trust, TrustCopy};
use super::{deleted, truststores};
use crate::api::{
    LeafKind, Period, Phase, ProbeMode, PropagationDelays, RotationPolicySpec, StepName, TrustAnchor,
    TrustBundleTarget, WindowState,
};
use crate::connectivity;
use crate::registry::Entry;
use crate::rotation::SecretSummary;
use crate::rotation::journal::{Authority, Client, CutOff, DelaysInForce, Journal, Version};
use crate::rotation::readers::{ReaderTrust, SourceName, TlsReader};
use crate::trust::credential::{CA_KEYS, CRL_KEYS};
use crate::trust::equivalence::are_equivalent;
use crate::trust::{Certificate, Finding, bundle, chain, field, is_distrusted};

/// The propagation delays in force, with those of the policy.
pub(super) fn delays_in_force(policy: &RotationPolicySpec, journal: &Journal, now: Timestamp) -> DelaysInForce {
    let of_policy =
        || DelaysInForce { delays: policy.propagation_delays.clone(), objects: policy.objects, fewer_since: None };
    let is_fewer = |known: &&DelaysInForce| policy.objects < known.objects && applies(Rule::DelaysOutliveTheirPolicy);
    let Some(known) = journal.delays.as_ref().filter(is_fewer) else { return of_policy() };
    let kept = DelaysInForce { fewer_since: known.fewer_since.or(Some(now)), ..known.clone() };
    if kept.end().is_some_and(|end| now >= end) { of_policy() } else { kept }
}

impl DelaysInForce {
    /// When the delays of the objects that are left take effect.
    pub(super) fn end(&self) -> Option<Timestamp> {
        let PropagationDelays { gateways, clients, admission } = self.delays;
        Some(gateways.max(clients).max(admission).after(self.fewer_since?))
    }
}

/// The journal, with the versions in a snapshot added.
pub(super) fn record(snapshot: &Snapshot<'_>, journal: &Journal, now: Timestamp) -> Journal {
    let mut journal = journal.clone();
    let status = &snapshot.entry.status;
    let is_new = journal == Journal::default();
    let is_lost = is_new && (snapshot.managed.is_some() || !status.client_bundle.is_empty());
    if is_lost || journal.gateways.is_empty() {
        adopt_authorities(snapshot, &mut journal, now);
    }
    if is_lost {
        recover(snapshot, &mut journal, now);
    }
    let newest = journal.client_bundles.last();
    let fingerprints = status.client_bundle.iter().map(|anchor| &anchor.fingerprint);
    let is_known = newest.is_some_and(|newest| newest.trust.iter().map(|ca| &ca.fingerprint).eq(fingerprints));
    if !status.client_bundle.is_empty() && !is_known {
        supersede(&mut journal.client_bundles, connectivity::observed(&status.client_bundle), Vec::new(), now);
    }
    record_issuers(snapshot, &mut journal, now);
    if let Some(managed) = snapshot.managed.filter(|managed| !managed.anchors.is_empty()) {
        supersede(&mut journal.gateways, managed.anchors.clone(), managed.chain.clone(), now);
    }
    record_trust_sources(snapshot, &mut journal, now);
    record_further_certificates(snapshot, &mut journal, now);
    record_clients(snapshot, &mut journal, now);
    deleted::record_namespaces(snapshot, &mut journal, now);
    record_distrusted(snapshot, &mut journal);
    journal
}

/// Keeps the certificates that `spec.distrustedCAs` names: whether they are still accepted can be judged only while they are known.
fn record_distrusted(snapshot: &Snapshot<'_>, journal: &mut Journal) {
    let distrusted = &snapshot.entry.spec.distrusted_cas;
    let secrets = [snapshot.source, snapshot.ca, snapshot.client_ca, snapshot.issuer, snapshot.managed];
    let in_secrets = secrets.into_iter().flatten().flat_map(|secret| secret.anchors.iter().chain(&secret.chain));
    let issuers = journal.client_issuers.iter().chain(&journal.server_issuers).map(|authority| &authority.certificate);
    let clients = journal.clients.values().flat_map(|client| &client.versions);
    let versions = journal.gateways.iter().chain(clients);
    let in_versions = versions.flat_map(|version| version.trust.iter().chain(version.chain.iter().skip(1)));
    let known = journal.distrusted.iter().chain(in_secrets).chain(issuers).chain(in_versions);
    let known = known.filter(|ca| is_distrusted(ca, distrusted));
    let unique: BTreeMap<_, _> = known.map(|ca| (ca.fingerprint.clone(), ca.clone())).collect();
    journal.distrusted = unique.into_values().collect();
}

/// The CAs that are trusted when the journal is empty, since clients or gateways may need them: those in the managed
/// Secret, or in the source Secret, which gateways used before; those in status, if the journal was lost; and the one
/// with which the Issuer signs.
fn adopt_authorities(snapshot: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
    // If another CA signs clients, the managed bundle has no CA of serving certificates, and the source Secret none of clients.
    let is_shared = snapshot.entry.spec.clients.ca_secret_ref.is_none();
    let source = snapshot.usable_source().map(authorities).unwrap_or_default();
    let mut client = match snapshot.managed {
        Some(managed) => managed.anchors.clone(),
        None if is_shared => source.clone(),
        None => Vec::new(),
    };
    let status = &snapshot.entry.status;
    client.extend(connectivity::observed(&status.bundle));
    let signing = snapshot.issuer.filter(|issuer| issuer.denials.is_empty()).map(authorities).unwrap_or_default();
    client.extend(signing);
    let further: Vec<_> = snapshot.usable_additional_trust().filter_map(Result::ok).flat_map(authorities).collect();
    let mut server: Vec<_> = match is_shared {
        true => client.iter().filter(|ca| !further.contains(ca)).cloned().collect(),
        false => source,
    };
    server.extend(connectivity::observed(&status.client_bundle));
    for (list, found) in [(&mut journal.server_issuers, server), (&mut journal.client_issuers, client)] {
        for certificate in found {
            if !list.iter().any(|known| known.certificate == certificate) {
                list.push(Authority { certificate, current: false, since: now, retired: Some(now) });
            }
        }
    }
}

/// Restores from status what gateways and clients may still use after the journal was lost.
fn recover(snapshot: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
    let status = &snapshot.entry.status;
    let common = status.client_trust.as_deref().map(connectivity::observed);
    let replaced = |trust, chain| Version { replaced: Some(now), ..Version::new(trust, chain, now) };
    // Status lists the client certificates in use, oldest first, but not the CAs that each client trusts. All clients
    // trust at least `clientTrust`.
    for leaf in status.leaves.iter().flatten().filter(|leaf| leaf.kind == LeafKind::Client) {
        let chain = bundle::read_chain(leaf.pem.as_bytes()).into_certificates();
        for name in leaf.names() {
            // Status has one chain for all equivalent ones. If the client's Secret was read, its own chain is used.
            let is_own = |client: &&ClientState| client.name == name && are_equivalent(&client.chain, &chain);
            let own = snapshot.declared_clients().find(is_own).map_or(&chain, |client| &client.chain);
            let version = replaced(common.clone().unwrap_or_default(), own.clone());
            journal.clients.entry(name.to_owned()).or_default().versions.push(version);
        }
    }
    for client in &status.unknown_clients {
        let version = Version { replaced: Some(now), ..Version::unknown(client.not_after, now) };
        journal.clients.entry(client.name.clone()).or_default().versions.insert(0, version);
    }
    if is_steady(snapshot) {
        return;
    }
    // The least that every gateway trusts, and the least that a client trusts which reloads its Secret.
    let everywhere = status.bundle.iter().filter(|anchor| anchor.converged == Some(true));
    let least = Version::new(connectivity::observed(everywhere), Vec::new(), now);
    journal.gateways.push(Version { guessed: true, ..least });
    let reloading = snapshot.declared_clients().filter(|client| !client.loads_once);
    // What a reader of a trust bundle target has loaded is in no list of status.
    for client in reloading.chain(&snapshot.bundle_readers) {
        if let Some(common) = &common {
            let versions = &mut journal.clients.entry(client.name.clone()).or_default().versions;
            versions.insert(0, replaced(common.clone(), Vec::new()));
        }
    }
}

/// Whether neither the Secrets nor status show a rotation.
fn is_steady(snapshot: &Snapshot<'_>) -> bool {
    let status = &snapshot.entry.status;
    let cas = |source: Result<&SecretSummary, String>| source.map(authorities).unwrap_or_default();
    let is_reported = |anchors: &[TrustAnchor], held: &[Certificate]| {
        anchors.is_empty() || anchors.iter().map(|anchor| &anchor.fingerprint).eq(held.iter().map(|ca| &ca.fingerprint))
    };
    snapshot.managed.is_some_and(|managed| {
        managed.anchors == cas(snapshot.usable_client_ca())
            && snapshot.usable_source().is_ok_and(|source| source.chain == managed.chain)
            && is_reported(&status.bundle, &managed.anchors)
    }) && is_reported(&status.client_bundle, &cas(snapshot.usable_server_ca()))
        && status.bundle.iter().all(|anchor| anchor.converged != Some(false))
        && status.phase.is_none_or(|phase| phase == Phase::Steady)
}

fn record_issuers(snapshot: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
    let is_shared = snapshot.entry.spec.clients.ca_secret_ref.is_none();
    let signing = snapshot.issuer.map(|issuer| issuer.chain.as_slice()).unwrap_or_default();
    // A source without any CA is broken: the CAs that it held before stay current.
    let mut client_ca = snapshot.usable_client_ca().map(authorities).unwrap_or_default();
    if !client_ca.is_empty() {
        for further in snapshot.usable_additional_trust() {
            let held = match further {
                Ok(held) => authorities(held),
                // It is not recorded which of these CAs the broken source held.
                Err(_) => journal.client_issuers.iter().filter(|a| a.current).map(|a| a.certificate.clone()).collect(),
            };
            let new: Vec<_> = held.into_iter().filter(|ca| !client_ca.contains(ca)).collect();
            client_ca.extend(new);
        }
        follow(&mut journal.client_issuers, &client_ca, signing, now);
    }
    if let Ok(source) = snapshot.usable_server_ca() {
        let signing = if is_shared { signing } else { &[] };
        follow(&mut journal.server_issuers, &authorities(source), signing, now);
    }
}

/// Records that a Secret holds the CAs `current`. `signing` is the chain of the CA with which the Issuer still signs: that CA and those above it are
/// not retired, even if the Secret no longer holds them.
fn follow(list: &mut Vec<Authority>, current: &[Certificate], signing: &[Certificate], now: Timestamp) {
    let is_above = |ca: &Certificate| {
        applies(Rule::IssuersKeepTheirRoot) && signing.iter().any(|signed| chain::signers(signed)(ca))
    };
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
        let ca = &authority.certificate;
        let is_signing = signing.first() == Some(ca) || is_above(ca);
        let retired = (!is_signing).then(|| authority.retired.unwrap_or(now));
        Authority { current: false, retired, ..authority }
    }));
    *list = followed;
}

/// Adds a version, unless it equals the newest.
fn supersede(versions: &mut Vec<Version>, trust: Vec<Certificate>, chain: Vec<Certificate>, now: Timestamp) {
    if let Some(newest) = versions.last_mut() {
        if newest.trust == trust && newest.chain == chain {
            // The stored journal may have an equivalent certificate in place of this one.
            newest.chain = chain;
            newest.replaced = None;
            return;
        }
        newest.replaced = Some(now);
    }
    versions.push(Version::new(trust, chain, now));
}

/// Records which of the GatewaySecret's CAs the other sources of trust hold. A source that no reader uses any more
/// counts until the propagation delay has passed.
fn record_trust_sources(snapshot: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
    let policy = &snapshot.entry.policy;
    // Other CAs are not recorded, since a journal has no room for thousands. A distrusted CA is not recorded either:
    // its clients are reissued even if a source still accepts them.
    let counts = |authority: &Authority| {
        authority.current || !is_distrusted(&authority.certificate, &snapshot.entry.spec.distrusted_cas)
    };
    let issuers: Vec<_> =
        journal.client_issuers.iter().filter(|authority| counts(authority)).map(|ca| ca.certificate.clone()).collect();
    let is_ours = |held: &Certificate| issuers.iter().any(|ca| held.supersedes(ca));
    journal.trust_sources.values_mut().flatten().for_each(|version| version.trust.retain(is_ours));
    let mut read = BTreeSet::new();
    for reader in &snapshot.readers {
        match snapshot.source_of(reader) {
            ReaderSource::Object(source, SourceState::Holds(trust)) => {
                if !read.insert(source) {
                    continue;
                }
                let ours = trust.iter().filter(|held| is_ours(held)).cloned().collect();
                supersede(journal.trust_sources.entry(source.to_string()).or_default(), ours, Vec::new(), now);
            }
            // After a source was deleted, running proxies keep its last content.
            ReaderSource::Object(source, _) => drop(read.insert(source)),
            ReaderSource::Missing(sources) => read.extend(sources),
            ReaderSource::Managed | ReaderSource::Unknowable(_) | ReaderSource::Unlisted(_) => {}
        }
    }
    let names: BTreeSet<_> = read.iter().map(ToString::to_string).collect();
    retire(&mut journal.trust_sources, |name| names.contains(name), policy.propagation_delays.gateways, now);
}

fn record_further_certificates(snapshot: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
    for also in &snapshot.presented_also {
        let versions = journal.presented_also.entry(also.name.clone()).or_default();
        if let Some(chain) = &also.chain {
            supersede(versions, Vec::new(), chain.clone(), now);
        }
    }
    let is_read = |name: &str| snapshot.presented_also.iter().any(|also| also.name == name);
    retire(&mut journal.presented_also, is_read, snapshot.entry.policy.propagation_delays.gateways, now);
}

/// Marks the versions of objects that are no longer read as replaced, and removes those that were replaced more than a
/// propagation delay ago.
fn retire(map: &mut BTreeMap<String, Vec<Version>>, is_read: impl Fn(&str) -> bool, delay: Period, now: Timestamp) {
    map.retain(|name, versions| {
        if !is_read(name) {
            for version in versions.iter_mut() {
                version.replaced.get_or_insert(now);
            }
        }
        versions.retain(|version| version.may_be_in_use(delay, now));
        !versions.is_empty()
    });
}

fn record_clients(snapshot: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
    // A client whose certificate is unknown is judged only by the CAs that it trusts.
    let counts = |client: &&ClientState| match &client.trust {
        Trust::Read(trust) => !client.chain.is_empty() || !trust.is_empty(),
        Trust::Issued { .. } => !client.chain.is_empty(),
    };
    for client in snapshot.all_clients().filter(|client| client.is_unknown() && applies(Rule::UnknownIsLagging)) {
        let recorded = journal.clients.entry(client.name.clone()).or_default();
        recorded.loads_once = client.loads_once;
        let validity = client.certificate.as_ref().and_then(|certificate| certificate.validity);
        let ends = validity.map(|(_, end)| end);
        match recorded.versions.last_mut() {
            // The status of the Certificate has the dates of the certificate that is known.
            Some(newest) if client.has_dates_of(newest) => newest.replaced = None,
            // It may have been renewed, and a workload may use either.
            Some(newest) if newest.is_unknown() => {
                newest.replaced = None;
                newest.ends = newest.ends.zip(ends).map(|(known, ends)| known.max(ends));
            }
            newest => {
                newest.into_iter().for_each(|newest| newest.replaced = Some(now));
                recorded.versions.push(Version::unknown(ends, now));
            }
        }
    }
    for client in snapshot.all_clients().filter(counts) {
        let known = journal.clients.get(&client.name).and_then(Client::newest);
        // The CAs that were derived for a new version do not change: later bundles were not added to it.
        let trust = match known {
            Some(known) if known.chain == client.chain && matches!(client.trust, Trust::Issued { .. }) => {
                known.trust.clone()
            }
            _ => truststores::visible(client, trusted(snapshot, client, journal, now), journal.client_bundles.last()),
        };
        let recorded = journal.clients.entry(client.name.clone()).or_default();
        recorded.loads_once = client.loads_once;
        supersede(&mut recorded.versions, trust, client.chain.clone(), now);
    }
    let is_declared = |name: &str| snapshot.all_clients().any(|client| client.name == name);
    // The readers of a trust bundle target that the spec no longer names are unknown, and are removed.
    journal.clients.retain(|name, _| !TrustBundleTarget::is_readers(name) || is_declared(name));
    let is_listed = |name: &str| snapshot.entry.spec.clients.secret_names.iter().any(|listed| listed == name);
    for (name, client) in &mut journal.clients {
        let is_retired = !is_declared(name) && snapshot.clients.iter().any(|client| client.name == *name);
        client.is_retired = !is_declared(name) && (client.is_retired || is_retired);
        // Each Secret of the list was read, so one that is neither declared nor retired does not exist.
        client.is_absent = !is_declared(name) && !is_retired && (client.is_absent || is_listed(name));
        if client.is_retired || client.is_absent && !is_listed(name) {
            // Its owner says that it is gone: the Secret is marked, or was deleted and then taken out of the list.
            let loaded_once = std::mem::take(&mut client.loads_once);
            for version in &mut client.versions {
                version.replaced = version.replaced.filter(|_| !loaded_once).or(Some(now));
            }
        } else if !is_declared(name) {
            // The client's Secret is no longer declared, but a workload that has loaded it may still use it.
            client.loads_once = true;
        }
    }
}

/// The CAs that a client's Secret contains at least: those in all bundles that the webhook may have added to it.
fn trusted(snapshot: &Snapshot<'_>, client: &ClientState, journal: &Journal, now: Timestamp) -> Vec<Certificate> {
    let (ca, at) = match &client.trust {
        Trust::Read(trust) => return trust.clone(),
        Trust::Issued { ca, at } => (ca, *at),
    };
    let lag = snapshot.entry.policy.propagation_delays.admission.duration();
    // A certificate with a time in the future shows that this clock is behind cert-manager's, so it is unknown which
    // bundle the webhook had then.
    let from = if at > now { Timestamp::MIN } else { at.saturating_sub(lag).unwrap_or(Timestamp::MIN) };
    let in_force = journal
        .client_bundles
        .iter()
        .filter(|bundle| bundle.since <= now && bundle.replaced.is_none_or(|replaced| replaced >= from));
    let in_force: Vec<_> = in_force.collect();
    let mut trust = ca.clone();
    match in_force.split_first().filter(|(first, _)| first.since <= from) {
        Some((first, others)) => {
            let in_offer = |ca: &Certificate| journal.offered.is_empty() || journal.offered.contains(ca);
            let in_all = |ca: &Certificate| in_offer(ca) && others.iter().all(|bundle| bundle.trust.contains(ca));
            let common = first.trust.iter().filter(|held| in_all(held) && !ca.contains(held));
            trust.extend(common.cloned());
        }
        // If the webhook had no bundle at the start of that time, the first writes may lack it. The client then has at
        // least the issuer's CA. If that does not verify gateways, another writer has added the CA that does, and the
        // client must not lose it.
        None => {
            // Before the first managed Secret, gateways serve the source Secret.
            let served = journal.gateways.last().map(|version| &version.chain);
            let source = || snapshot.usable_source().ok().map(|source| &source.chain);
            let served = served.or_else(source).map(Vec::as_slice).unwrap_or_default();
            let known = journal.server_issuers.iter().map(|authority| &authority.certificate);
            let verify = known.filter(|ca| verifies_to_the_end(std::slice::from_ref(*ca), served, now));
            let first_to_end = verify.min_by_key(|ca| ca.not_after).filter(|_| !verifies_to_the_end(ca, served, now));
            trust.extend(first_to_end.cloned());
        }
    }
    trust
}

/// Records which declared clients a change of the managed Secret has cut off: they could connect with an earlier
/// version, and cannot with the newest. Clients that can connect again are removed.
fn record_cut_off(snapshot: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
    let delay = snapshot.entry.policy.propagation_delays.clients;
    let Some((newest, earlier)) = journal.gateways.split_last().filter(|(newest, _)| !newest.guessed) else { return };
    let earlier: Vec<_> = earlier.iter().filter(|version| !version.over).collect();
    let admits = |gateway: &Version, held: &Version| migrated(&gateway.trust, &held.chain, now);
    // Expiry is ignored: a client that rejects a serving certificate only because it expired was not cut off by a write.
    let verifies = |gateway: &Version, held: &Version| verifies_to_the_end(&held.trust, &gateway.chain, now);
    for client in journal.clients.values_mut() {
        let was = std::mem::take(&mut client.cut_off);
        let mut is = CutOff::default();
        for held in client.in_use(delay, now) {
            let lost = |was: bool, connects: &dyn Fn(&Version, &Version) -> bool| {
                !connects(newest, held) && (was || earlier.iter().any(|gateway| connects(gateway, held)))
            };
            is.refused |= lost(was.refused, &admits);
            is.refuses |= lost(was.refuses, &verifies);
        }
        client.cut_off = is;
    }
}

/// Records the bundles that are written next, and removes CAs that no bundle and no copy contains.
pub(super) fn record_bundles(
    snapshot: &Snapshot<'_>,
    journal: &mut Journal,
    gateways: &[Certificate],
    clients: &[Certificate],
    now: Timestamp,
) {
    if !clients.is_empty() {
        let is_published = journal.client_bundles.last().is_some_and(|published| published.trust == clients);
        journal.offered = if is_published { Vec::new() } else { clients.to_vec() };
    }
    let delay = snapshot.entry.policy.propagation_delays.gateways;
    // A CA that a source or a copy still contains must stay in the journal. Otherwise it would count as foreign, and
    // would never be removed from there.
    let sources =
        || snapshot.source_sibling.into_iter().chain(snapshot.config_maps.iter().filter_map(|map| map.source));
    let copies = || snapshot.config_maps.iter().map(|map| map.managed).chain([snapshot.managed_sibling]);
    let written = || copies().filter_map(|copy| if let TrustCopy::Managed(copy) = copy { Some(copy) } else { None });
    let copied = || sources().chain(written());
    let is_copied = |ca: &Certificate| copied().flat_map(|copy| &copy.anchors).any(|held| held.supersedes(ca));
    let is_kept = |authority: &Authority| {
        authority.current
            || authority.retired.is_none()
            || gateways.contains(&authority.certificate)
            || clients.contains(&authority.certificate)
            || is_copied(&authority.certificate)
    };
    journal.client_issuers.retain(is_kept);
    // The same filter as for later snapshots: only the GatewaySecret's CAs in a source are recorded.
    let issuers = &journal.client_issuers;
    for version in journal.trust_sources.values_mut().flatten() {
        version.trust.retain(|held| issuers.iter().any(|authority| held.supersedes(&authority.certificate)));
    }
    // A CA that is to be removed from clients may still be the only one that all clients trust.
    let serves = |authority: &Authority| {
        let ca = std::slice::from_ref(&authority.certificate);
        let served = journal.gateways.iter().chain(journal.presented_also.values().flatten());
        let mut served = served.filter(|version| version.may_be_in_use(delay, now));
        served.any(|version| verifies_to_the_end(ca, &version.chain, now))
    };
    journal.server_issuers.retain(|authority| is_kept(authority) || serves(authority));
}

/// Records which clients are cut off, and removes the versions that are no longer in use. This comes last, since probe results are compared with
/// them: while a rotation goes on and gateways can be probed, earlier versions stay, as over.
pub(super) fn conclude(snapshot: &Snapshot<'_>, journal: &mut Journal, phase: Phase, now: Timestamp) {
    record_cut_off(snapshot, journal, now);
    let delays = &snapshot.entry.policy.propagation_delays;
    let probe = &snapshot.entry.policy.probe;
    // A target that cannot be derived for a moment will be probed again.
    let is_lost = || probe.mode != ProbeMode::Disabled && journal.gateways.iter().any(|version| version.over);
    let is_probed = phase != Phase::Steady && (probe.target.is_some() || is_lost());
    let stays = is_probed && applies(Rule::ProbeUntilSteady);
    for version in &mut journal.gateways {
        version.over |= !version.may_be_in_use(delays.gateways, now);
    }
    journal.gateways.retain(|version| !version.over || !version.seen.is_empty() || stays && !version.guessed);
    let oldest = delays.admission.duration().saturating_add(delays.clients.duration());
    let since = now.saturating_sub(oldest).unwrap_or(Timestamp::MIN);
    journal.client_bundles.retain(|bundle| bundle.replaced.is_none_or(|replaced| replaced >= since));
    for client in journal.clients.values_mut() {
        let newest = client.versions.len().saturating_sub(1);
        let once = client.loads_once;
        let mut at = 0;
        client.versions.retain(|version| {
            at += 1;
            at > newest || version.is_live(now) && (once || version.may_be_in_use(delays.clients, now))
        });
    }
    let declared = |name: &str| snapshot.all_clients().any(|client| client.name == name);
    journal.clients.retain(|name, client| declared(name) || client.in_use(delays.clients, now).next().is_some());
}

/// Where a reader takes its clients' CAs from.
pub(super) enum ReaderSource<'s> {
    /// From the managed Secret, or it verifies no client.
    Managed,
    /// From this object.
    Object(&'s SourceName, &'s SourceState),
    /// From the first of these that exists, and none does.
    Missing(&'s [SourceName]),
    /// From a source that is no Kubernetes object: what it is.
    Unknowable(&'s str),
    /// Objects of this kind cannot be listed: why.
    Unlisted(&'s str),
}

impl<'a> Snapshot<'a> {
    /// The declared clients.
    pub fn declared_clients(&self) -> impl Iterator<Item = &ClientState> {
        self.clients.iter().filter(|client| !client.is_retired || !applies(Rule::RetiredClientsAreNotAwaited))
    }

    /// The declared clients, and the readers of trust bundle targets.
    pub(super) fn all_clients(&self) -> impl Iterator<Item = &ClientState> {
        self.declared_clients().chain(&self.bundle_readers)
    }

    /// The source Secret.
    ///
    /// # Errors
    /// Why it cannot be used: a sentence.
    pub(super) fn usable_source(&self) -> Result<&'a SecretSummary, String> {
        usable(self.source, self.entry.source_name())
    }

    /// Why the source Secret cannot be used, if so: a sentence.
    pub fn source_fault(&self) -> Option<String> {
        self.usable_source().err()
    }

    /// The Secret of the CA that signs serving certificates.
    ///
    /// # Errors
    /// Why it cannot be used: a sentence.
    pub(super) fn usable_server_ca(&self) -> Result<&'a SecretSummary, String> {
        let secret = if self.entry.resolved.ca_secret_ref.is_some() { self.ca } else { self.source };
        usable(secret, &self.entry.server_ca_name())
    }

    /// The Secret of the CA that signs client certificates.
    ///
    /// # Errors
    /// Why it cannot be used: a sentence.
    pub(super) fn usable_client_ca(&self) -> Result<&'a SecretSummary, String> {
        match self.entry.own_client_ca_name() {
            Some(name) => usable(self.client_ca, &name),
            None => self.usable_server_ca(),
        }
    }

    /// The objects of `spec.additionalTrust` that exist.
    ///
    /// # Errors
    /// Why one cannot be used: a sentence.
    pub(super) fn usable_additional_trust(&self) -> impl Iterator<Item = Result<&'a SecretSummary, String>> {
        self.additional_trust.iter().filter_map(|source| {
            let (label, content) = (source.named.label(), source.content?);
            Some(match content.denials.first() {
                Some(finding) => Err(format!("{label}: {}: {}: {}", finding.rule, finding.field, finding.message)),
                None if authorities(content).is_empty() => {
                    Err(format!("{label} holds no CA. Add one, or remove it from spec.additionalTrust"))
                }
                None => Ok(content),
            })
        })
    }

    /// The object that decides which clients a reader accepts.
    pub(super) fn source_of<'s>(&'s self, reader: &'s TlsReader) -> ReaderSource<'s> {
        let sources = match &reader.trust {
            ReaderTrust::NotVerified => return ReaderSource::Managed,
            ReaderTrust::Unknowable(what) => return ReaderSource::Unknowable(what),
            ReaderTrust::Unlisted(why) => return ReaderSource::Unlisted(why),
            ReaderTrust::FirstOf(sources) => sources,
        };
        let managed = SourceName::secret(&self.entry.namespace, self.entry.managed_name());
        let existing = sources.iter().find_map(|source| match self.sources.get(source) {
            _ if *source == managed => Some(ReaderSource::Managed),
            Some(SourceState::Absent) => None,
            Some(state) => Some(ReaderSource::Object(source, state)),
            None => Some(ReaderSource::Unknowable("a source that was not looked up")),
        });
        existing.unwrap_or(ReaderSource::Missing(sources))
    }
}

fn usable<'a>(secret: Option<&'a SecretSummary>, name: &str) -> Result<&'a SecretSummary, String> {
    let secret = secret.ok_or_else(|| format!("Secret {name} does not exist"))?;
    match secret.denials.first() {
        Some(finding) => Err(format!("Secret {name}: {}: {}: {}", finding.rule, finding.field, finding.message)),
        None => Ok(secret),
    }
}

/// The CAs of a source, each once: its bundle, or its own certificate if that is a CA and there is no bundle.
pub(super) fn authorities(secret: &SecretSummary) -> Vec<Certificate> {
    if secret.anchors.is_empty() {
        return secret.chain.iter().take(1).filter(|certificate| certificate.is_ca).cloned().collect();
    }
    let mut known = BTreeSet::new();
    secret.anchors.iter().filter(|certificate| known.insert(&certificate.fingerprint)).cloned().collect()
}

/// What all steps derive from a snapshot and its journal, computed once.
pub(super) struct View<'a> {
    pub(super) snapshot: &'a Snapshot<'a>,
    pub(super) entry: &'a Entry,
    pub(super) journal: &'a Journal,
    pub(super) now: Timestamp,
    /// The state of the policy's `changeWindows`.
    pub(super) windows: WindowState,
    /// The contents of the managed Secret that gateways may use.
    pub(super) gateways_in_use: Vec<&'a Version>,
    /// Those of them for which new client certificates wait.
    pub(super) awaited: Vec<&'a Version>,
    /// The contents that declared clients may use, with their names.
    pub(super) clients_in_use: Vec<(&'a str, &'a Version)>,
    /// The chains that gateways may present in addition to the managed Secret's, with the names of their Secrets.
    pub(super) presented_also: Vec<(&'a str, &'a Version)>,
    /// The current CAs that sign client certificates.
    pub(super) client_issuers: Vec<Certificate>,
    /// The current CAs that sign serving certificates.
    pub(super) server_issuers: Vec<Certificate>,
    /// The chain in the source Secret, if it can be served.
    pub(super) source_chain: Option<&'a [Certificate]>,
    /// The chain in the managed Secret, if its pair is sound.
    pub(super) served_chain: Option<&'a [Certificate]>,
    /// Some gateway may not trust the current client CAs.
    pub(super) unconverged: Option<Unconverged>,
    /// The step that waits for gateways.
    pub(super) gateway_step: StepName,
    /// The clients' Issuer signs with the current CA, and every gateway accepts certificates of it.
    pub(super) signs_current: bool,
}

/// Some gateway may not trust the current client CAs.
#[derive(Clone, Copy)]
pub(super) struct Unconverged {
    /// When the propagation delay ends; `None` if something else must happen first.
    pub(super) until: Option<Timestamp>,
}

impl<'a> View<'a> {
    pub(super) fn derive(snapshot: &'a Snapshot<'a>, journal: &'a Journal, now: Timestamp) -> Self {
        let entry = snapshot.entry;
        let delays = &entry.policy.propagation_delays;
        let is_in_use = |version: &&Version| version.may_be_in_use(delays.gateways, now);
        let of_client = |(name, client): (&'a String, &'a Client)| {
            client.in_use(delays.clients, now).map(|version| (name.as_str(), version))
        };
        let of_secret = |(name, versions): (&'a String, &'a Vec<Version>)| {
            versions.iter().filter(is_in_use).map(|version| (name.as_str(), version))
        };
        let gateways_in_use: Vec<_> = journal.gateways.iter().filter(is_in_use).collect();
        let client_issuers = current(&journal.client_issuers, &entry.spec.distrusted_cas, now);
        let clients_in_use: Vec<_> = journal.clients.iter().flat_map(of_client).collect();
        let previous = Previous::of(journal, &client_issuers, &clients_in_use);
        let until = |version: &Version| previous.awaited_until(version, delays);
        let is_awaited = |version: &&&Version| until(version).is_none_or(|end| now < end);
        let awaited: Vec<_> = gateways_in_use.iter().filter(is_awaited).copied().collect();
        let lacking = awaited.iter().filter(|version| !holds(&version.trust, &client_issuers, now));
        let last = lacking.map(|version| until(version)).max_by_key(|end| end.unwrap_or(Timestamp::MAX));
        let unconverged = last.map(|until| Unconverged { until });
        let gateway_step = match unconverged {
            None => StepName::DropOldCA,
            Some(_) if entry.spec.issuer_secret_name.is_some() => StepName::PromoteIssuer,
            Some(_) => StepName::ReissueClients,
        };
        let signs = snapshot.usable_client_ca().is_ok_and(|source| {
            entry.spec.issuer_secret_name.is_none()
                || snapshot.issuer.is_some_and(|issuer| issuer.chain == source.chain)
        });
        Self {
            snapshot,
            entry,
            journal,
            now,
            windows: WindowState::of(&entry.policy.change_windows, now),
            gateways_in_use,
            awaited,
            clients_in_use,
            presented_also: journal.presented_also.iter().flat_map(of_secret).collect(),
            client_issuers,
            server_issuers: current(&journal.server_issuers, &entry.spec.distrusted_cas, now),
            source_chain: snapshot.usable_source().ok().and_then(|source| non_empty(&source.chain)),
            served_chain: served_chain(snapshot),
            unconverged,
            gateway_step,
            signs_current: signs && unconverged.is_none(),
        }
    }
}

/// The current CAs: those that their Secret holds. Distrusted ones are left out, and expired ones, with which Envoy would refuse the clients of an
/// intermediate below; unless none is left.
pub(super) fn current(issuers: &[Authority], distrusted_cas: &[String], now: Timestamp) -> Vec<Certificate> {
    let current = issuers.iter().filter(|authority| authority.current).map(|authority| authority.certificate.clone());
    let (distrusted, trusted): (Vec<_>, Vec<_>) =
        current.partition(|certificate| is_distrusted(certificate, distrusted_cas));
    let left = if trusted.is_empty() { distrusted } else { trusted };
    let (expired, valid): (Vec<_>, Vec<_>) =
        left.into_iter().partition(|ca| ca.is_expired(now) && applies(Rule::WritesKeepConnections));
    if valid.is_empty() { expired } else { valid }
}

/// What client certificates depended on before the current CAs.
struct Previous<'a> {
    /// CAs that are still needed: others leave the journal.
    cas: Vec<&'a Certificate>,
    /// The intermediate CAs of clients' chains.
    intermediates: Vec<&'a Certificate>,
}

impl<'a> Previous<'a> {
    fn of(journal: &'a Journal, current: &[Certificate], clients: &[(&str, &'a Version)]) -> Self {
        let cas = journal.client_issuers.iter().map(|authority| &authority.certificate);
        let intermediates = clients.iter().flat_map(|(_, version)| version.chain.iter().skip(1));
        Self { cas: cas.filter(|ca| !current.contains(ca)).collect(), intermediates: intermediates.collect() }
    }

    /// Until when new client certificates wait for gateways that may have a version. `None` for the newest. One that a probe has found in use counts
    /// until the first of the previous CAs that it trusts is about to end: then clients would be refused by every gateway, and not only by this
    /// one.
    fn awaited_until(&self, version: &Version, delays: &PropagationDelays) -> Option<Timestamp> {
        let propagated = delays.gateways.after(version.replaced?);
        if version.seen.is_empty() {
            return Some(propagated);
        }
        let trusted: Vec<_> = self.cas.iter().filter(|ca| version.trust.contains(ca)).collect();
        let is_below = |ca: &&&Certificate| trusted.iter().any(|above| above.subject_der == ca.issuer_der);
        let below = self.intermediates.iter().filter(is_below);
        let end = trusted.iter().copied().chain(below).map(|ca| ca.not_after).min();
        let end = end.filter(|_| applies(Rule::TheEndOverridesGateways))?;
        Some(propagated.max(delays.deadline(end)))
    }
}

/// The chain of the managed Secret, if it can be served. A broken bundle does not matter here.
fn served_chain<'a>(snapshot: &Snapshot<'a>) -> Option<&'a [Certificate]> {
    let of_bundle = |finding: &Finding| CA_KEYS.iter().chain(&CRL_KEYS).any(|key| finding.field == field(key));
    let spares_pair = of_bundle;
    let managed = snapshot.managed.filter(|managed| managed.denials.iter().all(spares_pair))?;
    non_empty(&managed.chain)
}

fn non_empty(chain: &[Certificate]) -> Option<&[Certificate]> {
    (!chain.is_empty()).then_some(chain)
}

/// Whether gateways with this bundle accept a client's chain.
pub(super) fn admits(trust: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    connectivity::admits(trust, chain, begun(chain, now))
}

/// Whether a client's chain is of these CAs. A client whose chain is unknown is not waited for.
pub(super) fn migrated(issuers: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    chain.is_empty() || admits(issuers, chain, now)
}

impl View<'_> {
    /// Whether a previous CA is still trusted or in use.
    pub(super) fn rotates(&self) -> bool {
        self.journal.client_issuers.iter().chain(&self.journal.server_issuers).any(|authority| !authority.current)
    }

    /// Whether a client's version is of the current CAs, through the intermediate CA that signs now. A version of which nothing is known is not,
    /// once there is another CA.
    pub(super) fn has_followed(&self, version: &Version) -> bool {
        if version.is_unknown() {
            // Nor is it known by which intermediate CA it is, and when that ends.
            return !self.rotates() && intermediate(&self.snapshot.usable_client_ca()).is_none();
        }
        migrated(&self.client_issuers, &version.chain, self.now)
            && !has_replaced_intermediate(self.snapshot.usable_client_ca(), &version.chain)
    }

    /// Whether a serving chain is of the current CAs, through the intermediate CA that signs now.
    pub(super) fn is_current_serving(&self, chain: &[Certificate]) -> bool {
        verifies(&self.server_issuers, chain, self.now)
            && !has_replaced_intermediate(self.snapshot.usable_server_ca(), chain)
    }

    /// Whether every client is known: all are declared, and the agent may list all of their namespaces.
    pub(super) fn knows_all_clients(&self) -> bool {
        self.entry.spec.clients.all_declared
            && deleted::unlisted_namespaces(self.snapshot, self.journal, self.now).next().is_none()
    }

    /// Whether the certificate of some declared client is unknown.
    pub(super) fn has_unknown_clients(&self) -> bool {
        self.clients_in_use.iter().any(|(_, version)| version.is_unknown())
    }

    /// Since when a certificate that is issued is of the current CAs, and clients get the current bundle with it.
    pub(super) fn changed(&self) -> Timestamp {
        let issuers = || self.journal.client_issuers.iter().chain(&self.journal.server_issuers);
        let current = issuers().filter(|authority| authority.current).map(|authority| authority.since);
        let retired = issuers().filter_map(|authority| authority.retired);
        let published = self.journal.client_bundles.last().map(|bundle| bundle.since);
        current.chain(retired).chain(published).max().unwrap_or(Timestamp::MIN)
    }
}

/// Whether an intermediate CA of a chain was replaced by another certificate of its name in the Secret of the CA, under the same root. Its chains
/// end with it, however long the leaves are valid.
fn has_replaced_intermediate(ca: Result<&SecretSummary, String>, chain: &[Certificate]) -> bool {
    let is_replaced = |signing: &Certificate| {
        let mut above = chain.iter().skip(1);
        above.any(|ca| ca.subject_der == signing.subject_der && ca != signing)
    };
    intermediate(&ca).is_some_and(is_replaced) && applies(Rule::ChainsAreReissued)
}

/// The intermediate CA that signs, if it is not a root.
fn intermediate<'s>(ca: &Result<&'s SecretSummary, String>) -> Option<&'s Certificate> {
    let ca = ca.as_ref().ok()?;
    ca.chain.first().filter(|signing| signing.is_ca && !ca.anchors.contains(signing))
}

/// When the first intermediate CA of a chain ends.
pub(super) fn end_of_intermediates(chain: &[Certificate]) -> Option<Timestamp> {
    chain.iter().skip(1).map(|ca| ca.not_after).min().filter(|_| applies(Rule::ChainsAreReissued))
}

/// Whether a client that trusts these CAs verifies a gateway's chain.
pub(super) fn verifies(trust: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    connectivity::verifies(trust, chain, begun(chain, now))
}

/// Whether a client verifies a gateway's chain, or did so before it expired: some clients ignore dates.
pub(super) fn verifies_to_the_end(trust: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    // In the second of notAfter a certificate has expired.
    let ends = chain.iter().map(|certificate| certificate.not_after - SignedDuration::from_secs(1));
    verifies(trust, chain, ends.fold(now, Timestamp::min))
}

/// The instant at which a chain is judged. If the clock is slow, a certificate in use does not seem valid yet, and is
/// judged at the start of its validity.
fn begun(chain: &[Certificate], now: Timestamp) -> Timestamp {
    chain.iter().map(|certificate| certificate.not_before).fold(now, Timestamp::max)
}

/// Whether `trust` holds all of these CAs, or valid ones with their names and keys.
pub(super) fn holds(trust: &[Certificate], wanted: &[Certificate], now: Timestamp) -> bool {
    let is_valid = |other: &Certificate| !other.is_expired(now) || !applies(Rule::ExpiredCasHoldNothing);
    let is_among = |ca: &Certificate| trust.iter().any(|other| other == ca || other.supersedes(ca) && is_valid(other));
    wanted.iter().all(is_among)
}
