//! RotationPolicies and ClusterRotationPolicies: what their schema cannot express.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::Value;

use super::rules::{INVALID_RESOURCE, RuleInfo, SEVERITY_IGNORED};
use crate::api::{ChangeWindow, RotationPolicySpec};
use crate::json::Json;
use crate::trust::{Finding, Severity};

/// The findings on a policy in a manifest.
pub(super) fn findings(object: &Json<'_>) -> Vec<Finding> {
    // `spec` may be left out.
    let spec = Some(Value::from(&object["spec"])).filter(|spec| !spec.is_null());
    if let Err(error) = RotationPolicySpec::merged(&spec) {
        return vec![INVALID_RESOURCE.finding("spec", error.to_string())];
    }
    [ignored_severities(object), unknown_time_zones(object, None)].concat()
}

/// Severities without effect.
fn ignored_severities(object: &Json<'_>) -> Vec<Finding> {
    let named = object["spec"]["severities"].as_object().into_iter().flatten();
    let reasons = named.filter_map(|(rule, _)| match RuleInfo::find(rule) {
        Some(rule) if !rule.is_fixed() => None,
        Some(_) => Some((rule, "the severity of", " is fixed: this one changes nothing. remove it".to_owned())),
        None => {
            let expected = ": this severity changes nothing. expected an id that `trustspan rules` lists".to_owned();
            Some((rule, "there is no rule", expected))
        }
    });
    reasons
        .map(|(rule, head, tail)| {
            SEVERITY_IGNORED.finding(format!("spec.severities[{rule}]"), format!("{head} {rule}{tail}"))
        })
        .collect()
}

/// Change windows that never open. One that the stored object already has only warns, so that its labels can still be changed.
pub(super) fn unknown_time_zones(object: &Json<'_>, old: Option<&Json<'_>>) -> Vec<Finding> {
    // In a set, since a hostile spec has thousands.
    let before: HashSet<_> = old.map(unknown).unwrap_or_default().into_iter().map(|(_, message)| message).collect();
    let finding = |(at, message): (usize, String)| {
        let known = before.contains(&message);
        let finding = INVALID_RESOURCE.finding(format!("spec.changeWindows[{at}].timeZone"), message);
        if known { Finding { severity: Severity::Warn, ..finding } } else { finding }
    };
    unknown(object).into_iter().map(finding).collect()
}

/// The index of each window with an unknown time zone, and the message about it.
fn unknown(object: &Json<'_>) -> Vec<(usize, String)> {
    let windows = object["spec"]["changeWindows"].as_array().into_iter().flatten().enumerate();
    let zone = |(at, window)| Some((at, ChangeWindow::deserialize(window).ok()?.zone().err()?.to_string()));
    windows.filter_map(zone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::json;

    fn object(zones: &[&str]) -> Json<'static> {
        let windows: Vec<_> =
            zones.iter().map(|zone| json!({ "from": "22:00", "to": "02:00", "timeZone": zone })).collect();
        json!({ "spec": { "changeWindows": windows } })
    }

    #[test]
    fn accepts_time_zones_of_the_iana_database() {
        assert_eq!(unknown_time_zones(&object(&["Europe/Berlin", "UTC"]), None), []);
        assert_eq!(
            unknown_time_zones(&json!({ "spec": { "changeWindows": [{ "from": "22:00", "to": "02:00" }] } }), None),
            []
        );
    }

    #[test]
    fn rejects_new_unknown_time_zones_and_warns_about_stored_ones() {
        let new = object(&["UTC", "Europe/Berlni"]);
        let findings = |old: Option<&Json<'_>>| {
            let found = unknown_time_zones(&new, old);
            found.iter().map(|finding| (finding.severity, finding.field.clone())).collect::<Vec<_>>()
        };
        let field = "spec.changeWindows[1].timeZone".to_owned();
        assert_eq!(findings(None), [(Severity::Deny, field.clone())]);
        assert_eq!(findings(Some(&object(&["Mars/Base"]))), [(Severity::Deny, field.clone())]);
        assert_eq!(findings(Some(&object(&["Europe/Berlni"]))), [(Severity::Warn, field)]);
        assert!(unknown_time_zones(&new, None)[0].message.contains("expected a name of the IANA Time Zone Database"));
    }
}
