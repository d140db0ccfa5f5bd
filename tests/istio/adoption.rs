//! Adoption: the managed Secret takes over the name that Gateways use, and gives it back to the issuer.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    issuer::{MANAGED, SERVER},
    objects::{gateway, gateway_secret, route},
    run::{condition, finish},
    scenarios::SHOP,
    testbed::{SOON, wait_for},
    world::World,
};

const GATEWAY: &str = "gateways.networking.istio.io";
/// Handshakes to wait for after each change.
const FOLLOWED: u32 = 300;
/// The number of times that another field manager applies its manifests.
const APPLIED: usize = 10;

/// The state before adoption: the issuer writes the Secret that a Gateway names, and there is no GatewaySecret.
pub(crate) fn not_adopted(world: &mut World<'_>) -> Result<()> {
    delete_gateway_secret(world)?;
    delete(world, "configmap", "gateway.trustspan-journal")?;
    delete(world, "secret", MANAGED)?;
    let_issuer_write(world, MANAGED)?;
    delete(world, "secret", SERVER)?;
    wait_for("cert-manager to write it", SOON, || {
        Ok(world.cluster.exists("secret", &world.ns, MANAGED)? && !served(world)?.is_empty())
    })?;
    world.apply(&[manifest(world), route("shop", &[SHOP])])
}

/// Adoption, ten applies by another field manager, a rotation, and the return to the issuer's Secret.
pub(crate) fn take_over_and_give_back(world: &mut World<'_>) -> Result<()> {
    let before = world.cluster.get(GATEWAY, &world.ns, "shop")?;
    world.step("name taken over")?;
    annotate(world, "trustspan.dev/adopt=true")?;
    world.apply(&[gateway_secret(&world.ns)])?;
    // The steps in the wrong order first: cert-manager still writes the Secret.
    wait_for("the agent to leave it to cert-manager", SOON, || Ok(has_two_writers(&world.operator.status()?)))?;
    world.wait_handshakes(FOLLOWED)?;
    let_issuer_write(world, SERVER)?;
    wait_steady(world)?;
    world.wait_handshakes(FOLLOWED)?;

    world.step("another manager applies")?;
    let secret = world.cluster.get("secret", &world.ns, MANAGED)?;
    for _ in 0..APPLIED {
        for object in [manifest(world), gateway_secret(&world.ns)] {
            let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=another", "-f", "-"];
            world.cluster.kubectl(apply).ns(&world.ns).stdin(object.to_string()).ok()?;
        }
    }
    world.wait_handshakes(FOLLOWED)?;
    let after = world.cluster.get(GATEWAY, &world.ns, "shop")?;
    ensure!(after["spec"] == before["spec"], "expected the Gateway as it was, saw {}", after["spec"]);
    let generations = [&before, &after].map(|object| object["metadata"]["generation"].clone());
    ensure!(generations[0] == generations[1], "expected no change of the Gateway, saw generations {generations:?}");
    let kept = world.cluster.get("secret", &world.ns, MANAGED)?;
    ensure!(
        kept["metadata"]["resourceVersion"] == secret["metadata"]["resourceVersion"],
        "the managed Secret was written"
    );

    world.step("CA rotated")?;
    world.rotate_ca()?;
    finish(world)?;

    world.step("name given back")?;
    delete_gateway_secret(world)?;
    annotate(world, "trustspan.dev/adopt-")?;
    annotate(world, "trustspan.dev/gateway-secret-")?;
    world.cluster.kubectl(["label", "secret", MANAGED, "trustspan.dev/managed-"]).ns(&world.ns).ok()?;
    let_issuer_write(world, MANAGED)?;
    world.wait_handshakes(FOLLOWED)?;
    // The managed Secret has a certificate of the same issuer, so cert-manager keeps it until its renewal.
    let managed = served(world)?;
    world.operator.reissue(&[SERVER])?;
    wait_for("cert-manager to renew it", SOON, || Ok(served(world)? != managed))?;
    world.wait_handshakes(FOLLOWED)
}

/// The Gateway as its owner wrote it.
fn manifest(world: &World<'_>) -> Value {
    gateway(&world.ns, "shop", SHOP, &json!({ "mode": "MUTUAL", "credentialName": MANAGED }))
}

/// The certificate that gateways serve, in PEM.
fn served(world: &World<'_>) -> Result<Vec<u8>> {
    Ok(world.operator.read(MANAGED)?.get("tls.crt").map(|chain| chain.0.clone()).unwrap_or_default())
}

fn let_issuer_write(world: &World<'_>, secret: &str) -> Result<()> {
    let patch = json!({ "spec": { "secretName": secret } });
    world.patch(&format!("certificates.cert-manager.io/{SERVER}"), &patch)
}

fn annotate(world: &World<'_>, annotation: &str) -> Result<()> {
    world.cluster.kubectl(["annotate", "secret", MANAGED, annotation]).ns(&world.ns).ok().map(drop)
}

fn delete_gateway_secret(world: &World<'_>) -> Result<()> {
    delete(world, "gatewaysecret", "gateway")
}

/// Deletes an object. The webhook may reject that at first: it learns of an earlier deletion later than the test.
fn delete(world: &World<'_>, kind: &str, name: &str) -> Result<()> {
    wait_for(&format!("{kind} {name} to be gone"), SOON, || {
        Ok(world.cluster.kubectl(["delete", kind, name, "--ignore-not-found"]).ns(&world.ns).run()?.success())
    })
}

fn wait_steady(world: &World<'_>) -> Result<()> {
    let steady = wait_for("the GatewaySecret to be Steady", SOON, || {
        let status = world.operator.status()?;
        Ok(status["phase"] == "Steady" && !has_two_writers(&status))
    });
    steady.with_context(|| world.operator.status().map_or_else(|error| error.to_string(), |status| status.to_string()))
}

fn has_two_writers(status: &Value) -> bool {
    condition(status, "Synced").is_some_and(|synced| synced["reason"] == "TwoWriters")
}
