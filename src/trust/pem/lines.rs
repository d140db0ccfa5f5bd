//! Lines, split as by `BIO_gets`, and the base64 in them.

use zeroize::Zeroizing;

use super::PemFault;

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
    /// Trimmed at the end.
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

/// Decodes up to the END line. Allocates once, so that no reallocation leaves a copy of a key.
pub(super) fn decode(lines: Lines<'_>) -> Result<Zeroizing<Vec<u8>>, PemFault> {
    let body = || lines.clone().take_while(|line| !line.text.starts_with(b"-----END "));
    let mut out = Zeroizing::new(Vec::with_capacity(body().map(|line| line.text.len()).sum::<usize>() / 4 * 3 + 3));
    let (mut group, mut used, mut padding) = (0_u32, 0, 0);
    for line in body() {
        // Decodes whole groups at once, since hostile texts are long, and the rest of the line byte by byte.
        let whole = if used == 0 && padding == 0 { groups(line.text, &mut out) } else { 0 };
        for byte in &line.text[whole..] {
            let bits = match byte {
                b' ' | b'\t' | b'\r' | b'\n' => continue,
                _ if padding > 0 && used == 0 => return Err(PemFault::Base64 { line: line.number }),
                b'=' if used >= 2 => 0,
                byte if DIGITS[usize::from(*byte)] < 64 => DIGITS[usize::from(*byte)],
                _ => return Err(PemFault::Base64 { line: line.number }),
            };
            if *byte == b'=' {
                padding += 1;
            } else if padding > 0 {
                return Err(PemFault::Base64 { line: line.number });
            }
            group = group << 6 | u32::from(bits);
            used += 1;
            if used == 4 {
                // Unused low bits of the last group may be set: BoringSSL ignores them.
                out.extend_from_slice(&group.to_be_bytes()[1..4 - padding]);
                (group, used) = (0, 0);
            }
        }
    }
    match (used, out.is_empty()) {
        (0, false) => Ok(out),
        (0, true) => Err(PemFault::NoData),
        _ => Err(PemFault::Base64Length),
    }
}

/// The value of each base64 digit (RFC 4648 section 4); 64 and more for other bytes.
const DIGITS: [u8; 256] = {
    let (mut digits, mut value) = ([u8::MAX; 256], 0);
    while value < 64 {
        digits[b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[value] as usize] = value as u8;
        value += 1;
    }
    digits
};

/// Decodes groups of four digits up to the first incomplete one, and returns their length in the text.
fn groups(text: &[u8], out: &mut Vec<u8>) -> usize {
    let (groups, _) = text.as_chunks::<4>();
    for (number, group) in groups.iter().enumerate() {
        let [a, b, c, d] = group.map(|byte| DIGITS[usize::from(byte)]);
        if (a | b | c | d) >= 64 {
            return number * 4;
        }
        out.extend_from_slice(&[a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d]);
    }
    groups.len() * 4
}
