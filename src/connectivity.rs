//! Connectivity: an update must not disconnect clients from gateways that accept each other now.
//!
//! GatewaySecret status says which certificates are in use; others are not judged. A connection that does not work before the update does
//! not block it, so that a broken object can always be replaced. Revocation lists are ignored, since revocation is intended.

use std::collections::HashSet;

use jiff::Timestamp;

use crate::api::{GatewaySecretStatus, Leaf, LeafKind, TrustAnchor};
use crate::trust::chain::{Effect, Purpose, Store, Update};
use crate::trust::equivalence::constrains_names;
use crate::trust::limits::{MAX_PATHS, SIGNATURES};
use crate::trust::name::brief;
use crate::trust::{Certificate, ParsedSecret, bundle, counted, credential, field, is_distrusted};

/// Names in one message.
const NAMED: usize = 3;

/// A field, and the message about connections that its update would break.
pub type Broken = (String, String);

/// A server with any name: `hosts-not-covered` checks hosts.
const SERVER: Purpose<'static> = Purpose::Server { hosts: &[] };

/// Whether a client that trusts these CAs verifies a gateway's chain, under any name.
pub fn verifies(trust: &[Certificate], served: &[Certificate], now: Timestamp) -> bool {
    Store::new(trust, None).accepts(served, SERVER, now)
}

/// Whether gateways with this bundle accept a client's chain.
pub fn admits(bundle: &[Certificate], presented: &[Certificate], now: Timestamp) -> bool {
    Store::new(bundle, None).accepts(presented, Purpose::Client, now)
}

/// Whether gateways accept a client's chain, by the status of their GatewaySecret.
pub fn accepts(status: &GatewaySecretStatus, chain: &[Certificate], now: Timestamp) -> bool {
    // Names come first, since they are compared without parsing the bundle. A namespace may have many GatewaySecrets.
    let names = |certificate: &Certificate, name: &str| {
        [&certificate.issuer, &certificate.subject].iter().any(|own| own.eq_ignore_ascii_case(name))
    };
    let is_above = |anchor: &TrustAnchor| chain.iter().any(|certificate| names(certificate, &anchor.subject));
    status.bundle.iter().any(is_above) && admits(&observed(&status.bundle), chain, now)
}

/// Whether clients are known to take their trust from the managed bundle: the CAs that it shares with all of them verify the gateways
/// now. The bundle need not verify a server certificate of another CA, such as a public one.
pub fn distributes(status: &GatewaySecretStatus, now: Timestamp) -> bool {
    // By fingerprint, since a status may have thousands.
    let bundle: HashSet<_> = status.bundle.iter().map(|anchor| anchor.fingerprint.as_str()).collect();
    let shared = status.client_trust.iter().flatten().filter(|ca| bundle.contains(ca.fingerprint.as_str()));
    let served = leaves(status, LeafKind::Server).find(|leaf| leaf.not_after > now);
    served.is_some_and(|served| verifies(&observed(shared), &certificates(&served.pem), now))
}

/// The connections that an update of the managed Secret breaks: active clients that gateways would refuse, and a serving certificate that
/// clients cannot verify yet. Clients are named for `namespace` only. Connections that depend on a CA of `distrust` are meant to end.
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
    let key = new.ca().or_else(|| old.ca()).map_or("ca.crt", |ca| ca.key);
    let stranded = stranded(trusted(old, distrust), new.anchors(), key, status, namespace, now);
    stranded.into_iter().chain(unverified(old, new, status, now)).collect()
}

/// The connections that a write of the managed Secret's `-cacert` sibling breaks: as soon as it exists, gateways take their CAs from it,
/// and none from the managed Secret.
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
    let mut current = observed(&status.bundle);
    current.retain(|ca| !is_distrusted(ca, distrust));
    stranded(current.iter(), new.anchors(), key, status, namespace, now)
}

/// The connections that the deletion of the managed Secret's `-cacert` sibling breaks: gateways then take CAs from the managed Secret.
pub fn deleted_sibling(
    old: &ParsedSecret<'_>,
    status: &GatewaySecretStatus,
    distrust: &[String],
    namespace: &str,
    now: Timestamp,
) -> Option<Broken> {
    let key = old.ca().map_or("ca.crt", |ca| ca.key);
    let managed = observed(&status.bundle);
    stranded(trusted(old, distrust), managed.iter(), key, status, namespace, now)
}

/// The connections that an update of an object breaks from which gateways take their clients' CAs. `None` for `new` is a deletion: proxies
/// that start later have none of these CAs.
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
    stranded(trusted(old, distrust), after, key, status, namespace, now)
}

/// The connections that a write of a declared client's Secret breaks: with a leaf that gateways refuse, or without the CA of the serving
/// certificate, unless `distrust` names that.
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
    not_accepted_yet(old, new, status, now)
        .into_iter()
        .chain(without_serving_ca(old, new, status, distrust, now))
        .collect()
}

fn stranded<'c>(
    before: impl Iterator<Item = &'c Certificate> + Clone,
    after: impl Iterator<Item = &'c Certificate> + Clone,
    key: &str,
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
            "{key}: the certificates of {} are not in status, so they may need a CA that this update removes. expected every CA to \
             stay; keep them, and do what conditions StatusComplete and ClientsCurrent say",
            counted(unlisted, "declared client")
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
    let certificates = counted(all, "active client certificate");
    if undecided > 0 {
        let message = format!(
            "{key}: this update may remove the CA of {certificates} ({which}): for {undecided} of them the check takes more than \
             {SIGNATURES} signatures or {MAX_PATHS} paths. expected one CA for each subject, and few changes at a time; remove CAs one by \
             one"
        );
        return Some((field(key), message));
    }
    if unnamed > 0 {
        let message = format!(
            "{key}: this update may remove the CA of {certificates} ({which}): a CA has name constraints, and status does not have the \
             names of {unnamed} of them. expected these names in status; write that CA to the source Secret first, and retry when status \
             is up to date"
        );
        return Some((field(key), message));
    }
    let message = format!(
        "{key}: this update removes every CA of {certificates} ({which}), so gateways would refuse them until {until}. expected a CA of \
         each active client to stay; keep it until they are renewed from another CA, then remove it"
    );
    Some((field(key), message))
}

/// Active clients that an update of the bundle disconnects.
pub(crate) struct Cut<'s> {
    pub(crate) lost: Vec<&'s Leaf>,
    /// The number of them for which the check would take too long.
    pub(crate) undecided: usize,
    /// The number of them whose names decide, but are not in status, which has those of one certificate for all.
    pub(crate) unnamed: usize,
    /// Clients that do not fit into status, if the update removes a CA.
    pub(crate) unlisted: usize,
}

impl Cut<'_> {
    /// Whether each of them is known to be disconnected.
    pub(crate) fn is_certain(&self) -> bool {
        self.undecided + self.unnamed + self.unlisted == 0
    }
}

/// The active clients that are accepted with one bundle, and refused with another.
pub(crate) fn cut_off<'s, 'c>(
    before: impl Iterator<Item = &'c Certificate>,
    after: impl Iterator<Item = &'c Certificate>,
    status: &'s GatewaySecretStatus,
    now: Timestamp,
) -> Cut<'s> {
    // Each bundle is prepared once: there may be thousands of CAs, and hundreds of leaves.
    let [before, after]: [Vec<&Certificate>; 2] = [before.collect(), after.collect()];
    let constrains = before.iter().chain(&after).any(|ca| constrains_names(ca));
    let stays: HashSet<_> = after.iter().map(|ca| &ca.fingerprint).collect();
    let unlisted = status.unlisted_clients.filter(|_| !before.iter().all(|ca| stays.contains(&ca.fingerprint)));
    let (before, after) = (Store::new(before, None), Store::new(after, None));
    let mut update = Update::new(&before, &after);
    let mut unnamed = 0;
    let active = leaves(status, LeafKind::Client).filter(|leaf| leaf.not_after > now);
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
    let judged = active.map(|leaf| (leaf, effect(leaf)));
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
    // Rule taken-away reports the loss of the pair.
    let pair = new.pair()?;
    let chain = || pair.chain.certificates();
    let leaf = chain().next()?;
    if old.served().eq(chain()) || clients.accepts(chain(), SERVER, now) {
        return None;
    }
    let message = format!(
        "{}: clients trust {}, which cannot verify the new serving certificate {}: they would refuse the gateways. expected its CA {} at \
         all clients; distribute it, wait until they have it, then retry",
        pair.chain.key,
        counted(trust.len(), "CA"),
        brief(&leaf.subject),
        brief(&chain().last().unwrap_or(leaf).issuer),
    );
    Some((pair.chain.field(), message))
}

fn not_accepted_yet(
    old: Option<&ParsedSecret<'_>>,
    new: &ParsedSecret<'_>,
    status: &GatewaySecretStatus,
    now: Timestamp,
) -> Option<Broken> {
    let pair = new.pair()?;
    let chain = || pair.chain.certificates();
    let leaf = chain().next()?;
    let text = |secret| credential::serving_pair(secret).map(|pair| pair.chain);
    let is_unchanged = old.is_some_and(|old| text(old.secret) == text(new.secret));
    // A CA that some gateway may not have yet does not count. Without an agent that is unknown, and the whole bundle counts.
    let everywhere = status.bundle.iter().filter(|anchor| anchor.converged != Some(false));
    let current = observed(everywhere);
    if is_unchanged || status.bundle.is_empty() || Store::new(&current, None).accepts(chain(), Purpose::Client, now) {
        return None;
    }
    let message = format!(
        "{}: gateways do not accept {} yet: their bundle does not verify it. expected its CA {} in the managed Secret first; retry \
         then",
        pair.chain.key,
        brief(&leaf.subject),
        brief(&chain().last().unwrap_or(leaf).issuer),
    );
    Some((pair.chain.field(), message))
}

fn without_serving_ca(
    old: Option<&ParsedSecret<'_>>,
    new: &ParsedSecret<'_>,
    status: &GatewaySecretStatus,
    distrust: &[String],
    now: Timestamp,
) -> Option<Broken> {
    let old = old?;
    let served = leaves(status, LeafKind::Server).find(|leaf| leaf.not_after > now)?;
    let chain = certificates(&served.pem);
    let (before, after) = (Store::new(trusted(old, distrust), None), Store::new(new.anchors(), None));
    if !before.may_accept(&chain, SERVER, now) || after.accepts(&chain, SERVER, now) {
        return None;
    }
    let key = new.ca().or_else(|| old.ca()).map_or("ca.crt", |ca| ca.key);
    let message = format!(
        "{key}: gateways serve a certificate until {} that this client would no longer verify. expected its CA to stay; keep it until \
         gateways serve another certificate",
        served.not_after,
    );
    Some((field(key), message))
}

/// The anchors of a Secret that are not distrusted.
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

/// The certificates of the anchors in a status.
pub fn observed<'a>(anchors: impl IntoIterator<Item = &'a TrustAnchor>) -> Vec<Certificate> {
    anchors.into_iter().filter_map(|anchor| anchor.pem.as_deref()).flat_map(certificates).collect()
}

fn certificates(pem: &str) -> Vec<Certificate> {
    bundle::read(pem.as_bytes()).into_certificates()
}
