//! `duplicate`: the same certificate twice.

use std::collections::HashMap;

use super::{Observation, Rule, Severity};
use crate::trust::name::brief;
use crate::trust::rule_context::RuleContext;

/// Measured: harmless, Envoy takes it once. It is a sign that a bundle is only ever added to.
pub(super) const RULE: Rule = Rule {
    id: "duplicate",
    severity: Severity::Warn,
    summary: "a CA that stands in the bundle more than once",
    mend: "keep each certificate once",
    source: "Envoy, measured: it takes it once",
    example: "ca.crt line 21: CN=root stands on line 1 already; remove it here",
    looks_ahead: false,
    check,
};

fn check(subject: &RuleContext<'_>) -> Vec<Observation> {
    let Some(ca) = subject.loaded_ca() else { return Vec::new() };
    let mut first = HashMap::new();
    let mut seen = Vec::new();
    for entry in &ca.bundle.entries {
        let (fingerprint, line) = (entry.certificate.fingerprint.as_str(), entry.line);
        let known = *first.entry(fingerprint).or_insert(line);
        if known != line {
            let subject = brief(&entry.certificate.subject);
            let message = format!("{} line {line}: {subject} stands on line {known} already; remove it here", ca.key);
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
    fn rejects_the_second_with_a_warning() {
        let one = ca("one").pem();
        let found = findings(&secret(&[("ca.crt", &format!("{one}{}{one}", ca("two").pem()))]));
        assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("duplicate", Severity::Warn)]);
        assert!(found[0].message.contains("CN=one stands on line 1 already"), "{}", found[0].message);
    }
}
