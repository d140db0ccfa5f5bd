//! The revert to `spec.mode: Copy` during a rotation.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{
    acts::credential_name,
    issuer::SERVER,
    run::{condition, finish, phase, wait_status},
    world::World,
};

const GATEWAY_SECRET: &str = "gatewaysecret/gateway";
/// A client that has been reissued when `Copy` would cut it off.
const CLIENT: &str = "client-00";

/// Gateways whose propagation delay is longer than the test: probes show what they have.
pub(crate) fn probed_only(world: &mut World<'_>) -> Result<()> {
    set_delay(world, "1h")?;
    credential_name(world)
}

/// Before clients are reissued the revert cuts no client off, and is in use soon. After that `kubectl` warns, and names the clients.
pub(crate) fn during_a_rotation(world: &mut World<'_>) -> Result<()> {
    world.step("istiod stopped")?;
    world.stop_istiod()?;
    world.step("CA rotated")?;
    world.rotate_ca()?;
    wait_status(world, "the managed Secret to have both CAs", |status| {
        (phase(status) == "TrustExpanded" && status["bundle"].as_array()?.len() == 2).then_some(())
    })?;
    world.step("mode Copy")?;
    set(world, &json!({ "mode": "Copy" }))?;
    wait_status(world, "the copy", |status| {
        (status["mode"] == "Copy" && status["bundle"].as_array()?.len() == 1).then_some(())
    })?;
    world.continue_istiod()?;
    wait_status(world, "gateways to use the copy", |status| {
        (condition(status, "GatewaysConverged")?["status"] == "True").then_some(())
    })?;

    world.step("mode Bundle")?;
    set_delay(world, "2s")?;
    world.operator.renewal(SERVER, &json!({ "policy": "Disabled" }))?;
    set(world, &json!({ "mode": "Bundle" }))?;
    wait_status(world, "the clients to be reissued", |status| (phase(status) == "ClientsMigrated").then_some(()))?;
    let patch = json!({ "spec": { "mode": "Copy" } }).to_string();
    let dry_run = ["patch", GATEWAY_SECRET, "--dry-run=server", "--type=merge", "--patch", &patch];
    let output = world.cluster.kubectl(dry_run).ns(&world.ns).run()?;
    let is_warned = output.stderr.contains("Warning") && output.stderr.contains(CLIENT);
    ensure!(output.success() && is_warned, "expected a warning that names {CLIENT}, saw {:?}", output.stderr);
    world.operator.renewal(SERVER, &Value::Null)?;
    finish(world)
}

fn set_delay(world: &World<'_>, gateways: &str) -> Result<()> {
    let delays = json!({ "spec": { "propagationDelays": { "gateways": gateways } } });
    world.patch("rotationpolicy/default", &delays)
}

fn set(world: &World<'_>, spec: &Value) -> Result<()> {
    world.patch(GATEWAY_SECRET, &json!({ "spec": spec }))
}
