//! `unparsable`: a text that the proxy rejects as a whole.

use super::{Observation, Rule, Severity};
use crate::trust::bundle::MAX_CERTIFICATES;
use crate::trust::name::brief;
use crate::trust::parsed_secret::Text;
use crate::trust::rule_context::RuleContext;
use crate::trust::{TlsConsumer, UsageKind, leaf_requirements};

/// Envoy rejects the whole SDS update if one block cannot be read (measured). It keeps the previous copy until it restarts, then has
/// none.
pub(super) const RULE: Rule = Rule {
    id: "unparsable",
    severity: Severity::Deny,
    summary: "a CA bundle, chain, leaf or text with revocation lists that the proxy rejects as a whole",
    remedy: "write each certificate as its own PEM block, and remove broken blocks",
    source: "Envoy, measured: it rejects the whole SDS update if one block cannot be read",
    example: "ca.crt: CERTIFICATE on line 1: not a certificate: the content is not a DER sequence. expected valid PEM blocks only: \
              the proxy rejects the whole text, and keeps the previous one until it restarts, then has none; correct this block",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    context.texts().filter_map(observe).chain(chain_without_certificate(context)).chain(unservable(context)).collect()
}

/// Leaves that Envoy refuses to serve.
fn unservable(context: &RuleContext<'_>) -> Option<Observation> {
    let pair = context.pair.filter(|_| context.usage.kind == UsageKind::Serving)?;
    let chain = &pair.chain;
    let entry = chain.bundle.entries.first().filter(|_| chain.reader == TlsConsumer::Envoy && chain.is_loaded())?;
    // `key-mismatch` reports a chain that does not start with the leaf.
    let leaf =
        Some(&entry.certificate).filter(|leaf| pair.public_key.as_ref().is_ok_and(|key| *key == leaf.public_key))?;
    // istiod sends the OCSP response with this pair only (`ExtractCertInfo`).
    let is_stapled =
        chain.key == "tls.crt" && context.secret.data.get(STAPLE).is_some_and(|response| !response.is_empty());
    let (found, expected, remedy) = if !leaf_requirements::may_sign_handshakes(leaf) {
        ("has a key usage without digitalSignature, or a malformed one", "digitalSignature", "reissue it")
    } else if leaf_requirements::must_staple(leaf) && !is_stapled {
        (
            "requires OCSP stapling (must-staple)",
            "tls.ocsp-staple next to tls.crt",
            "add it, or reissue the leaf without",
        )
    } else {
        return None;
    };
    let message = format!(
        "{} line {}: the leaf {} {found}. expected {expected}: the proxy rejects the pair, and keeps the previous one until it \
         restarts, then has none; {remedy}",
        chain.key,
        entry.line,
        brief(&leaf.subject),
    );
    Some(Observation::new(chain.field(), leaf.fingerprint.as_str(), message))
}

/// The key of the OCSP response.
const STAPLE: &str = "tls.ocsp-staple";

fn observe(text: &Text) -> Option<Observation> {
    let (key, reader) = (text.key, text.reader.name());
    let message = match &text.bundle.rejected {
        Some(rejection) => format!(
            "{key}: {rejection}. expected valid PEM blocks only: {reader} rejects the whole text, and keeps the previous one until it \
             restarts, then has none; correct this block"
        ),
        None if text.bundle.is_too_long => format!(
            "{key}: more than {MAX_CERTIFICATES} certificates. expected fewer than 1,000: every handshake fails once the subjects of \
             all CAs exceed 64 KiB; remove CAs that no client needs"
        ),
        None => return None,
    };
    Some(Observation::new(text.field(), text.digest(), message))
}

fn chain_without_certificate(context: &RuleContext<'_>) -> Option<Observation> {
    let chain = &context.pair?.chain;
    let nothing = chain.is_loaded() && chain.bundle.entries.is_empty();
    nothing.then(|| {
        let message = format!(
            "{}: no certificate found{}. expected PEM blocks, the leaf first; add it and its intermediates",
            chain.key,
            context.encoding_of(chain.key),
        );
        Observation::new(chain.field(), chain.digest(), message)
    })
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{Leaf, NOTHING, block, ca, denials, secret, verdicts};

    #[test]
    fn accepts_bundles_that_envoy_loads() {
        let (one, two) = (ca("one").pem(), ca("two").pem());
        for text in [
            format!("{two}{one}"),
            format!("{one}{one}{two}"),
            format!("{one}{two}").replace('\n', "\r\n"),
            format!("# the old one\n{one}# and the new one\n\n{two}"),
            one.replace("CERTIFICATE", "X509 CERTIFICATE"),
            one.replace("CERTIFICATE", "TRUSTED CERTIFICATE"),
            one.trim_end().to_owned(),
        ] {
            // Rule `duplicate` warns about a CA that the bundle has twice.
            assert_eq!(denials(&secret(&[("ca.crt", &text)])), [], "{text}");
        }
    }

    fn pair(leaf: &Leaf, staple: &str) -> Vec<&'static str> {
        verdicts(&secret(&[("tls.crt", &leaf.pem()), ("tls.key", &leaf.key_pem()), ("tls.ocsp-staple", staple)]))
    }

    #[test]
    fn rejects_a_leaf_whose_key_usage_lacks_digital_signature() {
        let usage = |usages: &[rcgen::KeyUsagePurpose]| {
            pair(&ca("one").leaf_with("a", |params| params.key_usages = usages.to_vec()), "")
        };
        assert_eq!(usage(&[rcgen::KeyUsagePurpose::DigitalSignature]), NOTHING);
        assert_eq!(usage(&[rcgen::KeyUsagePurpose::KeyAgreement]), ["unparsable"]);
    }

    #[test]
    fn rejects_a_leaf_that_must_be_stapled_and_is_not() {
        let must = |content: &[u8]| {
            let oid = [1, 3, 6, 1, 5, 5, 7, 1, 24];
            let extension = rcgen::CustomExtension::from_oid_content(&oid, content.to_vec());
            ca("one").leaf_with("a", |params| params.custom_extensions = vec![extension])
        };
        assert_eq!(pair(&must(&[0x30, 3, 2, 1, 5]), ""), ["unparsable"]);
        assert_eq!(pair(&must(&[0x30, 3, 2, 1, 5]), "a response"), NOTHING);
        assert_eq!(pair(&must(&[0x30, 3, 2, 1, 6]), ""), NOTHING);
    }

    #[test]
    fn rejects_blocks_without_a_line_break_between() {
        let text = format!("{}{}", ca("one").pem().trim_end(), ca("two").pem());
        let denied = denials(&secret(&[("ca.crt", &text)]));
        assert_eq!(denied.len(), 1);
        assert_eq!((denied[0].rule, denied[0].field.as_str()), ("unparsable", "data[ca.crt]"));
        assert!(denied[0].message.contains("holds END and the next BEGIN"), "{}", denied[0].message);
    }

    #[test]
    fn rejects_a_garbage_block_next_to_a_valid_one() {
        let garbage = "-----BEGIN CERTIFICATE-----\nZ2FyYmFnZQ==\n-----END CERTIFICATE-----\n";
        let denied = denials(&secret(&[("cacert", &format!("{}{garbage}", ca("one").pem()))]));
        assert_eq!(denied.iter().map(|f| f.rule).collect::<Vec<_>>(), ["unparsable"]);
        assert!(denied[0].message.starts_with("cacert: CERTIFICATE on line "), "{}", denied[0].message);
    }

    #[test]
    fn rejects_headers_truncation_and_other_labels() {
        let one = ca("one").pem();
        for text in [
            one.replace("BEGIN CERTIFICATE-----\n", "BEGIN CERTIFICATE-----\nComment: x\n\n"),
            one.replace("-----END CERTIFICATE-----\n", ""),
            one.replace("END CERTIFICATE", "END X509 CERTIFICATE"),
            one.replace("-----END CERTIFICATE-----", "-----END CERTIFICATE----"),
            one.replace("-----END CERTIFICATE-----", " -----END CERTIFICATE-----"),
            one.replace("BEGIN CERTIFICATE", "BEGIN X509 CRL").replace("END CERTIFICATE", "END X509 CRL"),
        ] {
            assert_eq!(verdicts(&secret(&[("ca.crt", &text)])), ["unparsable"], "{text}");
        }
    }

    #[test]
    fn rejects_revocation_lists_that_cannot_be_read() {
        let one = ca("one");
        let list = one.crl_pem(2029, 2031, &[]);
        // Envoy reads certificates among the lists, too.
        for text in [
            list.replace("-----END X509 CRL-----\n", ""),
            block("X509 CRL", b"no"),
            list + &block("CERTIFICATE", b"no"),
        ] {
            let denied = denials(&secret(&[("ca.crt", &one.pem()), ("ca.crl", &text)]));
            assert_eq!(
                denied.iter().map(|f| (f.rule, f.field.as_str())).collect::<Vec<_>>(),
                [("unparsable", "data[ca.crl]")]
            );
        }
    }

    #[test]
    fn rejects_a_chain_without_certificate() {
        let leaf = ca("one").leaf("a");
        assert_eq!(verdicts(&secret(&[("tls.crt", "prose"), ("tls.key", &leaf.key_pem())])), ["unparsable"]);
    }
}
