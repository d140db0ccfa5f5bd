//! `same-subject-ambiguity`: CAs with one subject and different keys.

use std::collections::HashSet;

use super::{Observation, Rule, Severity};
use crate::trust::duplicate_subjects::{Order, SameSubject};
use crate::trust::name::brief;
use crate::trust::rule_context::RuleContext;

/// Measured: without subject key identifiers BoringSSL takes one CA of that subject (Envoy 1.38 and newer the first), and refuses every leaf of the
/// other. With them it uses the authority key identifier of a leaf, and refuses leaves of the second that have none.
pub(super) const RULE: Rule = Rule {
    id: "same-subject-ambiguity",
    severity: Severity::Deny,
    summary: "two CAs with one subject, different keys and no different key identifiers; with these it warns",
    remedy: "give each CA its own subject, or at least its own subject key identifier",
    source: "Envoy 1.37 to 1.40, measured; BoringSSL crypto/x509/x509_lu.c takes one by subject, and tries no other",
    example: "ca.crt lines 1 and 11: 2 CAs share the subject CN=root. expected one key for each subject: the proxy tries only one \
              of them, and refuses every client of the other; give each CA its own subject",
    warns_ahead: true,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let Some(ca) = context.loaded_ca() else { return Vec::new() };
    let valid = |certificate: &crate::trust::Certificate| certificate.is_valid_at(context.now);
    let pairs = context.same_subjects().into_iter().filter(|pair| !pair.has_one_key());
    // `expired-beside-renewed` reports the others of which the first is not valid.
    let pairs = pairs.filter(|pair| {
        valid(&pair.second.certificate) && (valid(&pair.first.certificate) || pair.have_different_key_ids())
    });
    // Where the order may not be kept, each pair occurs in both orders.
    let pairs = pairs.filter(|pair| {
        pair.order == Order::Kept || pair.first.line < pair.second.line || !valid(&pair.first.certificate)
    });
    // The first few of each severity are reported, so those come first that name another CA.
    let only_warns = |pair: &SameSubject<'_>| !valid(&pair.first.certificate) || pair.have_different_key_ids();
    let mut named = HashSet::new();
    let (naming, others): (Vec<_>, Vec<_>) = pairs.partition(|pair| {
        [pair.first, pair.second].map(|entry| named.insert((entry.line, only_warns(pair)))).contains(&true)
    });
    let observe = |pair: SameSubject<'_>| {
        let (first, second) = (pair.first.line, pair.second.line);
        let have_key_ids = pair.have_different_key_ids();
        if !valid(&pair.first.certificate) {
            let message = format!(
                "{} lines {first} and {second}: 2 CAs share the subject {}, and the one on line {first} is not valid. expected only the valid \
                 one: {} it for a client certificate without authority key identifier; remove line {first}{}",
                ca.key,
                brief(&pair.first.certificate.subject),
                match pair.order {
                    Order::Kept => "the proxy takes",
                    Order::Any => "from 24 entries on the proxy may take",
                    Order::Reversed => "Envoy before 1.38 may take",
                },
                context.when_to_remove(),
            );
            return Observation::new(ca.field(), pair.identity(), message).only_warns(true);
        }
        let effect = match have_key_ids {
            true => "the proxy tries only one of them for a client certificate without authority key identifier",
            false => "the proxy tries only one of them, and refuses every client of the other",
        };
        let message = format!(
            "{} lines {first} and {second}: 2 CAs share the subject {}. expected one key for each subject: {effect}; give each CA its \
             own subject",
            ca.key,
            brief(&pair.first.certificate.subject),
        );
        Observation::new(ca.field(), pair.identity(), message).only_warns(have_key_ids)
    };
    naming.into_iter().chain(others).map(observe).collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::{Finding, Severity};
    use rcgen::KeyUsagePurpose;

    use crate::trust::fixtures::{
        Authority, ca, ca_between, ca_with, ca_without_key_id, findings, findings_in_order, secret,
    };

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
    fn names_each_of_six_cas_with_one_subject() {
        let cas: Vec<_> = (0..6).map(|_| ca("one")).collect();
        let text: String = cas.iter().map(Authority::pem).collect();
        let found = findings_in_order(&secret(&[("ca.crt", &text)]));
        let lines = text.lines().enumerate().filter(|(_, line)| line.contains("BEGIN"));
        for line in lines.map(|(at, _)| at + 1) {
            let names = |finding: &Finding| {
                finding.message.contains(&format!(" {line} and "))
                    || finding.message.contains(&format!(" and {line}: "))
            };
            assert!(found.iter().any(names), "line {line}: {found:?}");
        }
    }

    /// Envoy refuses clients of the valid one whose certificates have no authority key identifier.
    #[test]
    fn warns_of_an_expired_ca_with_another_key_identifier() {
        let (old, new) = (ca_between("one", 2020, 2025), ca("one"));
        let of_rule = |found: Vec<Finding>| found.into_iter().filter(|f| f.rule == super::RULE.id).collect::<Vec<_>>();
        let in_order = |cas: [&Authority; 2]| {
            let text: String = cas.iter().map(|ca| ca.pem()).collect();
            let found = of_rule(findings_in_order(&secret(&[("ca.crt", &text)])));
            found.into_iter().map(|f| (f.severity, f.message)).collect::<Vec<_>>()
        };
        let found = in_order([&old, &new]);
        assert!(matches!(&found[..], [(Severity::Warn, text)] if text.ends_with("remove line 1")), "{found:?}");
        assert_eq!(in_order([&new, &old]), []);
        let text = new.pem() + &old.pem();
        assert_eq!(of_rule(findings(&secret(&[("ca.crt", &text)]))).len(), 1, "Envoy 1.37 takes the last");
    }

    #[test]
    fn rejects_equal_subjects_without_different_key_identifiers() {
        for cas in [[ca_without_key_id("one"), ca_without_key_id("one")], [ca("one"), ca_without_key_id("ONE")]] {
            assert_eq!(found(&cas), [("same-subject-ambiguity", Severity::Deny)]);
        }
    }
}
