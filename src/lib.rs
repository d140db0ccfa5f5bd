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
//! Pure rooms take values, and the clock as an argument, and return values:
//!
//! - [`api`]: the `GatewaySecret` resource, labels and annotations.
//! - [`trust`]: what a Secret holds, as a proxy would load it, and whether that is sound.
//! - [`connectivity`]: which clients and gateways accept each other, and what an update would break.
//! - [`registry`]: what all GatewaySecrets together claim; who may be renamed to what.
//! - [`rewrite`]: object and registry to JSON Patch.
//! - [`rotation`]: what is observed to GatewaySecret status, and to the next step of a rotation.
//! - [`admission`]: one admission request to one decision.
//!
//! Thin edges (feature `edge`): [`store`] (a cluster, or a directory of manifests), [`webhook`] (HTTPS), [`agent`] (carries
//! a rotation through) and [`cli`].
//! They call the pure rooms; nothing points back.

pub mod admission;
pub mod api;
pub mod connectivity;
pub mod registry;
pub mod rewrite;
pub mod rotation;
pub mod trust;

#[cfg(feature = "edge")]
pub mod agent;
#[cfg(feature = "edge")]
pub mod cli;
#[cfg(feature = "edge")]
pub mod store;
#[cfg(feature = "edge")]
pub mod webhook;
