//! `cacert-sibling-wins`: CAs in a Secret that Istio ignores.

use super::{Observation, Rule, Severity};
use crate::trust::rule_context::RuleContext;

/// For mode MUTUAL istiod reads `<credentialName>-cacert` first (`GetCaCert`), and the Secret itself only if that does not exist.
pub(super) const RULE: Rule = Rule {
    id: "cacert-sibling-wins",
    severity: Severity::Warn,
    summary: "a CA bundle that Istio ignores, because a -cacert Secret exists for this Secret",
    remedy: "change the -cacert Secret, or add its CAs to the bundle here and delete it",
    source: "istiod pilot/pkg/credentials/kube/secrets.go, GetCaCert",
    example: "ca.crt: Istio takes CAs from Secret gateway-root-cacert. expected no such Secret: the CAs here have no effect; \
              change that Secret, or add its CAs here and then delete it",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let shadowed = context.usage.sibling.zip(context.ca).map(|(sibling, ca)| {
        let message = format!(
            "{}: Istio takes CAs from Secret {sibling}. expected no such Secret: the CAs here have no effect; change that \
            Secret, or add its CAs here and then delete it",
            ca.key
        );
        Observation::new(ca.field(), sibling, message)
    });
    shadowed.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{ca, now, secret};
    use crate::trust::{SecretUsage, judge};

    fn found(data: &[(&str, &str)], sibling: Option<&str>) -> Vec<&'static str> {
        let found = judge(&secret(data), SecretUsage { sibling, ..SecretUsage::default() }, now());
        found.iter().map(|f| f.rule).filter(|rule| *rule == super::RULE.id).collect()
    }

    #[test]
    fn accepts_a_bundle_alone_and_a_secret_without_one() {
        assert!(found(&[("ca.crt", &ca("one").pem())], None).is_empty());
        assert!(found(&[], Some("root-cacert")).is_empty());
    }

    #[test]
    fn warns_of_a_bundle_that_a_sibling_replaces() {
        assert_eq!(found(&[("ca.crt", &ca("one").pem())], Some("root-cacert")), ["cacert-sibling-wins"]);
    }
}
