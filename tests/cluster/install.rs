//! What users install: the kustomize base, and the definition of GatewaySecret.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::stage::{
    GATEWAY_LABEL, MANAGED, SOURCE, credential, declare, deployment, expect, gateway_secret as gateway_secret_of,
    on_stage, set_status, sound, trustspan, volume,
};
use crate::testbed::{Cluster, SOON, User, rotation_policy, wait_for};

cases![
    explains_its_fields,
    refuses_a_managed_secret_without_a_name_of_its_own,
    refuses_a_policy_that_its_schema_does_not_allow,
    policies_are_written_by_admins_of_a_namespace_only,
    fills_in_defaults,
    says_the_essential_in_one_line,
    keeps_status_from_editors,
    observe_makes_a_gateway_secret_ready,
    verify_install_fails_without_webhooks_and_succeeds_with_them,
    the_webhook_may_read_no_secret,
    the_overlay_leaves_the_serving_certificate_to_cert_manager,
    alone the_base_applies_and_goes_again,
    preflight_finds_a_missing_role_and_one_that_is_left_over,
    commands_accept_a_context_and_a_credential_plugin,
    alone uninstall_prints_the_commands_that_leave_nothing_behind,
];

/// Lines that `kubectl explain` of a kind may print.
const SCREEN: usize = 90;

fn explains_its_fields(cluster: &Cluster) -> Result<()> {
    for (field, text) in [
        ("gatewaysecrets.spec.sourceSecretName", "The source Secret, if no Certificate writes it"),
        ("gatewaysecrets.spec.mode", "Bundle"),
        ("gatewaysecrets.spec.workloadLabels", "istio: ingressgateway"),
        ("gatewaysecrets.status.hashes", "A hash of each key"),
        ("rotationpolicies.spec.severities", "by rule id (see `trustspan rules`)"),
        ("clusterrotationpolicies.spec.propagationDelays", "Each step waits this long"),
    ] {
        let explained = cluster.kubectl(["explain", field]).ok()?;
        let words = explained.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(words.contains(text), "{field}: saw {explained}");
    }
    // A screen has about 60 lines.
    for kind in ["gatewaysecrets", "rotationpolicies", "clusterrotationpolicies"] {
        let explained = cluster.kubectl(["explain", &format!("{kind}.spec")]).ok()?;
        let (lines, fields) = (explained.lines().count(), explained.matches('\t').count());
        println!("kubectl explain {kind}.spec: {lines} lines, {fields} fields");
        ensure!(lines <= SCREEN, "{kind}: expected at most {SCREEN} lines, saw {lines}:\n{explained}");
    }
    Ok(())
}

fn gateway_secret(name: &str, spec: &Value) -> String {
    json!({ "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": { "name": name }, "spec": spec })
        .to_string()
}

fn with_target(spec: &Value, name: &str) -> Value {
    let mut spec = spec.clone();
    spec["sourceSecretName"] = "root".into();
    spec["trustBundleTargets"] = json!([{ "kind": "Secret", "name": name }]);
    spec
}

fn refuses_a_managed_secret_without_a_name_of_its_own(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        for (spec, text) in [
            (json!({ "sourceSecretName": "gw" }), "needs another name than the source Secret"),
            (json!({ "sourceSecretName": "root", "secretName": "root" }), "needs another name than the source Secret"),
            (
                json!({ "sourceSecretName": "root", "certificateRef": { "name": "gw" } }),
                "set either spec.certificateRef",
            ),
            (json!({ "sourceSecretName": "No Name" }), "spec.sourceSecretName"),
            (json!({ "sourceSecretName": "root", "mode": "Both" }), "Bundle"),
            (json!({ "sourceSecretName": "root", "workloadLabels": {} }), "workloadLabels"),
            (json!({ "secretName": "gw2" }), "set either spec.certificateRef"),
            (with_target(&json!({}), "gw"), "a Secret of spec.trustBundleTargets needs another name"),
            (with_target(&json!({}), "gw-cacert"), "a Secret of spec.trustBundleTargets needs another name"),
            (
                with_target(&json!({ "secretName": "gw2" }), "gw2"),
                "a Secret of spec.trustBundleTargets needs another name",
            ),
            (
                with_target(&json!({ "issuerSecretName": "ca" }), "ca"),
                "a Secret of spec.trustBundleTargets needs another name",
            ),
        ] {
            let apply = cluster.kubectl(["apply", "-f", "-"]).ns(ns).stdin(gateway_secret("gw", &spec));
            let refused = apply.fails()?;
            ensure!(refused.contains(text), "{spec}: expected {text}, saw {refused}");
        }
        Ok(())
    })
}

fn refuses_a_policy_that_its_schema_does_not_allow(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        for (spec, text) in [
            (json!({ "severities": { "expired": "off" } }), "Unsupported value"),
            (json!({ "propagationDelays": { "gateways": "soon" } }), "propagationDelays.gateways"),
            (json!({ "oldestEnvoy": "1.2" }), "oldestEnvoy"),
        ] {
            let policy = rotation_policy(&spec).to_string();
            let refused = cluster.kubectl(["apply", "-f", "-"]).ns(ns).stdin(policy).fails()?;
            ensure!(refused.contains(text), "{spec}: expected {text}, saw {refused}");
        }
        Ok(())
    })
}

fn policies_are_written_by_admins_of_a_namespace_only(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        for role in ["admin", "edit"] {
            let (role, user) = (format!("--clusterrole={role}"), format!("--user={role}"));
            cluster.kubectl(["create", "rolebinding", &role[14..], &role, &user]).ns(ns).ok()?;
        }
        let may = |user: &str, verb: &str, resource: &str| -> Result<bool> {
            let asked = cluster.kubectl(["auth", "can-i", verb, resource, "--as", user]).ns(ns).run()?;
            Ok(asked.stdout.trim() == "yes")
        };
        wait_for("the role of admins to be aggregated", SOON, || may("admin", "create", "rotationpolicies"))?;
        for (user, verb, resource, expected) in [
            ("admin", "create", "clusterrotationpolicies", false),
            ("edit", "create", "rotationpolicies", false),
            ("edit", "get", "rotationpolicies", true),
            ("edit", "create", "gatewaysecrets", true),
        ] {
            ensure!(may(user, verb, resource)? == expected, "{user}, {verb} {resource}: expected {expected}");
        }
        Ok(())
    })
}

fn fills_in_defaults(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        cluster.apply(ns, &gateway_secret("gw", &json!({ "sourceSecretName": "root" })))?;
        expect("spec.mode", &cluster.get("gws", ns, "gw")?["spec"]["mode"], "Bundle")
    })
}

fn says_the_essential_in_one_line(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        declare(cluster, ns)?;
        let line = cluster.kubectl(["get", "gatewaysecrets", "--no-headers"]).ns(ns).ok()?;
        for word in [MANAGED, SOURCE, "Bundle", "Steady", "True"] {
            ensure!(line.split_whitespace().any(|seen| seen == word), "expected {word}, saw {line}");
        }
        Ok(())
    })
}

fn keeps_status_from_editors(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let apply = cluster.kubectl(["apply", "-f", "-"]).ns(ns).user(User::Dev);
        apply.stdin(gateway_secret("gw", &json!({ "sourceSecretName": "root" }))).ok()?;
        let status = r#"{"status":{"phase":"Steady"}}"#;
        let patch = cluster.kubectl(["patch", "gws", "gw", "--subresource=status", "--type=merge", "--patch", status]);
        let refused = patch.ns(ns).user(User::Dev).fails()?;
        ensure!(refused.contains("forbidden") || refused.contains("Forbidden"), "saw {refused}");
        Ok(())
    })
}

/// The procedure for a cluster without an agent (docs/getting-started.md): observe the cluster, write the result to the
/// status, and Gateways are rewritten.
fn observe_makes_a_gateway_secret_ready(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let ns = &stage.ns;
        set_status(cluster, ns, &json!(null))?;
        let mut proxy = deployment("proxy", "unrelated", &[]);
        proxy["spec"]["template"]["metadata"]["labels"][GATEWAY_LABEL] = json!(ns);
        stage.apply(&proxy)?;
        stage.apply(&sound(MANAGED, true)?.1)?;

        let kinds = "gatewaysecrets,secrets,gateways.networking.istio.io,deployments";
        let stored = cluster.kubectl(["get", kinds, "-o", "yaml"]).ns(ns).ok()?;
        let (code, observed) = trustspan(&["observe", "-f", "-"], &stored)?;
        ensure!(code == Some(0), "observe ended with {code:?}");
        let apply = ["apply", "--server-side", "--force-conflicts", "--subresource=status", "-f", "-"];
        cluster.kubectl(apply).ns(ns).stdin(observed).ok()?;

        let status = &stage.get("gatewaysecret", MANAGED)?["status"];
        expect("Ready", &status["conditions"][0]["status"], "True")?;
        expect("workloadNamespaces", &status["workloadNamespaces"], json!([ns]))?;
        let gateway = stage.istio("shop", SOURCE).to_string();
        wait_for("the webhook to hear of it", SOON, || {
            let create = stage.kubectl(["create", "--dry-run=server", "-o", "json", "-f", "-"]);
            let shown: Value = serde_json::from_str(&create.stdin(gateway.clone()).ok()?)?;
            Ok(credential(&shown) == MANAGED)
        })
    })
}

fn verify_install_fails_without_webhooks_and_succeeds_with_them(cluster: &Cluster) -> Result<()> {
    let kubeconfig = cluster.kubeconfig(User::Admin).display().to_string();
    let verify = |ns: &str| trustspan(&["verify-install", "--kubeconfig", &kubeconfig, "--namespace", ns], "");
    on_stage(cluster, |stage| {
        let (code, text) = verify(&stage.ns)?;
        ensure!(code == Some(0) && text.matches("ok: ").count() == 5, "{code:?}: {text}");
        cluster.with_temp_ns(|ns| {
            let (code, text) = verify(ns)?;
            ensure!(code == Some(1) && text.matches("ok: ").count() == 4, "{code:?}: {text}");
            ensure!(text.contains(&format!("no webhook judges Secrets in namespace {ns}")), "{text}");
            ensure!(cluster.list("secrets", ns, "")?.is_empty(), "a dry run has stored a Secret");
            Ok(())
        })
    })
}

fn preflight_finds_a_missing_role_and_one_that_is_left_over(cluster: &Cluster) -> Result<()> {
    let kubeconfig = cluster.kubeconfig(User::Admin).display().to_string();
    cluster.with_temp_ns(|ns| {
        declare(cluster, ns)?;
        // Other tests have objects in the same cluster.
        let lines = || -> Result<Vec<String>> {
            let (code, text) = trustspan(&["preflight", "--kubeconfig", &kubeconfig], "")?;
            ensure!(code.is_some_and(|code| code < 2) && text.contains("ok: Kubernetes 1."), "{code:?}: {text}");
            ensure!(text.contains("ok: you may create all objects of an installation"), "{text}");
            Ok(text.lines().filter(|line| line.contains(ns)).map(str::to_owned).collect())
        };
        let missing = lines()?;
        let role = format!("RoleBinding {ns}/trustspan-agent-{MANAGED} is missing");
        ensure!(missing.len() == 1 && missing[0].starts_with("failed: ") && missing[0].contains(&role), "{missing:?}");

        let mut declared = gateway_secret_of(ns);
        declared["metadata"]["namespace"] = ns.into();
        cluster.apply(ns, &trustspan(&["rbac"], &declared.to_string())?.1)?;
        ensure!(lines()?.is_empty(), "{:?}", lines()?);

        cluster.kubectl(["delete", "gatewaysecret", MANAGED]).ns(ns).ok()?;
        let left_over = lines()?;
        ensure!(left_over.len() == 1 && left_over[0].starts_with("warning: "), "{left_over:?}");
        let (_, command) = left_over[0].rsplit_once(": ").context("a command")?;
        cluster.run_command(command)?;
        ensure!(lines()?.is_empty(), "{:?}", lines()?);
        Ok(())
    })
}

/// A kubeconfig as providers write it: several contexts, and a program that prints the credentials (ExecCredential).
fn commands_accept_a_context_and_a_credential_plugin(cluster: &Cluster) -> Result<()> {
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(cluster.kubeconfig(User::Admin))?)?;
    let token = config["users"][0]["user"]["token"].take();
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": { "token": token },
    });
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "printf",
        "args": ["%s", credential.to_string()],
    });
    config["users"] = json!([{ "name": "plugin", "user": { "exec": exec } }]);
    config["contexts"] = json!([{ "name": "by-plugin", "context": { "cluster": "bed", "user": "plugin" } }]);
    config["current-context"] = "".into();
    let file = cluster.temp_dir("kubeconfig")?.join("kubeconfig");
    std::fs::write(&file, config.to_string())?;
    let file = file.display().to_string();
    let status =
        |context: &[&str]| trustspan(&[&["status", "-A", "-o", "json", "--kubeconfig", &file], context].concat(), "");
    let (code, text) = status(&["--context", "by-plugin"])?;
    ensure!(
        code == Some(0) && serde_json::Deserializer::from_str(&text).into_iter::<Value>().all(|one| one.is_ok()),
        "{code:?}: {text}"
    );
    ensure!(
        status(&[])?.0 == Some(2) && status(&["--context", "other"])?.0 == Some(2),
        "connected without the context"
    );
    Ok(())
}

fn uninstall_prints_the_commands_that_leave_nothing_behind(cluster: &Cluster) -> Result<()> {
    let kubeconfig = cluster.kubeconfig(User::Admin).display().to_string();
    on_stage(cluster, |stage| {
        let uninstall = || trustspan(&["uninstall", "--dry-run", "-n", &stage.ns, "--kubeconfig", &kubeconfig], "");
        stage.apply(&stage.istio("shop", SOURCE))?;
        stage.apply(&deployment("app", SOURCE, &[]))?;
        stage.apply(&stage.istio("by-hand", MANAGED))?;
        expect("rewritten", credential(&stage.get("gateway.networking.istio.io", "shop")?), MANAGED)?;

        let (code, script) = uninstall()?;
        ensure!(code == Some(1), "{code:?}: {script}");
        ensure!(script.contains(&format!("- Gateway {}/by-hand: ", stage.ns)), "{script}");
        let commands: Vec<_> = script.lines().filter(|line| !line.starts_with('#')).collect();
        // Two kinds of webhook configurations, and two objects.
        ensure!(commands.len() == 4, "{script}");
        commands.into_iter().try_for_each(|command| cluster.run_command(command))?;
        expect("undone", credential(&stage.get("gateway.networking.istio.io", "shop")?), SOURCE)?;
        expect("undone", volume(&stage.get("deployment", "app")?), SOURCE)?;

        stage.kubectl(["delete", "gateway.networking.istio.io", "by-hand"]).ok()?;
        let (code, script) = uninstall()?;
        ensure!(code == Some(0) && script.lines().all(|line| line.starts_with('#')), "{code:?}: {script}");
        Ok(())
    })
}

fn the_webhook_may_read_no_secret(cluster: &Cluster) -> Result<()> {
    for (verb, resource, may) in [
        ("list", "gatewaysecrets.trustspan.dev", true),
        ("get", "secrets", false),
        ("list", "secrets", false),
        ("watch", "configmaps", false),
        ("patch", "gatewaysecrets.trustspan.dev", false),
    ] {
        let output = cluster.kubectl(["auth", "can-i", verb, resource, "-A"]).user(User::Webhook).run()?;
        ensure!(output.stdout.trim() == if may { "yes" } else { "no" }, "{verb} {resource}: saw {output:?}");
    }
    Ok(())
}

/// A directory of `manifests`.
fn manifests(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests").join(name).display().to_string()
}

fn the_overlay_leaves_the_serving_certificate_to_cert_manager(cluster: &Cluster) -> Result<()> {
    const FLAG: &str = "--serving-certificate=";
    const ROLE: &str = "name: trustspan-agent-serving-certificate";
    const INJECTED: &str = "cert-manager.io/inject-ca-from: trustspan-system/trustspan-webhook";
    for (dir, own, injected) in
        [("base", true, 0), ("ca-bundles", false, 0), ("cert-manager", false, 2), ("cert-manager/ca-bundles", false, 1)]
    {
        let built = cluster.kubectl(["kustomize", &manifests(dir)]).ok()?;
        ensure!(
            built.contains(FLAG) == own && built.contains(ROLE) == own,
            "{dir}: expected the flag and Roles: {own}"
        );
        ensure!(built.matches(INJECTED).count() == injected, "{dir}: expected {injected} injected configurations");
    }
    Ok(())
}

fn the_base_applies_and_goes_again(cluster: &Cluster) -> Result<()> {
    let base = manifests("base");
    // Applied twice, since an upgrade is another apply.
    for _ in 0..2 {
        cluster.kubectl(["apply", "--server-side", "--force-conflicts", "-k", &base]).ok()?;
    }
    the_first_install_waits_for_no_webhook(cluster)?;
    for webhooks in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        ensure!(cluster.exists(webhooks, "", "trustspan")?, "no {webhooks}");
        // Only the webhook configurations are deleted: the other tests need the rest of manifests/base.
        cluster.kubectl(["delete", webhooks, "trustspan"]).ok()?;
    }
    cluster.kubectl(["delete", "deployment", "trustspan-webhook"]).ns("trustspan-system").ok()?;
    // No server runs behind them: other tests must start only after the API server has stopped calling them.
    let managed = sound(MANAGED, true)?.1.to_string();
    wait_for("the API server to forget the webhooks", SOON, || {
        let create = cluster.kubectl(["create", "--dry-run=server", "-f", "-"]);
        Ok(create.stdin(managed.clone()).run()?.success())
    })
}

/// The webhooks are registered, two of them with failurePolicy Fail, and nothing serves. The agent of the base makes the serving certificate, with the
/// rights of the base.
fn the_first_install_waits_for_no_webhook(cluster: &Cluster) -> Result<()> {
    let (ns, secret) = ("trustspan-system", "trustspan-webhook-tls");
    let deployed = cluster.get("deployment", ns, "trustspan-agent")?;
    let args = deployed["spec"]["template"]["spec"]["containers"][0]["args"].as_array().cloned().unwrap_or_default();
    let args = args.iter().filter_map(|arg| arg.as_str()).filter(|arg| !arg.starts_with("--metrics-port"));
    let kubeconfig = cluster.kubeconfig(User::Agent).display().to_string();
    let more = ["--kubeconfig", &kubeconfig, "--bind-address=127.0.0.1", "--metrics-port=0"];
    let program = Path::new(env!("CARGO_BIN_EXE_trustspan"));
    let agent = cluster.spawn("agent-of-the-base", program, args.chain(more), &[])?;
    let is_complete = || -> Result<bool> {
        let bundle = cluster.get("secret", ns, secret)?["data"]["ca.crt"].clone();
        for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
            let configuration = cluster.get(kind, "", "trustspan")?;
            let mut webhooks = configuration["webhooks"].as_array().into_iter().flatten();
            if bundle.is_null() || !webhooks.all(|webhook| webhook["clientConfig"]["caBundle"] == bundle) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    wait_for("the serving certificate", SOON, is_complete).with_context(|| agent.log_tail(20))?;
    // Another apply of the manifests, which have no caBundle, takes nothing away.
    cluster.kubectl(["apply", "--server-side", "--force-conflicts", "-k", &manifests("base")]).ok()?;
    ensure!(is_complete()?, "the caBundle is gone");
    drop(agent);
    cluster.kubectl(["delete", "secret", secret]).ns(ns).ok().map(drop)
}
