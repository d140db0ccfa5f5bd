//! `private-key-in-bundle`: a private key among certificates.

use std::ops::Range;

use sha2::{Digest, Sha256};

use super::{Observation, Rule, Severity};
use crate::trust::certificate::hex;
use crate::trust::credential::CRL_KEYS;
use crate::trust::name::brief;
use crate::trust::private_key::public_key;
use crate::trust::rule_context::RuleContext;
use crate::trust::secret::field;

/// Envoy ignores the key (measured), but bundles are public: everyone who can read one can now issue certificates of that CA. The
/// whole text is searched, even where the proxy stops reading.
pub(super) const RULE: Rule = Rule {
    id: "private-key-in-bundle",
    severity: Severity::Deny,
    summary: "a CA bundle that contains a private key",
    remedy: "remove the private key; replace the CA or the certificate that it belongs to (docs/compromised-ca.md)",
    source: "bundles are published: everyone who reads a CA's key can issue its certificates",
    example: "ca.crt line 1: a private key. expected certificates only: everyone who can read the bundle may have it; remove its block, and \
              reissue its certificate with another private key",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let mut seen = Vec::new();
    for key in context.usage.reader.ca_keys().iter().copied().chain(CRL_KEYS) {
        let Some(text) = context.secret.data.get(key) else { continue };
        for (number, (line, block, digest)) in private_keys(text).into_iter().enumerate() {
            let public = text.get(block).filter(|_| number < READ).and_then(|block| public_key(block).ok());
            let owner = context
                .ca
                .into_iter()
                .flat_map(|ca| ca.certificates())
                .find(|ca| Some(&ca.public_key) == public.as_ref());
            let (whose, remedy) = match owner {
                Some(ca) => {
                    let replace = "replace that CA (docs/compromised-ca.md)".to_owned();
                    (format!("the private key of {}", brief(&ca.subject)), replace)
                }
                None => ("a private key".to_owned(), "reissue its certificate with another private key".to_owned()),
            };
            let message = format!(
                "{key} line {line}: {whose}. expected certificates only: everyone who can read the bundle may have it; remove its block, and \
                 {remedy}"
            );
            seen.push(Observation::new(field(key), digest, message));
        }
    }
    seen
}

/// Private keys whose owner is searched: a hostile text has thousands.
const READ: usize = 8;

/// The line where each private key begins, the place of its text up to an END, and a digest of that.
fn private_keys(text: &[u8]) -> Vec<(usize, Range<usize>, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, usize, Sha256)> = None;
    let mut next = 0;
    for (line, number) in text.split_inclusive(|b| *b == b'\n').zip(1..) {
        let at = next;
        next += line.len();
        if begins(line)
            && let Some((line, from, hash)) = open.replace((number, at, Sha256::new()))
        {
            found.push((line, from..at, hex(&hash.finalize())));
        }
        if let Some((start, from, mut hash)) = open.take() {
            hash.update(line.trim_ascii());
            if line.trim_ascii().starts_with(b"-----END") {
                found.push((start, from..next, hex(&hash.finalize())));
            } else {
                open = Some((start, from, hash));
            }
        }
    }
    found.extend(open.map(|(line, from, hash)| (line, from..next, hex(&hash.finalize()))));
    found
}

fn begins(line: &[u8]) -> bool {
    // Cheap to check first: nearly all lines of a bundle are plain base64.
    if !line.contains(&b'-') {
        return false;
    }
    let Some(at) = line.windows(7).position(|w| w == b"-BEGIN ") else { return false };
    line[at..].windows(11).any(|w| w == b"PRIVATE KEY")
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{NOTHING, ca, findings, secret, verdicts};

    #[test]
    fn accepts_certificates_and_comments_on_keys() {
        let text = format!("# the PRIVATE KEY is in the vault\n{}", ca("one").pem());
        assert_eq!(verdicts(&secret(&[("ca.crt", &text)])), NOTHING);
    }

    #[test]
    fn rejects_a_key_without_printing_it() {
        let authority = ca("one");
        let key = authority.leaf("a").key_pem();
        for text in [
            format!("{}{key}", authority.pem()),
            format!("{}  {key}", authority.pem()),
            format!("{}{}", authority.pem(), key.replace("PRIVATE", "ENCRYPTED PRIVATE")),
        ] {
            let found = findings(&secret(&[("ca.crt", &text)]));
            assert_eq!(found.iter().map(|f| f.rule).collect::<Vec<_>>(), ["private-key-in-bundle"], "{found:?}");
            let body = key.lines().nth(1).expect("a line of base64");
            assert!(!format!("{found:?}").contains(&body[..8]));
        }
    }

    #[test]
    fn names_the_ca_whose_key_it_is() {
        let authority = ca("one");
        let found = |key: String| {
            findings(&secret(&[("ca.crt", &(ca("two").pem() + &authority.pem() + &key))])).remove(0).message
        };
        let message = found(authority.key_pem());
        assert!(message.contains("the private key of CN=one") && message.contains("replace that CA"), "{message}");
        assert!(found(authority.leaf("a").key_pem()).contains("reissue its certificate"));
    }

    #[test]
    fn rejects_a_key_behind_a_broken_block() {
        let text = format!("-----BEGIN CERTIFICATE-----\n{}", ca("one").leaf("a").key_pem());
        assert_eq!(verdicts(&secret(&[("ca.crt", &text)])), ["unparsable", "private-key-in-bundle"]);
    }
}
