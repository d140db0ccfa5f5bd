//! A journal that is lost, or cannot be read. What it knew of the time before is put together from status, as far as that tells;
//! the rest counts as written now, over something that is not known.

use jiff::Timestamp;

use super::snapshot::{ClientState, Snapshot, authorities, usable};
use crate::api::{LeafKind, Phase, TrustAnchor};
use crate::connectivity;
use crate::rotation::journal::{Client, Journal, Version};
use crate::trust::equivalence::are_equivalent;
use crate::trust::{Certificate, bundle};

/// Whether a journal remembers nothing although there was something to remember.
pub(super) fn is_lost(seen: &Snapshot<'_>, journal: &Journal) -> bool {
    *journal == Journal::default() && (seen.managed.is_some() || !seen.entry.status.client_bundle.is_empty())
}

/// Puts down what gateways and clients may still go by.
pub(super) fn recover(seen: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
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
