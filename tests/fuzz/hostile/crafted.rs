//! Certificates and revocation lists that are built from single DER elements: as many small ones, or as few long ones,
//! as fit. Their signatures are invalid.

use crate::pki::{block, element};

/// id-at-commonName (X.520).
const COMMON_NAME: [u8; 3] = [0x55, 4, 3];

/// The parts of a certificate, in DER.
#[derive(Clone)]
pub(super) struct Crafted {
    pub(super) issuer: Vec<u8>,
    pub(super) subject: Vec<u8>,
    /// SubjectPublicKeyInfo.
    pub(super) key: Vec<u8>,
    /// The end of validity, as UTCTime.
    pub(super) ends: String,
    /// The extensions, each as a complete DER element.
    pub(super) extensions: Vec<u8>,
}

impl Crafted {
    /// A CA that expires long after all tests. Its key is unique and of no known type.
    pub(super) fn ca(issuer: &str, subject: &str, number: usize) -> Self {
        let key = [element(0x30, &element(6, &[0x2a])), element(3, &[&[0], &number.to_be_bytes()[4..]].concat())];
        let basic = extension(19, &element(0x30, &element(1, &[0xff])));
        Self {
            issuer: name(issuer),
            subject: name(subject),
            key: element(0x30, &key.concat()),
            ends: "490101000000Z".to_owned(),
            extensions: basic,
        }
    }

    /// Adds an extension.
    pub(super) fn with(mut self, number: u8, content: &[u8]) -> Self {
        self.extensions.extend(extension(number, content));
        self
    }

    pub(super) fn der(&self) -> Vec<u8> {
        let algorithm = element(0x30, &element(6, &[0x2a]));
        let dates = [element(0x17, b"250101000000Z"), element(0x17, self.ends.as_bytes())].concat();
        let extensions = element(0xa3, &element(0x30, &self.extensions));
        let body = [
            &element(0xa0, &element(2, &[2])),
            &element(2, &[1]),
            &algorithm,
            &self.issuer,
            &element(0x30, &dates),
            &self.subject,
            &self.key,
            if self.extensions.is_empty() { &self.extensions } else { &extensions },
        ];
        element(0x30, &[element(0x30, &body.map(Vec::as_slice).concat()), algorithm, element(3, &[0])].concat())
    }

    pub(super) fn pem(&self) -> String {
        block("CERTIFICATE", &self.der())
    }
}

/// An extension of id-ce (RFC 5280, section 4.2.1), by its last arc.
pub(super) fn extension(number: u8, content: &[u8]) -> Vec<u8> {
    element(0x30, &[element(6, &[0x55, 0x1d, number]), element(4, content)].concat())
}

/// An attribute of a name.
pub(super) fn attribute(oid: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
    element(0x30, &[element(6, oid), element(tag, value)].concat())
}

/// A name with this common name.
pub(super) fn name(text: &str) -> Vec<u8> {
    element(0x30, &element(0x31, &attribute(&COMMON_NAME, 12, text.as_bytes())))
}

/// A revocation list with these entries, each a complete DER element.
pub(super) fn list(issuer: &str, entries: &[u8]) -> String {
    let algorithm = element(0x30, &element(6, &[0x2a]));
    let dates = [element(0x17, b"250101000000Z"), element(0x17, b"490101000000Z")].concat();
    let entries = if entries.is_empty() { Vec::new() } else { element(0x30, entries) };
    let body = [element(2, &[1]), algorithm.clone(), name(issuer), dates, entries].concat();
    block("X509 CRL", &element(0x30, &[element(0x30, &body), algorithm, element(3, &[0])].concat()))
}
