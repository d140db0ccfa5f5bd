//! Changes of the managed Secret by a user whose writes no webhook judges: the agent reverts them. Clients may fail
//! until then; their number and the time are reported.

use std::time::Instant;

use anyhow::{Context, Result};
use k8s_openapi::ByteString;

use crate::{
    gateways::HOST,
    issuer::{Data, MANAGED},
    kept::{ROTATED, wait_steady},
    testbed::{Authority, SOON, wait_for},
    world::World,
};

/// The name of every step during which failures are expected.
pub(crate) const STEP: &str = "tampering";
/// A block that no gateway can read.
const BROKEN: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

/// Without admission, the managed Secret is changed and deleted; then it is changed while no agent runs.
pub(crate) fn repaired(world: &mut World<'_>) -> Result<()> {
    wait_steady(world)?;
    world.admission_off()?;
    let stranger = Authority::new("a stranger")?;
    let (leaf, key) = stranger.issue(&[HOST])?;
    let trust = |pem: String| data([("ca.crt", pem)]);
    tamper(world, "a stranger's CA", Some(&trust(stranger.pem())))?;
    tamper(world, "a stranger's leaf", Some(&data([("tls.crt", leaf), ("tls.key", key)])))?;
    tamper(world, "a broken block", Some(&trust(BROKEN.to_owned())))?;
    tamper(world, "deleted", None)?;
    while_no_agent_runs(world, &trust(stranger.pem()))?;
    world.admission_on()?;
    wait_steady(world)
}

/// Writes this to the managed Secret, or deletes it, and waits until the agent has reverted that.
fn tamper(world: &mut World<'_>, what: &str, change: Option<&Data>) -> Result<()> {
    let before = world.operator.read(MANAGED)?;
    world.step(&format!("{STEP}: {what}"));
    let started = Instant::now();
    match change {
        Some(change) => world.operator.write(&[(MANAGED, change.clone())])?,
        None => world.operator.delete(MANAGED)?,
    }
    wait_repaired(world, what, &before, started, started)
}

/// The worst case: gateways load the changed Secret, and refuse all clients until an agent runs.
fn while_no_agent_runs(world: &mut World<'_>, change: &Data) -> Result<()> {
    let before = world.operator.read(MANAGED)?;
    world.agent = None;
    world.step(&format!("{STEP}: no agent runs"));
    let tampered = Instant::now();
    world.operator.write(&[(MANAGED, change.clone())])?;
    world.wait_followed()?;
    let failed = || world.around.journal.failed_since(tampered).0 > 0;
    wait_for("gateways to refuse clients", SOON, || Ok(failed()))?;
    let started = Instant::now();
    world.agent = Some(world.agents.start("second")?);
    wait_repaired(world, "a stranger's CA, no agent at first", &before, tampered, started)
}

/// Waits until the Secret has its previous content and gateways have loaded it. Returns the time since `started`, and
/// the number of failures since then.
fn wait_repaired(world: &mut World<'_>, what: &str, before: &Data, tampered: Instant, started: Instant) -> Result<()> {
    let same = || Ok(world.operator.read(MANAGED)? == *before);
    wait_for(&format!("{what}: the managed Secret to be repaired"), ROTATED, same).with_context(|| what.to_owned())?;
    let repaired = started.elapsed();
    world.wait_followed()?;
    let used = started.elapsed();
    // Handshakes that began with the changed Secret may still be in progress.
    world.wait_handshakes(100)?;
    let failed = match world.around.journal.failed_since(tampered) {
        (0, _) => "no client failed".to_owned(),
        (count, last) => format!("{count} failed, the last {:.2} s after the tampering", last.as_secs_f64()),
    };
    let (repaired, used) = (repaired.as_secs_f64(), used.as_secs_f64());
    world.notes.push(format!(
        "  tampering, admission off: {what}: repaired after {repaired:.2} s, in use after {used:.2} s, {failed}"
    ));
    world.step("repaired");
    Ok(())
}

fn data<const N: usize>(values: [(&str, String); N]) -> Data {
    values.map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes()))).into()
}
