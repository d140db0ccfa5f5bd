//! A rotation while the Deployment that loads the managed Secret once is paused.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    Bed,
    app::{App, consumer, wait_condition},
    testbed::{Agents, Authority, Kept, Process, SOON, wait_for, wait_for_value},
};

/// The year in which the old CA expires. The new one expires later.
const OLD_EXPIRES: i32 = 2101;

/// The wait of the rotation that names the TrustConsumer.
fn wait_of(kept: &Kept<'_>) -> Result<Value> {
    wait_for_value("a wait that names the TrustConsumer", SOON, || {
        let status = kept.status()?;
        let mut waits = status["waits"].as_array().into_iter().flatten();
        let name = format!("TrustConsumer {}/limits", kept.ns);
        let is_of = |wait: &&Value| wait["reason"].as_str().is_some_and(|reason| reason.contains(&name));
        Ok(waits.find(is_of).cloned())
    })
}

/// When the earliest of the CAs expires that a blocked workload has loaded, by the metric; in seconds since 1970.
fn blocked_not_after(kept: &Kept<'_>, agent: &Process) -> Result<f64> {
    let metric = "trustspan_trustconsumer_blocked_not_after_timestamp_seconds{";
    let namespace = format!("namespace=\"{}\"", kept.ns);
    let metrics = Agents::metrics(agent)?;
    let line = metrics.lines().find(|line| line.starts_with(metric) && line.contains(&namespace));
    let line = line.with_context(|| format!("no {metric} of this namespace in {metrics}"))?;
    println!("{line}");
    Ok(line.rsplit(' ').next().unwrap_or_default().parse()?)
}

pub(crate) fn rotation_waits(bed: &Bed) -> Result<()> {
    let cluster = &bed.cluster;
    cluster.with_temp_ns(|ns| {
        let kept = &Kept::new(cluster, ns, "1s")?;
        let (old, new) = (Authority::until("old", OLD_EXPIRES)?, Authority::until("new", OLD_EXPIRES + 1)?);
        kept.write_root(&old)?;
        kept.write_client("payments", &old)?;
        kept.set("clients", &json!({ "secretNames": ["payments"], "allDeclared": true }))?;
        kept.agents.grant()?;
        let agent = kept.agents.start("a")?;
        kept.wait_bundle(&[&old])?;
        kept.wait_phase("Steady")?;
        let app = App::create(bed, ns, "managed")?;
        cluster.apply(ns, &consumer("managed").to_string())?;
        kept.agents.grant()?;
        wait_condition(cluster, ns, "Loaded", "Loaded")?;
        let bundle = || kept.bundle()?.context("no managed Secret");
        let before = bundle()?;
        app.expect(1, &before)?;

        app.pause()?;
        let (template, sets, pod) = (app.template()?, app.replica_sets()?, app.pod()?);
        kept.write_root(&new)?;
        kept.wait_bundle(&[&new, &old])?;
        let both = bundle()?;
        app.wait_mounted(&both)?;
        let condition = wait_condition(cluster, ns, "Restartable", "Paused")?;
        let message = condition["message"].as_str().unwrap_or_default();
        ensure!(condition["status"] == "False" && message.contains(&format!("{OLD_EXPIRES}-01-01")), "{condition}");
        println!("{message}");
        let expires: Timestamp = format!("{OLD_EXPIRES}-01-01T00:00:00Z").parse()?;
        let seen = blocked_not_after(kept, &agent)?;
        ensure!(seen == expires.as_second() as f64, "expected {}, saw {seen}", expires.as_second());
        let wait = wait_of(kept)?;
        println!("{wait}");
        ensure!(wait["step"] == "ReissueClients" && wait["needsAction"] == true, "{wait}");
        ensure!(wait["reason"].as_str().is_some_and(|reason| reason.contains("is paused")), "{wait}");
        ensure!(app.template()? == template, "the pod template has changed while the Deployment is paused");
        ensure!(app.replica_sets()? == sets, "a rollout began while the Deployment is paused");
        let running = app.pod()?;
        ensure!(running["metadata"]["uid"] == pod["metadata"]["uid"], "another pod runs");
        ensure!(running["status"]["containerStatuses"][0]["restartCount"] == 0, "the container was restarted");
        ensure!(app.loaded()? == before, "the pod has loaded the new content without a restart");

        app.resume()?;
        app.wait_rollouts(2)?;
        wait_condition(cluster, ns, "Loaded", "Loaded")?;
        app.expect(2, &both)?;
        wait_for("the rotation to wait for the client alone", SOON, || {
            let status = kept.status()?;
            let text = status["waits"].to_string();
            ensure!(!text.contains("TrustConsumer") && text.contains("payments"), "saw {text}");
            Ok(true)
        })?;
        // Its owner renews it. The old CA is dropped, which is the next change of what the pod loads.
        kept.write_client_with("payments", &new, &[&new])?;
        kept.wait_bundle(&[&new])?;
        kept.wait_phase("Steady")?;
        app.wait_rollouts(3)?;
        wait_condition(cluster, ns, "Loaded", "Loaded")?;
        app.expect(3, &bundle()?)
    })
}
