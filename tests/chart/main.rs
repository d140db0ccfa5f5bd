//! charts/trustspan, by the real Helm: what it renders is what the manifests and `trustspan rbac` have, and a release is installed, upgraded, rolled
//! back and uninstalled on a real API server. Run by `./test chart`.

#[path = "../bed/mod.rs"]
mod testbed;

mod differences;
mod drift;
mod gateways;
mod helm;
mod release;
mod values;

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use helm::Helm;
use libtest_mimic::{Arguments, Trial};
use testbed::Cluster;

/// A control plane without trustspan, and Helm.
struct Bed {
    helm: Helm,
    cluster: Cluster,
}

impl Bed {
    fn start() -> Result<Self> {
        Ok(Self { helm: Helm::locate()?, cluster: Cluster::boot_empty()? })
    }
}

fn main() -> ExitCode {
    // Tests of a release use the same cluster-scoped names.
    let args = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    testbed::run_trials(&args, Bed::start, trials, |bed| bed.cluster.scan_for_keys())
}

fn trials(bed: Option<&Arc<Bed>>) -> Vec<Trial> {
    let trial =
        |name: &str, run: fn(&Bed) -> Result<()>| testbed::trial(bed, name, move |bed| bed.cluster.run(|_| run(bed)));
    vec![
        trial("the_chart_renders_the_objects_of_the_manifests", drift::objects),
        trial("the_profile_of_the_serving_certificate_has_the_names_of_the_release", drift::profile),
        trial("policies_are_those_of_trustspan_policies", drift::policies),
        trial("programs_know_the_flags_and_ports_of_their_containers", drift::flags),
        trial("names_and_namespaces_are_those_of_the_release", drift::names),
        trial("roles_of_gateways_are_those_of_trustspan_rbac", gateways::roles),
        trial("unknown_values_are_refused_by_name", values::unknown),
        trial("each_value_reaches_the_objects", values::used),
        trial("a_release_is_installed_upgraded_rolled_back_and_uninstalled", release::lifecycle),
        trial("helm_test_fails_without_the_webhooks_and_succeeds_with_them", release::verified),
    ]
}
