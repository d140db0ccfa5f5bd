//! Secrets with real kubectl: a write that would break trust is rejected with its reason, and the stored object stays.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::stage::{MANAGED, SOURCE, Stage, expect, on_stage, set_status, sound, status};
use crate::testbed::{Authority, Cluster, SOON, Server, User, wait_for};

cases![
    refuses_to_take_content_away,
    a_dry_run_stores_nothing,
    sound_neighbours_pass,
    refuses_to_delete_a_managed_secret_in_use,
    a_terminating_namespace_drains,
    a_finalizer_can_be_taken_off_an_unsound_secret,
    secrets_without_a_ca_or_tls_key_are_never_sent,
    taking_the_label_off_is_judged,
    the_agent_is_not_asked,
];

pub(crate) fn with(secret: &Value, key: &str, content: &str) -> Value {
    let mut secret = secret.clone();
    secret["stringData"][key] = json!(content);
    secret
}

/// Server-side apply, as a developer.
pub(crate) fn put(stage: &Stage<'_>, secret: &Value) -> crate::testbed::Kubectl {
    stage.kubectl(["apply", "--server-side", "--force-conflicts", "-f", "-"]).stdin(secret.to_string())
}

fn refuses_to_take_content_away(cluster: &Cluster) -> Result<()> {
    let removed = |keys: &[&str]| {
        let each = keys.iter().map(|key| json!({ "op": "remove", "path": format!("/data/{key}") }));
        each.collect::<Value>().to_string()
    };
    on_stage(cluster, |stage| {
        for (name, labelled, without_ca) in [(MANAGED, true, "empty"), (SOURCE, false, "taken-away")] {
            put(stage, &sound(name, labelled)?.1).ok()?;
            let stored = stage.get("secret", name)?["data"].clone();
            let ways: [(&[&str], &str); 3] = [
                (&["ca.crt"], without_ca),
                (&["tls.crt", "tls.key"], "taken-away"),
                (&["ca.crt", "tls.crt", "tls.key"], "taken-away"),
            ];
            for (keys, rule) in ways {
                let patch = removed(keys);
                let refused = stage.kubectl(["patch", "secret", name, "--type=json", "--patch", &patch]).fails()?;
                ensure!(refused.contains(rule), "{name} without {keys:?}: saw {refused}");
                ensure!(stage.get("secret", name)?["data"] == stored, "{name}: its content has changed");
            }
        }
        Ok(())
    })
}

fn a_dry_run_stores_nothing(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        put(stage, &sound(MANAGED, true)?.1).arg("--dry-run=server").ok()?;
        ensure!(!cluster.exists("secret", &stage.ns, MANAGED)?, "a dry run stored the Secret");
        Ok(())
    })
}

fn sound_neighbours_pass(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let (authority, secret) = sound(MANAGED, true)?;
        let (old, good) = (Authority::new("old root")?.pem(), authority.pem());
        for bundle in [
            format!("{good}{old}"),
            format!("{good}{good}"),
            good.replace('\n', "\r\n"),
            format!("# our root\n{good}# the old one\n{old}"),
        ] {
            put(stage, &with(&secret, "ca.crt", &bundle)).ok()?;
        }
        Ok(())
    })
}

fn refuses_to_delete_a_managed_secret_in_use(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        put(stage, &sound(MANAGED, true)?.1).ok()?;
        let refused = stage.kubectl(["delete", "secret", MANAGED]).fails()?;
        ensure!(refused.contains("managed-in-use") && refused.contains("1 Gateway"), "saw {refused}");
        let refused = stage.kubectl(["delete", "secrets", "--all"]).fails()?;
        ensure!(refused.contains("managed-in-use"), "saw {refused}");
        ensure!(cluster.exists("secret", &stage.ns, MANAGED)?, "it is gone");
        let mut unused = status(&stage.ns, &[]);
        unused["gateways"] = json!([]);
        set_status(cluster, &stage.ns, &unused)?;
        wait_for("the webhook to let it go", SOON, || {
            Ok(stage.kubectl(["delete", "secret", MANAGED, "--ignore-not-found"]).run()?.success())
        })
    })
}

fn a_terminating_namespace_drains(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        put(stage, &sound(MANAGED, true)?.1).ok()?;
        stage.apply(&stage.istio("shop", SOURCE))?;
        cluster.kubectl(["delete", "namespace", &stage.ns, "--wait=false"]).ok()?;
        wait_for("the namespace to be gone", SOON, || Ok(!cluster.exists("namespace", "", &stage.ns)?))
    })
}

fn a_finalizer_can_be_taken_off_an_unsound_secret(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let mut unused = status(&stage.ns, &[]);
        unused["gateways"] = json!([]);
        // Written before the webhook was registered, such as a Secret that has expired since.
        let (_, mut secret) = sound("later", true)?;
        secret["metadata"]["finalizers"] = json!(["example.com/hold"]);
        secret["metadata"]["labels"] = json!({});
        let unguarded = |value: &str| {
            cluster
                .kubectl(["label", "namespace", &stage.ns, "--overwrite", &format!("trustspan.dev/guard{value}")])
                .ok()
        };
        unguarded("-")?;
        put(stage, &with(&secret, "ca.crt", "no PEM at all")).ok()?;
        unguarded("=enabled")?;
        stage.kubectl(["delete", "secret", "later", "--wait=false"]).ok()?;
        let label = json!({ "metadata": { "labels": { "trustspan.dev/managed": "true" } } }).to_string();
        stage.kubectl(["patch", "secret", "later", "--patch", &label]).ok()?;
        let free = json!({ "metadata": { "finalizers": null } }).to_string();
        stage.kubectl(["patch", "secret", "later", "--patch", &free]).ok()?;
        wait_for("the Secret to be gone", SOON, || Ok(!cluster.exists("secret", &stage.ns, "later")?))
    })
}

/// The number of reviews of Secrets that the server has answered.
pub(crate) fn reviews(server: &Server<'_>) -> Result<u64> {
    let metrics = server.metrics()?;
    let counters = metrics.lines().filter(|line| line.starts_with("trustspan_admission_requests_total{"));
    let secrets = counters.filter(|line| line.contains(r#"kind="Secret""#));
    secrets.map(|line| line.rsplit(' ').next().context("a value")?.parse::<u64>().context("a count")).sum()
}

fn secrets_without_a_ca_or_tls_key_are_never_sent(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let before = reviews(&stage.server)?;
        stage.kubectl(["create", "secret", "generic", "password", "--from-literal=password=x"]).ok()?;
        stage.kubectl(["label", "secret", "password", "team=checkout"]).ok()?;
        stage.kubectl(["delete", "secret", "password"]).ok()?;
        // A ServiceAccount's token has the cluster's CA under ca.crt, but no gateway loads it.
        let token = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": { "name": "token", "annotations": { "kubernetes.io/service-account.name": "default" } },
            "stringData": { "ca.crt": "x", "token": "x" },
        });
        stage.apply(&token)?;
        expect("reviews of Secrets", &json!(reviews(&stage.server)?), before)?;
        // Another Secret is counted, which shows that the counter works.
        put(stage, &sound("stranger", false)?.1).ok()?;
        expect("reviews of Secrets", &json!(reviews(&stage.server)?), before + 1)
    })
}

fn taking_the_label_off_is_judged(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        put(stage, &sound(MANAGED, true)?.1).ok()?;
        let before = reviews(&stage.server)?;
        let output = stage.kubectl(["label", "secret", MANAGED, "trustspan.dev/managed-"]).run()?;
        ensure!(output.success() && output.stderr.contains("managed-unlabelled"), "saw {output:?}");
        ensure!(reviews(&stage.server)? > before, "the change of the label was not sent");
        Ok(())
    })
}

fn the_agent_is_not_asked(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let secret = with(&sound(MANAGED, true)?.1, "ca.crt", "no PEM at all");
        let before = reviews(&stage.server)?;
        let by_agent = ["create", "-f", "-", "--as", User::Agent.name(), "--as-group=system:masters"];
        cluster.kubectl(by_agent).ns(&stage.ns).stdin(secret.to_string()).ok()?;
        expect("reviews of Secrets", &json!(reviews(&stage.server)?), before)
    })
}
