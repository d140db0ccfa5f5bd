//! The revert to `spec.mode: Copy` during a rotation.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{
    issuer::SERVER,
    run::{phase, renew_clients, wait_end, wait_status},
    world::World,
};

const GATEWAY_SECRET: &str = "gatewaysecret/gateway";
/// A client that has been reissued when `Copy` would cut it off.
const CLIENT: &str = "client-00";

/// Before clients are reissued the revert cuts no client off, and is in use soon. After that `kubectl` warns, and names the clients.
pub(crate) fn during_a_rotation(world: &mut World<'_>) -> Result<()> {
    set(world, &json!({ "paused": true }))?;
    world.step("CA rotated")?;
    world.rotate_ca()?;
    wait_status(world, "gateways to trust both CAs", |status| {
        let bundle = status["bundle"].as_array()?;
        (bundle.len() == 2 && bundle.iter().all(|ca| ca["converged"] == true)).then_some(())
    })?;
    world.step("mode Copy")?;
    set(world, &json!({ "mode": "Copy" }))?;
    wait_status(world, "gateways to use the copy", |status| {
        let is_copied = status["mode"] == "Copy" && status["bundle"].as_array()?.len() == 1;
        let mut conditions = status["conditions"].as_array()?.iter();
        let converged = conditions.find(|condition| condition["type"] == "GatewaysConverged")?;
        (is_copied && converged["status"] == "True").then_some(())
    })?;

    world.step("mode Bundle")?;
    world.operator.renewal(SERVER, &json!({ "policy": "Disabled" }))?;
    set(world, &json!({ "mode": "Bundle", "paused": false }))?;
    wait_status(world, "the clients to be reissued", |status| (phase(status) == "ClientsMigrated").then_some(()))?;
    let patch = json!({ "spec": { "mode": "Copy" } }).to_string();
    let dry_run = ["patch", GATEWAY_SECRET, "--dry-run=server", "--type=merge", "--patch", &patch];
    let output = world.cluster.kubectl(dry_run).ns(&world.ns).run()?;
    let is_warned = output.stderr.contains("Warning") && output.stderr.contains(CLIENT);
    ensure!(output.success() && is_warned, "expected a warning that names {CLIENT}, saw {:?}", output.stderr);
    world.operator.renewal(SERVER, &Value::Null)?;
    wait_end(world)?;
    renew_clients(world)
}

fn set(world: &World<'_>, spec: &Value) -> Result<()> {
    world.patch(GATEWAY_SECRET, &json!({ "spec": spec }))
}
