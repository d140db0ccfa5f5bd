//! TrustConsumers whose pods run on a real node: the kubelet updates mounted files, and its probes say when a pod is ready. A separate command,
//! `./test node`, for Linux and root.

#[path = "../bed/mod.rs"]
mod testbed;

mod app;
mod file_updates;
mod paused;
mod restarts;

use std::{process::ExitCode, sync::Arc};

use anyhow::{Context, Result};
use libtest_mimic::{Arguments, Trial};
use serde_json::json;
use testbed::{Cluster, Node};

/// One cluster with one node.
struct Bed {
    // Fields drop in this order: the node uses the cluster's API server and files.
    node: Node,
    cluster: Cluster,
}

impl Bed {
    fn start() -> Result<Self> {
        let cluster = Cluster::boot()?;
        // Pods use the network of the machine.
        let network = json!({ "cniVersion": "1.0.0", "name": "none", "type": "loopback" });
        Ok(Self { node: Node::start(&cluster, &network)?, cluster })
    }
}

fn main() -> ExitCode {
    // One test measures how long the kubelet takes.
    let args = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    testbed::run_trials(&args, Bed::start, trials, |bed| bed.cluster.scan_for_keys())
}

fn trials(bed: Option<&Arc<Bed>>) -> Vec<Trial> {
    let trial = |name: &str, run: fn(&Bed) -> Result<()>| {
        testbed::trial(bed, name, move |bed| bed.cluster.run(|_| run(bed)).with_context(|| bed.node.log_tail(40)))
    };
    vec![
        trial("rotation_reaches_a_paused_deployment_and_waits_for_its_restart", paused::rotation_waits),
        trial("load_once_workload_restarts_once_for_each_change", restarts::once_for_each_change),
        trial("changed_secrets_reach_files_in_running_pods", file_updates::measured),
    ]
}
