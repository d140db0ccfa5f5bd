//! `weak-key`: a CA with a key that is too weak or damaged, or that not every client or proxy supports.

use super::{Observation, Rule, Severity};
use crate::trust::bundle::BundleEntry;
use crate::trust::chain::signature::{Key, is_readable, key};
use crate::trust::name::brief;
use crate::trust::proxy::{Algorithm, Proxy};
use crate::trust::rule_context::RuleContext;
use crate::trust::{Text, TlsConsumer, UsageKind};

/// NIST SP 800-57 and the CA/Browser baseline ask for 2048 bits of RSA; below 1024 it denies, though Envoy verifies with 512
/// (measured). It denies a damaged key, and one of a type that the oldest proxy loads but cannot verify with
/// ([`crate::trust::proxy::TABLE`]). The keys of serving pairs are judged by `key-mismatch`.
pub(super) const RULE: Rule = Rule {
    id: "weak-key",
    severity: Severity::Deny,
    summary: "a CA with RSA under 1024 bits, or a key that a proxy cannot use; under 2048 bits, or an uncommon type, warns",
    remedy: "add a CA with a strong private key and its own subject, renew the certificates of this one, then remove it",
    source: "NIST SP 800-57; Envoy 1.36 to 1.40, measured: ML-DSA is verified from 1.38 on",
    example: "ca.crt line 1: the key of CN=root is RSA of 1016 bits. expected RSA of 2048 bits or more, or ECDSA on P-256 or \
              P-384; add a CA with such a key and its own subject, renew the certificates of this one, then remove it",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let cas = context.loaded_ca();
    let signing = context.pair.filter(|_| context.usage.kind == UsageKind::SigningCa).map(|pair| &pair.chain);
    let signer =
        signing.filter(|chain| chain.is_loaded()).and_then(|chain| Some((chain, chain.bundle.entries.first()?)));
    // A CA that is also in the bundle is reported once.
    let signer = signer.filter(|(_, e)| !cas.is_some_and(|ca| ca.certificates().any(|ca| *ca == e.certificate)));
    let observe = |(ca, entry): (&Text, &BundleEntry)| {
        let certificate = &entry.certificate;
        let (seen, only_warns) = match key(&certificate.public_key).0 {
            _ if !is_readable(&certificate.public_key) => {
                ("damaged: it cannot verify any certificate".to_owned(), false)
            }
            Key::Rsa { bits: bits @ ..2048 } => (format!("RSA of {bits} bits"), bits >= 1024),
            Key::Rsa { .. } | Key::P256 | Key::P384 | Key::P521 | Key::Ed25519 => return None,
            // Go supports a few more.
            _ if ca.reader == TlsConsumer::Go => ("of an uncommon type".to_owned(), true),
            _ => match Algorithm::of_key(&certificate.public_key) {
                None => ("damaged, or of a type that the proxy cannot verify with".to_owned(), false),
                Some(algorithm) if context.usage.oldest_proxy.verifies(algorithm) => {
                    ("of an uncommon type".to_owned(), true)
                }
                Some(algorithm) => (too_new(context.usage.oldest_proxy, algorithm), false),
            },
        };
        let message = format!(
            "{} line {}: the key of {} is {seen}. expected RSA of 2048 bits or more, or ECDSA on P-256 or P-384; add a CA with such a key and its \
             own subject, renew the certificates of this one, then remove it",
            ca.key,
            entry.line,
            brief(&certificate.subject),
        );
        Some(Observation::new(ca.field(), certificate.fingerprint.as_str(), message).only_warns(only_warns))
    };
    let entries = cas.into_iter().flat_map(|ca| ca.bundle.entries.iter().map(move |entry| (ca, entry)));
    entries.chain(signer).filter_map(observe).collect()
}

/// A key that the oldest proxy cannot verify with.
fn too_new(oldest: Proxy, algorithm: Algorithm) -> String {
    let (major, minor) = oldest.version;
    let since = oldest.since(algorithm).map(|(major, minor)| format!(", only from {major}.{minor} on"));
    format!("of a type that Envoy {major}.{minor} cannot verify with{}", since.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{
        NOTHING, ca, ca_with_damaged_key, ca_with_key, ca_with_rsa_bits, element, findings, now, parsed, secret,
        self_signed, verdicts,
    };
    use crate::trust::{Proxy, SecretUsage, Severity, UsageKind, judge};

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

    #[test]
    fn rejects_keys_that_the_proxy_cannot_verify_with() {
        let rsa = |parameters: &[u8], exponent: u8| {
            let modulus = [&[0][..], &[0xff; 256]].concat();
            let key = element(0x30, &[element(2, &modulus), vec![2, 1, exponent]].concat());
            let algorithm = [&[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1][..], parameters].concat();
            element(0x30, &[element(0x30, &algorithm), element(3, &[&[0][..], &key].concat())].concat())
        };
        let mut hybrid = parsed(ca("root").der()).public_key;
        let start = hybrid.len() - 65;
        hybrid[start] = 6 | hybrid[start + 64] & 1;
        let secp256k1 = element(
            0x30,
            &[&[0x30, 16, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1, 6, 5, 0x2b, 0x81, 4, 0, 10][..], &[3, 2, 0, 4]]
                .concat(),
        );
        assert_eq!(verdicts(&secret(&[("ca.crt", &ca_with_key(&rsa(&[5, 0], 3)))])), NOTHING);
        for info in [rsa(&[], 3), rsa(&[4, 0], 3), rsa(&[5, 0], 1), rsa(&[5, 0], 2), hybrid, secp256k1] {
            let found = findings(&secret(&[("ca.crt", &ca_with_key(&info))]));
            assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("weak-key", Severity::Deny)]);
        }
    }

    /// Findings on a CA with a key of this type, for a proxy of this version.
    fn found(algorithm: &'static rcgen::SignatureAlgorithm, oldest_proxy: Proxy) -> Vec<(&'static str, Severity)> {
        let pem = self_signed(algorithm).0;
        let usage = SecretUsage { oldest_proxy, ..SecretUsage::default() };
        let found = judge(&secret(&[("ca.crt", &pem)]), usage, now());
        found.iter().map(|f| (f.rule, f.severity)).collect()
    }

    #[test]
    fn warns_of_ml_dsa_that_all_proxies_support_and_rejects_it_elsewhere() {
        for algorithm in [&rcgen::PKCS_ML_DSA_44, &rcgen::PKCS_ML_DSA_65, &rcgen::PKCS_ML_DSA_87] {
            assert_eq!(found(algorithm, Proxy::envoy(1, 40)), [("weak-key", Severity::Warn)]);
            assert_eq!(found(algorithm, Proxy::envoy(1, 38)), [("weak-key", Severity::Warn)]);
            assert_eq!(found(algorithm, Proxy::envoy(1, 37)), [("weak-key", Severity::Deny)]);
            assert_eq!(found(algorithm, Proxy::default()), [("weak-key", Severity::Deny)]);
            let (pem, key) = self_signed(algorithm);
            let pair = secret(&[("tls.crt", &pem), ("tls.key", &key)]);
            let used = |kind| {
                let usage = SecretUsage { kind, oldest_proxy: Proxy::envoy(1, 40), ..SecretUsage::default() };
                judge(&pair, usage, now()).iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>()
            };
            assert_eq!(used(UsageKind::SigningCa), [("weak-key", Severity::Warn)]);
            assert!(used(UsageKind::Serving).contains(&("key-mismatch", Severity::Deny)), "no proxy serves with it");
        }
        assert_eq!(found(&rcgen::PKCS_ED25519, Proxy::default()), []);
    }

    #[test]
    fn rejects_a_damaged_key() {
        let found = findings(&secret(&[("ca.crt", &(ca_with_damaged_key() + &ca("valid").pem()))]));
        assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("weak-key", Severity::Deny)]);
        assert!(
            found[0].message.contains("the key of CN=root is damaged: it cannot verify any certificate"),
            "{found:?}"
        );
    }
}
