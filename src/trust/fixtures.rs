//! Certificates, keys and Secrets for unit tests, made at run time. Their current time is [`now`].

#![allow(clippy::unwrap_used)]

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CustomExtension, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RevokedCertParams, SerialNumber,
    SignatureAlgorithm, date_time_ymd,
};
use zeroize::Zeroizing;

use super::chain::Crl;
use super::{Certificate, Finding, Proxy, Secret, SecretUsage, Severity, judge};

/// A CA.
pub(crate) struct Authority {
    certificate: rcgen::Certificate,
    params: CertificateParams,
    /// PEM.
    key: String,
    issuer: Issuer<'static, KeyPair>,
}

/// An end-entity certificate with its key.
pub(crate) struct Leaf {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

/// The [`verdicts`] on a valid Secret.
pub(crate) const NOTHING: [&str; 0] = [];

/// 2030-01-01T00:00:00Z.
pub(crate) fn now() -> Timestamp {
    "2030-01-01T00:00:00Z".parse().unwrap()
}

/// A CA that is valid now, from 2026 to 2040.
pub(crate) fn ca(common_name: &str) -> Authority {
    ca_between(common_name, 2026, 2040)
}

/// A CA that is valid from the first second of a year to that of another.
pub(crate) fn ca_between(common_name: &str, from: i32, to: i32) -> Authority {
    ca_with(common_name, |params| {
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
    })
}

/// A CA without subject key identifier.
pub(crate) fn ca_without_key_id(common_name: &str) -> Authority {
    ca_with(common_name, |params| {
        // rcgen writes the identifier into every CA, so this certificate is not marked as a CA for rcgen.
        params.is_ca = IsCa::NoCa;
        let constraints = vec![0x30, 3, 1, 1, 0xff];
        params.custom_extensions.push(CustomExtension::from_oid_content(&[2, 5, 29, 19], constraints));
    })
}

/// A CA with an invalid RSA key of this size: PEM.
pub(crate) fn ca_with_rsa_bits(bits: usize) -> String {
    let modulus = [&[0][..], &vec![0xff; bits / 8]].concat();
    let key = element(0x30, &[element(2, &modulus), vec![2, 3, 1, 0, 1]].concat());
    let algorithm = element(0x30, &[&[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1][..], &[5, 0]].concat());
    ca_with_key(&element(0x30, &[algorithm, element(3, &[&[0][..], &key].concat())].concat()))
}

/// A CA with this SubjectPublicKeyInfo: PEM.
pub(crate) fn ca_with_key(info: &[u8]) -> String {
    let authority = ca("root");
    let old = parsed(authority.der()).public_key;
    rebuilt(authority.der(), |tbs| replaced(tbs, &old, info))
}

/// A CA whose key is not a point of its curve: PEM.
pub(crate) fn ca_with_damaged_key() -> String {
    let authority = ca("root");
    let old = parsed(authority.der()).public_key;
    let mut damaged = old.clone();
    *damaged.last_mut().unwrap() ^= 1;
    rebuilt(authority.der(), |tbs| replaced(tbs, &old, &damaged))
}

/// A certificate with another signature algorithm inside and outside, so with a wrong signature: PEM.
pub(crate) fn signed_with(der: &[u8], oid: &[u8]) -> String {
    let old = [0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
    let new = [&[0x30, oid.len() as u8 + 2, 6, oid.len() as u8][..], oid].concat();
    rebuilt(der, |part| replaced(part, &old, &new))
}

/// Changes the content of the signed body and of the outer sequence, and corrects the lengths.
fn rebuilt(der: &[u8], change: impl Fn(&[u8]) -> Vec<u8>) -> String {
    use x509_parser::asn1_rs::{Any, FromDer};
    let (_, outer) = Any::from_der(der).unwrap();
    let (rest, tbs) = Any::from_der(outer.data).unwrap();
    block("CERTIFICATE", &element(0x30, &[element(0x30, &change(tbs.data)), change(rest)].concat()))
}

/// A DER element.
pub(crate) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let header = match content.len() {
        ..128 => vec![tag, length[7]],
        128..256 => vec![tag, 0x81, length[7]],
        _ => vec![tag, 0x82, length[6], length[7]],
    };
    [header.as_slice(), content].concat()
}

fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    match bytes.windows(old.len()).position(|window| window == old) {
        Some(at) => [&bytes[..at], new, &bytes[at + old.len()..]].concat(),
        None => bytes.to_vec(),
    }
}

/// The certificate in DER.
pub(crate) fn parsed(der: &[u8]) -> Certificate {
    Certificate::parse(der).unwrap()
}

/// The certificates in PEM.
pub(crate) fn certificates(text: &str) -> Vec<Certificate> {
    super::bundle::read(text.as_bytes()).into_certificates()
}

/// A CA with changed parameters.
pub(crate) fn ca_with(common_name: &str, change: impl FnOnce(&mut CertificateParams)) -> Authority {
    let mut params = ca_params(common_name);
    change(&mut params);
    Authority::new(params, KeyPair::generate().unwrap())
}

/// A CA with a key of this type, and the key: PEM.
pub(crate) fn self_signed(algorithm: &'static SignatureAlgorithm) -> (String, String) {
    let authority = Authority::new(ca_params("root"), KeyPair::generate_for(algorithm).unwrap());
    (authority.pem(), authority.key_pem())
}

fn ca_params(common_name: &str) -> CertificateParams {
    let mut params = params(common_name, 2026, 2040);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn params(common_name: &str, from: i32, to: i32) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(to, 1, 1);
    params
}

impl Authority {
    pub(crate) fn pem(&self) -> String {
        lines(&self.certificate.pem())
    }

    pub(crate) fn der(&self) -> &[u8] {
        self.certificate.der()
    }

    /// PKCS#8.
    pub(crate) fn key_pem(&self) -> String {
        lines(&self.key)
    }

    /// The same CA, name and key, with other dates: from and to the first second of a year.
    pub(crate) fn renewed(&self, from: i32, to: i32) -> Self {
        self.changed(|params| {
            params.not_before = date_time_ymd(from, 1, 1);
            params.not_after = date_time_ymd(to, 1, 1);
        })
    }

    /// The same CA, name and key, with changed parameters.
    pub(crate) fn changed(&self, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = self.params.clone();
        change(&mut params);
        let key = KeyPair::from_pem(&self.key).unwrap();
        Self::new(params, key)
    }

    fn new(params: CertificateParams, key: KeyPair) -> Self {
        let certificate = params.self_signed(&key).unwrap();
        Self { certificate, params: params.clone(), key: key.serialize_pem(), issuer: Issuer::new(params, key) }
    }

    /// A CA below this one.
    pub(crate) fn intermediate(&self, common_name: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = ca_params(common_name);
        params.use_authority_key_identifier_extension = true;
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Self { certificate, params: params.clone(), key: key.serialize_pem(), issuer: Issuer::new(params, key) }
    }

    /// Another CA, name and key, signed by this one: PEM.
    pub(crate) fn cross(&self, other: &Self) -> String {
        let key = KeyPair::from_pem(&other.key).unwrap();
        lines(&other.params.signed_by(&key, &self.issuer).unwrap().pem())
    }

    /// A leaf with changed parameters. It has no authority key identifier by default.
    pub(crate) fn leaf_with(&self, common_name: &str, change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        self.sign_with(common_name, KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap(), change)
    }

    /// A leaf with an RSA key and changed parameters.
    pub(crate) fn rsa_leaf_with(&self, common_name: &str, change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        self.sign_with(common_name, rsa_key(), change)
    }

    /// A certificate with a key of this type, and changed parameters.
    pub(crate) fn leaf_of_with(
        &self,
        algorithm: &'static SignatureAlgorithm,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Leaf {
        self.sign_with("a", KeyPair::generate_for(algorithm).unwrap(), change)
    }

    fn sign_with(&self, common_name: &str, key: KeyPair, change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        let mut params = params(common_name, 2029, 2031);
        change(&mut params);
        Leaf { certificate: params.signed_by(&key, &self.issuer).unwrap(), key }
    }

    /// A revocation list from and to the first second of a year.
    pub(crate) fn crl(&self, from: i32, to: i32, revoked: &[&Leaf]) -> Crl {
        Crl::parse(&self.crl_der(from, to, revoked)).unwrap()
    }

    /// The same in PEM.
    pub(crate) fn crl_pem(&self, from: i32, to: i32, revoked: &[&Leaf]) -> String {
        block("X509 CRL", &self.crl_der(from, to, revoked))
    }

    /// The same in DER.
    pub(crate) fn crl_der(&self, from: i32, to: i32, revoked: &[&Leaf]) -> Vec<u8> {
        let revoked = revoked.iter().map(|leaf| RevokedCertParams {
            serial_number: SerialNumber::from_slice(
                x509_parser::parse_x509_certificate(leaf.der()).unwrap().1.raw_serial(),
            ),
            revocation_time: date_time_ymd(from, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(from, 1, 1),
            next_update: date_time_ymd(to, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().der().to_vec()
    }

    /// A leaf that is valid now, from 2029 to 2031, for the host of its common name.
    pub(crate) fn leaf(&self, common_name: &str) -> Leaf {
        self.leaf_between(common_name, 2029, 2031)
    }

    pub(crate) fn leaf_between(&self, common_name: &str, from: i32, to: i32) -> Leaf {
        self.sign(common_name, from, to, KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap())
    }

    pub(crate) fn leaf_of(&self, common_name: &str, algorithm: &'static SignatureAlgorithm) -> Leaf {
        self.sign(common_name, 2029, 2031, KeyPair::generate_for(algorithm).unwrap())
    }

    pub(crate) fn rsa_leaf(&self, common_name: &str) -> Leaf {
        self.sign(common_name, 2029, 2031, rsa_key())
    }

    fn sign(&self, common_name: &str, from: i32, to: i32, key: KeyPair) -> Leaf {
        let mut params = params(common_name, from, to);
        params.subject_alt_names = CertificateParams::new([common_name.to_owned()]).unwrap().subject_alt_names;
        Leaf { certificate: params.signed_by(&key, &self.issuer).unwrap(), key }
    }
}

fn rsa_key() -> KeyPair {
    KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap()
}

impl Leaf {
    pub(crate) fn der(&self) -> &[u8] {
        self.certificate.der()
    }

    pub(crate) fn pem(&self) -> String {
        lines(&self.certificate.pem())
    }

    /// PKCS#8.
    pub(crate) fn key_pem(&self) -> String {
        lines(&self.key.serialize_pem())
    }

    /// PKCS#1 or SEC1: the content of PKCS#8, with its curve.
    pub(crate) fn traditional_key_pem(&self) -> String {
        if self.key.algorithm() == &PKCS_RSA_SHA256 {
            return block("RSA PRIVATE KEY", &self.inner_key());
        }
        let p256 = self.key.algorithm() == &PKCS_ECDSA_P256_SHA256;
        // ECPrivateKey: version, key, [0] curve (RFC 5915); the rest is optional.
        let curve: &[u8] = if p256 { &[6, 8, 42, 134, 72, 206, 61, 3, 1, 7] } else { &[6, 5, 43, 129, 4, 0, 34] };
        let inner = self.inner_key();
        let length = if p256 { 32 } else { 48 };
        let at = inner.windows(2).position(|w| w == [4, length]).unwrap();
        let key = &inner[at..at + 2 + usize::from(length)];
        let body = [&[2, 1, 1], key, &[0xa0, curve.len() as u8], curve].concat();
        block("EC PRIVATE KEY", &[&[0x30, body.len() as u8], body.as_slice()].concat())
    }

    /// SEC1 without its curve.
    pub(crate) fn bare_ec_key_pem(&self) -> String {
        block("EC PRIVATE KEY", &self.inner_key())
    }

    fn inner_key(&self) -> Vec<u8> {
        use x509_parser::asn1_rs::{Any, FromDer};
        let der = self.key.serialize_der();
        let (_, outer) = Any::from_der(&der).unwrap();
        let (rest, _version) = Any::from_der(outer.data).unwrap();
        let (rest, _algorithm) = Any::from_der(rest).unwrap();
        Any::from_der(rest).unwrap().1.data.to_vec()
    }
}

/// A PEM block with lines of 64 characters.
pub(crate) fn block(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let body: String =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap().to_owned() + "\n").collect();
    format!("-----BEGIN {label}-----\n{body}-----END {label}-----\n")
}

fn lines(pem: &str) -> String {
    pem.replace("\r\n", "\n")
}

/// A Secret `istio-system/gateway`.
pub(crate) fn secret(data: &[(&str, &str)]) -> Secret {
    Secret {
        namespace: "istio-system".to_owned(),
        name: "gateway".to_owned(),
        type_: "Opaque".to_owned(),
        labels: Default::default(),
        immutable: false,
        data: data.iter().map(|(k, v)| ((*k).to_owned(), Zeroizing::new(v.as_bytes().to_vec()))).collect(),
    }
}

/// The findings on a Secret now.
pub(crate) fn findings(secret: &Secret) -> Vec<Finding> {
    judge(secret, SecretUsage::default(), now())
}

/// The same where all proxies keep the order of a bundle.
pub(crate) fn findings_in_order(secret: &Secret) -> Vec<Finding> {
    let usage = SecretUsage { oldest_proxy: Proxy::envoy(1, 38), ..SecretUsage::default() };
    judge(secret, usage, now())
}

/// The rules that have a finding on a Secret now.
pub(crate) fn verdicts(secret: &Secret) -> Vec<&'static str> {
    findings(secret).iter().map(|finding| finding.rule).collect()
}

/// The findings that deny a Secret now.
pub(crate) fn denials(secret: &Secret) -> Vec<Finding> {
    findings(secret).into_iter().filter(|finding| finding.severity == Severity::Deny).collect()
}
