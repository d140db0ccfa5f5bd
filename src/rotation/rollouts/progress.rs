//! The progress of a workload's rollout, by the rules of `kubectl rollout status`
//! (`k8s.io/kubectl/pkg/polymorphichelpers/rollout_status.go`).

use serde_json::Value;

use crate::rotation::counted;

/// What is missing until the rollout is complete; `None` when it is.
pub(crate) fn unfinished(workload: &Value) -> Option<String> {
    let status = &workload["status"];
    let count = |field: &str| status[field].as_i64().unwrap_or_default();
    if count("observedGeneration") < workload["metadata"]["generation"].as_i64().unwrap_or_default() {
        return Some("its controller has not observed the last change yet".to_owned());
    }
    let (wanted, updated) = wanted_and_updated(workload);
    let available = count(match workload["kind"].as_str() {
        Some("DaemonSet") => "numberAvailable",
        _ => "availableReplicas",
    });
    let to_update = if restarts_by_hand(workload) == Some(ON_DELETE) { 0 } else { wanted - partition(workload) };
    if updated < to_update || available < wanted {
        return Some(format!(
            "{updated} of {} updated, {available} available",
            counted(wanted.unsigned_abs() as usize, "pod")
        ));
    }
    // The status of a DaemonSet does not count pods with an earlier template.
    let former = if workload["kind"] == "Deployment" { count("replicas") - updated } else { 0 };
    (former > 0).then(|| format!("{} still running", counted(former.unsigned_abs() as usize, "old pod")))
}

/// The number of pods with an earlier pod template, whether or not the update strategy restarts them.
pub(crate) fn outdated_pods(workload: &Value) -> usize {
    let (wanted, updated) = wanted_and_updated(workload);
    usize::try_from(wanted - updated).unwrap_or_default()
}

fn wanted_and_updated(workload: &Value) -> (i64, i64) {
    let count = |field: &str| workload["status"][field].as_i64().unwrap_or_default();
    match workload["kind"].as_str() {
        Some("DaemonSet") => (count("desiredNumberScheduled"), count("updatedNumberScheduled")),
        // The API server sets the default of one replica.
        _ => (workload["spec"]["replicas"].as_i64().unwrap_or(1), count("updatedReplicas")),
    }
}

const ON_DELETE: &str = "OnDelete: delete its pods afterwards";

/// Why a change of the pod template does not restart all pods, and what to do.
pub(crate) fn restarts_by_hand(workload: &Value) -> Option<&'static str> {
    let spec = &workload["spec"];
    if spec["updateStrategy"]["type"] == "OnDelete" {
        Some(ON_DELETE)
    } else if partition(workload) > 0 {
        Some("rollingUpdate.partition keeps pods as they are")
    } else if spec["paused"] == true {
        Some("paused: kubectl rollout resume first")
    } else {
        None
    }
}

fn partition(workload: &Value) -> i64 {
    workload["spec"]["updateStrategy"]["rollingUpdate"]["partition"].as_i64().unwrap_or_default()
}
