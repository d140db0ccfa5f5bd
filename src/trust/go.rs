//! PEM and certificates, read as by Go: the API server and client-go.
//!
//! Modelled on `encoding/pem` (`Decode`), `crypto/x509` (`AppendCertsFromPEM`) and `crypto/tls` (`X509KeyPair`) of Go 1.26, and compared
//! with them by `tests/go_reader`. Where BoringSSL rejects a whole text, Go skips a block that is malformed, not a certificate, or has
//! headers. Its callers reject a bundle of which nothing is left.

mod certificate;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::bundle::{self, Bundle, BundleEntry, MAX_CERTIFICATES};
use super::limits::PRIVATE_KEY;
use super::malformed_pem::{self, Cause, MalformedPem};
use super::pem::{Block, PemFault, Rejection, printable_label};
use super::private_key::{KeyError, names_its_curve};

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"\n-----END ";
const DASHES: &[u8] = b"-----";

/// `base64.StdEncoding`: padded, and unused bits of the last group are ignored.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// Reads a CA bundle (`AppendCertsFromPEM`): blocks that are not certificates are left out.
pub(super) fn read(text: &[u8]) -> Bundle {
    let (blocks, skipped) = blocks(text);
    let mut bundle = Bundle { malformed: skipped, ..Bundle::default() };
    for block in &blocks {
        if bundle.entries.len() == MAX_CERTIFICATES {
            bundle.is_too_long = true;
            break;
        }
        match certificate::parse(&block.content) {
            _ if block.label != "CERTIFICATE" => bundle.skipped.extend(bundle::skipped(block)),
            _ if block.has_headers => bundle.malformed.push(left_out(block, Cause::Headers)),
            Some(certificate) => bundle.entries.push(BundleEntry { line: block.line, certificate }),
            None => bundle.malformed.push(left_out(block, Cause::NoCertificate)),
        }
    }
    bundle
}

/// Reads a client's chain (`X509KeyPair`): other blocks are skipped. Go parses the leaf only; it
/// sends a broken certificate after it, which the server rejects.
pub(super) fn read_chain(text: &[u8]) -> Bundle {
    let (blocks, skipped) = blocks(text);
    let mut bundle = Bundle { malformed: skipped, ..Bundle::default() };
    for block in &blocks {
        if block.label != "CERTIFICATE" {
            bundle.skipped.extend(bundle::skipped(block));
        } else if let Some(certificate) = certificate::parse(&block.content) {
            bundle.entries.push(BundleEntry { line: block.line, certificate });
        } else {
            let fault = PemFault::Content(Cause::NoCertificate.to_string());
            let label = printable_label(&block.label);
            bundle.rejected = Some(Rejection { begin: block.line, line: block.line, label, fault });
            break;
        }
    }
    bundle
}

/// The SubjectPublicKeyInfo (DER) of a private key, as for `tls.X509KeyPair`: of the first private key block, whatever its label says
/// about the type.
pub(super) fn public_key(pem: &[u8]) -> Result<Vec<u8>, KeyError> {
    let (blocks, _) = blocks(pem);
    let block = blocks.into_iter().find(|block| block.label == "PRIVATE KEY" || block.label.ends_with(" PRIVATE KEY"));
    let block = block.ok_or_else(|| KeyError::missing(pem))?;
    let line = block.line;
    if block.is_encrypted || block.label == "ENCRYPTED PRIVATE KEY" {
        return Err(KeyError::Encrypted { line });
    }
    let unsupported = || KeyError::Unsupported { line, label: printable_label(&block.label) };
    let der = Some(block.content.as_slice()).filter(|der| der.len() <= PRIVATE_KEY).ok_or_else(unsupported)?;
    let sec1 = || PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(der));
    let key = any_supported_type(&PrivateKeyDer::Pkcs1(PrivatePkcs1KeyDer::from(der)))
        .or_else(|_| any_supported_type(&PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der))));
    let key = key.ok().or_else(|| any_supported_type(&sec1()).ok().filter(|_| names_its_curve(der)));
    let public = key.and_then(|key| Some(key.public_key()?.as_ref().to_vec()));
    public.ok_or_else(unsupported)
}

fn left_out(block: &Block, cause: Cause) -> MalformedPem {
    MalformedPem { line: block.line, cause, digest: Sha256::digest(&*block.content).into() }
}

/// All blocks, and text between them that resembles one.
pub(super) fn blocks(text: &[u8]) -> (Vec<Block>, Vec<MalformedPem>) {
    let (mut blocks, mut skipped) = (Vec::new(), Vec::new());
    let (mut at, mut line) = (0, 1);
    loop {
        let found = decode(text, at);
        let end = found.as_ref().map_or(text.len(), |found| found.begin);
        malformed_pem::find(&text[at..end], line, &mut skipped);
        let Some(mut found) = found else { return (blocks, skipped) };
        line += newlines(&text[at..found.begin]);
        found.block.line = line;
        line += newlines(&text[found.begin..found.rest]);
        at = found.rest;
        blocks.push(found.block);
    }
}

fn newlines(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte == b'\n').count()
}

struct GoBlock {
    block: Block,
    /// The offset of its BEGIN.
    begin: usize,
    /// The offset of the rest.
    rest: usize,
}

/// `pem.Decode` from an offset: searches an END line, and the last BEGIN before it.
fn decode(text: &[u8], from: usize) -> Option<GoBlock> {
    // Where the search continues: after the END marker that was found last.
    let mut rest = from;
    loop {
        let end = rest + find(&text[rest..], END)?;
        let trailer = end + END.len();
        let before = &text[rest..end];
        let start = rest;
        rest = trailer;
        let Some(begin) = before.windows(BEGIN.len()).rposition(|window| window == BEGIN).map(|at| start + at) else {
            continue;
        };
        if begin > start && text[begin - 1] != b'\n' {
            continue;
        }
        let (label, mut body) = line(text, begin + BEGIN.len());
        let Some(label) = label.strip_suffix(DASHES) else {
            // Go continues after this END, unless the BEGIN line extends beyond it; then it stops.
            if body > trailer {
                return None;
            }
            continue;
        };
        let mut headers = Vec::new();
        loop {
            if body >= text.len() {
                return None;
            }
            let (header, next) = line(text, body);
            if !header.contains(&b':') {
                break;
            }
            headers.push(header);
            body = next;
        }
        if !headers.is_empty() && body > end {
            if body > trailer {
                return None;
            }
            continue;
        }
        let Some(closing) = text[trailer..].strip_prefix(label).and_then(|text| text.strip_prefix(DASHES)) else {
            continue;
        };
        if !line(closing, 0).0.is_empty() {
            continue;
        }
        // The line break before END belongs to the BEGIN line of an empty block.
        let body = text.get(body..end).unwrap_or_default();
        let Some(content) = base64(body) else { continue };
        let name = String::from_utf8_lossy(label).into_owned();
        let is_encrypted =
            headers.iter().any(|header| header.starts_with(b"Proc-Type") && header.ends_with(b"ENCRYPTED"));
        let block = Block { label: name, has_headers: !headers.is_empty(), is_encrypted, content, line: 0 };
        let (_, rest) = line(text, trailer);
        return Some(GoBlock { block, begin, rest });
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

/// The line at an offset, trimmed at its end as by Go, and the offset of the next one.
fn line(text: &[u8], at: usize) -> (&[u8], usize) {
    let rest = &text[at..];
    let (line, next) = match rest.iter().position(|byte| *byte == b'\n') {
        Some(end) => (rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]), at + end + 1),
        None => (rest, text.len()),
    };
    let end = line.iter().rposition(|byte| !matches!(byte, b' ' | b'\t')).map_or(0, |last| last + 1);
    (&line[..end], next)
}

fn base64(body: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let mut compact = Zeroizing::new(Vec::with_capacity(body.len()));
    compact.extend(body.iter().filter(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n')));
    BASE64.decode(&*compact).ok().map(Zeroizing::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::fixtures::{block, ca};

    fn seen(text: &str) -> (Vec<String>, Vec<(usize, Cause)>) {
        let bundle = read(text.as_bytes());
        let subjects = bundle.entries.iter().map(|entry| entry.certificate.subject.clone()).collect();
        (subjects, bundle.malformed.iter().map(|seen| (seen.line, seen.cause)).collect())
    }

    fn subjects(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| format!("CN={name}")).collect()
    }

    #[test]
    fn accepts_comments_line_ends_and_other_blocks() {
        let (one, two) = (ca("one").pem(), ca("two").pem());
        for text in [
            format!("# a comment\n{one}prose\n{two}"),
            format!("{one}{two}").replace('\n', "\r\n"),
            format!("{one}{}{two}", block("EC PARAMETERS", b"x")),
            format!("{one}{}", two.trim_end()),
        ] {
            assert_eq!(seen(&text), (subjects(&["one", "two"]), vec![]), "{text}");
        }
    }

    #[test]
    fn reports_blocks_that_go_leaves_out() {
        let (one, two) = (ca("one").pem(), ca("two").pem());
        let end = "-----END CERTIFICATE-----\n";
        for (bad, cause) in [
            (format!("\u{feff}{two}"), Cause::ByteOrderMark),
            (two.replacen("-----BEGIN", " -----BEGIN", 1), Cause::Indented),
            (two.replacen("CERTIFICATE-----\n", "CERTIFICATE----- x\n", 1), Cause::TextAfter),
            (two.replacen("CERTIFICATE-----\n", "CERTIFICATE-----\nBag: a\n\n", 1), Cause::Headers),
            (two.replace(end, "-----END CERTIFICATE----- x\n"), Cause::Broken),
            (two.replacen("MII", "M!I", 1), Cause::Broken),
            (block("CERTIFICATE", b"garbage"), Cause::NoCertificate),
            (block("CERTIFICATE", &[ca("a").der(), b"more"].concat()), Cause::NoCertificate),
        ] {
            assert_eq!(seen(&format!("{bad}{one}")), (subjects(&["one"]), vec![(1, cause)]), "{bad}");
            let line = 1 + one.lines().count();
            assert_eq!(seen(&format!("{one}{bad}")), (subjects(&["one"]), vec![(line, cause)]), "{bad}");
        }
    }

    #[test]
    fn leaves_out_both_blocks_without_a_line_break_between() {
        let (one, two) = (ca("one").pem(), ca("two").pem());
        let (taken, skipped) = seen(&format!("{}{two}", one.trim_end()));
        assert_eq!((taken.len(), skipped.is_empty()), (0, false), "{skipped:?}");
    }

    #[test]
    fn rejects_a_chain_with_a_broken_certificate() {
        let leaf = ca("one").leaf("a");
        assert_eq!(read_chain((leaf.pem() + &ca("one").pem()).as_bytes()).entries.len(), 2);
        assert!(read_chain((leaf.pem() + &block("CERTIFICATE", b"garbage")).as_bytes()).rejected.is_some());
    }
}
