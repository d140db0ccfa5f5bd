//! RotationPolicies and ClusterRotationPolicies: what their schema cannot tell.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::Value;

use super::rules::{INVALID_RESOURCE, RuleInfo, SEVERITY_IGNORED};
use crate::api::{ChangeWindow, RotationPolicySpec};
use crate::trust::{Finding, Severity};

/// The findings on a policy of a manifest.
pub(super) fn stored(object: &Value) -> Vec<Finding> {
    // `spec` may be left out.
    let spec = Some(&object["spec"]).filter(|spec| !spec.is_null());
    if let Err(error) = RotationPolicySpec::merged(spec) {
        return vec![INVALID_RESOURCE.finding("spec", error.to_string())];
    }
    [ignored_severities(object), unknown_zones(object, None)].concat()
}

/// Severities that change nothing.
fn ignored_severities(object: &Value) -> Vec<Finding> {
    let named = object["spec"]["severities"].as_object().into_iter().flatten();
    let why = named.filter_map(|(rule, _)| match RuleInfo::find(rule) {
        Some(rule) if !rule.is_fixed() => None,
        Some(_) => Some((rule, "the severity of", " is fixed: this one changes nothing. remove it".to_owned())),
        None => {
            let expected = ": this severity changes nothing. expected an id that `trustspan rules` lists".to_owned();
            Some((rule, "there is no rule", expected))
        }
    });
    why.map(|(rule, head, tail)| {
        SEVERITY_IGNORED.finding(format!("spec.severities[{rule}]"), format!("{head} {rule}{tail}"))
    })
    .collect()
}

/// Change windows that never open. One that the stored object already had only warns: a label can still be changed.
pub(super) fn unknown_zones(object: &Value, old: Option<&Value>) -> Vec<Finding> {
    // By message, since a hostile spec has thousands.
    let before: HashSet<_> = old.map(unknown).unwrap_or_default().into_iter().map(|(_, former)| former).collect();
    let finding = |(at, message): (usize, String)| {
        let known = before.contains(&message);
        let finding = INVALID_RESOURCE.finding(format!("spec.changeWindows[{at}].timeZone"), message);
        if known { Finding { severity: Severity::Warn, ..finding } } else { finding }
    };
    unknown(object).into_iter().map(finding).collect()
}

/// Where an unknown zone stands, and what to say of it.
fn unknown(object: &Value) -> Vec<(usize, String)> {
    let windows = object["spec"]["changeWindows"].as_array().into_iter().flatten().enumerate();
    let zone = |(at, window)| Some((at, ChangeWindow::deserialize(window).ok()?.zone().err()?.to_string()));
    windows.filter_map(zone).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(zones: &[&str]) -> Value {
        let windows: Vec<_> =
            zones.iter().map(|zone| json!({ "from": "22:00", "to": "02:00", "timeZone": zone })).collect();
        json!({ "spec": { "changeWindows": windows } })
    }

    #[test]
    fn accepts_zones_of_the_database() {
        assert_eq!(unknown_zones(&object(&["Europe/Berlin", "UTC"]), None), []);
        assert_eq!(
            unknown_zones(&json!({ "spec": { "changeWindows": [{ "from": "22:00", "to": "02:00" }] } }), None),
            []
        );
    }

    #[test]
    fn rejects_others_unless_they_were_there_before() {
        let new = object(&["UTC", "Europe/Berlni"]);
        let seen = |old: Option<&Value>| {
            let found = unknown_zones(&new, old);
            found.iter().map(|finding| (finding.severity, finding.field.clone())).collect::<Vec<_>>()
        };
        let field = "spec.changeWindows[1].timeZone".to_owned();
        assert_eq!(seen(None), [(Severity::Deny, field.clone())]);
        assert_eq!(seen(Some(&object(&["Mars/Base"]))), [(Severity::Deny, field.clone())]);
        assert_eq!(seen(Some(&object(&["Europe/Berlni"]))), [(Severity::Warn, field)]);
        assert!(unknown_zones(&new, None)[0].message.contains("expected a name of the IANA Time Zone Database"));
    }
}
