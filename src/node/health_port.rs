//! The HTTP port of `trustspan-node`: health endpoints, and metrics with a gauge for each check.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use axum::Router;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use crate::store::HealthState;
use crate::webhook::{health_server, server};

/// The metrics of a process, without the gauge of checks.
pub(super) fn registry() -> Registry {
    Registry::with_prefix("trustspan")
}

/// The port's routes, with these metrics and the gauge of checks.
pub(super) fn router(health: Arc<HealthState>, mut metrics: Registry) -> Router {
    metrics.register_collector(health_server::collector(health.clone()));
    let metrics = Arc::new(metrics);
    let encode = move || {
        let mut out = String::new();
        text::encode(&mut out, &metrics).map(|()| out)
    };
    health_server::router(health, encode)
}

/// Serves the port until it fails, or for ever without an address.
pub(super) async fn serve(address: Option<SocketAddr>, health: Arc<HealthState>) -> io::Error {
    let Some(address) = address else { return std::future::pending().await };
    match TcpListener::bind(address) {
        Ok(listener) => server::plain(listener, router(health, registry())).await,
        Err(error) => io::Error::new(error.kind(), format!("--metrics-listen {address}: {error}")),
    }
}
