//! A rotation and a TrustConsumer on the real API server with its Deployment controller. There is no node: the test
//! acts as the kubelet and reports that pods are ready.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::agent::kept;
use crate::stage::deployment;
use crate::testbed::{Authority, Cluster, Kept, SOON, wait_for};
use crate::trust_consumer::{consumer, wait_reason};

cases![rotation_waits_for_trust_consumers];

/// The entry of `status.waits` that names the TrustConsumer.
fn wait_of(kept: &Kept<'_>) -> Result<Option<Value>> {
    let status = kept.status()?;
    let mut waits = status["waits"].as_array().into_iter().flatten();
    let is_of = |wait: &&Value| wait["reason"].as_str().is_some_and(|reason| reason.contains("TrustConsumer"));
    Ok(waits.find(is_of).cloned())
}

fn rotation_waits_for_trust_consumers(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let ns = kept.ns;
        let serving = || -> Result<Value> { Ok(cluster.get("secret", ns, "managed")?["data"]["tls.crt"].clone()) };
        let old = Authority::new("old")?;
        kept.write_root(&old)?;
        kept.set("trustBundleTargets", &json!([{ "kind": "ConfigMap", "name": "trust" }]))?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        kept.wait_bundle(&[&old])?;
        kept.wait_phase("Steady")?;
        cluster.apply(ns, &deployment("app", "trust", &[]).to_string())?;
        cluster.come_up(ns, "app")?;
        let loads = [json!({ "kind": "ConfigMap", "name": "trust", "keys": ["ca.crt"] })];
        cluster.apply(ns, &consumer(&loads).to_string())?;
        kept.agents.grant()?;
        wait_reason(cluster, ns, "Loaded", "Loaded")?;

        cluster.kubectl(["rollout", "pause", "deployment/app"]).ns(ns).ok()?;
        let before = serving()?;
        let new = Authority::new("new")?;
        kept.write_root(&new)?;
        kept.wait_bundle(&[&new, &old])?;
        wait_for("a wait that names the paused Deployment", SOON, || {
            let wait = wait_of(kept)?.context("no wait names a TrustConsumer")?;
            let reason = wait["reason"].as_str().unwrap_or_default();
            ensure!(
                reason.contains(&format!("TrustConsumer {ns}/limits")) && reason.contains("is paused"),
                "saw {wait}"
            );
            ensure!(wait["step"] == "SwitchServingCertificate" && wait["needsAction"] == true, "saw {wait}");
            Ok(true)
        })?;
        cluster.kubectl(["rollout", "resume", "deployment/app"]).ns(ns).ok()?;
        wait_reason(cluster, ns, "Loaded", "Rolling")?;
        wait_for("a wait without a task for anybody", SOON, || {
            Ok(wait_of(kept)?.is_some_and(|wait| wait["needsAction"] != true))
        })?;
        ensure!(serving()? == before, "switched before the rollout was complete");
        cluster.come_up(ns, "app")?;
        wait_for("the new serving certificate", SOON, || Ok(serving()? != before))?;
        kept.wait_phase("Steady")
    })
}
