//! A release on a real API server.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    Bed,
    helm::{CHART, DEFAULT, parsed},
    testbed::{Cluster, Patience, Registration, SOON, Scope, Server, Source, User, shipped, wait_for},
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

    // A GatewaySecret and its CRD cannot both be new.
    let gateway = json!({ "name": "public", "namespace": "mesh", "spec": { "sourceSecretName": "root" } });
    let mut values = base.clone();
    values["gateways"] = json!([gateway]);
    values["agent"] = json!({ "replicas": 3 });
    let refused = helm.run(cluster, &with(&["install", DEFAULT.name, CHART]), &values)?;
    ensure!(refused.stderr.contains("no matches for kind \"GatewaySecret\""), "saw {refused:?}");
    ensure!(remaining(bed)?.is_empty(), "an install that fails leaves {:?}", remaining(bed)?);

    // The pods have to be allowed by the Pod Security Standard `restricted`.
    cluster.kubectl(["create", "namespace", DEFAULT.namespace]).ok()?;
    let enforce = "pod-security.kubernetes.io/enforce=restricted";
    cluster.kubectl(["label", "namespace", DEFAULT.namespace, enforce]).ok()?;
    helm.ok(cluster, &with(&["install", DEFAULT.name, CHART]), &base)?;
    let is_hook = |object: &Value| object["metadata"]["annotations"]["helm.sh/hook"].is_string();
    for object in helm.objects(cluster, DEFAULT, &base)?.into_iter().filter(|object| !is_hook(object)) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (kind, metadata) = (text(&object["kind"]), &object["metadata"]);
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        ensure!(cluster.exists(&kind, &namespace, &name)?, "{kind} {namespace}/{name} is not installed");
    }
    wait_for("two pods of each Deployment", SOON, || Ok(cluster.list("pods", DEFAULT.namespace, LABEL)?.len() == 4))?;

    cluster.kubectl(["create", "namespace", "mesh"]).ok()?;
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

    // In a namespace whose objects are not sent to the webhooks.
    let mut stray = cluster.get("gatewaysecret", "mesh", "public")?;
    stray["metadata"] = json!({ "name": "stray", "namespace": "kube-system" });
    cluster.kubectl(["create", "-f", "-"]).stdin(stray.to_string()).ok()?;
    let notes = helm.ok(cluster, &with(&["upgrade", DEFAULT.name, CHART, "--dry-run=server"]), &values)?;
    let warnings: Vec<_> = notes.lines().filter(|line| line.starts_with("WARNING")).collect();
    ensure!(warnings.len() == 1 && warnings[0].contains("kube-system/stray"), "saw {warnings:?}");

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

/// What the Pod of `helm test` runs, with the rights of its ServiceAccount: without the chart's webhooks it fails, with them it succeeds.
pub(crate) fn verified(bed: &Bed) -> Result<()> {
    let cluster = &bed.cluster;
    cluster.apply_crds(&shipped("crd.yaml")?)?;
    cluster.with_temp_ns(|ns| {
        let objects = bed.helm.objects(cluster, DEFAULT, &json!({ "test": { "namespace": ns } }))?;
        let of = |kinds: &[&str]| {
            let of = objects.iter().filter(|object| kinds.iter().any(|kind| object["kind"] == *kind));
            of.map(|object| format!("---\n{object}\n")).collect::<String>()
        };
        let namespace = cluster.kubectl(["create", "namespace", DEFAULT.namespace]).run()?;
        ensure!(namespace.success() || namespace.stderr.contains("AlreadyExists"), "{namespace:?}");
        let rights = of(&["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]);
        cluster.kubectl(["apply", "-f", "-"]).stdin(rights.clone()).ok()?;
        let pod = objects.iter().find(|object| object["kind"] == "Pod").context("no Pod")?;
        let account = pod["spec"]["serviceAccountName"].as_str().context("no ServiceAccount")?;
        let kubeconfig = kubeconfig_of(cluster, account)?;
        let args: Vec<String> = serde_json::from_value(pod["spec"]["containers"][0]["args"].clone())?;
        let run = || -> Result<(Option<i32>, String)> {
            let run =
                Command::new(env!("CARGO_BIN_EXE_trustspan")).args(&args).env("KUBECONFIG", &kubeconfig).output()?;
            let text = [run.stdout, run.stderr].concat();
            Ok((run.status.code(), String::from_utf8(text)?))
        };

        let (code, text) = run()?;
        ensure!(code == Some(1) && text.contains("no webhook judges Secrets in namespace"), "{code:?}: {text}");
        let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let webhooks = of(&["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"]);
        let scope = Scope::Namespaces(vec![ns.to_owned()]);
        let registration = Registration::of(&webhooks, cluster, &server, &scope, Patience::Longest)?;
        let (code, text) = run()?;
        ensure!(code == Some(0) && text.matches("ok: ").count() == 5, "{code:?}: {text}");
        ensure!(cluster.list("secrets", ns, "")?.is_empty(), "a dry run has stored a Secret");
        registration.unregister()?;
        cluster.kubectl(["delete", "-f", "-"]).stdin(rights).ok().map(drop)
    })
}

/// A kubeconfig with a token of a ServiceAccount of the release.
fn kubeconfig_of(cluster: &Cluster, account: &str) -> Result<std::path::PathBuf> {
    let token = cluster.kubectl(["create", "token", account]).ns(DEFAULT.namespace).ok()?;
    let file = cluster.temp_dir("account")?.join("kubeconfig");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(cluster.kubeconfig(User::Admin))?)?;
    config["users"][0]["user"] = json!({ "token": token.trim() });
    fs::write(&file, config.to_string())?;
    Ok(file)
}
