//! `weak-key`: a CA with a key that is too weak or none at all, or that not every client or proxy takes.

use super::{Observation, Rule, Severity};
use crate::trust::bundle::Entry;
use crate::trust::chain::signature::{Key, is_p224, is_readable, key};
use crate::trust::name::brief;
use crate::trust::subject::Subject;
use crate::trust::{Reader, SecretUsage, Text};

/// NIST SP 800-57 and the CA/Browser baseline ask for 2048 bits of RSA. Measured: Envoy takes a CA with 1024 bits, and no
/// less; so below that it denies, and a key that is none, or of another kind than RSA, ECDSA and Ed25519, which Envoy loads and
/// verifies nobody with. The keys of serving pairs are judged by `key-mismatch`.
pub(super) const RULE: Rule = Rule {
    id: "weak-key",
    severity: Severity::Deny,
    summary: "a CA with RSA under 1024 bits, or a key that no proxy can use; under 2048 bits, or of an uncommon kind, it warns",
    mend: "issue the CA anew with RSA of 2048 bits or more, or ECDSA on P-256 or P-384",
    source: "NIST SP 800-57; Envoy, measured: it takes no CA under 1024 bits",
    example: "ca.crt line 1: the key of CN=root is RSA of 1016 bits. expected RSA of 2048 bits or more, or ECDSA on \
              P-256 or P-384; issue it anew",
    looks_ahead: false,
    check,
};

fn check(subject: &Subject<'_>) -> Vec<Observation> {
    let cas = subject.loaded_ca();
    let signing = subject.pair.filter(|_| subject.duty.usage == SecretUsage::SigningCa).map(|pair| &pair.chain);
    let signer =
        signing.filter(|chain| chain.is_loaded()).and_then(|chain| Some((chain, chain.bundle.entries.first()?)));
    // In the bundle, too, it is one CA.
    let signer = signer.filter(|(_, e)| !cas.is_some_and(|ca| ca.certificates().any(|held| *held == e.certificate)));
    let observe = |(ca, entry): (&Text, &Entry)| {
        let certificate = &entry.certificate;
        let (seen, only_warns) = match key(&certificate.public_key).0 {
            _ if !is_readable(&certificate.public_key) => ("damaged: nobody can verify with it".to_owned(), false),
            Key::Rsa { bits: bits @ ..2048 } => (format!("RSA of {bits} bits"), bits >= 1024),
            // Go knows a few more.
            Key::Other if ca.reader == Reader::Envoy && !is_p224(&certificate.public_key) => {
                ("damaged, or of a kind that the proxy verifies nobody with".to_owned(), false)
            }
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
    let entries = cas.into_iter().flat_map(|ca| ca.bundle.entries.iter().map(move |entry| (ca, entry)));
    entries.chain(signer).filter_map(observe).collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::Severity;
    use crate::trust::fixtures::{
        NOTHING, ca, ca_with_damaged_key, ca_with_key, ca_with_rsa_bits, element, findings, parsed, secret, verdicts,
    };

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
    fn rejects_keys_that_the_proxy_verifies_nobody_with() {
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

    #[test]
    fn rejects_a_key_that_is_none() {
        let found = findings(&secret(&[("ca.crt", &(ca_with_damaged_key() + &ca("sound").pem()))]));
        assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("weak-key", Severity::Deny)]);
        assert!(found[0].message.contains("the key of CN=root is damaged: nobody can verify with it"), "{found:?}");
    }
}
