//! `superseded`: an older certificate of a CA that is there anew.

use super::{Observation, Rule, Severity};
use crate::trust::name::brief;
use crate::trust::rule_context::RuleContext;

/// Same subject, same key: whatever the older one verifies, the newer one does (RFC 5280 section 6.1 looks at name and key).
pub(super) const RULE: Rule = Rule {
    id: "superseded",
    severity: Severity::Warn,
    summary: "an older certificate of a CA that stands before it, renewed",
    mend: "remove the older certificate: the renewed one verifies the same clients",
    source: "RFC 5280 section 6.1: a trust anchor is a name and a key",
    example: "ca.crt line 11: CN=root is there anew on line 1, with the same key. the older one does nothing any \
              more; remove it",
    looks_ahead: false,
    check,
};

fn check(subject: &RuleContext<'_>) -> Vec<Observation> {
    let Some(ca) = subject.loaded_ca() else { return Vec::new() };
    let older = subject.namesakes().into_iter().filter(|pair| {
        let (newer, older) = (&pair.first.certificate, &pair.second.certificate);
        // An expired one is told by another rule.
        pair.has_one_key()
            && newer.is_valid_at(subject.now)
            && older.not_after < newer.not_after
            && !older.is_expired(subject.now)
    });
    let observe = |pair: crate::trust::duplicate_subjects::Namesakes<'_>| {
        let message = format!(
            "{} line {}: {} is there anew on line {}, with the same key. the older one does nothing any more; remove it",
            ca.key,
            pair.second.line,
            brief(&pair.second.certificate.subject),
            pair.first.line,
        );
        Observation::new(ca.field(), pair.identity(), message)
    };
    older.map(observe).collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::Severity;
    use crate::trust::fixtures::{NOTHING, ca, ca_between, findings, secret, verdicts};

    #[test]
    fn accepts_a_ca_alone_and_beside_another() {
        assert_eq!(verdicts(&secret(&[("ca.crt", &format!("{}{}", ca("one").pem(), ca("two").pem()))])), NOTHING);
    }

    #[test]
    fn rejects_the_older_one_with_a_warning() {
        let old = ca_between("root", 2026, 2035);
        let text = format!("{}{}", old.renewed(2029, 2040).pem(), old.pem());
        let found = findings(&secret(&[("ca.crt", &text)]));
        assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("superseded", Severity::Warn)]);
    }
}
