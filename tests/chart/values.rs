//! Values: a mistyped one is refused, and each that is documented changes something.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    Bed,
    helm::{CHART, DEFAULT, everything},
};

pub(crate) fn unknown(bed: &Bed) -> Result<()> {
    let gateway = |item: Value| json!({ "gateways": [item] });
    for (values, named) in [
        (json!({ "replicas": 3 }), "'replicas'"),
        (json!({ "webhook": { "replica": 3 } }), "'replica'"),
        (json!({ "crds": { "enable": false } }), "'enable'"),
        (json!({ "metrics": { "podMonitor": { "interval": "5s" } } }), "'interval'"),
        (json!({ "agent": { "replicas": "two" } }), "/agent/replicas"),
        (json!({ "webhook": { "excludedNamespaces": ["kube-system"] } }), "/webhook/excludedNamespaces"),
        (json!({ "image": { "pullPolicy": "Sometimes" } }), "/image/pullPolicy"),
        (json!({ "servingCertificate": { "mode": "none" } }), "/servingCertificate/mode"),
        // Of somebody else's certificate.
        (json!({ "servingCertificate": { "secretName": "tls" } }), "/servingCertificate/secretName"),
        (
            json!({ "servingCertificate": { "mode": "certManager", "caBundle": "Q0E=" } }),
            "/servingCertificate/caBundle",
        ),
        (gateway(json!({ "name": "a", "namespace": "mesh", "spec": { "sourceSecret": "root" } })), "'sourceSecret'"),
        (gateway(json!({ "name": "a", "spec": { "sourceSecretName": "root" } })), "'namespace'"),
        (
            gateway(json!({ "name": "a", "namespace": "mesh", "spec": { "certificateRef": { "name": "gateway" } } })),
            "GatewaySecret mesh/a: expected resolved.sourceSecretName",
        ),
        (json!({ "identities": [{ "name": "a", "namespace": "mesh", "spec": { "rule": [] } }] }), "'rule'"),
    ] {
        let args = ["template", DEFAULT.name, CHART, "--namespace", DEFAULT.namespace];
        let run = bed.helm.run(&bed.cluster, &args, &values)?;
        ensure!(!run.success() && run.stderr.contains(named), "{values}: expected {named}, saw {}", run.stderr);
    }
    Ok(())
}

/// The paths of all values that have no values below them. The labels of nodes are one value.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) if !map.is_empty() && !path.ends_with("/nodeSelector") => {
            map.iter().for_each(|(key, value)| leaves(value, &format!("{path}/{key}"), found));
        }
        _ => found.push(path.to_owned()),
    }
}

/// Another value than the default, of the same type.
fn another(path: &str, value: &Value) -> Value {
    let name = path.rsplit('/').next().unwrap_or_default();
    match (name, value) {
        ("mode", _) => json!("certManager"),
        ("caBundle", _) => json!("Q0E="),
        ("digest", _) => json!(format!("sha256:{}", "0".repeat(64))),
        ("pullPolicy", _) => json!("Always"),
        ("logFormat", _) => json!("text"),
        ("kind", _) => json!("ConfigMap"),
        ("directory", _) => json!("/etc/other"),
        ("duration" | "propagationDelay", _) => json!("48h"),
        ("affinity", _) => json!({ "nodeAffinity": {} }),
        ("imagePullSecrets", _) => json!([{ "name": "another" }]),
        ("extraArgs" | "namespaces", _) => json!(["another"]),
        ("excludedNamespaces", _) => json!(["kube-system", "kube-node-lease", "another"]),
        ("apiServerPorts", _) => json!([1]),
        ("gateways", _) => json!([{ "name": "a", "namespace": "mesh", "spec": { "sourceSecretName": "root" } }]),
        ("identities", _) => {
            json!([{ "name": "a", "namespace": "mesh", "spec": { "rules": [], "server": { "endpoint": "https://a" } } }])
        }
        ("extraObjects", _) => json!([{ "kind": "Another" }]),
        ("topologySpreadConstraints", _) => json!([{ "maxSkew": 2 }]),
        (_, Value::Bool(value)) => json!(!value),
        (_, Value::Number(_)) => json!(7),
        (_, Value::Array(_)) => json!([{ "another": "value" }]),
        (_, Value::Object(_)) => json!({ "another": "value" }),
        (_, _) => json!("another"),
    }
}

/// Another value that the effect of one needs.
fn needed(path: &str) -> Option<(&str, Value)> {
    match path {
        "/networkPolicy/egress/apiServerPorts" | "/networkPolicy/egress/agent" | "/networkPolicy/egress/approver" => {
            Some(("/networkPolicy/egress/enabled", json!(true)))
        }
        "/servingCertificate/secretName" | "/servingCertificate/caBundle" => {
            Some(("/servingCertificate/mode", json!("external")))
        }
        _ => None,
    }
}

pub(crate) fn used(bed: &Bed) -> Result<()> {
    let defaults: Value = serde_saphyr::from_str(&fs::read_to_string(format!("{CHART}/values.yaml"))?)?;
    let mut paths = Vec::new();
    leaves(&defaults, "", &mut paths);
    // Helm passes it to every chart.
    paths.retain(|path| path != "/global");
    ensure!(paths.len() > 80, "{paths:?}");
    let set = |values: &mut Value, path: &str, value: Value| -> Result<()> {
        let (parents, name) = path.rsplit_once('/').context("no name")?;
        let mut at = values;
        for part in parents.split('/').skip(1) {
            at = &mut at[part];
        }
        at[name] = value;
        Ok(())
    };
    for path in &paths {
        let mut values = everything();
        if let Some((needed, value)) = needed(path) {
            set(&mut values, needed, value)?;
        }
        let before = bed.helm.template(&bed.cluster, DEFAULT, &values)?;
        let default = values.pointer(path).or_else(|| defaults.pointer(path)).context("no such value")?;
        let other = another(path, default);
        set(&mut values, path, other.clone())?;
        let after = bed.helm.template(&bed.cluster, DEFAULT, &values)?;
        ensure!(before != after, "{path}: {other} changes nothing");
    }
    println!("{} values reach the objects", paths.len());
    Ok(())
}
