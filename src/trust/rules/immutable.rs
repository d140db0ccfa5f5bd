//! `immutable`: a Secret that cannot be rotated.

use super::{Observation, Rule, Severity};
use crate::trust::rule_context::RuleContext;

/// Kubernetes: "Immutable Secrets": the API server refuses every change of their content, and of the field itself.
pub(super) const RULE: Rule = Rule {
    id: "immutable",
    severity: Severity::Warn,
    summary: "an immutable Secret that rotations have to change",
    mend: "replace it by a Secret without immutable; until then nothing renews it",
    source: "https://kubernetes.io/docs/concepts/configuration/secret/#secret-immutable",
    example: "immutable is true. expected a Secret that a rotation can change: the API server refuses that here; replace it by \
              one without",
    looks_ahead: false,
    check,
};

fn check(subject: &RuleContext<'_>) -> Vec<Observation> {
    let seen = (subject.secret.immutable && subject.duty.is_rotated).then(|| {
        let message =
            "immutable is true. expected a Secret that a rotation can change: the API server refuses that here; \
                       replace it by one without"
                .to_owned();
        Observation::new("immutable".to_owned(), "true", message)
    });
    seen.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{ca, now, secret};
    use crate::trust::{Duty, judge};

    fn found(immutable: bool, is_rotated: bool) -> Vec<&'static str> {
        let mut secret = secret(&[("ca.crt", &ca("one").pem())]);
        secret.immutable = immutable;
        judge(&secret, Duty { is_rotated, ..Duty::default() }, now()).iter().map(|f| f.rule).collect()
    }

    #[test]
    fn accepts_what_changes_and_what_nobody_rotates() {
        assert_eq!([found(false, true), found(true, false)], [const { Vec::<&str>::new() }; 2]);
    }

    #[test]
    fn rejects_an_immutable_secret_in_rotation_with_a_warning() {
        assert_eq!(found(true, true), ["immutable"]);
    }
}
