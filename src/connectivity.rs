//! Connectivity: an update must not part clients from gateways that work together now.
//!
//! What the cluster needs comes from GatewaySecret status; what is not observed is not judged. A connection that does not
//! work before the update is no reason against it: an unsound object can always be replaced by a sounder one. Revocation
//! lists are left out, since who revokes a certificate means to.

use std::collections::HashSet;

use jiff::Timestamp;

use crate::api::{GatewaySecretStatus, Leaf, LeafKind, TrustAnchor};
use crate::trust::chain::{Effect, Purpose, Store, Update};
use crate::trust::equivalence::constrains_names;
use crate::trust::limits::{MAX_PATHS, SIGNATURES};
use crate::trust::name::brief;
use crate::trust::{Certificate, ParsedSecret, bundle, credential, field, is_distrusted};

/// Names that one message gives.
const NAMED: usize = 3;

/// A field, and what an update of it would break.
pub type Broken = (String, String);

/// What is wrong with clients that a source of CAs does not let in.
const NONE_OF_THEM: &str = "chain to none of the CAs that gateways would have by this";

/// A server by whatever name: which hosts it serves is another rule's business.
const SERVER: Purpose<'static> = Purpose::Server { hosts: &[] };

/// Whether a client that trusts these CAs verifies a gateway's chain, by whatever name it calls it.
pub fn verifies(trust: &[Certificate], served: &[Certificate], now: Timestamp) -> bool {
    Store::new(trust, None).accepts(served, SERVER, now)
}

/// Whether gateways with this bundle accept a client's chain.
pub fn admits(bundle: &[Certificate], presented: &[Certificate], now: Timestamp) -> bool {
    Store::new(bundle, None).accepts(presented, Purpose::Client, now)
}

/// Whether clients are known to take their trust from the managed bundle: what it shares with all of them verifies the
/// gateways now. A server certificate of another CA, public or not, is none of the bundle's business.
pub fn distributes(status: &GatewaySecretStatus, now: Timestamp) -> bool {
    // By fingerprint, since a status may hold thousands.
    let held: HashSet<_> = status.bundle.iter().map(|held| held.fingerprint.as_str()).collect();
    let shared = status.client_trust.iter().flatten().filter(|ca| held.contains(ca.fingerprint.as_str()));
    let served = leaves(status, LeafKind::Server).find(|leaf| leaf.not_after >= now);
    served.is_some_and(|served| verifies(&observed(shared), &certificates(&served.pem), now))
}

/// What an update of the managed Secret breaks: live clients that gateways would refuse from then on, and a serving pair
/// that clients cannot verify yet. Names of clients are told for `namespace` only. What works by a CA of `distrust`
/// alone is meant to end.
pub fn managed(
    old: &ParsedSecret<'_>,
    new: &ParsedSecret<'_>,
    status: &GatewaySecretStatus,
    distrust: &[String],
    namespace: &str,
    now: Timestamp,
) -> Vec<Broken> {
    if old.secret.data == new.secret.data {
        return Vec::new();
    }
    let what = "chain only to what this update takes out";
    let key = new.ca().or_else(|| old.ca()).map_or("ca.crt", |ca| ca.key);
    let stranded = stranded(trusted(old, distrust), new.anchors(), key, what, status, namespace, now);
    stranded.into_iter().chain(unverified(old, new, status, now)).collect()
}

/// What the write of the managed Secret's `-cacert` sibling breaks: gateways take their CAs from it, and none from the
/// managed Secret, as soon as it is there.
pub fn sibling(
    old: Option<&ParsedSecret<'_>>,
    new: &ParsedSecret<'_>,
    status: &GatewaySecretStatus,
    distrust: &[String],
    namespace: &str,
    now: Timestamp,
) -> Option<Broken> {
    if let Some(old) = old {
        return source(old, Some(new), status, distrust, namespace, now);
    }
    let key = new.ca().map_or("ca.crt", |ca| ca.key);
    let mut held = observed(&status.bundle);
    held.retain(|ca| !is_distrusted(ca, distrust));
    stranded(held.iter(), new.anchors(), key, NONE_OF_THEM, status, namespace, now)
}

/// What an update of any object breaks from which gateways take their clients' CAs, or its deletion, where `new` is `None`:
/// proxies that start from then on have none of these CAs.
pub fn source(
    old: &ParsedSecret<'_>,
    new: Option<&ParsedSecret<'_>>,
    status: &GatewaySecretStatus,
    distrust: &[String],
    namespace: &str,
    now: Timestamp,
) -> Option<Broken> {
    let key = new.and_then(ParsedSecret::ca).or_else(|| old.ca()).map_or("ca.crt", |ca| ca.key);
    let after = new.into_iter().flat_map(ParsedSecret::anchors);
    stranded(trusted(old, distrust), after, key, NONE_OF_THEM, status, namespace, now)
}

/// What the write of a declared client's Secret breaks: a leaf that gateways refuse, and trust without the CA of the
/// serving leaf, unless `distrust` names that.
pub fn client(
    old: Option<&ParsedSecret<'_>>,
    new: &ParsedSecret<'_>,
    status: &GatewaySecretStatus,
    distrust: &[String],
    now: Timestamp,
) -> Vec<Broken> {
    if old.is_some_and(|old| old.secret.data == new.secret.data) {
        return Vec::new();
    }
    early(old, new, status, now).into_iter().chain(forgotten(old, new, status, distrust, now)).collect()
}

fn stranded<'c>(
    before: impl Iterator<Item = &'c Certificate> + Clone,
    after: impl Iterator<Item = &'c Certificate> + Clone,
    key: &str,
    what: &str,
    status: &GatewaySecretStatus,
    namespace: &str,
    now: Timestamp,
) -> Option<Broken> {
    if before.clone().map(|c| &c.fingerprint).eq(after.clone().map(|c| &c.fingerprint)) {
        return None;
    }
    let Cut { lost, undecided, unnamed, unlisted } = cut_off(before, after, status, now);
    if unlisted > 0 {
        let message = format!(
            "{key}: certificates of {unlisted} declared client(s) do not fit into status, so it is not known whether they need what \
             this update takes out. keep every CA; condition StatusComplete says what to do"
        );
        return Some((field(key), message));
    }
    let until = lost.iter().map(|leaf| leaf.not_after).max()?;
    let all: usize = lost.iter().map(|leaf| leaf.count()).sum();
    let own = lost.iter().filter(|leaf| leaf.namespace == namespace).flat_map(|leaf| leaf.names());
    let own: Vec<_> = own.take(NAMED).collect();
    let mut which = own.join(", ");
    let others = all - own.len();
    match (which.is_empty(), others) {
        (true, _) => which = "in other namespaces".to_owned(),
        (false, 0) => {}
        (false, more) => which += &format!(" and {more} more"),
    }
    if undecided > 0 {
        let message = format!(
            "{key}: {} live client certificate(s) ({which}) may lose their CA by this update: for {undecided} of them it takes \
             more than {SIGNATURES} signatures or {MAX_PATHS} paths to tell. expected one CA for each subject, and few that \
             change at a time; take CAs out one by one",
            all,
        );
        return Some((field(key), message));
    }
    if unnamed > 0 {
        let message = format!(
            "{key}: {all} live client certificate(s) ({which}) may lose their CA by this update: it has a CA with name constraints, and \
             status does not hold the names of {unnamed} of them. write that CA to the source Secret first, and retry when status has \
             followed"
        );
        return Some((field(key), message));
    }
    let message = format!(
        "{key}: {} live client certificate(s) ({which}) {what}; gateways would refuse them, the last until {until}. \
         keep their CA, wait until they are renewed from one that stays, then take it out",
        all,
    );
    Some((field(key), message))
}

/// RegistryCache clients that an update of the bundle cuts off.
pub(crate) struct Cut<'s> {
    pub(crate) lost: Vec<&'s Leaf>,
    /// Of how many of them it is not known: to tell would take too long.
    pub(crate) undecided: usize,
    /// Of how many of them it is not known: their names decide, and status has those of one for all.
    pub(crate) unnamed: usize,
    /// Clients that status does not hold, when the update takes something out.
    pub(crate) unlisted: usize,
}

impl Cut<'_> {
    /// Whether each of them is known to be cut off.
    pub(crate) fn is_certain(&self) -> bool {
        self.undecided + self.unnamed + self.unlisted == 0
    }
}

/// Who is accepted with a bundle, and would not be with another.
pub(crate) fn cut_off<'s, 'c>(
    before: impl Iterator<Item = &'c Certificate>,
    after: impl Iterator<Item = &'c Certificate>,
    status: &'s GatewaySecretStatus,
    now: Timestamp,
) -> Cut<'s> {
    // Each is prepared once: there may be thousands of CAs, and hundreds of leaves.
    let [before, after]: [Vec<&Certificate>; 2] = [before.collect(), after.collect()];
    let constrains = before.iter().chain(&after).any(|ca| constrains_names(ca));
    let stays: HashSet<_> = after.iter().map(|ca| &ca.fingerprint).collect();
    let unlisted = status.unlisted_clients.filter(|_| !before.iter().all(|ca| stays.contains(&ca.fingerprint)));
    let (held, left) = (Store::new(before, None), Store::new(after, None));
    let mut update = Update::new(&held, &left);
    let mut unnamed = 0;
    let live = leaves(status, LeafKind::Client).filter(|leaf| leaf.not_after >= now);
    let mut effect = |leaf: &Leaf| match update.is_used_up() {
        true => Effect::Undecided,
        false => {
            let chain = certificates(&leaf.pem);
            let effect = update.effect(&chain, Purpose::Client, now);
            let is_like_others = !constrains || leaf.others.is_empty() || leaf.same_names;
            if is_like_others || effect != Effect::Unharmed || !update.concerns(&chain, Purpose::Client) {
                return effect;
            }
            unnamed += leaf.count();
            Effect::Lost
        }
    };
    let judged = live.map(|leaf| (leaf, effect(leaf)));
    let lost: Vec<_> = judged.filter(|(_, effect)| *effect != Effect::Unharmed).collect();
    let undecided = lost.iter().filter(|(_, effect)| *effect == Effect::Undecided).map(|(leaf, _)| leaf.count()).sum();
    let lost = lost.into_iter().map(|(leaf, _)| leaf).collect();
    Cut { lost, undecided, unnamed, unlisted: unlisted.unwrap_or_default() as usize }
}

fn unverified(
    old: &ParsedSecret<'_>,
    new: &ParsedSecret<'_>,
    status: &GatewaySecretStatus,
    now: Timestamp,
) -> Option<Broken> {
    let trust = observed(status.client_trust.as_deref()?);
    let clients = Store::new(&trust, None);
    if !clients.may_accept(old.served(), SERVER, now) {
        return None;
    }
    let Some(pair) = new.pair() else {
        let message = "data: this update takes the serving pair out, and clients use it. keep it".to_owned();
        return Some(("data".to_owned(), message));
    };
    let chain = || pair.chain.certificates();
    let leaf = chain().next()?;
    if old.served().eq(chain()) || clients.accepts(chain(), SERVER, now) {
        return None;
    }
    let message = format!(
        "{}: what clients trust ({} CA(s)) does not verify the new leaf {}; they would refuse the gateway. distribute its CA \
         {} to all clients, wait until they have it, then serve the leaf",
        pair.chain.key,
        trust.len(),
        brief(&leaf.subject),
        brief(&chain().last().unwrap_or(leaf).issuer),
    );
    Some((pair.chain.field(), message))
}

fn early(
    old: Option<&ParsedSecret<'_>>,
    new: &ParsedSecret<'_>,
    status: &GatewaySecretStatus,
    now: Timestamp,
) -> Option<Broken> {
    let pair = new.pair()?;
    let chain = || pair.chain.certificates();
    let leaf = chain().next()?;
    let text = |secret| credential::serving_pair(secret).map(|pair| pair.chain);
    let unmoved = old.is_some_and(|old| text(old.secret) == text(new.secret));
    // What some gateway may not have yet is nothing to rely on. Without an agent nobody knows, and the bundle has to do.
    let everywhere = status.bundle.iter().filter(|anchor| anchor.converged != Some(false));
    let held = observed(everywhere);
    if unmoved || status.bundle.is_empty() || Store::new(&held, None).accepts(chain(), Purpose::Client, now) {
        return None;
    }
    let message = format!(
        "{}: gateways do not accept {} yet: their bundle does not verify it. expected its CA {} in the managed Secret first; \
         retry then",
        pair.chain.key,
        brief(&leaf.subject),
        brief(&chain().last().unwrap_or(leaf).issuer),
    );
    Some((pair.chain.field(), message))
}

fn forgotten(
    old: Option<&ParsedSecret<'_>>,
    new: &ParsedSecret<'_>,
    status: &GatewaySecretStatus,
    distrust: &[String],
    now: Timestamp,
) -> Option<Broken> {
    let old = old?;
    let served = leaves(status, LeafKind::Server).find(|leaf| leaf.not_after >= now)?;
    let chain = certificates(&served.pem);
    let (before, after) = (Store::new(trusted(old, distrust), None), Store::new(new.anchors(), None));
    if !before.may_accept(&chain, SERVER, now) || after.accepts(&chain, SERVER, now) {
        return None;
    }
    let key = new.ca().or_else(|| old.ca()).map_or("ca.crt", |ca| ca.key);
    let message = format!(
        "{key}: the gateway serves a leaf until {} that this client would no longer verify. keep its CA until the gateway \
         serves another leaf",
        served.not_after,
    );
    Some((field(key), message))
}

/// The anchors of a Secret that are to be trusted on.
fn trusted<'c>(
    contents: &'c ParsedSecret<'_>,
    distrust: &'c [String],
) -> impl Iterator<Item = &'c Certificate> + Clone {
    contents.anchors().filter(|ca| !is_distrusted(ca, distrust))
}

fn leaves(status: &GatewaySecretStatus, kind: LeafKind) -> impl Iterator<Item = &Leaf> {
    status.leaves.iter().flatten().filter(move |leaf| leaf.kind == kind)
}

impl From<&Certificate> for TrustAnchor {
    fn from(certificate: &Certificate) -> Self {
        Self {
            subject: certificate.subject.clone(),
            fingerprint: certificate.fingerprint.clone(),
            not_before: certificate.not_before,
            not_after: certificate.not_after,
            pem: Some(certificate.pem()),
            converged: None,
        }
    }
}

/// The certificates of the anchors that a status shows.
pub fn observed<'a>(anchors: impl IntoIterator<Item = &'a TrustAnchor>) -> Vec<Certificate> {
    anchors.into_iter().filter_map(|anchor| anchor.pem.as_deref()).flat_map(certificates).collect()
}

fn certificates(pem: &str) -> Vec<Certificate> {
    bundle::read(pem.as_bytes()).into_certificates()
}
