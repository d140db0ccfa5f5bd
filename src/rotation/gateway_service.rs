//! Finds the pods of the gateways, and the Service that selects them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::api::WorkloadKind;

/// The port of HTTPS (RFC 9110, section 4.2.2), and its name in Istio's charts.
const PORT: (&str, u64) = ("https", 443);

/// The namespace of an object in a manifest without one.
pub(super) const DEFAULT_NAMESPACE: &str = "default";

/// The namespace of an object; `default` where it has none, as for `kubectl apply`.
pub(super) fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or(DEFAULT_NAMESPACE)
}

/// A pod, or the pod template of a workload.
pub(super) fn pod(object: &Value) -> Option<&Value> {
    match object["kind"].as_str()? {
        "Pod" => Some(object),
        kind => WorkloadKind::named(kind).map(|_| &object["spec"]["template"]),
    }
}

/// Whether a pod has all of these labels.
pub(super) fn has_labels(pod: &Value, labels: &BTreeMap<&str, &str>) -> bool {
    labels.iter().all(|(key, value)| pod["metadata"]["labels"][key] == *value)
}

/// The Service of gateways.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GatewayService {
    /// Its name.
    pub(super) name: String,
    /// The name of its HTTPS port; empty for an unnamed port.
    pub(super) port_name: String,
    /// The names of pods with the gateways' labels that it does not select.
    pub(super) unselected: Vec<String>,
}

/// The Service in a namespace that selects most of the pods with these labels, and no others.
///
/// # Errors
/// When there is no such Service: part of a sentence.
pub(super) fn service<'o>(
    objects: impl Iterator<Item = &'o Value> + Clone,
    namespace: &str,
    labels: &BTreeMap<&str, &str>,
) -> Result<GatewayService, String> {
    let local = objects.filter(|object| self::namespace(object) == namespace);
    let services = local.clone().filter(|object| object["kind"] == "Service");
    let found = services.filter_map(|service| {
        let unselected = unselected(local.clone(), service, labels)?;
        let name = service["metadata"]["name"].as_str()?.to_owned();
        Some(GatewayService { name, port_name: port_name(service)?, unselected })
    });
    // The first of several with as many pods.
    found.min_by_key(|found| found.unselected.len()).ok_or_else(|| {
        let labels = labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
        format!(
            "no Service in namespace {namespace} was found that selects pods with {labels}, and no others, and has a port {} or {}",
            PORT.0, PORT.1
        )
    })
}

/// The names of gateways that a Service does not select; `None` if it selects none, or other pods, too. If no pod exists, its selector must be part
/// of `labels`.
fn unselected<'o>(
    local: impl Iterator<Item = &'o Value>,
    service: &Value,
    labels: &BTreeMap<&str, &str>,
) -> Option<Vec<String>> {
    let selector = service["spec"]["selector"].as_object().into_iter().flatten();
    let selector: BTreeMap<_, _> = selector.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))).collect();
    let has_ended = |object: &Value| matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let pods = local.filter(|object| !has_ended(object)).filter_map(|object| Some((object, pod(object)?)));
    let (gateways, others): (Vec<_>, Vec<_>) = pods.partition(|(_, pod)| has_labels(pod, labels));
    if selector.is_empty() || others.iter().any(|(_, pod)| has_labels(pod, &selector)) {
        return None;
    }
    if gateways.is_empty() {
        return selector.iter().all(|(key, value)| labels.get(key) == Some(value)).then(Vec::new);
    }
    let (selected, unselected): (Vec<_>, Vec<_>) = gateways.iter().partition(|(_, pod)| has_labels(pod, &selector));
    let name = |(object, _): &&(&Value, &Value)| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    (!selected.is_empty()).then(|| unselected.into_iter().map(|pair| name(&pair)).collect())
}

/// The name of its HTTPS port; empty for an unnamed port.
fn port_name(service: &Value) -> Option<String> {
    let ports = || service["spec"]["ports"].as_array().into_iter().flatten();
    let port = ports().find(|port| port["name"] == PORT.0).or_else(|| ports().find(|port| port["port"] == PORT.1))?;
    Some(port["name"].as_str().unwrap_or_default().to_owned())
}
