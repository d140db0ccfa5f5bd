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
/// hide what would part the rest.
pub(super) fn common<'c>(
    trusts: impl Iterator<Item = &'c [Certificate]>,
    served: &[Certificate],
    now: Timestamp,
) -> Option<Vec<TrustAnchor>> {
    let works: Vec<_> = trusts.filter(|trust| continuity::verifies(trust, served, now)).collect();
    let (first, others) = works.split_first()?;
    Some(first.iter().filter(|ca| others.iter().all(|trust| trust.contains(ca))).map(TrustAnchor::from).collect())
}
