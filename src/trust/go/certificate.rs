//! Certificates that BoringSSL reads, and Go's `x509.ParseCertificate` rejects (crypto/x509/parser.go of Go 1.26).

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ECDSA_P521_SHA512_ASN1, ParsedPublicKey, VerificationAlgorithm,
};
use x509_parser::asn1_rs::{Class, Tag};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension, X509Extension};
use x509_parser::prelude::FromDer;
use x509_parser::x509::AttributeTypeAndValue;

use crate::trust::Certificate;
use crate::trust::chain::signature::{Key, key};
use crate::trust::der::{BIT_STRING, BOOLEAN, Cbs, INTEGER, OCTET_STRING, SEQUENCE, integer, valid_bits};

/// Reads the content of a block. A key of a type that Go does not support counts as rejected: Go loads such a certificate, but cannot
/// verify anything with it.
pub(super) fn parse(content: &[u8]) -> Option<Certificate> {
    let certificate = Certificate::parse(content).ok()?;
    // BoringSSL ignores trailing bytes.
    let whole = certificate.der.len() == content.len();
    (whole && is_valid(&certificate) && has_a_key(&certificate)).then_some(certificate)
}

fn is_valid(certificate: &Certificate) -> bool {
    let Ok((_, x509)) = X509Certificate::from_der(&certificate.der) else { return false };
    let negative = x509.raw_serial().first().is_some_and(|byte| byte & 0x80 != 0);
    let extensions_are_unique = x509.extensions_map().is_ok();
    !negative
        && extensions_are_unique
        && x509.signature_algorithm == x509.tbs_certificate.signature
        && x509.extensions().iter().all(is_read)
        && [x509.subject(), x509.issuer()].into_iter().flat_map(|name| name.iter_attributes()).all(is_text)
}

fn is_read(extension: &X509Extension<'_>) -> bool {
    match extension.parsed_extension() {
        ParsedExtension::ParseError { .. } => false,
        ParsedExtension::BasicConstraints(_) => is_basic_constraints(extension.value),
        ParsedExtension::KeyUsage(_) => Cbs(extension.value).take(BIT_STRING, "").is_ok_and(|bits| valid_bits(bits.0)),
        ParsedExtension::SubjectKeyIdentifier(_) => {
            !extension.critical && Cbs(extension.value).take(OCTET_STRING, "").is_ok()
        }
        ParsedExtension::AuthorityKeyIdentifier(_) | ParsedExtension::AuthorityInfoAccess(_) => !extension.critical,
        ParsedExtension::SubjectAlternativeName(names) => names.general_names.iter().all(|name| match name {
            GeneralName::IPAddress(bytes) => matches!(bytes.len(), 4 | 16),
            GeneralName::Invalid(..) => false,
            _ => true,
        }),
        _ => true,
    }
}

/// Whether basicConstraints are DER as Go requires it: TRUE is 0xff, and a path length is not negative.
fn is_basic_constraints(value: &[u8]) -> bool {
    let Ok(mut fields) = Cbs(value).take(SEQUENCE, "") else { return false };
    if fields.peek(BOOLEAN) && !fields.take(BOOLEAN, "").is_ok_and(|flag| matches!(flag.0, [0 | 0xff])) {
        return false;
    }
    !fields.peek(INTEGER) || integer(&mut fields, "").is_ok_and(|length| length[0] < 0x80)
}

/// A string of a name: `parseASN1String`.
fn is_text(attribute: &AttributeTypeAndValue<'_>) -> bool {
    let value = attribute.attr_value();
    if value.header.class() != Class::Universal || value.header.is_constructed() {
        return false;
    }
    let all = |fits: fn(u8) -> bool| value.data.iter().all(|byte| fits(*byte));
    match value.header.tag() {
        Tag::Utf8String => std::str::from_utf8(value.data).is_ok(),
        Tag::PrintableString => all(|byte| byte.is_ascii_alphanumeric() || b" '()+,-./:=?*&".contains(&byte)),
        Tag::Ia5String => all(|byte| byte.is_ascii()),
        Tag::NumericString => all(|byte| byte.is_ascii_digit() || byte == b' '),
        Tag::BmpString => value.data.len().is_multiple_of(2),
        Tag::T61String => true,
        _ => false,
    }
}

fn has_a_key(certificate: &Certificate) -> bool {
    let (kind, bits) = key(&certificate.public_key);
    let on_curve = |curve: &'static dyn VerificationAlgorithm| ParsedPublicKey::new(curve, bits).is_ok();
    match kind {
        Key::Rsa { .. } => is_rsa(bits),
        Key::P256 => on_curve(&ECDSA_P256_SHA256_ASN1),
        Key::P384 => on_curve(&ECDSA_P384_SHA384_ASN1),
        Key::P521 => on_curve(&ECDSA_P521_SHA512_ASN1),
        Key::Ed25519 => bits.len() == 32,
        // Go 1.26 does not support ML-DSA.
        Key::MlDsa44 | Key::MlDsa65 | Key::MlDsa87 | Key::Other => false,
    }
}

/// A positive modulus, and an exponent that fits into 63 bits.
fn is_rsa(key: &[u8]) -> bool {
    let Ok(mut numbers) = Cbs(key).take(SEQUENCE, "") else { return false };
    let mut positive =
        |most| integer(&mut numbers, "").is_ok_and(|number| number.len() <= most && number[0] < 0x80 && number != [0]);
    positive(usize::MAX) && positive(8)
}
