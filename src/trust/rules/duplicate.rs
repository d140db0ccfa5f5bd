//! `duplicate`: the same certificate twice.

use std::collections::HashMap;

use super::{Observation, Rule, Severity};
use crate::trust::name::brief;
use crate::trust::rule_context::RuleContext;

/// Measured: Envoy loads it once, without harm. It is a sign that CAs are never removed from the bundle.
pub(super) const RULE: Rule = Rule {
    id: "duplicate",
    severity: Severity::Warn,
    summary: "a CA that is in the bundle more than once",
    remedy: "keep each certificate once",
    source: "Envoy, measured: it loads the certificate once",
    example: "ca.crt line 21: CN=root is already on line 1. expected each certificate once; remove this one",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let Some(ca) = context.loaded_ca() else { return Vec::new() };
    let mut first = HashMap::new();
    let mut seen = Vec::new();
    for entry in &ca.bundle.entries {
        let (fingerprint, line) = (entry.certificate.fingerprint.as_str(), entry.line);
        let known = *first.entry(fingerprint).or_insert(line);
        if known != line {
            let subject = brief(&entry.certificate.subject);
            let message = format!(
                "{} line {line}: {subject} is already on line {known}. expected each certificate once; remove this one",
                ca.key
            );
            seen.push(Observation::new(ca.field(), fingerprint, message));
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use crate::trust::Severity;
    use crate::trust::fixtures::{NOTHING, ca, findings, secret, verdicts};

    #[test]
    fn accepts_each_once() {
        assert_eq!(verdicts(&secret(&[("ca.crt", &format!("{}{}", ca("one").pem(), ca("two").pem()))])), NOTHING);
    }

    #[test]
    fn warns_of_the_second() {
        let one = ca("one").pem();
        let found = findings(&secret(&[("ca.crt", &format!("{one}{}{one}", ca("two").pem()))]));
        assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("duplicate", Severity::Warn)]);
        assert!(found[0].message.contains("CN=one is already on line 1"), "{}", found[0].message);
    }
}
