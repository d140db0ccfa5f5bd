//! How a scenario is run and judged.

use std::{
    fs::{self, File},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    expected::Expected,
    issuer::ROOT,
    journal::Tally,
    scenarios::Scenario,
    testbed::{Cluster, Istiod, wait_for, wait_for_value},
    world::World,
};

/// So many scenarios run at the same time.
pub(crate) const SIDE_BY_SIDE: usize = 1;
/// Longer than a rotation takes on a loaded machine.
const ROTATED: Duration = Duration::from_secs(120);
/// A rotation that holds has held for so many handshakes.
const HELD: u32 = 500;
/// Failures that are printed one by one; the rest is in a file.
const PRINTED: usize = 5;

/// How a rotation ended.
enum End {
    Steady,
    Held(String),
    Denied,
}

/// The head of the table.
pub(crate) fn head() -> String {
    format!("{:40} {:>8} {} and how it ended", "scenario", "seconds", Tally::head())
}

/// Runs a scenario in its own namespace; also returns its line of the table.
pub(crate) fn perform(scenario: &Scenario, cluster: &Cluster, istiod: &Istiod) -> (String, Result<()>) {
    let started = Instant::now();
    let mut line = String::new();
    let result = cluster.with_temp_ns(|ns| {
        let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("istio");
        fs::create_dir_all(&log)?;
        let log = log.join(format!("{}.log", scenario.name));
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        let mut world = World::new(cluster, istiod, ns, scenario.hosts, file)?;
        let set_up = started.elapsed();
        let end = play(scenario, &mut world);
        let finished = world.finish();
        let (tally, failures) = (world.around.journal.tally(), world.around.journal.failures());
        for failure in failures.iter().take(PRINTED) {
            eprintln!("{}: {failure}", scenario.name);
        }
        if failures.len() > PRINTED {
            eprintln!("{}: and {} more in {}", scenario.name, failures.len() - PRINTED, log.display());
        }
        eprintln!("{}: set up in {set_up:.1?}, ended after {:.1?}", scenario.name, started.elapsed());
        let hosts: Vec<_> = tally.hosts.iter().map(|(host, count)| format!("{count} at {host}")).collect();
        let told = match &end {
            Ok(End::Steady) => "Steady".to_owned(),
            Ok(End::Held(why)) => format!("held, then Steady: {why}"),
            Ok(End::Denied) => "denied".to_owned(),
            Err(error) => format!("{error:#}").lines().next().unwrap_or_default().to_owned(),
        };
        line = format!("{tally} {} {told}", hosts.join(", "));
        end?;
        finished?;
        ensure!(failures.is_empty(), "{} handshakes failed: {}", failures.len(), hosts.join(", "));
        match scenario.expected {
            Expected::Denied(_) => Ok(()),
            Expected::Clean | Expected::HoldsUntil { .. } => tally.judge_load(),
        }
    });
    if line.is_empty() {
        line = "not set up".to_owned();
    }
    (format!("{:40} {:8.0} {line}", scenario.name, started.elapsed().as_secs_f64()), result)
}

fn play(scenario: &Scenario, world: &mut World<'_>) -> Result<End> {
    let applied = (scenario.apply)(world);
    if let Expected::Denied(words) = scenario.expected {
        let Err(error) = applied else { bail!("expected a denial, saw the object applied") };
        ensure!(format!("{error:#}").contains(words), "expected a denial that says {words:?}, saw {error:#}");
        return Ok(End::Denied);
    }
    applied?;
    world.start_traffic(scenario.hosts)?;
    world.wait_handshakes(100)?;
    world.step("source rotated");
    world.operator.reissue(&[ROOT])?;
    wait_for("the agent to see it", ROTATED, || Ok(phase(&world.operator.status()?) != "Steady"))?;
    let end = match scenario.expected {
        Expected::HoldsUntil { names, command } => {
            let why = held(world, names)?;
            world.step("an operator acts");
            command(world)?;
            End::Held(why)
        }
        Expected::Clean | Expected::Denied(_) => End::Steady,
    };
    settled(world)?;
    world.wait_handshakes(100)?;
    Ok(end)
}

/// Waits until the rotation holds for an object, and returns the wait's reason.
fn held(world: &World<'_>, names: &str) -> Result<String> {
    let why = wait_for_value(&format!("the rotation to hold for {names}"), ROTATED, || {
        let status = world.operator.status()?;
        world.step(phase(&status));
        Ok(match phase(&status) {
            "Steady" => Some(None),
            _ => reason(&status, names).map(Some),
        })
    })?;
    let Some(why) = why else {
        world.wait_handshakes(HELD)?;
        bail!("expected the rotation to hold for {names}, saw it end");
    };
    world.wait_handshakes(HELD)?;
    let status = world.operator.status()?;
    let still = phase(&status) != "Steady" && reason(&status, names).is_some();
    ensure!(still, "expected the rotation to hold on for {names}, saw {}", summary(&status));
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut named =
        conditions.filter(|condition| condition["message"].as_str().is_some_and(|text| text.contains(names)));
    ensure!(named.next().is_some(), "expected a condition that names {names}, saw {}", summary(&status));
    Ok(why)
}

/// Why a wait holds the rotation for an object.
fn reason(status: &Value, names: &str) -> Option<String> {
    let mut reasons = status["waits"].as_array()?.iter().filter_map(|wait| wait["reason"].as_str());
    reasons.find(|reason| reason.contains(names)).map(str::to_owned)
}

fn phase(status: &Value) -> &str {
    status["phase"].as_str().unwrap_or("no phase")
}

/// Phase, waits and the conditions that are not true, on one line.
fn summary(status: &Value) -> String {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let failing: Vec<_> = conditions.filter(|condition| condition["status"] != "True").map(Value::to_string).collect();
    format!("phase {}, waits {}, conditions {}", phase(status), status["waits"], failing.join(" "))
}

/// Waits for phase Steady with the newest CA alone.
fn settled(world: &World<'_>) -> Result<()> {
    let newest = trustspan::trust::bundle::read(&world.operator.read(ROOT)?["tls.crt"].0).into_certificates();
    let fingerprint = newest.first().context("a CA")?.fingerprint.clone();
    let ended = wait_for("the rotation to end", ROTATED, || {
        let status = world.operator.status()?;
        world.step(phase(&status));
        let bundle: Vec<_> =
            status["bundle"].as_array().into_iter().flatten().map(|ca| ca["fingerprint"].clone()).collect();
        Ok(phase(&status) == "Steady" && bundle == [fingerprint.as_str()])
    });
    ended.with_context(|| world.operator.status().map_or_else(|error| error.to_string(), |status| summary(&status)))
}
