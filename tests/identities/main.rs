//! Clients with kubeconfigs on real API servers, with kube-controller-manager as signer: `trustspan-node approve` and `trustspan-node identity`.

#[path = "../bed/mod.rs"]
mod testbed;

mod approval;
mod lifecycle;
mod migration;
mod request_loop;
mod scene;

use std::{
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};
use testbed::Cluster;

/// Control planes, each with other CAs. One that a test breaks is not used again.
pub(crate) struct Bed {
    /// For tests that leave the API server as it is.
    pub(crate) main: Cluster,
    /// Those that were not used yet.
    spare: Mutex<Vec<Cluster>>,
}

impl Bed {
    fn start() -> Result<Self> {
        Ok(Self { main: Cluster::boot_small()?, spare: Mutex::new(Vec::new()) })
    }

    /// A control plane for one test.
    pub(crate) fn another(&self) -> Result<Cluster> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.map_or_else(Cluster::boot_small, Ok)
    }
}

fn main() -> ExitCode {
    // One test at a time: some stop API servers, and all count requests on the machine's two processors.
    let args = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    testbed::run_trials(&args, Bed::start, trials, |bed| bed.main.scan_for_keys())
}

fn trials(bed: Option<&Arc<Bed>>) -> Vec<Trial> {
    let trial =
        |name: &str, run: fn(&Bed) -> Result<()>| testbed::trial(bed, name, move |bed| bed.main.run(|_| run(bed)));
    vec![
        trial("approver_on_standby_is_ready", lifecycle::standby),
        trial("client_identity_bootstraps_and_works", lifecycle::bootstraps),
        trial("client_identity_in_a_secret", lifecycle::in_a_secret),
        trial("client_identity_after_an_expired_token", lifecycle::expired_token),
        trial("client_identity_restored_without_status", lifecycle::restored),
        trial("editor_cannot_have_a_foreign_bootstrap_token_deleted", lifecycle::foreign_token),
        trial("client_identity_requests_that_are_not_approved", approval::refused),
        trial("one_undecidable_request_stops_no_other_approval", approval::hostile),
        trial("client_identity_follows_a_rolled_server_ca", migration::rolled_server_ca),
        trial("client_identity_follows_a_moved_control_plane", migration::moved),
        trial("a_black_hole_delays_no_other_tenant_and_makes_no_further_token", migration::black_hole),
        trial("client_identity_uninstalled_in_the_wrong_order", lifecycle::uninstalled),
    ]
}
