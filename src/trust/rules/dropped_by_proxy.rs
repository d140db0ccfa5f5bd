//! `dropped-by-proxy`: a certificate that the proxy skips silently.

use super::{Observation, Rule, Severity};
use crate::trust::certificate::hex;
use crate::trust::credential::CRL_KEYS;
use crate::trust::name::brief;
use crate::trust::parsed_secret::Text;
use crate::trust::rule_context::RuleContext;

/// BoringSSL's PEM reader skips blocks that do not start at the beginning of a line, and unknown labels. Measured: with
/// a byte order mark before the first block Envoy accepts the update, and refuses the clients of that CA.
pub(super) const RULE: Rule = Rule {
    id: "dropped-by-proxy",
    severity: Severity::Deny,
    summary: "a certificate or revocation list that the proxy skips silently",
    remedy: "start each block at the beginning of a line with -----BEGIN CERTIFICATE-----, and nothing else on that line",
    source: "BoringSSL's PEM reader applies RFC 7468 strictly; measured with Envoy",
    example: "ca.crt line 1: a byte order mark precedes BEGIN; save the file without BOM. the proxy skips this block silently and \
              does not load its certificate",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let texts = context.texts().filter(|text| text.is_loaded());
    let lists = context.crl.into_iter().filter(|crl| crl.is_loaded());
    texts.flat_map(observe).chain(lists.flat_map(certificates)).collect()
}

/// Envoy reads certificates among revocation lists, but loads only the lists.
fn certificates(crl: &Text) -> impl Iterator<Item = Observation> {
    crl.bundle.entries.iter().map(|entry| {
        let (key, subject) = (crl.key, brief(&entry.certificate.subject));
        let message = format!(
            "{key} line {}: the proxy loads no certificate from here, so {subject} has no effect. expected revocation lists only; move \
             CAs to the CA bundle",
            entry.line
        );
        Observation::new(crl.field(), entry.certificate.fingerprint.as_str(), message).only_warns(true)
    })
}

fn observe(text: &Text) -> Vec<Observation> {
    let (key, reader) = (text.key, text.reader.name());
    let (what, label) = if CRL_KEYS.contains(&key) { ("list", "X509 CRL") } else { ("certificate", "CERTIFICATE") };
    let malformed = text.bundle.malformed.iter().map(|seen| {
        let message = format!(
            "{key} line {}: {}. {reader} skips this block silently and does not load its {what}{}",
            seen.line,
            seen.cause,
            text.reader.after_skipped(),
        );
        Observation::new(text.field(), hex(&seen.digest), message)
    });
    let wrong_label = format!("does not load its {what}. expected the label {label}; correct it");
    let list_label = "does not load its list. expected the label X509 CRL; correct it".to_owned();
    let pkcs7 = format!(
        "does not load the {what}s in it, which have the form of PKCS #7. expected a block with the label {label} for each; convert it: \
         openssl pkcs7 -print_certs -in FILE (with the label CMS: openssl cms -cmsout -inform PEM -in FILE -certsout NEW)"
    );
    let unrelated = format!("finds no {what} in it. expected {what}s only; remove it");
    let blocks = text.bundle.skipped.iter().map(|block| {
        let effect = match (block.is_certificate, block.is_pkcs7) {
            (_, true) => &pkcs7,
            (true, false) => &wrong_label,
            (false, false) if block.is_list => &list_label,
            (false, false) => &unrelated,
        };
        let message = format!("{key} line {}: {reader} skips {} and {effect}", block.line, block.label);
        Observation::new(text.field(), block.label.as_str(), message)
            .only_warns(!block.is_certificate && !block.is_list)
    });
    malformed.chain(blocks).collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{NOTHING, ca, findings, secret, verdicts};
    use crate::trust::{SecretUsage, Severity, judge_update};

    #[test]
    fn accepts_comments_and_blocks_that_are_commented_out() {
        let (one, two) = (ca("one").pem(), ca("two").pem());
        let out: String = two.lines().map(|line| format!("# {line}\n")).collect();
        assert_eq!(verdicts(&secret(&[("ca.crt", &format!("# the certificate of team A\n{one}{out}"))])), NOTHING);
    }

    #[test]
    fn rejects_a_byte_order_mark() {
        let text = format!("\u{feff}{}{}", ca("two").pem(), ca("one").pem());
        let found = findings(&secret(&[("ca.crt", &text)]));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].rule, found[0].severity), ("dropped-by-proxy", Severity::Deny));
        assert!(found[0].message.starts_with("ca.crt line 1: a byte order mark"), "{}", found[0].message);
    }

    #[test]
    fn rejects_everything_that_hides_a_block() {
        let (one, two) = (ca("one").pem(), ca("two").pem());
        let indented: String = two.lines().map(|line| format!("  {line}\n")).collect();
        for hidden in [
            indented,
            format!("# the new one: {two}"),
            format!("\"{two}\""),
            two.replace("BEGIN CERTIFICATE-----\n", "BEGIN CERTIFICATE----- # new\n"),
            two.replace("BEGIN CERTIFICATE-----\n", "BEGIN CERTIFICATE-----\u{a0}\n"),
            two.replace("-----BEGIN", "----BEGIN"),
            two.replace("-----BEGIN", "—BEGIN"),
            two.replace("BEGIN CERTIFICATE", "begin certificate"),
            two.replace('\n', "\r"),
            two.replace("-----BEGIN CERTIFICATE-----\n", ""),
            two.replace("-----BEGIN CERTIFICATE-----\n", "").replace("-----END CERTIFICATE-----\n", ""),
            two.replace("CERTIFICATE", "PKCS7"),
            two.replace(" CERTIFICATE", " ").replacen("-----\n", "----- ", 1),
            two.replace("CERTIFICATE", "CERTIFICATE "),
            two.replace("CERTIFICATE", "PUBLIC KEY"),
        ] {
            let found = verdicts(&secret(&[("ca.crt", &format!("{one}{hidden}"))]));
            assert_eq!(found, ["dropped-by-proxy"], "{hidden}");
        }
    }

    #[test]
    fn rejects_a_revocation_list_that_is_skipped() {
        let (one, two) = (ca("one"), ca("two"));
        let hidden = format!("\u{feff}{}", one.crl_pem(2029, 2031, &[]));
        let found = |lists: &str| {
            let found = findings(&secret(&[("ca.crt", &(one.pem() + &two.pem())), ("ca.crl", lists)]));
            found.into_iter().filter(|f| f.rule == super::RULE.id).collect::<Vec<_>>()
        };
        let both = hidden + &two.crl_pem(2029, 2031, &[]);
        assert_eq!(found(&both).iter().map(|f| f.severity).collect::<Vec<_>>(), [Severity::Deny]);
        assert!(found(&both)[0].message.ends_with("does not load its list"), "{}", found(&both)[0].message);
        let misplaced = found(&(both.replace('\u{feff}', "") + &ca("three").pem()));
        assert_eq!(misplaced.iter().map(|f| f.severity).collect::<Vec<_>>(), [Severity::Warn]);
    }

    #[test]
    fn rejects_an_intermediate_with_the_label_of_a_leaf() {
        let authority = ca("one");
        let leaf = authority.leaf("a");
        let chain = format!("{}{}", leaf.pem(), authority.pem().replace("CERTIFICATE", "TRUSTED CERTIFICATE"));
        assert_eq!(verdicts(&secret(&[("tls.crt", &chain), ("tls.key", &leaf.key_pem())])), ["dropped-by-proxy"]);
    }

    #[test]
    fn warns_of_an_old_finding_on_another_line() {
        let (one, two) = (ca("one").pem(), ca("two").pem());
        let old = secret(&[("ca.crt", &format!("{one} {two}"))]);
        let new = secret(&[("ca.crt", &format!("# a comment\n{one} {two}"))]);
        let found = judge_update(&old, &new, SecretUsage::default(), crate::trust::fixtures::now());
        assert_eq!(found.iter().map(|f| f.severity).collect::<Vec<_>>(), [Severity::Warn]);
    }
}
