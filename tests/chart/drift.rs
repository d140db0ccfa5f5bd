//! The chart against the manifests, and against the programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use anyhow::{Context, Error, Result, ensure};
use serde_json::{Value, json};
use trustspan::certgen::{ObjectKind, Profile, TRUSTSPAN_WEBHOOK};

use crate::{
    Bed,
    differences::{expect_equal, is_one_sided, without},
    helm::{DEFAULT, Release, everything, parsed},
    testbed::trustspan_node,
};

/// The manifests that the chart covers, and the values with which it renders the same.
fn pairs() -> Vec<(&'static [&'static str], Value)> {
    vec![
        (&["base"], json!({})),
        // It includes the base.
        (&["cert-manager"], cert_manager(json!({}))),
        (&["base", "policies", "ca-bundles", "certgen", "node", "approver", "monitoring"], everything()),
        (
            &["cert-manager", "policies", "cert-manager/ca-bundles", "certgen", "node", "approver", "monitoring"],
            cert_manager(everything()),
        ),
    ]
}

fn cert_manager(mut values: Value) -> Value {
    values["servingCertificate"] = json!({ "mode": "certManager" });
    values
}

type Key = (String, String, String);

fn by_key(objects: Vec<Value>) -> Result<BTreeMap<Key, Value>> {
    let mut map = BTreeMap::new();
    for object in objects.into_iter().filter(|object| !is_one_sided(object)) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (kind, metadata) = (text(&object["kind"]), &object["metadata"]);
        let key = (kind, text(&metadata["namespace"]), text(&metadata["name"]));
        ensure!(map.insert(key.clone(), without(object)).is_none(), "{key:?} is rendered twice");
    }
    Ok(map)
}

pub(crate) fn objects(bed: &Bed) -> Result<()> {
    for (folders, values) in pairs() {
        let mut shipped = Vec::new();
        for folder in folders {
            let folder = format!("{}/manifests/{folder}", env!("CARGO_MANIFEST_DIR"));
            shipped.extend(parsed(&bed.cluster.kubectl(["kustomize", &folder]).ok()?)?);
        }
        if values["policies"]["enabled"] == true {
            shipped.iter_mut().for_each(ignore_missing_renewals);
        }
        let shipped = by_key(shipped)?;
        let rendered = by_key(bed.helm.objects(&bed.cluster, DEFAULT, &values)?)?;
        let (expected, seen): (BTreeSet<_>, BTreeSet<_>) = (shipped.keys().collect(), rendered.keys().collect());
        ensure!(expected == seen, "{folders:?}: only on one side: {:?}", expected.symmetric_difference(&seen));
        for (key, object) in &shipped {
            expect_equal(&format!("{key:?}"), object, &rendered[key])?;
        }
        println!("{folders:?}: {} objects are equal", shipped.len());
    }
    Ok(())
}

/// With the policies, the webhook of clients' renewals may be missing.
fn ignore_missing_renewals(object: &mut Value) {
    let webhooks = object.pointer_mut("/webhooks").and_then(Value::as_array_mut).into_iter().flatten();
    for webhook in webhooks.filter(|webhook| webhook["name"] == "client-renewals.mutate.trustspan.dev") {
        webhook["failurePolicy"] = json!("Ignore");
    }
}

/// The profile of the serving certificate among the objects of a release.
fn profile_of(objects: &[Value], release: Release) -> Result<Profile> {
    let mut profiles = objects.iter().filter_map(|object| object["data"]["profile.yaml"].as_str());
    let text = profiles.next().context("no profile")?;
    Profile::read(text, release.namespace, "cluster.local").map_err(Error::msg)
}

pub(crate) fn profile(bed: &Bed) -> Result<()> {
    let built_in = Profile::read(TRUSTSPAN_WEBHOOK, DEFAULT.namespace, "cluster.local").map_err(Error::msg)?;
    let objects = bed.helm.objects(&bed.cluster, DEFAULT, &json!({}))?;
    ensure!(profile_of(&objects, DEFAULT)? == built_in, "the profile of the release differs from the built-in one");

    let release = Release { name: "edge", namespace: "gateways" };
    let objects = bed.helm.objects(&bed.cluster, release, &json!({ "caBundles": { "enabled": true } }))?;
    let profile = profile_of(&objects, release)?;
    let has = |kind: &str, name: &str| {
        objects.iter().any(|object| object["kind"] == kind && object["metadata"]["name"] == name)
    };
    let rights = |name: &str| {
        let rules = objects.iter().flat_map(|object| object["rules"].as_array().into_iter().flatten());
        let mut names = rules.flat_map(|rule| rule["resourceNames"].as_array().into_iter().flatten());
        names.any(|allowed| allowed == name)
    };
    for object in profile.objects() {
        ensure!(rights(&object.name), "no Role of the release names {object}");
        // The agent creates the Secrets.
        ensure!(
            object.kind == ObjectKind::Secret || has(object.kind.gvk().2, &object.name),
            "the release has no {object}"
        );
    }
    for name in profile.certificates.iter().flat_map(|certificate| &certificate.dns_names) {
        let service = name.strip_suffix(".gateways.svc").unwrap_or_default();
        ensure!(has("Service", service), "the release has no Service {name}");
    }
    let mounts = objects
        .iter()
        .filter_map(|object| object.pointer("/spec/template/spec/volumes/0/secret/secretName").and_then(Value::as_str));
    ensure!(mounts.eq(profile.certificates.iter().map(|certificate| certificate.secret_name.as_str())));
    Ok(())
}

/// The policies of a release are those that `trustspan policies` prints for its agent and the flags of its webhook.
pub(crate) fn policies(bed: &Bed) -> Result<()> {
    let release = Release { name: "edge", namespace: "gateways" };
    let is_policy = |object: &Value| {
        object["kind"].as_str().is_some_and(|kind| kind.starts_with("ValidatingAdmissionPolicy"))
            && object["metadata"]["name"] != "edge-trustspan-agent"
    };
    for flags in [
        &[][..],
        &["--severity=kept-by-agent=warn"],
        &["--severity", "kept-by-agent=off"],
        &["--severity=kept-by-agent=off", "--severity=expired=warn", "--severity=kept-by-agent=deny"],
    ] {
        let account = "--service-account=gateways:edge-trustspan-agent";
        let printed = Command::new(env!("CARGO_BIN_EXE_trustspan")).args(["policies", account]).args(flags).output()?;
        ensure!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
        let named = String::from_utf8(printed.stdout)?.replace("ame: trustspan-", "ame: edge-trustspan-");
        let expected = by_key(parsed(&named)?)?;
        let values = json!({ "policies": { "enabled": true }, "webhook": { "extraArgs": flags } });
        let rendered =
            by_key(bed.helm.objects(&bed.cluster, release, &values)?.into_iter().filter(is_policy).collect())?;
        ensure!(rendered.keys().eq(expected.keys()), "{flags:?}: saw {:?}", rendered.keys());
        for (key, object) in &expected {
            expect_equal(&format!("{flags:?}: {key:?}"), object, &rendered[key])?;
        }
    }
    let objects = bed.helm.objects(&bed.cluster, release, &json!({}))?;
    ensure!(!objects.iter().any(is_policy), "policies are rendered without policies.enabled");
    Ok(())
}

/// The containers of all objects.
fn containers(objects: &[Value]) -> Vec<Value> {
    let pods =
        ["/spec/containers", "/spec/template/spec/containers", "/spec/jobTemplate/spec/template/spec/containers"];
    let lists = objects.iter().flat_map(|object| pods.iter().filter_map(|path| object.pointer(path)));
    lists.flat_map(|list| list.as_array().cloned().unwrap_or_default()).collect()
}

pub(crate) fn flags(bed: &Bed) -> Result<()> {
    let containers = containers(&bed.helm.objects(&bed.cluster, DEFAULT, &everything())?);
    ensure!(containers.len() == 7, "expected 7 containers, saw {}", containers.len());
    for container in containers {
        let image = container["image"].as_str().context("no image")?;
        let args: Vec<_> = container["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let program = match image.split(':').next() {
            Some("trustspan-node") => trustspan_node(),
            _ => env!("CARGO_BIN_EXE_trustspan").into(),
        };
        // --help is answered after the flags before it were parsed.
        let run = Command::new(&program).args(&args).arg("--help").output()?;
        ensure!(run.status.success(), "{image} {args:?}: {}", String::from_utf8_lossy(&run.stderr));
        let wrong = Command::new(&program).args(&args).args(["--no-such-flag", "--help"]).output()?;
        ensure!(!wrong.status.success(), "{image} {args:?}: an unknown flag was not noticed");
        let help = String::from_utf8_lossy(&run.stdout).into_owned();
        for port in container["ports"].as_array().into_iter().flatten() {
            let port = port["containerPort"].to_string();
            let is_set =
                args.iter().any(|arg| arg.ends_with(&format!("={port}")) || arg.ends_with(&format!(":{port}")));
            ensure!(is_set || help.contains(&port), "{image} {args:?}: nothing listens on {port}");
        }
    }
    Ok(())
}

pub(crate) fn names(bed: &Bed) -> Result<()> {
    let release = Release { name: "edge", namespace: "gateways" };
    let mut values = everything();
    values["nameOverride"] = "bundles".into();
    values["test"] = json!({ "namespace": "shop" });
    values["certgen"]["namespace"] = "envoys".into();
    values["mirror"]["namespace"] = "nodes".into();
    values["mirror"]["source"] = json!({ "kind": "ConfigMap", "namespace": "ingress", "name": "cas" });
    for object in bed.helm.objects(&bed.cluster, release, &values)? {
        let metadata = &object["metadata"];
        let (kind, name) = (object["kind"].as_str().unwrap_or_default(), metadata["name"].as_str().unwrap_or_default());
        let is_ours = match kind {
            "CustomResourceDefinition" => name.ends_with(".trustspan.dev"),
            "Namespace" => name == "nodes",
            _ => name.starts_with("edge-bundles"),
        };
        ensure!(is_ours, "{kind} {name}: the name is not that of the release");
        let namespace = metadata["namespace"].as_str();
        let known =
            [None, Some("gateways"), Some("shop"), Some("envoys"), Some("nodes"), Some("ingress"), Some("kube-system")];
        ensure!(known.contains(&namespace), "{kind} {name} is in {namespace:?}");
        for rule in object["rules"].as_array().into_iter().flatten() {
            let names = rule["resourceNames"].as_array().into_iter().flatten();
            ensure!(names.into_iter().all(|fixed| fixed != "trustspan"), "{kind} {name} has a fixed name: {rule}");
        }
        // What a program reads. The name of the project remains in API groups, labels and images.
        let text = object.to_string();
        for fixed in ["trustspan-", "envoy-gateway-system", "istio-ingress"] {
            let rest =
                text.replace("trustspan-node:", "").replace("trustspan-0.1.0", "").replace(".trustspan-journal", "");
            ensure!(!rest.contains(fixed), "{kind} {name} has the fixed name {fixed}: {object:#}");
        }
    }
    let text = bed.helm.template(&bed.cluster, release, &values)?;
    for part in [
        "request.userInfo.username != \"system:serviceaccount:gateways:edge-bundles-agent\"",
        "authorizer.serviceAccount(\"gateways\", \"edge-bundles-agent\")",
        "values: [\"kube-system\",\"kube-node-lease\",\"gateways\"]",
        "--agent-username=system:serviceaccount:gateways:edge-bundles-agent",
        "--from=configmap/ingress/cas",
    ] {
        ensure!(text.contains(part), "expected {part}");
    }
    Ok(())
}
