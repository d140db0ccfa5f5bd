//! TrustConsumers on the real API server with its Deployment controller, and an agent with exactly the rights that
//! `trustspan rbac` prints. There is no node: the test acts as the kubelet and reports that pods are ready.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::stage::{deployment, trustspan};
use crate::testbed::{Agents, Authority, Cluster, SOON, Seed, User, wait_for};

cases![
    trust_consumer_restarts_once_for_each_change,
    trust_consumer_restarts_once_for_each_change_while_agents_are_killed,
];

/// Changes of content in the test that kills agents; `TRUSTSPAN_CONSUMER_CHANGES` sets another number.
const CHANGES: usize = 4;

pub(crate) fn consumer(loads: &[Value]) -> Value {
    json!({
        "apiVersion": "trustspan.dev/v1alpha1", "kind": "TrustConsumer", "metadata": { "name": "limits" },
        "spec": { "workloads": [{ "kind": "Deployment", "name": "app" }], "loads": loads },
    })
}

/// The number of rollouts of Deployment `app`, the first one included.
fn rollouts(cluster: &Cluster, ns: &str) -> Result<usize> {
    let stored = cluster.get("deployment", ns, "app")?;
    let revision = stored["metadata"]["annotations"]["deployment.kubernetes.io/revision"].as_str();
    Ok(revision.context("no revision")?.parse()?)
}

pub(crate) fn wait_reason(cluster: &Cluster, ns: &str, type_: &str, reason: &str) -> Result<()> {
    wait_for(&format!("condition {type_} to say {reason}"), SOON, || {
        let stored = cluster.get("trustconsumer", ns, "limits")?;
        let said = stored["status"]["conditions"].as_array().into_iter().flatten().find(|one| one["type"] == type_);
        let said = said.context("no such condition")?;
        ensure!(said["reason"] == reason, "saw {said}");
        Ok(true)
    })
}

fn write(cluster: &Cluster, ns: &str, kind: &str, cas: &[&Authority]) -> Result<()> {
    let text: String = cas.iter().map(|ca| ca.pem()).collect();
    let field = if kind == "Secret" { "stringData" } else { "data" };
    let object = json!({
        "apiVersion": "v1", "kind": kind, "metadata": { "name": "ca" }, field: { "ca.crt": text },
    });
    cluster.apply(ns, &object.to_string()).map(drop)
}

fn trust_consumer_restarts_once_for_each_change(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let agents = Agents::new(cluster, ns)?;
        let cas = [Authority::new("ca 1")?, Authority::new("ca 2")?, Authority::new("ca 3")?];
        let replica_sets = || -> Result<usize> { Ok(cluster.list("replicasets", ns, "app=app")?.len()) };
        let expect_rollouts = |count: usize, after: &str| -> Result<()> {
            wait_reason(cluster, ns, "Loaded", "Loaded").with_context(|| after.to_owned())?;
            let seen = replica_sets()?;
            ensure!(seen == count, "{after}: expected {count} ReplicaSets, saw {seen}");
            Ok(())
        };
        write(cluster, ns, "Secret", &[&cas[0]])?;
        write(cluster, ns, "ConfigMap", &[&cas[0]])?;
        cluster.apply(ns, &deployment("app", "ca", &[]).to_string())?;
        cluster.come_up(ns, "app")?;
        let loads: Vec<Value> = ["Secret", "ConfigMap"]
            .iter()
            .map(|kind| json!({ "kind": kind, "name": "ca", "keys": ["ca.crt"] }))
            .collect();
        cluster.apply(ns, &consumer(&loads).to_string())?;
        let agent = agents.start("a")?;
        wait_reason(cluster, ns, "ContentValid", "Forbidden")?;
        agents.grant()?;
        expect_rollouts(1, "on creation")?;

        write(cluster, ns, "Secret", &[&cas[1], &cas[0]])?;
        wait_reason(cluster, ns, "Loaded", "Rolling")?;
        // The agent is killed during the rollout.
        drop(agent);
        cluster.come_up(ns, "app")?;
        let agent = agents.start("b")?;
        expect_rollouts(2, "after a change of the Secret")?;
        write(cluster, ns, "Secret", &[&cas[0], &cas[1]])?;
        cluster.kubectl(["label", "secret", "ca", "a=b"]).ns(ns).ok()?;
        write(cluster, ns, "ConfigMap", &[&cas[1]])?;
        wait_reason(cluster, ns, "Loaded", "Rolling")?;
        cluster.come_up(ns, "app")?;
        expect_rollouts(3, "after a reorder, a label, and a change of the ConfigMap")?;

        cluster.kubectl(["rollout", "pause", "deployment/app"]).ns(ns).ok()?;
        for ca in [&cas[2], &cas[0]] {
            write(cluster, ns, "Secret", &[ca])?;
            wait_reason(cluster, ns, "Restartable", "Paused")?;
        }
        ensure!(replica_sets()? == 3, "restarted while it is paused");
        let metrics = Agents::metrics(&agent)?;
        ensure!(metrics.contains("trustspan_trustconsumer_blocked_not_after_timestamp_seconds{"), "{metrics}");
        status_says_who_has_to_act(cluster, ns)?;
        cluster.kubectl(["rollout", "resume", "deployment/app"]).ns(ns).ok()?;
        wait_reason(cluster, ns, "Loaded", "Rolling")?;
        cluster.come_up(ns, "app")?;
        expect_rollouts(4, "after the pause")
    })
}

/// `trustspan status` while the Deployment is paused.
fn status_says_who_has_to_act(cluster: &Cluster, ns: &str) -> Result<()> {
    let kubeconfig = cluster.kubeconfig(User::Admin).display().to_string();
    let args = ["status", "limits", "-n", ns, "--kubeconfig", &kubeconfig];
    let (code, shown) = trustspan(&args, "")?;
    ensure!(code == Some(0), "{shown}");
    for words in [
        format!("{ns}/limits   TrustConsumer: Not all workloads have loaded the content (Paused, for "),
        format!("kubectl rollout resume -n {ns} deployment/app"),
        "Loads:           Secret ca (ca.crt), ConfigMap ca (ca.crt)".to_owned(),
    ] {
        ensure!(shown.contains(&words), "{words}: not in\n{shown}");
    }
    let (_, shown) = trustspan(&[&args[..], &["--output", "json"]].concat(), "")?;
    let shown: Value = serde_json::from_str(&shown)?;
    let kinds: Vec<_> = shown.as_array().into_iter().flatten().map(|one| (&one["kind"], &one["loaded"])).collect();
    ensure!(kinds == [(&json!("TrustConsumer"), &json!("False"))], "{shown}");
    Ok(())
}

fn trust_consumer_restarts_once_for_each_change_while_agents_are_killed(cluster: &Cluster) -> Result<()> {
    let changes = std::env::var("TRUSTSPAN_CONSUMER_CHANGES").map_or(Ok(CHANGES), |number| number.parse())?;
    cluster.with_temp_ns(|ns| {
        let mut seed = Seed::of_run("agents of TrustConsumers");
        let agents = Agents::new(cluster, ns)?;
        write(cluster, ns, "Secret", &[&Authority::new("ca 0")?])?;
        cluster.apply(ns, &deployment("app", "ca", &[]).to_string())?;
        cluster.come_up(ns, "app")?;
        let loads = [json!({ "kind": "Secret", "name": "ca", "keys": ["ca.crt"] })];
        cluster.apply(ns, &consumer(&loads).to_string())?;
        agents.grant()?;
        let mut agent = agents.start("agent-0")?;
        wait_reason(cluster, ns, "Loaded", "Loaded")?;
        let mut kills = 0;
        for change in 1..=changes {
            write(cluster, ns, "Secret", &[&Authority::new(&format!("ca {change}"))?])?;
            for _ in 0..seed.below(3) {
                // The agent is killed at a random instant of the restart.
                std::thread::sleep(std::time::Duration::from_millis(seed.below(1500)));
                drop(agent);
                kills += 1;
                agent = agents.start(&format!("agent-{kills}"))?;
            }
            wait_for("the rollout", SOON, || Ok(rollouts(cluster, ns)? > change))?;
            cluster.come_up(ns, "app")?;
            wait_reason(cluster, ns, "Loaded", "Loaded")?;
            let seen = rollouts(cluster, ns)?;
            ensure!(seen == change + 1, "{seen} rollouts after {change} changes and {kills} kills");
        }
        println!("{changes} changes, {kills} agents killed, {} rollouts", rollouts(cluster, ns)?);
        Ok(())
    })
}
