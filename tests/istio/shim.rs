//! A Gateway of the Gateway API for which cert-manager's gateway-shim makes a Certificate: named as the Secret that the Gateway names. If the
//! Gateway is rewritten to the managed Secret, cert-manager writes that, too.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::{
    issuer::{MANAGED, SERVER},
    objects,
    run::{BLOCKED, summary},
    scenarios::OTHER,
    world::World,
};

const NAME: &str = "annotated";
const ANNOTATION: &str = "cert-manager.io/issuer";
const GATEWAY: &str = "gateways.gateway.networking.k8s.io";

/// The Gateway is applied while a GatewaySecret is Steady. It keeps its Secret, and `kubectl apply` says why.
pub(crate) fn annotated(world: &mut World<'_>) -> Result<()> {
    world.step("Gateway applied")?;
    let mut gateway = objects::gateway_api(&world.ns, NAME, OTHER, "unused");
    gateway["metadata"]["annotations"] = json!({ ANNOTATION: "ca" });
    gateway["spec"].as_object_mut().map(|spec| spec.remove("tls"));
    let output = world.cluster.kubectl(["apply", "-f", "-"]).ns(&world.ns).stdin(gateway.to_string()).run()?;
    ensure!(output.success(), "expected the Gateway to be applied, saw {}", output.stderr);
    world.wait_handshakes(BLOCKED)?;
    let status = world.operator.status()?;
    let stored = world.cluster.get(GATEWAY, &world.ns, NAME)?;
    let named = &stored["spec"]["listeners"][0]["tls"]["certificateRefs"][0]["name"];
    let is_made = world.cluster.exists("certificates.cert-manager.io", &world.ns, MANAGED)?;
    ensure!(
        *named == SERVER && !is_made,
        "expected the Gateway to name {SERVER}, and no Certificate {MANAGED}, saw {named}, {is_made}: {}",
        summary(&status)
    );
    ensure!(output.stderr.contains(ANNOTATION), "expected a warning that names {ANNOTATION}, saw {:?}", output.stderr);
    Ok(())
}
