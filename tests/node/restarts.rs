//! A workload that loads a CA once, whose Secret changes several times.

use anyhow::{Context, Result};
use serde_json::json;

use crate::{
    Bed,
    app::{App, consumer, wait_condition},
    testbed::{Agents, Authority},
};

const CHANGES: usize = 4;

/// Applies Secret `ca` with a new CA, and returns its `ca.crt`.
pub(crate) fn write(bed: &Bed, ns: &str, name: &str) -> Result<String> {
    let text = Authority::new(name)?.pem();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "ca" }, "stringData": { "ca.crt": text },
    });
    bed.cluster.apply(ns, &secret.to_string())?;
    Ok(text)
}

pub(crate) fn once_for_each_change(bed: &Bed) -> Result<()> {
    let cluster = &bed.cluster;
    cluster.with_temp_ns(|ns| {
        let agents = Agents::new(cluster, ns)?;
        let first = write(bed, ns, "ca 0")?;
        let app = App::create(bed, ns, "ca")?;
        cluster.apply(ns, &consumer("ca").to_string())?;
        agents.grant()?;
        let _agent = agents.start("a")?;
        wait_condition(cluster, ns, "Loaded", "Loaded")?;
        app.expect(1, &first).context("on creation")?;
        for change in 1..=CHANGES {
            let content = write(bed, ns, &format!("ca {change}"))?;
            app.wait_rollouts(change + 1)?;
            wait_condition(cluster, ns, "Loaded", "Loaded")?;
            app.expect(change + 1, &content).with_context(|| format!("after change {change}"))?;
        }
        println!("{CHANGES} changes: {} rollouts", app.replica_sets()?.len());
        Ok(())
    })
}
