//! `key-mismatch`: a private key that does not belong to the leaf.

use super::{Observation, Rule, Severity};
use crate::trust::chain::signature::{self, Key};
use crate::trust::name::brief;
use crate::trust::private_key::KeyError;
use crate::trust::rule_context::RuleContext;
use crate::trust::secret::field;
use crate::trust::{Certificate, UsageKind, go};

/// Envoy rejects the pair and keeps the previous one; once it restarts, every connection fails (measured).
pub(super) const RULE: Rule = Rule {
    id: "key-mismatch",
    severity: Severity::Deny,
    summary: "a private key that cannot be read, or that does not belong to the leaf certificate",
    remedy: "write the chain and its own private key in one update, the key as PEM without a password",
    source: "Envoy, measured: it rejects the pair and keeps the previous one",
    example: "tls.key: not the private key of CN=shop.example.com in tls.crt. expected the leaf's own key; write both in one \
              update, the leaf first in its chain",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let Some(pair) = context.pair else { return Vec::new() };
    let key = pair.private_key_key;
    let leaf = pair.chain.bundle.entries.first().filter(|_| pair.chain.is_loaded());
    let signs = context.usage.kind == UsageKind::SigningCa;
    let signing_key = || context.secret.data.get(key).map(|pem| go::public_key(pem));
    // A CA may sign with keys that proxies cannot serve with.
    let public = match &pair.public_key {
        Err(KeyError::Unsupported { .. }) if signs => &signing_key().unwrap_or(Err(KeyError::Missing(None))),
        key => key,
    };
    if let (Ok(public), Some(leaf)) = (public, leaf)
        && *public != leaf.certificate.public_key
        && let Some(owner) = pair.chain.bundle.entries.iter().find(|entry| entry.certificate.public_key == *public)
    {
        let message = format!(
            "{} line {}: the private key in {key} belongs to {}, and the chain begins with {}. expected the leaf first; reverse the chain",
            pair.chain.key,
            owner.line,
            brief(&owner.certificate.subject),
            brief(&leaf.certificate.subject),
        );
        let identity = format!("{} {}", leaf.certificate.fingerprint, pair.private_key_digest);
        return vec![Observation::new(pair.chain.field(), identity, message)];
    }
    let message = match (public, leaf) {
        // A key of a type that cannot be compared here.
        (Err(KeyError::Unsupported { .. }), Some(leaf))
            if signs && signature::key(&leaf.certificate.public_key).0 == signature::Key::Other =>
        {
            return Vec::new();
        }
        (Err(error), _) if signs => {
            format!("{key}: {error}. expected the private key of the CA: nothing can be signed without it; add it")
        }
        (Err(KeyError::Unsupported { line, label }), Some(leaf)) if !is_served(&leaf.certificate) => format!(
            "{key}: {label} on line {line}, and the key of {}, is neither RSA (2048 bits or more) nor ECDSA (P-256, P-384, P-521). expected a \
             leaf that proxies can serve; reissue it with such a key",
            brief(&leaf.certificate.subject),
        ),
        (Err(error), _) => format!("{key}: {error}. {}", pair.chain.reader.without_key()),
        (Ok(public), Some(leaf)) if *public != leaf.certificate.public_key => format!(
            "{key}: not the private key of {} in {}. expected the leaf's own key; write both in one update, the leaf first in its chain",
            brief(&leaf.certificate.subject),
            pair.chain.key,
        ),
        _ => return Vec::new(),
    };
    let leaf = leaf.map_or("", |leaf| leaf.certificate.fingerprint.as_str());
    vec![Observation::new(field(key), format!("{leaf} {}", pair.private_key_digest), message)]
}

/// Whether Envoy serves with a key of this type.
fn is_served(certificate: &Certificate) -> bool {
    match signature::key(&certificate.public_key).0 {
        Key::Rsa { bits } => bits >= 2048,
        key => matches!(key, Key::P256 | Key::P384 | Key::P521),
    }
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{Leaf, NOTHING, ca, findings, secret, verdicts};

    fn pair(leaf: &Leaf, key: &str) -> crate::trust::Secret {
        secret(&[("tls.crt", &leaf.pem()), ("tls.key", key)])
    }

    #[test]
    fn accepts_the_leafs_key_in_every_format() {
        for leaf in
            [ca("one").leaf("a"), ca("one").leaf_of("a", &rcgen::PKCS_ECDSA_P384_SHA384), ca("one").rsa_leaf("a")]
        {
            assert_eq!(verdicts(&pair(&leaf, &leaf.key_pem())), NOTHING);
            assert_eq!(verdicts(&pair(&leaf, &leaf.traditional_key_pem())), NOTHING);
            let parameters = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
            assert_eq!(verdicts(&pair(&leaf, &format!("{parameters}{}trailing", leaf.key_pem()))), NOTHING);
        }
    }

    #[test]
    fn rejects_another_key() {
        let leaf = ca("one").leaf("a");
        let found = findings(&pair(&leaf, &ca("one").leaf("b").key_pem()));
        assert_eq!(
            found.iter().map(|f| (f.rule, f.field.as_str())).collect::<Vec<_>>(),
            [("key-mismatch", "data[tls.key]")]
        );
        assert!(found[0].message.contains("CN=a in tls.crt"), "{}", found[0].message);
    }

    #[test]
    fn rejects_a_chain_in_the_wrong_order() {
        let authority = ca("one");
        let leaf = authority.leaf("a");
        let chain = format!("{}{}", authority.pem(), leaf.pem());
        assert_eq!(verdicts(&secret(&[("tls.crt", &chain), ("tls.key", &leaf.key_pem())])), ["key-mismatch"]);
    }

    #[test]
    fn rejects_keys_that_cannot_be_read() {
        let leaf = ca("one").leaf("a");
        let key = leaf.key_pem();
        for (text, reason) in [
            (key.replace("PRIVATE", "ENCRYPTED PRIVATE"), "is encrypted"),
            (
                key.replace("-----BEGIN PRIVATE KEY-----\n", "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00112233445566778899AABBCCDDEEFF\n\n")
                    .replace("END PRIVATE", "END RSA PRIVATE"),
                "is encrypted",
            ),
            ("prose".to_owned(), "no PRIVATE KEY block"),
            (leaf.pem(), "no PRIVATE KEY block"),
            (key.replace("-----END PRIVATE KEY-----", ""), "no END line"),
            ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n".to_owned(), "not a valid RSA"),
        ] {
            let found = findings(&pair(&leaf, &text));
            assert_eq!(found.iter().map(|f| f.rule).collect::<Vec<_>>(), ["key-mismatch"], "{reason}");
            assert!(found[0].message.contains(reason), "{}", found[0].message);
            assert!(!found[0].message.contains(key.lines().nth(1).expect("a line of base64")));
        }
    }
}
