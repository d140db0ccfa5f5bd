//! Whether a restart leaves a ready pod of a workload.

use crate::api::WorkloadKind;
use crate::json::Json;

/// Why a restart leaves no ready pod for a time, as part of a sentence, and what to do. `None`: it leaves one.
///
/// A PodDisruptionBudget changes nothing about that: it limits evictions, and rolling updates evict no pods
/// (<https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-budgets>).
pub(crate) fn gap(workload: &Json<'_>) -> Option<String> {
    let (spec, status) = (&workload["spec"], &workload["status"]);
    match workload["kind"].as_str().and_then(WorkloadKind::named) {
        Some(WorkloadKind::DaemonSet) => {
            let pods = status["desiredNumberScheduled"].as_i64().unwrap_or_default();
            let rolling = &spec["updateStrategy"]["rollingUpdate"];
            // `k8s.io/kubernetes/pkg/controller/daemon/update.go`: both are rounded up.
            let [surge, unavailable] = [("maxSurge", 0), ("maxUnavailable", 1)]
                .map(|(field, default)| rounded(&rolling[field], pods, true, default));
            (surge == 0).then(|| lets_go(pods, unavailable)).flatten()
        }
        Some(WorkloadKind::StatefulSet) => {
            let pods = spec["replicas"].as_i64().unwrap_or(1);
            lets_go(pods, rounded(&spec["updateStrategy"]["rollingUpdate"]["maxUnavailable"], pods, true, 1))
        }
        Some(WorkloadKind::Deployment) | None => deployment(spec),
    }
}

fn deployment(spec: &Json<'_>) -> Option<String> {
    let pods = spec["replicas"].as_i64().unwrap_or(1);
    if pods == 0 {
        return None;
    }
    if spec["strategy"]["type"] == "Recreate" {
        return Some("its strategy Recreate stops all pods before it starts new ones: use RollingUpdate".to_owned());
    }
    let rolling = &spec["strategy"]["rollingUpdate"];
    let quarter = |up: bool| if up { (pods + 3) / 4 } else { pods / 4 };
    let surge = rounded(&rolling["maxSurge"], pods, true, quarter(true));
    let unavailable = rounded(&rolling["maxUnavailable"], pods, false, quarter(false));
    // `k8s.io/kubernetes/pkg/controller/deployment/util/deployment_util.go`, `ResolveFenceposts`: one of them has to be positive.
    let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
    if unavailable >= pods {
        return lets_go(pods, unavailable);
    }
    let containers = spec["template"]["spec"]["containers"].as_array();
    let is_probed = containers.into_iter().flatten().any(|container| container["readinessProbe"].is_object());
    let waits = spec["minReadySeconds"].as_i64().unwrap_or_default() > 0;
    (pods == 1 && !is_probed && !waits)
        .then(|| "its one pod has no readinessProbe, so it stops before its successor serves: add one".to_owned())
}

fn lets_go(pods: i64, unavailable: i64) -> Option<String> {
    match pods {
        ..=0 => None,
        1 => Some(
            "its one pod stops before its successor starts: use more pods, or a Deployment with maxSurge".to_owned(),
        ),
        _ => (unavailable >= pods).then(|| format!("maxUnavailable lets all of its {pods} pods go at once: lower it")),
    }
}

/// A number of pods, or a percentage of all.
fn rounded(value: &Json<'_>, pods: i64, up: bool, default: i64) -> i64 {
    let percent = value.as_str().and_then(|text| text.strip_suffix('%')?.parse::<i64>().ok());
    match (value.as_i64(), percent) {
        (Some(number), _) => number,
        (None, Some(percent)) if up => (pods.saturating_mul(percent)).saturating_add(99) / 100,
        (None, Some(percent)) => pods.saturating_mul(percent) / 100,
        (None, None) => default,
    }
}
