//! The webhook's HTTPS side: AdmissionReview in, decision asked for, answer out. It decides nothing itself.
//!
//! Bounds stand before every step, since whoever reaches the port may call: connections and their pace ([`listener`]),
//! requests in flight, body size and time ([`Webhook`]), nesting ([`review`]), labels ([`metrics`]).

pub mod health_server;
pub mod listener;
pub mod metrics;
pub mod response;
pub mod review;
mod router;
pub mod self_signed;
pub mod server;
pub mod tls;

pub use router::{BODY_LIMIT, Decide, Webhook};
