//! A release on a real API server.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{
    Bed,
    helm::{CHART, DEFAULT, parsed},
    testbed::{SOON, User, wait_for},
};

const LABEL: &str = "app.kubernetes.io/instance=trustspan";

/// Every object of the release, as `kubectl get` names it.
fn remaining(bed: &Bed) -> Result<Vec<String>> {
    let kinds = bed.cluster.kubectl(["api-resources", "--verbs=list", "-o", "name"]).ok()?;
    let kinds: Vec<_> = kinds.split_whitespace().filter(|kind| *kind != "events").collect();
    let args = ["get", &kinds.join(","), "-A", "-l", LABEL, "-o", "name", "--ignore-not-found"];
    Ok(bed.cluster.kubectl(args).ok()?.lines().map(str::to_owned).collect())
}

pub(crate) fn lifecycle(bed: &Bed) -> Result<()> {
    let (cluster, helm) = (&bed.cluster, &bed.helm);
    let namespace = ["--namespace", DEFAULT.namespace];
    let with = |args: &[&'static str]| [args, &namespace].concat();
    let base = json!({ "certManager": { "enabled": false } });

    // The pods have to be allowed by the Pod Security Standard `restricted`.
    cluster.kubectl(["create", "namespace", DEFAULT.namespace]).ok()?;
    let enforce = "pod-security.kubernetes.io/enforce=restricted";
    cluster.kubectl(["label", "namespace", DEFAULT.namespace, enforce]).ok()?;
    helm.ok(cluster, &with(&["install", DEFAULT.name, CHART]), &base)?;
    for object in helm.objects(cluster, DEFAULT, &base)? {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (kind, metadata) = (text(&object["kind"]), &object["metadata"]);
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        ensure!(cluster.exists(&kind, &namespace, &name)?, "{kind} {namespace}/{name} is not installed");
    }
    wait_for("two pods of each Deployment", SOON, || Ok(cluster.list("pods", DEFAULT.namespace, LABEL)?.len() == 4))?;

    // Without the CRDs Helm cannot map GatewaySecrets, so they come by an upgrade.
    cluster.kubectl(["create", "namespace", "mesh"]).ok()?;
    let gateway = json!({ "name": "public", "namespace": "mesh", "spec": { "sourceSecretName": "root" } });
    let mut values = base.clone();
    values["gateways"] = json!([gateway]);
    values["agent"] = json!({ "replicas": 3 });
    let guarded = |expected: &str| -> Result<()> {
        let can = ["auth", "can-i", "guard", "secrets/public"];
        let agent = "--as=system:serviceaccount:trustspan-system:trustspan-agent";
        let seen = cluster.kubectl(can).ns("mesh").arg(agent).run()?.stdout;
        ensure!(seen.trim() == expected, "expected {expected}, saw {seen}");
        Ok(())
    };
    guarded("no")?;
    helm.ok(cluster, &with(&["upgrade", DEFAULT.name, CHART]), &values)?;
    ensure!(cluster.get("gatewaysecret", "mesh", "public")?["spec"]["mode"] == "Bundle");
    ensure!(cluster.get("deployment", DEFAULT.namespace, "trustspan-agent")?["spec"]["replicas"] == 3);
    guarded("yes")?;

    helm.ok(cluster, &with(&["rollback", DEFAULT.name, "1"]), &Value::Null)?;
    ensure!(!cluster.exists("gatewaysecret", "mesh", "public")?, "the GatewaySecret is still there");
    ensure!(cluster.get("deployment", DEFAULT.namespace, "trustspan-agent")?["spec"]["replicas"] == 2);
    guarded("no")?;

    helm.ok(cluster, &with(&["upgrade", DEFAULT.name, CHART]), &values)?;
    helm.ok(cluster, &with(&["uninstall", DEFAULT.name]), &Value::Null)?;
    let deleted = cluster.deletions(User::Admin)?;
    let position = |kind: &str| deleted.iter().position(|request| request.resource == kind);
    let last = |kind: &str| deleted.iter().rposition(|request| request.resource == kind);
    let webhooks = last("validatingwebhookconfigurations").max(last("mutatingwebhookconfigurations"));
    for kind in ["services", "deployments"] {
        ensure!(webhooks.is_some() && webhooks < position(kind), "webhooks are not deleted before {kind}: {deleted:?}");
    }
    wait_for("only the CRDs to remain", SOON, || {
        let remaining = remaining(bed)?;
        Ok(remaining.len() == 6 && remaining.iter().all(|name| name.starts_with("customresourcedefinition")))
    })?;

    // A new release of the same name takes the CRDs over.
    helm.ok(cluster, &with(&["install", DEFAULT.name, CHART]), &values)?;
    ensure!(cluster.exists("gatewaysecret", "mesh", "public")?, "no GatewaySecret");
    let manifest = helm.ok(cluster, &with(&["get", "manifest", DEFAULT.name]), &Value::Null)?;
    println!("{} objects installed, upgraded, rolled back and uninstalled", parsed(&manifest)?.len());
    helm.ok(cluster, &with(&["uninstall", DEFAULT.name]), &Value::Null).map(drop)
}
