//! The fields of a certificate.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use aws_lc_rs::digest;
use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Version};

use super::der;
use super::name;
use super::signature_verdict::FirstVerdict;

/// A certificate with the fields that verdicts use.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Certificate {
    /// The certificate, without trailing bytes.
    pub der: Vec<u8>,
    /// Whether bytes followed it where it was read.
    pub has_trailing_bytes: bool,
    /// Whether OpenSSL's trust settings after it (`TRUSTED CERTIFICATE`) trust it for clients or reject that; `None` if they say nothing about it.
    pub trusts_clients: Option<bool>,
    /// SHA-256 over `der`, lower-case hex.
    pub fingerprint: String,
    /// Subject (RFC 4514), at most 500 characters of it.
    pub subject: String,
    /// Issuer (RFC 4514).
    pub issuer: String,
    /// Subject, DER.
    pub subject_der: Vec<u8>,
    /// Issuer, DER.
    pub issuer_der: Vec<u8>,
    /// Start of validity.
    pub not_before: Timestamp,
    /// End of validity, itself included.
    pub not_after: Timestamp,
    /// By basicConstraints; or a self-issued certificate of version 1, which has no extensions.
    pub is_ca: bool,
    /// Key usage includes keyCertSign, or is absent.
    pub may_sign: bool,
    /// SubjectPublicKeyInfo, DER.
    pub public_key: Vec<u8>,
    /// Subject key identifier.
    pub subject_key_id: Option<Vec<u8>>,
    /// Key identifier of the authority key identifier.
    pub authority_key_id: Option<Vec<u8>>,
    /// Subject alternative names.
    pub names: Vec<AltName>,
    /// Whether its issuer signed it, once that was asked.
    pub(crate) signature: FirstVerdict,
}

/// By fingerprint: all fields are read from the same bytes.
impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for Certificate {}

/// A subject alternative name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AltName {
    /// A host name, wildcards as written.
    Dns(String),
    /// A URI, such as a SPIFFE id.
    Uri(String),
    /// An address.
    Ip(IpAddr),
    /// A mail address.
    Email(String),
}

/// Why bytes are not a certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// BoringSSL does not read the bytes as the DER of a certificate.
    #[error("not a certificate: {0}")]
    Shape(&'static str),
    /// A field that the parser cannot read, such as an invalid date.
    #[error("not a certificate: a date or another field cannot be read")]
    Field,
}

/// A PEM block (RFC 7468).
pub(super) fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem + "-----END " + label + "-----\n"
}

impl Certificate {
    /// Reads a certificate as `d2i_X509` does: trailing bytes are ignored.
    ///
    /// # Errors
    /// When BoringSSL rejects it, or a field cannot be read.
    pub fn parse(content: &[u8]) -> Result<Self, CertificateError> {
        let der = der::certificate(content).map_err(CertificateError::Shape)?;
        let (_, x509) = X509Certificate::from_der(der).map_err(|_| CertificateError::Field)?;
        let self_issued = x509.subject().as_raw() == x509.issuer().as_raw();
        let subject = name::rfc4514(x509.subject());
        let issuer = if self_issued { subject.clone() } else { name::rfc4514(x509.issuer()) };
        let mut certificate = Self {
            der: der.to_vec(),
            has_trailing_bytes: der.len() < content.len(),
            trusts_clients: None,
            fingerprint: hex(&sha256(der)),
            subject,
            issuer,
            subject_der: x509.subject().as_raw().to_vec(),
            issuer_der: x509.issuer().as_raw().to_vec(),
            not_before: timestamp(x509.validity().not_before.timestamp()),
            not_after: timestamp(x509.validity().not_after.timestamp()),
            is_ca: x509.version() == X509Version::V1 && self_issued,
            may_sign: true,
            public_key: x509.public_key().raw.to_vec(),
            subject_key_id: None,
            authority_key_id: None,
            names: Vec::new(),
            signature: FirstVerdict::default(),
        };
        for extension in x509.extensions() {
            certificate.take(extension.parsed_extension());
        }
        Ok(certificate)
    }

    /// Represents any certificate that a CA issues: without names, and valid at each instant.
    pub(crate) fn issued_by(ca: &Self) -> Self {
        Self {
            der: Vec::new(),
            has_trailing_bytes: false,
            trusts_clients: None,
            fingerprint: String::new(),
            subject: String::new(),
            issuer: ca.subject.clone(),
            // A name without attributes.
            subject_der: vec![0x30, 0],
            issuer_der: ca.subject_der.clone(),
            not_before: Timestamp::MIN,
            not_after: Timestamp::MAX,
            is_ca: false,
            may_sign: false,
            public_key: Vec::new(),
            subject_key_id: None,
            authority_key_id: None,
            names: Vec::new(),
            signature: FirstVerdict::default(),
        }
    }

    /// Whether it has expired. BoringSSL and OpenSSL reject it in the second of notAfter, which RFC 5280 (section 4.1.2.5), Go and rustls still
    /// include: the stricter reading counts.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now >= self.not_after
    }

    /// Whether its validity has not begun.
    pub fn is_not_yet_valid(&self, now: Timestamp) -> bool {
        now.as_second() < self.not_before.as_second()
    }

    /// Whether it has signed certificate timestamps (RFC 6962 section 3.3), as only public CAs add them.
    pub(crate) fn has_scts(&self) -> bool {
        const OID: [u8; 12] = [6, 10, 0x2b, 6, 1, 4, 1, 0xd6, 0x79, 2, 4, 2];
        self.der.windows(OID.len()).any(|bytes| bytes == OID)
    }

    /// Whether `now` is in its validity.
    pub fn is_valid_at(&self, now: Timestamp) -> bool {
        !self.is_expired(now) && !self.is_not_yet_valid(now)
    }

    /// Whether it has the subject and key of another, so that chains to that one are chains to this one, too.
    pub fn supersedes(&self, other: &Self) -> bool {
        self.subject_der == other.subject_der && self.public_key == other.public_key
    }

    /// The certificate in PEM (RFC 7468).
    pub fn pem(&self) -> String {
        pem("CERTIFICATE", &self.der)
    }

    fn take(&mut self, extension: &ParsedExtension<'_>) {
        match extension {
            ParsedExtension::BasicConstraints(constraints) => self.is_ca = constraints.ca,
            ParsedExtension::KeyUsage(usage) => self.may_sign = usage.key_cert_sign(),
            ParsedExtension::SubjectKeyIdentifier(id) => self.subject_key_id = Some(id.0.to_vec()),
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                self.authority_key_id = id.key_identifier.as_ref().map(|id| id.0.to_vec());
            }
            ParsedExtension::SubjectAlternativeName(names) => {
                self.names = names.general_names.iter().filter_map(alt_name).collect();
            }
            _ => {}
        }
    }
}

fn alt_name(name: &GeneralName<'_>) -> Option<AltName> {
    match name {
        GeneralName::DNSName(name) => Some(AltName::Dns((*name).to_owned())),
        GeneralName::URI(uri) => Some(AltName::Uri((*uri).to_owned())),
        GeneralName::RFC822Name(address) => Some(AltName::Email((*address).to_owned())),
        GeneralName::IPAddress(bytes) => <[u8; 4]>::try_from(*bytes)
            .map(|b| IpAddr::V4(Ipv4Addr::from(b)))
            .or_else(|_| <[u8; 16]>::try_from(*bytes).map(|b| IpAddr::V6(Ipv6Addr::from(b))))
            .ok()
            .map(AltName::Ip),
        _ => None,
    }
}

/// RFC 5280 section 4.1.2.5 uses "99991231235959Z" for "never"; jiff's last instant is a day earlier.
pub(super) fn timestamp(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap_or(if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from(b"0123456789abcdef"[usize::from(half)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}

/// SHA-256 by AWS-LC, which is twice as fast as the `sha2` crate on processors without SHA instructions.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::trust::fixtures::{ca, ca_with};

    fn parse(pem: &str) -> Certificate {
        Certificate::parse(&crate::trust::pem::read(pem.as_bytes()).blocks[0].content).expect("a certificate")
    }

    #[test]
    fn accepts_a_ca_and_its_leaf() {
        let authority = ca("one");
        let root = parse(&authority.pem());
        assert_eq!((root.subject.as_str(), root.issuer.as_str()), ("CN=one", "CN=one"));
        assert!(root.is_ca && root.may_sign);
        assert_eq!(root.fingerprint, hex(&Sha256::digest(authority.der())));
        assert_eq!(
            (root.not_before.to_string().as_str(), root.not_after.to_string().as_str()),
            ("2026-01-01T00:00:00Z", "2040-01-01T00:00:00Z")
        );

        let leaf = parse(&authority.leaf("a.example").pem());
        assert!(!leaf.is_ca);
        assert_eq!(leaf.issuer_der, root.subject_der);
        assert_eq!(leaf.names, [AltName::Dns("a.example".to_owned())]);
        assert_eq!(leaf.authority_key_id, leaf.authority_key_id.as_ref().and(root.subject_key_id));
    }

    #[test]
    fn ignores_trailing_bytes() {
        let one = ca("one");
        let mut der = one.der().to_vec();
        der.extend_from_slice(b"more");
        let read = Certificate::parse(&der).expect("a certificate");
        assert!(read.der == one.der() && read.has_trailing_bytes && !parse(&one.pem()).has_trailing_bytes);
    }

    #[test]
    fn accepts_a_certificate_that_never_expires() {
        let never = ca_with("one", |params| params.not_after = rcgen::date_time_ymd(9999, 12, 31));
        assert_eq!(parse(&never.pem()).not_after, Timestamp::MAX);
    }

    #[test]
    fn rejects_truncated_and_changed_bytes_without_panic() {
        let der = ca("one").der().to_vec();
        for end in 0..der.len() {
            assert!(Certificate::parse(&der[..end]).is_err(), "cut at {end}");
        }
        for at in 0..der.len() {
            for value in [0, 0x7f, 0x80, 0xff, der[at] ^ 1, der[at] ^ 0x20] {
                let mut changed = der.clone();
                changed[at] = value;
                let _ = Certificate::parse(&changed);
            }
        }
    }

    proptest! {
        #[test]
        fn reads_arbitrary_bytes_without_panic(der in proptest::collection::vec(any::<u8>(), 0..500)) {
            let _ = Certificate::parse(&der);
        }
    }
}
