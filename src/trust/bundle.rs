//! The certificates of a PEM text, loaded as by Envoy: a CA bundle, or a serving chain.

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::certificate::{Certificate, CertificateError};
use super::chain::Crl;
use super::limits::BUNDLE_KEYS;
use super::malformed_pem::MalformedPem;
use super::pem::{self, Block, Char, PemFault, Rejection};
use super::{der, private_key};

pub use super::limits::MAX_CERTIFICATES;

/// The content of a PEM text.
#[derive(Clone, Debug, Default)]
pub struct Bundle {
    /// The certificates, in their order.
    pub entries: Vec<BundleEntry>,
    /// The revocation lists, in their order.
    pub crls: Vec<Crl>,
    /// Why the proxy rejects the text. `entries` then ends before the fault.
    pub rejected: Option<Rejection>,
    /// Skipped text that resembles a block.
    pub malformed: Vec<MalformedPem>,
    /// Blocks that are skipped for their label.
    pub skipped: Vec<SkippedBlock>,
    /// Whether there are more than [`MAX_CERTIFICATES`].
    pub is_too_long: bool,
}

/// A certificate and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleEntry {
    /// The line of its BEGIN, counted from 1.
    pub line: usize,
    /// The certificate.
    pub certificate: Certificate,
}

/// A block that the proxy skips.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedBlock {
    /// The line of its BEGIN.
    pub line: usize,
    /// Its label, printable.
    pub label: String,
    /// Whether it has a certificate, or its label claims so.
    pub is_certificate: bool,
    /// Whether it has certificates in the form of PKCS #7 (RFC 5652 section 5).
    pub is_pkcs7: bool,
    /// Whether its content is a revocation list.
    pub is_list: bool,
}

/// Reads a CA bundle (Envoy: `PEM_X509_INFO_read_bio` over the whole text).
pub fn read(pem: &[u8]) -> Bundle {
    read_with(pem, |_, label| match label {
        "CERTIFICATE" | "X509 CERTIFICATE" => Role::Certificate { aux: false },
        "TRUSTED CERTIFICATE" => Role::Certificate { aux: true },
        "X509 CRL" => Role::Crl,
        // Proxies ignore these keys after they have parsed them. PKCS #8 is not parsed at all.
        "RSA PRIVATE KEY" | "EC PRIVATE KEY" | "DSA PRIVATE KEY" => Role::Key,
        _ => Role::Other,
    })
}

/// Reads a serving chain (Envoy: `PEM_read_bio_X509_AUX` for the leaf, `PEM_read_bio_X509` for the rest).
pub fn read_chain(pem: &[u8]) -> Bundle {
    read_with(pem, |count, label| match label {
        // OpenSSL's trust settings may follow the leaf, whatever its label.
        "CERTIFICATE" | "X509 CERTIFICATE" => Role::Certificate { aux: count == 0 },
        "TRUSTED CERTIFICATE" if count == 0 => Role::Certificate { aux: true },
        _ => Role::Other,
    })
}

impl Bundle {
    /// The certificates, without their lines.
    pub fn into_certificates(self) -> Vec<Certificate> {
        self.entries.into_iter().map(|entry| entry.certificate).collect()
    }
}

/// How a reader treats a block.
enum Role {
    Certificate { aux: bool },
    Crl,
    Key,
    Other,
}

/// Reads as on both platforms ([`pem`]), and returns the worse result: a block that only one of them sees can be what the text is rejected for.
fn read_with(pem: &[u8], role: impl Fn(usize, &str) -> Role) -> Bundle {
    let signed = read_as(pem, Char::Signed, &role);
    if signed.rejected.is_some() || pem.is_ascii() { signed } else { read_as(pem, Char::Unsigned, &role) }
}

fn read_as(pem: &[u8], char: Char, role: impl Fn(usize, &str) -> Role) -> Bundle {
    let reading = pem::read_as(pem, char);
    let mut bundle = Bundle { rejected: reading.rejected, malformed: reading.skipped, ..Bundle::default() };
    let mut keys = 0;
    for block in &reading.blocks {
        let fault = match role(bundle.entries.len(), &block.label) {
            Role::Certificate { .. } if bundle.entries.len() == MAX_CERTIFICATES => {
                bundle.is_too_long = true;
                break;
            }
            Role::Certificate { aux } => certificate(block, aux).map(|certificate| {
                let trailing = &block.content[certificate.der.len()..];
                // `d2i_X509` reads the first and ignores the rest.
                if trailing.len() >= ANOTHER {
                    bundle.malformed.push(MalformedPem::same_block(block.line, trailing));
                }
                bundle.entries.push(BundleEntry { line: block.line, certificate });
            }),
            Role::Crl => crl(block).map(|crl| bundle.crls.push(crl)),
            Role::Key => {
                bundle.skipped.extend(skipped(block));
                keys += 1;
                key(block, keys)
            }
            Role::Other => {
                bundle.skipped.extend(skipped(block));
                Ok(())
            }
        };
        if let Err(what) = fault {
            // A fault in a block comes before a fault in the PEM syntax after it.
            let label = pem::printable_label(&block.label);
            let fault = PemFault::Content(what);
            bundle.rejected = Some(Rejection { begin: block.line, line: block.line, label, fault });
            break;
        }
    }
    bundle
}

/// Bytes after a certificate that count as another one. Where a line of the first is missing, the reader takes its end from the second, and no
/// complete one remains. The shortest certificates have about three times as many.
const ANOTHER: usize = 64;

fn certificate(block: &Block, aux: bool) -> Result<Certificate, String> {
    if block.has_headers {
        // BoringSSL (`PEM_get_EVP_CIPHER_INFO`) reads headers as a sign of encryption, and Envoy has no password for a bundle.
        return Err("text precedes a blank line after BEGIN; remove both".to_owned());
    }
    let mut certificate = Certificate::parse(&block.content).map_err(|error| match is_signed_data(&block.content) {
        true => "it has the form of PKCS #7; convert it: openssl pkcs7 -print_certs -in FILE, with the label PKCS7"
            .to_owned(),
        false => error.to_string(),
    })?;
    let trailing = &block.content[certificate.der.len()..];
    if aux && !trailing.is_empty() && !der::is_aux(trailing) {
        return Err("bytes follow the certificate in its block; remove them".to_owned());
    }
    certificate.trusts_clients = der::trusts_clients(trailing).filter(|_| aux);
    Ok(certificate)
}

/// A private key, the `number`th of its text: a malformed one makes Envoy reject the whole text.
fn key(block: &Block, number: usize) -> Result<(), String> {
    // An encrypted key is not decrypted, but its headers are parsed, by rules that only BoringSSL has (`PEM_get_EVP_CIPHER_INFO`).
    match number <= BUNDLE_KEYS && private_key::is_readable(block) {
        true => Ok(()),
        false => Err("a private key that the proxy may be unable to read; remove it".to_owned()),
    }
}

fn crl(block: &Block) -> Result<Crl, String> {
    if block.has_headers {
        return Err("text precedes a blank line after BEGIN; remove both".to_owned());
    }
    Crl::parse(&block.content).map_err(|what| format!("not a revocation list: {what}"))
}

pub(super) fn skipped(block: &Block) -> Option<SkippedBlock> {
    // Content that parses as a certificate is meant as one, whatever its label.
    let parses = !matches!(Certificate::parse(&block.content), Err(CertificateError::Shape(_)));
    if private_key::is_label(&block.label) && !parses {
        return None;
    }
    let label = block.label.to_ascii_uppercase();
    let is_request = || label.contains("REQUEST") && X509CertificationRequest::from_der(&block.content).is_ok();
    // A block without a label may be a certificate with a blank line in it, which turns the lines before into headers.
    let claims = label.is_empty() || label.contains("PKCS7") || label.contains("CERT") && !is_request();
    let is_pkcs7 = is_signed_data(&block.content);
    let is_certificate = claims || parses || is_pkcs7;
    let is_list = Crl::parse(&block.content).is_ok();
    Some(SkippedBlock {
        line: block.line,
        label: pem::printable_label(&block.label),
        is_certificate,
        is_pkcs7,
        is_list,
    })
}

/// The OBJECT IDENTIFIER id-signedData, with its header.
const SIGNED_DATA: [u8; 11] = [6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 2];

/// Whether a SEQUENCE begins with that identifier: tools write PKCS #7 under several labels.
fn is_signed_data(content: &[u8]) -> bool {
    // The header of a SEQUENCE of at most 4 GiB has 2 to 6 bytes.
    let found = content.windows(SIGNED_DATA.len()).take(7).position(|window| window == SIGNED_DATA);
    content.first() == Some(&0x30) && found.is_some_and(|at| at >= 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trust::fixtures::{block, ca};
    use crate::trust::malformed_pem::Cause;

    #[test]
    fn accepts_trust_settings_after_a_trusted_certificate() {
        let one = ca("one");
        let settings = |bytes: &[u8]| [one.der(), bytes].concat();
        // SEQUENCE { UTF8String "a" }
        let valid = settings(&[0x30, 3, 12, 1, b'a']);
        let broken = settings(&[0x30, 3, 1, 1, 0xff]);
        assert_eq!(read(block("TRUSTED CERTIFICATE", &valid).as_bytes()).entries[0].certificate.der, one.der());
        assert!(read(block("TRUSTED CERTIFICATE", &broken).as_bytes()).rejected.is_some());
        // With another label the rest is ignored, except after a chain's leaf.
        assert_eq!(read(block("CERTIFICATE", &broken).as_bytes()).entries.len(), 1);
        assert!(read_chain(block("CERTIFICATE", &broken).as_bytes()).rejected.is_some());
        assert_eq!(read_chain((one.pem() + &block("CERTIFICATE", &broken)).as_bytes()).entries.len(), 2);
    }

    #[test]
    fn keeps_the_certificates_before_the_fault() {
        let text = format!("{}{}{}", ca("one").pem(), block("CERTIFICATE", b"garbage"), ca("two").pem());
        let bundle = read(text.as_bytes());
        assert_eq!(bundle.entries.iter().map(|e| e.certificate.subject.as_str()).collect::<Vec<_>>(), ["CN=one"]);
        assert_eq!(bundle.rejected.map(|r| r.label), Some("CERTIFICATE".to_owned()));
    }

    #[test]
    fn reports_a_second_certificate_in_a_block() {
        let text = block("CERTIFICATE", &[ca("one").der(), ca("two").der()].concat());
        let bundle = read(text.as_bytes());
        assert_eq!(bundle.entries.len(), 1);
        assert_eq!(
            bundle.malformed.iter().map(|seen| (seen.line, seen.cause)).collect::<Vec<_>>(),
            [(1, Cause::SameBlock)]
        );
        // Other bytes are between them, or it lacks its beginning.
        for second in [&[&[3, 1, 0], ca("two").der()].concat()[..], &ca("two").der()[6..]] {
            let text = block("CERTIFICATE", &[ca("one").der(), second].concat());
            assert_eq!(read(text.as_bytes()).malformed.len(), 1);
        }
        // A few bytes are ignored.
        let text = block("CERTIFICATE", &[ca("one").der(), b"more"].concat());
        assert_eq!(read(text.as_bytes()).malformed, []);
    }

    /// Found by comparison with BoringSSL: x86-64 reads this block, and rejects the text for it.
    #[test]
    fn rejects_what_only_one_platform_reads() {
        let (one, two) = (ca("one").pem(), ca("two").pem());
        let with = |after: &str| one.clone() + &two.replacen("-----\n", after, 1);
        let headers = read(with("-----\u{a0}\nBag: a\n\n").as_bytes());
        assert_eq!(headers.rejected.map(|rejection| rejection.line), Some(one.lines().count() + 1));
        let skipped = read(with("-----\u{a0}\n").as_bytes());
        assert_eq!((skipped.rejected, skipped.entries.len(), skipped.malformed.len()), (None, 1, 1));
    }

    #[test]
    fn reports_a_certificate_under_the_label_of_a_key() {
        let text = ca("one").pem() + &block("RSA PRIVATE KEY", ca("two").der()) + &block("PRIVATE KEY", b"key");
        assert_eq!(read_chain(text.as_bytes()).skipped.iter().map(|s| s.is_certificate).collect::<Vec<_>>(), [true]);
    }

    /// Found by comparison with BoringSSL: Envoy rejects the whole text for a malformed key in it.
    #[test]
    fn rejects_a_malformed_private_key() {
        let (one, leaf) = (ca("one"), ca("one").leaf("a"));
        let is_rejected = |key: &str| read((one.pem() + key).as_bytes()).rejected.is_some();
        assert!(!is_rejected(&leaf.traditional_key_pem()) && !is_rejected(&leaf.key_pem()));
        assert!(!is_rejected(&block("PRIVATE KEY", b"key")), "it is not read");
        for label in ["RSA PRIVATE KEY", "EC PRIVATE KEY", "DSA PRIVATE KEY"] {
            assert!(is_rejected(&block(label, b"key")), "{label}");
            let headers = "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n";
            assert!(
                is_rejected(&block(label, b"key").replacen("KEY-----\n", headers, 1)),
                "{label}: the IV is too short"
            );
        }
        assert!(!is_rejected(&leaf.traditional_key_pem().repeat(BUNDLE_KEYS)));
        assert!(is_rejected(&leaf.traditional_key_pem().repeat(BUNDLE_KEYS + 1)), "each takes time");
        assert!(read_chain((one.pem() + &block("EC PRIVATE KEY", b"key")).as_bytes()).rejected.is_none());
    }

    #[test]
    fn reports_a_damaged_block_that_claims_to_be_a_certificate() {
        let seen = |label: &str, content: &[u8]| {
            let text = ca("one").pem() + &block(label, content);
            read(text.as_bytes()).skipped.iter().map(|seen| seen.is_certificate).collect::<Vec<_>>()
        };
        let damaged = [&ca("two").der()[..48], ca("two").der()].concat();
        for label in ["CERT", "X509 CERT", "CERTIFICATE REQUEST", "trusted certificate"] {
            assert_eq!(seen(label, &damaged), [true], "{label}");
        }
        let request =
            rcgen::CertificateParams::default().serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap();
        assert_eq!(seen("CERTIFICATE REQUEST", request.der()), [false]);
        assert_eq!(seen("DH PARAMETERS", &damaged), [false]);
    }

    #[test]
    fn reports_pkcs7_under_each_of_its_labels() {
        let content = [&[0x30, 0x80][..], &SIGNED_DATA, ca("two").der()].concat();
        for label in ["PKCS7", "PKCS #7 SIGNED DATA", "CMS", "DATA"] {
            let text = ca("one").pem() + &block(label, &content);
            let seen: Vec<_> = read(text.as_bytes()).skipped.iter().map(|s| (s.is_certificate, s.is_pkcs7)).collect();
            assert_eq!(seen, [(true, true)], "{label}");
        }
    }

    #[test]
    fn names_pkcs7_under_the_label_of_a_certificate() {
        let content = [&[0x30, 0x80][..], &SIGNED_DATA].concat();
        let rejected = read(block("CERTIFICATE", &content).as_bytes()).rejected.expect("the proxy rejects it");
        assert!(rejected.to_string().contains("openssl pkcs7 -print_certs"), "{rejected}");
    }

    #[test]
    fn reports_a_block_without_label() {
        let text = ca("one").pem().replace("CERTIFICATE", "").replacen("\n", "\nx\n\n", 1);
        assert_eq!(read(text.as_bytes()).skipped.iter().map(|seen| seen.is_certificate).collect::<Vec<_>>(), [true]);
    }

    #[test]
    fn reads_no_more_than_the_limit() {
        // More than fit into a Secret; the limit applies to all callers.
        let bundle = read(ca("one").pem().repeat(MAX_CERTIFICATES + 1).as_bytes());
        assert_eq!((bundle.entries.len(), bundle.is_too_long), (MAX_CERTIFICATES, true));
    }

    proptest! {
        #[test]
        fn reads_arbitrary_blocks_without_panic(
            der in proptest::collection::vec(any::<u8>(), 0..200),
            label in prop_oneof![Just("CERTIFICATE"), Just("X509 CRL"), Just("TRUSTED CERTIFICATE"), Just("PKCS7")],
        ) {
            let text = block(label, &der);
            read(text.as_bytes());
            read_chain(text.as_bytes());
        }
    }
}
