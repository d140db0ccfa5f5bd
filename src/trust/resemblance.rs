//! What a text without PEM blocks resembles, for messages that say how to correct it.

use std::fmt;

/// What a text resembles. Does not contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resemblance {
    /// DER without PEM around it.
    Der,
    /// UTF-16, as PowerShell writes it by default.
    Utf16,
    /// Base64 of a PEM text.
    Base64Twice,
    /// A PEM text with backslash and n for its line breaks.
    LiteralLineBreaks,
    /// A UTF-8 byte order mark precedes BEGIN.
    ByteOrderMark,
    /// Text precedes BEGIN on its line.
    TextBefore,
    /// A private key in the format of OpenSSH.
    OpenSsh,
    /// A certificate.
    Certificate,
    /// A public key.
    PublicKey,
}

impl fmt::Display for Resemblance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Der => "it is DER; convert it to PEM",
            Self::Utf16 => "it is UTF-16, as PowerShell writes it; save it as UTF-8 without BOM",
            Self::Base64Twice => "it is base64 of a PEM text; encode only once",
            Self::LiteralLineBreaks => "it has \\n in place of its line breaks; write these as line breaks",
            Self::ByteOrderMark => "a byte order mark precedes BEGIN; save it as UTF-8 without BOM",
            Self::TextBefore => "text or blanks precede BEGIN; move it to the start of the line",
            Self::OpenSsh => {
                "it is a key in the format of OpenSSH; convert a copy of it with ssh-keygen -p -m PKCS8 -f FILE"
            }
            Self::Certificate => "it is a certificate; write its private key here",
            Self::PublicKey => "it is a public key; write the private key here",
        })
    }
}

impl Resemblance {
    /// What a text without a private key resembles.
    pub(super) fn of_key(text: &[u8]) -> Option<Self> {
        let encoding = Self::of_encoding(text);
        let begins = |label: &str| contains(text, format!("-----BEGIN {label}-----").as_bytes());
        let of_key = || {
            let is_key = contains(text, b"PRIVATE KEY-----");
            if begins("OPENSSH PRIVATE KEY") {
                Some(Self::OpenSsh)
            } else if is_key && text.starts_with(BYTE_ORDER_MARK) {
                Some(Self::ByteOrderMark)
            } else if is_key && contains(text, b"-----BEGIN ") {
                Some(Self::TextBefore)
            } else if begins("CERTIFICATE") {
                Some(Self::Certificate)
            } else {
                (begins("PUBLIC KEY") || begins("RSA PUBLIC KEY")).then_some(Self::PublicKey)
            }
        };
        encoding.or_else(of_key)
    }

    /// The encoding of a text without PEM blocks, if that is the reason.
    pub(super) fn of_encoding(text: &[u8]) -> Option<Self> {
        let is_utf16 =
            matches!(text, [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [b'-', 0, b'-', 0, ..] | [0, b'-', 0, b'-', ..]);
        // A SEQUENCE whose length has two or one further bytes, or none.
        let is_der = match text {
            [0x30, 0x81 | 0x82, ..] => true,
            [0x30, length, content @ ..] => content.len() == usize::from(*length),
            _ => false,
        };
        if is_der {
            Some(Self::Der)
        } else if is_utf16 {
            Some(Self::Utf16)
        } else if text.trim_ascii_start().starts_with(PEM_IN_BASE64) {
            Some(Self::Base64Twice)
        } else {
            contains(text, b"-----\\n").then_some(Self::LiteralLineBreaks)
        }
    }
}

/// How `-----BEGIN ` begins in base64.
pub(super) const PEM_IN_BASE64: &[u8] = b"LS0tLS1CRUdJTi";

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

fn contains(text: &[u8], what: &[u8]) -> bool {
    text.windows(what.len()).any(|window| window == what)
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};

    use super::Resemblance;
    use crate::trust::fixtures::{block, ca};
    use crate::trust::private_key::{KeyError, public_key};

    fn resembles(text: &[u8]) -> Option<Resemblance> {
        match public_key(text) {
            Err(KeyError::Missing(resemblance)) => resemblance,
            other => panic!("expected no key, saw {other:?}"),
        }
    }

    #[test]
    fn says_what_a_text_without_a_key_is() {
        let leaf = ca("one").leaf("a");
        let key = leaf.key_pem();
        let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
        for (text, expected) in [
            (leaf.der().to_vec(), Resemblance::Der),
            (vec![0x30, 3, 2, 1, 0], Resemblance::Der),
            ([vec![0xff, 0xfe], utf16(&key)].concat(), Resemblance::Utf16),
            (utf16(&key), Resemblance::Utf16),
            (STANDARD.encode(&key).into_bytes(), Resemblance::Base64Twice),
            (key.replace('\n', "\\n").into_bytes(), Resemblance::LiteralLineBreaks),
            (format!("\u{feff}{key}").into_bytes(), Resemblance::ByteOrderMark),
            (format!("  {}", key.replace('\n', "\n  ")).into_bytes(), Resemblance::TextBefore),
            (block("OPENSSH PRIVATE KEY", b"key").into_bytes(), Resemblance::OpenSsh),
            (leaf.pem().into_bytes(), Resemblance::Certificate),
            (block("PUBLIC KEY", b"key").into_bytes(), Resemblance::PublicKey),
        ] {
            assert_eq!(resembles(&text), Some(expected), "{}", String::from_utf8_lossy(&text));
        }
        assert_eq!((resembles(b""), resembles(b"the key comes later")), (None, None));
    }
}
