//! The HTTP port of `identity` and `approve`: health endpoints, and a gauge for each check.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use crate::store::HealthState;
use crate::webhook::{health_server, server};

/// Serves the port until it fails, or for ever without an address.
pub(super) async fn serve(address: Option<SocketAddr>, health: Arc<HealthState>) -> io::Error {
    let Some(address) = address else { return std::future::pending().await };
    let mut registry = Registry::with_prefix("trustspan");
    registry.register_collector(health_server::collector(health.clone()));
    let registry = Arc::new(registry);
    let encode = move || {
        let mut out = String::new();
        text::encode(&mut out, &registry).map(|()| out)
    };
    match TcpListener::bind(address) {
        Ok(listener) => server::plain(listener, health_server::router(health, encode)).await,
        Err(error) => io::Error::new(error.kind(), format!("--metrics-listen {address}: {error}")),
    }
}
