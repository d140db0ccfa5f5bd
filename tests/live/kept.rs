//! Rotations by the agent. The tests wait only for their completion.

use std::{thread::sleep, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    issuer::{Data, MANAGED, ROOT, SERVER},
    testbed::{Process, Seed, wait_for},
    world::World,
};

/// Longer than a rotation takes on a loaded machine: clients that load once delay it until their certificate expires.
pub(crate) const ROTATED: Duration = Duration::from_secs(240);
/// The agent is killed within this time after a rotation begins. For clients that reload, the rotation is complete by
/// then.
const KILLED_WITHIN: Duration = Duration::from_secs(14);
/// The leader is paused within this time, twice. During a pause gateways and clients get new Secrets, and the serving
/// certificate is switched.
const PAUSED_WITHIN: Duration = Duration::from_secs(8);
/// The leader stays paused for at most this much longer after another agent has become the leader.
const PAUSED_ON: Duration = Duration::from_secs(2);
/// The log message of an agent that finds another leader.
const LOST: &str = "another process became the leader";
/// Stands for twelve minutes in production. Clients renew when half of their lifetime is left.
const OUTAGE: Duration = Duration::from_secs(8);
/// The number of new CAs that overlap.
const BURST: usize = 5;

/// A rotation without disturbances. The agent requests one reissue of each client; further ones are renewals by time.
pub(crate) fn rotation(world: &mut World<'_>) -> Result<()> {
    begin(world)?;
    let before = world.loads();
    wait_steady(world)?;
    let (loads, clients) = (world.loads() - before, world.certificates.clients().len());
    ensure!(loads as usize > clients, "{loads} new certificates came into use: expected more than {clients}");
    world.notes.push(format!("  {loads} new certificates of {clients} clients came into use in it"));
    Ok(())
}

/// The leader is killed at random instants. A second agent takes over, and a third starts in place of the first.
pub(crate) fn killed(world: &mut World<'_>) -> Result<()> {
    let mut seed = Seed::of_run("kills");
    let standby = world.agents.start("standby")?;
    begin(world)?;
    random_moment(&mut seed, KILLED_WITHIN);
    world.step("leader killed");
    world.agent = Some(standby);
    random_moment(&mut seed, KILLED_WITHIN);
    world.step("leader killed again");
    world.agent = None;
    world.agent = Some(world.agents.start("third")?);
    wait_steady(world)
}

/// The leader is paused until its Lease has expired, and another takes over. The first continues where it stopped, as
/// if it were the leader. Then the same with the new leader.
pub(crate) fn failover(world: &mut World<'_>) -> Result<()> {
    let mut seed = Seed::of_run("failover");
    let mut standby = world.agents.start("standby")?;
    begin(world)?;
    for _ in 0..2 {
        random_moment(&mut seed, PAUSED_WITHIN);
        let led = world.operator.leader()?;
        let first = world.agent.as_mut().context("no agent")?;
        let leader = if led == "standby" { &mut standby } else { first };
        let times = leader_changes(leader);
        leader.signal("STOP")?;
        world.around.journal.step(&format!("{led} paused"));
        wait_for("another to lead", ROTATED, || Ok(world.operator.leader()? != led))?;
        random_moment(&mut seed, PAUSED_ON);
        leader.signal("CONT")?;
        world.around.journal.step(&format!("{led} goes on"));
        wait_for("who was paused to find another leading", ROTATED, || Ok(leader_changes(leader) > times))?;
    }
    wait_steady(world)
}

/// The number of times that an agent has found another leader.
fn leader_changes(agent: &Process) -> usize {
    agent.log().matches(LOST).count()
}

/// New CAs come faster than old ones can be dropped.
pub(crate) fn burst(world: &mut World<'_>) -> Result<()> {
    begin(world)?;
    for _ in 1..BURST {
        world.operator.reissue(&[ROOT])?;
        world.wait_handshakes(100)?;
    }
    wait_steady(world)
}

/// During a rotation the managed Secret is deleted, the API server restarts, and gateways are restarted in each phase.
pub(crate) fn broken(world: &mut World<'_>) -> Result<()> {
    begin(world)?;
    world.step("tampering is refused");
    ensure!(world.operator.delete(MANAGED).is_err(), "the managed Secret was deleted through admission");
    let tampered = Data::from([("ca.crt".to_owned(), world.operator.read(ROOT)?["tls.crt"].clone())]);
    ensure!(world.operator.write(&[(MANAGED, tampered)]).is_err(), "the managed Secret was changed through admission");
    world.step("managed Secret deleted");
    // A user whose writes no webhook judges.
    let past_admission = "--as=system:serviceaccount:kube-system:namespace-controller";
    world.cluster.kubectl(["delete", "secret", MANAGED, past_admission]).ns(&world.ns).ok()?;
    wait_for("the managed Secret to be back", ROTATED, || Ok(world.operator.read(MANAGED).is_ok()))?;
    world.step("API server restarted");
    world.cluster.restart_api_server()?;
    let mut rolled = Vec::new();
    loop {
        let phase = phase(world)?;
        if phase == "Steady" {
            return wait_steady(world);
        }
        if !rolled.contains(&phase) {
            world.roll_gateways()?;
            rolled.push(phase);
        }
        world.wait_handshakes(10)?;
    }
}

/// All webhooks are down from a random instant of the rotation on, for a shorter time than clients have left when they
/// renew. Writes that would be judged are rejected until the webhooks are back; no client is cut off.
pub(crate) fn unjudged(world: &mut World<'_>) -> Result<()> {
    let mut seed = Seed::of_run("outage");
    begin(world)?;
    random_moment(&mut seed, KILLED_WITHIN);
    world.step("webhooks down");
    world.server.kill();
    // The outage has to last this long.
    sleep(OUTAGE);
    world.server.start_again()?;
    wait_steady(world)
}

/// The owners of two Certificates disallow a renewal. The rotation waits for each, names it, and continues when it is
/// allowed.
pub(crate) fn renewal_policies(world: &mut World<'_>) -> Result<()> {
    wait_steady(world)?;
    let never = json!({ "cron": "0 0 29 2 *", "windowDuration": "1m" });
    let blocked = [
        ("client-00", "ReissueClients", json!({ "policy": "Disabled" }), "spec.renewal.policy is Disabled"),
        (
            SERVER,
            "ReissueServingCertificate",
            json!({ "policy": "RenewBefore", "windows": [never] }),
            "spec.renewal.windows allows no renewal before",
        ),
    ];
    for (name, _, renewal, _) in &blocked {
        world.operator.renewal(name, renewal)?;
    }
    let names = blocked.each_ref().map(|(name, ..)| *name);
    let before = world.operator.revisions(&names)?;
    begin(world)?;
    for (at, (name, step, _, why)) in blocked.iter().enumerate() {
        let said = format!("Certificate {name}: {why}");
        wait_for(&format!("status to say {said}"), ROTATED, || {
            let status = world.operator.status()?;
            let waits = status["waits"].as_array().cloned().unwrap_or_default();
            let is_it = |wait: &Value| {
                wait["step"] == *step && wait["reason"].as_str().is_some_and(|reason| reason.starts_with(&said))
            };
            // No wait names another client.
            Ok(waits.iter().any(is_it) && waits.iter().filter(|wait| wait["step"] == *step).count() == 1)
        })
        .with_context(|| waits(world))?;
        world.wait_handshakes(100)?;
        let now = world.operator.revisions(&names)?;
        ensure!(now[at] == before[at], "{name} was re-issued: revision {} after {}", now[at], before[at]);
        world.step(&format!("{name} may be renewed"));
        world.operator.renewal(name, &Value::Null)?;
    }
    wait_steady(world)
}

/// Begins a rotation.
pub(crate) fn begin(world: &World<'_>) -> Result<()> {
    wait_steady(world)?;
    world.step("root rotated");
    world.operator.reissue(&[ROOT])?;
    wait_for("the agent to see it", ROTATED, || Ok(phase(world)? != "Steady"))
}

/// Waits for a random time.
fn random_moment(seed: &mut Seed, within: Duration) {
    let most = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
    sleep(Duration::from_millis(seed.below(most)));
}

/// Waits for phase Steady with only the newest CA, and records the phases for the report of failures.
pub(crate) fn wait_steady(world: &World<'_>) -> Result<()> {
    let newest = trustspan::trust::bundle::read(&world.operator.read(ROOT)?["tls.crt"].0).into_certificates();
    let fingerprint = newest.first().context("a CA")?.fingerprint.clone();
    wait_for("the rotation to end", ROTATED, || {
        let status = world.operator.status()?;
        world.step(status["phase"].as_str().unwrap_or("no phase"));
        let bundle: Vec<_> =
            status["bundle"].as_array().into_iter().flatten().map(|ca| ca["fingerprint"].clone()).collect();
        Ok(status["phase"] == "Steady" && bundle == [fingerprint.as_str()])
    })
    .with_context(|| waits(world))
}

/// The phase in the status.
pub(crate) fn phase(world: &World<'_>) -> Result<String> {
    Ok(world.operator.status()?["phase"].as_str().unwrap_or_default().to_owned())
}

/// The waits of the rotation, for messages.
fn waits(world: &World<'_>) -> String {
    let log = world.agent.as_ref().map(|agent| agent.log_tail(30)).unwrap_or_default();
    match world.operator.status() {
        Ok(status) => format!("phase {}, waits {:#}\n{log}", status["phase"], status["waits"]),
        Err(error) => format!("no status: {error:#}"),
    }
}
