//! The conditions of a GatewaySecret, in one table. All have positive polarity: `True` is good.

use jiff::Timestamp;

use crate::api::{Condition, ConditionStatus, GatewaySecretStatus, READY};
use crate::registry::Entry;
use crate::text::bounded;

/// The Secrets of the issuer and of the CAs can be used.
pub const SOURCES: &str = "SourcesUsable";
/// Every write that the rotation needs now succeeded.
pub const SYNCED: &str = "Synced";
/// Declared clients follow the rotation in time.
pub const CLIENTS: &str = "ClientsCurrent";
/// Declared clients and gateways accept each other's certificates.
pub const CONNECT: &str = "ClientsConnect";
/// Clients trust the CA of the next serving certificate.
pub const LEAF: &str = "ServingCertificateTrusted";
/// Gateways that verify clients by another object than the managed Secret find the new CA there.
pub const TRUST: &str = "TrustSourcesCurrent";
/// Every gateway uses the newest content of the managed Secret.
pub const GATEWAYS: &str = "GatewaysConverged";
/// Workloads use the newest content of the managed Secret.
pub const WORKLOADS: &str = "WorkloadsCurrent";
/// The next rotation would complete without manual steps.
pub const READINESS: &str = "RotationReady";
/// Everything that the webhook needs fits into the status.
pub const COMPLETE: &str = "StatusComplete";
/// `spec.distrustedCAs` is applied.
pub const DISTRUST: &str = "DistrustApplied";
/// The journal covers the rotation.
pub const JOURNAL: &str = "JournalComplete";
/// Every change window can open.
pub const WINDOWS: &str = "ChangeWindowsValid";

/// A type of condition.
#[derive(Clone, Copy, Debug)]
pub struct ConditionType {
    /// The type, as the status has it.
    pub name: &'static str,
    /// What `True` means, as docs/operations.md says it.
    pub meaning: &'static str,
    /// Whether the status always has it. Others are absent while they do not apply.
    pub is_permanent: bool,
    /// Reason of the Warning Event when it becomes `False`. `None`: there is no such Event, or one for each client.
    pub failed_event: Option<&'static str>,
    /// Reason of the Normal Event when it is `True` again.
    pub restored_event: Option<&'static str>,
    /// The action of both Events.
    pub action: &'static str,
    /// Reasons with which it is `False` although no person has to act.
    pub without_action: &'static [&'static str],
    /// Reasons with which it stays `Unknown` until a person acts.
    pub unknown_until_action: &'static [&'static str],
}

pub(crate) const PERMANENT: ConditionType = ConditionType {
    name: "",
    meaning: "",
    is_permanent: true,
    failed_event: None,
    restored_event: None,
    action: "",
    without_action: &[],
    unknown_until_action: &[],
};
const TEMPORARY: ConditionType = ConditionType { is_permanent: false, ..PERMANENT };

/// All of them, in the order of docs/operations.md.
pub const CONDITION_TYPES: [ConditionType; 14] = [
    ConditionType {
        name: READY,
        meaning: "The managed Secret exists and is valid, and no older GatewaySecret claims its name.",
        // The agent creates the Secret. If something prevents that, another condition reports it.
        without_action: &["SecretMissing"],
        ..PERMANENT
    },
    ConditionType {
        name: SOURCES,
        meaning: "The source Secret and the Secrets of the CAs can be used.",
        failed_event: Some("SourceUnusable"),
        restored_event: Some("SourceUsable"),
        action: "ReadSources",
        ..PERMANENT
    },
    ConditionType {
        name: SYNCED,
        meaning: "The GatewaySecret could be read, and every necessary write succeeded.",
        failed_event: Some("StepFailed"),
        restored_event: Some("StepsDone"),
        action: "Sync",
        ..PERMANENT
    },
    ConditionType {
        name: CLIENTS,
        meaning: "All declared clients are up to date, or still have time to be.",
        // An Event ClientLagging is recorded for each client.
        restored_event: Some("ClientsCurrent"),
        action: "AwaitClients",
        unknown_until_action: &["NotListed", "UnknownCertificates"],
        ..PERMANENT
    },
    ConditionType {
        name: CONNECT,
        meaning: "All declared clients and the gateways accept each other's certificates.",
        failed_event: Some("ClientsCutOff"),
        restored_event: Some("ClientsConnect"),
        action: "ChangeManagedSecret",
        ..PERMANENT
    },
    ConditionType {
        name: LEAF,
        meaning: "All clients trust the CA of the next serving certificate, so gateways may switch to it.",
        without_action: &["Reissuing"],
        unknown_until_action: &["Undeclared"],
        ..PERMANENT
    },
    ConditionType {
        name: TRUST,
        meaning: "Gateways that verify clients by another object than the managed Secret find the new CA there.",
        failed_event: Some("TrustSourceLacksCA"),
        restored_event: Some("TrustSourcesCurrent"),
        action: "ReadTrustSources",
        unknown_until_action: &["UnreadableTrust", "UnknownTrust", "NotListed"],
        ..PERMANENT
    },
    ConditionType {
        name: GATEWAYS,
        meaning: "Every gateway was probed and uses the newest content of the managed Secret.",
        failed_event: Some("GatewaysBehind"),
        restored_event: Some("GatewaysConverged"),
        action: "ProbeGateways",
        ..PERMANENT
    },
    ConditionType {
        name: WORKLOADS,
        meaning: "No workload in the namespace uses the source Secret or an earlier content of the managed Secret.",
        failed_event: Some("WorkloadsBehind"),
        restored_event: Some("WorkloadsCurrent"),
        action: "RollOut",
        without_action: &["Rolling"],
        unknown_until_action: &["Unread"],
        ..PERMANENT
    },
    ConditionType {
        name: READINESS,
        meaning: "A CA rotation started now would complete without manual steps. Absent during a rotation, and in mode `Copy`.",
        ..TEMPORARY
    },
    ConditionType {
        name: COMPLETE,
        meaning: "Everything that the webhook needs fits into the status. Absent while that is so.",
        failed_event: Some("StatusIncomplete"),
        action: "Report",
        ..TEMPORARY
    },
    ConditionType {
        name: DISTRUST,
        meaning: "No bundle has a CA of `spec.distrustedCAs`. Absent while that field is empty.",
        failed_event: Some("DistrustImpossible"),
        restored_event: Some("DistrustApplied"),
        action: "Distrust",
        ..TEMPORARY
    },
    ConditionType {
        name: JOURNAL,
        meaning: "The journal covers the whole rotation. Absent while that is so.",
        failed_event: Some("JournalLost"),
        action: "Remember",
        without_action: &["Lost"],
        ..TEMPORARY
    },
    ConditionType {
        name: WINDOWS,
        meaning: "Every window of `changeWindows` can open. Absent while that is so.",
        failed_event: Some("ChangeWindowsInvalid"),
        action: "AwaitWindow",
        ..TEMPORARY
    },
];

impl ConditionType {
    /// Whether a person has to act on a condition of this type.
    pub fn needs_action(&self, condition: &Condition) -> bool {
        let reason = condition.reason.as_str();
        match condition.status {
            ConditionStatus::True => false,
            ConditionStatus::False => !self.without_action.contains(&reason),
            ConditionStatus::Unknown => self.unknown_until_action.contains(&reason),
        }
    }
}

/// Sets a condition. `lastTransitionTime` changes only with the status.
pub fn set(
    entry: &Entry,
    status: &mut GatewaySecretStatus,
    type_: &str,
    said: (ConditionStatus, &str, String),
    now: Timestamp,
) {
    set_condition(&mut status.conditions, entry.generation, type_, said, now);
}

/// Bytes of the message of a condition.
pub(super) const MESSAGE: usize = 2 << 10;

/// Sets a condition in a list of conditions. Its message is made printable and has at most 2 KiB: it may quote others.
pub(crate) fn set_condition(
    conditions: &mut Vec<Condition>,
    observed_generation: Option<i64>,
    type_: &str,
    (status, reason, message): (ConditionStatus, &str, String),
    now: Timestamp,
) {
    let same = conditions.iter().position(|condition| condition.type_ == type_).map(|at| conditions.remove(at));
    conditions.push(Condition {
        type_: type_.to_owned(),
        status,
        observed_generation,
        last_transition_time: same
            .filter(|same| same.status == status)
            .map_or(now, |condition| condition.last_transition_time),
        reason: reason.to_owned(),
        message: bounded(&message, MESSAGE),
    });
}

/// Removes a condition that does not apply.
pub(super) fn remove(status: &mut GatewaySecretStatus, type_: &str) {
    status.conditions.retain(|condition| condition.type_ != type_);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md"));

    #[test]
    fn the_page_has_every_condition_and_its_events() {
        for condition in CONDITION_TYPES {
            let row = format!("| `{}` | {} |", condition.name, condition.meaning);
            assert!(PAGE.contains(&row), "docs/operations.md lacks the row {row}");
            for reason in condition.failed_event.into_iter().chain(condition.restored_event) {
                let is_in_row = |line: &str| {
                    let reasons = line.strip_prefix("| ").and_then(|row| row.split(" | ").next());
                    reasons.is_some_and(|reasons| reasons.contains(&format!("`{reason}`")))
                };
                assert!(PAGE.lines().any(is_in_row), "docs/operations.md lacks Event {reason}");
            }
        }
    }

    #[test]
    fn the_page_has_no_other_condition() {
        let (_, rest) = PAGE.split_once("## Conditions").expect("a heading");
        let rows = rest.lines().take_while(|line| !line.starts_with("## ")).filter_map(|line| line.strip_prefix("| `"));
        let types: Vec<_> = rows.filter_map(|row| row.split('`').next()).collect();
        assert_eq!(types, CONDITION_TYPES.map(|condition| condition.name));
    }
}
