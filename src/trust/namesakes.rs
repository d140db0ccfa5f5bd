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

    /// Stays the same when lines move.
    pub(super) fn identity(&self) -> String {
        format!("{} {}", self.first.certificate.fingerprint, self.second.certificate.fingerprint)
    }
}

/// All pairs in which one stands before the other and may sign; both ways round where the order is not kept. Of thousands
/// with one subject only neighbours and the first are paired.
pub(super) fn pairs(text: &Text) -> Vec<Namesakes<'_>> {
    let entries = &text.bundle.entries;
    let mut places: HashMap<&str, &Entry> = HashMap::new();
    for entry in entries {
        places.entry(entry.certificate.fingerprint.as_str()).or_insert(entry);
    }
    let any_order = places.len() + text.bundle.crls.len() >= UNORDERED;
    let place = |certificate: &Certificate| places.get(certificate.fingerprint.as_str()).copied();
    let mut pairs = Vec::new();
    for group in same_subject(entries.iter().map(|entry| &entry.certificate)) {
        let group: Vec<_> = group.into_iter().filter_map(place).collect();
        let few = group.len() <= 32;
        for (at, second) in group.iter().enumerate() {
            for (before, first) in group[..at].iter().enumerate() {
                if !few && before > 0 && before + 1 < at {
                    continue;
                }
                let mut pair = |first, second| pairs.push(Namesakes { first, second, any_order });
                if first.certificate.may_sign {
                    pair(first, second);
                }
                if any_order && second.certificate.may_sign {
                    pair(second, first);
                }
            }
        }
    }
    pairs
}
