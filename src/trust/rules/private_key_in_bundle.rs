//! `private-key-in-bundle`: a private key among certificates.

use sha2::{Digest, Sha256};

use super::{Observation, Rule, Severity};
use crate::trust::certificate::hex;
use crate::trust::credential::CRL_KEYS;
use crate::trust::rule_context::RuleContext;
use crate::trust::secret::field;

/// Envoy ignores the key (measured), but bundles are public: everyone who can read one can now issue certificates of that CA. The
/// whole text is searched, even where the proxy stops reading.
pub(super) const RULE: Rule = Rule {
    id: "private-key-in-bundle",
    severity: Severity::Deny,
    summary: "a CA bundle that contains a private key",
    remedy: "remove the key from the bundle, and replace it: everyone who can read the bundle may know it",
    source: "bundles are published: everyone who reads a CA's key can issue its certificates",
    example: "ca.crt line 1: private key found. expected certificates only; remove the key and issue its certificate again with a new one, since everyone who can \
              read the bundle may know it",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let mut seen = Vec::new();
    for key in context.usage.reader.ca_keys().iter().copied().chain(CRL_KEYS) {
        let Some(text) = context.secret.data.get(key) else { continue };
        for (line, digest) in private_keys(text) {
            let message = format!(
                "{key} line {line}: private key found. expected certificates only; remove the key and issue its certificate again with a new one, since everyone who can \
                 read the bundle may know it"
            );
            seen.push(Observation::new(field(key), digest, message));
        }
    }
    seen
}

/// The lines where a private key begins, each with a digest of the text up to an END.
fn private_keys(text: &[u8]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, Sha256)> = None;
    for (line, number) in text.split(|b| *b == b'\n').zip(1..) {
        if begins(line)
            && let Some((line, hash)) = open.replace((number, Sha256::new()))
        {
            found.push((line, hex(&hash.finalize())));
        }
        if let Some((start, mut hash)) = open.take() {
            hash.update(line.trim_ascii());
            if line.trim_ascii().starts_with(b"-----END") {
                found.push((start, hex(&hash.finalize())));
            } else {
                open = Some((start, hash));
            }
        }
    }
    found.extend(open.map(|(line, hash)| (line, hex(&hash.finalize()))));
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
    fn rejects_a_key_behind_a_broken_block() {
        let text = format!("-----BEGIN CERTIFICATE-----\n{}", ca("one").leaf("a").key_pem());
        assert_eq!(verdicts(&secret(&[("ca.crt", &text)])), ["unparsable", "private-key-in-bundle"]);
    }
}
