//! What people want to know of a TrustConsumer: whether its workloads have loaded the content, what they wait for, and whether somebody has to act.

use jiff::Timestamp;
use serde::Serialize;

use super::condition_types::{AVAILABLE, CONDITION_TYPES, LOADED, RESTARTABLE, VALID};
use crate::api::{ConditionStatus, LoadedObject, TrustConsumerSpec, TrustConsumerStatus, WorkloadRef};
use crate::rotation::{NO_AGENT, problem};

/// A TrustConsumer in summary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerSummary {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The workloads.
    pub workloads: Vec<WorkloadRef>,
    /// What they load.
    pub loads: Vec<LoadedObject>,
    /// Whether they have loaded the content. Absent: no agent has reconciled the TrustConsumer yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loaded: Option<ConditionStatus>,
    /// The same in words.
    pub headline: String,
    /// The reason of condition `Loaded`, unless that is `True`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Since when a workload has not loaded the content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_since: Option<Timestamp>,
    /// What a person has to do. Empty: nothing.
    pub actions: Vec<String>,
    /// When it has to be done: when the first CA expires that a workload has loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub act_before: Option<Timestamp>,
    /// What the workloads wait for, if that is not an action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// When the first CA expires that a workload has loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_expiry: Option<Timestamp>,
    /// The other conditions that are not `True`: type, status, reason and message.
    pub troubles: Vec<String>,
}

impl ConsumerSummary {
    /// The summary of a TrustConsumer.
    pub fn of(namespace: &str, name: &str, spec: &TrustConsumerSpec, status: &TrustConsumerStatus) -> Self {
        let loaded = status.condition(LOADED);
        let pending = loaded.filter(|condition| condition.status != ConditionStatus::True);
        let actions = actions(status);
        let waits_for = pending.map(|condition| {
            let rest = actions.iter().fold(condition.message.clone(), |rest, action| rest.replace(action.as_str(), ""));
            rest.trim().to_owned()
        });
        let others = [VALID, RESTARTABLE, AVAILABLE].into_iter().filter_map(|type_| status.condition(type_));
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            workloads: spec.workloads.clone(),
            loads: spec.loads.clone(),
            loaded: loaded.map(|condition| condition.status),
            headline: match loaded.map(|condition| condition.status) {
                None => "Unknown: no agent has reconciled it yet",
                Some(ConditionStatus::True) => "All workloads have loaded the content",
                Some(ConditionStatus::False) => "Not all workloads have loaded the content",
                Some(ConditionStatus::Unknown) => "It is not known whether all workloads have loaded the content",
            }
            .to_owned(),
            reason: pending.map(|condition| condition.reason.clone()),
            pending_since: status.pending_since,
            act_before: status.first_expiry.filter(|_| !actions.is_empty()),
            actions,
            waits_for: waits_for.filter(|rest| !rest.is_empty()),
            first_expiry: status.first_expiry,
            troubles: others.filter(|condition| condition.status != ConditionStatus::True).map(problem).collect(),
        }
    }
}

/// What a person has to do. Condition `Loaded` repeats other conditions, and `AvailableDuringRestart` is a warning.
fn actions(status: &TrustConsumerStatus) -> Vec<String> {
    if status.condition(LOADED).is_none() {
        return vec![NO_AGENT.to_owned()];
    }
    let types = CONDITION_TYPES.iter().filter(|type_| [VALID, RESTARTABLE].contains(&type_.name));
    let needed =
        types.filter_map(|type_| status.condition(type_.name).filter(|condition| type_.needs_action(condition)));
    needed.map(|condition| condition.message.clone()).collect()
}
