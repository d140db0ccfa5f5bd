//! Compares trustspan's certgen with the real `envoy-gateway certgen` on the same Secrets: which rotation makes
//! connections fail. Run by `./test peers`.
//!
//! `TRUSTSPAN_SEED` repeats the delays of a run.

#[path = "../bed/mod.rs"]
mod testbed;

mod control_plane;
mod handshakes;
mod rate_limit;
#[allow(dead_code, reason = "the runs under live traffic use more of it")]
#[path = "../live/shelf.rs"]
mod shelf;

use std::{process::ExitCode, sync::Arc};

use libtest_mimic::{Arguments, Trial};
use testbed::Cluster;

fn main() -> ExitCode {
    // One test at a time, since tests count handshakes on the machine's two processors.
    let args = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    testbed::run_trials(&args, Cluster::boot, trials, Cluster::scan_for_keys)
}

fn trials(cluster: Option<&Arc<Cluster>>) -> Vec<Trial> {
    let trial = |name: &str, run: fn(&Cluster) -> anyhow::Result<()>| {
        testbed::trial(cluster, name, move |cluster| cluster.run(run))
    };
    vec![
        trial("handshakes_fail_in_no_staged_rotation", handshakes::staged),
        trial("handshakes_fail_in_rotations_by_a_single_write", handshakes::single_write),
        trial("handshakes_fail_in_rotations_by_envoy_gateway", handshakes::envoy_gateway),
        trial("calls_of_the_rate_limit_service_succeed_in_staged_rotations", rate_limit::trustspan),
        trial("calls_of_the_rate_limit_service_fail_after_envoy_gateway_until_a_restart", rate_limit::envoy_gateway),
    ]
}
