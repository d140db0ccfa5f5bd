//! PEM files without an object around them.

use jiff::Timestamp;
use zeroize::Zeroizing;

use crate::trust::bundle;
use crate::trust::{self, Finding, Secret, SecretUsage, Severities, UsageKind};

/// What a PEM file is to `check`.
pub(super) enum PemFile {
    /// A CA bundle, with the findings on it as `ca.crt` of a gateway.
    Bundle(Vec<Finding>),
    /// Something else, and what.
    Other(&'static str),
}

/// Judges a PEM file as a CA bundle, unless it holds something that cannot be meant as one.
pub(super) fn judge(text: Zeroizing<Vec<u8>>, severities: &Severities, now: Timestamp) -> PemFile {
    if let Some(what) = other(&text) {
        return PemFile::Other(what);
    }
    let secret = Secret {
        namespace: String::new(),
        name: String::new(),
        type_: String::new(),
        labels: Default::default(),
        immutable: false,
        data: [("ca.crt".to_owned(), text)].into(),
    };
    let usage = SecretUsage { kind: UsageKind::TrustBundle, ..SecretUsage::default() };
    let mut findings = trust::judge_with(&secret, usage, severities, now);
    findings.iter_mut().for_each(|finding| finding.field.clear());
    PemFile::Bundle(findings)
}

/// What a file holds that is not meant as a CA bundle.
fn other(text: &[u8]) -> Option<&'static str> {
    let bundle = bundle::read(text);
    match bundle.entries.first().map(|entry| &entry.certificate) {
        _ if bundle.rejected.is_some() => None,
        Some(first) if first.is_ca || first.subject_der == first.issuer_der => None,
        Some(_) => Some("its first certificate is a leaf: `trustspan verify --bundle CAS --chain FILE` judges chains"),
        None if !bundle.crls.is_empty() => Some("revocation lists alone: `trustspan verify --crl FILE` applies them"),
        None if String::from_utf8_lossy(text).contains("PRIVATE KEY-----") => Some("a private key alone"),
        None => None,
    }
}
