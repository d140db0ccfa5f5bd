//! Distinguished names, compared as by BoringSSL.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};

use crate::trust::certificate::sha256;
use crate::trust::der::{self, Cbs};

/// A name in the form that `X509_NAME_cmp` compares (crypto/x509/x_name.cc): strings become UTF-8 in ASCII lower
/// case, blanks are trimmed and collapsed. Without the outer sequence, so that a name constraint is a prefix of the names that it permits.
#[derive(Clone, Debug)]
pub(super) struct Name {
    canonical: Vec<u8>,
    /// SHA-256 of a long name, compared in its place: a hostile name has half a mebibyte, and thousands of certificates search for it.
    digest: Option<[u8; 32]>,
}

/// emailAddress (PKCS #9), 1.2.840.113549.1.9.1.
pub(super) const EMAIL_ADDRESS: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1];
const COMMON_NAME: [u8; 3] = [0x55, 4, 3];

/// The longest name that is compared byte by byte; real names are several times shorter.
const SHORT: usize = 1024;

impl Name {
    /// Reads a DER name; `None` if it is malformed.
    pub(super) fn read(der: &[u8]) -> Option<Self> {
        let mut names = Cbs(der).take(der::SEQUENCE, "").ok()?;
        let mut canonical = Vec::with_capacity(2 * der.len());
        let mut starts = Vec::new();
        while !names.0.is_empty() {
            let mut rdn = names.take(der::SET, "").ok()?;
            let set = begin(&mut canonical, der::SET);
            starts.clear();
            while !rdn.0.is_empty() {
                let (oid, tag, value) = attribute(&mut rdn)?;
                starts.push(canonical.len());
                push(&mut canonical, 6, oid);
                push_compared(&mut canonical, tag, value)?;
            }
            // DER orders the elements of a SET OF by their bytes.
            if starts.len() > 1 {
                let ends = starts[1..].iter().copied().chain([canonical.len()]);
                let mut entries: Vec<_> =
                    std::iter::zip(&starts, ends).map(|(from, to)| &canonical[*from..to]).collect();
                entries.sort_unstable();
                let sorted = entries.concat();
                canonical.truncate(set);
                canonical.extend(sorted);
            }
            end(&mut canonical, set);
        }
        let digest = (canonical.len() > SHORT).then(|| sha256(&canonical));
        Some(Self { canonical, digest })
    }

    /// Whether it is in the subtree of another.
    pub(super) fn is_below(&self, base: &Self) -> bool {
        self.canonical.starts_with(&base.canonical)
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        match (self.digest, other.digest) {
            (None, None) => self.canonical == other.canonical,
            (one, two) => one == two,
        }
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.digest {
            Some(digest) => digest.hash(state),
            None => self.canonical.hash(state),
        }
    }
}

/// The values of one attribute type in a DER name, with their tags.
pub(super) fn values<'a>(der: &'a [u8], wanted: &[u8]) -> Vec<(u32, &'a [u8])> {
    let entries = sets(der).into_iter().flatten().flatten().flatten();
    entries.filter(|(oid, ..)| *oid == wanted).map(|(_, tag, value)| (tag, value)).collect()
}

/// How many attributes a DER name has.
pub(super) fn count(der: &[u8]) -> usize {
    sets(der).into_iter().flatten().flatten().map(|rdn| rdn.len()).sum()
}

/// The text of a string of any type that BoringSSL converts.
pub(super) fn text(tag: u32, value: &[u8]) -> Option<String> {
    decoded(tag, value).flatten()
}

/// Whether a common name could be taken for a host (`x509v3_looks_like_dns_name`); with name constraints on the path a
/// leaf without alternative names is then refused.
pub(super) fn has_host_like_common_name(subject: &[u8]) -> bool {
    let names = values(subject, &COMMON_NAME);
    names.into_iter().filter_map(|(tag, value)| text(tag, value)).any(|text| resembles_host(&text))
}

fn resembles_host(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let text = text.strip_prefix("*.").unwrap_or(text);
    let label = |label: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ':');
        !label.is_empty() && !label.starts_with('-') && label.chars().all(known)
    };
    text.split('.').all(label)
}

type Attribute<'a> = (&'a [u8], u32, &'a [u8]);

fn sets(der: &[u8]) -> Option<Vec<Option<Vec<Attribute<'_>>>>> {
    let mut names = Cbs(der).take(der::SEQUENCE, "").ok()?;
    let mut sets = Vec::new();
    while !names.0.is_empty() {
        sets.push(attributes(names.take(der::SET, "").ok()?));
    }
    Some(sets)
}

fn attributes(mut rdn: Cbs<'_>) -> Option<Vec<Attribute<'_>>> {
    let mut attributes = Vec::new();
    while !rdn.0.is_empty() {
        attributes.push(attribute(&mut rdn)?);
    }
    Some(attributes)
}

fn attribute<'a>(rdn: &mut Cbs<'a>) -> Option<Attribute<'a>> {
    let mut entry = rdn.take(der::SEQUENCE, "").ok()?;
    let oid = entry.take(der::OBJECT, "").ok()?.0;
    let (tag, value) = entry.any()?;
    Some((oid, tag, value))
}

/// Tag, length and value. The length has a fixed width: only equality and prefixes matter.
fn push(out: &mut Vec<u8>, tag: u32, value: &[u8]) {
    let at = begin(out, tag);
    out.extend(value);
    end(out, at);
}

/// Begins a value of unknown length; returns its offset.
fn begin(out: &mut Vec<u8>, tag: u32) -> usize {
    out.extend(tag.to_be_bytes());
    out.extend(0_u64.to_be_bytes());
    out.len()
}

/// Ends it.
fn end(out: &mut [u8], at: usize) {
    let length = (out.len() - at) as u64;
    out[at - 8..at].copy_from_slice(&length.to_be_bytes());
}

/// A value as it is compared; `None` for a malformed string.
fn push_compared(out: &mut Vec<u8>, tag: u32, value: &[u8]) -> Option<()> {
    let text = if value.is_ascii() && matches!(tag, 12 | 19 | 20 | 22 | 26) {
        Cow::Borrowed(value)
    } else if let Some(text) = decoded(tag, value)? {
        Cow::Owned(text.into_bytes())
    } else {
        push(out, tag, value);
        return Some(());
    };
    let at = begin(out, 12);
    collapsed(out, &text);
    end(out, at);
    Some(())
}

/// `None` for a malformed string, `Some(None)` for a type that is compared byte for byte.
#[allow(clippy::option_option)]
fn decoded(tag: u32, value: &[u8]) -> Option<Option<String>> {
    match tag {
        12 => Some(Some(std::str::from_utf8(value).ok()?.to_owned())),
        // PrintableString, TeletexString, IA5String and VisibleString are all Latin-1 here.
        19 | 20 | 22 | 26 => Some(Some(value.iter().map(|b| char::from(*b)).collect())),
        28 => wide(value.as_chunks::<4>(), |c| u32::from_be_bytes(*c)),
        30 => wide(value.as_chunks::<2>(), |c| u32::from(u16::from_be_bytes(*c))),
        _ => Some(None),
    }
}

#[allow(clippy::option_option)]
fn wide<const N: usize>((chunks, rest): (&[[u8; N]], &[u8]), code: impl Fn(&[u8; N]) -> u32) -> Option<Option<String>> {
    if !rest.is_empty() {
        return None;
    }
    chunks.iter().map(|c| char::from_u32(code(c))).collect::<Option<String>>().map(Some)
}

/// Words of UTF-8 in ASCII lower case, with one blank between them.
fn collapsed(out: &mut Vec<u8>, text: &[u8]) {
    let start = out.len();
    for word in text.split(|byte| matches!(byte, b'\t'..=b'\r' | b' ')).filter(|word| !word.is_empty()) {
        if out.len() > start {
            out.push(b' ');
        }
        out.extend(word.iter().map(u8::to_ascii_lowercase));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrap(tag: u8, inner: &[u8]) -> Vec<u8> {
        [&[tag, inner.len() as u8], inner].concat()
    }

    fn common_name(tag: u8, value: &[u8]) -> Option<Name> {
        set(&[(3, tag, value)])
    }

    /// A name of one set, of attributes below 2.5.4.
    fn set(attributes: &[(u8, u8, &[u8])]) -> Option<Name> {
        let entry =
            |(oid, tag, value): &(u8, u8, &[u8])| wrap(0x30, &[wrap(6, &[0x55, 4, *oid]), wrap(*tag, value)].concat());
        let entries: Vec<u8> = attributes.iter().flat_map(entry).collect();
        Name::read(&wrap(0x30, &wrap(0x31, &entries)))
    }

    #[test]
    fn names_that_differ_in_case_blanks_and_string_type_are_equal() {
        let one = common_name(12, b"Root  CA");
        assert!(one.is_some());
        for (tag, value) in [(19, &b" root ca"[..]), (22, b"ROOT CA\t"), (30, b"\0r\0o\0o\0t\0 \0c\0a")] {
            assert_eq!(common_name(tag, value), one, "{tag}");
        }
    }

    #[test]
    fn the_order_of_attributes_in_a_set_does_not_matter() {
        let (organization, unit): (_, (u8, u8, &[u8])) = ((10, 12, &b"Acme"[..]), (11, 30, b"\0s\0h\0o\0p"));
        assert!(set(&[organization, unit]).is_some());
        assert_eq!(set(&[organization, unit]), set(&[(11, 19, b" Shop "), organization]));
        assert_ne!(set(&[organization, unit]), set(&[organization]));
    }

    #[test]
    fn other_names_are_not_equal() {
        assert_ne!(common_name(12, b"rootca"), common_name(12, b"root ca"));
        assert_ne!(common_name(18, b"1"), common_name(12, b"1"));
        assert_eq!(common_name(12, &[0xff]), None);
        assert_eq!(Name::read(b""), None);
    }

    #[test]
    fn recognizes_common_names_that_resemble_hosts() {
        assert!(["a", "a.example", "*.a.", "a_b:c"].into_iter().all(resembles_host));
        assert!(!["", "a b", "-a", "a..b", "root ca"].into_iter().any(resembles_host));
    }
}
