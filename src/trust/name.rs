//! Distinguished names as text (RFC 4514).

use std::fmt::Write as _;

use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// The types that RFC 4514 section 3 gives a short name.
const SHORT: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.6", "C"),
    ("2.5.4.9", "STREET"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

/// Characters of a name that are kept. X.520 limits most attributes to 64.
const LONGEST: usize = 500;

/// A name, last component first, cut to the maximal length.
pub(crate) fn rfc4514(name: &X509Name<'_>) -> String {
    let mut text = String::new();
    let rdns = name.iter_rdn().collect::<Vec<_>>().into_iter().rev();
    let attributes = rdns.flat_map(|rdn| rdn.iter().enumerate());
    for (n, attribute) in attributes {
        match n {
            _ if text.chars().nth(LONGEST).is_some() => break,
            0 if text.is_empty() => {}
            0 => text.push(','),
            _ => text.push('+'),
        }
        write_attribute(&mut text, attribute);
    }
    match text.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

/// A name for messages: short, and never empty.
pub(crate) fn brief(name: &str) -> String {
    match name.char_indices().nth(64) {
        _ if name.is_empty() => "no subject".to_owned(),
        Some((cut, _)) => format!("{}…", &name[..cut]),
        None => name.to_owned(),
    }
}

fn write_attribute(text: &mut String, attribute: &AttributeTypeAndValue<'_>) {
    let oid = attribute.attr_type().to_id_string();
    let short = SHORT.iter().find(|(id, _)| *id == oid).map(|(_, short)| *short);
    let value = attribute.attr_value();
    // The value of a type without a short name is in hex (RFC 4514 section 2.4), and so is one that is not a string.
    match short.zip(decode(value.tag().0, value.data)) {
        Some((short, value)) => {
            text.push_str(short);
            text.push('=');
            escape(text, &value);
        }
        None => {
            text.push_str(short.unwrap_or(&oid));
            text.push_str("=#");
            for byte in value.header.raw_tag().unwrap_or_default() {
                let _ = write!(text, "{byte:02x}");
            }
            let length = value.data.len();
            let octets = length.to_be_bytes();
            let octets = &octets[octets.iter().position(|b| *b != 0).unwrap_or(octets.len() - 1)..];
            if length >= 0x80 {
                let _ = write!(text, "{:02x}", 0x80 | octets.len());
            }
            for byte in octets.iter().chain(value.data).take(LONGEST) {
                let _ = write!(text, "{byte:02x}");
            }
        }
    }
}

fn decode(tag: u32, data: &[u8]) -> Option<String> {
    match tag {
        // UTF8String, NumericString, PrintableString, IA5String, VisibleString
        12 | 18 | 19 | 22 | 26 => std::str::from_utf8(data).ok().map(str::to_owned),
        // TeletexString: Latin-1 to BoringSSL
        20 => Some(data.iter().map(|b| char::from(*b)).collect()),
        28 => data.chunks(4).map(|c| char::from_u32(u32::from_be_bytes(c.try_into().ok()?))).collect(),
        30 => data.chunks(2).map(|c| char::from_u32(u32::from(u16::from_be_bytes(c.try_into().ok()?)))).collect(),
        _ => None,
    }
}

fn escape(text: &mut String, value: &str) {
    let last = value.chars().count().saturating_sub(1);
    for (n, c) in value.chars().enumerate().take(LONGEST + 1) {
        match c {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => text.extend(['\\', c]),
            ' ' if n == 0 || n == last => text.push_str("\\ "),
            '#' if n == 0 => text.push_str("\\#"),
            // Beyond the RFC: a message must not control a terminal.
            c if c.is_control()
                || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    let _ = write!(text, "\\{byte:02x}");
                }
            }
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{DnType, DnValue};

    use super::*;
    use crate::trust::certificates_under;
    use crate::trust::fixtures::ca_with;
    use crate::trust::fixtures::secret;

    fn subject(parts: &[(DnType, DnValue)]) -> String {
        let authority = ca_with("x", |params| {
            params.distinguished_name = rcgen::DistinguishedName::new();
            for (kind, value) in parts {
                params.distinguished_name.push(kind.clone(), value.clone());
            }
        });
        certificates_under(&secret(&[("ca.crt", &authority.pem())]), "ca.crt")[0].subject.clone()
    }

    #[test]
    fn names_are_written_in_reverse_order() {
        let parts = [
            (DnType::CountryName, "DE".into()),
            (DnType::OrganizationName, "A, B".into()),
            (DnType::CommonName, "root".into()),
        ];
        assert_eq!(subject(&parts), "CN=root,O=A\\, B,C=DE");
        assert_eq!(subject(&[]), "");
        assert_eq!(brief(""), "no subject");
    }

    #[test]
    fn unusual_strings_and_types_are_escaped() {
        assert_eq!(subject(&[(DnType::CommonName, " a#\u{1b}[31m ".into())]), "CN=\\ a#\\1b[31m\\ ");
        let bmp = DnValue::BmpString("Ä".try_into().expect("BMP"));
        assert_eq!(subject(&[(DnType::CommonName, bmp)]), "CN=Ä");
        let serial = DnType::CustomDnType(vec![2, 5, 4, 5]);
        assert_eq!(subject(&[(serial, DnValue::Utf8String("A1".to_owned()))]), "2.5.4.5=#0c024131");
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(brief(&"ä".repeat(100)), format!("{}…", "ä".repeat(64)));
        let long = subject(&[(DnType::CommonName, "ä".repeat(600).as_str().into())]);
        assert_eq!(long, format!("CN={}…", "ä".repeat(497)));
        let of_many = |number: u64| (DnType::CustomDnType(vec![2, 5, 4, 100 + number]), "a".into());
        assert_eq!(subject(&(0..100).map(of_many).collect::<Vec<_>>()).chars().count(), 501);
    }
}
