//! Continuity: an update must not part clients from gateways that work together now.
//!
//! What the cluster needs comes from GatewaySecret status; what is not observed is not judged. A connection that does not
//! work before the update is no reason against it: an unsound object can always be replaced by a sounder one. Revocation
//! lists are left out, since who revokes a certificate means to.

use jiff::Timestamp;

use super::chain::{self, Budget, Purpose, Store};
use super::name::brief;
use super::subject::field;
use super::{Certificate, Secret, bundle, credential, private_key};
use crate::api::{GatewaySecretStatus, Leaf, LeafKind, TrustAnchor};

/// Names that one message gives.
const NAMED: usize = 3;

/// A field, and what an update of it would break.
pub type Broken = (String, String);

/// The one place where continuity asks the verifier.
fn accepts(bundle: &[Certificate], chain: &[Certificate], purpose: Purpose<'_>, now: Timestamp) -> bool {
    chain::verify(bundle, None, chain, purpose, now).is_ok()
}

/// A server by whatever name: which hosts it serves is another rule's business.
const SERVER: Purpose<'static> = Purpose::Server { hosts: &[] };

/// Whether a client that trusts these CAs verifies a gateway's chain, by whatever name it calls it.
pub fn verifies(trust: &[Certificate], served: &[Certificate], now: Timestamp) -> bool {
    accepts(trust, served, SERVER, now)
}

/// Whether gateways with this bundle accept a client's chain.
pub fn admits(bundle: &[Certificate], presented: &[Certificate], now: Timestamp) -> bool {
    accepts(bundle, presented, Purpose::Client, now)
}

/// Whether clients are known to take their trust from the managed bundle: what it shares with all of them verifies the
/// gateways now. A server certificate of another CA, public or not, is none of the bundle's business.
pub fn distributes(status: &GatewaySecretStatus, now: Timestamp) -> bool {
    let held = |ca: &&TrustAnchor| status.bundle.iter().any(|held| held.fingerprint == ca.fingerprint);
    let shared = status.client_trust.iter().flatten().filter(held);
    let served = leaves(status, LeafKind::Server).find(|leaf| leaf.not_after >= now);
    served.is_some_and(|served| verifies(&observed(shared), &certificates(&served.pem), now))
}

/// What an update of the managed Secret breaks: live clients that gateways would refuse from then on, and a serving pair
/// that clients cannot verify yet. Names of clients are told for `namespace` only.
pub fn managed(
    old: &Secret,
    new: &Secret,
    status: &GatewaySecretStatus,
    namespace: &str,
    now: Timestamp,
) -> Vec<Broken> {
    if old.data == new.data {
        return Vec::new();
    }
    stranded(old, new, status, namespace, now).into_iter().chain(unverified(old, new, status, now)).collect()
}

/// What the write of a declared client's Secret breaks: a leaf that gateways refuse, and trust without the CA of the
/// serving leaf.
pub fn client(old: Option<&Secret>, new: &Secret, status: &GatewaySecretStatus, now: Timestamp) -> Vec<Broken> {
    if old.is_some_and(|old| old.data == new.data) {
        return Vec::new();
    }
    early(old, new, status, now).into_iter().chain(forgotten(old, new, status, now)).collect()
}

fn stranded(
    old: &Secret,
    new: &Secret,
    status: &GatewaySecretStatus,
    namespace: &str,
    now: Timestamp,
) -> Option<Broken> {
    let (before, after) = (anchors(old), anchors(new));
    if before.iter().map(|c| &c.fingerprint).eq(after.iter().map(|c| &c.fingerprint)) {
        return None;
    }
    // Each is prepared once: there may be thousands of CAs, and hundreds of leaves.
    let (held, left) = (Store::new(&before, None), Store::new(&after, None));
    let (mut for_held, mut for_left) = (Budget::default(), Budget::default());
    let mut lost = |leaf: &&Leaf| {
        let chain = certificates(&leaf.pem);
        !left.accepts(&chain, Purpose::Client, now, &mut for_left)
            && held.accepts(&chain, Purpose::Client, now, &mut for_held)
    };
    let lost: Vec<_> =
        leaves(status, LeafKind::Client).filter(|leaf| leaf.not_after >= now).filter(&mut lost).collect();
    let until = lost.iter().map(|leaf| leaf.not_after).max()?;
    let own: Vec<_> = lost.iter().filter(|leaf| leaf.namespace == namespace).map(|leaf| leaf.name.as_str()).collect();
    let mut which = own.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    let others = lost.len() - own.len().min(NAMED);
    match (which.is_empty(), others) {
        (true, _) => which = "in other namespaces".to_owned(),
        (false, 0) => {}
        (false, more) => which += &format!(" and {more} more"),
    }
    let key = credential::ca_bundle(new).or_else(|| credential::ca_bundle(old)).map_or("ca.crt", |ca| ca.key);
    let message = format!(
        "{key}: {} live client certificate(s) ({which}) chain only to what this update takes out; gateways would refuse \
         them, the last until {until}. keep their CA, wait until they are renewed from one that stays, then take it out",
        lost.len(),
    );
    Some((field(key), message))
}

fn unverified(old: &Secret, new: &Secret, status: &GatewaySecretStatus, now: Timestamp) -> Option<Broken> {
    let trust = observed(status.client_trust.as_deref()?);
    let served = served(old);
    if !verifies(&trust, &served, now) {
        return None;
    }
    let Some(pair) = credential::serving_pair(new) else {
        let message = "data: this update takes the serving pair out, and clients use it. keep it".to_owned();
        return Some(("data".to_owned(), message));
    };
    let chain = bundle::read_chain(pair.chain).into_certificates();
    let leaf = chain.first()?;
    if served.first() == Some(leaf) && served == chain || verifies(&trust, &chain, now) {
        return None;
    }
    let message = format!(
        "{}: what clients trust ({} CA(s)) does not verify the new leaf {}; they would refuse the gateway. distribute its CA \
         {} to all clients, wait until they have it, then serve the leaf",
        pair.chain_key,
        trust.len(),
        brief(&leaf.subject),
        brief(&chain.last().unwrap_or(leaf).issuer),
    );
    Some((field(pair.chain_key), message))
}

fn early(old: Option<&Secret>, new: &Secret, status: &GatewaySecretStatus, now: Timestamp) -> Option<Broken> {
    let pair = credential::serving_pair(new)?;
    let chain = bundle::read_chain(pair.chain).into_certificates();
    let leaf = chain.first()?;
    let unmoved = old.and_then(credential::serving_pair).is_some_and(|old| old.chain == pair.chain);
    // What some gateway may not have yet is nothing to rely on. Without an agent nobody knows, and the bundle has to do.
    let everywhere = status.bundle.iter().filter(|anchor| anchor.converged != Some(false));
    let held = observed(everywhere);
    if unmoved || status.bundle.is_empty() || admits(&held, &chain, now) {
        return None;
    }
    let message = format!(
        "{}: gateways do not accept {} yet: their bundle does not verify it. expected its CA {} in the managed Secret first; \
         retry then",
        pair.chain_key,
        brief(&leaf.subject),
        brief(&chain.last().unwrap_or(leaf).issuer),
    );
    Some((field(pair.chain_key), message))
}

fn forgotten(old: Option<&Secret>, new: &Secret, status: &GatewaySecretStatus, now: Timestamp) -> Option<Broken> {
    let (before, after) = (anchors(old?), anchors(new));
    let served = leaves(status, LeafKind::Server).find(|leaf| leaf.not_after >= now)?;
    let chain = certificates(&served.pem);
    if !verifies(&before, &chain, now) || verifies(&after, &chain, now) {
        return None;
    }
    let key = credential::ca_bundle(new).or_else(|| credential::ca_bundle(old?)).map_or("ca.crt", |ca| ca.key);
    let message = format!(
        "{key}: the gateway serves a leaf until {} that this client would no longer verify. keep its CA until the gateway \
         serves another leaf",
        served.not_after,
    );
    Some((field(key), message))
}

fn leaves(status: &GatewaySecretStatus, kind: LeafKind) -> impl Iterator<Item = &Leaf> {
    status.leaves.iter().flatten().filter(move |leaf| leaf.kind == kind)
}

/// The anchors that a proxy has: none of a bundle that it rejects.
fn anchors(secret: &Secret) -> Vec<Certificate> {
    let read = credential::ca_bundle(secret).map(|ca| bundle::read(ca.pem));
    read.filter(|bundle| bundle.rejected.is_none()).map(bundle::Bundle::into_certificates).unwrap_or_default()
}

/// The chain that a proxy serves: none without the leaf's own key.
fn served(secret: &Secret) -> Vec<Certificate> {
    let Some(pair) = credential::serving_pair(secret) else { return Vec::new() };
    let read = bundle::read_chain(pair.chain);
    let sound = read.rejected.is_none()
        && read.entries.first().is_some_and(|leaf| {
            private_key::public_key(pair.private_key).is_ok_and(|key| key == leaf.certificate.public_key)
        });
    if sound { read.into_certificates() } else { Vec::new() }
}

/// The certificates of the anchors that a status shows.
pub fn observed<'a>(anchors: impl IntoIterator<Item = &'a TrustAnchor>) -> Vec<Certificate> {
    anchors.into_iter().filter_map(|anchor| anchor.pem.as_deref()).flat_map(certificates).collect()
}

fn certificates(pem: &str) -> Vec<Certificate> {
    bundle::read(pem.as_bytes()).into_certificates()
}
