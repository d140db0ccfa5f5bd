//! `same-subject-ambiguity`: CAs with one subject and different keys.

use super::{Observation, Rule, Severity};
use crate::trust::name::brief;
use crate::trust::rule_context::RuleContext;

/// Measured: without subject key identifiers BoringSSL takes the first CA of that subject, and refuses every leaf of the
/// second. With them it tells leaves apart by their authority key identifier, and refuses leaves of the second that have none.
pub(super) const RULE: Rule = Rule {
    id: "same-subject-ambiguity",
    severity: Severity::Deny,
    summary: "two CAs with one subject and different keys that nothing tells apart; with key identifiers it warns",
    mend: "give each CA a subject of its own; at least issue them with subject key identifiers",
    source: "Envoy, measured; BoringSSL crypto/x509/x509_lu.c takes the first by name",
    example: "ca.crt lines 1 and 11: CN=root with different keys. the proxy always takes the first, and refuses \
              every client of the second; give each CA a subject of its own",
    looks_ahead: true,
    check,
};

fn check(subject: &RuleContext<'_>) -> Vec<Observation> {
    let Some(ca) = subject.loaded_ca() else { return Vec::new() };
    let valid = |certificate: &crate::trust::Certificate| certificate.is_valid_at(subject.now);
    let pairs = subject.namesakes().into_iter().filter(|pair| !pair.has_one_key());
    let pairs = pairs.filter(|pair| valid(&pair.first.certificate) && valid(&pair.second.certificate));
    // Where the order is not kept, each pair comes both ways round.
    let pairs = pairs.filter(|pair| !pair.any_order || pair.first.line < pair.second.line);
    let observe = |pair: crate::trust::duplicate_subjects::Namesakes<'_>| {
        let (first, second) = (pair.first.line, pair.second.line);
        let told_apart = pair.are_told_apart();
        let effect = match (told_apart, pair.any_order) {
            (true, _) => "the proxy tries only one of them for a client certificate without authority key identifier",
            (false, false) => "the proxy always takes the first, and refuses every client of the second",
            (false, true) => "the proxy always takes the same of them, and refuses every client of the other",
        };
        let message = format!(
            "{} lines {first} and {second}: {} with different keys. {effect}; give each CA a subject of its own",
            ca.key,
            brief(&pair.first.certificate.subject),
        );
        Observation::new(ca.field(), pair.identity(), message).only_warns(told_apart)
    };
    pairs.map(observe).collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::Severity;
    use rcgen::KeyUsagePurpose;

    use crate::trust::fixtures::{Authority, ca, ca_with, ca_without_key_id, findings, secret};

    fn found(cas: &[Authority]) -> Vec<(&'static str, Severity)> {
        let text: String = cas.iter().map(Authority::pem).collect();
        findings(&secret(&[("ca.crt", &text)])).iter().map(|f| (f.rule, f.severity)).collect()
    }

    #[test]
    fn accepts_cas_of_different_names() {
        assert_eq!(found(&[ca_without_key_id("one"), ca_without_key_id("two")]), []);
    }

    #[test]
    fn accepts_a_namesake_that_may_not_sign() {
        let mute = ca_with("one", |params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]);
        let other = ca_without_key_id("one");
        for text in [[&other, &mute], [&mute, &other]] {
            let text: String = text.iter().map(|ca| ca.pem()).collect();
            let found = findings(&secret(&[("ca.crt", &text)]));
            assert!(found.iter().all(|finding| finding.rule != "same-subject-ambiguity"), "{found:?}");
        }
    }

    #[test]
    fn accepts_key_identifiers_with_a_warning() {
        assert_eq!(found(&[ca("one"), ca("one")]), [("same-subject-ambiguity", Severity::Warn)]);
    }

    #[test]
    fn rejects_what_nothing_tells_apart() {
        for cas in [[ca_without_key_id("one"), ca_without_key_id("one")], [ca("one"), ca_without_key_id("ONE")]] {
            assert_eq!(found(&cas), [("same-subject-ambiguity", Severity::Deny)]);
        }
    }
}
