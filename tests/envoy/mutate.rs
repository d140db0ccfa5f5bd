//! Mutations of PEM texts that people and tools cause.

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{
    pki::{block, element},
    testbed::Seed,
};

/// Applies `count` mutations, and returns their names.
pub(crate) fn mutate(text: &mut Vec<u8>, count: u64, seed: &mut Seed) -> String {
    let mut description = Vec::new();
    for _ in 0..count {
        let (name, change) = MUTATIONS[seed.below(MUTATIONS.len() as u64) as usize];
        change(text, seed);
        description.push(name);
    }
    description.join(", ")
}

type Mutation = (&'static str, fn(&mut Vec<u8>, &mut Seed));

const MUTATIONS: &[Mutation] = &[
    ("byte order mark", |text, _| insert(text, 0, b"\xEF\xBB\xBF")),
    ("byte order mark at a line", |text, seed| at_line(text, seed, b"\xEF\xBB\xBF")),
    ("CRLF", |text, _| replace(text, b"\n", b"\r\n")),
    ("CR alone", |text, _| replace(text, b"\n", b"\r")),
    ("a line break lost", |text, seed| one(text, b"\n", b"", seed)),
    ("a line break lost after END", |text, seed| one(text, b"-----\n-----", b"----------", seed)),
    ("a line break turned into a blank", |text, seed| one(text, b"\n", b" ", seed)),
    ("line breaks as \\n", |text, _| replace(text, b"\n", b"\\n")),
    ("an empty line", |text, seed| at_line(text, seed, b"\n")),
    ("an empty line after BEGIN", |text, seed| one(text, b"CERTIFICATE-----\n", b"CERTIFICATE-----\n\n", seed)),
    ("an indented line", |text, seed| at_line(text, seed, b"  ")),
    ("a line after a tab", |text, seed| at_line(text, seed, b"\t")),
    ("everything indented", |text, _| {
        replace(text, b"\n", b"\n    ");
        insert(text, 0, b"    ");
    }),
    ("blanks at a line's end", |text, seed| one(text, b"\n", b" \t \n", seed)),
    ("quoted", |text, _| {
        insert(text, 0, b"\"");
        text.push(b'"');
    }),
    ("quoted as mail", |text, seed| at_line(text, seed, b"> ")),
    ("a comment", |text, seed| at_line(text, seed, b"# a comment\n")),
    ("a comment glued", |text, seed| at_line(text, seed, b"# ")),
    ("prose before a block", |text, seed| one(text, b"-----BEGIN", b"Subject: CN=x, Issuer: CN=y\n-----BEGIN", seed)),
    ("text before BEGIN", |text, seed| one(text, b"-----BEGIN", b"root: -----BEGIN", seed)),
    ("text after BEGIN", |text, seed| one(text, b"CERTIFICATE-----\n", b"CERTIFICATE----- # root\n", seed)),
    ("six dashes", |text, seed| one(text, b"-----", b"------", seed)),
    ("four dashes", |text, seed| one(text, b"-----", b"----", seed)),
    ("long dashes", |text, seed| one(text, b"-----BEGIN", "–––––BEGIN".as_bytes(), seed)),
    ("a no-break space at a line's end", |text, seed| one(text, b"\n", b"\xC2\xA0\n", seed)),
    ("lower case", |text, seed| one(text, b"CERTIFICATE", b"certificate", seed)),
    ("BEGIN lost", |text, seed| one(text, b"-----BEGIN CERTIFICATE-----\n", b"", seed)),
    ("END lost", |text, seed| one(text, b"-----END CERTIFICATE-----\n", b"", seed)),
    ("another END", |text, seed| one(text, b"END CERTIFICATE", b"END CERTIFICATES", seed)),
    ("another BEGIN", |text, seed| one(text, b"BEGIN CERTIFICATE", b"BEGIN X509 CRL", seed)),
    ("X509 CERTIFICATE", |text, seed| relabel(text, "X509 CERTIFICATE", seed)),
    ("TRUSTED CERTIFICATE", |text, seed| relabel(text, "TRUSTED CERTIFICATE", seed)),
    ("PKCS7", |text, seed| relabel(text, "PKCS7", seed)),
    ("trust settings", |text, seed| on_block(text, seed, with_settings)),
    ("PKCS #7", |text, seed| on_block(text, seed, as_pkcs7)),
    ("CERTIFICATE REQUEST", |text, seed| relabel(text, "CERTIFICATE REQUEST", seed)),
    ("CERT", |text, seed| relabel(text, "CERT", seed)),
    ("X509 CRL", |text, seed| relabel(text, "X509 CRL", seed)),
    ("PRIVATE KEY", |text, seed| relabel(text, "PRIVATE KEY", seed)),
    ("RSA PRIVATE KEY", |text, seed| relabel(text, "RSA PRIVATE KEY", seed)),
    ("an empty label", |text, seed| relabel(text, "", seed)),
    ("a header", |text, seed| {
        one(
            text,
            b"CERTIFICATE-----\n",
            b"CERTIFICATE-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n",
            seed,
        );
    }),
    ("another header", |text, seed| one(text, b"CERTIFICATE-----\n", b"CERTIFICATE-----\nBag: a\n\n", seed)),
    ("a header without blank line", |text, seed| {
        one(text, b"CERTIFICATE-----\n", b"CERTIFICATE-----\nfriendlyName: a\n", seed);
    }),
    ("a garbage block", |text, seed| at_block(text, seed, block("CERTIFICATE", b"garbage").as_bytes())),
    ("an empty block", |text, seed| at_block(text, seed, block("CERTIFICATE", b"").as_bytes())),
    ("a block of another kind", |text, seed| at_block(text, seed, block("DH PARAMETERS", b"\x30\x00").as_bytes())),
    ("an empty block of another kind", |text, seed| at_block(text, seed, block("DH PARAMETERS", b"").as_bytes())),
    ("EC PARAMETERS", |text, seed| at_block(text, seed, block("EC PARAMETERS", b"\x06\x01\x2a").as_bytes())),
    ("a broken key block", |text, seed| at_block(text, seed, block("PRIVATE KEY", b"garbage").as_bytes())),
    ("a broken traditional key block", |text, seed| {
        at_block(text, seed, block("EC PRIVATE KEY", b"\x30\x00").as_bytes())
    }),
    ("an empty key block", |text, seed| at_block(text, seed, block("RSA PRIVATE KEY", b"").as_bytes())),
    ("an encrypted key block", |text, seed| {
        at_block(text, seed, block("ENCRYPTED PRIVATE KEY", b"\x30\x00").as_bytes());
    }),
    ("a block doubled", |text, seed| on_block(text, seed, |block, _| block.repeat(2))),
    ("a block lost", |text, seed| on_block(text, seed, |_, _| Vec::new())),
    ("a block commented out", |text, seed| {
        on_block(text, seed, |block, _| {
            block.split_inclusive(|b| *b == b'\n').flat_map(|l| [b"# ", l].concat()).collect()
        });
    }),
    ("other line lengths", |text, seed| on_block(text, seed, rewrap)),
    ("trailing DER", |text, seed| on_der(text, seed, |der, _| der.extend_from_slice(b"more"))),
    ("trailing element", |text, seed| on_der(text, seed, |der, _| der.extend_from_slice(&[0x30, 3, 12, 1, b'a']))),
    ("cut DER", |text, seed| on_der(text, seed, |der, seed| der.truncate(seed.below(der.len() as u64 + 1) as usize))),
    ("a DER byte", |text, seed| on_der(text, seed, |der, seed| change_byte(der, seed))),
    ("a DER byte again", |text, seed| on_der(text, seed, |der, seed| change_byte(der, seed))),
    ("a DER bit", |text, seed| {
        on_der(text, seed, |der, seed| {
            if let Some(byte) = pick(der, seed) {
                *byte ^= 1 << seed.below(8);
            }
        });
    }),
    ("two blocks in one", |text, seed| {
        one(text, b"-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\n", b"", seed);
    }),
    ("base64 of it all", |text, _| *text = STANDARD.encode(&*text).into_bytes()),
    ("padding lost", |text, seed| one(text, b"=", b"", seed)),
    ("padding", |text, seed| one(text, b"\n-----END", b"=\n-----END", seed)),
    ("padding inside", |text, seed| one(text, b"A", b"=", seed)),
    ("URL base64", |text, _| {
        replace(text, b"+", b"-");
        replace(text, b"/", b"_");
    }),
    ("UTF-16", |text, _| *text = text.iter().flat_map(|b| [*b, 0]).collect()),
    ("truncated", |text, seed| text.truncate(seed.below(text.len() as u64 + 1) as usize)),
    ("the start cut off", |text, seed| drop(text.drain(..seed.below(text.len() as u64 + 1) as usize))),
    ("the last line break lost", |text, _| text.truncate(text.len().saturating_sub(1))),
    ("text at the end", |text, _| text.extend_from_slice(b"trailing")),
    ("NUL at the end", |text, _| text.push(0)),
    ("a line lost", |text, seed| on_lines(text, seed, |lines, at, _| drop(lines.remove(at)))),
    ("a line doubled", |text, seed| on_lines(text, seed, |lines, at, _| lines.insert(at, lines[at].clone()))),
    ("two lines swapped", |text, seed| {
        on_lines(text, seed, |lines, at, seed| {
            let other = seed.below(lines.len() as u64) as usize;
            lines.swap(at, other);
        });
    }),
    ("a byte changed", |text, seed| change_byte(text, seed)),
    ("a byte inserted", |text, seed| {
        let at = seed.below(text.len() as u64 + 1) as usize;
        text.insert(at, seed.below(256) as u8);
    }),
    ("a control byte inserted", |text, seed| {
        let at = seed.below(text.len() as u64 + 1) as usize;
        text.insert(at, seed.below(33) as u8);
    }),
    ("a byte lost", |text, seed| {
        if !text.is_empty() {
            text.remove(seed.below(text.len() as u64) as usize);
        }
    }),
];

fn insert(text: &mut Vec<u8>, at: usize, what: &[u8]) {
    text.splice(at..at, what.iter().copied());
}

fn places(text: &[u8], what: &[u8]) -> Vec<usize> {
    let (mut places, mut at) = (Vec::new(), 0);
    while at + what.len() <= text.len() {
        if text[at..].starts_with(what) {
            places.push(at);
            at += what.len();
        } else {
            at += 1;
        }
    }
    places
}

/// Replaces all occurrences.
fn replace(text: &mut Vec<u8>, from: &[u8], to: &[u8]) {
    for at in places(text, from).into_iter().rev() {
        text.splice(at..at + from.len(), to.iter().copied());
    }
}

/// Replaces one occurrence, if there is any.
fn one(text: &mut Vec<u8>, from: &[u8], to: &[u8], seed: &mut Seed) {
    let places = places(text, from);
    if !places.is_empty() {
        let at = places[seed.below(places.len() as u64) as usize];
        text.splice(at..at + from.len(), to.iter().copied());
    }
}

fn pick<'a, T>(items: &'a mut [T], seed: &mut Seed) -> Option<&'a mut T> {
    let at = seed.below(items.len().max(1) as u64) as usize;
    items.get_mut(at)
}

fn change_byte(text: &mut [u8], seed: &mut Seed) {
    let value = seed.below(256) as u8;
    if let Some(byte) = pick(text, seed) {
        *byte = value;
    }
}

fn on_lines(text: &mut Vec<u8>, seed: &mut Seed, change: fn(&mut Vec<Vec<u8>>, usize, &mut Seed)) {
    let mut lines: Vec<_> = text.split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect();
    if !lines.is_empty() {
        let at = seed.below(lines.len() as u64) as usize;
        change(&mut lines, at, seed);
    }
    *text = lines.concat();
}

fn at_line(text: &mut Vec<u8>, seed: &mut Seed, what: &[u8]) {
    let mut starts = vec![0];
    starts.extend(places(text, b"\n").into_iter().map(|at| at + 1));
    // Most lines are base64, but BEGIN and END matter most.
    let markers = places(text, b"-----BEGIN").into_iter().chain(places(text, b"-----END"));
    let markers: Vec<_> = markers.filter(|at| starts.contains(at)).collect();
    let from = if seed.below(2) == 0 && !markers.is_empty() { markers } else { starts };
    insert(text, from[seed.below(from.len() as u64) as usize], what);
}

/// Inserts bytes before a block, or at the end.
fn at_block(text: &mut Vec<u8>, seed: &mut Seed, what: &[u8]) {
    let mut starts = places(text, b"-----BEGIN");
    starts.push(text.len());
    insert(text, starts[seed.below(starts.len() as u64) as usize], what);
}

fn on_block(text: &mut Vec<u8>, seed: &mut Seed, change: impl FnOnce(&[u8], &mut Seed) -> Vec<u8>) {
    let (begins, ends) = (places(text, b"-----BEGIN CERTIFICATE-----\n"), places(text, b"-----END CERTIFICATE-----\n"));
    if begins.is_empty() {
        return;
    }
    let begin = begins[seed.below(begins.len() as u64) as usize];
    if let Some(end) = ends.into_iter().find(|end| *end > begin) {
        let end = end + b"-----END CERTIFICATE-----\n".len();
        let changed = change(&text[begin..end], seed);
        text.splice(begin..end, changed);
    }
}

fn relabel(text: &mut Vec<u8>, label: &str, seed: &mut Seed) {
    on_block(text, seed, |block, _| {
        let mut block = block.to_vec();
        replace(&mut block, b"CERTIFICATE", label.as_bytes());
        block
    });
}

fn body(block: &[u8]) -> Option<Vec<u8>> {
    let lines: Vec<_> = block.split(|b| *b == b'\n').filter(|line| !line.starts_with(b"-----")).collect();
    STANDARD.decode(lines.concat()).ok()
}

/// The certificate of a block with OpenSSL's trust settings, as `openssl x509 -addtrust -addreject -setalias -trustout` writes it.
fn with_settings(before: &[u8], seed: &mut Seed) -> Vec<u8> {
    body(before).map_or_else(|| before.to_vec(), |der| with_trust_settings(&der, seed).into_bytes())
}

/// A certificate with OpenSSL's trust settings.
pub(crate) fn with_trust_settings(der: &[u8], seed: &mut Seed) -> String {
    // clientAuth, serverAuth, emailProtection, anyExtendedKeyUsage.
    const PURPOSES: [&[u8]; 4] = [
        &[0x2b, 6, 1, 5, 5, 7, 3, 2],
        &[0x2b, 6, 1, 5, 5, 7, 3, 1],
        &[0x2b, 6, 1, 5, 5, 7, 3, 4],
        &[0x55, 0x1d, 0x25, 0],
    ];
    let mut purposes = || {
        let chosen = PURPOSES.iter().filter(|_| seed.below(3) == 0);
        chosen.flat_map(|purpose| element(6, purpose)).collect::<Vec<_>>()
    };
    let (trusted, rejected) = (purposes(), purposes());
    let list = |tag, purposes: Vec<u8>| if purposes.is_empty() { purposes } else { element(tag, &purposes) };
    let settings = element(0x30, &[list(0x30, trusted), list(0xa0, rejected), element(12, b"alias")].concat());
    block("TRUSTED CERTIFICATE", &[der, &settings].concat())
}

/// The certificate of a block as SignedData without signatures (RFC 5652 section 5.1), as `openssl crl2pkcs7` writes it.
fn as_pkcs7(before: &[u8], seed: &mut Seed) -> Vec<u8> {
    const ID_SIGNED_DATA: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 2];
    const ID_DATA: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 1];
    let Some(der) = body(before) else { return before.to_vec() };
    let content = element(0x30, &element(6, &ID_DATA));
    let signed = [element(2, &[1]), element(0x31, &[]), content, element(0xa0, &der), element(0x31, &[])].concat();
    let all = element(0x30, &[element(6, &ID_SIGNED_DATA), element(0xa0, &element(0x30, &signed))].concat());
    let label = ["PKCS7", "PKCS #7 SIGNED DATA", "CMS"][seed.below(3) as usize];
    block(label, &all).into_bytes()
}

fn on_der(text: &mut Vec<u8>, seed: &mut Seed, change: impl FnOnce(&mut Vec<u8>, &mut Seed)) {
    on_block(text, seed, |before, seed| {
        let Some(mut der) = body(before) else { return before.to_vec() };
        change(&mut der, seed);
        block("CERTIFICATE", &der).into_bytes()
    });
}

/// Line lengths around the 253 bytes that `BIO_gets` reads at once, and others that tools write.
const WIDTHS: &[usize] = &[1, 3, 60, 63, 65, 76, 120, 252, 253, 254, 255, 256, 506, 507, 1_000, 100_000];

fn rewrap(block: &[u8], seed: &mut Seed) -> Vec<u8> {
    let Some(der) = body(block) else { return block.to_vec() };
    let width = WIDTHS[seed.below(WIDTHS.len() as u64) as usize];
    let text = STANDARD.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(width).map(|line| [line, b"\n"].concat()).collect();
    [b"-----BEGIN CERTIFICATE-----\n", lines.concat().as_slice(), b"-----END CERTIFICATE-----\n"].concat()
}
