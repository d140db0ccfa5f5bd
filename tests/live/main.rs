//! Rotations under live mTLS traffic: a real API server with both webhooks, real cert-manager controllers, a real istiod
//! with two real Envoys, and twenty TLS clients that make a hundred and more new handshakes a second with what their own Secrets hold.
//!
//! A run that must be clean fails with the first handshake or request that does. Ways to rotate that cannot work must be seen
//! to fail, or the harness is blind. The table of all runs is printed at the end.
//!
//! `TRUSTSPAN_LIVE_ROUNDS` sets how many rotations the clean runs make: plain ones and those with agents that are killed or paused
//! so many, each other kind a quarter of it. `TRUSTSPAN_LIVE_FACTOR` sets how much shorter than in real life all delays are,
//! `TRUSTSPAN_SEED` repeats the delays of a run.

#[path = "../bed/mod.rs"]
mod testbed;

mod chaos;
mod client;
mod gateways;
mod issuer;
mod journal;
mod kept;
mod load;
mod metronome;
mod naive;
#[allow(dead_code, reason = "the scenarios under istiod use more of it")]
#[path = "../istio/objects.rs"]
mod objects;
mod pace;
mod run;
mod shelf;
mod sound;
mod tampered;
mod upgrade;
mod watched;
mod world;

use std::{
    process::ExitCode,
    sync::{Arc, Mutex},
};

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};
use run::{RUNS, Run, UPGRADE};
use shelf::lock;
use testbed::{CertManager, Cluster, Istiod};

/// The environment of all runs, and the table.
struct Bench {
    // Declared before the API server, so that these end first and do not retry.
    istiod: Istiod,
    _cert_manager: CertManager,
    cluster: Cluster,
    table: Mutex<Vec<String>>,
}

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    // One run at a time, since runs share the machine's two processors and count handshakes per second.
    args.test_threads = Some(1);
    testbed::run_trials(&args, start, trials, |bench| {
        println!("\n{}", run::head()?);
        lock(&bench.table).iter().for_each(|line| println!("{line}"));
        bench.cluster.scan_for_keys()
    })
}

fn start() -> Result<Bench> {
    let cluster = Cluster::boot()?;
    let cert_manager = CertManager::start(&cluster)?;
    let istiod = Istiod::start(&cluster)?;
    Ok(Bench { istiod, _cert_manager: cert_manager, cluster, table: Mutex::default() })
}

fn trials(bench: Option<&Arc<Bench>>) -> Vec<Trial> {
    let trial = |run: &'static Run| {
        let bench = bench.cloned();
        Trial::test(run.name, move || {
            let bench = bench.ok_or("no bed")?;
            let (lines, result) = run.perform(&bench.cluster, &bench.istiod);
            lock(&bench.table).extend(lines);
            result.map_err(|error| format!("{error:#}").into())
        })
    };
    upgrade::older().map(|_| &UPGRADE).into_iter().chain(RUNS).map(trial).collect()
}
