//! Searches everything that processes of a run have printed, sent or reported for the private keys of that run.
//!
//! The keys are those that were ever stored in the cluster, from etcd's write-ahead log, and those in files of the run. A key that never left
//! the memory of a process is unknown here, such as that of a canary.

use std::{
    collections::HashSet,
    fmt::Write as _,
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};

/// Bytes of a key that count as a leak when they appear one after the other.
const WINDOW: usize = 12;
/// The same in base64, which has four characters for three bytes.
const BASE64: usize = WINDOW / 3 * 4;
/// The same in hexadecimal.
const HEX: usize = 2 * WINDOW;
/// Secret parts of a key are at least this long. Shorter ones are versions and public exponents.
const SHORTEST: usize = 16;
/// The longest secret part, of an RSA key of 8,192 bits. An expanded ML-DSA key is longer, and begins with public bytes.
const LONGEST: usize = 1025;
/// Bits of the filter before the sets, as a power of two.
const FILTER: u32 = 27;

/// Fails if a file of logs in this folder has part of a key.
pub(super) fn scan(folder: &Path) -> Result<()> {
    let mut files = Vec::new();
    collect(folder, &mut files)?;
    let (logs, others): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|file| file.extension().is_some_and(|extension| extension == "log"));
    let mut keys = HashSet::new();
    for file in &others {
        // A process may remove a file at any time.
        find_keys(&fs::read(file).unwrap_or_default(), &mut keys);
    }
    let needles = Needles::of(&keys)?;
    let mut bytes = 0;
    for log in &logs {
        let text = match fs::read(log) {
            // The kubelet removes the log of a deleted pod at any time.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text.with_context(|| log.display().to_string())?,
        };
        bytes += text.len();
        if let Some(at) = needles.first_in(&text) {
            // Not the text itself: it may be a key.
            anyhow::bail!("{} has part of a private key at byte {at}", log.display());
        }
    }
    eprintln!(
        "private keys: none of {} ({} patterns) in {} MiB of {} logs",
        keys.len(),
        needles.number(),
        bytes >> 20,
        logs.len()
    );
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = match fs::read_dir(folder) {
        // A process may remove a folder at any time.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| folder.display().to_string())?,
    };
    for entry in entries {
        let entry = entry?;
        match entry.file_type()? {
            kind if kind.is_dir() => collect(&entry.path(), files)?,
            kind if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    Ok(())
}

/// The PEM blocks of private keys in a file, which may be binary otherwise.
fn find_keys(mut bytes: &[u8], keys: &mut HashSet<Vec<u8>>) {
    const END: &[u8] = b"PRIVATE KEY-----";
    // The longest, of a post-quantum key.
    const BLOCK: usize = 16 << 10;
    while let Some(at) = find(bytes, b"-----BEGIN ") {
        bytes = &bytes[at..];
        let line = bytes.iter().take(64).position(|byte| *byte == b'\n').unwrap_or_default();
        let block = &bytes[..bytes.len().min(BLOCK)];
        if bytes[..line].trim_ascii_end().ends_with(END)
            && let Some(end) = find(&block[line..], END)
        {
            keys.insert(block[..line + end + END.len()].to_vec());
        }
        bytes = &bytes[1..];
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, part)
}

/// Each window of the secret parts of keys, in each encoding.
struct Needles {
    filter: Vec<u64>,
    raw: HashSet<[u8; WINDOW]>,
    base64: HashSet<[u8; BASE64]>,
    hex: HashSet<[u8; HEX]>,
}

impl Needles {
    fn of(keys: &HashSet<Vec<u8>>) -> Result<Self> {
        let filter = vec![0; 1 << (FILTER - 6)];
        let mut needles = Self { filter, raw: HashSet::new(), base64: HashSet::new(), hex: HashSet::new() };
        let mut planted = Vec::new();
        for pem in keys {
            // Tests store malformed keys, too.
            let Ok(key) = PrivateKeyDer::from_pem_slice(pem) else { continue };
            let der = key.secret_der();
            for part in secret_parts(der) {
                let texts = encodings(pem, der, &part);
                needles.add(&der[part.clone()], &texts);
                planted =
                    texts.0.into_iter().chain(texts.1).map(String::into_bytes).chain([der[part].to_vec()]).collect();
            }
        }
        for text in planted {
            let log = [b"a log with ".as_slice(), &text, b" in it"].concat();
            ensure!(needles.first_in(&log).is_some(), "a key that was planted was not found");
        }
        ensure!(needles.first_in(&vec![b'a'; 1 << 10]).is_none(), "a key was found where none was planted");
        Ok(needles)
    }

    fn number(&self) -> usize {
        self.raw.len() + self.base64.len() + self.hex.len()
    }

    fn add(&mut self, part: &[u8], (base64, hex): &(Vec<String>, Vec<String>)) {
        for window in part.windows(WINDOW) {
            self.mark(window);
            self.raw.extend(<[u8; WINDOW]>::try_from(window));
        }
        for window in base64.iter().flat_map(|text| text.as_bytes().windows(BASE64)) {
            self.mark(window);
            self.base64.extend(<[u8; BASE64]>::try_from(window));
        }
        for window in hex.iter().flat_map(|text| text.as_bytes().windows(HEX)) {
            self.mark(window);
            self.hex.extend(<[u8; HEX]>::try_from(window));
        }
    }

    fn mark(&mut self, window: &[u8]) {
        let bit = bit(window.iter().take(8).fold(0, shifted));
        self.filter[bit >> 6] |= 1 << (bit & 63);
    }

    /// Where the first window begins.
    fn first_in(&self, text: &[u8]) -> Option<usize> {
        let mut last = 0;
        for (end, byte) in text.iter().enumerate() {
            last = shifted(last, byte);
            let bit = bit(last);
            if end >= 7 && self.filter[bit >> 6] & (1 << (bit & 63)) != 0 && self.begins(&text[end - 7..]) {
                return Some(end - 7);
            }
        }
        None
    }

    fn begins(&self, text: &[u8]) -> bool {
        text.first_chunk().is_some_and(|window| self.raw.contains(window))
            || text.first_chunk().is_some_and(|window| self.base64.contains(window))
            || text.first_chunk().is_some_and(|window| self.hex.contains(window))
    }
}

fn shifted(last: u64, byte: &u8) -> u64 {
    last << 8 | u64::from(*byte)
}

fn bit(window: u64) -> usize {
    usize::try_from(window.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - FILTER)).unwrap_or_default()
}

/// A secret part in base64 and in hexadecimal. In base64: at each of three offsets, and that of the PEM block, as in the manifest of a Secret.
fn encodings(pem: &[u8], der: &[u8], part: &Range<usize>) -> (Vec<String>, Vec<String>) {
    let secret = &der[part.clone()];
    // Without the characters that depend on the bytes before and after.
    let inner = |bytes: &[u8], offset: usize| {
        let text = STANDARD.encode([&vec![0; offset], bytes].concat());
        let end = (offset + bytes.len()) * 4 / 3;
        text.get((offset * 4).div_ceil(3)..end).unwrap_or_default().to_owned()
    };
    let mut base64: Vec<_> = (0..3).map(|offset| inner(secret, offset)).collect();
    // The characters of the block that hold the secret part.
    let (first, last) = ((part.start * 4).div_ceil(3), part.end * 4 / 3);
    let body = pem.iter().position(|byte| *byte == b'\n').unwrap_or_default() + 1;
    let characters = pem.iter().enumerate().skip(body).filter(|(_, byte)| !byte.is_ascii_whitespace());
    let characters: Vec<_> = characters.map(|(at, _)| at).collect();
    if let (Some(first), Some(last)) = (characters.get(first), characters.get(last)) {
        base64.extend((0..3).map(|offset| inner(&pem[*first..*last], offset)));
    }
    let hex = |upper: bool| {
        secret.iter().fold(String::new(), |mut text, byte| {
            let _ = if upper { write!(text, "{byte:02X}") } else { write!(text, "{byte:02x}") };
            text
        })
    };
    (base64, vec![hex(false), hex(true)])
}

/// Where the secret numbers of a key are in its DER (RFC 5208, RFC 5915, RFC 8017): octet strings, and for RSA all numbers after the modulus.
fn secret_parts(der: &[u8]) -> Vec<Range<usize>> {
    let mut leaves = Vec::new();
    read(der, 0, &mut leaves);
    let is_number = |(tag, range): &&(u8, Range<usize>)| *tag == 0x02 && range.len() >= SHORTEST;
    let numbers = leaves.iter().filter(is_number).skip(1);
    let strings = leaves.iter().filter(|(tag, range)| *tag == 0x04 && range.len() >= SHORTEST);
    numbers.chain(strings).map(|(_, range)| range.clone()).filter(|range| range.len() <= LONGEST).collect()
}

/// Adds tag and content of each primitive value. `None` if it is not DER.
fn read(der: &[u8], mut at: usize, leaves: &mut Vec<(u8, Range<usize>)>) -> Option<()> {
    let end = at + der.len();
    let mut rest = der;
    while let [tag, after @ ..] = rest {
        let (&length, after) = after.split_first()?;
        let size = usize::from(length & 0x7f);
        let (length, header) = match length {
            0..0x80 => (size, 2),
            _ => (after.get(..size)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), 2 + size),
        };
        let content = rest.get(header..header.checked_add(length)?)?;
        let mut inner = Vec::new();
        let is_nested = tag & 0x20 != 0 || *tag == 0x04 && matches!(content, [0x30 | 0x04, ..]);
        if is_nested && read(content, at + header, &mut inner).is_some() {
            leaves.extend(inner);
        } else {
            leaves.push((*tag, at + header..at + header + length));
        }
        at += header + length;
        rest = &rest[header + length..];
    }
    (at == end).then_some(())
}
