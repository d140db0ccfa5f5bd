//! Runs a scenario and judges its result.

use std::{
    env,
    fs::{self, File},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    expected::Expected,
    jdk,
    journal::AgentMetrics,
    scenarios::Scenario,
    testbed::{Cluster, Istiod, is_control, wait_for, wait_for_value},
    world::World,
};

/// Scenarios that run at the same time.
pub(crate) const SIDE_BY_SIDE: usize = 3;
/// Longer than a rotation takes on a loaded machine.
const ROTATED: Duration = Duration::from_secs(120);
/// Longer than a rotation takes until it is blocked, on a loaded machine.
const ARRIVED: Duration = Duration::from_secs(240);
/// A rotation that has not continued after this many handshakes counts as blocked.
pub(crate) const BLOCKED: u32 = 500;
/// Clients have loaded new certificates after this many handshakes.
pub(crate) const FOLLOWED: u32 = 300;
/// Limit of failures that are printed one by one; a file has all.
const PRINTED: usize = 5;

/// How a rotation ended.
enum End {
    Steady,
    Held(String),
    Denied(String),
}

/// Whether the long scenarios run, too.
pub(crate) fn is_full() -> bool {
    env::var("TRUSTSPAN_ISTIO").is_ok_and(|value| value == "full")
}

/// The head of the table of results.
pub(crate) fn head() -> String {
    format!(
        "{:36} {:>7} {} | by host | RotationReady before | how it ended",
        "scenario",
        "seconds",
        AgentMetrics::head()
    )
}

/// Runs a scenario in a separate namespace. Also returns its line of the table. With a control binary, failures are
/// only printed.
pub(crate) fn perform(scenario: &Scenario, cluster: &Cluster, istiod: &Istiod) -> (String, Result<()>) {
    let started = Instant::now();
    let mut line = "not set up".to_owned();
    let result = cluster.with_temp_ns(|ns| {
        let result = perform_in(ns, scenario, cluster, istiod, &mut line);
        match result {
            Err(error) if is_control() => {
                eprintln!("{}: control: {error:#}", scenario.name);
                Ok(())
            }
            result => result,
        }
    });
    (format!("{:36} {:7.0} {line}", scenario.name, started.elapsed().as_secs_f64()), result)
}

fn perform_in(ns: &str, scenario: &Scenario, cluster: &Cluster, istiod: &Istiod, line: &mut String) -> Result<()> {
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("istio");
    fs::create_dir_all(&log)?;
    let log = log.join(format!("{}.log", scenario.name));
    let file = File::create(&log).with_context(|| log.display().to_string())?;
    let mut world = World::new(cluster, istiod, ns, scenario)?;
    let mut before = String::new();
    let end = play(scenario, &mut world, file, &mut before);
    let finished = world.finish();
    let outcome = match &end {
        Ok(End::Steady) => "Steady".to_owned(),
        Ok(End::Held(why)) => format!("held, then Steady: {why}"),
        Ok(End::Denied(why)) => format!("denied: {why}"),
        Err(error) => format!("{error:#}").lines().next().unwrap_or_default().to_owned(),
    };
    let Ok(journal) = world.journal() else {
        *line = outcome;
        return end.map(drop);
    };
    let (tally, failures) = (journal.tally(), journal.failures());
    for failure in failures.iter().take(PRINTED) {
        eprintln!("{}: {failure}", scenario.name);
    }
    if failures.len() > PRINTED {
        eprintln!("{}: and {} more in {}", scenario.name, failures.len() - PRINTED, log.display());
    }
    let hosts: Vec<_> = tally.hosts.iter().map(|(host, count)| format!("{count} at {host}")).collect();
    let hosts = hosts.join(", ");
    *line = format!("{tally} | {hosts} | {before} | {outcome}");
    end?;
    finished?;
    ensure!(failures.is_empty(), "expected no failed handshake, saw {hosts}; the rotation: {outcome}");
    // The JVM needs more of the machine than the clients of the other scenarios.
    match world.layout.has_few_clients() || jdk::is_wanted() {
        true => Ok(()),
        false => tally.judge_load(),
    }
}

/// `before` gets what condition RotationReady says before the CA changes.
fn play(scenario: &Scenario, world: &mut World<'_>, log: File, before: &mut String) -> Result<End> {
    let applied = (scenario.apply)(world);
    if let Expected::Denied(words) = scenario.expected {
        let Err(error) = applied else { bail!("expected a denial, saw the object applied") };
        ensure!(format!("{error:#}").contains(words), "expected a denial that says {words:?}, saw {error:#}");
        let error = format!("{error:#}");
        return Ok(End::Denied(error.lines().nth(1).unwrap_or_default().to_owned()));
    }
    applied?;
    world.start_traffic(scenario, log)?;
    world.wait_handshakes(100)?;
    if let Expected::Otherwise(rotate) = scenario.expected {
        rotate(world)?;
        return Ok(End::Steady);
    }
    *before = forecast(&world.operator.status()?);
    if scenario.stops_istiod {
        world.step("istiod stopped")?;
        world.stop_istiod()?;
    }
    world.step("CA rotated")?;
    world.rotate_ca()?;
    wait_for("the agent to see it", ROTATED, || Ok(phase(&world.operator.status()?) != "Steady"))?;
    let end = match scenario.expected {
        Expected::HoldsUntil { names, command } => {
            let why = blocked(world, names)?;
            world.step("an operator acts")?;
            command(world)?;
            End::Held(why)
        }
        Expected::Clean | Expected::Otherwise(_) | Expected::Denied(_) => End::Steady,
    };
    finish(world)?;
    Ok(end)
}

/// Waits for the end of the rotation, and renews the clients.
pub(crate) fn finish(world: &World<'_>) -> Result<()> {
    wait_end(world)?;
    renew_clients(world)
}

/// Waits until the rotation is blocked by an object, and returns the reason of the wait.
pub(crate) fn blocked(world: &World<'_>, names: &str) -> Result<String> {
    let why = wait_for_value(&format!("the rotation to hold for {names}"), ARRIVED, || {
        let status = world.observe()?;
        Ok(match phase(&status) {
            "Steady" => Some(None),
            _ => reason(&status, names).map(Some),
        })
    })?;
    let Some(why) = why else {
        renew_clients(world)?;
        bail!("expected the rotation to hold for {names}, saw it end");
    };
    world.wait_handshakes(BLOCKED)?;
    let status = world.operator.status()?;
    let still = phase(&status) != "Steady" && reason(&status, names).is_some();
    ensure!(still, "expected the rotation to hold on for {names}, saw {}", summary(&status));
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut named =
        conditions.filter(|condition| condition["message"].as_str().is_some_and(|text| text.contains(names)));
    ensure!(named.next().is_some(), "expected a condition that names {names}, saw {}", summary(&status));
    Ok(why)
}

/// Renews the clients after the rotation. They trusted the old CA until then, so a CA that was lost with it shows only
/// now.
pub(crate) fn renew_clients(world: &World<'_>) -> Result<()> {
    world.step("clients renewed")?;
    world.renew_clients()?;
    world.wait_handshakes(FOLLOWED)
}

/// The reason of a wait that names an object.
fn reason(status: &Value, names: &str) -> Option<String> {
    let mut reasons = status["waits"].as_array()?.iter().filter_map(|wait| wait["reason"].as_str());
    reasons.find(|reason| reason.contains(names)).map(str::to_owned)
}

/// The reason of a wait for a person that has all of these words.
pub(crate) fn needed_action(status: &Value, words: &[&str]) -> Option<String> {
    let waits = status["waits"].as_array()?.iter().filter(|wait| wait["needsAction"] == true);
    let mut reasons = waits.filter_map(|wait| wait["reason"].as_str());
    reasons.find(|reason| words.iter().all(|word| reason.contains(word))).map(str::to_owned)
}

/// Waits until a status has what is expected, and returns that.
pub(crate) fn wait_status<T>(world: &World<'_>, what: &str, mut found: impl FnMut(&Value) -> Option<T>) -> Result<T> {
    let seen = wait_for_value(what, ARRIVED, || {
        let status = world.observe()?;
        Ok(found(&status))
    });
    seen.with_context(|| world.operator.status().map_or_else(|error| error.to_string(), |status| summary(&status)))
}

/// A condition in a status.
pub(crate) fn condition<'s>(status: &'s Value, type_: &str) -> Option<&'s Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == type_)
}

/// Status, reason and message of condition RotationReady, on one line.
fn forecast(status: &Value) -> String {
    let ready = condition(status, "RotationReady");
    let field = |name: &str| ready.and_then(|ready| ready[name].as_str()).unwrap_or_default();
    format!("{} {}: {}", field("status"), field("reason"), field("message").replace('\n', " "))
}

/// The phase in a status.
pub(crate) fn phase(status: &Value) -> &str {
    status["phase"].as_str().unwrap_or("no phase")
}

/// Phase, waits and the conditions that are not true, on one line.
pub(crate) fn summary(status: &Value) -> String {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let failing: Vec<_> = conditions.filter(|condition| condition["status"] != "True").map(Value::to_string).collect();
    format!("phase {}, waits {}, conditions {}", phase(status), status["waits"], failing.join(" "))
}

/// Waits for phase Steady with the newest CA alone.
pub(crate) fn wait_end(world: &World<'_>) -> Result<()> {
    let ended = wait_for("the rotation to end", ROTATED, || {
        let status = world.observe()?;
        let newest = trustspan::trust::bundle::read(world.newest_ca()?.as_bytes()).into_certificates();
        let fingerprint = newest.first().context("a CA")?.fingerprint.clone();
        let bundle: Vec<_> =
            status["bundle"].as_array().into_iter().flatten().map(|ca| ca["fingerprint"].clone()).collect();
        Ok(phase(&status) == "Steady" && bundle == [fingerprint.as_str()])
    });
    ended.with_context(|| world.operator.status().map_or_else(|error| error.to_string(), |status| summary(&status)))
}
