//! The condition that tells of change windows that never open. Admission refuses them, but a GatewaySecret may have been written while
//! the webhook was down, and until a rotation waits for its windows nobody would hear of it.

use jiff::Timestamp;

use super::set;
use crate::api::{ConditionStatus, GatewaySecretStatus};
use crate::registry::Entry;

/// Every window of `changeWindows` can open. There is such a condition only while one cannot.
pub const WINDOWS: &str = "ChangeWindowsValid";

/// Tells it.
pub(super) fn tell(entry: &Entry, status: &mut GatewaySecretStatus, now: Timestamp) {
    let windows = &entry.policy.change_windows;
    let unknown: Vec<_> = windows.iter().filter_map(|window| window.zone().err()).collect();
    let Some(first) = unknown.first() else {
        return status.conditions.retain(|condition| condition.type_ != WINDOWS);
    };
    let message = format!("{} of {} in changeWindows never open: {first}", unknown.len(), windows.len());
    set(entry, status, WINDOWS, (ConditionStatus::False, "UnknownTimeZone", message), now);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::tests::entry;
    use crate::rotation::StatusSummary;
    use crate::trust::fixtures::now;

    fn told(zones: &[&str], status: &mut GatewaySecretStatus) -> Option<String> {
        let mut entry = entry("mesh", "root", "gw");
        let window = |zone: &&str| json!({ "from": "22:00", "to": "02:00", "timeZone": zone });
        let windows = zones.iter().map(window).map(serde_json::from_value).collect::<Result<_, _>>();
        entry.policy.change_windows = windows.expect("windows");
        tell(&entry, status, now());
        let condition = status.condition(WINDOWS).cloned();
        entry.status = status.clone();
        let troubles = StatusSummary::of(&entry, now()).troubles;
        let is_shown = |message: &String| troubles.iter().any(|trouble| trouble.contains(message));
        condition.map(|condition| condition.message).filter(is_shown)
    }

    #[test]
    fn rejects_a_zone_that_does_not_exist_while_no_rotation_runs() {
        let mut status = GatewaySecretStatus::default();
        let message = told(&["Europe/Berlin", "Mars/Base"], &mut status).expect("a condition");
        assert!(message.starts_with("1 of 2 in changeWindows") && message.contains("Mars/Base"), "{message}");
        assert!(message.contains("expected a name of the IANA Time Zone Database"), "{message}");
        assert_eq!(told(&["Europe/Berlin"], &mut status), None, "it is mended");
        assert_eq!(told(&[], &mut status), None);
    }
}
