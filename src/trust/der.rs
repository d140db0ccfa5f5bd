//! The shape of a certificate's DER, as strict as BoringSSL's `X509_parse` and no stricter on purpose.
//!
//! x509-parser reads the fields, but lets trailing elements, lengths and versions pass that BoringSSL refuses; one such
//! certificate makes a proxy reject the whole bundle. Times are left to x509-parser.

const SEQUENCE: u32 = 0x2000_0010;
const SET: u32 = 0x2000_0011;
const INTEGER: u32 = 2;
const BIT_STRING: u32 = 3;
const OCTET_STRING: u32 = 4;
const OBJECT: u32 = 6;
const BOOLEAN: u32 = 1;
const CONTEXT: u32 = 0x8000_0000;
const CONSTRUCTED: u32 = 0x2000_0000;

type Result<T> = std::result::Result<T, &'static str>;

/// Checks the first element of `der` as a certificate, and returns the bytes that it spans.
pub(crate) fn certificate(der: &[u8]) -> Result<&[u8]> {
    let mut input = Cbs(der);
    let mut cert = input.take(SEQUENCE, "the certificate is no DER sequence")?;
    let span = &der[..der.len() - input.0.len()];
    let mut tbs = cert.take(SEQUENCE, "its body is no DER sequence")?;
    algorithm(&mut cert)?;
    bit_string(&mut cert, BIT_STRING)?;
    cert.end("bytes follow its signature")?;

    let version = if tbs.peek(CONTEXT | CONSTRUCTED) {
        let mut wrapper = tbs.take(CONTEXT | CONSTRUCTED, "its version is malformed")?;
        let version = integer(&mut wrapper, "its version is malformed")?;
        wrapper.end("its version is malformed")?;
        match version {
            [v @ 0..=2] => *v,
            _ => return Err("its version is none of 1, 2 and 3"),
        }
    } else {
        0
    };
    integer(&mut tbs, "its serial number is malformed")?;
    algorithm(&mut tbs)?;
    name(&mut tbs)?;
    tbs.take(SEQUENCE, "its validity is malformed")?;
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
        let mut list = wrapper.take(SEQUENCE, EXTENSIONS)?;
        wrapper.end(EXTENSIONS)?;
        while !list.0.is_empty() {
            let mut extension = list.take(SEQUENCE, EXTENSIONS)?;
            object(extension.take(OBJECT, EXTENSIONS)?.0)?;
            if extension.peek(BOOLEAN) && !matches!(extension.take(BOOLEAN, EXTENSIONS)?.0, [0 | 0xff]) {
                return Err(EXTENSIONS);
            }
            extension.take(OCTET_STRING, EXTENSIONS)?;
            extension.end(EXTENSIONS)?;
        }
    }
    // RFC 5280 section 4.1.2.9: extensions need version 3; an older certificate with them ends here.
    tbs.end("fields follow that its version does not have")?;
    Ok(span)
}

const EXTENSIONS: &str = "its extensions are malformed";

/// Whether the bytes that follow a certificate could be OpenSSL's trust settings (`X509_CERT_AUX`).
pub(crate) fn is_aux(trailing: &[u8]) -> bool {
    Cbs(trailing).take(SEQUENCE, "").is_ok()
}

fn algorithm(input: &mut Cbs<'_>) -> Result<()> {
    const WHAT: &str = "an algorithm identifier is malformed";
    let mut inner = input.take(SEQUENCE, WHAT)?;
    object(inner.take(OBJECT, WHAT)?.0)?;
    if !inner.0.is_empty() {
        inner.any().ok_or(WHAT)?;
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
            let mut entry = rdn.take(SEQUENCE, WHAT)?;
            object(entry.take(OBJECT, WHAT)?.0)?;
            let (tag, value) = entry.any().ok_or(WHAT)?;
            if !name_value(tag, value) {
                return Err("a name holds a malformed string");
            }
            entry.end(WHAT)?;
        }
    }
    Ok(())
}

/// BoringSSL decodes names when it loads a certificate, to compare them in a canonical form.
fn name_value(tag: u32, value: &[u8]) -> bool {
    match tag {
        12 => std::str::from_utf8(value).is_ok(),
        28 => {
            let (chunks, rest) = value.as_chunks::<4>();
            rest.is_empty() && chunks.iter().all(|c| char::from_u32(u32::from_be_bytes(*c)).is_some())
        }
        30 => {
            // UCS-2: surrogates are no characters.
            let (chunks, rest) = value.as_chunks::<2>();
            rest.is_empty() && chunks.iter().all(|c| char::from_u32(u32::from(u16::from_be_bytes(*c))).is_some())
        }
        1 => matches!(value, [0 | 0xff]),
        2 | 10 => valid_integer(value),
        3 => valid_bits(value),
        5 => value.is_empty(),
        6 => object(value).is_ok(),
        0x2000_0008 | 0x2000_000B | SEQUENCE | SET | 0x2000_001D => true,
        8 | 11 | 16 | 17 | 29 => false,
        t if t & 0xC000_0000 == 0 && t & CONSTRUCTED != 0 => false,
        t => t & 0xC000_0000 != 0 || t <= 255,
    }
}

fn integer<'a>(input: &mut Cbs<'a>, what: &'static str) -> Result<&'a [u8]> {
    let value = input.take(INTEGER, what)?.0;
    if valid_integer(value) { Ok(value) } else { Err(what) }
}

fn valid_integer(value: &[u8]) -> bool {
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

fn valid_bits(value: &[u8]) -> bool {
    match value {
        [0] => true,
        [unused @ 0..=7, .., last] => *last & ((1 << *unused) - 1) as u8 == 0,
        _ => false,
    }
}

fn object(value: &[u8]) -> Result<()> {
    const WHAT: &str = "an object identifier is malformed";
    let mut arc = 0_u64;
    let mut starts = true;
    for byte in value {
        if (starts && *byte == 0x80) || arc > u64::MAX >> 7 {
            return Err(WHAT);
        }
        arc = arc << 7 | u64::from(byte & 0x7f);
        starts = byte & 0x80 == 0;
        if starts {
            arc = 0;
        }
    }
    if starts && !value.is_empty() { Ok(()) } else { Err(WHAT) }
}

/// What BoringSSL calls a CBS: a byte string that elements are taken from.
struct Cbs<'a>(&'a [u8]);

impl<'a> Cbs<'a> {
    fn take(&mut self, tag: u32, what: &'static str) -> Result<Cbs<'a>> {
        match self.any() {
            Some((found, body)) if found == tag => Ok(Cbs(body)),
            _ => Err(what),
        }
    }

    fn peek(&self, tag: u32) -> bool {
        Cbs(self.0).tag().is_some_and(|found| found == tag)
    }

    fn end(&self, what: &'static str) -> Result<()> {
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

    /// The next element: definite and minimal length only.
    fn any(&mut self) -> Option<(u32, &'a [u8])> {
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
