//! `weak-signature`: a signature with a broken hash.

use super::{Observation, Rule, Severity};
use crate::trust::UsageKind;
use crate::trust::chain::signature::broken_hash;
use crate::trust::name::brief;
use crate::trust::proxy::Algorithm;
use crate::trust::rule_context::RuleContext;

/// RFC 6151 (MD5), RFC 9155 (SHA-1). Browsers, Go and rustls refuse such a server; Envoy refuses MD5 and accepts SHA-1
/// (measured). No reader checks the signature of an anchor, so in a bundle it only warns; a root's signature is ignored.
pub(super) const RULE: Rule = Rule {
    id: "weak-signature",
    severity: Severity::Deny,
    summary: "a serving chain signed with MD5 or SHA-1; an intermediate CA in a bundle warns",
    remedy: "reissue it with SHA-256",
    source: "RFC 6151 (MD5), RFC 9155 (SHA-1); Envoy, measured",
    example: "tls.crt line 1: CN=shop.example.com is signed with SHA-1. expected SHA-256 or better: clients refuse it; reissue it",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let cas = context.ca.into_iter().map(|ca| (ca, true));
    let chain = context.pair.into_iter().map(|pair| (&pair.chain, false));
    let texts = cas.chain(chain).filter(|(text, _)| text.is_loaded());
    let entries = texts.flat_map(|(text, is_bundle)| text.bundle.entries.iter().map(move |e| (text, is_bundle, e)));
    // It is not known whether a signing CA issues server or client certificates; served chains are judged in their own Secrets.
    let signs = context.usage.kind == UsageKind::SigningCa;
    let observe = |(text, is_bundle, entry): (&crate::trust::Text, bool, &crate::trust::bundle::BundleEntry)| {
        let certificate = &entry.certificate;
        if certificate.subject_der == certificate.issuer_der {
            return None;
        }
        let hash = broken_hash(certificate)?;
        let algorithm = if hash == "MD5" { Algorithm::Md5 } else { Algorithm::Sha1 };
        let is_verified = context.usage.oldest_proxy.verifies(algorithm);
        let effect = match is_bundle {
            true => "programs other than Envoy refuse it below its root".to_owned(),
            false => format!("{}s refuse it", text.reader.peer()),
        };
        let message = format!(
            "{} line {}: {} is signed with {hash}. expected SHA-256 or better: {effect}; reissue it",
            text.key,
            entry.line,
            brief(&certificate.subject),
        );
        Some(
            Observation::new(text.field(), certificate.fingerprint.as_str(), message)
                .only_warns(is_bundle || signs && is_verified),
        )
    };
    entries.filter_map(observe).collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::Severity;
    use crate::trust::fixtures::{NOTHING, ca, findings, secret, signed_with, verdicts};

    #[test]
    fn accepts_sha_256() {
        assert_eq!(verdicts(&secret(&[("ca.crt", &ca("one").pem())])), NOTHING);
    }

    #[test]
    fn rejects_sha_1_and_md5() {
        // ecdsa-with-SHA1; the signature itself is not verified here.
        let leaf = ca("one").leaf("a");
        let chain = signed_with(leaf.der(), &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1]);
        let found = findings(&secret(&[("tls.crt", &chain), ("tls.key", &leaf.key_pem())]));
        assert_eq!(
            found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(),
            [("weak-signature", Severity::Deny)]
        );
        assert!(found[0].message.contains("CN=a is signed with SHA-1"), "{}", found[0].message);

        let md5 = signed_with(leaf.der(), &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 4]);
        let found = findings(&secret(&[("ca.crt", &format!("{}{md5}", ca("one").pem()))]));
        assert!(found.iter().any(|f| f.rule == "weak-signature" && f.severity == Severity::Warn), "{found:?}");
    }
}
