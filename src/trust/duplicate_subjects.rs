//! CAs of one bundle that have the same subject: the first that fits is taken, whatever comes of it.

use std::collections::HashMap;

use super::bundle::Entry;
use super::chain::{UNORDERED, same_subject};
use super::{Certificate, Text};

/// Two CAs with one subject. The proxy may take `first` as the issuer of what `second` signed.
pub(super) struct Namesakes<'a> {
    pub(super) first: &'a Entry,
    pub(super) second: &'a Entry,
    /// Whether the order is only assumed: from 24 entries on the proxy's store does not keep the bundle's.
    pub(super) any_order: bool,
}

impl Namesakes<'_> {
    pub(super) fn has_one_key(&self) -> bool {
        self.first.certificate.public_key == self.second.certificate.public_key
    }

    /// Whether a leaf of the second with its key identifier leads past the first (RFC 5280 section 4.2.1.1).
    pub(super) fn are_told_apart(&self) -> bool {
        let id = |entry: &'_ Entry| entry.certificate.subject_key_id.clone();
        id(self.first).zip(id(self.second)).is_some_and(|(first, second)| first != second)
    }

    /// Whether the first verifies whatever the second does: whoever leads to the second leads to the first, too.
    pub(super) fn is_a_stand_in(&self) -> bool {
        let (first, second) = (&self.first.certificate, &self.second.certificate);
        self.has_one_key() && (first.subject_key_id.is_none() || first.subject_key_id == second.subject_key_id)
    }

    /// Stays the same when lines move.
    pub(super) fn identity(&self) -> String {
        format!("{} {}", self.first.certificate.fingerprint, self.second.certificate.fingerprint)
    }
}

/// Pairs that are made of all CAs of a subject; from then on only of neighbours. 150 CAs, as many as the web has, of which each stands there
/// in ten versions, make 1,350 of them.
const PAIRS: usize = 2_500;

/// All pairs of CAs that may sign in which one stands before the other, by their places among the entries; both ways round where the
/// order is not kept. Of thousands with one subject, or in thousands of pairs, only neighbours and the first are paired. `lists`: revocation
/// lists that stand elsewhere.
pub(super) fn pairs(text: &Text, lists: usize) -> Pairs {
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
                // One that may not sign takes nobody's clients, and has none of its own.
                if ![first, second].iter().all(|at| entries[**at].certificate.may_sign) {
                    continue;
                }
                pairs.push((*first, *second));
                if any_order {
                    pairs.push((*second, *first));
                }
            }
        }
    }
    Pairs { pairs, any_order }
}

/// Pairs of namesakes, which time does not change.
#[derive(Default)]
pub(super) struct Pairs {
    pairs: Vec<(usize, usize)>,
    any_order: bool,
}

impl Pairs {
    /// With the entries they are of.
    pub(super) fn of<'a>(&self, text: &'a Text) -> Vec<Namesakes<'a>> {
        let (entries, any_order) = (&text.bundle.entries, self.any_order);
        let namesakes =
            |&(first, second): &_| Namesakes { first: &entries[first], second: &entries[second], any_order };
        self.pairs.iter().map(namesakes).collect()
    }
}
