//! The DER syntax of a certificate, as strict as BoringSSL's `X509_parse`, except where noted.
//!
//! x509-parser reads the fields, but accepts trailing elements, lengths and versions that BoringSSL rejects; one such certificate makes
//! a proxy reject the whole bundle.

mod list;
mod time;

pub(crate) use list::list;
use time::{has_offset, valid_time};

pub(super) const SEQUENCE: u32 = 0x2000_0010;
pub(super) const SET: u32 = 0x2000_0011;
pub(super) const INTEGER: u32 = 2;
pub(super) const BIT_STRING: u32 = 3;
pub(super) const OCTET_STRING: u32 = 4;
pub(super) const OBJECT: u32 = 6;
pub(super) const BOOLEAN: u32 = 1;
const UTF8_STRING: u32 = 12;
pub(super) const CONTEXT: u32 = 0x8000_0000;
pub(super) const CONSTRUCTED: u32 = 0x2000_0000;

pub(super) type Result<T> = std::result::Result<T, &'static str>;

/// Checks the first element of `der` as a certificate, and returns its bytes.
pub(crate) fn certificate(der: &[u8]) -> Result<&[u8]> {
    let mut input = Cbs(der);
    let mut cert = input.take(SEQUENCE, "the content is not a DER sequence")?;
    let span = &der[..der.len() - input.0.len()];
    let mut tbs = cert.take(SEQUENCE, "its body is not a DER sequence")?;
    algorithm(&mut cert)?;
    let signature = cert.0;
    // Stricter than BoringSSL, which accepts any length here: other readers of the bundle enforce X.690 section 10.1.
    bit_string(&mut cert, BIT_STRING)
        .map_err(|what| if has_long_length(signature) { SIGNATURE_LENGTH } else { what })?;
    cert.end("bytes follow its signature")?;

    let version = if tbs.peek(CONTEXT | CONSTRUCTED) {
        let mut wrapper = tbs.take(CONTEXT | CONSTRUCTED, "its version is malformed")?;
        let version = integer(&mut wrapper, "its version is malformed")?;
        wrapper.end("its version is malformed")?;
        match version {
            [v @ 0..=2] => *v,
            _ => return Err("its version is not 1, 2 or 3"),
        }
    } else {
        0
    };
    integer(&mut tbs, "its serial number is malformed")?;
    algorithm(&mut tbs)?;
    name(&mut tbs)?;
    let mut validity = tbs.take(SEQUENCE, "its validity is malformed")?;
    for _ in 0..2 {
        let (tag, value) = validity.any().ok_or(DATE)?;
        if !valid_time(tag, value) {
            // Stricter than BoringSSL, which loads an offset, but refuses the CA's clients, and serves the leaf (measured).
            return Err(if has_offset(tag, value) { OFFSET } else { DATE });
        }
    }
    validity.end("its validity is malformed")?;
    name(&mut tbs)?;
    let mut key = tbs.take(SEQUENCE, "its public key is malformed")?;
    algorithm(&mut key)?;
    bit_string(&mut key, BIT_STRING)?;
    key.end("its public key is malformed")?;
    for number in [1, 2] {
        if version >= 1 && tbs.peek(CONTEXT | number) {
            bit_string(&mut tbs, CONTEXT | number)?;
        }
    }
    if version == 2 && tbs.peek(CONTEXT | CONSTRUCTED | 3) {
        let mut wrapper = tbs.take(CONTEXT | CONSTRUCTED | 3, EXTENSIONS)?;
        extensions(&mut wrapper)?;
        wrapper.end(EXTENSIONS)?;
    }
    // RFC 5280 section 4.1.2.9: extensions need version 3; an older certificate with them ends here.
    tbs.end("it has fields that its version does not allow")?;
    Ok(span)
}

const SIGNATURE_LENGTH: &str = "the length of its signature is not minimal";
const DATE: &str = "a validity date is malformed";
const OFFSET: &str = "a validity date has an offset instead of Z";

/// A sequence of extensions.
fn extensions(input: &mut Cbs<'_>) -> Result<()> {
    let mut list = input.take(SEQUENCE, EXTENSIONS)?;
    while !list.0.is_empty() {
        let mut extension = list.take(SEQUENCE, EXTENSIONS)?;
        object(extension.take(OBJECT, EXTENSIONS)?.0)?;
        if extension.peek(BOOLEAN) && !matches!(extension.take(BOOLEAN, EXTENSIONS)?.0, [0 | 0xff]) {
            // Stricter than BoringSSL, which accepts any value (measured): other readers of the bundle enforce X.690 section 11.1.
            return Err(CRITICALITY);
        }
        extension.take(OCTET_STRING, EXTENSIONS)?;
        extension.end(EXTENSIONS)?;
    }
    Ok(())
}

const EXTENSIONS: &str = "its extensions are malformed";
const CRITICALITY: &str = "the criticality of an extension is neither 00 nor FF";

/// Whether the bytes that follow a certificate could be OpenSSL's trust settings (`X509_CERT_AUX`).
pub(crate) fn is_aux(trailing: &[u8]) -> bool {
    let Ok(mut aux) = Cbs(trailing).take(SEQUENCE, "") else { return false };
    // Trusted purposes, rejected purposes, alias, key id, other; all optional.
    for tag in [SEQUENCE, CONTEXT | CONSTRUCTED, UTF8_STRING, OCTET_STRING, CONTEXT | CONSTRUCTED | 1] {
        if aux.peek(tag) && aux.any().is_none() {
            return false;
        }
    }
    aux.0.is_empty()
}

/// id-kp-clientAuth (RFC 5280 section 4.2.1.12).
const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];

/// What OpenSSL's trust settings say about clients: Envoy refuses every client of a CA that rejects them, and reads no setting further up if one
/// trusts them (`X509_check_trust`, measured). Other purposes change nothing.
pub(crate) fn trusts_clients(aux: &[u8]) -> Option<bool> {
    let mut settings = Cbs(aux).take(SEQUENCE, "").ok()?;
    let mut names_clients = |tag| {
        let purposes = settings.peek(tag).then(|| settings.take(tag, "").ok()).flatten();
        purposes.is_some_and(|purposes| purposes.contains(CLIENT_AUTH))
    };
    let (trusts, rejects) = (names_clients(SEQUENCE), names_clients(CONTEXT | CONSTRUCTED));
    (trusts || rejects).then_some(!rejects)
}

/// The tag of a RELATIVE-OID, which the BoringSSL of Envoy 1.40 takes with any content, and a newer one does not.
const RELATIVE_OID: u32 = 13;

const MALFORMED_RELATIVE_OID: &str = "a RELATIVE-OID is malformed";

fn algorithm(input: &mut Cbs<'_>) -> Result<()> {
    const WHAT: &str = "an algorithm identifier is malformed";
    let mut inner = input.take(SEQUENCE, WHAT)?;
    object(inner.take(OBJECT, WHAT)?.0)?;
    if !inner.0.is_empty() {
        let (tag, value) = inner.any().ok_or(WHAT)?;
        if !valid_value(tag, value) {
            return Err(if tag == RELATIVE_OID { MALFORMED_RELATIVE_OID } else { WHAT });
        }
    }
    inner.end(WHAT)
}

fn name(input: &mut Cbs<'_>) -> Result<()> {
    const WHAT: &str = "a name is malformed";
    let mut names = input.take(SEQUENCE, WHAT)?;
    while !names.0.is_empty() {
        let mut rdn = names.take(SET, WHAT)?;
        if rdn.0.is_empty() {
            return Err(WHAT);
        }
        while !rdn.0.is_empty() {
            attribute(&mut rdn)?;
        }
    }
    Ok(())
}

/// An attribute of a name.
pub(super) fn attribute(rdn: &mut Cbs<'_>) -> Result<()> {
    const WHAT: &str = "a name is malformed";
    let mut entry = rdn.take(SEQUENCE, WHAT)?;
    object(entry.take(OBJECT, WHAT)?.0)?;
    let (tag, value) = entry.any().ok_or(WHAT)?;
    if !valid_value(tag, value) {
        return Err(if tag == RELATIVE_OID { MALFORMED_RELATIVE_OID } else { "a name has a malformed string" });
    }
    entry.end(WHAT)
}

/// Whether these bytes are a name and nothing else.
pub(super) fn is_name(der: &[u8]) -> bool {
    let mut input = Cbs(der);
    name(&mut input).is_ok() && input.0.is_empty()
}

/// Whether a value of any type is valid in a name or in an algorithm's parameters (BoringSSL: `asn1_parse_any`). BoringSSL decodes names
/// when it loads a certificate, to compare them in a canonical form.
pub(super) fn valid_value(tag: u32, value: &[u8]) -> bool {
    match tag {
        UTF8_STRING => std::str::from_utf8(value).is_ok_and(|text| text.chars().all(|c| character(c.into()).is_some())),
        28 => {
            let (chunks, rest) = value.as_chunks::<4>();
            rest.is_empty() && chunks.iter().all(|c| character(u32::from_be_bytes(*c)).is_some())
        }
        30 => {
            let (chunks, rest) = value.as_chunks::<2>();
            rest.is_empty() && chunks.iter().all(|c| character(u32::from(u16::from_be_bytes(*c))).is_some())
        }
        1 => matches!(value, [0 | 0xff]),
        2 | 10 => valid_integer(value),
        3 => valid_bits(value),
        5 => value.is_empty(),
        // An OBJECT IDENTIFIER.
        6 | RELATIVE_OID => object(value).is_ok(),
        23 | 24 => valid_time(tag, value) || has_offset(tag, value),
        0x2000_0008 | 0x2000_000B | SEQUENCE | SET | 0x2000_001D => true,
        8 | 11 | 16 | 17 | 29 => false,
        t if t & 0xC000_0000 == 0 && t & CONSTRUCTED != 0 => false,
        t => t & 0xC000_0000 != 0 || t <= 255,
    }
}

/// A character of a name: no surrogate, and none of Unicode's noncharacters (section 23.7), which most other readers accept (measured).
fn character(code: u32) -> Option<char> {
    char::from_u32(code).filter(|_| code & 0xfffe != 0xfffe && !(0xfdd0..=0xfdef).contains(&code))
}

pub(super) fn integer<'a>(input: &mut Cbs<'a>, what: &'static str) -> Result<&'a [u8]> {
    let value = input.take(INTEGER, what)?.0;
    if valid_integer(value) { Ok(value) } else { Err(what) }
}

pub(super) fn valid_integer(value: &[u8]) -> bool {
    match value {
        [] => false,
        [0, next, ..] if *next < 0x80 => false,
        [0xff, next, ..] if *next >= 0x80 => false,
        _ => true,
    }
}

fn bit_string(input: &mut Cbs<'_>, tag: u32) -> Result<()> {
    const WHAT: &str = "a bit string is malformed";
    if valid_bits(input.take(tag, WHAT)?.0) { Ok(()) } else { Err(WHAT) }
}

/// Whether an element's length has more octets than it needs.
fn has_long_length(element: &[u8]) -> bool {
    match element {
        [_, 0x81, length, ..] => *length < 0x80,
        [_, 0x82..=0x84, first, ..] => *first == 0,
        _ => false,
    }
}

pub(super) fn valid_bits(value: &[u8]) -> bool {
    match value {
        [0] => true,
        [unused @ 0..=7, .., last] => *last & ((1 << *unused) - 1) as u8 == 0,
        _ => false,
    }
}

pub(super) fn object(value: &[u8]) -> Result<()> {
    const WHAT: &str = "an object identifier is malformed";
    // An arc may have any length: that of a UUID, below 2.25, has 128 bits.
    let mut starts = true;
    for byte in value {
        if starts && *byte == 0x80 {
            return Err(WHAT);
        }
        starts = byte & 0x80 == 0;
    }
    if starts && !value.is_empty() { Ok(()) } else { Err(WHAT) }
}

/// A byte string that elements are read from, as BoringSSL's `CBS`.
pub(super) struct Cbs<'a>(pub(super) &'a [u8]);

impl<'a> Cbs<'a> {
    pub(super) fn take(&mut self, tag: u32, what: &'static str) -> Result<Cbs<'a>> {
        match self.any() {
            Some((found, body)) if found == tag => Ok(Cbs(body)),
            _ => Err(what),
        }
    }

    pub(super) fn peek(&self, tag: u32) -> bool {
        Cbs(self.0).tag().is_some_and(|found| found == tag)
    }

    pub(super) fn end(&self, what: &'static str) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(what) }
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Class and constructed bit in the top three bits, the number below, as `CBS_ASN1_TAG`.
    fn tag(&mut self) -> Option<u32> {
        let first = self.byte()?;
        let mut number = u32::from(first & 0x1f);
        if number == 0x1f {
            let mut long = 0_u32;
            loop {
                let byte = self.byte()?;
                if (long == 0 && byte == 0x80) || long > u32::MAX >> 7 {
                    return None;
                }
                long = long << 7 | u32::from(byte & 0x7f);
                if byte & 0x80 == 0 {
                    break;
                }
            }
            if !(0x1f..=0x1fff_ffff).contains(&long) {
                return None;
            }
            number = long;
        }
        let tag = u32::from(first & 0xe0) << 24 | number;
        // Universal tag 0 marks the end of BER's indefinite lengths.
        (tag & !CONSTRUCTED != 0).then_some(tag)
    }

    /// Whether one of the elements has this content, up to the first that cannot be read.
    pub(super) fn contains(mut self, content: &[u8]) -> bool {
        std::iter::from_fn(|| self.any()).any(|(_, other)| other == content)
    }

    /// The next element: definite and minimal length only.
    pub(super) fn any(&mut self) -> Option<(u32, &'a [u8])> {
        let tag = self.tag()?;
        let first = usize::from(self.byte()?);
        let length = if first < 0x80 {
            first
        } else {
            let count = first & 0x7f;
            if count == 0 || count > 4 {
                return None;
            }
            let mut length = 0_usize;
            for _ in 0..count {
                length = length << 8 | usize::from(self.byte()?);
            }
            if length < 0x80 || length >> ((count - 1) * 8) == 0 {
                return None;
            }
            length
        };
        let (body, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::fixtures::ca;

    fn replaced(from: &[u8], to: &[u8]) -> Result<()> {
        let mut der = ca("Q").der().to_vec();
        let at = der.windows(from.len()).position(|w| w == from).expect("the bytes are there");
        der[at..at + to.len()].copy_from_slice(to);
        certificate(&der).map(|_| ())
    }

    const COMMON_NAME: &[u8] = &[0x55, 4, 3, 12, 1, b'Q'];
    const VERSION: &[u8] = &[0xa0, 3, 2, 1, 2];

    #[test]
    fn accepts_certificates_of_other_strings() {
        assert_eq!(replaced(COMMON_NAME, COMMON_NAME), Ok(()));
        for tag in [18, 19, 20, 22, 26] {
            assert_eq!(replaced(COMMON_NAME, &[0x55, 4, 3, tag, 1, b'Q']), Ok(()), "{tag}");
        }
    }

    #[test]
    fn rejects_certificates_that_boringssl_does_not_read() {
        for value in [[12, 1, 0xff], [30, 1, b'Q'], [28, 1, b'Q'], [48 - 32, 1, b'Q'], [5, 1, b'Q'], [1, 1, b'Q']] {
            assert!(replaced(COMMON_NAME, &[&COMMON_NAME[..3], &value[..]].concat()).is_err(), "{value:?}");
        }
        // RFC 5280 section 4.1.2.9: version 1 has no extensions; there is no version 4.
        assert_eq!(replaced(VERSION, &[0xa0, 3, 2, 1, 0]), Err("it has fields that its version does not allow"));
        assert_eq!(replaced(VERSION, &[0xa0, 3, 2, 1, 3]), Err("its version is not 1, 2 or 3"));
    }

    #[test]
    fn names_a_signature_whose_length_is_not_minimal() {
        let algorithm = [0x30, 3, 6, 1, 42];
        let with = |signature: &[u8]| {
            let parts = [&[0x30, 0][..], &algorithm, signature].concat();
            certificate(&[&[0x30, parts.len() as u8][..], &parts].concat()).map(|_| ())
        };
        for signature in [&[3, 0x81, 2, 0, 1][..], &[3, 0x82, 0, 2, 0, 1]] {
            assert_eq!(with(signature), Err(SIGNATURE_LENGTH));
        }
        assert_eq!(with(&[3, 2, 8, 1]), Err("a bit string is malformed"));
        assert_ne!(with(&[3, 2, 0, 1]), Err(SIGNATURE_LENGTH));
    }

    #[test]
    fn rejects_lengths_that_are_not_minimal() {
        for (der, value) in [
            (&[4, 1, 7][..], Some((4, &[7][..]))),
            (&[4, 0x81, 1, 7], None),
            (&[4, 0x80, 7, 0, 0], None),
            (&[4, 0x85, 0, 0, 0, 0, 1, 7], None),
            (&[4, 2, 7], None),
            (&[0, 0], None),
            (&[0x1f, 0x1e, 0], None),
            (&[0x1f, 0x80, 0x1f, 0], None),
            (&[0x5f, 0x1f, 0], Some((0x4000_001f, &[]))),
            (&[], None),
        ] {
            assert_eq!(Cbs(der).any(), value, "{der:?}");
        }
    }

    #[test]
    fn rejects_invalid_characters() {
        // U+FFFE as BMPString, U+FFFF as UniversalString, U+FDD0 as UTF8String.
        for (tag, value) in [(30, &[0xff, 0xfe][..]), (28, &[0, 0, 0xff, 0xff]), (12, "\u{fdd0}".as_bytes())] {
            assert!(!valid_value(tag, value), "{tag}");
        }
        assert!(valid_value(30, &[0xff, 0xfd]) && valid_value(12, "\u{fdcf}".as_bytes()));
    }

    #[test]
    fn accepts_only_canonical_integers_bits_and_objects() {
        assert!(valid_integer(&[0]) && valid_integer(&[0, 0x80]) && valid_integer(&[0xff]));
        assert!(!valid_integer(&[]) && !valid_integer(&[0, 1]) && !valid_integer(&[0xff, 0x80]));
        assert!(valid_value(13, &[1]) && !valid_value(13, &[]) && !valid_value(13, &[0, 0x80]), "a RELATIVE-OID");
        assert!(valid_bits(&[0]) && valid_bits(&[7, 0x80]) && valid_bits(&[0, 1]));
        assert!(!valid_bits(&[]) && !valid_bits(&[1]) && !valid_bits(&[8, 0]) && !valid_bits(&[1, 1]));
        assert!(object(&[0x55, 4, 3]).is_ok() && object(&[0x88, 0x37]).is_ok());
        assert!(object(&[]).is_err() && object(&[0x80, 1]).is_err() && object(&[0x55, 0x84]).is_err());
        let uuid = [&[0x69, 0x83][..], &[0xff; 17], &[0x7f]].concat();
        assert!(object(&uuid).is_ok() && object(&[0xff; 12]).is_err());
    }
}
