//! Where the chart differs from the manifests, and why.

use anyhow::{Result, ensure};
use serde_json::{Map, Value};

/// Labels that differ. Helm's conventions ask for those of a release, and kustomize adds its own to some of the manifests.
const LABELS: [&str; 6] = [
    "helm.sh/chart",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/name",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/version",
];

/// Fields that are left out when they are empty.
const OPTIONAL: [&str; 4] = ["labels", "annotations", "volumes", "volumeMounts"];

/// Annotations that only Helm reads.
const ANNOTATIONS: [&str; 3] = ["helm.sh/hook", "helm.sh/hook-delete-policy", "helm.sh/resource-policy"];

/// Fields with a value that the API server would set, or that only one of the two sets.
const FIELDS: [(&str, Option<&str>); 2] = [
    // A cluster may forbid pods of the system's classes in other namespaces than its own, so the chart leaves it to a value.
    ("priorityClassName", None),
    // The default for an image with a tag.
    ("imagePullPolicy", Some("IfNotPresent")),
];

/// Flags whose value is the default in the namespace of the manifests: the chart sets them, since its namespace is a value.
const FLAGS: [&str; 5] = [
    "--agent-username=system:serviceaccount:trustspan-system:trustspan-agent",
    "--lease-namespace=trustspan-system",
    "--lease-name=trustspan-agent",
    "--lease-name=trustspan-approver",
    // It is equal to the built-in profile, which `drift::profile` tests.
    "--serving-certificate-profile=/etc/trustspan/serving-certificate/profile.yaml",
];

/// The volume of that profile.
const PROFILE: &str = "serving-certificate-profile";

/// Objects of the chart that the manifests do not have.
const ADDED: [(&str, &str); 6] = [
    // The profile of the serving certificate, with the names of the release.
    ("ConfigMap", "trustspan-agent-serving-certificate"),
    // One replica of the agent is enough, so the manifests do not limit disruptions.
    ("PodDisruptionBudget", "trustspan-agent"),
    // `helm test`.
    ("ServiceAccount", "trustspan-verify-install"),
    ("Role", "trustspan-verify-install"),
    ("RoleBinding", "trustspan-verify-install"),
    ("Pod", "trustspan-verify-install"),
];

/// Objects of the manifests that the chart does not have.
const LEFT_OUT: [(&str, &str); 1] = [
    // `helm install --create-namespace` creates it.
    ("Namespace", "trustspan-system"),
];

/// Whether an object is on one of the two sides only.
pub(crate) fn is_one_sided(object: &Value) -> bool {
    let known = |(kind, name): &(&str, &str)| object["kind"] == *kind && object["metadata"]["name"] == *name;
    ADDED.iter().chain(&LEFT_OUT).any(known)
}

/// An object without what differs.
pub(crate) fn without(mut object: Value) -> Value {
    remove(&mut object);
    object
}

fn remove(value: &mut Value) {
    match value {
        Value::Object(map) => {
            LABELS.iter().chain(&ANNOTATIONS).for_each(|key| drop(map.remove(*key)));
            for (field, default) in FIELDS {
                if map.get(field).is_some_and(|value| default.is_none_or(|default| value == default)) {
                    map.remove(field);
                }
            }
            if let Some(Value::Array(args)) = map.get_mut("args") {
                args.retain(|arg| !FLAGS.iter().any(|flag| arg == flag));
            }
            for field in ["volumes", "volumeMounts"] {
                if let Some(Value::Array(volumes)) = map.get_mut(field) {
                    volumes.retain(|volume| volume["name"] != PROFILE);
                }
            }
            map.values_mut().for_each(remove);
            map.retain(|key, value| !(OPTIONAL.contains(&key.as_str()) && is_empty(value)));
        }
        Value::Array(items) => items.iter_mut().for_each(remove),
        // kustomize writes 600 for 600.0.
        Value::Number(number) => *value = number.as_f64().into(),
        // kustomize adds empty lines to a folded text.
        Value::String(text) => *text = text.replace("\n\n", "\n"),
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// Two objects that have to be equal, whatever the order of their fields. The error shows the lines that differ.
pub(crate) fn expect_equal(what: &str, expected: &Value, seen: &Value) -> Result<()> {
    let text = |object: &Value| {
        let mut object = object.clone();
        object.sort_all_objects();
        format!("{object:#}")
    };
    let (before, after) = (text(expected), text(seen));
    let diff = similar::TextDiff::from_lines(&before, &after);
    ensure!(expected == seen, "{what}\n{}", diff.unified_diff().header("expected", "the chart"));
    Ok(())
}
