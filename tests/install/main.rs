//! trustspan on a real node, with the images that `./image` builds: the Helm chart with nothing else in the cluster, each kustomization of `manifests`,
//! and the commands of docs next to cert-manager, istiod and gateways. A separate command, `./test install`, for Linux and root.
//!
//! These replace parts of a cluster that do not run here:
//!
//! | part | replaced by |
//! |---|---|
//! | scheduler | a MutatingAdmissionPolicy that sets `spec.nodeName` |
//! | kube-proxy, for Service `kubernetes` | a TCP balancer at its address |
//! | kube-proxy, for the webhook's Service | the API server itself: `--enable-aggregator-routing` connects to endpoints |
//! | pods of cert-manager, istiod and the gateways | processes; Pod objects and EndpointSlices say where the gateways are |
//! | a registry | images that are loaded under its name |
//!
//! No pod resolves a name, so there is no DNS. Nothing enforces NetworkPolicies. cert-manager's own webhook does not run.

#[path = "../chart/helm.rs"]
#[allow(dead_code)]
mod helm;
#[path = "../bed/mod.rs"]
mod testbed;

#[path = "../live/client.rs"]
mod client;
#[allow(dead_code, reason = "the live runs use more of it")]
#[path = "../live/journal.rs"]
mod journal;
#[allow(dead_code, reason = "the live runs use more of it")]
#[path = "../live/load.rs"]
mod load;
#[allow(dead_code, reason = "the live runs use more of it")]
#[path = "../live/metronome.rs"]
mod metronome;
#[allow(dead_code, reason = "the live runs use more of it")]
#[path = "../live/pace.rs"]
mod pace;
#[allow(dead_code, reason = "the live runs use more of it")]
#[path = "../live/shelf.rs"]
mod shelf;

mod documented;
mod hold;
mod mesh;
mod overlays;
mod release;
mod shell;
mod traffic;

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use helm::Helm;
use libtest_mimic::{Arguments, Trial};
use serde_json::json;
use testbed::{Balancer, Cluster, KUBERNETES_IP, NODE, Node, shipped};
use tokio::runtime::{Builder, Runtime};

/// Set in the network namespace of the run.
const INSIDE: &str = "TRUSTSPAN_BED_INSTALL_INSIDE";
/// The image to install, if not the one that `./image` has built. That of trustspan-node is next to it.
const IMAGE: &str = "TRUSTSPAN_IMAGE";
/// Where users push the images. The node has them under this name, too.
const REGISTRY: &str = "registry.example";
/// The argument with which the cluster is there to be used by hand, and no test runs.
const HOLD: &str = "--hold";
/// A bridge for pods, the address of Service `kubernetes`, and a default route, by which this machine has an address other than loopback. Unless
/// it is set, the bridge's hardware address is the lowest one of the pods, and changes with them: pods then send to the earlier one.
const NETWORK: &str = "
    set -e
    PATH=$PATH:/usr/sbin:/sbin
    ip link set lo up
    ip address add $0/32 dev lo
    ip link add pods address 02:00:00:00:00:01 type bridge
    ip address add 10.244.0.1/24 dev pods
    ip link set pods up
    ip route add default dev pods
    exec \"$@\"
";

/// A cluster with one node that has the image, and Helm.
struct Bed {
    helm: Helm,
    // Fields drop in this order: the node uses the cluster's API server and files.
    node: Node,
    cluster: Cluster,
    // Its tasks end with it.
    runtime: Runtime,
}

impl Bed {
    fn start() -> Result<Self> {
        let (images, helm) = (images()?, Helm::locate()?);
        let cluster = Cluster::boot_with(&["--enable-aggregator-routing=true"])?;
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let port = cluster.server()?.0.rsplit_once(':').context("a URL without a port")?.1.parse()?;
        Balancer::start_at(runtime.handle(), format!("{KUBERNETES_IP}:443").parse()?, vec![port])?;
        let folder = cluster.temp_dir("addresses")?;
        let network = json!({
            "cniVersion": "1.0.0", "name": "pods", "type": "bridge", "bridge": "pods", "isDefaultGateway": true,
            "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.244.0.0/24" }]], "dataDir": folder },
        });
        let node = Node::start(&cluster, &network)?;
        for (name, archive) in &images {
            // The names in the manifests, and those after a push.
            node.load(archive, &format!("docker.io/library/{name}"))?;
            node.load(archive, &format!("{REGISTRY}/{name}"))?;
        }
        cluster.kubectl(["create", "-f", "-"]).stdin(scheduler().to_string()).ok()?;
        Ok(Self { helm, node, cluster, runtime })
    }

    /// Deletes what an earlier trial has left.
    fn clean(&self) -> Result<()> {
        let namespaces = ["trustspan-system", "trustspan-node", "gateways", mesh::NAMESPACE];
        let delete = ["delete", "namespace", "--ignore-not-found"].into_iter().chain(namespaces);
        self.cluster.kubectl(delete).ok()?;
        self.cluster.kubectl(["delete", "--ignore-not-found", "-f", "-"]).stdin(shipped("crd.yaml")?).ok().map(drop)
    }
}

/// Assigns each new pod to the node, except those of another scheduler.
fn scheduler() -> serde_json::Value {
    let version = "admissionregistration.k8s.io/v1";
    let rule = json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] });
    let expression = format!("Object{{spec: Object.spec{{nodeName: \"{NODE}\"}}}}");
    let condition = json!({ "name": "scheduler", "expression": "object.spec.schedulerName == 'default-scheduler'" });
    let mutation = json!({ "patchType": "ApplyConfiguration", "applyConfiguration": { "expression": expression } });
    let policy = json!({
        "apiVersion": version, "kind": "MutatingAdmissionPolicy", "metadata": { "name": "scheduler" },
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never", "matchConstraints": { "resourceRules": [rule] },
            "matchConditions": [condition], "mutations": [mutation],
        },
    });
    let binding = json!({
        "apiVersion": version, "kind": "MutatingAdmissionPolicyBinding", "metadata": { "name": "scheduler" },
        "spec": { "policyName": "scheduler" },
    });
    json!({ "apiVersion": "v1", "kind": "List", "items": [policy, binding] })
}

/// The names of both images, of this version, and their archives.
fn images() -> Result<[(&'static str, PathBuf); 2]> {
    let (name, node) = ("trustspan", "trustspan-node");
    let image = env::var_os(IMAGE).map_or_else(built, |file| Ok(file.into()))?;
    let file = image.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let of_node = image.with_file_name(file.replacen(name, node, 1));
    for archive in [&image, &of_node] {
        ensure!(archive.is_file(), "no {}: build it with ./image", archive.display());
    }
    Ok([(name, image), (node, of_node)])
}

/// The archive that `./image` has built.
fn built() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/image");
    let prefix = format!("trustspan-{}-", env!("CARGO_PKG_VERSION"));
    let is_image = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with(&prefix) && name.ends_with(".oci.tar")
    };
    let mut files = fs::read_dir(&folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let missing = || format!("no {prefix}*.oci.tar in {}: build it with ./image, or set {IMAGE}", folder.display());
    files.find(is_image).with_context(missing)
}

fn main() -> ExitCode {
    if env::args().any(|arg| arg == HOLD) {
        return match in_network().and_then(|bed| hold::hold(&bed)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let args = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    testbed::run_trials(&args, in_network, trials, |bed| bed.cluster.scan_for_keys())
}

/// Starts the bed in a network namespace, in which this program is run again. It ends with the run.
fn in_network() -> Result<Bed> {
    if env::var_os(INSIDE).is_some() {
        return Bed::start();
    }
    images()?;
    let mut again = Command::new("unshare");
    again.args(["--net", "sh", "-c", NETWORK, KUBERNETES_IP]).arg(env::current_exe()?).args(env::args_os().skip(1));
    Err(again.env(INSIDE, "yes").exec()).context("starting unshare (Debian package util-linux)")
}

fn trials(bed: Option<&Arc<Bed>>) -> Vec<Trial> {
    let trial = |name: &str, run: fn(&Bed) -> Result<()>| {
        testbed::trial(bed, name, move |bed| {
            bed.clean()?;
            bed.cluster.run(|_| run(bed)).with_context(|| bed.node.log_tail(40))
        })
    };
    vec![
        trial("webhooks_judge_from_install_to_uninstall_with_the_agents_certificate", release::lifecycle),
        trial("a_release_with_another_name_has_its_own_certificate", release::other_names),
        trial("documented_commands_rotate_a_ca_and_leave_without_a_failed_handshake", documented::rotation),
        trial("kustomizations_run_and_are_deleted", overlays::base),
        trial("cert_manager_issues_the_certificate_for_manifests_and_chart", overlays::cert_manager),
    ]
}
