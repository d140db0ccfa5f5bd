//! Break-glass: an annotation on a Secret that turns the denials of one rule into warnings, with a reason, for users with the right to override
//! rules (docs/adr/0006).

use std::collections::BTreeMap;

use super::rules::{BREAK_GLASS, RuleInfo, UNREADABLE, VALUE_IGNORED};
use super::{Decision, Operation, Request};
use crate::api::names::BREAK_GLASS_PREFIX;
use crate::json::Json;
use crate::trust::{Finding, Severity};

/// Limit for the characters of a reason in messages.
const REASON_LENGTH: usize = 80;

/// A denial that was overridden.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The rule.
    pub rule: &'static str,
    /// The reason, from the annotation.
    pub reason: String,
}

/// Overrides the denials that the user may override. Rejects annotations of a user without the right: they would apply to the next writer with
/// it.
pub(super) fn apply(request: &Request<'_>, decision: &mut Decision) {
    let object = if request.operation == Operation::Delete { request.old_object } else { request.object };
    let Some(object) = object else { return };
    let overrides = annotations(object);
    if overrides.is_empty() {
        return;
    }
    if !request.may_break_glass {
        if request.operation != Operation::Delete && !request.is_draining() {
            let before = request.old_object.map(annotations).unwrap_or_default();
            let changed = overrides.iter().filter(|(rule, reason)| before.get(*rule) != Some(*reason));
            decision.findings.extend(changed.map(|(rule, _)| not_permitted(rule, request.namespace)));
        }
        return;
    }
    let (mut overridden, mut others) = (Vec::new(), Vec::new());
    for mut finding in std::mem::take(&mut decision.findings) {
        match reason(&overrides, &finding) {
            Some(reason) => {
                override_by(&reason, &mut finding);
                let applied = Override { rule: finding.rule, reason };
                if !decision.overrides.contains(&applied) {
                    decision.overrides.push(applied);
                }
                overridden.push(finding);
            }
            None => others.push(finding),
        }
    }
    // Overridden denials come first, because only a few warnings are shown.
    overridden.append(&mut others);
    decision.findings = overridden;
    decision.notes.extend(overrides.iter().filter_map(|(rule, reason)| without_effect(rule, reason)));
}

/// Applies the annotations of an object for `trustspan check`, which does not know the user: a denial that can be overridden stays a denial,
/// with a hint, unless `if_allowed` assumes a user with the right.
pub(super) fn preview(object: &Json<'_>, mut findings: Vec<Finding>, if_allowed: bool) -> Vec<Finding> {
    let overrides = annotations(object);
    for finding in &mut findings {
        let Some(reason) = reason(&overrides, finding) else { continue };
        if if_allowed {
            override_by(&reason, finding);
        } else {
            finding
                .message
                .push_str("; an annotation overrides this for users with the right breakglass: see --break-glass");
        }
    }
    findings
}

/// The annotations that override nothing, for `trustspan check`.
pub(super) fn ignored(object: &Json<'_>) -> Vec<Finding> {
    let finding = |(rule, reason): (&str, &str)| {
        let field = format!("metadata.annotations[{BREAK_GLASS_PREFIX}{rule}]");
        Some(VALUE_IGNORED.finding(field, without_effect(rule, reason)?))
    };
    annotations(object).into_iter().filter_map(finding).collect()
}

fn override_by(reason: &str, finding: &mut Finding) {
    finding.severity = Severity::Warn;
    finding.message = format!("break-glass ({reason}): {}", finding.message);
}

/// The reason for which annotations override a finding; `None` if they do not.
fn reason(overrides: &BTreeMap<&str, &str>, finding: &Finding) -> Option<String> {
    let overridable = finding.severity == Severity::Deny && is_overridable(finding.rule);
    overrides.get(finding.rule).map(|reason| one_line(reason)).filter(|reason| overridable && !reason.is_empty())
}

fn is_overridable(rule: &str) -> bool {
    ![UNREADABLE.id, BREAK_GLASS.id].contains(&rule)
}

/// The reasons by rule.
fn annotations<'a>(object: &'a Json<'a>) -> BTreeMap<&'a str, &'a str> {
    let all = object["metadata"]["annotations"].as_object().into_iter().flatten();
    all.filter_map(|(key, value)| Some((key.strip_prefix(BREAK_GLASS_PREFIX)?, value.as_str().unwrap_or_default())))
        .collect()
}

/// A reason as one short line, for terminals and the audit log.
fn one_line(reason: &str) -> String {
    let line: String =
        reason.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(REASON_LENGTH).collect();
    line.trim_end().to_owned()
}

fn not_permitted(rule: &str, namespace: &str) -> Finding {
    let key = format!("{BREAK_GLASS_PREFIX}{rule}");
    let message = format!(
        "{key} was added or changed by a user who may not override rules. expected the right breakglass on \
         gatewaysecrets.trustspan.dev {}; ask a user with this right, or remove the annotation",
        if namespace.is_empty() { "in the whole cluster" } else { "in this namespace" },
    );
    BREAK_GLASS.finding("metadata.annotations", message)
}

/// The warning about an annotation that overrides nothing.
fn without_effect(rule: &str, reason: &str) -> Option<String> {
    let why = match RuleInfo::find(rule) {
        None => "no such rule; see `trustspan rules`",
        Some(rule) if !is_overridable(rule.id) => "this rule cannot be overridden",
        Some(_) if one_line(reason).is_empty() => "it needs a reason as its value",
        Some(_) => return None,
    };
    Some(format!("{BREAK_GLASS_PREFIX}{rule} overrides nothing: {why}"))
}
