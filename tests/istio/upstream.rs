//! An upstream for routes that cannot have a direct response, such as those of the Gateway API.

use std::net::SocketAddr;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Handle,
};

use crate::testbed::own_address;

/// The name of the upstream's Service.
pub(crate) const NAME: &str = "upstream";
/// The port of the Service.
pub(crate) const PORT: u16 = 80;

/// Starts a server that answers every request with 200 until the runtime ends. Returns its address.
pub(crate) fn start(runtime: &Handle) -> Result<SocketAddr> {
    let listener = runtime.block_on(TcpListener::bind((own_address()?, 0)))?;
    let address = listener.local_addr()?;
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream));
        }
    });
    Ok(address)
}

/// Answers requests without a body, one after the other.
async fn answer(mut stream: TcpStream) {
    let (mut read, mut head) = ([0; 4096], Vec::new());
    while let Ok(length @ 1..) = stream.read(&mut read).await {
        head.extend_from_slice(&read[..length]);
        while let Some(end) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            head.drain(..end + 4);
            if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.is_err() {
                return;
            }
        }
    }
}

/// The Service and its EndpointSlice.
pub(crate) fn objects(endpoint: SocketAddr) -> [Value; 2] {
    let labels = json!({ "kubernetes.io/service-name": NAME });
    [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": NAME },
            "spec": { "ports": [{ "name": "http", "port": PORT }] },
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": NAME, "labels": labels },
            "ports": [{ "name": "http", "port": endpoint.port() }],
            "endpoints": [{ "addresses": [endpoint.ip().to_string()] }],
        }),
    ]
}
