//! `pair-incomplete`: a pair without its certificate or its key.

use super::{Observation, Rule, Severity};
use crate::trust::UsageKind;
use crate::trust::credential;
use crate::trust::rule_context::RuleContext;
use crate::trust::secret::NEXT_PRIVATE_KEY;
use crate::trust::secret::field;

/// istiod uses a pair only if both keys have content (`pilot/pkg/credentials/kube/secrets.go`); a gateway that starts with one of them
/// serves no certificate.
pub(super) const RULE: Rule = Rule {
    id: "pair-incomplete",
    severity: Severity::Deny,
    summary: "a chain without its private key, a private key without its chain, or neither where gateways need them",
    remedy: "write tls.crt and tls.key in one update, or neither",
    source: "istiod pilot/pkg/credentials/kube/secrets.go: a pair is used only if both keys have content",
    example: "tls.crt: tls.key is missing. expected both or neither: gateways cannot serve with one of them; add tls.key in the \
              same update",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    if context.secret.labels.get(NEXT_PRIVATE_KEY).is_some_and(|value| value == "true") {
        return Vec::new();
    }
    let other = context.pair.map(|pair| pair.chain.key);
    let mut halves = credential::half_pairs(context.usage.reader, context.secret).peekable();
    if context.usage.pair_required && other.is_none() && halves.peek().is_none() {
        let message = "data: no tls.crt and tls.key with content. expected a serving pair: Gateways name this Secret, and serve no certificate \
                       without it; add both";
        // What has no content at all may be filled by a controller.
        let is_bare = context.secret.data.is_empty();
        return vec![Observation::new("data".to_owned(), "missing", message.to_owned()).only_warns(is_bare)];
    }
    halves
        .map(|half| {
            let (present, missing) = (half.present, half.missing);
            let effect = match other {
                None if context.usage.kind == UsageKind::SigningCa => {
                    format!("nothing can be signed with one of them; add {missing}")
                }
                Some(chain) => format!("gateways ignore it and serve {chain}; remove {present}, or add {missing}"),
                None => format!("{}; add {missing} in the same update", context.usage.reader.without_pair()),
            };
            let state = if context.secret.data.contains_key(missing) { "empty" } else { "missing" };
            let message = format!("{present}: {missing} is {state}. expected both or neither: {effect}");
            Observation::new(field(present), missing, message).only_warns(other.is_some())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{NOTHING, ca, findings, now, secret, verdicts};
    use crate::trust::{SecretUsage, Severity, Verdict, judge};

    #[test]
    fn accepts_a_pair_and_none() {
        let leaf = ca("one").leaf("a");
        assert_eq!(verdicts(&secret(&[("tls.crt", &leaf.pem()), ("tls.key", &leaf.key_pem())])), NOTHING);
        assert_eq!(verdicts(&secret(&[("ca.crt", &ca("one").pem())])), NOTHING);
    }

    #[test]
    fn accepts_the_key_of_an_issuance_in_progress() {
        let mut secret = secret(&[("tls.key", &ca("one").leaf("a").key_pem())]);
        secret.labels.insert("cert-manager.io/next-private-key".to_owned(), "true".to_owned());
        assert_eq!(verdicts(&secret), NOTHING);
    }

    #[test]
    fn warns_of_an_incomplete_pair_that_is_not_used() {
        let leaf = ca("one").leaf("a");
        let found = findings(&secret(&[("cert", "x"), ("tls.crt", &leaf.pem()), ("tls.key", &leaf.key_pem())]));
        assert_eq!(Verdict::of(&found), Verdict::Warn);
        assert_eq!(found[0].rule, "pair-incomplete");
    }

    #[test]
    fn rejects_a_secret_without_a_pair_where_gateways_need_one() {
        let usage = SecretUsage { pair_required: true, ..SecretUsage::default() };
        let found = |data: &[(&str, &str)]| {
            let found = judge(&secret(data), usage, now());
            found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>()
        };
        assert_eq!(found(&[("ca.crt", &ca("one").pem())]), [("pair-incomplete", Severity::Deny)]);
        assert_eq!(found(&[("tls.crt", ""), ("tls.key", "")]), [("pair-incomplete", Severity::Deny)]);
        assert_eq!(found(&[]), [("pair-incomplete", Severity::Warn)]);
    }

    #[test]
    fn rejects_either_half() {
        let leaf = ca("one").leaf("a");
        for data in [[("tls.crt", leaf.pem())], [("tls.key", leaf.key_pem())], [("cert", leaf.pem())]] {
            let found = findings(&secret(&data.each_ref().map(|(k, v)| (*k, v.as_str()))));
            assert_eq!(
                found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(),
                [("pair-incomplete", Severity::Deny)]
            );
        }
    }
}
