//! Tests on a real control plane: one boots for the whole run, each test has a separate namespace.
//!
//! A test is a function `fn(&Cluster) -> anyhow::Result<()>`, named in its module's `cases!`. One that changes what
//! others see (an unscoped webhook registration, say) is listed as `alone name` and runs without others at the same time.

#[path = "../bed/mod.rs"]
mod testbed;

/// Lists the tests of a module: `cases![first, second, alone third]`.
macro_rules! cases {
    ($($($word:ident)+),* $(,)?) => {
        pub(crate) const CASES: &[crate::Case] = &[$(cases!(@case $($word)+)),*];
    };
    (@case alone $test:ident) => {
        crate::Case { name: concat!(module_path!(), "::", stringify!($test)), run: $test, alone: true }
    };
    (@case $test:ident) => {
        crate::Case { name: concat!(module_path!(), "::", stringify!($test)), run: $test, alone: false }
    };
}

mod abandoned;
mod agent;
mod agent_mode;
mod attacks;
mod bad_inputs;
mod bed;
mod break_glass;
mod ca_bundles;
mod certgen;
mod client_auth;
mod client_renewals;
mod clients;
mod config_maps;
mod connectivity;
mod evil_writes;
mod gateways;
mod guard;
mod health;
mod hostile_gateways;
mod install;
mod mirror;
mod mirrored_client_ca;
#[allow(dead_code)] // The tests on Envoy try them with clients.
#[path = "../envoy/named_bundles.rs"]
mod named_bundles;
mod outage;
#[allow(dead_code)] // Envoy's clients need more of it.
#[path = "../envoy/pki.rs"]
mod pki;
mod policies;
mod policy_requests;
mod probe;
mod rights;
mod rollouts;
mod rotate;
mod secrets;
mod serving_certificate;
mod several_signers;
mod several_signers_cadence;
mod stage;
mod stolen_tokens;
mod tenants;
mod trust_consumer;
mod trust_consumer_fleet;
mod trust_loaders;
#[allow(dead_code)] // The measurements need more of it.
#[path = "../scale/usage.rs"]
mod usage;
mod wakes;
mod workloads;

use std::{
    process::ExitCode,
    sync::{Arc, PoisonError, RwLock},
    thread,
};

use libtest_mimic::{Arguments, Trial};
use testbed::Cluster;

/// The tests of all modules.
const MODULES: &[&[Case]] = &[
    abandoned::CASES,
    agent::CASES,
    agent_mode::CASES,
    attacks::CASES,
    bad_inputs::CASES,
    bed::CASES,
    break_glass::CASES,
    ca_bundles::CASES,
    certgen::CASES,
    client_auth::CASES,
    client_renewals::CASES,
    clients::CASES,
    config_maps::CASES,
    connectivity::CASES,
    evil_writes::CASES,
    gateways::CASES,
    guard::CASES,
    health::CASES,
    hostile_gateways::CASES,
    install::CASES,
    mirror::CASES,
    mirrored_client_ca::CASES,
    outage::CASES,
    policies::CASES,
    policy_requests::CASES,
    probe::CASES,
    rights::CASES,
    rollouts::CASES,
    rotate::CASES,
    secrets::CASES,
    serving_certificate::CASES,
    several_signers::CASES,
    several_signers_cadence::CASES,
    stolen_tokens::CASES,
    tenants::CASES,
    trust_consumer::CASES,
    trust_consumer_fleet::CASES,
    trust_loaders::CASES,
    wakes::CASES,
    workloads::CASES,
];

/// One test.
pub(crate) struct Case {
    name: &'static str,
    run: fn(&Cluster) -> anyhow::Result<()>,
    alone: bool,
}

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    // Tests mostly wait, for kubectl and for controllers, so more of them run than there are processors.
    args.test_threads = args.test_threads.or(Some(2 * thread::available_parallelism().map_or(2, usize::from)));
    testbed::run_trials(&args, Cluster::boot, trials, Cluster::scan_for_keys)
}

fn trials(cluster: Option<&Arc<Cluster>>) -> Vec<Trial> {
    let turn = Arc::new(RwLock::new(()));
    let trial = |case: &'static Case| {
        let (cluster, turn) = (cluster.cloned(), Arc::clone(&turn));
        let name = case.name.trim_start_matches("cluster::");
        Trial::test(name, move || {
            let cluster = cluster.ok_or("no control plane")?;
            // A test that panics poisons the lock, which does not affect other tests.
            let (_shared, _alone) = match case.alone {
                false => (Some(turn.read().unwrap_or_else(PoisonError::into_inner)), None),
                true => (None, Some(turn.write().unwrap_or_else(PoisonError::into_inner))),
            };
            cluster.run(case.run).map_err(|error| format!("{error:#}").into())
        })
    };
    MODULES.iter().copied().flatten().map(trial).collect()
}
