//! Time zones of `spec.windows`: a schema cannot tell which there are.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::Value;

use super::rules::INVALID_GATEWAY_SECRET;
use crate::api::ChangeWindow;
use crate::trust::{Finding, Severity};

/// Windows that never open. One that the stored object already had only warns: a label can still be changed.
pub(super) fn findings(object: &Value, old: Option<&Value>) -> Vec<Finding> {
    // By message, since a hostile spec has thousands.
    let before: HashSet<_> = old.map(unknown).unwrap_or_default().into_iter().map(|(_, former)| former).collect();
    let finding = |(at, message): (usize, String)| {
        let known = before.contains(&message);
        let finding = INVALID_GATEWAY_SECRET.finding(format!("spec.windows[{at}].timeZone"), message);
        if known { Finding { severity: Severity::Warn, ..finding } } else { finding }
    };
    unknown(object).into_iter().map(finding).collect()
}

/// Where an unknown zone stands, and what to say of it.
fn unknown(object: &Value) -> Vec<(usize, String)> {
    let windows = object["spec"]["windows"].as_array().into_iter().flatten().enumerate();
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
        json!({ "spec": { "rootSecretName": "root", "windows": windows } })
    }

    #[test]
    fn accepts_zones_of_the_database() {
        assert_eq!(findings(&object(&["Europe/Berlin", "UTC"]), None), []);
        assert_eq!(findings(&json!({ "spec": { "windows": [{ "from": "22:00", "to": "02:00" }] } }), None), []);
    }

    #[test]
    fn rejects_others_unless_they_were_there_before() {
        let new = object(&["UTC", "Europe/Berlni"]);
        let seen = |old: Option<&Value>| {
            let found = findings(&new, old);
            found.iter().map(|finding| (finding.severity, finding.field.clone())).collect::<Vec<_>>()
        };
        let field = "spec.windows[1].timeZone".to_owned();
        assert_eq!(seen(None), [(Severity::Deny, field.clone())]);
        assert_eq!(seen(Some(&object(&["Mars/Base"]))), [(Severity::Deny, field.clone())]);
        assert_eq!(seen(Some(&object(&["Europe/Berlni"]))), [(Severity::Warn, field)]);
        assert!(findings(&new, None)[0].message.contains("expected a name of the IANA Time Zone Database"));
    }
}
