//! `cacert-sibling-wins`: CAs in a Secret from which Istio does not take them.

use super::{Observation, Rule, Severity};
use crate::trust::rule_context::RuleContext;

/// For mode MUTUAL istiod asks for `<credentialName>-cacert` first (`GetCaCert`), and looks into the Secret itself only when
/// there is none.
pub(super) const RULE: Rule = Rule {
    id: "cacert-sibling-wins",
    severity: Severity::Warn,
    summary: "a CA bundle in a Secret beside which a -cacert Secret stands, from which Istio takes CAs",
    mend: "change the -cacert Secret, or delete it after its CAs are in the bundle here",
    source: "istiod pilot/pkg/credentials/kube/secrets.go, GetCaCert",
    example: "ca.crt: Istio takes CAs from Secret gateway-root-cacert. expected no such Secret: what stands here does nothing; \
              change that one, or delete it",
    looks_ahead: false,
    check,
};

fn check(subject: &RuleContext<'_>) -> Vec<Observation> {
    let shadowed = subject.duty.sibling.zip(subject.ca).map(|(sibling, ca)| {
        let message = format!(
            "{}: Istio takes CAs from Secret {sibling}. expected no such Secret: what stands here does nothing; change that \
             one, or delete it",
            ca.key
        );
        Observation::new(ca.field(), sibling, message)
    });
    shadowed.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{ca, now, secret};
    use crate::trust::{Duty, judge};

    fn found(data: &[(&str, &str)], sibling: Option<&str>) -> Vec<&'static str> {
        let found = judge(&secret(data), Duty { sibling, ..Duty::default() }, now());
        found.iter().map(|f| f.rule).filter(|rule| *rule == super::RULE.id).collect()
    }

    #[test]
    fn accepts_a_bundle_alone_and_a_secret_without_one() {
        assert!(found(&[("ca.crt", &ca("one").pem())], None).is_empty());
        assert!(found(&[], Some("root-cacert")).is_empty());
    }

    #[test]
    fn rejects_a_bundle_that_is_shadowed_with_a_warning() {
        assert_eq!(found(&[("ca.crt", &ca("one").pem())], Some("root-cacert")), ["cacert-sibling-wins"]);
    }
}
