//! A rotation that relies on probes of the gateways. The propagation delay is so long that it would not complete
//! without them.

use std::net::SocketAddr;

use anyhow::Result;
use serde_json::json;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

use crate::{
    gateways::HOST,
    issuer::CANARY,
    kept,
    testbed::{endpoint_slice, own_address},
    world::World,
};

/// A rotation with probes.
pub(crate) fn rotation(world: &mut World<'_>) -> Result<()> {
    world.cluster.apply(&world.ns, CANARY)?;
    for envoy in world.gateways.pool().addresses() {
        let endpoint = world.operator.runtime.block_on(forward(envoy))?;
        world.cluster.apply(&world.ns, &endpoint_slice("gateway", endpoint).to_string())?;
    }
    let target = json!({ "serviceName": "gateway", "host": HOST, "clientSecretName": "canary" });
    let spec = json!({ "propagationDelays": { "gateways": "1h" }, "probe": { "target": target } });
    let patch = json!({ "spec": spec }).to_string();
    let args = ["patch", "rotationpolicy", "default", "--type=merge", "--patch", &patch];
    world.cluster.kubectl(args).ns(&world.ns).ok()?;
    world.agents.grant()?;
    kept::rotation(world)
}

/// Forwards connections to an Envoy, which listens on loopback: the API server rejects loopback addresses in endpoints.
async fn forward(envoy: SocketAddr) -> Result<SocketAddr> {
    let listener = TcpListener::bind((own_address()?, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(mut envoy) = TcpStream::connect(envoy).await {
                    let _ = copy_bidirectional(&mut client, &mut envoy).await;
                }
            });
        }
    });
    Ok(address)
}
