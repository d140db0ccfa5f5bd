//! CA bundles that every program reads in the same way.

use jiff::Timestamp;

use super::{
    Certificate, Secret, SecretUsage, Severities, Severity, TlsConsumer, UsageKind, bundle, counted, judge,
    judge_update_with, judge_with,
};

/// Rules whose findings mean that a program does not load a CA bundle as it was written.
const UNREADABLE: [&str; 3] = ["unparsable", "dropped-by-proxy", "empty"];

fn usage(reader: TlsConsumer) -> SecretUsage<'static> {
    SecretUsage { kind: UsageKind::TrustBundle, ca_required: true, reader, ..SecretUsage::default() }
}

/// The certificates of a CA bundle that Envoy and Go both read completely.
///
/// # Errors
/// What one of them does not read: part of a sentence.
pub fn certificates(pem: &[u8], now: Timestamp) -> Result<Vec<Certificate>, String> {
    for reader in [TlsConsumer::Envoy, TlsConsumer::Go] {
        let key = reader.ca_keys()[0];
        let findings = judge(&Secret::of_bundle(key, pem), usage(reader), now);
        let fault =
            findings.into_iter().find(|found| found.severity == Severity::Deny && UNREADABLE.contains(&found.rule));
        if let Some(fault) = fault {
            return Err(without_key(&fault.message, key));
        }
    }
    Ok(bundle::read(pem).into_certificates())
}

/// The same of a bundle with at least one CA that is valid now.
///
/// # Errors
/// What cannot be read, or that no CA is valid: part of a sentence.
pub fn bundle_in_use(pem: &[u8], now: Timestamp) -> Result<Vec<Certificate>, String> {
    let certificates = certificates(pem, now)?;
    if !certificates.iter().any(|ca| ca.is_ca && ca.is_valid_at(now)) {
        return Err(format!(
            "none of its {} is a CA that is valid now. expected at least one; add it",
            counted(certificates.len(), "certificate")
        ));
    }
    Ok(certificates)
}

/// The same of a bundle that replaces another one in a file that Go reads. The rules on CA bundles apply, and what the previous bundle
/// already had does not count.
///
/// # Errors
/// Why a program would not trust what it should: part of a sentence.
pub fn replacement(pem: &[u8], previous: Option<&[u8]>, now: Timestamp) -> Result<Vec<Certificate>, String> {
    let certificates = bundle_in_use(pem, now)?;
    let (usage, severities) = (usage(TlsConsumer::Go), Severities::default());
    let key = TlsConsumer::Go.ca_keys()[0];
    let of = |pem| Secret::of_bundle(key, pem);
    let findings = match previous {
        Some(previous) => judge_update_with(&of(previous), &of(pem), usage, &severities, now),
        None => judge_with(&of(pem), usage, &severities, now),
    };
    match findings.into_iter().find(|found| found.severity == Severity::Deny) {
        Some(fault) => Err(format!("{} ({})", without_key(&fault.message, key), fault.rule)),
        None => Ok(certificates),
    }
}

/// When the first CA expires, of those that have not.
pub fn first_expiry(certificates: &[Certificate], now: Timestamp) -> Option<Timestamp> {
    certificates.iter().filter(|ca| ca.is_ca && !ca.is_expired(now)).map(|ca| ca.not_after).min()
}

/// A message without the name of a key that is not the one of the object.
fn without_key(message: &str, key: &str) -> String {
    let message = message.strip_prefix(key).unwrap_or(message);
    message.trim_start_matches([':', ' ']).trim_end_matches('.').to_owned()
}
