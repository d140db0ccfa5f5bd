//! `weak-key`: a CA with a key that is too weak, or that not every client or proxy takes.

use super::{Observation, Rule, Severity};
use crate::trust::chain::signature::{Key, key};
use crate::trust::name::brief;
use crate::trust::subject::Subject;

/// NIST SP 800-57 and the CA/Browser baseline ask for 2048 bits of RSA. Measured: Envoy takes a CA with 1024 bits, and no
/// less; so below that it denies. The keys of serving pairs are judged by `key-mismatch`.
pub(super) const RULE: Rule = Rule {
    id: "weak-key",
    severity: Severity::Deny,
    summary: "a CA with an RSA key under 1024 bits; under 2048 bits, or of an uncommon kind, it warns",
    mend: "issue the CA anew with RSA of 2048 bits or more, or ECDSA on P-256 or P-384",
    source: "NIST SP 800-57; Envoy, measured: it takes no CA under 1024 bits",
    example: "ca.crt line 1: the key of CN=root is RSA of 1016 bits. expected RSA of 2048 bits or more, or ECDSA on \
              P-256 or P-384; issue it anew",
    looks_ahead: false,
    check,
};

fn check(subject: &Subject<'_>) -> Vec<Observation> {
    let Some(ca) = subject.loaded_ca() else { return Vec::new() };
    let observe = |entry: &crate::trust::bundle::Entry| {
        let certificate = &entry.certificate;
        let (seen, only_warns) = match key(&certificate.public_key).0 {
            Key::Rsa { bits: bits @ ..2048 } => (format!("RSA of {bits} bits"), bits >= 1024),
            Key::Other => ("of an uncommon kind".to_owned(), true),
            _ => return None,
        };
        let message = format!(
            "{} line {}: the key of {} is {seen}. expected RSA of 2048 bits or more, or ECDSA on P-256 or P-384; issue it anew",
            ca.key,
            entry.line,
            brief(&certificate.subject),
        );
        Some(Observation::new(ca.field(), certificate.fingerprint.as_str(), message).only_warns(only_warns))
    };
    ca.bundle.entries.iter().filter_map(observe).collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::Severity;
    use crate::trust::fixtures::{NOTHING, ca, ca_with_rsa_bits, findings, secret, verdicts};

    #[test]
    fn accepts_strong_keys() {
        let text = format!("{}{}", ca("one").pem(), ca_with_rsa_bits(2048));
        assert_eq!(verdicts(&secret(&[("ca.crt", &text)])), NOTHING);
    }

    #[test]
    fn rejects_short_keys() {
        for (bits, severity) in [(1024, Severity::Warn), (1016, Severity::Deny)] {
            let found = findings(&secret(&[("ca.crt", &ca_with_rsa_bits(bits))]));
            assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("weak-key", severity)]);
            assert!(found[0].message.contains(&format!("RSA of {bits} bits")), "{}", found[0].message);
        }
    }
}
