//! The test bed: a real Kubernetes control plane for one test run, and the real `trustspan serve` outside of it.
//!
//! [`Cluster::boot`] starts etcd, kube-apiserver and kube-controller-manager from the binaries that `tests/bed/setup`
//! keeps in a cache. Each test works in a throw-away namespace ([`Cluster::with_temp_ns`]), through real kubectl
//! ([`Cluster::kubectl`]). [`Server`] is the webhook under test; [`Registration`] makes the API server call it.
//!
//! Whatever way the run ends, SIGKILL included, nothing is left running: see [`process`].

// Each test binary that includes this module uses only a part of it.
#![allow(dead_code, unused_imports)]

mod agent;
mod assets;
mod audit;
mod balancer;
mod cert_manager;
mod cluster;
mod control_plane;
mod dump;
mod endpoints;
mod envoy;
mod ingress;
mod istiod;
mod kept;
mod keys;
mod kubectl;
mod kubelet;
mod link;
mod mirror;
mod mounted_secret;
mod pki;
mod process;
mod seed;
mod server;
mod trials;
mod users;
mod wait;
mod webhooks;

pub(crate) use agent::Agents;
pub(crate) use assets::{exported, is_control, trustspan_node};
pub(crate) use audit::Request;
pub(crate) use balancer::Balancer;
pub(crate) use cert_manager::{CLUSTER_RESOURCES, CertManager};
pub(crate) use cluster::{Cluster, SOON, documents, shipped};
pub(crate) use endpoints::{endpoint_slice, own_address};
pub(crate) use envoy::{Active, Content, Envoy, Gateway, Secrets, Updates};
pub(crate) use ingress::{GATEWAY_PORT, Ingress, gateway_name};
pub(crate) use istiod::Istiod;
pub(crate) use kept::{Kept, rotation_policy};
pub(crate) use kubectl::{Kubectl, Output};
pub(crate) use kubelet::{NODE, Node, SYNC_FREQUENCY};
pub(crate) use link::Link;
pub(crate) use mirror::{Mirror, MirrorRights};
pub(crate) use mounted_secret::{mount, write as write_mount};
pub(crate) use pki::{Authority, KUBERNETES_IP};
pub(crate) use process::{Process, Scratch};
pub(crate) use seed::Seed;
pub(crate) use server::{Server, Source, http_get};
pub(crate) use trials::{run as run_trials, trial};
pub(crate) use users::{User, base64};
pub(crate) use wait::{free_port, wait_for, wait_for_value};
pub(crate) use webhooks::{Patience, Registration, Scope};
