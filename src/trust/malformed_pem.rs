//! Text that resembles a PEM block, and that the proxy skips silently.

use std::fmt;

use sha2::{Digest, Sha256};

use super::limits::MAX_MALFORMED;
use super::resemblance::PEM_IN_BASE64;

/// Skipped text that resembles a block. Does not contain the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedPem {
    /// The line of its BEGIN, counted from 1.
    pub line: usize,
    /// Why the proxy skips it.
    pub cause: Cause,
    /// SHA-256 of the text, to recognize it when lines above it change.
    pub(crate) digest: [u8; 32],
}

/// Why the proxy skips text that resembles a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// A UTF-8 byte order mark.
    ByteOrderMark,
    /// Blanks before the dashes.
    Indented,
    /// Other text before the dashes: a quote, a comment without its line break.
    TextBefore,
    /// Text after the closing dashes.
    TextAfter,
    /// Lines that end without a line feed.
    CarriageReturns,
    /// A non-ASCII byte after the closing dashes: x86-64 trims it, arm64 does not.
    NotAsciiAfter,
    /// Not five hyphens, or not capital letters.
    Marker,
    /// An END line without a BEGIN line.
    NoBegin,
    /// Base64 of a certificate, or of a PEM text, without BEGIN and END.
    Unmarked,
    /// Base64 of a PEM text.
    EncodedTwice,
    /// Bytes after a certificate in its block: another one, or what is left of it.
    SameBlock,
    /// A block with a valid BEGIN line whose END line or base64 Go cannot read.
    Broken,
    /// A block whose content Go does not read as a certificate.
    NoCertificate,
    /// Text between BEGIN and the base64.
    Headers,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ByteOrderMark => "a byte order mark precedes BEGIN; save the file without BOM",
            Self::Indented => "BEGIN is indented; move it to the start of the line",
            Self::TextBefore => "text precedes BEGIN; put a line break before the dashes",
            Self::TextAfter => "text follows the closing dashes of BEGIN; put a line break after them",
            Self::CarriageReturns => "lines end with a carriage return only; use line feeds",
            Self::NotAsciiAfter => "a non-ASCII character follows BEGIN; remove it (proxies on arm64 skip the block)",
            Self::Marker => "BEGIN is not written as -----BEGIN CERTIFICATE-----; use five hyphens and capital letters",
            Self::NoBegin => "an END line has no BEGIN line; restore that",
            Self::Unmarked => "base64 has no BEGIN and END lines; add them",
            Self::EncodedTwice => "it is base64 of a PEM text; encode only once",
            Self::SameBlock => {
                "more bytes follow the certificate in its block; restore the END and BEGIN lines of a second one, or remove them"
            }
            Self::Broken => "the block is broken; write base64, and nothing else on the END line",
            Self::NoCertificate => "the block is not exactly one certificate; write the DER of one certificate",
            Self::Headers => "text precedes the base64; remove it",
        })
    }
}

impl MalformedPem {
    /// The bytes after a certificate in its block, which begins on `line`.
    pub(crate) fn same_block(line: usize, trailing: &[u8]) -> Self {
        Self { line, cause: Cause::SameBlock, digest: Sha256::digest(trailing).into() }
    }
}

/// A malformed block whose end was not found yet.
struct Open {
    line: usize,
    cause: Cause,
    hash: Sha256,
}

impl Open {
    fn close(self) -> MalformedPem {
        MalformedPem { line: self.line, cause: self.cause, digest: self.hash.finalize().into() }
    }
}

/// Finds malformed blocks in the text between two blocks.
pub(crate) fn find(text: &[u8], first_line: usize, found: &mut Vec<MalformedPem>) {
    let mut open: Option<Open> = None;
    let mut at = 0;
    let mut lines = text.split_inclusive(|b| *b == b'\n').zip(first_line..).peekable();
    while let Some((line, number)) = lines.next() {
        if found.len() >= MAX_MALFORMED
            && let Some(last) = found.last_mut()
        {
            // A hostile text has many malformed blocks. Their number is limited, but each change of their text changes
            // the digest.
            last.digest = Sha256::new().chain_update(last.digest).chain_update(&text[at..]).finalize().into();
            return;
        }
        let next = lines.peek().map_or(&b""[..], |(next, _)| next);
        // On a line with END and the next BEGIN, the text that begins there continues.
        let ends = marker(line, b"END").is_some_and(|end| marker(line, b"BEGIN").is_none_or(|begin| begin < end));
        let starts = match begin_cause(line, next) {
            None if open.is_some() => None,
            None if ends && !is_comment(line) => Some(Cause::NoBegin),
            None if line.trim_ascii_start().starts_with(PEM_IN_BASE64) => Some(Cause::EncodedTwice),
            None if is_unmarked(line) => Some(Cause::Unmarked),
            begin => begin,
        };
        if let Some(cause) = starts
            && let Some(before) = open.replace(Open { line: number, cause, hash: Sha256::new() })
        {
            found.push(before.close());
        }
        at += line.len();
        if let Some(mut seen) = open.take() {
            seen.hash.update(line);
            // Base64 without BEGIN continues while its lines do, and may have an END line.
            let base64 = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
            let goes_on = next.first().is_some_and(base64) || has_marker(next, b"END");
            if ends || (matches!(seen.cause, Cause::Unmarked | Cause::EncodedTwice) && !goes_on) {
                found.push(seen.close());
            } else {
                open = Some(seen);
            }
        }
    }
    found.extend(open.map(Open::close));
}

fn begin_cause(line: &[u8], next: &[u8]) -> Option<Cause> {
    let begin = marker(line, b"BEGIN")?;
    // A block that is commented out line by line is skipped on purpose; a block on the line of a comment is not.
    if is_comment(line) && is_comment(next) {
        return None;
    }
    let exact = line.windows(11).position(|w| w == b"-----BEGIN ");
    let Some(at) = exact.filter(|at| *at <= begin) else { return Some(Cause::Marker) };
    let (before, after) = (&line[..at], &line[at + 11..]);
    Some(match before {
        [] => match after.iter().position(|b| *b == b'-').map(|n| &after[n..]) {
            Some(dashes) if dashes.trim_ascii_end() == b"-----" => Cause::Broken,
            Some(dashes) if dashes.starts_with(b"-----\r") => Cause::CarriageReturns,
            Some([b'-', b'-', b'-', b'-', b'-', tail @ ..]) if is_high(tail) => Cause::NotAsciiAfter,
            Some(dashes) if dashes.starts_with(b"-----") => Cause::TextAfter,
            _ => Cause::Marker,
        },
        _ if before.ends_with(b"\xEF\xBB\xBF") => Cause::ByteOrderMark,
        _ if before.trim_ascii().is_empty() => Cause::Indented,
        _ => Cause::TextBefore,
    })
}

/// Whether only bytes that a signed `char` comparison trims follow.
fn is_high(tail: &[u8]) -> bool {
    tail.iter().any(|b| *b >= 0x80) && tail.iter().all(|b| *b <= b' ' || *b >= 0x80)
}

fn has_marker(line: &[u8], word: &[u8]) -> bool {
    marker(line, word).is_some()
}

/// The offset of a word (BEGIN or END) on a line that resembles a PEM boundary: dashes of any kind around it, and the label of a certificate or a
/// revocation list. A boundary without a label has exact dashes: others are prose.
fn marker(line: &[u8], word: &[u8]) -> Option<usize> {
    // Cheap to check first: nearly all lines of a bundle are plain base64.
    let dash = |b: &u8| *b == b'-' || *b >= 0x80;
    if !line.iter().any(dash) {
        return None;
    }
    let at = line
        .windows(word.len())
        .enumerate()
        .position(|(at, w)| w.eq_ignore_ascii_case(word) && line[..at].trim_ascii_end().last().is_some_and(dash))?;
    let label = &line[at + word.len()..];
    let label = &label[..label.len().min(64)];
    let names = |what: &[u8]| label.windows(what.len()).any(|w| w.eq_ignore_ascii_case(what));
    let is_empty = line[..at].ends_with(b"-----") && label.starts_with(b" -----");
    // The labels that `bundle::skipped` takes for certificates.
    (is_empty || names(b"CERT") || names(b"PKCS7") || names(b"X509 CRL")).then_some(at)
}

fn is_comment(line: &[u8]) -> bool {
    matches!(line.trim_ascii_start(), [b'#' | b';', ..] | [b'/', b'/', ..])
}

/// A line of base64 that starts as a certificate (`SEQUENCE` with a two-byte length) or as "-----BEGIN". Lines of a certificate may have been joined by
/// blanks.
fn is_unmarked(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    (line.starts_with(b"MII") || line.starts_with(b"LS0tLS1CRUdJTi"))
        && line.len() >= 48
        && line.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=' | b' ' | b'\t'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causes(text: &str) -> Vec<(usize, Cause)> {
        let mut found = Vec::new();
        find(text.as_bytes(), 1, &mut found);
        found.into_iter().map(|seen| (seen.line, seen.cause)).collect()
    }

    #[test]
    fn unmarked_base64_continues_with_any_line_of_base64() {
        let first = BODY.lines().next().expect("a line");
        for start in ["A", "9", "+", "/"] {
            let text = format!("{first}\n{start}W9CKT5vjw6S2nVuhjAPBgNVHRMBAf8E\n-----END CERTIFICATE-----\n");
            assert_eq!(causes(&text), [(1, Cause::Unmarked)], "{start}");
        }
    }

    const BODY: &str = "MIIBhzCCAS6gAwIBAgIUQ2hhaW4gb2YgdHJ1c3QgYW5kIHNvIG9uIGFuZCBzbyBv\n-----END CERTIFICATE-----\n";

    #[test]
    fn accepts_prose_comments_and_other_labels() {
        for text in [
            "# begin of the certificates",
            "beginning of certificates - the end of certificates",
            "# -----BEGIN CERTIFICATE-----\n# MIIB\n# -----END CERTIFICATE-----\n",
            " -----BEGIN DH PARAMETERS-----\n",
            "",
        ] {
            assert_eq!(causes(text), [], "{text}");
        }
    }

    #[test]
    fn reports_each_cause_once() {
        for (begin, cause) in [
            ("\u{feff}-----BEGIN CERTIFICATE-----\n", Cause::ByteOrderMark),
            ("\t-----BEGIN TRUSTED CERTIFICATE-----\n", Cause::Indented),
            ("> -----BEGIN CERTIFICATE-----\n", Cause::TextBefore),
            ("# root -----BEGIN CERTIFICATE-----\n", Cause::TextBefore),
            ("-----BEGIN CERTIFICATE-----,\n", Cause::TextAfter),
            ("-----BEGIN CERTIFICATE-----\\n", Cause::TextAfter),
            ("-----BEGIN PKCS7----- ", Cause::TextAfter),
            ("-----BEGIN CERT----- ", Cause::TextAfter),
            ("-----BEGIN CERTIFICATE-----\r", Cause::CarriageReturns),
            ("-----BEGIN CERTIFICATE-----\u{a0}\n", Cause::NotAsciiAfter),
            ("-----BEGIN CERTIFICATE----\n", Cause::Marker),
            ("---BEGIN CERTIFICATE---\n", Cause::Marker),
            ("-----Begin Certificate-----\n", Cause::Marker),
            ("–––––BEGIN CERTIFICATE–––––\n", Cause::Marker),
            ("", Cause::Unmarked),
            ("x\n", Cause::Unmarked),
        ] {
            let line = 1 + usize::from(begin == "x\n");
            assert_eq!(causes(&format!("{begin}{BODY}")), [(line, cause)], "{begin}");
            assert_eq!(causes(&format!("{begin}{BODY}\n{begin}{BODY}")).len(), 2, "{begin}");
        }
        // Found by comparison with BoringSSL: two lines that a blank joins, and an END line in a comment.
        let joined = BODY.replace("-----END", "# -----END").replacen('\n', &format!(" {BODY}"), 1);
        assert_eq!(causes(&joined), [(1, Cause::Unmarked)]);
        assert_eq!(causes("x\n-----END CERTIFICATE-----\n"), [(2, Cause::NoBegin)]);
        assert_eq!(causes("LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJoekNDQVM2Z0F3SUI="), [(1, Cause::EncodedTwice)]);
    }
}
