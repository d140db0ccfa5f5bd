//! The webhook's HTTPS side: AdmissionReview in, decision asked for, answer out. It decides nothing itself.
//!
//! Bounds stand before every step, since whoever reaches the port may call: connections and their pace ([`listener`]),
//! requests in flight, body size and time ([`Webhook`]), nesting ([`review`]), labels ([`metrics`]).

pub mod answer;
pub mod ephemeral;
pub mod listener;
pub mod metrics;
pub mod monitor;
pub mod review;
mod router;
pub mod server;
pub mod tls;

pub use router::{BODY_LIMIT, Decide, Webhook};
