//! Other controllers on one cluster with trustspan: each object has one writer, which writes it once. Run by `./test
//! neighbours`.

#[path = "../bed/mod.rs"]
mod testbed;
mod trust_manager;

use std::{process::ExitCode, sync::Arc};

use libtest_mimic::{Arguments, Trial};
use testbed::Cluster;

fn main() -> ExitCode {
    // Each trust-manager reconciles all Bundles of the cluster.
    let args = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    testbed::run_trials(&args, Cluster::boot, trials, Cluster::scan_for_keys)
}

fn trials(cluster: Option<&Arc<Cluster>>) -> Vec<Trial> {
    let trial = |name: &str, run: fn(&Cluster) -> anyhow::Result<()>| {
        testbed::trial(cluster, name, move |cluster| cluster.run(run))
    };
    vec![
        trial(
            "trust_manager_distributes_what_trustspan_decides_in_a_rotation",
            trust_manager::distributes_the_bundle_of_a_rotation,
        ),
        trial("a_config_map_of_trust_manager_is_left_alone", trust_manager::keeps_its_own_config_map),
    ]
}
