//! Keys, certificates and random bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_lc_rs::rand;
use jiff::Timestamp;
use rcgen::string::PrintableString;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_RSA_SHA256, RsaKeySize, SanType, SerialNumber, date_time_ymd,
};
use zeroize::Zeroizing;

use crate::certgen::{GeneratedCertificates, KeyPairPem, Profile, Usage};

/// The clocks of readers may be slow.
const BACKDATED: Duration = Duration::from_secs(24 * 60 * 60);
/// `serialNumber` (X.520). Old and new CAs have the same common name, and Envoy tries only the first CA of a subject.
const SERIAL_NUMBER: [u64; 4] = [2, 5, 4, 5];

/// Why nothing could be generated.
#[derive(Debug, thiserror::Error)]
pub enum KeyGenerationError {
    /// The system has no random bytes.
    #[error("cannot get random bytes of the system")]
    Random,
    /// A key or certificate cannot be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
}

/// Random bytes.
pub(super) fn random(length: usize) -> Result<Zeroizing<Vec<u8>>, KeyGenerationError> {
    let mut bytes = Zeroizing::new(vec![0; length]);
    rand::fill(&mut bytes).map_err(|_| KeyGenerationError::Random)?;
    Ok(bytes)
}

/// A new CA with its leaves. Its key is dropped.
pub fn generate(profile: &Profile, now: Timestamp) -> Result<GeneratedCertificates, KeyGenerationError> {
    let mut ca = params(profile, &profile.ca.common_name, now)?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let serial = PrintableString::try_from(crate::trust::hex(&random(8)?))?;
    ca.distinguished_name.push(DnType::from_oid(&SERIAL_NUMBER), DnValue::PrintableString(serial));
    let key = rsa_key()?;
    let pem = ca.self_signed(&key)?.pem();
    let issuer = Issuer::new(ca, key);

    let mut leaves = BTreeMap::new();
    for certificate in &profile.certificates {
        let mut leaf = params(profile, &certificate.common_name, now)?;
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        leaf.extended_key_usages = certificate.usages.iter().map(|usage| purpose(*usage)).collect();
        leaf.use_authority_key_identifier_extension = true;
        for name in &certificate.dns_names {
            leaf.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
        }
        let key = rsa_key()?;
        let pair =
            KeyPairPem { certificate: leaf.signed_by(&key, &issuer)?.pem(), key: Zeroizing::new(key.serialize_pem()) };
        leaves.insert(certificate.secret_name.clone(), pair);
    }
    Ok(GeneratedCertificates { ca: pem, leaves })
}

fn rsa_key() -> Result<KeyPair, rcgen::Error> {
    KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)
}

fn purpose(usage: Usage) -> ExtendedKeyUsagePurpose {
    match usage {
        Usage::ServerAuth => ExtendedKeyUsagePurpose::ServerAuth,
        Usage::ClientAuth => ExtendedKeyUsagePurpose::ClientAuth,
    }
}

fn params(profile: &Profile, common_name: &str, now: Timestamp) -> Result<CertificateParams, KeyGenerationError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let mut serial = random(16)?;
    // A positive number (RFC 5280 section 4.1.2.2).
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    let now = Duration::from_secs(now.as_second().unsigned_abs());
    params.not_before = date_time_ymd(1970, 1, 1) + (now - BACKDATED);
    params.not_after = date_time_ymd(1970, 1, 1) + (now + profile.duration.duration().unsigned_abs());
    Ok(params)
}
