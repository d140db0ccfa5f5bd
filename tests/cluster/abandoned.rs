//! Deletes a GatewaySecret during a rotation: the deletion is allowed with a warning, and the written objects stay.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::agent::kept;
use crate::stage::{expect, set_status};
use crate::testbed::{Authority, Cluster, Kept, Output, SOON, wait_for};

cases![
    a_deletion_in_mid_rotation_warns_and_loses_nothing,
    a_deletion_in_mid_rotation_passes_while_the_webhook_is_down,
    a_namespace_with_a_rotation_drains,
];

const WARNING: &str = "the rotation stops in phase Converged: no further step";

fn delete(kept: &Kept<'_>, more: &[&str]) -> Result<Output> {
    let args = ["delete", "gatewaysecret", "gateway"];
    let output = kept.cluster.kubectl(args.iter().chain(more).copied()).ns(kept.ns).run()?;
    ensure!(output.success(), "saw {output:?}");
    Ok(output)
}

/// Sets a status as the agent writes it during a rotation, without an agent.
fn stop_in_mid_rotation(kept: &Kept<'_>) -> Result<()> {
    let ca = json!({
        "subject": "CN=old", "fingerprint": "0".repeat(64),
        "notBefore": "2026-01-01T00:00:00Z", "notAfter": "2036-01-01T00:00:00Z",
    });
    set_status(kept.cluster, kept.ns, &json!({ "phase": "Converged", "secretName": "managed", "bundle": [ca] }))
}

fn a_deletion_in_mid_rotation_warns_and_loses_nothing(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (old, new) = (Authority::new("root 1")?, Authority::new("root 2")?);
        let (_server, _registration) = kept.judged()?;
        kept.write_client("storefront", &old)?;
        kept.set("clients", &json!({ "allDeclared": true, "secretNames": ["storefront"] }))?;
        kept.write_root(&old)?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        kept.wait_phase("Steady")?;
        let dry = ["--dry-run=server"];
        ensure!(!delete(kept, &dry)?.stderr.contains("the rotation stops"), "a warning while nothing rotates");

        kept.write_root(&new)?;
        kept.wait_bundle(&[&new, &old])?;
        kept.wait_phase("Converged")?;
        let stored = cluster.get("gatewaysecret", kept.ns, "gateway")?;
        let managed = cluster.get("secret", kept.ns, "managed")?;
        for more in [&dry[..], &[]] {
            ensure!(cluster.exists("gatewaysecret", kept.ns, "gateway")?, "a dry run deleted it");
            let said = delete(kept, more)?.stderr;
            ensure!(said.contains(WARNING) && said.contains("Secret managed"), "{more:?}: saw {said}");
        }
        ensure!(!cluster.exists("gatewaysecret", kept.ns, "gateway")?, "it is still there");

        // The GatewaySecret is created again, and the rotation continues. That it still waits for the client is checked
        // below.
        let spec = &stored["spec"];
        let again = json!({
            "apiVersion": stored["apiVersion"], "kind": "GatewaySecret", "metadata": { "name": "gateway" }, "spec": spec,
        });
        cluster.apply(kept.ns, &again.to_string())?;
        kept.wait_phase("Converged")?;
        expect("the managed Secret", &cluster.get("secret", kept.ns, "managed")?, managed)?;
        kept.write_client_with("storefront", &new, &[&new, &old])?;
        kept.wait_bundle(&[&new])?;
        kept.wait_phase("Steady")
    })
}

fn a_deletion_in_mid_rotation_passes_while_the_webhook_is_down(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        stop_in_mid_rotation(kept)?;
        let (server, _registration) = kept.judged()?;
        ensure!(delete(kept, &["--dry-run=server"])?.stderr.contains(WARNING), "no warning");
        drop(server);
        ensure!(!delete(kept, &[])?.stderr.contains(WARNING), "somebody answers");
        ensure!(!cluster.exists("gatewaysecret", kept.ns, "gateway")?, "it is still there");
        Ok(())
    })
}

fn a_namespace_with_a_rotation_drains(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        stop_in_mid_rotation(kept)?;
        let (_server, _registration) = kept.judged()?;
        cluster.kubectl(["delete", "namespace", kept.ns, "--wait=false"]).ok()?;
        wait_for("the namespace to be gone", SOON, || Ok(!cluster.exists("namespace", "", kept.ns)?))
    })
}
