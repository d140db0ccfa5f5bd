//! Client certificates that every bundle accepts or refuses together, so that a status stores one for many (ADR 0014).

use super::Certificate;
use super::der::{CONSTRUCTED, CONTEXT, Cbs, OBJECT, SEQUENCE};

const SUBJECT_KEY_ID: [u8; 3] = [0x55, 0x1d, 0x0e];
const ALT_NAMES: [u8; 3] = [0x55, 0x1d, 0x11];
const AUTHORITY_KEY_ID: [u8; 3] = [0x55, 0x1d, 0x23];
const NAME_CONSTRAINTS: [u8; 3] = [0x55, 0x1d, 0x1e];

/// The parts of a client's chain that path validation reads before it verifies a signature: all but the leaf's serial number, dates,
/// key bits and subject key identifier, and, unless `by_names`, its subject and alternative names, which only name constraints read.
/// Chains with the same key, signed by the same CA, are accepted and refused together. `None` for an empty or
/// malformed chain.
pub(crate) fn equivalence_key(chain: &[Certificate], by_names: bool) -> Option<Vec<u8>> {
    let (leaf, others) = chain.split_first()?;
    let mut certificate = Cbs(&leaf.der).take(SEQUENCE, "").ok()?;
    let mut body = certificate.take(SEQUENCE, "").ok()?;
    let mut key = Vec::new();
    let mut add = |part: &[u8]| {
        key.extend(part.len().to_be_bytes());
        key.extend_from_slice(part);
    };
    add(certificate.any()?.1);
    if body.peek(CONTEXT | CONSTRUCTED) {
        add(body.any()?.1);
    }
    let (_serial, algorithm, issuer) = (body.any()?, body.any()?, body.any()?);
    add(algorithm.1);
    add(issuer.1);
    let (_validity, subject) = (body.any()?, body.any()?);
    add(if by_names || subject.1.is_empty() { subject.1 } else { b"a subject" });
    let mut public_key = body.take(SEQUENCE, "").ok()?;
    add(public_key.any()?.1);
    add(&public_key.any()?.1.len().to_be_bytes());
    while let Some((tag, content)) = body.any() {
        add(&tag.to_be_bytes());
        if tag != CONTEXT | CONSTRUCTED | 3 {
            add(content);
            continue;
        }
        for (oid, extension) in extensions(content)? {
            let is_own = oid == SUBJECT_KEY_ID || oid == ALT_NAMES && !by_names;
            add(if is_own { oid } else { extension });
        }
    }
    body.end("").ok()?;
    others.iter().for_each(|other| add(other.fingerprint.as_bytes()));
    Some(key)
}

/// Whether two chains are accepted and refused together by bundles without name constraints.
pub(crate) fn are_equivalent(one: &[Certificate], other: &[Certificate]) -> bool {
    equivalence_key(one, false).is_some_and(|key| equivalence_key(other, false) == Some(key))
}

/// Whether a CA has name constraints, or extensions that cannot be read.
pub(crate) fn constrains_names(ca: &Certificate) -> bool {
    let oids = || {
        let mut body = Cbs(&ca.der).take(SEQUENCE, "").ok()?.take(SEQUENCE, "").ok()?;
        let mut found = false;
        while let Some((tag, content)) = body.any() {
            if tag == CONTEXT | CONSTRUCTED | 3 {
                found |= extensions(content)?.iter().any(|(oid, _)| *oid == NAME_CONSTRAINTS);
            }
        }
        Some(found)
    };
    oids().unwrap_or(true)
}

/// Whether two certificates are of one CA and verify the same certificates while they are valid, apart from those that name the serial number of one:
/// they have one issuer, too, since the path goes on to that, and the same trust settings. The authority key identifier does not count.
pub(super) fn verify_the_same(one: &Certificate, other: &Certificate) -> bool {
    let of = |certificate: &Certificate| {
        let mut body = Cbs(&certificate.der).take(SEQUENCE, "").ok()?.take(SEQUENCE, "").ok()?;
        let mut found = Vec::new();
        while let Some((tag, content)) = body.any() {
            if tag == CONTEXT | CONSTRUCTED | 3 {
                let all = extensions(content)?.into_iter().filter(|(oid, _)| *oid != AUTHORITY_KEY_ID);
                found.extend(all.map(|(_, extension)| extension.to_vec()));
            }
        }
        found.sort();
        Some(found)
    };
    let have_one_use = one.issuer_der == other.issuer_der && one.trusts_clients == other.trusts_clients;
    one.supersedes(other) && have_one_use && of(one).is_some_and(|own| of(other) == Some(own))
}

/// The object identifier and the whole of each extension.
fn extensions(content: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut list = Cbs(content).take(SEQUENCE, "").ok()?;
    let mut extensions = Vec::new();
    while let Some((_, extension)) = list.any() {
        extensions.push((Cbs(extension).take(OBJECT, "").ok()?.0, extension));
    }
    Some(extensions)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rcgen::{ExtendedKeyUsagePurpose, GeneralSubtree, NameConstraints};

    use super::*;
    use crate::trust::fixtures::{Authority, ca, ca_with, parsed};

    fn key(authority: &Authority, name: &str, by_names: bool) -> Vec<u8> {
        equivalence_key(&[parsed(authority.leaf(name).der())], by_names).unwrap()
    }

    #[test]
    fn leaves_of_one_ca_that_differ_in_names_and_keys_are_equivalent() {
        let one = ca("one");
        assert_eq!(key(&one, "payments", false), key(&one, "checkout", false));
        assert_ne!(key(&one, "payments", true), key(&one, "checkout", true));
        assert_eq!(key(&one, "payments", true), key(&one, "payments", true), "keys and serial numbers do not count");
    }

    #[test]
    fn leaves_that_differ_in_anything_else_are_not() {
        let (one, two) = (ca("one"), ca("two"));
        let plain = key(&one, "payments", false);
        assert_ne!(plain, key(&two, "payments", false), "issuer");
        let with = |change: fn(&mut rcgen::CertificateParams)| {
            equivalence_key(&[parsed(one.leaf_with("payments", change).der())], false).unwrap()
        };
        let for_servers = with(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]);
        let with_authority = with(|params| params.use_authority_key_identifier_extension = true);
        let rsa = equivalence_key(&[parsed(one.rsa_leaf("payments").der())], false).unwrap();
        for (what, other) in [("usage", for_servers), ("authority", with_authority), ("key", rsa)] {
            assert_ne!(plain, other, "{what}");
        }
        let leaf = parsed(one.leaf("payments").der());
        assert_ne!(plain, equivalence_key(&[leaf, parsed(one.der())], false).unwrap(), "chain");
        assert_eq!(equivalence_key(&[], false), None);
    }

    #[test]
    fn finds_name_constraints() {
        let limited = ca_with("limited", |params| {
            let permitted_subtrees = vec![GeneralSubtree::DnsName("example.com".to_owned())];
            params.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
        });
        assert!(constrains_names(&parsed(limited.der())));
        assert!(!constrains_names(&parsed(ca("free").der())));
    }
}
