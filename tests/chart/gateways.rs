//! `gateways` renders the Roles that `trustspan rbac` prints.

use std::{collections::BTreeMap, fs, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    Bed,
    differences::expect_equal,
    helm::{Release, parsed},
    testbed::Seed,
};

/// GatewaySecrets with random fields, in addition to those that were written by hand.
const RANDOM: u64 = 60;

/// All GatewaySecrets, in the form of `gateways`.
fn gateways() -> Vec<Value> {
    let mut seed = Seed::of_run("gateways of the chart");
    let by_hand = by_hand().as_array().cloned().unwrap_or_default();
    by_hand.into_iter().chain((0..RANDOM).map(|number| random(&mut seed, number))).collect()
}

/// Each name can be used for several things, as in a cluster.
fn random(seed: &mut Seed, number: u64) -> Value {
    fn pick<'a>(seed: &mut Seed, of: &[&'a str]) -> &'a str {
        of[usize::try_from(seed.below(of.len() as u64)).unwrap_or_default()]
    }
    fn some(seed: &mut Seed, mut one: impl FnMut(&mut Seed) -> Value) -> Vec<Value> {
        (0..seed.below(4)).map(|_| one(seed)).collect()
    }
    let namespace = format!("random-{number}");
    let namespaces = [namespace.as_str(), "apps", "issuing"];
    let name = |seed: &mut Seed| json!(pick(seed, &["a", "b", "a-cacert", "root", "z"]));
    let secret = |seed: &mut Seed| match seed.below(2) {
        0 => json!({ "name": name(seed) }),
        _ => json!({ "namespace": pick(seed, &namespaces), "name": name(seed) }),
    };
    let target = |seed: &mut Seed| match seed.below(4) {
        0 => json!({ "kind": "ConfigMap", "namespace": pick(seed, &["apps", "issuing"]), "name": name(seed) }),
        _ => json!({ "kind": pick(seed, &["ConfigMap", "Secret", "ClusterTrustBundle"]), "name": name(seed) }),
    };
    let of_kind = |seed: &mut Seed| json!({ "kind": pick(seed, &["Secret", "ConfigMap"]), "name": name(seed) });
    let mut gateway = json!({ "name": format!("gateway-{number}"), "namespace": namespace, "spec": { "clients": {} } });
    match seed.below(2) {
        0 => gateway["spec"]["sourceSecretName"] = name(seed),
        _ => {
            gateway["spec"]["certificateRef"] = json!({ "name": "gateway" });
            gateway["resolved"] = json!({ "sourceSecretName": name(seed) });
            if seed.below(2) == 0 {
                gateway["resolved"]["caSecretRef"] = secret(seed);
            }
        }
    }
    for (path, value) in [
        ("/spec/secretName", json!("managed")),
        ("/spec/caSecretRef", secret(seed)),
        ("/spec/issuerSecretName", json!("signing")),
        ("/spec/clients/namespaces", some(seed, |seed| json!(pick(seed, &namespaces))).into()),
        ("/spec/clients/secretNames", some(seed, name).into()),
        ("/spec/clients/caSecretRef", secret(seed)),
        ("/spec/clients/caConfigMapNames", some(seed, name).into()),
        ("/spec/additionalTrust", some(seed, of_kind).into()),
        ("/spec/trustBundleTargets", some(seed, target).into()),
        ("/previousSecretName", json!("previous")),
        ("/existingPolicy/workloadRestarts/mode", json!(pick(seed, &["Enabled", "Disabled"]))),
        ("/existingPolicy/probe/mode", json!(pick(seed, &["Auto", "Disabled"]))),
        (
            "/existingPolicy/probe/target",
            json!({ "serviceName": "a", "host": "a.example.com", "clientSecretName": name(seed) }),
        ),
        ("/trustSources", {
            let source = |seed: &mut Seed| {
                let mut source = of_kind(seed);
                source["namespace"] = json!(pick(seed, &namespaces));
                source
            };
            some(seed, source).into()
        }),
    ] {
        if seed.below(2) == 0 {
            let parts = path.split('/').skip(1);
            *parts.fold(&mut gateway, |at, part| &mut at[part]) = value;
        }
    }
    gateway
}

/// GatewaySecrets of which each field that Roles depend on is in at least one.
fn by_hand() -> Value {
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
    for gateway in &gateways() {
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
        .args(["apps", "cert-manager", "issuing"].map(|namespace| format!("--allow-namespace={namespace}")))
        .args(
            ["a", "b", "a-cacert", "root", "roots", "z"].map(|bundle| format!("--allow-cluster-trust-bundle={bundle}")),
        )
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
    println!("{} objects of {} GatewaySecrets are equal", printed.len(), gateways().len());
    Ok(())
}
