//! Change windows that never open. Admission rejects them, but a GatewaySecret may have been written while the webhook was down.

use jiff::Timestamp;

use super::condition_types::{WINDOWS, remove, set};
use super::name_list::counted;
use crate::api::{ConditionStatus, GatewaySecretStatus};
use crate::registry::Entry;

pub(super) fn report(entry: &Entry, status: &mut GatewaySecretStatus, now: Timestamp) {
    let windows = &entry.policy.change_windows;
    let unknown: Vec<_> = windows.iter().filter_map(|window| window.zone().err()).collect();
    let Some(first) = unknown.first() else { return remove(status, WINDOWS) };
    let never_open = if unknown.len() == 1 { "never opens" } else { "never open" };
    let message = format!(
        "{} of {} in changeWindows {never_open}: {first}. Correct timeZone in the RotationPolicy.",
        unknown.len(),
        counted(windows.len(), "window")
    );
    set(entry, status, WINDOWS, (ConditionStatus::False, "UnknownTimeZone", message), now);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::tests::entry;
    use crate::rotation::StatusSummary;
    use crate::trust::fixtures::now;

    fn reported(zones: &[&str], status: &mut GatewaySecretStatus) -> Option<String> {
        let mut entry = entry("mesh", "root", "gw");
        let window = |zone: &&str| json!({ "from": "22:00", "to": "02:00", "timeZone": zone });
        let windows = zones.iter().map(window).map(serde_json::from_value).collect::<Result<_, _>>();
        entry.policy.change_windows = windows.expect("windows");
        report(&entry, status, now());
        let condition = status.condition(WINDOWS).cloned();
        entry.status = status.clone();
        let troubles = StatusSummary::of(&entry, now()).troubles;
        let is_shown = |message: &String| troubles.iter().any(|trouble| trouble.contains(message));
        condition.map(|condition| condition.message).filter(is_shown)
    }

    #[test]
    fn reports_an_unknown_time_zone_before_a_rotation_needs_it() {
        let mut status = GatewaySecretStatus::default();
        let message = reported(&["Europe/Berlin", "Mars/Base"], &mut status).expect("a condition");
        assert!(
            message.starts_with("1 of 2 windows in changeWindows never opens") && message.contains("Mars/Base"),
            "{message}"
        );
        assert!(message.contains("expected a name of the IANA Time Zone Database"), "{message}");
        assert_eq!(reported(&["Europe/Berlin"], &mut status), None, "it is corrected");
        assert_eq!(reported(&[], &mut status), None);
    }
}
