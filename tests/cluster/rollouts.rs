//! Workloads with outdated Secrets, on the real API server with its Deployment controller: the agent finds, reports
//! and, where the policy allows it, restarts them one by one. There is no node: the tests act as the kubelet and report
//! that pods are ready.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::agent::kept;
use crate::stage::{HASH, deployment, expect, hash, volume};
use crate::testbed::{Authority, Cluster, Kept, SOON, wait_for};

cases![
    workloads_that_the_webhook_missed_are_reported_then_restarted_one_by_one,
    nothing_rolls_while_the_webhook_is_down,
    a_change_of_content_rolls_once_who_loads_it,
];

/// The annotation by which the agent requests a rewrite by the webhook.
const RESYNC_REQUESTED_AT: &str = "trustspan.dev/resync-requested-at";

fn get(kept: &Kept<'_>, name: &str) -> Result<Value> {
    kept.cluster.get("deployment", kept.ns, name)
}

/// The number of rollouts of a Deployment, including the first.
fn rollouts(kept: &Kept<'_>, name: &str) -> Result<usize> {
    Ok(kept.cluster.list("replicasets", kept.ns, &format!("app={name}"))?.len())
}

fn is_rewritten(stored: &Value) -> bool {
    volume(stored) == "managed" && hash(stored).is_some()
}

fn workloads_that_the_webhook_missed_are_reported_then_restarted_one_by_one(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let flags = [("a", "--server-side=false"), ("b", "--server-side=true")];
        let apply = |name: &str, flag: &str| {
            let manifest = deployment(name, "root", &[]).to_string();
            cluster.kubectl(["apply", flag, "-f", "-"]).ns(kept.ns).stdin(manifest).ok()
        };
        for (name, flag) in flags {
            apply(name, flag)?;
            kept.cluster.come_up(kept.ns, name)?;
        }
        let (_server, _registration) = kept.judged()?;
        kept.write_root(&Authority::new("root")?)?;
        kept.agents.grant()?;
        let agent = kept.agents.start("a")?;

        let fix = format!("kubectl rollout restart -n {} deployment/a deployment/b;", kept.ns);
        kept.wait_condition("WorkloadsCurrent", "Behind", &["2 workloads name Secret root", &fix])?;
        kept.wait_event("Warning", "WorkloadsBehind", "deployment/a, deployment/b")?;
        kept.wait_metric(&agent, "gatewaysecret_workloads_behind", "", |count| count == 2.0)?;

        // Writing workloads needs a separate right, which the agent does not have yet.
        kept.set_policy("workloadRestarts", &json!({ "mode": "Enabled" }))?;
        kept.wait_condition("WorkloadsCurrent", "Held", &["deployment/a", "trustspan rbac"])?;
        for (name, _) in flags {
            ensure!(rollouts(kept, name)? == 1 && volume(&get(kept, name)?) == "root", "{name} was changed");
        }
        kept.agents.grant()?;
        wait_for("the first to be rolled", SOON, || Ok(is_rewritten(&get(kept, "a")?)))?;
        kept.wait_condition("WorkloadsCurrent", "Rolling", &["when the rollout of deployment/a is complete"])?;
        expect("the second", volume(&get(kept, "b")?), "root")?;
        kept.cluster.come_up(kept.ns, "a")?;
        wait_for("the second to be rolled", SOON, || Ok(is_rewritten(&get(kept, "b")?)))?;
        kept.cluster.come_up(kept.ns, "b")?;
        kept.wait_condition("WorkloadsCurrent", "Current", &[])?;
        ensure!(kept.events("WorkloadRolled")?.len() == 2, "saw {:?}", kept.events("WorkloadRolled")?);
        kept.wait_metric(&agent, "agent_writes_total", ",what=\"rollout\"", |count| count == 2.0)?;

        // The user's manifests still name the source Secret. Applying them causes neither a conflict nor another
        // rollout.
        for (name, flag) in flags {
            let template = get(kept, name)?["spec"]["template"].clone();
            apply(name, flag)?;
            expect(name, &get(kept, name)?["spec"]["template"], template.clone())?;
            // The manifest does not have the agent's annotation.
            let manifest = deployment(name, "root", &[]).to_string();
            cluster.kubectl(["replace", "-f", "-"]).ns(kept.ns).stdin(manifest).ok()?;
            expect(name, &get(kept, name)?["spec"]["template"], template)?;
            kept.cluster.come_up(kept.ns, name)?;
            ensure!(rollouts(kept, name)? == 2, "{name}: expected one rollout after the first");
        }
        Ok(())
    })
}

fn nothing_rolls_while_the_webhook_is_down(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        cluster.apply(kept.ns, &deployment("app", "root", &[]).to_string())?;
        kept.cluster.come_up(kept.ns, "app")?;
        let before = get(kept, "app")?["spec"].clone();
        kept.write_root(&Authority::new("root")?)?;
        let (mut server, _registration) = kept.judged()?;
        server.kill();
        kept.set_policy("workloadRestarts", &json!({ "mode": "Enabled" }))?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        let why = "a dry run shows that the webhook does not update deployment/app";
        kept.wait_condition("WorkloadsCurrent", "Held", &[why])?;
        let stored = get(kept, "app")?;
        expect("the spec", &stored["spec"], before)?;
        expect("the agent's mark", &stored["metadata"]["annotations"][RESYNC_REQUESTED_AT], Value::Null)?;
        // After the right is restored, the restarts continue.
        server.start_again()?;
        wait_for("the workload to be rolled", SOON, || Ok(is_rewritten(&get(kept, "app")?)))?;
        kept.cluster.come_up(kept.ns, "app")?;
        ensure!(rollouts(kept, "app")? == 2, "expected one rollout after the first");
        Ok(())
    })
}

fn a_change_of_content_rolls_once_who_loads_it(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (old, new) = (Authority::new("root 1")?, Authority::new("root 2")?);
        let (_server, _registration) = kept.judged()?;
        // Undeclared clients block the switch of the serving certificate, and the removal of the old CA.
        kept.set("clients", &json!({ "allDeclared": false }))?;
        kept.set_policy("workloadRestarts", &json!({ "mode": "Enabled" }))?;
        kept.write_root(&old)?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        kept.wait_phase("Steady")?;
        for (name, key) in [("trusts", "ca.crt"), ("serves", "tls.crt")] {
            let manifest = deployment(name, "root", &[key]).to_string();
            wait_for("the webhook to know the managed Secret", SOON, || {
                let shown = cluster.kubectl(["create", "--dry-run=server", "-o", "json", "-f", "-"]).ns(kept.ns);
                Ok(shown.stdin(manifest.clone()).ok()?.contains(HASH))
            })?;
            cluster.apply(kept.ns, &manifest)?;
            kept.cluster.come_up(kept.ns, name)?;
        }
        let before = get(kept, "serves")?["spec"].clone();
        let previous = hash(&get(kept, "trusts")?).map(str::to_owned);
        kept.write_root(&new)?;
        kept.wait_bundle(&[&new, &old])?;
        wait_for("who loads the CAs to be rolled", SOON, || Ok(hash(&get(kept, "trusts")?) != previous.as_deref()))?;
        kept.cluster.come_up(kept.ns, "trusts")?;
        kept.wait_condition("WorkloadsCurrent", "Current", &[])?;
        ensure!(rollouts(kept, "trusts")? == 2, "expected one rollout after the first");
        expect("who loads the leaf", &get(kept, "serves")?["spec"], before)
    })
}
