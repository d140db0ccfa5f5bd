//! What a failed test leaves for its reader.

use serde_json::Value;

use super::cluster::Cluster;

/// Kinds that fill pages and say little here.
const NOISE: [&str; 3] = ["events.events.k8s.io", "controllerrevisions.apps", "leases.coordination.k8s.io"];

/// A namespace's objects and the end of the API server's log, as one text.
pub(super) fn namespace(cluster: &Cluster, ns: &str) -> String {
    let objects = objects(cluster, ns).unwrap_or_else(|error| format!("cannot be listed: {error:#}\n"));
    format!("=== namespace {ns}\n{objects}{}=== end of {ns}\n", cluster.api_server_log_tail(30))
}

fn objects(cluster: &Cluster, ns: &str) -> anyhow::Result<String> {
    let kinds = cluster.kubectl(["api-resources", "--namespaced", "--verbs=list", "-o", "name"]).ok()?;
    let kinds: Vec<_> = kinds.lines().filter(|kind| !NOISE.contains(kind)).collect();
    let mut list: Value = serde_json::from_str(&cluster.kubectl(["get", &kinds.join(","), "-o", "json"]).ns(ns).ok()?)?;
    let mut text = String::new();
    for object in list["items"].as_array_mut().into_iter().flatten() {
        withhold(object);
        text += &format!("---\n{}\n", serde_saphyr::to_string(object)?);
    }
    Ok(text)
}

/// Takes out what must not be printed (a Secret's values, also in the copy that `kubectl apply` keeps) or is not worth it.
fn withhold(object: &mut Value) {
    if object["kind"] == "Secret" {
        for field in ["data", "stringData"] {
            for value in object[field].as_object_mut().into_iter().flat_map(|map| map.values_mut()) {
                let length = value.as_str().map_or(0, str::len);
                *value = format!("({length} characters withheld)").into();
            }
        }
    }
    let metadata = &mut object["metadata"];
    if let Some(map) = metadata.as_object_mut() {
        map.remove("managedFields");
    }
    if let Some(map) = metadata["annotations"].as_object_mut() {
        map.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}
