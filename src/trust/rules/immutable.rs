//! `immutable`: a Secret that cannot be rotated.

use super::{Observation, Rule, Severity};
use crate::trust::rule_context::RuleContext;

/// Kubernetes, "Immutable Secrets": the API server rejects every change of their content, and of the field itself.
pub(super) const RULE: Rule = Rule {
    id: "immutable",
    severity: Severity::Warn,
    summary: "an immutable Secret that rotations have to change",
    remedy: "replace it with a Secret without immutable; until then it cannot be renewed",
    source: "https://kubernetes.io/docs/concepts/configuration/secret/#secret-immutable",
    example: "immutable is true. expected a Secret that a rotation can change: the API server rejects changes of it; replace it \
              with one without immutable",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let seen = (context.secret.immutable && context.usage.is_rotated).then(|| {
        let message =
            "immutable is true. expected a Secret that a rotation can change: the API server rejects changes of it; \
              replace it with one without immutable"
                .to_owned();
        Observation::new("immutable".to_owned(), "true", message)
    });
    seen.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{ca, now, secret};
    use crate::trust::{SecretUsage, judge};

    fn found(immutable: bool, is_rotated: bool) -> Vec<&'static str> {
        let mut secret = secret(&[("ca.crt", &ca("one").pem())]);
        secret.immutable = immutable;
        judge(&secret, SecretUsage { is_rotated, ..SecretUsage::default() }, now()).iter().map(|f| f.rule).collect()
    }

    #[test]
    fn accepts_a_mutable_secret_and_one_that_is_not_rotated() {
        assert_eq!([found(false, true), found(true, false)], [const { Vec::<&str>::new() }; 2]);
    }

    #[test]
    fn warns_of_an_immutable_secret_in_rotation() {
        assert_eq!(found(true, true), ["immutable"]);
    }
}
