//! Prints the objects and logs of a failed test's namespace.

use serde_json::Value;

use super::{cluster::Cluster, process::started_log_tails};

/// Kinds that are long and rarely explain a failure.
const NOISE: [&str; 3] = ["events.events.k8s.io", "controllerrevisions.apps", "leases.coordination.k8s.io"];

/// A namespace's objects and the end of each relevant log, as one text.
pub(super) fn namespace(cluster: &Cluster, ns: &str) -> String {
    let objects = objects(cluster, ns).unwrap_or_else(|error| format!("cannot be listed: {error:#}\n"));
    let (api_server, started) = (cluster.api_server_log_tail(20), started_log_tails(40));
    format!("=== namespace {ns}\n{objects}{api_server}{started}=== end of {ns}\n")
}

fn objects(cluster: &Cluster, ns: &str) -> anyhow::Result<String> {
    let kinds = cluster.kubectl(["api-resources", "--namespaced", "--verbs=list", "-o", "name"]).ok()?;
    let kinds: Vec<_> = kinds.lines().filter(|kind| !NOISE.contains(kind)).collect();
    let mut list: Value = serde_json::from_str(&cluster.kubectl(["get", &kinds.join(","), "-o", "json"]).ns(ns).ok()?)?;
    let mut text = String::new();
    for object in list["items"].as_array_mut().into_iter().flatten() {
        // Controllers create these in every namespace.
        if matches!(object["metadata"]["name"].as_str(), Some("kube-root-ca.crt" | "default")) {
            continue;
        }
        withhold(object);
        text += &format!("---\n{}\n", serde_saphyr::to_string(object)?.trim_end());
    }
    Ok(text)
}

/// Removes what must not be printed (the values of a Secret, also from the annotation of `kubectl apply`) and what is
/// not needed.
fn withhold(object: &mut Value) {
    if object["kind"] == "Secret" {
        for field in ["/data", "/stringData"] {
            let map = object.pointer_mut(field).and_then(Value::as_object_mut);
            for value in map.into_iter().flat_map(|map| map.values_mut()) {
                let length = value.as_str().map_or(0, str::len);
                *value = format!("({length} characters withheld)").into();
            }
        }
    }
    for (field, key) in
        [("/metadata", "managedFields"), ("/metadata/annotations", "kubectl.kubernetes.io/last-applied-configuration")]
    {
        if let Some(map) = object.pointer_mut(field).and_then(Value::as_object_mut) {
            map.remove(key);
        }
    }
}
