//! The certificates in use, for the status.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::api::{Leaf, LeafKind, TrustAnchor};
use crate::connectivity;
use crate::registry::Entry;
use crate::trust::Certificate;
use crate::trust::equivalence::{constrains_names, equivalence_key};

/// A chain as an entry of the status; `None` for an empty chain.
pub(super) fn leaf(kind: LeafKind, entry: &Entry, name: &str, chain: &[Certificate]) -> Option<Leaf> {
    let leaf = chain.first()?;
    Some(Leaf {
        kind,
        namespace: entry.namespace.clone(),
        name: name.to_owned(),
        subject: leaf.subject.clone(),
        not_after: leaf.not_after,
        pem: chain.iter().map(Certificate::pem).collect(),
        others: Vec::new(),
        same_names: false,
    })
}

/// A client's name, and the chain that it presents.
type Presented<'v> = (&'v str, &'v [Certificate]);

/// The clients' certificates for the status, from names and chains. All certificates with the same verdicts are
/// grouped that were issued for a similar time, and the one that expires last represents them. `known` are the CAs of gateways and clients. Each CA alone
/// accepts all certificates of a group, or none, so a group has one issuer. If a CA has name constraints, the
/// certificates of a group also have the same names.
pub(super) fn client_leaves<'v>(
    entry: &Entry,
    in_use: impl IntoIterator<Item = Presented<'v>>,
    known: &[Certificate],
    now: Timestamp,
) -> Vec<Leaf> {
    let is_constrained = known.iter().any(constrains_names);
    let mut groups: BTreeMap<(bool, Vec<u8>), Vec<Presented<'_>>> = BTreeMap::new();
    for (name, chain) in in_use {
        let Some((first, above)) = chain.split_first() else { continue };
        let by_names = is_constrained || above.iter().any(constrains_names);
        // Only ordinary certificates are grouped. Verdicts on others can differ later: they are not valid yet, or are
        // trusted themselves.
        let is_ordinary = !first.is_not_yet_valid(now) && !known.contains(first);
        let key = equivalence_key(chain, by_names).filter(|_| is_ordinary).map(|mut key| {
            key.extend(known.iter().map(|ca| u8::from(connectivity::admits(std::slice::from_ref(ca), chain, now))));
            // The one that expires last must not make the others count for much longer than they last.
            let lifetime = first.not_after.duration_since(first.not_before).as_secs().max(1);
            key.push(u8::try_from(lifetime.ilog2()).unwrap_or(u8::MAX));
            (by_names, key)
        });
        let alone = || (true, format!("{name} {}", first.fingerprint).into_bytes());
        groups.entry(key.unwrap_or_else(alone)).or_default().push((name, chain));
    }
    let one = |((same_names, _), members): ((bool, Vec<u8>), Vec<Presented<'_>>)| {
        let (name, chain) = members.iter().rev().max_by_key(|(_, chain)| chain.first().map(|leaf| leaf.not_after))?;
        let others: BTreeSet<_> = members.iter().map(|(other, _)| *other).filter(|other| other != name).collect();
        let leaf = leaf(LeafKind::Client, entry, name, chain)?;
        let others: Vec<_> = others.into_iter().map(str::to_owned).collect();
        Some(Leaf { same_names: same_names && !others.is_empty(), others, ..leaf })
    };
    groups.into_iter().filter_map(one).collect()
}

/// The CAs that all clients trust which verify the gateways now. Other clients are ignored, since they verify gateways
/// in another way or not at all. If some clients have a renewed certificate of a CA and others the earlier one, the
/// result has the one that expires first.
pub(super) fn common<'c>(
    trusts: impl Iterator<Item = &'c [Certificate]>,
    served: &[Certificate],
    now: Timestamp,
) -> Option<Vec<TrustAnchor>> {
    let works: Vec<_> = trusts.filter(|trust| connectivity::verifies(trust, served, now)).collect();
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
