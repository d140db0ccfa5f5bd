//! The table of rules. A rule is a file here and a line in [`RULES`].

mod crl_expired;
mod crl_missing;
mod crl_partial;
mod dropped_by_proxy;
mod duplicate;
mod empty;
mod expired;
mod expired_beside_renewed;
mod expiring;
mod key_mismatch;
mod not_a_ca;
mod not_yet_valid;
mod pair_incomplete;
mod private_key_in_bundle;
mod same_subject_ambiguity;
mod superseded;
mod too_large;
mod unparsable;
mod weak_key;
mod weak_signature;

use std::collections::HashSet;

use super::{Finding, Severities, Severity, Subject};

/// All rules, in the order in which findings are told.
pub const RULES: &[Rule] = &[
    unparsable::RULE,
    dropped_by_proxy::RULE,
    empty::RULE,
    private_key_in_bundle::RULE,
    not_a_ca::RULE,
    pair_incomplete::RULE,
    key_mismatch::RULE,
    expired::RULE,
    not_yet_valid::RULE,
    expired_beside_renewed::RULE,
    same_subject_ambiguity::RULE,
    superseded::RULE,
    expiring::RULE,
    duplicate::RULE,
    weak_key::RULE,
    weak_signature::RULE,
    too_large::RULE,
    crl_missing::RULE,
    crl_partial::RULE,
    crl_expired::RULE,
];

/// A rule.
pub struct Rule {
    /// Stable id, in kebab case.
    pub id: &'static str,
    /// The weight of its findings, unless they say that they weigh less.
    pub severity: Severity,
    /// What it finds, in a line.
    pub summary: &'static str,
    /// What to do about it, in a line.
    pub mend: &'static str,
    /// Why it is one: the RFC, the program's source, or what was measured.
    pub source: &'static str,
    /// One of its messages.
    pub example: &'static str,
    /// Looks at a Secret.
    pub check: fn(&Subject<'_>) -> Vec<Observation>,
}

/// What a rule saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Whether it warns, though the rule denies.
    pub only_warns: bool,
    /// The field, as users write it.
    pub field: String,
    /// What was seen, what was expected, what to do.
    pub message: String,
    /// What makes it the same observation in a later version of the object: lines may have moved, and the message with
    /// them. Never shown.
    pub identity: String,
}

impl Observation {
    fn new(field: String, identity: impl Into<String>, message: String) -> Self {
        Self { only_warns: false, field, message, identity: identity.into() }
    }

    fn only_warns(self, only_warns: bool) -> Self {
        Self { only_warns, ..self }
    }
}

/// A finding with its identity.
pub(crate) struct Judged {
    pub(crate) finding: Finding,
    identity: String,
}

impl Judged {
    /// Lowers the findings that `before` already had, no less severely. A set, since hostile bundles have thousands.
    pub(crate) fn lower(judged: &mut [Self], before: &[Self]) {
        let denied = |j: &&Self| j.finding.severity == Severity::Deny;
        let before: HashSet<_> = before.iter().filter(denied).map(Self::same).collect();
        for j in judged {
            if before.contains(&j.same()) {
                j.finding.severity = Severity::Warn;
            }
        }
    }

    /// With its weight by `severities`; `None` when its rule is off.
    pub(crate) fn weighed(self, severities: &Severities) -> Option<Self> {
        let Self { finding, identity } = self;
        severities.weigh(finding).map(|finding| Self { finding, identity })
    }

    fn same(&self) -> (&str, &str, &str) {
        (self.finding.rule, &self.finding.field, &self.identity)
    }
}

/// Runs the table.
pub(crate) fn run(subject: &Subject<'_>) -> Vec<Judged> {
    let judged = |rule: &Rule, seen: Observation| Judged {
        finding: Finding {
            rule: rule.id,
            severity: if seen.only_warns { Severity::Warn } else { rule.severity },
            field: seen.field,
            message: seen.message,
        },
        identity: seen.identity,
    };
    RULES.iter().flat_map(|rule| (rule.check)(subject).into_iter().map(move |seen| judged(rule, seen))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::trust::fixtures::{Leaf, block, ca, findings, secret};

    #[test]
    fn accepts_the_table() {
        let ids: BTreeSet<_> = RULES.iter().map(|rule| rule.id).collect();
        assert_eq!(ids.len(), RULES.len(), "an id stands twice");
        for rule in RULES {
            let kebab = |id: &str| id.split('-').all(|w| !w.is_empty() && w.bytes().all(|b| b.is_ascii_lowercase()));
            assert!(kebab(rule.id), "{}", rule.id);
            for text in [rule.summary, rule.mend] {
                assert!(!text.is_empty() && text.len() <= 120 && !text.contains('\n'), "{}: {text}", rule.id);
                assert!(text.starts_with(|c: char| c.is_ascii_lowercase()), "{}: {text}", rule.id);
            }
            assert!(!rule.source.is_empty() && !rule.example.is_empty(), "{}", rule.id);
        }
    }

    #[test]
    fn accepts_examples_that_rules_give() {
        let authority = ca("root");
        let leaf = authority.leaf("shop.example.com");
        let (pem, crt) = (authority.pem(), leaf.pem());
        let pair = |leaf: Leaf| [("tls.crt", leaf.pem()), ("tls.key", leaf.key_pem())];
        let bundle = |text: String| vec![("ca.crt", text)];
        for (id, data) in [
            ("unparsable", bundle(block("CERTIFICATE", b"no"))),
            ("dropped-by-proxy", bundle(format!("\u{feff}{pem}"))),
            ("empty", bundle(String::new())),
            ("private-key-in-bundle", bundle(format!("{}{pem}", leaf.key_pem()))),
            ("not-a-ca", bundle(crt.clone())),
            ("pair-incomplete", vec![("tls.crt", crt.clone())]),
            ("key-mismatch", vec![("tls.crt", crt), ("tls.key", authority.leaf("other").key_pem())]),
            ("expired", pair(authority.leaf_between("shop.example.com", 2020, 2025)).into()),
            ("not-yet-valid", pair(authority.leaf_between("shop.example.com", 2031, 2032)).into()),
        ] {
            let data: Vec<_> = data.iter().map(|(key, text)| (*key, text.as_str())).collect();
            let found = findings(&secret(&data));
            let messages: Vec<_> = found.iter().filter(|f| f.rule == id).map(|f| f.message.as_str()).collect();
            let rule = RULES.iter().find(|rule| rule.id == id).expect("a rule");
            assert_eq!(messages, [rule.example], "{id}");
        }
    }
}
