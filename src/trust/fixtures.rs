//! Certificates, keys and Secrets for unit tests, made at run time. Their clock stands at [`now`].

#![allow(clippy::unwrap_used)]

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    PKCS_RSA_SHA256, SignatureAlgorithm, date_time_ymd,
};
use zeroize::Zeroizing;

use super::{Duty, Finding, Secret, Severity, judge};

/// A CA.
pub(crate) struct Authority {
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

/// An end-entity certificate with its key.
pub(crate) struct Leaf {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

/// What [`verdicts`] says of a sound Secret.
pub(crate) const NOTHING: [&str; 0] = [];

/// 2030-01-01T00:00:00Z.
pub(crate) fn now() -> Timestamp {
    "2030-01-01T00:00:00Z".parse().unwrap()
}

/// A CA that is valid now, from 2026 to 2040.
pub(crate) fn ca(common_name: &str) -> Authority {
    ca_between(common_name, 2026, 2040)
}

/// A CA that is valid from and to the first second of a year.
pub(crate) fn ca_between(common_name: &str, from: i32, to: i32) -> Authority {
    ca_with(common_name, |params| {
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
    })
}

/// A CA with something special.
pub(crate) fn ca_with(common_name: &str, change: impl FnOnce(&mut CertificateParams)) -> Authority {
    let mut params = params(common_name, 2026, 2040);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    Authority { certificate, issuer: Issuer::new(params, key) }
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
        let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap();
        self.sign(common_name, 2029, 2031, key)
    }

    fn sign(&self, common_name: &str, from: i32, to: i32, key: KeyPair) -> Leaf {
        let mut params = params(common_name, from, to);
        params.subject_alt_names = CertificateParams::new([common_name.to_owned()]).unwrap().subject_alt_names;
        Leaf { certificate: params.signed_by(&key, &self.issuer).unwrap(), key }
    }
}

impl Leaf {
    pub(crate) fn pem(&self) -> String {
        lines(&self.certificate.pem())
    }

    /// PKCS#8.
    pub(crate) fn key_pem(&self) -> String {
        lines(&self.key.serialize_pem())
    }

    /// PKCS#1 or SEC1: what PKCS#8 wraps.
    pub(crate) fn traditional_key_pem(&self) -> String {
        use x509_parser::asn1_rs::{Any, FromDer};
        let der = self.key.serialize_der();
        let (_, outer) = Any::from_der(&der).unwrap();
        let (rest, _version) = Any::from_der(outer.data).unwrap();
        let (rest, _algorithm) = Any::from_der(rest).unwrap();
        let (_, inner) = Any::from_der(rest).unwrap();
        let label = if self.key.algorithm() == &PKCS_RSA_SHA256 { "RSA PRIVATE KEY" } else { "EC PRIVATE KEY" };
        block(label, inner.data)
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
        data: data.iter().map(|(k, v)| ((*k).to_owned(), Zeroizing::new(v.as_bytes().to_vec()))).collect(),
    }
}

/// What the table says of a Secret now.
pub(crate) fn findings(secret: &Secret) -> Vec<Finding> {
    judge(secret, Duty::default(), now())
}

/// The rules that say something of a Secret now.
pub(crate) fn verdicts(secret: &Secret) -> Vec<&'static str> {
    findings(secret).iter().map(|finding| finding.rule).collect()
}

/// The findings that deny a Secret now.
pub(crate) fn denials(secret: &Secret) -> Vec<Finding> {
    findings(secret).into_iter().filter(|finding| finding.severity == Severity::Deny).collect()
}
