//! `gateways` renders the Roles that `trustspan rbac` prints.

use std::{collections::BTreeMap, fs, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    Bed,
    differences::expect_equal,
    helm::{Release, parsed},
};

/// GatewaySecrets of which each field that Roles depend on is in at least one.
pub(crate) fn gateways() -> Value {
    json!([
        { "name": "plain", "namespace": "mesh", "spec": { "sourceSecretName": "root" } },
        {
            "name": "certificate", "namespace": "mesh-b",
            "spec": { "certificateRef": { "name": "gateway" }, "secretName": "gateway-tls" },
            "resolved": { "sourceSecretName": "gateway-source" },
        },
        {
            "name": "cluster-issuer", "namespace": "mesh-c", "labels": { "team": "payments" },
            "spec": {
                "certificateRef": { "name": "gateway" }, "issuerSecretName": "signing",
                "clients": { "namespaces": ["apps", "cert-manager", "mesh-c"], "secretNames": ["by-hand", "a-client"] },
            },
            "resolved": {
                "sourceSecretName": "gateway-source", "caSecretRef": { "namespace": "cert-manager", "name": "mesh-ca" },
            },
            "existingPolicy": {
                "workloadRestarts": { "mode": "Enabled" },
                "probe": { "target": { "serviceName": "gateway", "host": "shop.example.com", "clientSecretName": "canary" } },
            },
        },
        {
            "name": "clients", "namespace": "mesh-d",
            "spec": {
                "sourceSecretName": "root", "secretName": "new", "caSecretRef": { "name": "root-ca" }, "issuerSecretName": "signing",
                "clients": {
                    "caSecretRef": { "namespace": "issuing", "name": "clients-ca" }, "caConfigMapNames": ["partners", "apps"],
                },
                "additionalTrust": [{ "kind": "Secret", "name": "legacy" }, { "kind": "ConfigMap", "name": "others" }],
            },
            "previousSecretName": "old",
            "existingPolicy": { "probe": { "mode": "Disabled" } },
        },
        {
            "name": "targets", "namespace": "mesh-e",
            "spec": {
                "sourceSecretName": "root",
                "trustBundleTargets": [
                    { "kind": "ConfigMap", "name": "bundle" },
                    { "kind": "Secret", "name": "bundle-secret" },
                    { "kind": "ConfigMap", "namespace": "apps", "name": "gateway-cas" },
                    { "kind": "ClusterTrustBundle", "name": "roots" },
                ],
            },
            "trustSources": [
                { "kind": "Secret", "namespace": "mesh-e", "name": "own-cacert" },
                { "kind": "ConfigMap", "namespace": "apps", "name": "upstream" },
            ],
        },
    ])
}

/// What `trustspan rbac` reads: the rendered GatewaySecrets, with the status and the policy that the values say they have.
fn inputs(objects: &[Value]) -> Result<Value> {
    let mut items = Vec::new();
    for gateway in gateways().as_array().into_iter().flatten() {
        let is_it =
            |object: &&Value| object["kind"] == "GatewaySecret" && object["metadata"]["name"] == gateway["name"];
        let mut object = objects.iter().find(is_it).context("a GatewaySecret is not rendered")?.clone();
        ensure!(object["spec"] == gateway["spec"], "{object:#}");
        let mut status = json!({});
        if gateway["resolved"].is_object() {
            status["resolved"] = gateway["resolved"].clone();
        }
        if let Some(sources) = gateway["trustSources"].as_array() {
            let complete = |source: &Value| {
                let mut source = source.clone();
                source["usedBy"] = "Gateway shop".into();
                source
            };
            status["trustSources"] = sources.iter().map(complete).collect();
        }
        if let Some(name) = gateway["previousSecretName"].as_str() {
            status["secretName"] = name.into();
            let dates = ("2026-01-01T00:00:00Z", "2036-01-01T00:00:00Z");
            status["bundle"] =
                json!([{ "subject": "CN=old", "fingerprint": "00", "notBefore": dates.0, "notAfter": dates.1 }]);
        }
        object["status"] = status;
        items.push(object);
        if gateway["existingPolicy"].is_object() {
            items.push(json!({
                "apiVersion": "trustspan.dev/v1alpha1", "kind": "RotationPolicy",
                "metadata": { "name": "default", "namespace": gateway["namespace"] }, "spec": gateway["existingPolicy"],
            }));
        }
    }
    Ok(json!({ "apiVersion": "v1", "kind": "List", "items": items }))
}

fn by_key(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let keyed = objects.into_iter().map(|mut object| {
        object["metadata"].as_object_mut().map(|metadata| metadata.remove("labels"));
        let metadata = &object["metadata"];
        (format!("{} {}/{}", object["kind"], metadata["namespace"], metadata["name"]), object)
    });
    keyed.collect()
}

pub(crate) fn roles(bed: &Bed) -> Result<()> {
    let release = Release { name: "trustspan", namespace: "edge" };
    let without = bed.helm.objects(&bed.cluster, release, &json!({}))?;
    let mut rendered = bed.helm.objects(&bed.cluster, release, &json!({ "gateways": gateways() }))?;
    let file = bed.cluster.temp_dir("gateways")?.join("gateways.json");
    fs::write(&file, inputs(&rendered)?.to_string())?;
    let printed = Command::new(env!("CARGO_BIN_EXE_trustspan"))
        .args(["rbac", "--service-account=edge:trustspan-agent", "-f"])
        .arg(&file)
        .output()?;
    ensure!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let printed = by_key(parsed(&String::from_utf8(printed.stdout)?)?);

    rendered.retain(|object| object["kind"] != "GatewaySecret" && !without.contains(object));
    let rendered = by_key(rendered);
    let kinds = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<Vec<_>>();
    ensure!(kinds(&printed) == kinds(&rendered), "expected {:#?}, saw {:#?}", kinds(&printed), kinds(&rendered));
    for (key, object) in &printed {
        expect_equal(key, object, &rendered[key])?;
    }
    println!("{} objects of {} GatewaySecrets are equal", printed.len(), gateways().as_array().map_or(0, Vec::len));
    Ok(())
}
