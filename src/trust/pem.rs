//! PEM, read as by the proxy's TLS library.
//!
//! Measured with Envoy, and stated in BoringSSL's `PEM_read_bio` (crypto/pem/pem_lib.cc): it reads "lines" of at most 253 bytes
//! (`BIO_gets` into 254), trims bytes `<= ' '` at their end, and skips everything up to a line that begins with `-----BEGIN ` and ends
//! with `-----`. From there on it is strict: the block must end with its own END line, be base64, and not be empty. Other readers
//! accept inputs that it drops or rejects, and the other way round.
//!
//! Platforms differ: the trimming compares `char`, which is signed on x86-64 and unsigned on arm64. A byte from 0x80 up (the second half
//! of a no-break space) at the end of a line is trimmed on x86-64 only. [`read`] reads as both, and returns the worse result.

mod lines;

use std::fmt;

use zeroize::Zeroizing;

use super::malformed_pem::{self, MalformedPem};
pub(crate) use lines::Char;
use lines::{Lines, decode};

/// A PEM block. Has no derived `Debug`, and wipes its content when dropped: it may be a private key.
#[derive(Clone)]
pub struct Block {
    /// The label: `CERTIFICATE`.
    pub label: String,
    /// Whether there is text between BEGIN and a blank line (RFC 1421 headers).
    pub has_headers: bool,
    /// Whether these headers declare the content as encrypted.
    pub is_encrypted: bool,
    /// The decoded content.
    pub content: Zeroizing<Vec<u8>>,
    /// The line of its BEGIN, counted from 1.
    pub line: usize,
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({:?}, line {}, {} bytes)", self.label, self.line, self.content.len())
    }
}

/// The content of a text.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The blocks, up to a rejected one.
    pub blocks: Vec<Block>,
    /// Why the text is rejected. A proxy then loads nothing from it.
    pub rejected: Option<Rejection>,
    /// Skipped text that resembles a block.
    pub skipped: Vec<MalformedPem>,
}

/// Where and why a text is rejected. Does not contain the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{label} on line {begin}: {fault}")]
pub struct Rejection {
    /// The line of the block's BEGIN.
    pub begin: usize,
    /// The line of the fault.
    pub line: usize,
    /// The block's label, or a placeholder for an unusual one.
    pub label: String,
    /// What is wrong.
    pub fault: PemFault,
}

/// What is wrong with a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PemFault {
    /// The text ends before the block.
    #[error("no END line follows; copy the complete block again")]
    Unclosed,
    /// The END line also has the next BEGIN.
    #[error("line {line} holds END and the next BEGIN; put a line break between them")]
    Glued {
        /// The END line.
        line: usize,
    },
    /// The END line has another label, or other text.
    #[error("line {line} is not its END line; repeat the label of BEGIN, and put nothing else on that line")]
    OtherEnd {
        /// The END line.
        line: usize,
    },
    /// The content is not base64.
    #[error("line {line} is not base64")]
    Base64 {
        /// The line with the first wrong character.
        line: usize,
    },
    /// The content ends within a group of four characters.
    #[error("its base64 is truncated")]
    Base64Length,
    /// The block is empty.
    #[error("it is empty")]
    NoData,
    /// The content is not DER of the type that the label names.
    #[error("{0}")]
    Content(String),
}

/// Reads a text to its end, or to the first fault.
pub fn read(text: &[u8]) -> Reading {
    let signed = read_as(text, Char::Signed);
    if signed.rejected.is_some() || text.is_ascii() {
        return signed;
    }
    // The unsigned reading never finds more blocks than the signed one, which alone sees some BEGIN lines.
    read_as(text, Char::Unsigned)
}

pub(super) fn read_as(text: &[u8], char: Char) -> Reading {
    let mut blocks = Blocks::new(text, char);
    let mut reading = Reading::default();
    for block in blocks.by_ref() {
        match block {
            Ok(block) => reading.blocks.push(block),
            Err(rejection) => reading.rejected = Some(rejection),
        }
    }
    reading.skipped = blocks.skipped;
    reading
}

/// An iterator over blocks; it ends after the first rejection.
pub(crate) struct Blocks<'a> {
    lines: Lines<'a>,
    /// The text that has been skipped so far.
    pub(crate) skipped: Vec<MalformedPem>,
    ended: bool,
}

impl<'a> Blocks<'a> {
    pub(crate) fn new(text: &'a [u8], char: Char) -> Self {
        Self { lines: Lines::new(text, char), skipped: Vec::new(), ended: false }
    }

    /// Skips to the next BEGIN line and returns its label and line.
    fn begin(&mut self) -> Option<(&'a [u8], usize)> {
        let (from, first_line) = (self.lines.at, self.lines.number);
        let found = loop {
            let start = self.lines.at;
            let Some(line) = self.lines.next() else { break None };
            if let Some(label) = begin_label(line.text) {
                break Some((label, line.number, start));
            }
        };
        let end = found.map_or(self.lines.text.len(), |(_, _, start)| start);
        malformed_pem::find(&self.lines.text[from..end], first_line, &mut self.skipped);
        found.map(|(label, number, _)| (label, number))
    }

    fn block(&mut self, label: &[u8], begin: usize) -> Result<Block, Rejection> {
        let name = String::from_utf8_lossy(label);
        let reject = |line, fault| Rejection { begin, line, label: printable_label(&name), fault };
        let first = self.lines.clone();
        let mut end = self.until_end(true);
        let (headers, body) = match end {
            End::Blank => {
                let body = self.lines.clone();
                end = self.until_end(false);
                (Some(first), body)
            }
            _ => (None, first),
        };
        let (end_text, end_line) = match end {
            End::Line(text, number) => (text, number),
            End::Blank | End::Eof => return Err(reject(begin, PemFault::Unclosed)),
        };
        let closing = end_text.strip_prefix(b"-----END ".as_slice()).and_then(|t| t.strip_prefix(label));
        if closing != Some(b"-----".as_slice()) {
            let glued = end_text.windows(11).any(|w| w == b"-----BEGIN ");
            let line = end_line;
            return Err(reject(line, if glued { PemFault::Glued { line } } else { PemFault::OtherEnd { line } }));
        }
        let content = decode(body).map_err(|fault| match fault {
            PemFault::Base64 { line } => reject(line, fault),
            _ => reject(end_line, fault),
        })?;
        // BoringSSL stores a header as a C string, which is empty if it begins with NUL.
        let header = headers.map(|mut lines| lines.next().map_or(&b""[..], |line| line.text)).unwrap_or_default();
        Ok(Block {
            label: name.into_owned(),
            has_headers: !matches!(header.first(), None | Some(0)),
            is_encrypted: header.starts_with(b"Proc-Type: 4,ENCRYPTED"),
            content,
            line: begin,
        })
    }

    fn until_end(&mut self, stop_at_blank: bool) -> End<'a> {
        loop {
            match self.lines.next() {
                None => return End::Eof,
                Some(line) if stop_at_blank && line.text.is_empty() => return End::Blank,
                Some(line) if line.text.starts_with(b"-----END ") => return End::Line(line.text, line.number),
                Some(_) => {}
            }
        }
    }
}

impl Iterator for Blocks<'_> {
    type Item = Result<Block, Rejection>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let Some((label, begin)) = self.begin() else {
            self.ended = true;
            return None;
        };
        let block = self.block(label, begin);
        self.ended = block.is_err();
        Some(block)
    }
}

/// How a run of lines inside a block ends.
enum End<'a> {
    Blank,
    Line(&'a [u8], usize),
    Eof,
}

/// The label of a BEGIN line; `None` for one with NUL, at which C strings end.
fn begin_label(line: &[u8]) -> Option<&[u8]> {
    let label = line.strip_prefix(b"-----BEGIN ")?.strip_suffix(b"-----")?;
    (!label.contains(&0)).then_some(label)
}

/// A label for messages: hostile ones could contain control characters, or key bytes.
pub(crate) fn printable_label(label: &str) -> String {
    let plain = label.len() <= 40 && label.bytes().all(|b| b.is_ascii_uppercase() || matches!(b, b' ' | b'0'..=b'9'));
    if plain && !label.is_empty() { label.to_owned() } else { "a block with an unusual label".to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trust::fixtures::block;

    fn labels(text: &str) -> Vec<(String, usize)> {
        let reading = read(text.as_bytes());
        assert_eq!(reading.rejected, None, "{text}");
        reading.blocks.into_iter().map(|b| (b.label, b.line)).collect()
    }

    fn fault(text: &str) -> PemFault {
        read(text.as_bytes()).rejected.unwrap_or_else(|| panic!("not rejected: {text}")).fault
    }

    #[test]
    fn accepts_blocks_at_the_beginning_of_any_line() {
        let text = format!("prose\n{}\n\r\n{}", block("A", b"one"), block("B", b"two").replace('\n', " \t\r\n"));
        assert_eq!(labels(&text), [("A".to_owned(), 2), ("B".to_owned(), 7)]);
        let contents: Vec<_> = read(text.as_bytes()).blocks.iter().map(|b| b.content.to_vec()).collect();
        assert_eq!(contents, [b"one", b"two"]);
    }

    #[test]
    fn accepts_base64_in_lines_of_any_length() {
        let der: Vec<u8> = (0..=255).cycle().take(2_000).collect();
        let body: String = block("A", &der).lines().filter(|line| !line.starts_with('-')).collect();
        for width in [1, 3, 63, 65, 76, 252, 254, 5_000] {
            let lines: Vec<&str> =
                body.as_bytes().chunks(width).map(|line| std::str::from_utf8(line).expect("base64")).collect();
            let text = format!("-----BEGIN A-----\n{}\n-----END A-----", lines.join("\n"));
            assert_eq!(read(text.as_bytes()).blocks[0].content.as_slice(), der, "width {width}");
        }
    }

    #[test]
    fn accepts_a_blank_line_after_begin_and_headers() {
        let text = block("A", b"one").replace("A-----\nb", "A-----\n\nb");
        assert!(!read(text.as_bytes()).blocks[0].has_headers);
        let text = block("A", b"one").replace("A-----\nb", "A-----\nProc-Type: 4,ENCRYPTED\n\nb");
        let headed = &read(text.as_bytes()).blocks[0];
        assert!(headed.has_headers && headed.is_encrypted);
        assert_eq!(headed.content.as_slice(), b"one");
    }

    /// `BIO_gets` ends a line after 253 bytes: the next byte is at the start of a line.
    #[test]
    fn accepts_a_begin_at_byte_254_of_a_line() {
        assert_eq!(labels(&format!("{}{}", "x".repeat(253), block("A", b"one"))), [("A".to_owned(), 1)]);
        assert_eq!(labels(&format!("{}{}", "x".repeat(252), block("A", b"one"))), []);
    }

    /// The line feed is then a blank "line", and the text before it headers.
    #[test]
    fn rejects_base64_in_lines_of_253_bytes() {
        let body = "A".repeat(253 * 4);
        let lines: String = (0..4).map(|n| body[n * 253..][..253].to_owned() + "\n").collect();
        let block = &read(format!("-----BEGIN A-----\n{lines}-----END A-----\n").as_bytes()).blocks;
        assert!(block.is_empty() || block[0].has_headers);
    }

    #[test]
    fn rejects_broken_blocks_with_their_line() {
        let one = block("A", b"one");
        assert_eq!(fault("-----BEGIN A-----\nAAAA\n"), PemFault::Unclosed);
        assert_eq!(fault("-----BEGIN A-----"), PemFault::Unclosed);
        assert_eq!(fault(&one.replace("END A-----\n", "END A----------BEGIN A-----\n")), PemFault::Glued { line: 3 });
        assert_eq!(fault(&one.replace("END A", "END B")), PemFault::OtherEnd { line: 3 });
        assert_eq!(fault(&one.replace("END A-----", "END A----- x")), PemFault::OtherEnd { line: 3 });
        assert_eq!(fault(&one.replace("END A-----", "END A-----\u{a0}")), PemFault::OtherEnd { line: 3 });
        assert_eq!(fault(&one.replace("b25l", "b2-l")), PemFault::Base64 { line: 2 });
        assert_eq!(fault(&one.replace("b25l", "b25l\0b25l")), PemFault::Base64 { line: 2 });
        assert_eq!(fault(&one.replace("b25l", "b2==b25l")), PemFault::Base64 { line: 2 });
        assert_eq!(fault(&one.replace("b25l", "b2=l")), PemFault::Base64 { line: 2 });
        assert_eq!(fault(&one.replace("b25l", "b===")), PemFault::Base64 { line: 2 });
        assert_eq!(fault(&one.replace("b25l", "b25")), PemFault::Base64Length);
        assert_eq!(fault(&one.replace("b25l\n", "")), PemFault::NoData);
        assert_eq!(fault(&one.replace("b25l", "-----BEGIN A-----\nb25l")), PemFault::Base64 { line: 2 });
    }

    #[test]
    fn errors_do_not_contain_the_text() {
        let text = "-----BEGIN MIIEsecret-----\nsecret\n-----END secret-----\n";
        let printed =
            format!("{:?}", read(text.as_bytes())) + &read(text.as_bytes()).rejected.expect("rejected").to_string();
        assert!(!printed.contains("secret"), "{printed}");
        assert!(!format!("{:?}", read(block("PRIVATE KEY", b"secret").as_bytes())).contains("115"));
    }

    proptest! {
        #[test]
        fn reads_arbitrary_bytes_without_panic(text in proptest::collection::vec(any::<u8>(), 0..2_000)) {
            read(&text);
        }

        #[test]
        fn reads_arbitrary_pieces_without_panic(pieces in proptest::collection::vec(prop_oneof![
            Just("-----BEGIN CERTIFICATE-----".to_owned()), Just("-----END CERTIFICATE-----".to_owned()),
            Just("\n".to_owned()), Just("\r\n".to_owned()), Just("\0".to_owned()), Just("\u{feff}".to_owned()),
            Just("-".to_owned()), Just("BEGIN ".to_owned()), Just("=".to_owned()), "[A-Za-z0-9+/=]{0,300}", ".{0,8}",
        ], 0..40)) {
            let text = pieces.concat();
            let lines = text.split('\n').count();
            let reading = read(text.as_bytes());
            prop_assert!(reading.blocks.iter().all(|b| b.line <= lines && !b.content.is_empty()));
            prop_assert!(reading.skipped.iter().all(|s| s.line <= lines));
            prop_assert!(reading.rejected.iter().all(|r| r.line <= lines));
        }

        #[test]
        fn reads_any_encoded_block(der in proptest::collection::vec(any::<u8>(), 1..500), crlf: bool) {
            let text = block("CERTIFICATE", &der);
            let text = if crlf { text.replace('\n', "\r\n") } else { text };
            let reading = read(text.as_bytes());
            prop_assert_eq!(reading.blocks[0].content.as_slice(), der);
        }
    }
}
