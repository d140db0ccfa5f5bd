//! PEM files outside of Kubernetes objects.

use jiff::Timestamp;
use zeroize::Zeroizing;

use crate::trust::bundle;
use crate::trust::{self, Finding, Secret, SecretUsage, Severities, UsageKind};

/// The result of `check` for a PEM file.
pub(super) enum PemFile {
    /// A CA bundle, with the findings on it as `ca.crt` of a gateway.
    Bundle(Vec<Finding>),
    /// Something else, with a description.
    Other(&'static str),
}

/// Judges a PEM file as a CA bundle, unless its content is clearly something else.
pub(super) fn judge(text: Zeroizing<Vec<u8>>, severities: &Severities, now: Timestamp) -> PemFile {
    if let Some(what) = other_content(&text) {
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

/// Describes the content of a file that is not a CA bundle.
fn other_content(text: &[u8]) -> Option<&'static str> {
    let bundle = bundle::read(text);
    match bundle.entries.first().map(|entry| &entry.certificate) {
        _ if bundle.rejected.is_some() => None,
        Some(first) if first.is_ca || first.subject_der == first.issuer_der => None,
        Some(_) => Some("its first certificate is a leaf: `trustspan verify --bundle CAS --chain FILE` judges chains"),
        None if !bundle.crls.is_empty() => Some("only revocation lists: `trustspan verify --crl FILE` applies them"),
        None if String::from_utf8_lossy(text).contains("PRIVATE KEY-----") => Some("only a private key"),
        None => None,
    }
}
