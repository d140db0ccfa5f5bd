//! What status tells of the certificates in use.

use jiff::Timestamp;

use crate::api::{Leaf, LeafKind, TrustAnchor};
use crate::registry::Entry;
use crate::trust::{Certificate, continuity};

/// A chain as status names it; `None` for an empty one.
pub(super) fn leaf(kind: LeafKind, entry: &Entry, name: &str, chain: &[Certificate]) -> Option<Leaf> {
    let leaf = chain.first()?;
    Some(Leaf {
        kind,
        namespace: entry.namespace.clone(),
        name: name.to_owned(),
        subject: leaf.subject.clone(),
        not_after: leaf.not_after,
        pem: chain.iter().map(Certificate::pem).collect(),
    })
}

/// The CAs that all those trust which verify the gateways now: others verify by other means, or not at all, and must not
/// hide what would part the rest. Of a CA that some hold renewed and others as it was, the certificate that ends first.
pub(super) fn common<'c>(
    trusts: impl Iterator<Item = &'c [Certificate]>,
    served: &[Certificate],
    now: Timestamp,
) -> Option<Vec<TrustAnchor>> {
    let works: Vec<_> = trusts.filter(|trust| continuity::verifies(trust, served, now)).collect();
    let (first, others) = works.split_first()?;
    let shared = |ca: &'c Certificate| -> Option<&'c Certificate> {
        if others.iter().all(|trust| trust.contains(ca)) {
            return Some(ca);
        }
        let newest = |trust: &&'c [Certificate]| {
            trust.iter().filter(|held| held.supersedes(ca)).max_by_key(|held| held.not_after)
        };
        let held: Option<Vec<_>> = works.iter().map(newest).collect();
        held?.into_iter().min_by_key(|held| held.not_after)
    };
    let mut common: Vec<&Certificate> = Vec::new();
    for ca in first.iter().filter_map(shared) {
        if !common.contains(&ca) {
            common.push(ca);
        }
    }
    Some(common.into_iter().map(TrustAnchor::from).collect())
}
