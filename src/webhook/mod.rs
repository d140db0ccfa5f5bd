//! HTTPS for the webhook: parses an AdmissionReview, asks for the decision and writes the response.
//!
//! Every step is bounded, since any caller that reaches the port may send requests: connections (`connections`) and their timeouts
//! ([`listener`]), size and time of the body ([`Webhook`]), memory and nesting of what is parsed (`bounded_json`), judgements at a time
//! (`queues`), labels (`metrics`).

mod bounded_json;
pub mod client_ca;
mod connections;
pub mod health_server;
mod limits;
pub mod listener;
pub mod metrics;
mod queues;
pub mod response;
pub mod review;
mod router;
pub mod self_signed;
pub mod server;
pub mod tls;

pub use limits::{BODY_LIMIT, Limits};
pub use router::{Decide, Webhook};
