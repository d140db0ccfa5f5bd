//! The DER syntax of a revocation list, as strict as BoringSSL's `d2i_X509_CRL` (crypto/x509/x_crl.cc): one that it does not read makes a
//! proxy reject the whole update.

use super::{
    BIT_STRING, CONSTRUCTED, CONTEXT, Cbs, EXTENSIONS, INTEGER, Result, SEQUENCE, algorithm, bit_string, extensions,
    integer, name, valid_time,
};

const VERSION: &str = "its version is not 2";
const ENTRIES: &str = "an entry is malformed";
const DATES: &str = "a date is malformed";

/// Checks the first element of `der` as a revocation list, and returns its bytes. The rest is ignored.
pub(crate) fn list(der: &[u8]) -> Result<&[u8]> {
    let mut input = Cbs(der);
    let mut list = input.take(SEQUENCE, "the list is not a DER sequence")?;
    let span = &der[..der.len() - input.0.len()];
    let mut body = list.take(SEQUENCE, "its body is not a DER sequence")?;
    algorithm(&mut list)?;
    bit_string(&mut list, BIT_STRING)?;
    list.end("bytes follow its signature")?;

    // RFC 5280 section 5.1.2.1: version 1 is the default and never written, and has no extensions.
    let is_v2 = body.peek(INTEGER);
    if is_v2 && integer(&mut body, VERSION)? != [1] {
        return Err(VERSION);
    }
    algorithm(&mut body)?;
    name(&mut body)?;
    time(&mut body)?;
    if is_time(&body) {
        time(&mut body)?;
    }
    if body.peek(SEQUENCE) {
        let mut entries = body.take(SEQUENCE, ENTRIES)?;
        while !entries.0.is_empty() {
            entry(entries.take(SEQUENCE, ENTRIES)?, is_v2)?;
        }
    }
    if is_v2 && body.peek(CONTEXT | CONSTRUCTED) {
        let mut wrapper = body.take(CONTEXT | CONSTRUCTED, EXTENSIONS)?;
        some_extensions(&mut wrapper)?;
        wrapper.end(EXTENSIONS)?;
    }
    body.end("it has fields that its version does not allow")?;
    Ok(span)
}

fn entry(mut entry: Cbs<'_>, is_v2: bool) -> Result<()> {
    integer(&mut entry, ENTRIES)?;
    time(&mut entry)?;
    if is_v2 && !entry.0.is_empty() {
        some_extensions(&mut entry)?;
    }
    entry.end(ENTRIES)
}

/// Extensions, at least one: DER omits an empty sequence.
fn some_extensions(input: &mut Cbs<'_>) -> Result<()> {
    if Cbs(input.0).take(SEQUENCE, EXTENSIONS)?.0.is_empty() {
        return Err(EXTENSIONS);
    }
    extensions(input)
}

fn is_time(input: &Cbs<'_>) -> bool {
    Cbs(input.0).any().is_some_and(|(tag, _)| matches!(tag, 23 | 24))
}

fn time(input: &mut Cbs<'_>) -> Result<()> {
    input.any().filter(|(tag, value)| valid_time(*tag, value)).map(|_| ()).ok_or(DATES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::fixtures::{ca, element};

    /// A list's parts: version, algorithm, issuer, dates, entries, extensions; then the outer algorithm and signature.
    fn parts() -> [Vec<u8>; 6] {
        [
            vec![2, 1, 1],
            vec![0x30, 3, 6, 1, 42],
            vec![0x30, 0],
            element(23, b"290101000000Z"),
            element(0x30, &element(0x30, &[&[2, 1, 7][..], &element(23, b"290101000000Z")].concat())),
            element(0xa0, &element(0x30, &element(0x30, &[6, 1, 42, 4, 1, 0]))),
        ]
    }

    fn built(parts: &[Vec<u8>]) -> Vec<u8> {
        element(0x30, &[element(0x30, &parts.concat()), vec![0x30, 3, 6, 1, 42], vec![3, 2, 0, 1]].concat())
    }

    fn with(at: usize, part: &[u8]) -> Result<()> {
        let mut parts = parts();
        parts[at] = part.to_vec();
        list(&built(&parts)).map(|_| ())
    }

    #[test]
    fn accepts_lists_of_both_versions_and_trailing_bytes() {
        let der = ca("one").crl_der(2029, 2031, &[]);
        assert_eq!(list(&[&der[..], b"more"].concat()), Ok(&der[..]));
        let parts = parts();
        assert!(list(&built(&parts)).is_ok());
        assert!(list(&built(&parts[1..5])).is_ok(), "version 1");
        assert!(list(&built(&parts[..4])).is_ok(), "no certificate is revoked");
        assert_eq!(with(4, &[]), Ok(()));
        assert_eq!(with(5, &[]), Ok(()));
    }

    #[test]
    fn rejects_lists_that_boringssl_does_not_read() {
        assert_eq!(with(0, &[2, 1, 0]), Err(VERSION));
        assert_eq!(with(0, &[2, 1, 2]), Err(VERSION));
        assert_eq!(with(3, &element(23, b"2901010000Z")), Err(DATES));
        assert_eq!(with(4, &element(0x30, &element(0x30, &[2, 1, 7]))), Err(DATES));
        assert_eq!(with(5, &element(0xa0, &[0x30, 0])), Err(EXTENSIONS));
        assert!(with(5, &[5, 0]).is_err());
        assert!(list(&built(&parts()[1..])).is_err(), "version 1 with extensions");
        assert!(list(b"").is_err());
    }

    #[test]
    fn rejects_cut_lists_without_panic() {
        let der = ca("one").crl_der(2029, 2031, &[]);
        for end in 0..der.len() {
            assert!(list(&der[..end]).is_err(), "cut at {end}");
        }
    }
}
