//! The plain HTTP port of the agent, a process without admission requests.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::get;

use super::metrics::Metrics;
use super::router::{readiness, scraped};
use crate::store::RegistryCache;

/// `/metrics`, `/livez` and `/readyz`: ready after all GatewaySecrets have been read.
pub fn router(cache: Arc<RegistryCache>, metrics: Metrics) -> Router {
    let state = Arc::new((cache, metrics));
    Router::new()
        .route("/metrics", get(async |State(state): State<Arc<(Arc<RegistryCache>, Metrics)>>| scraped(&state.1)))
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(async |State(state): State<Arc<(Arc<RegistryCache>, Metrics)>>| readiness(&state.0)))
        .with_state(state)
}
