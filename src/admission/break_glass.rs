//! Break-glass: an annotation on a Secret that turns the denial of one rule into a warning, with a reason, for requesters
//! who hold a right of their own (docs/adr/0006).

use std::collections::BTreeMap;

use serde_json::Value;

use super::rules::{BREAK_GLASS, RuleInfo, UNREADABLE, VALUE_IGNORED};
use super::{Decision, Operation, Request};
use crate::api::names::BREAK_GLASS_PREFIX;
use crate::trust::{Finding, Severity};

/// Characters of a reason that are told.
const REASON: usize = 80;

/// A denial that was overridden.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The rule.
    pub rule: &'static str,
    /// The reason, as the annotation gives it.
    pub reason: String,
}

/// Overrides what the requester may override; refuses annotations that were set without the right, so that nobody plants
/// one for a privileged writer who comes later.
pub(super) fn apply(request: &Request<'_>, decision: &mut Decision) {
    let object = if request.operation == Operation::Delete { request.old_object } else { request.object };
    let Some(object) = object else { return };
    let asked = annotations(object);
    if asked.is_empty() {
        return;
    }
    if !request.may_break_glass {
        if request.operation != Operation::Delete && !request.is_being_deleted() {
            let before = request.old_object.map(annotations).unwrap_or_default();
            let planted = asked.iter().filter(|(rule, reason)| before.get(*rule) != Some(*reason));
            decision.findings.extend(planted.map(|(rule, _)| refused(rule, request.namespace)));
        }
        return;
    }
    let (mut overridden, mut others) = (Vec::new(), Vec::new());
    for mut finding in std::mem::take(&mut decision.findings) {
        match reason(&asked, &finding) {
            Some(reason) => {
                override_by(&reason, &mut finding);
                let seen = Override { rule: finding.rule, reason };
                if !decision.overrides.contains(&seen) {
                    decision.overrides.push(seen);
                }
                overridden.push(finding);
            }
            None => others.push(finding),
        }
    }
    // First, so that they are not among the warnings that are left out.
    overridden.append(&mut others);
    decision.findings = overridden;
    decision.notes.extend(asked.iter().filter_map(|(rule, reason)| useless(rule, reason)));
}

/// What `trustspan check` says of an object's annotations, since it does not know who will apply it: a denial that those
/// with the right may override stays one, and tells so, unless the findings are wanted as `if_allowed` for them.
pub(super) fn foresee(object: &Value, mut findings: Vec<Finding>, if_allowed: bool) -> Vec<Finding> {
    let asked = annotations(object);
    for finding in &mut findings {
        let Some(reason) = reason(&asked, finding) else { continue };
        if if_allowed {
            override_by(&reason, finding);
        } else {
            finding.message.push_str("; an annotation overrides this for those who may break glass: see --break-glass");
        }
    }
    findings
}

/// Annotations that can override nothing, as `trustspan check` tells them of an object that nobody writes.
pub(super) fn ignored(object: &Value) -> Vec<Finding> {
    let told = |(rule, reason): (&str, &str)| {
        let field = format!("metadata.annotations[{BREAK_GLASS_PREFIX}{rule}]");
        Some(VALUE_IGNORED.finding(field, useless(rule, reason)?))
    };
    annotations(object).into_iter().filter_map(told).collect()
}

fn override_by(reason: &str, finding: &mut Finding) {
    finding.severity = Severity::Warn;
    finding.message = format!("break-glass ({reason}): {}", finding.message);
}

/// The reason by which annotations override a finding, if they do.
fn reason(asked: &BTreeMap<&str, &str>, finding: &Finding) -> Option<String> {
    let overridable = finding.severity == Severity::Deny && is_overridable(finding.rule);
    asked.get(finding.rule).map(|reason| told(reason)).filter(|reason| overridable && !reason.is_empty())
}

fn is_overridable(rule: &str) -> bool {
    ![UNREADABLE.id, BREAK_GLASS.id].contains(&rule)
}

/// Rule to reason.
fn annotations(object: &Value) -> BTreeMap<&str, &str> {
    let all = object["metadata"]["annotations"].as_object().into_iter().flatten();
    all.filter_map(|(key, value)| Some((key.strip_prefix(BREAK_GLASS_PREFIX)?, value.as_str().unwrap_or_default())))
        .collect()
}

/// A reason in one short line: it goes to terminals and the audit log.
fn told(reason: &str) -> String {
    let line: String = reason.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(REASON).collect();
    line.trim_end().to_owned()
}

fn refused(rule: &str, namespace: &str) -> Finding {
    let key = format!("{BREAK_GLASS_PREFIX}{rule}");
    let message = format!(
        "{key} is new or changed, and its requester may not override rules. expected the right to breakglass \
         gatewaysecrets.trustspan.dev {}; ask somebody who holds it, or take the annotation off",
        if namespace.is_empty() { "in the whole cluster" } else { "in this namespace" },
    );
    BREAK_GLASS.finding("metadata.annotations", message)
}

/// What an annotation that overrides nothing lacks.
fn useless(rule: &str, reason: &str) -> Option<String> {
    let why = match RuleInfo::find(rule) {
        None => "no such rule; see `trustspan rules`",
        Some(rule) if !is_overridable(rule.id) => "this rule cannot be overridden",
        Some(_) if told(reason).is_empty() => "it needs a reason as its value",
        Some(_) => return None,
    };
    Some(format!("{BREAK_GLASS_PREFIX}{rule} overrides nothing: {why}"))
}
