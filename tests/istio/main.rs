//! Rotations judged by a real istiod: it gives two real Envoys their configuration and their Secrets, cert-manager issues, both
//! webhooks and the agent run, and twelve TLS clients make a hundred and more new handshakes a second.
//!
//! Each scenario is a way in which Gateways get their clients' CAs, with what must happen when the CA is rotated: nothing fails, or the
//! rotation holds until an operator has acted, or admission denies the object. The table of all scenarios is printed at the end.
//!
//! `TRUSTSPAN_ISTIO=full` runs the long scenarios, too.
//!
//! `TRUSTSPAN_CONTROL` names another trustspan binary: all scenarios run with it, and what fails is only printed.

#[path = "../bed/mod.rs"]
mod testbed;

// The clients and counters of the live runs are used here, too.
#[path = "../live/client.rs"]
mod client;
#[allow(dead_code, reason = "the live runs use more of it")]
#[path = "../live/issuer.rs"]
mod issuer;
#[allow(dead_code, reason = "the live runs use more of it")]
#[path = "../live/journal.rs"]
mod journal;
#[path = "../live/load.rs"]
mod load;
#[path = "../live/metronome.rs"]
mod metronome;
#[allow(dead_code, reason = "the live runs use more of it")]
#[path = "../live/pace.rs"]
mod pace;
#[allow(dead_code, reason = "the live runs use more of it")]
#[path = "../live/shelf.rs"]
mod shelf;

mod acts;
mod adoption;
mod anonymous;
mod copy;
mod deadlines;
mod distrust;
mod elsewhere;
mod expected;
mod issuers;
mod java;
mod jdk;
mod ml_dsa;
mod objects;
mod partners;
mod paths;
mod reissues;
mod requests;
mod revoked;
mod run;
mod scenarios;
mod selectors;
mod shared_clients;
mod shim;
mod truststores;
mod unseen;
mod upstream;
mod world;

use std::{
    process::ExitCode,
    sync::{Arc, Mutex},
};

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};
use scenarios::{SCENARIOS, Scenario};
use shelf::lock;
use testbed::{CertManager, Cluster, Istiod};

/// What every scenario needs, and the table.
struct Bench {
    // Declared before the API server, so that these end first and do not retry.
    istiod: Istiod,
    _cert_manager: CertManager,
    cluster: Cluster,
    table: Mutex<Vec<String>>,
}

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    // Few scenarios run at the same time, since they share the processors and count handshakes per second.
    args.test_threads = Some(args.test_threads.unwrap_or(run::SIDE_BY_SIDE));
    let trials = |bench: Option<&Arc<Bench>>| SCENARIOS.iter().map(|one| trial(bench, one)).collect();
    testbed::run_trials(&args, start, trials, |bench| {
        println!("\n{}", run::head());
        lock(&bench.table).iter().for_each(|line| println!("{line}"));
        bench.cluster.scan_for_keys()
    })
}

fn start() -> Result<Bench> {
    let cluster = Cluster::boot()?;
    let cert_manager = CertManager::start_with_gateway_shim(&cluster)?;
    let istiod = Istiod::start(&cluster)?;
    Ok(Bench { istiod, _cert_manager: cert_manager, cluster, table: Mutex::default() })
}

fn trial(bench: Option<&Arc<Bench>>, scenario: &'static Scenario) -> Trial {
    let bench = bench.cloned();
    let trial = Trial::test(scenario.name, move || {
        let bench = bench.ok_or("no bed")?;
        let (line, result) = run::perform(scenario, &bench.cluster, &bench.istiod);
        lock(&bench.table).push(line);
        result.map_err(|error| format!("{error:#}").into())
    });
    trial.with_ignored_flag(scenario.is_long && !run::is_full())
}
