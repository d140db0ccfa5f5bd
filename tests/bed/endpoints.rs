//! Servers of this process as endpoints of a Service.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// An address of this machine other than loopback, which the API server rejects in endpoints. The socket sends nothing.
pub(crate) fn own_address() -> Result<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("198.51.100.1:9").context("this test needs a network interface besides loopback")?;
    Ok(socket.local_addr()?.ip())
}

/// An EndpointSlice of a Service with one endpoint, whose port is called `https`.
pub(crate) fn endpoint_slice(service: &str, endpoint: SocketAddr) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": format!("{service}-{}", endpoint.port()),
            "labels": { "kubernetes.io/service-name": service },
        },
        "ports": [{ "name": "https", "port": endpoint.port() }],
        "endpoints": [{ "addresses": [endpoint.ip().to_string()] }],
    })
}
