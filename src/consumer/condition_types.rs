//! The conditions of a TrustConsumer, in one table. All have positive polarity: `True` is good.

use crate::rotation::{ConditionType, PERMANENT};

/// All workloads have loaded the content.
pub const LOADED: &str = "Loaded";
/// The content exists and can be loaded.
pub const VALID: &str = "ContentValid";
/// No restart waits for a person.
pub const RESTARTABLE: &str = "Restartable";
/// A restart leaves a ready pod of each workload.
pub const AVAILABLE: &str = "AvailableDuringRestart";

/// Reason of condition [`LOADED`] while no workload exists, or only some do.
pub(super) const WORKLOAD_MISSING: &str = "WorkloadMissing";

/// All of them, in the order of docs/operations.md.
pub const CONDITION_TYPES: [ConditionType; 4] = [
    ConditionType {
        name: LOADED,
        meaning: "All workloads have loaded the content, and their rollouts are complete.",
        action: "RollOut",
        without_action: &["Rolling", "Waiting"],
        ..PERMANENT
    },
    ConditionType {
        name: VALID,
        meaning: "The Secrets and ConfigMaps of `spec.loads` exist, and their CAs can be loaded.",
        failed_event: Some("ContentInvalid"),
        restored_event: Some("ContentValid"),
        action: "ReadContent",
        unknown_until_action: &["Forbidden"],
        ..PERMANENT
    },
    ConditionType {
        name: RESTARTABLE,
        meaning: "No restart waits for a person.",
        failed_event: Some("RestartBlocked"),
        restored_event: Some("RestartUnblocked"),
        action: "RollOut",
        unknown_until_action: &["Forbidden"],
        ..PERMANENT
    },
    ConditionType {
        name: AVAILABLE,
        meaning: "A restart leaves a ready pod of each workload.",
        failed_event: Some("RestartInterrupts"),
        action: "RollOut",
        ..PERMANENT
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md"));

    #[test]
    fn the_page_has_every_condition_and_no_other() {
        let (_, rest) = PAGE.split_once("## Conditions of TrustConsumers").expect("a heading");
        let rows = rest.lines().take_while(|line| !line.starts_with("## ")).filter_map(|line| line.strip_prefix("| `"));
        let rows: Vec<_> = rows.collect();
        let types: Vec<_> = rows.iter().filter_map(|row| row.split('`').next()).collect();
        assert_eq!(types, CONDITION_TYPES.map(|condition| condition.name));
        for (row, condition) in rows.iter().zip(CONDITION_TYPES) {
            assert!(row.contains(&format!("` | {} |", condition.meaning)), "another meaning: {row}");
            for reason in condition.failed_event.into_iter().chain(condition.restored_event) {
                assert!(PAGE.contains(&format!("`{reason}`")), "docs/operations.md lacks Event {reason}");
            }
        }
    }
}
