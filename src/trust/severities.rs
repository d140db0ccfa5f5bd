//! Weights of rules other than their own.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Finding, Severity};

/// The severity of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Level {
    /// Its findings refuse the write.
    Deny,
    /// Its findings are warnings.
    Warn,
    /// It is not heeded.
    Off,
}

/// Rules whose weight nobody changes. `unreadable` and `invalid-resource` repeat what the API server refuses anyway.
/// `managed-in-use` and `managed-renamed` have a way out that says what is meant: the deletion of the GatewaySecret. `break-glass` guards the
/// overrides themselves.
pub const FIXED: [&str; 5] = ["unreadable", "invalid-resource", "managed-in-use", "managed-renamed", "break-glass"];

/// Weights of rules by id; a rule that is not named keeps its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Severities(BTreeMap<String, Level>);

impl Severities {
    /// These weights, and for rules that `nearer` names, its weights.
    pub fn under(&self, nearer: &BTreeMap<String, Level>) -> Self {
        let far = self.0.iter().filter(|(rule, _)| !nearer.contains_key(*rule));
        far.chain(nearer).map(|(rule, level)| (rule.clone(), *level)).collect()
    }

    /// Gives a finding its weight; `None` when its rule is off. A rule that is raised denies with all of its findings, those
    /// included that would only warn.
    pub fn weigh(&self, mut finding: Finding) -> Option<Finding> {
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
    fn from_iter<I: IntoIterator<Item = (String, Level)>>(weights: I) -> Self {
        Self(weights.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(list: &[(&str, Level)]) -> BTreeMap<String, Level> {
        list.iter().map(|(rule, level)| ((*rule).to_owned(), *level)).collect()
    }

    fn weighed(severities: &Severities, rule: &'static str, severity: Severity) -> Option<Severity> {
        let finding = Finding { rule, severity, field: String::new(), message: String::new() };
        severities.weigh(finding).map(|finding| finding.severity)
    }

    #[test]
    fn accepts_the_nearer_weight() {
        let wide = Severities::default().under(&weights(&[("expired", Level::Off), ("empty", Level::Warn)]));
        let both = wide.under(&weights(&[("expired", Level::Deny)]));
        assert_eq!(weighed(&wide, "expired", Severity::Deny), None);
        assert_eq!(weighed(&both, "expired", Severity::Warn), Some(Severity::Deny));
        assert_eq!(weighed(&both, "empty", Severity::Deny), Some(Severity::Warn));
        assert_eq!(weighed(&both, "not-a-ca", Severity::Warn), Some(Severity::Warn));
    }

    #[test]
    fn rejects_other_weights_of_fixed_rules() {
        for rule in FIXED {
            let off = Severities::default().under(&weights(&[(rule, Level::Off)]));
            assert_eq!(weighed(&off, rule, Severity::Deny), Some(Severity::Deny), "{rule}");
        }
    }
}
