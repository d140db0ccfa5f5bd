//! Configured severities of rules.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Finding, Severity};

/// The severity of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Level {
    /// Its findings reject the write.
    Deny,
    /// Its findings are warnings.
    Warn,
    /// It is not applied.
    Off,
}

/// Rules with a fixed severity. `unreadable` and `invalid-resource` report objects that the API server rejects anyway. The deletion of the
/// GatewaySecret is the explicit way around `managed-in-use` and `managed-renamed`. `break-glass` protects the overrides themselves.
pub const FIXED: [&str; 5] = ["unreadable", "invalid-resource", "managed-in-use", "managed-renamed", "break-glass"];

/// Rules whose severity the status of a GatewaySecret repeats: a ValidatingAdmissionPolicy reads GatewaySecrets, but no RotationPolicies.
pub const PUBLISHED: [&str; 1] = ["kept-by-agent"];

/// Severities of rules by id; other rules keep their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Severities(BTreeMap<String, Level>);

impl Severities {
    /// These severities, overridden by those of `nearer`.
    pub fn under(&self, nearer: &BTreeMap<String, Level>) -> Self {
        let far = self.0.iter().filter(|(rule, _)| !nearer.contains_key(*rule));
        far.chain(nearer).map(|(rule, level)| (rule.clone(), *level)).collect()
    }

    /// Those of these severities that are laxer than the rules' own. What a gateway cannot use does not depend on what a user rejects in addition.
    pub fn relaxing(&self) -> Self {
        self.0.iter().filter(|(_, level)| **level != Level::Deny).map(|(rule, level)| (rule.clone(), *level)).collect()
    }

    /// Sets the severity of a finding; `None` if its rule is off. A rule that is set to deny denies with all of its
    /// findings, including those
    /// that would only warn.
    pub fn apply(&self, mut finding: Finding) -> Option<Finding> {
        match self.0.get(finding.rule).filter(|_| !FIXED.contains(&finding.rule)) {
            Some(Level::Off) => return None,
            Some(Level::Warn) => finding.severity = Severity::Warn,
            Some(Level::Deny) => finding.severity = Severity::Deny,
            None => {}
        }
        Some(finding)
    }
}

impl FromIterator<(String, Level)> for Severities {
    fn from_iter<I: IntoIterator<Item = (String, Level)>>(severities: I) -> Self {
        Self(severities.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(list: &[(&str, Level)]) -> BTreeMap<String, Level> {
        list.iter().map(|(rule, level)| ((*rule).to_owned(), *level)).collect()
    }

    fn applied(severities: &Severities, rule: &'static str, severity: Severity) -> Option<Severity> {
        let finding = Finding { rule, severity, field: String::new(), message: String::new() };
        severities.apply(finding).map(|finding| finding.severity)
    }

    #[test]
    fn the_nearer_severity_wins() {
        let wide = Severities::default().under(&levels(&[("expired", Level::Off), ("empty", Level::Warn)]));
        let both = wide.under(&levels(&[("expired", Level::Deny)]));
        assert_eq!(applied(&wide, "expired", Severity::Deny), None);
        assert_eq!(applied(&both, "expired", Severity::Warn), Some(Severity::Deny));
        assert_eq!(applied(&both, "empty", Severity::Deny), Some(Severity::Warn));
        assert_eq!(applied(&both, "not-a-ca", Severity::Warn), Some(Severity::Warn));
    }

    #[test]
    fn relaxing_severities_raise_no_rule() {
        let set = Severities::default().under(&levels(&[
            ("expiring", Level::Deny),
            ("expired", Level::Warn),
            ("empty", Level::Off),
        ]));
        let relaxing = set.relaxing();
        assert_eq!(applied(&relaxing, "expiring", Severity::Warn), Some(Severity::Warn));
        assert_eq!(applied(&relaxing, "expired", Severity::Deny), Some(Severity::Warn));
        assert_eq!(applied(&relaxing, "empty", Severity::Deny), None);
    }

    #[test]
    fn fixed_rules_keep_their_severity() {
        for rule in FIXED {
            let off = Severities::default().under(&levels(&[(rule, Level::Off)]));
            assert_eq!(applied(&off, rule, Severity::Deny), Some(Severity::Deny), "{rule}");
        }
    }
}
