//! `superseded`: an older certificate of a CA that has been renewed.

use super::{Observation, Rule, Severity};
use crate::trust::duplicate_subjects::{Order, SameSubject};
use crate::trust::name::brief;
use crate::trust::rule_context::RuleContext;

/// Same subject, same key: the newer one verifies whatever the older one does (RFC 5280 section 6.1: name and key).
pub(super) const RULE: Rule = Rule {
    id: "superseded",
    severity: Severity::Warn,
    summary: "an older certificate of a CA whose renewal precedes it",
    remedy: "remove the older certificate: the renewed one verifies the same clients",
    source: "RFC 5280 section 6.1: a trust anchor is a name and a key",
    example: "ca.crt line 11: CN=root is renewed on line 1 with the same key. expected the renewal only; remove this one",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let Some(ca) = context.loaded_ca() else { return Vec::new() };
    let older = context.same_subjects().into_iter().filter(|pair| {
        let (newer, older) = (&pair.first.certificate, &pair.second.certificate);
        // Rule `expired` reports a CA that has expired.
        pair.order != Order::Reversed
            && pair.has_one_key()
            && newer.is_valid_at(context.now)
            && older.not_after < newer.not_after
            && !older.is_expired(context.now)
    });
    let observe = |pair: SameSubject<'_>| {
        let message = format!(
            "{} line {}: {} is renewed on line {} with the same key. expected the renewal only; remove this one",
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
    fn accepts_a_ca_alone_and_next_to_another() {
        assert_eq!(verdicts(&secret(&[("ca.crt", &format!("{}{}", ca("one").pem(), ca("two").pem()))])), NOTHING);
    }

    #[test]
    fn warns_of_the_older_one() {
        let old = ca_between("root", 2026, 2035);
        let text = format!("{}{}", old.renewed(2029, 2040).pem(), old.pem());
        let found = findings(&secret(&[("ca.crt", &text)]));
        assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("superseded", Severity::Warn)]);
    }
}
