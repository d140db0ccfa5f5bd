//! `empty`: no trust anchor.

use super::{Observation, Rule, Severity};
use crate::trust::rule_context::RuleContext;

/// istiod finds no CA, and Envoy rejects a text without certificates (measured): running gateways keep the previous bundle, and
/// refuse every connection once they restart.
pub(super) const RULE: Rule = Rule {
    id: "empty",
    severity: Severity::Deny,
    summary: "a CA key without any certificate, or no CA key where gateways need one",
    remedy: "put the CA certificates under ca.crt as PEM, or remove the key if no clients are verified with it",
    source: "istiod pilot/pkg/credentials/kube/secrets.go; Envoy, measured",
    example: "ca.crt: no certificate found. expected at least one CA as a PEM block: a gateway that starts with this bundle \
              refuses every client; add the CA",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let is_blank = |key| context.secret.data.get(key).is_some_and(|content| content.is_empty());
    let seen = match context.ca {
        // istiod takes a key without content for a missing one, and sends the pair alone.
        Some(ca) if is_blank(ca.key) && context.pair.is_some() && !context.usage.ca_required => None,
        Some(ca) if ca.is_loaded() && ca.bundle.entries.is_empty() => {
            let message = format!(
                "{}: no certificate found{}. expected at least one CA as a PEM block: {}; add the CA",
                ca.key,
                context.encoding_of(ca.key),
                ca.reader.without_ca(),
            );
            Some(Observation::new(ca.field(), ca.digest(), message))
        }
        None if context.usage.ca_required => {
            let message = "data: no ca.crt and no cacert. expected a CA bundle: gateways take their trust anchors from this Secret, and \
                           refuse every client once they restart; add it"
                .to_owned();
            Some(Observation::new("data".to_owned(), "missing", message))
        }
        _ => None,
    };
    seen.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{NOTHING, ca, now, secret, verdicts};
    use crate::trust::{SecretUsage, judge};

    #[test]
    fn accepts_a_secret_without_ca_where_none_is_required() {
        let leaf = ca("one").leaf("a");
        assert_eq!(verdicts(&secret(&[("tls.crt", &leaf.pem()), ("tls.key", &leaf.key_pem())])), NOTHING);
    }

    /// cert-manager writes such a key for an issuer that returns no CA (cert-manager#2111).
    #[test]
    fn accepts_a_key_without_content_next_to_a_pair() {
        let leaf = ca("one").leaf("a");
        let with = |ca: &str| secret(&[("ca.crt", ca), ("tls.crt", &leaf.pem()), ("tls.key", &leaf.key_pem())]);
        assert_eq!(verdicts(&with("")), NOTHING);
        assert!(verdicts(&with("\n")).contains(&"empty"), "istiod sends this");
        let required = SecretUsage { ca_required: true, ..SecretUsage::default() };
        assert!(judge(&with(""), required, now()).iter().any(|finding| finding.rule == "empty"));
    }

    #[test]
    fn rejects_a_key_without_certificate() {
        for text in
            ["", " \n", "the CA comes later", "-----BEGIN DH PARAMETERS-----\nAAAA\n-----END DH PARAMETERS-----\n"]
        {
            assert!(verdicts(&secret(&[("ca.crt", text)])).contains(&"empty"), "{text}");
        }
    }

    #[test]
    fn rejects_a_missing_key_where_gateways_need_one() {
        let found = judge(&secret(&[]), SecretUsage { ca_required: true, ..SecretUsage::default() }, now());
        assert_eq!(found.iter().map(|f| (f.rule, f.field.as_str())).collect::<Vec<_>>(), [("empty", "data")]);
    }
}
