//! Measures how long the agent takes from a new CA in the source Secret to the managed Secret, and the cost of a
//! cluster with many other objects.
//!
//! `TRUSTSPAN_SCALE=full` makes the long run, and `TRUSTSPAN_SCALE=curves` measures growing numbers of objects; the short run is part of
//! every test run. `TRUSTSPAN_SEED` repeats the random times of a run.

#[path = "../bed/mod.rs"]
mod testbed;

mod crowd;
mod curves;
mod issuer;
mod latency;
mod proxy;
mod usage;

use std::{
    env,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Result, bail};
use libtest_mimic::{Arguments, Trial};
use testbed::Cluster;

/// The environment of all tests, and their measurements.
struct Bench {
    cluster: Cluster,
    table: Mutex<Vec<String>>,
}

/// A test: it returns lines of the table.
type Case = (&'static str, fn(&Cluster, Size) -> Result<Vec<String>>);

/// The test with many objects is the last, since the objects stay until the end.
const CASES: [Case; 4] = [
    ("latency::within_a_second_by_watch", latency::by_watch),
    ("latency::within_the_poll_when_watches_are_mute", latency::by_poll),
    ("latency::within_a_second_once_watches_are_back", latency::after_an_outage),
    ("crowd::secrets_are_asked_for_by_name_only", crowd::by_name),
];

/// The value of `TRUSTSPAN_SCALE` for a run of [`CURVES`].
const CURVES_RUN: &str = "curves";

/// The test of growing numbers of objects.
const CURVES: [Case; 1] = [("curves::memory_does_not_grow_with_unrelated_secrets", curves::curves)];

/// The size of a run.
#[derive(Clone, Copy)]
struct Size {
    /// The number of rotations that a watch reports.
    watched: usize,
    /// The number of rotations that only a resync finds.
    polled: usize,
    /// The number of unrelated Secrets and Deployments.
    secrets: usize,
    deployments: usize,
}

impl Size {
    fn of_run() -> Result<Self> {
        match env::var("TRUSTSPAN_SCALE").as_deref() {
            Err(_) => Ok(Self { watched: 20, polled: 6, secrets: 2_000, deployments: 500 }),
            Ok("full" | CURVES_RUN) => Ok(Self { watched: 200, polled: 50, secrets: 20_000, deployments: 5_000 }),
            Ok(other) => bail!("TRUSTSPAN_SCALE={other}: expected `full`, `{CURVES_RUN}`, or nothing"),
        }
    }
}

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    // One test at a time, since tests measure time.
    args.test_threads = Some(1);
    let start = || Ok(Bench { cluster: Cluster::boot()?, table: Mutex::default() });
    testbed::run_trials(&args, start, trials, |bench| {
        println!();
        bench.table.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|line| println!("{line}"));
        Ok(())
    })
}

fn trials(bench: Option<&Arc<Bench>>) -> Vec<Trial> {
    let trial = |&(name, measure): &Case| {
        let bench = bench.cloned();
        Trial::test(name, move || {
            let bench = bench.ok_or("no bed")?;
            let measured = Size::of_run().and_then(|size| measure(&bench.cluster, size));
            let lines = measured.map_err(|error| format!("{error:#}"))?;
            bench.table.lock().unwrap_or_else(PoisonError::into_inner).extend(lines);
            Ok(())
        })
    };
    let cases = if env::var("TRUSTSPAN_SCALE").is_ok_and(|run| run == CURVES_RUN) { &CURVES[..] } else { &CASES[..] };
    cases.iter().map(trial).collect()
}
