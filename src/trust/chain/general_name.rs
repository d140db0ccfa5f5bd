//! GeneralName (RFC 5280 section 4.2.1.6) and the name constraints that are made of it.

use super::name::Name;
use crate::trust::der::{self, CONSTRUCTED, CONTEXT, Cbs, OBJECT, SEQUENCE};

pub(super) const EMAIL: u32 = 1;
pub(super) const DNS: u32 = 2;
pub(super) const DIRECTORY: u32 = 4;
pub(super) const URI: u32 = 6;
pub(super) const IP: u32 = 7;

/// The bits of a tag's class.
const CLASS: u32 = 0xc000_0000;

/// A GeneralName: the number of its context tag, and its content.
pub(super) struct GeneralName<'a> {
    pub(super) kind: u32,
    pub(super) content: &'a [u8],
    /// The content of a directory name.
    pub(super) directory: Option<Name>,
}

/// A subtree of name constraints.
pub(super) struct Subtree<'a> {
    pub(super) base: GeneralName<'a>,
    /// Whether it has a minimum or maximum, which BoringSSL does not support.
    pub(super) has_range: bool,
}

/// Name constraints.
#[derive(Default)]
pub(super) struct NameConstraints<'a> {
    pub(super) permitted: Vec<Subtree<'a>>,
    pub(super) excluded: Vec<Subtree<'a>>,
}

impl<'a> NameConstraints<'a> {
    /// Reads the content of the extension; `None` if BoringSSL does not accept it.
    pub(super) fn read(mut input: Cbs<'a>) -> Option<Self> {
        let mut constraints = Self::default();
        for number in [0, 1] {
            if !input.peek(CONTEXT | CONSTRUCTED | number) {
                continue;
            }
            let mut list = Cbs(input.any()?.1);
            while !list.0.is_empty() {
                let mut subtree = list.take(SEQUENCE, "").ok()?;
                let base = general_name(&mut subtree)?;
                let subtree = Subtree { base, has_range: !subtree.0.is_empty() };
                if number == 0 { &mut constraints.permitted } else { &mut constraints.excluded }.push(subtree);
            }
        }
        input.end("").ok()?;
        Some(constraints)
    }
}

/// `DirectoryString` (RFC 5280 section 4.1.2.4): Printable, Teletex, Universal, UTF-8 and BMP.
const DIRECTORY_STRINGS: [u32; 5] = [19, 20, 28, 12, 30];

pub(super) fn general_names<'a>(mut list: Cbs<'a>) -> Option<Vec<GeneralName<'a>>> {
    let mut names = Vec::new();
    while !list.0.is_empty() {
        names.push(general_name(&mut list)?);
    }
    Some(names)
}

fn general_name<'a>(input: &mut Cbs<'a>) -> Option<GeneralName<'a>> {
    let (tag, content) = input.any()?;
    let kind = tag & 0x1fff_ffff;
    let constructed = tag & CONSTRUCTED != 0;
    // Explicitly tagged, since a Name is a CHOICE.
    let directory = (kind == DIRECTORY && der::is_name(content)).then(|| Name::read(content)).flatten();
    let is_valid = tag & CLASS == CONTEXT
        && match kind {
            0 => constructed && is_other_name(content),
            3 => constructed,
            5 => constructed && is_edi_party(content),
            EMAIL | DNS | URI | IP => !constructed,
            8 => !constructed && der::object(content).is_ok(),
            DIRECTORY => constructed && directory.is_some(),
            _ => false,
        };
    is_valid.then_some(GeneralName { kind, content, directory })
}

/// The content of an otherName: a type, and a value in its own wrapper.
fn is_other_name(content: &[u8]) -> bool {
    let mut input = Cbs(content);
    let is_type = input.take(OBJECT, "").and_then(|oid| der::object(oid.0)).is_ok();
    is_type && is_wrapped(&mut input, 0, |_| true) && input.0.is_empty()
}

/// Whether an explicitly tagged value of one of these types follows.
fn is_wrapped(input: &mut Cbs<'_>, number: u32, is_type: impl Fn(u32) -> bool) -> bool {
    let value = input.take(CONTEXT | CONSTRUCTED | number, "").ok();
    value.is_some_and(|mut value| {
        value.any().is_some_and(|(tag, content)| is_type(tag) && der::valid_value(tag, content)) && value.0.is_empty()
    })
}

/// The content of an ediPartyName: an assigner, if any, and a party.
fn is_edi_party(content: &[u8]) -> bool {
    let mut input = Cbs(content);
    let text = |input: &mut Cbs<'_>, number: u32| is_wrapped(input, number, |tag| DIRECTORY_STRINGS.contains(&tag));
    let assigner = !input.peek(CONTEXT | CONSTRUCTED) || text(&mut input, 0);
    assigner && text(&mut input, 1) && input.0.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_tags_of_other_classes() {
        let is_read = |tag: u8| general_name(&mut Cbs(&[tag, 1, b'x'])).is_some();
        assert!(is_read(0x82) && !is_read(0xc2) && !is_read(0x42));
    }

    #[test]
    fn rejects_malformed_names() {
        let value = [0xa0, 3, 12, 1, b'x'];
        assert!(is_other_name(&[&[6, 1, 0x2a], &value[..]].concat()));
        assert!(!is_other_name(&[]) && !is_other_name(&value) && !is_other_name(&[6, 1, 0x2a, 0xa0, 0]));
        // A principal name of Windows in Latin-1 under the tag of UTF-8.
        assert!(
            !is_other_name(&[6, 1, 0x2a, 0xa0, 3, 12, 1, 0xe4]) && is_other_name(&[6, 1, 0x2a, 0xa0, 3, 22, 1, 0xe4])
        );
        assert!(!is_edi_party(&[0xa1, 3, 12, 1, 0xe4]) && !is_edi_party(&[0xa0, 3, 30, 1, b'x', 0xa1, 3, 12, 1, b'x']));
        assert!(is_edi_party(&[0xa1, 3, 12, 1, b'x']) && !is_edi_party(b"zz") && !is_edi_party(&[]));
    }
}
