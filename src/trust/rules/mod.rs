//! The table of rules. A rule is a file here and a line in [`RULES`].

mod both_key_styles;
mod broken_path;
mod cacert_sibling_wins;
mod chain_order;
mod crl_expired;
mod crl_missing;
mod crl_partial;
mod dropped_by_proxy;
mod duplicate;
mod empty;
mod expired;
mod expired_beside_renewed;
mod expiring;
mod future_findings;
mod hosts_not_covered;
mod immutable;
mod key_mismatch;
mod leaf_not_trusted;
mod not_a_ca;
mod not_yet_valid;
mod pair_incomplete;
mod private_key_in_bundle;
mod refused_by_clients;
mod same_subject_ambiguity;
mod superseded;
mod taken_away;
mod too_large;
mod unparsable;
mod weak_key;
mod weak_signature;

use std::collections::HashSet;

use super::{Finding, RuleContext, Severities, Severity};

/// All rules, in the order in which findings are reported.
pub const RULES: &[Rule] = &[
    unparsable::RULE,
    dropped_by_proxy::RULE,
    empty::RULE,
    taken_away::RULE,
    private_key_in_bundle::RULE,
    not_a_ca::RULE,
    pair_incomplete::RULE,
    key_mismatch::RULE,
    expired::RULE,
    not_yet_valid::RULE,
    expired_beside_renewed::RULE,
    same_subject_ambiguity::RULE,
    broken_path::RULE,
    superseded::RULE,
    expiring::RULE,
    duplicate::RULE,
    weak_key::RULE,
    weak_signature::RULE,
    too_large::RULE,
    refused_by_clients::RULE,
    crl_missing::RULE,
    crl_partial::RULE,
    crl_expired::RULE,
    chain_order::RULE,
    leaf_not_trusted::RULE,
    hosts_not_covered::RULE,
    both_key_styles::RULE,
    cacert_sibling_wins::RULE,
    immutable::RULE,
];

/// A rule.
pub struct Rule {
    /// Stable id, in kebab case.
    pub id: &'static str,
    /// The severity of its findings; some of them only warn.
    pub severity: Severity,
    /// What it finds, in one line.
    pub summary: &'static str,
    /// How to fix it, in a line.
    pub remedy: &'static str,
    /// Why it is a rule: the RFC, the program's source, or what was measured.
    pub source: &'static str,
    /// An example of its messages.
    pub example: &'static str,
    /// Whether a denial at any future date is a warning now: it comes with time, and another order of the bundle
    /// prevents it. The expiry of a certificate is reported only when its renewal is due.
    pub warns_ahead: bool,
    /// Judges a Secret.
    pub check: fn(&RuleContext<'_>) -> Vec<Observation>,
}

/// What a rule found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Whether it warns, though the rule denies.
    pub only_warns: bool,
    /// The field, as users write it.
    pub field: String,
    /// What was found, what was expected, what to do.
    pub message: String,
    /// Identifies the same observation in a later version of the object, where line numbers may differ. Never shown.
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

/// A finding, and what identifies it in the stored and in the new version of a Secret.
pub(crate) struct JudgedSecret {
    pub(crate) finding: Finding,
    identity: String,
}

impl JudgedSecret {
    /// Lowers denials that `before` already had to warnings. A set, since hostile bundles have thousands.
    pub(crate) fn lower(judged: &mut [Self], before: &[Self]) {
        let denied = |j: &&Self| j.finding.severity == Severity::Deny;
        let before: HashSet<_> = before.iter().filter(denied).map(Self::same).collect();
        for j in judged {
            if before.contains(&j.same()) {
                j.finding.severity = Severity::Warn;
            }
        }
    }

    /// The finding with the configured severity; `None` if its rule is off.
    pub(crate) fn with_severity(self, severities: &Severities) -> Option<Self> {
        let Self { finding, identity } = self;
        severities.apply(finding).map(|finding| Self { finding, identity })
    }

    fn same(&self) -> (&str, &str, &str) {
        (self.finding.rule, &self.finding.field, &self.identity)
    }

    fn owned(&self) -> (&'static str, String, String) {
        (self.finding.rule, self.finding.field.clone(), self.identity.clone())
    }
}

/// Runs all rules, now and at future dates.
pub(crate) fn run(mut context: RuleContext<'_>) -> Vec<JudgedSecret> {
    let mut judged: Vec<_> = judged(&context, |_| true).collect();
    let dates = future_findings::dates(&context);
    if dates.is_empty() {
        return judged;
    }
    let denied = judged.iter().filter(|j| j.finding.severity == Severity::Deny);
    let mut reported: HashSet<_> = denied.map(JudgedSecret::owned).collect();
    for at in dates {
        context.set_now(at);
        let new = self::judged(&context, |rule| rule.warns_ahead);
        let new = new.filter(|j| j.finding.severity == Severity::Deny && reported.insert(j.owned()));
        judged.extend(new.map(|j| future_findings::warning(j, at)));
    }
    judged
}

/// What the deletion of a Secret takes away, as warnings: the context is that of an update which empties it.
pub(crate) fn run_on_deletion(context: &RuleContext<'_>) -> Vec<JudgedSecret> {
    let mut judged: Vec<_> = judged(context, |rule| rule.id == taken_away::RULE.id).collect();
    judged.iter_mut().for_each(|j| j.finding.severity = Severity::Warn);
    judged
}

fn judged(context: &RuleContext<'_>, which: impl Fn(&Rule) -> bool) -> impl Iterator<Item = JudgedSecret> {
    let judged = |rule: &Rule, seen: Observation| JudgedSecret {
        finding: Finding {
            rule: rule.id,
            severity: if seen.only_warns { Severity::Warn } else { rule.severity },
            field: seen.field,
            message: seen.message,
        },
        identity: seen.identity,
    };
    let rules = RULES.iter().filter(move |rule| {
        which(rule) && context.usage.reader.applies(rule.id) && context.usage.kind.applies(rule.id)
    });
    rules.flat_map(move |rule| (rule.check)(context).into_iter().map(move |seen| judged(rule, seen)))
}

#[cfg(test)]
mod examples;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_is_well_formed() {
        let ids: BTreeSet<_> = RULES.iter().map(|rule| rule.id).collect();
        assert_eq!(ids.len(), RULES.len(), "an id occurs twice");
        for rule in RULES {
            let kebab = |id: &str| id.split('-').all(|w| !w.is_empty() && w.bytes().all(|b| b.is_ascii_lowercase()));
            assert!(kebab(rule.id), "{}", rule.id);
            for text in [rule.summary, rule.remedy] {
                assert!(!text.is_empty() && text.len() <= 120 && !text.contains('\n'), "{}: {text}", rule.id);
                assert!(text.starts_with(|c: char| c.is_ascii_lowercase()), "{}: {text}", rule.id);
            }
            assert!(!rule.source.is_empty() && !rule.example.is_empty(), "{}", rule.id);
        }
    }
}
