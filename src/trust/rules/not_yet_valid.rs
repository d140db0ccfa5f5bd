//! `not-yet-valid`: a leaf or CA that is not valid yet.

use super::expired::{identity, is_intermediate, valid};
use std::collections::HashMap;

use super::{Observation, Rule, Severity};
use crate::trust::Certificate;
use crate::trust::equivalence::verify_the_same;
use crate::trust::name::brief;
use crate::trust::rule_context::RuleContext;

/// RFC 5280 section 4.1.2.5. Envoy refuses the clients of a CA with a future notBefore (measured). A CA that is distributed
/// ahead of time, next to a valid one, is good practice: it only warns.
pub(super) const RULE: Rule = Rule {
    id: "not-yet-valid",
    severity: Severity::Deny,
    summary: "a leaf or intermediate that is not valid yet, or a bundle without a valid CA; a future CA among valid ones warns",
    remedy: "wait for its start, or reissue it; check the issuer's clock",
    source: "RFC 5280 section 4.1.2.5; Envoy, measured",
    example: "tls.crt: the leaf CN=shop.example.com is not valid before 2031-01-01T00:00:00Z. expected a valid one: every client \
              refuses it until then; wait, or reissue it",
    warns_ahead: true,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let mut seen = Vec::new();
    let peer = context.usage.reader.peer();
    if let Some(ca) = context.loaded_ca() {
        let any_valid = ca.bundle.entries.iter().any(|e| e.certificate.is_valid_at(context.now));
        let mut first: HashMap<&[u8], &Certificate> = HashMap::new();
        for certificate in ca.certificates() {
            first.entry(certificate.subject_der.as_slice()).or_insert(certificate);
        }
        for entry in ca.bundle.entries.iter().filter(|e| e.certificate.is_not_yet_valid(context.now)) {
            let (subject, start) = (brief(&entry.certificate.subject), entry.certificate.not_before);
            // The present certificate verifies its clients, if it is the one that the proxy takes. Another rule reports the order.
            let first = first.get(entry.certificate.subject_der.as_slice());
            let renews =
                |first: &Certificate| first.is_valid_at(context.now) && verify_the_same(first, &entry.certificate);
            if first.is_some_and(|first| renews(first)) {
                continue;
            }
            let effect = if any_valid {
                format!("expected valid CAs: its {peer}s are refused until then; do not issue leaves from it before")
            } else {
                format!(
                    "expected at least one valid CA: every {peer} is refused until then; add a CA that is valid now"
                )
            };
            let message = format!("{} line {}: {subject} is not valid before {start}. {effect}", ca.key, entry.line);
            let identity = entry.certificate.fingerprint.as_str();
            seen.push(Observation::new(ca.field(), identity, message).only_warns(any_valid));
        }
    }
    let Some((chain, leaf)) = context.served() else { return seen };
    if leaf.is_not_yet_valid(context.now) {
        let message = format!(
            "{}: the {} {} is not valid before {}. expected a valid one: every {peer} refuses it until then; wait, or reissue it",
            chain.key,
            context.usage.kind.first_certificate(),
            brief(&leaf.subject),
            leaf.not_before,
        );
        seen.push(Observation::new(chain.field(), leaf.fingerprint.as_str(), message));
    }
    let valid = valid(chain, context.now);
    let future = chain.bundle.entries.iter().skip(1).filter(|e| e.certificate.is_not_yet_valid(context.now));
    seen.extend(future.filter(|entry| is_intermediate(&entry.certificate)).map(|entry| {
        let certificate = &entry.certificate;
        // One that is valid, and signed the same certificates.
        let is_known = valid.contains_key(&identity(certificate));
        let effect = match is_known {
            true => "expected only the valid one, which the chain has, too; remove this one until then",
            false => "expected a valid one: clients that trust only the root refuse the chain until then; wait, or reissue it",
        };
        let message = format!(
            "{} line {}: the intermediate {} is not valid before {}. {effect}",
            chain.key,
            entry.line,
            brief(&certificate.subject),
            certificate.not_before,
        );
        Observation::new(chain.field(), certificate.fingerprint.as_str(), message).only_warns(is_known)
    }));
    seen
}

#[cfg(test)]
mod tests {
    use crate::trust::Severity;
    use crate::trust::fixtures::{ca, ca_between, findings, secret, verdicts};

    #[test]
    fn warns_of_a_future_ca_among_valid_ones() {
        let text = format!("{}{}", ca("now").pem(), ca_between("next", 2031, 2040).pem());
        let found = findings(&secret(&[("ca.crt", &text)]));
        assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("not-yet-valid", Severity::Warn)]);
        assert!(found[0].message.contains("CN=next is not valid before 2031-01-01T00:00:00Z"), "{}", found[0].message);
    }

    #[test]
    fn rejects_a_bundle_without_a_valid_ca() {
        let text = format!("{}{}", ca_between("old", 2020, 2025).pem(), ca_between("next", 2031, 2040).pem());
        let found = findings(&secret(&[("ca.crt", &text)]));
        let denied = [("expired", Severity::Deny), ("not-yet-valid", Severity::Deny)];
        assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), denied);
    }

    #[test]
    fn accepts_a_future_renewal_after_the_ca_that_it_renews() {
        let root = ca("root");
        let found = verdicts(&secret(&[("ca.crt", &(root.pem() + &root.renewed(2031, 2050).pem()))]));
        assert!(!found.contains(&super::RULE.id), "{found:?}");
    }

    #[test]
    fn rejects_an_intermediate_that_is_not_valid_yet() {
        let root = ca("root");
        let sub = root.intermediate("sub", |_| {});
        let future = root.cross(&sub.renewed(2031, 2040));
        let leaf = sub.leaf("a");
        let found = |chain: String| {
            let found = findings(&secret(&[("tls.crt", &chain), ("tls.key", &leaf.key_pem())]));
            found.iter().filter(|f| f.rule == super::RULE.id).map(|f| f.severity).collect::<Vec<_>>()
        };
        assert_eq!(found(leaf.pem() + &future), [Severity::Deny]);
        assert_eq!(found(leaf.pem() + &sub.pem() + &future), [Severity::Warn]);
        assert_eq!(found(leaf.pem() + &sub.pem()), []);
    }

    #[test]
    fn rejects_a_leaf_that_is_not_valid_yet() {
        let leaf = ca("one").leaf_between("a", 2031, 2032);
        assert_eq!(verdicts(&secret(&[("tls.crt", &leaf.pem()), ("tls.key", &leaf.key_pem())])), ["not-yet-valid"]);
    }
}
