//! A release on a real API server.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use crate::{
    Bed,
    helm::{CHART, DEFAULT, everything, parsed},
    testbed::{
        Cluster, Patience, Registration, SOON, Scope, Server, Source, User, documents, exported, wait_for,
        wait_for_value,
    },
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
    let [schemas] = exported("setup", &["schemas"], ["TRUSTSPAN_BED_SCHEMAS"])?;
    cluster.apply_crds(&documents(&Path::new(&schemas).join("cert-manager"))?)?;
    let defaults = json!({});

    // A GatewaySecret and its CRD cannot both be new.
    let gateway = json!({ "name": "public", "namespace": "mesh", "spec": { "sourceSecretName": "root" } });
    let mut values = defaults.clone();
    values["gateways"] = json!([gateway]);
    values["agent"] = json!({ "replicas": 3 });
    let refused = helm.run(cluster, &with(&["install", DEFAULT.name, CHART]), &values)?;
    ensure!(refused.stderr.contains("no matches for kind \"GatewaySecret\""), "saw {refused:?}");
    ensure!(remaining(bed)?.is_empty(), "an install that fails leaves {:?}", remaining(bed)?);

    // The pods have to be allowed by the Pod Security Standard `restricted`.
    cluster.kubectl(["create", "namespace", DEFAULT.namespace]).ok()?;
    let enforce = "pod-security.kubernetes.io/enforce=restricted";
    cluster.kubectl(["label", "namespace", DEFAULT.namespace, enforce]).ok()?;
    helm.ok(cluster, &with(&["install", DEFAULT.name, CHART]), &defaults)?;
    let is_hook = |object: &Value| object["metadata"]["annotations"]["helm.sh/hook"].is_string();
    for object in helm.objects(cluster, DEFAULT, &defaults)?.into_iter().filter(|object| !is_hook(object)) {
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

    // A new release of the same name takes the CRDs over, here with all components whose kinds the API server has. Nothing runs the Job of certgen,
    // which is a hook.
    let mut values = everything();
    values["servingCertificate"] = json!({ "mode": "certManager" });
    values["metrics"] = json!({ "dashboard": { "enabled": true } });
    values["gateways"] = json!([gateway]);
    let rules = json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"] }]);
    let spec = json!({ "rules": rules, "server": { "endpoint": "https://api.example.com:6443" } });
    values["identities"] = json!([{ "name": "firewall", "namespace": "shop", "spec": spec }]);
    let extra = "{ apiVersion: v1, kind: ConfigMap, metadata: { name: {{ .Release.Name }}-extra } }";
    values["extraObjects"] = json!([extra]);
    for namespace in ["shop", "istio-ingress", "envoy-gateway-system"] {
        cluster.kubectl(["create", "namespace", namespace]).ok()?;
    }
    let mut managed = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "public" } });
    managed["metadata"]["annotations"] = json!({ "trustspan.dev/gateway-secret": "public" });
    cluster.kubectl(["create", "-f", "-"]).ns("mesh").stdin(managed.to_string()).ok()?;
    helm.ok(cluster, &with(&["install", DEFAULT.name, CHART, "--no-hooks"]), &values)?;
    for (kind, namespace, name) in [
        ("gatewaysecret", "mesh", "public"),
        ("clientidentity", "shop", "firewall"),
        ("daemonset", "trustspan-node", "trustspan-mirror"),
        ("configmap", DEFAULT.namespace, "trustspan-extra"),
        ("certificate", DEFAULT.namespace, "trustspan-webhook"),
    ] {
        ensure!(cluster.exists(kind, namespace, name)?, "{kind} {namespace}/{name} is not installed");
    }
    let manifest = helm.ok(cluster, &with(&["get", "manifest", DEFAULT.name]), &Value::Null)?;
    println!("{} objects of all components installed", parsed(&manifest)?.len());

    // The policies protect the managed Secret, and end with the release.
    let delete = |dry_run: &str| cluster.kubectl(["delete", "secret", "public", dry_run]).ns("mesh").run();
    wait_for("the policies to hold", SOON, || Ok(delete("--dry-run=server")?.stderr.contains("kept-by-agent")))?;
    helm.ok(cluster, &with(&["uninstall", DEFAULT.name]), &Value::Null)?;
    wait_for("the policies to end", SOON, || Ok(delete("--dry-run=none")?.success()))
}

/// `helm test`, for which this test is the kubelet: it fails without the chart's webhooks, and succeeds with them.
pub(crate) fn verified(bed: &Bed) -> Result<()> {
    let (cluster, helm) = (&bed.cluster, &bed.helm);
    cluster.with_temp_ns(|ns| {
        let values = json!({ "test": { "namespace": ns } });
        let install = ["install", DEFAULT.name, CHART, "--namespace", DEFAULT.namespace, "--create-namespace"];
        helm.ok(cluster, &install, &values)?;
        let (ok, text) = test(bed)?;
        ensure!(!ok && text.contains("failed calling webhook \"trust.validate.trustspan.dev\""), "{text}");
        for kind in CONFIGURATIONS {
            cluster.kubectl(["delete", kind, DEFAULT.name]).ok()?;
        }
        // The API server forgets them some time later.
        wait_for("a test without webhooks", SOON, || {
            Ok(test(bed)?.1.contains("no webhook judges Secrets in namespace"))
        })?;

        let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let mut webhooks = helm.objects(cluster, DEFAULT, &values)?;
        webhooks.retain(|object| CONFIGURATIONS.iter().any(|kind| object["kind"] == *kind));
        let webhooks: String = webhooks.iter().map(|object| format!("---\n{object}\n")).collect();
        let scope = Scope::Namespaces(vec![ns.to_owned()]);
        let registration = Registration::of(&webhooks, cluster, &server, &scope, Patience::Longest)?;
        let (ok, text) = test(bed)?;
        ensure!(ok && text.matches("ok: ").count() == 5, "{text}");
        ensure!(cluster.list("secrets", ns, "")?.is_empty(), "a dry run has stored a Secret");
        ensure!(!cluster.exists("role", ns, "trustspan-verify-install")?, "the permission is still there");
        registration.unregister()?;
        helm.ok(cluster, &["uninstall", DEFAULT.name, "--namespace", DEFAULT.namespace], &Value::Null).map(drop)
    })
}

const CONFIGURATIONS: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];

/// Runs `helm test`, and its Pod's program with the permissions of the Pod. Whether Helm says that the test has succeeded, and what the program
/// printed.
fn test(bed: &Bed) -> Result<(bool, String)> {
    let (cluster, pod) = (&bed.cluster, "trustspan-verify-install");
    let args = ["test", DEFAULT.name, "--namespace", DEFAULT.namespace, "--timeout=60s"];
    thread::scope(|scope| {
        let helm = scope.spawn(|| bed.helm.run(cluster, &args, &Value::Null));
        // An earlier Pod is deleted first.
        let stored = wait_for_value("the Pod of the test", SOON, || {
            let pods = cluster.list("pods", DEFAULT.namespace, LABEL)?;
            let is_new = |one: &Value| one["metadata"]["name"] == pod && one["status"]["phase"] == "Pending";
            Ok(pods.into_iter().find(|one| is_new(one) && one["metadata"]["deletionTimestamp"].is_null()))
        })?;
        let account = stored["spec"]["serviceAccountName"].as_str().context("no ServiceAccount")?;
        let args: Vec<String> = serde_json::from_value(stored["spec"]["containers"][0]["args"].clone())?;
        let mut program = Command::new(env!("CARGO_BIN_EXE_trustspan"));
        let ran = program.args(args).env("KUBECONFIG", kubeconfig_of(cluster, account)?).output()?;
        let phase = if ran.status.success() { "Succeeded" } else { "Failed" };
        let status = json!({ "status": { "phase": phase } }).to_string();
        let patch = ["patch", "pod", pod, "--subresource=status", "--type=merge", "--patch", &status];
        cluster.kubectl(patch).ns(DEFAULT.namespace).ok()?;
        let helm = helm.join().map_err(|_| anyhow!("helm test"))??;
        ensure!(helm.success() == ran.status.success(), "the Pod has {phase}, and helm test says {helm:?}");
        Ok((helm.success(), String::from_utf8([ran.stdout, ran.stderr].concat())?))
    })
}

/// A kubeconfig with a token of a ServiceAccount of the release.
fn kubeconfig_of(cluster: &Cluster, account: &str) -> Result<PathBuf> {
    let token = cluster.kubectl(["create", "token", account]).ns(DEFAULT.namespace).ok()?;
    let file = cluster.temp_dir("account")?.join("kubeconfig");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(cluster.kubeconfig(User::Admin))?)?;
    config["users"][0]["user"] = json!({ "token": token.trim() });
    fs::write(&file, config.to_string())?;
    Ok(file)
}
