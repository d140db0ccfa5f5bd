//! Lines as `BIO_gets` hands them out, and the base64 in them.

use zeroize::Zeroizing;

use super::Fault;

/// `BIO_gets` with a buffer of 254 bytes returns at most this many.
const LINE_MAX: usize = 253;

/// How the end of a line is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Char {
    /// x86-64: bytes from 0x80 up are negative, and trimmed.
    Signed,
    /// arm64.
    Unsigned,
}

#[derive(Clone)]
pub(super) struct Lines<'a> {
    pub(super) text: &'a [u8],
    pub(super) at: usize,
    pub(super) number: usize,
    char: Char,
}

impl<'a> Lines<'a> {
    pub(super) fn new(text: &'a [u8], char: Char) -> Self {
        Self { text, at: 0, number: 1, char }
    }
}

pub(super) struct Line<'a> {
    /// Without what is trimmed.
    pub(super) text: &'a [u8],
    pub(super) number: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        let rest = &self.text[self.at..];
        let window = &rest[..rest.len().min(LINE_MAX)];
        if window.is_empty() {
            return None;
        }
        let newline = window.iter().position(|b| *b == b'\n');
        let line = &window[..newline.map_or(window.len(), |n| n + 1)];
        let number = self.number;
        self.at += line.len();
        self.number += usize::from(newline.is_some());
        let blank = |b: &u8| *b <= b' ' || (self.char == Char::Signed && *b >= 0x80);
        let end = line.iter().rposition(|b| !blank(b)).map_or(0, |last| last + 1);
        Some(Line { text: &line[..end], number })
    }
}

/// Decodes up to the END line. Allocates once, so that no copy of a key stays behind in a reallocated buffer.
pub(super) fn decode(lines: Lines<'_>) -> Result<Zeroizing<Vec<u8>>, Fault> {
    let body = || lines.clone().take_while(|line| !line.text.starts_with(b"-----END "));
    let mut out = Zeroizing::new(Vec::with_capacity(body().map(|line| line.text.len()).sum::<usize>() / 4 * 3 + 3));
    let (mut group, mut used, mut padding) = (0_u32, 0, 0);
    for line in body() {
        for byte in line.text {
            let bits = match byte {
                b' ' | b'\t' | b'\r' | b'\n' => continue,
                _ if padding > 0 && used == 0 => return Err(Fault::Base64 { line: line.number }),
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                b'=' if used >= 2 => 0,
                _ => return Err(Fault::Base64 { line: line.number }),
            };
            if *byte == b'=' {
                padding += 1;
            } else if padding > 0 {
                return Err(Fault::Base64 { line: line.number });
            }
            group = group << 6 | u32::from(bits);
            used += 1;
            if used == 4 {
                // Unused low bits of the last group may be set: BoringSSL does not look at them.
                out.extend_from_slice(&group.to_be_bytes()[1..4 - padding]);
                (group, used) = (0, 0);
            }
        }
    }
    match (used, out.is_empty()) {
        (0, false) => Ok(out),
        (0, true) => Err(Fault::NoData),
        _ => Err(Fault::Base64Length),
    }
}
