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

/// The names of the Service in a namespace that selects all pods with these labels, and of its HTTPS port; the latter is empty for an
/// unnamed port.
///
/// # Errors
/// When there is no such Service: part of a sentence.
pub(super) fn service<'o>(
    objects: impl Iterator<Item = &'o Value> + Clone,
    namespace: &str,
    labels: &BTreeMap<&str, &str>,
) -> Result<(String, String), String> {
    let local = objects.filter(|object| self::namespace(object) == namespace);
    let services = local.clone().filter(|object| object["kind"] == "Service");
    let mut matching = services.filter(|service| selects_gateways(local.clone(), service, labels));
    let port = |service: &Value| Some((service["metadata"]["name"].as_str()?.to_owned(), port_name(service)?));
    matching.find_map(port).ok_or_else(|| {
        let labels = labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
        format!(
            "no Service in namespace {namespace} was found that selects all pods with {labels} and has a port {} or {}",
            PORT.0, PORT.1
        )
    })
}

/// Whether a Service selects all gateways and no other pods. A gateway that it does not select would never be probed.
/// If no pod exists, its selector must be part of `labels`.
fn selects_gateways<'o>(
    local: impl Iterator<Item = &'o Value>,
    service: &Value,
    labels: &BTreeMap<&str, &str>,
) -> bool {
    let selector = service["spec"]["selector"].as_object().into_iter().flatten();
    let selector: BTreeMap<_, _> = selector.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))).collect();
    let (gateways, others): (Vec<_>, Vec<_>) = local.filter_map(pod).partition(|pod| has_labels(pod, labels));
    let covers = if gateways.is_empty() {
        selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    } else {
        gateways.iter().all(|pod| has_labels(pod, &selector))
    };
    !selector.is_empty() && covers && !others.iter().any(|pod| has_labels(pod, &selector))
}

/// The name of its HTTPS port; empty for an unnamed port.
fn port_name(service: &Value) -> Option<String> {
    let ports = || service["spec"]["ports"].as_array().into_iter().flatten();
    let port = ports().find(|port| port["name"] == PORT.0).or_else(|| ports().find(|port| port["port"] == PORT.1))?;
    Some(port["name"].as_str().unwrap_or_default().to_owned())
}
