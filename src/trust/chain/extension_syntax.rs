//! The syntax of extensions, as far as BoringSSL decodes them: a malformed one makes it reject the certificate.

use std::collections::HashSet;

use super::general_name::general_names;
use crate::trust::der::{self, CONSTRUCTED, CONTEXT, Cbs, OBJECT, SEQUENCE};

/// `DisplayText` (RFC 5280 section 4.2.1.4): IA5, Visible, BMP and UTF-8.
const DISPLAY_TEXTS: [u32; 4] = [22, 26, 30, 12];
/// id-qt-cps and id-qt-unotice (1.3.6.1.5.5.7.2).
const QUALIFIER: [u8; 7] = [0x2b, 6, 1, 5, 5, 7, 2];

/// cRLDistributionPoints (RFC 5280 section 4.2.1.13), without the outer sequence.
pub(super) fn distribution_points(mut list: Cbs<'_>) -> Option<()> {
    while !list.0.is_empty() {
        let mut point = list.take(SEQUENCE, "").ok()?;
        if point.peek(CONTEXT | CONSTRUCTED) {
            let mut name = point.take(CONTEXT | CONSTRUCTED, "").ok()?;
            if name.peek(CONTEXT | CONSTRUCTED | 1) {
                let mut relative = Cbs(name.any()?.1);
                while !relative.0.is_empty() {
                    der::attribute(&mut relative).ok()?;
                }
            } else {
                general_names(name.take(CONTEXT | CONSTRUCTED, "").ok()?)?;
            }
            name.end("").ok()?;
        }
        if point.peek(CONTEXT | 1) {
            point.any().filter(|(_, reasons)| der::valid_bits(reasons))?;
        }
        if point.peek(CONTEXT | CONSTRUCTED | 2) {
            general_names(Cbs(point.any()?.1))?;
        }
        point.end("").ok()?;
    }
    Some(())
}

/// Whether certificatePolicies are well formed (`process_certificate_policies`, crypto/x509/policy.cc): at least one, each once.
pub(super) fn is_policies(value: &[u8]) -> bool {
    let policies = || {
        let mut outer = Cbs(value);
        let mut list = outer.take(SEQUENCE, "").ok()?;
        outer.end("").ok()?;
        let mut seen = HashSet::new();
        while !list.0.is_empty() {
            let mut policy = list.take(SEQUENCE, "").ok()?;
            let oid = policy.take(OBJECT, "").ok()?.0;
            der::object(oid).ok()?;
            if !policy.0.is_empty() {
                let mut qualifiers = policy.take(SEQUENCE, "").ok()?;
                while !qualifiers.0.is_empty() {
                    qualifier(qualifiers.take(SEQUENCE, "").ok()?)?;
                }
            }
            policy.end("").ok()?;
            if !seen.insert(oid) {
                return None;
            }
        }
        (!seen.is_empty()).then_some(())
    };
    policies().is_some()
}

fn qualifier(mut input: Cbs<'_>) -> Option<()> {
    let oid = input.take(OBJECT, "").ok()?.0;
    der::object(oid).ok()?;
    let (tag, value) = input.any()?;
    match oid.strip_prefix(&QUALIFIER) {
        Some([1]) if tag != 22 => return None,
        Some([2]) if tag != SEQUENCE => return None,
        Some([2]) => notice(Cbs(value))?,
        _ => {}
    }
    input.end("").ok()
}

/// UserNotice: a reference, if any, and a text, if any.
fn notice(mut input: Cbs<'_>) -> Option<()> {
    if input.peek(SEQUENCE) {
        let mut reference = input.take(SEQUENCE, "").ok()?;
        reference.any().filter(|(tag, _)| DISPLAY_TEXTS.contains(tag))?;
        let mut numbers = reference.take(SEQUENCE, "").ok()?;
        while !numbers.0.is_empty() {
            der::integer(&mut numbers, "").ok()?;
        }
        reference.end("").ok()?;
    }
    if !input.0.is_empty() {
        input.any().filter(|(tag, _)| DISPLAY_TEXTS.contains(tag))?;
    }
    input.end("").ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::fixtures::element;

    fn policy(rest: &[u8]) -> Vec<u8> {
        element(0x30, &[&[6, 3, 0x2a, 3, 4][..], rest].concat())
    }

    fn policies(of: &[Vec<u8>]) -> bool {
        is_policies(&element(0x30, &of.concat()))
    }

    #[test]
    fn accepts_policies_and_their_qualifiers() {
        let qualified = |last: u8, value: &[u8]| {
            let oid = element(6, &[&QUALIFIER[..], &[last]].concat());
            policy(&element(0x30, &element(0x30, &[oid, value.to_vec()].concat())))
        };
        let notice = element(0x30, &element(12, b"hello"));
        for one in [
            policy(&[]),
            policy(&[0x30, 0]),
            qualified(1, &[22, 1, b'x']),
            qualified(2, &notice),
            qualified(9, &[5, 0]),
        ] {
            assert!(policies(std::slice::from_ref(&one)), "{one:x?}");
        }
        for one in [qualified(1, &[2, 1, 1]), qualified(2, &[12, 1, b'x']), qualified(2, &element(0x30, &[2, 1, 1]))] {
            assert!(!policies(std::slice::from_ref(&one)), "{one:x?}");
        }
    }

    #[test]
    fn rejects_malformed_and_repeated_policies() {
        assert!(!policies(&[]) && !policies(&[policy(&[]), policy(&[])]));
        assert!(!is_policies(&[5, 0]) && !is_policies(&[&element(0x30, &policy(&[])), &[0][..]].concat()));
    }

    #[test]
    fn rejects_malformed_distribution_points() {
        let uri = [0x86, 1, b'x'];
        let full = element(0x30, &element(0xa0, &element(0xa0, &uri)));
        assert_eq!(distribution_points(Cbs(&full)), Some(()));
        assert_eq!(distribution_points(Cbs(&[0x30, 0])), Some(()));
        let misspelt = element(0x30, &element(0xa0, &element(0xa0, &[0xa6, 1, b'x'])));
        for wrong in [&[2, 1, 1][..], &misspelt, &element(0x30, &[0x87, 1, b'x'])] {
            assert_eq!(distribution_points(Cbs(wrong)), None, "{wrong:x?}");
        }
    }
}
