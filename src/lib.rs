//! trustspan: rotate the CA behind Istio gateways without one failed handshake.
//!
//! # How a request flows
//!
//! ```text
//!  kubectl apply ──► kube-apiserver ──► webhook ──► admission ──┬─► rewrite ──┐
//!                                          ▲            ▲       └─► trust ◄───┤
//!  files, stdin ───────────────────────► cli ───────────┘                     │
//!                                          │                              registry
//!  cluster or directory ──► store ─────────┴──► rotation (observe) ──────────►┘
//! ```
//!
//! Pure modules take values, and the clock as an argument, and return values:
//!
//! - [`api`]: the `GatewaySecret`, `TrustConsumer`, `MirroredFile` and `ClientIdentity` resources, labels and annotations.
//! - [`trust`]: what a proxy loads from a Secret, and whether it is valid.
//! - [`connectivity`]: which clients and gateways accept each other, and what an update would break.
//! - [`registry`]: all GatewaySecrets, and which references can be rewritten to which managed Secret.
//! - [`rewrite`]: an object and the registry to a JSON Patch.
//! - [`rotation`]: observed objects to a GatewaySecret's status, and to the next steps of its rotation.
//! - [`consumer`]: what workloads of TrustConsumers have loaded, and which one is restarted next.
//! - [`admission`]: an admission request to a decision.
//! - [`json`]: JSON values whose texts are borrowed: the objects of a review.
//! - [`identity`]: certificates of clients with kubeconfigs: when one is needed, requested and approved.
//! - [`health`]: results of named checks and a request to a response, as kube-apiserver answers it.
//! - [`certgen`]: a profile and the Secrets of a control plane to the next step of their rotation.
//!
//! Modules with I/O (feature `edge`): [`store`] (reads a cluster or a directory of manifests), [`webhook`] (HTTPS), [`agent`] (the rotation
//! controller), [`cli`] and [`node`] (binary `trustspan-node`). They call the pure modules, which never import them. Nothing imports [`node`].

pub mod admission;
pub mod api;
pub mod certgen;
pub mod connectivity;
pub mod consumer;
pub mod health;
pub mod identity;
pub mod json;
pub mod registry;
pub mod rewrite;
pub mod rotation;
mod text;
pub mod trust;

#[cfg(feature = "edge")]
pub mod agent;
#[cfg(feature = "edge")]
pub mod cli;
#[cfg(feature = "edge")]
pub mod node;
#[cfg(feature = "edge")]
pub mod store;
#[cfg(feature = "edge")]
pub mod webhook;

#[cfg(test)]
#[path = "../tests/bed/seed.rs"]
mod seed;

/// The version, with the commit as build metadata (<https://semver.org/#spec-item-10>) if `./image` has built it.
pub const VERSION: &str = match option_env!("TRUSTSPAN_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};
