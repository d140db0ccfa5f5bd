//! Workloads with real kubectl and a real Deployment controller: they are rewritten once, and restarted only when what
//! they load has changed.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::stage::{HASH, MANAGED, SOURCE, declare, deployment, expect, hash, on_stage, status, volume};
use crate::testbed::{Cluster, Patience, Registration, SOON, Scope, Server, Source, User, wait_for};

cases![
    rewrites_every_kind,
    a_second_apply_changes_nothing,
    a_dry_run_shows_the_rewrite_and_stores_nothing,
    what_leaves_the_template_never_rolls,
    replace_without_the_annotation_never_rolls,
    installing_trustspan_never_rolls,
    a_change_that_the_pod_does_not_load_never_rolls,
    a_replica_with_a_stalled_watch_never_rolls,
    a_changed_hash_rolls_exactly_once,
    restart_and_undo_get_the_current_hash,
    warns_of_a_restart_that_leaves_no_ready_pod,
];

fn rewrites_every_kind(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        for kind in ["Deployment", "StatefulSet", "DaemonSet"] {
            let mut workload = deployment("app", SOURCE, &[]);
            workload["kind"] = json!(kind);
            if kind == "DaemonSet" {
                workload["spec"].as_object_mut().map(|spec| spec.remove("replicas"));
            }
            stage.apply(&workload)?;
            let stored = stage.get(kind, "app")?;
            expect(kind, volume(&stored), MANAGED)?;
            ensure!(hash(&stored).is_some_and(|hash| hash.starts_with("8-")), "{kind}: saw {:?}", hash(&stored));
        }
        Ok(())
    })
}

fn a_second_apply_changes_nothing(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        for server_side in ["false", "true"] {
            let name = format!("app-{server_side}");
            let app = deployment(&name, SOURCE, &[]).to_string();
            let flag = format!("--server-side={server_side}");
            stage.kubectl(["apply", &flag, "-f", "-"]).stdin(app.clone()).ok()?;
            // The Deployment controller writes the status; wait until it has finished.
            stage.replica_sets(&name)?;
            let generation = stage.version("deployment", &name)?.1;
            let spec = stage.get("deployment", &name)?["spec"].clone();
            stage.kubectl(["apply", &flag, "-f", "-"]).stdin(app.clone()).ok()?;
            ensure!(stage.version("deployment", &name)?.1 == generation, "the second apply made a generation");
            ensure!(stage.get("deployment", &name)?["spec"] == spec, "the second apply changed the spec");
            stage.kubectl(["diff", &flag, "-f", "-"]).stdin(app).ok()?;
        }
        // The controller writes the status of a StatefulSet without replicas only once.
        let mut quiet = deployment("quiet", SOURCE, &[]);
        quiet["kind"] = json!("StatefulSet");
        quiet["spec"]["replicas"] = json!(0);
        stage.apply(&quiet)?;
        wait_for("the StatefulSet to be observed", SOON, || {
            Ok(stage.get("statefulset", "quiet")?["status"]["observedGeneration"] == 1)
        })?;
        let stored = || -> Result<Value> {
            let text = stage.kubectl(["get", "statefulset", "quiet", "-o", "json", "--show-managed-fields"]).ok()?;
            let mut object: Value = serde_json::from_str(&text)?;
            object["metadata"]["resourceVersion"].take();
            // The API server sorts these entries by the second of the last write (`sortEncodedManagedFields` of apimachinery). The
            // apply stores another order if the controller wrote the status in a later second than that of the creation.
            let fields = object["metadata"]["managedFields"].as_array_mut().context("no managedFields")?;
            fields.iter_mut().for_each(|entry| drop(entry["time"].take()));
            fields.sort_by_key(|entry| entry["manager"].to_string());
            Ok(object)
        };
        let before = stored()?;
        stage.apply(&quiet)?;
        let after = stored()?;
        ensure!(after == before, "the second apply changed {before} to {after}");
        // The order is final now.
        let before = stage.version("statefulset", "quiet")?;
        stage.apply(&quiet)?;
        ensure!(stage.version("statefulset", "quiet")? == before, "the third apply changed {before:?}");
        Ok(())
    })
}

fn a_dry_run_shows_the_rewrite_and_stores_nothing(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let app = deployment("app", SOURCE, &[]).to_string();
        let shown = stage.kubectl(["apply", "--dry-run=server", "-o", "yaml", "-f", "-"]).stdin(app).ok()?;
        ensure!(shown.contains(&format!("secretName: {MANAGED}")) && shown.contains(HASH), "saw {shown}");
        ensure!(!cluster.exists("deployment", &stage.ns, "app")?, "a dry run stored the Deployment");
        Ok(())
    })
}

fn what_leaves_the_template_never_rolls(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        stage.apply(&deployment("app", SOURCE, &[]))?;
        let (template, sets) =
            (stage.get("deployment", "app")?["spec"]["template"].clone(), stage.replica_sets("app")?);
        // The content that the pod loads has changed since, but none of these writes may restart it.
        stage.set_hashes(&[("ca.crt", 7), ("tls.crt", 9)])?;
        stage.kubectl(["scale", "deployment", "app", "--replicas=3"]).ok()?;
        stage.kubectl(["label", "deployment", "app", "team=checkout"]).ok()?;
        stage.kubectl(["annotate", "deployment", "app", "note=x"]).ok()?;
        stage.kubectl(["rollout", "pause", "deployment", "app"]).ok()?;
        stage.kubectl(["rollout", "resume", "deployment", "app"]).ok()?;
        let strategy = r#"{"spec":{"minReadySeconds":5}}"#;
        stage.kubectl(["patch", "deployment", "app", "--patch", strategy]).ok()?;
        stage.apply(&deployment("app", SOURCE, &[]))?;
        ensure!(stage.get("deployment", "app")?["spec"]["template"] == template, "the template has changed");
        ensure!(stage.replica_sets("app")? == sets, "a second ReplicaSet");
        Ok(())
    })
}

fn replace_without_the_annotation_never_rolls(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let app = deployment("app", SOURCE, &[]);
        stage.apply(&app)?;
        let (template, sets) =
            (stage.get("deployment", "app")?["spec"]["template"].clone(), stage.replica_sets("app")?);
        stage.set_hashes(&[("ca.crt", 7), ("tls.crt", 9)])?;
        stage.kubectl(["replace", "-f", "-"]).stdin(app.to_string()).ok()?;
        ensure!(stage.get("deployment", "app")?["spec"]["template"] == template, "the template has changed");
        // A write while the GatewaySecret is not Ready does not restart it either.
        let mut unready = status(&stage.ns, &[("ca.crt", 7), ("tls.crt", 9)]);
        unready["conditions"][0]["status"] = json!("False");
        crate::stage::set_status(cluster, &stage.ns, &unready)?;
        wait_for("the webhook to hear of it", SOON, || {
            let probe = deployment("probe", SOURCE, &[]).to_string();
            let output = stage.kubectl(["create", "--dry-run=server", "-f", "-"]).stdin(probe).run()?;
            Ok(output.stderr.contains("not Ready"))
        })?;
        stage.kubectl(["replace", "-f", "-"]).stdin(app.to_string()).ok()?;
        ensure!(stage.get("deployment", "app")?["spec"]["template"] == template, "the template has changed");
        ensure!(stage.replica_sets("app")? == sets, "a second ReplicaSet");
        Ok(())
    })
}

fn installing_trustspan_never_rolls(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let app = deployment("app", SOURCE, &[]).to_string();
        cluster.apply(ns, &app)?;
        let template = cluster.get("deployment", ns, "app")?["spec"]["template"].clone();
        declare(cluster, ns)?;
        let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let _registration =
            Registration::new(cluster, &server, &Scope::Namespaces(vec![ns.to_owned()]), Patience::Longest)?;
        cluster.apply(ns, &app)?;
        cluster.kubectl(["replace", "-f", "-"]).ns(ns).stdin(app).ok()?;
        cluster.kubectl(["label", "deployment", "app", "team=checkout"]).ns(ns).ok()?;
        ensure!(cluster.get("deployment", ns, "app")?["spec"]["template"] == template, "the template has changed");
        ensure!(cluster.list("replicasets", ns, "app=app")?.len() <= 1, "a second ReplicaSet");
        // The workload is rewritten with its next real change.
        cluster.kubectl(["set", "image", "deployment/app", "app=app:2"]).ns(ns).ok()?;
        expect("stored", volume(&cluster.get("deployment", ns, "app")?), MANAGED)
    })
}

fn a_change_that_the_pod_does_not_load_never_rolls(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let app = deployment("app", SOURCE, &["ca.crt"]);
        stage.apply(&app)?;
        let before = stage.get("deployment", "app")?["spec"]["template"].clone();
        let sets = stage.replica_sets("app")?;
        // The leaf is renewed; the CA stays.
        stage.set_hashes(&[("ca.crt", 3), ("tls.crt", 9)])?;
        stage.kubectl(["delete", "deployment", "app", "--cascade=orphan"]).ok()?;
        stage.apply(&app)?;
        // A recreated object gets the same template, and so adopts the existing ReplicaSet.
        ensure!(stage.get("deployment", "app")?["spec"]["template"] == before, "the template has changed");
        ensure!(stage.replica_sets("app")? == sets, "a second ReplicaSet");
        Ok(())
    })
}

fn a_replica_with_a_stalled_watch_never_rolls(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        // A second webhook replica, whose cache stays at the first status. Both are called for every write, which is
        // stricter than the API server's choice of one.
        let view = cluster.temp_dir("stalled")?;
        let mut object = crate::stage::gateway_secret(&stage.ns);
        object["metadata"]["namespace"] = json!(stage.ns);
        object["status"] = status(&stage.ns, &[("ca.crt", 3), ("tls.crt", 5)]);
        fs::write(view.join("gatewaysecret.json"), object.to_string())?;
        let stalled = Server::start_with(cluster, Source::Manifests(view), &["--drain-delay=0s"])?;
        let scope = Scope::Namespaces(vec![stage.ns.clone()]);
        let _second = Registration::new(cluster, &stalled, &scope, Patience::Longest)?;

        stage.apply(&deployment("app", SOURCE, &[]))?;
        stage.set_hashes(&[("ca.crt", 7), ("tls.crt", 9)])?;
        stage.kubectl(["set", "image", "deployment/app", "app=app:2"]).ok()?;
        let newer = stage.get("deployment", "app")?;
        ensure!(hash(&newer).is_some_and(|hash| hash.starts_with("16-")), "saw {:?}", hash(&newer));
        let sets = stage.replica_sets("app")?;
        stage.kubectl(["scale", "deployment", "app", "--replicas=2"]).ok()?;
        stage.kubectl(["label", "deployment", "app", "team=checkout"]).ok()?;
        let mut manifest = deployment("app", SOURCE, &[]);
        manifest["spec"]["template"]["spec"]["containers"][0]["image"] = json!("app:2");
        stage.kubectl(["replace", "-f", "-"]).stdin(manifest.to_string()).ok()?;
        expect("hash", &json!(hash(&stage.get("deployment", "app")?)), json!(hash(&newer)))?;
        ensure!(stage.replica_sets("app")? == sets, "a rollout: {sets:?}");
        Ok(())
    })
}

fn a_changed_hash_rolls_exactly_once(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        stage.apply(&deployment("app", SOURCE, &[]))?;
        ensure!(stage.replica_sets("app")?.len() == 1, "expected one ReplicaSet");
        stage.set_hashes(&[("ca.crt", 7), ("tls.crt", 9)])?;
        // A dry run shows the hash that the webhook computes now; the agent writes it.
        let create = stage.kubectl(["create", "--dry-run=server", "-o", "json", "-f", "-"]);
        let probe: Value = serde_json::from_str(&create.stdin(deployment("probe", SOURCE, &[]).to_string()).ok()?)?;
        let roll =
            json!({ "spec": { "template": { "metadata": { "annotations": { HASH: hash(&probe) } } } } }).to_string();
        // The write uses the agent's username; its rights are not tested here.
        let by_agent =
            ["patch", "deployment", "app", "--patch", &roll, "--as", User::Agent.name(), "--as-group=system:masters"];
        for _ in 0..2 {
            cluster.kubectl(by_agent).ns(&stage.ns).ok()?;
            expect("hash", &json!(hash(&stage.get("deployment", "app")?)), json!(hash(&probe)))?;
        }
        stage.apply(&deployment("app", SOURCE, &[]))?;
        let sets = stage.replica_sets("app")?;
        ensure!(sets.len() == 2, "expected exactly one rollout, saw ReplicaSets {sets:?}");
        Ok(())
    })
}

fn restart_and_undo_get_the_current_hash(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        stage.apply(&deployment("app", SOURCE, &[]))?;
        stage.replica_sets("app")?;
        stage.set_hashes(&[("ca.crt", 7), ("tls.crt", 9)])?;
        let current = |what: &str| -> Result<()> {
            let stored = stage.get("deployment", "app")?;
            expect(what, volume(&stored), MANAGED)?;
            ensure!(hash(&stored).is_some_and(|hash| hash.starts_with("16-")), "{what}: saw {:?}", hash(&stored));
            Ok(())
        };
        stage.kubectl(["rollout", "restart", "deployment", "app"]).ok()?;
        current("restart")?;
        ensure!(stage.replica_sets("app")?.len() == 2, "a restart rolls once");
        stage.kubectl(["rollout", "undo", "deployment", "app"]).ok()?;
        current("undo")
    })
}

fn warns_of_a_restart_that_leaves_no_ready_pod(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let mut app = deployment("app", "other", &[]);
        app["spec"]["strategy"] = json!({ "type": "Recreate" });
        let warnings = |app: &Value| -> Result<String> {
            let output = stage.kubectl(["apply", "--dry-run=server", "-f", "-"]).stdin(app.to_string()).run()?;
            ensure!(output.success(), "{}", output.stderr);
            Ok(output.stderr)
        };
        ensure!(!warnings(&app)?.contains("no ready pod"), "nothing restarts it");
        app["spec"]["template"]["metadata"]["annotations"] = json!({ "trustspan.dev/loaded-hash": "0" });
        let shown = warnings(&app)?;
        ensure!(shown.contains("a restart leaves no ready pod: its strategy Recreate"), "saw {shown}");
        Ok(())
    })
}
