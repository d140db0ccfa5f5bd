//! `same-subject-ambiguity`: CAs with one subject and different keys.

use super::{Observation, Rule, Severity};
use crate::trust::name::brief;
use crate::trust::rule_context::RuleContext;

/// Measured: without subject key identifiers BoringSSL takes the first CA of that subject, and refuses every leaf of the
/// second. With them it uses the authority key identifier of a leaf, and refuses leaves of the second that have none.
pub(super) const RULE: Rule = Rule {
    id: "same-subject-ambiguity",
    severity: Severity::Deny,
    summary: "two CAs with one subject, different keys and no different key identifiers; with these it warns",
    remedy: "give each CA its own subject, or at least its own subject key identifier",
    source: "Envoy, measured; BoringSSL crypto/x509/x509_lu.c takes the first by subject",
    example: "ca.crt lines 1 and 11: 2 CAs share the subject CN=root. expected one key for each subject: the proxy takes the \
              first, and refuses every client of the other; give each CA its own subject",
    warns_ahead: true,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let Some(ca) = context.loaded_ca() else { return Vec::new() };
    let valid = |certificate: &crate::trust::Certificate| certificate.is_valid_at(context.now);
    let pairs = context.same_subjects().into_iter().filter(|pair| !pair.has_one_key());
    let pairs = pairs.filter(|pair| valid(&pair.first.certificate) && valid(&pair.second.certificate));
    // Where the order is not kept, each pair occurs in both orders.
    let pairs = pairs.filter(|pair| !pair.any_order || pair.first.line < pair.second.line);
    let observe = |pair: crate::trust::duplicate_subjects::SameSubject<'_>| {
        let (first, second) = (pair.first.line, pair.second.line);
        let have_key_ids = pair.have_different_key_ids();
        let effect = match (have_key_ids, pair.any_order) {
            (true, _) => "the proxy tries only one of them for a client certificate without authority key identifier",
            (false, false) => "the proxy takes the first, and refuses every client of the other",
            (false, true) => "the proxy takes either, and refuses every client of the other",
        };
        let message = format!(
            "{} lines {first} and {second}: 2 CAs share the subject {}. expected one key for each subject: {effect}; give each CA its \
             own subject",
            ca.key,
            brief(&pair.first.certificate.subject),
        );
        Observation::new(ca.field(), pair.identity(), message).only_warns(have_key_ids)
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
    fn accepts_a_ca_with_the_same_subject_that_may_not_sign() {
        let mute = ca_with("one", |params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]);
        let other = ca_without_key_id("one");
        for text in [[&other, &mute], [&mute, &other]] {
            let text: String = text.iter().map(|ca| ca.pem()).collect();
            let found = findings(&secret(&[("ca.crt", &text)]));
            assert!(found.iter().all(|finding| finding.rule != "same-subject-ambiguity"), "{found:?}");
        }
    }

    #[test]
    fn warns_where_key_identifiers_differ() {
        assert_eq!(found(&[ca("one"), ca("one")]), [("same-subject-ambiguity", Severity::Warn)]);
    }

    #[test]
    fn rejects_equal_subjects_without_different_key_identifiers() {
        for cas in [[ca_without_key_id("one"), ca_without_key_id("one")], [ca("one"), ca_without_key_id("ONE")]] {
            assert_eq!(found(&cas), [("same-subject-ambiguity", Severity::Deny)]);
        }
    }
}
