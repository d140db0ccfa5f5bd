//! CAs of one bundle that share a subject: the proxy takes the first that fits and tries no other.

use std::collections::HashMap;

use super::bundle::BundleEntry;
use super::chain::{UNORDERED, same_subject};
use super::equivalence::verify_the_same;
use super::{Certificate, Proxy, Text};

/// Two CAs that share a subject. The proxy may take `first` as the issuer of certificates that `second` signed.
pub(super) struct SameSubject<'a> {
    pub(super) first: &'a BundleEntry,
    pub(super) second: &'a BundleEntry,
    pub(super) order: Order,
}

/// In which order the proxy sees a pair of the bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// In that of the bundle.
    Kept,
    /// In either: with 24 entries or more, the proxy's store does not keep the order of the bundle.
    Any,
    /// In the reverse one, which only a proxy before Envoy 1.38 may see ([`Proxy::keeps_order`]).
    Reversed,
}

impl SameSubject<'_> {
    pub(super) fn has_one_key(&self) -> bool {
        self.first.certificate.public_key == self.second.certificate.public_key
    }

    /// Whether the proxy skips the first for a leaf with the key identifier of the second (RFC 5280 section 4.2.1.1).
    pub(super) fn have_different_key_ids(&self) -> bool {
        let id = |entry: &'_ BundleEntry| entry.certificate.subject_key_id.clone();
        id(self.first).zip(id(self.second)).is_some_and(|(first, second)| first != second)
    }

    /// Whether the first verifies all leaves that the second does: those that name the second's key identifier, too.
    pub(super) fn first_replaces_second(&self) -> bool {
        let (first, second) = (&self.first.certificate, &self.second.certificate);
        self.has_one_key() && (first.subject_key_id.is_none() || first.subject_key_id == second.subject_key_id)
    }

    /// See [`verify_the_same`].
    pub(super) fn are_alike(&self) -> bool {
        verify_the_same(&self.first.certificate, &self.second.certificate)
    }

    /// Identifies the pair, independently of line numbers.
    pub(super) fn identity(&self) -> String {
        format!("{} {}", self.first.certificate.fingerprint, self.second.certificate.fingerprint)
    }
}

/// The limit up to which all CAs with one subject are paired; beyond it only neighbours are. 150 CAs, as many as a public trust store
/// has, in ten versions each make 1,350 pairs.
const PAIRS: usize = 2_500;

/// All pairs of CAs that may sign and share a subject, by their indices among the entries; in both orders where the order may not be kept. Of
/// thousands with one subject, or in thousands of pairs, only neighbours and the first are paired. `lists` counts revocation lists under
/// another key.
pub(super) fn pairs(text: &Text, lists: usize, proxy: Proxy) -> Pairs {
    let entries = &text.bundle.entries;
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (at, entry) in entries.iter().enumerate() {
        places.entry(entry.certificate.fingerprint.as_str()).or_insert(at);
    }
    let any_order = places.len() + text.bundle.crls.len() + lists >= UNORDERED;
    let place = |certificate: &Certificate| places.get(certificate.fingerprint.as_str()).copied();
    let mut pairs = Vec::new();
    for group in same_subject(entries.iter().map(|entry| &entry.certificate)) {
        let group: Vec<_> = group.into_iter().filter_map(place).collect();
        let few = group.len() <= 32 && pairs.len() <= PAIRS;
        for (at, second) in group.iter().enumerate() {
            for (before, first) in group[..at].iter().enumerate() {
                if !few && before > 0 && before + 1 < at {
                    continue;
                }
                // A CA that may not sign neither has clients nor is taken as the issuer of others.
                if ![first, second].iter().all(|at| entries[**at].certificate.may_sign) {
                    continue;
                }
                let (order, reversed) = match (any_order, proxy.keeps_order()) {
                    (true, _) => (Order::Any, Some(Order::Any)),
                    (false, true) => (Order::Kept, None),
                    (false, false) => (Order::Kept, Some(Order::Reversed)),
                };
                pairs.push((*first, *second, order));
                pairs.extend(reversed.map(|order| (*second, *first, order)));
            }
        }
    }
    Pairs(pairs)
}

/// Pairs of CAs that share a subject, by index. They do not depend on the date.
#[derive(Default)]
pub(super) struct Pairs(Vec<(usize, usize, Order)>);

impl Pairs {
    /// The pairs with their entries.
    pub(super) fn of<'a>(&self, text: &'a Text) -> Vec<SameSubject<'a>> {
        let entries = &text.bundle.entries;
        let same_subjects =
            |&(first, second, order): &_| SameSubject { first: &entries[first], second: &entries[second], order };
        self.0.iter().map(same_subjects).collect()
    }
}
