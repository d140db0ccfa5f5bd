//! The CA of clients changes from an ECDSA key to an ML-DSA key. cert-manager cannot issue from such a CA, so the test
//! writes it and the certificates itself.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{
    partners::{self, bundle, renew_client, status, wait, write_ca},
    run::BLOCKED,
    testbed::Authority,
    world::World,
};

/// Creates another GatewaySecret, for another host, whose clients have a separate CA.
pub(crate) fn own_client_ca(world: &mut World<'_>) -> Result<()> {
    let ca = Authority::new("partners")?;
    partners::create(world, &ca)
}

/// The rotation waits while an older Envoy may be among the gateways, and completes after a newer one is declared.
pub(crate) fn rotate(world: &mut World<'_>) -> Result<()> {
    let new = Authority::of_ml_dsa("partners 2")?;
    world.step("CA rotated")?;
    write_ca(world, &new)?;
    wait(world, "the wait for a newer proxy", |status| {
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let says = |condition: &Value| condition["message"].as_str().is_some_and(|text| text.contains("Envoy 1.37"));
        conditions.into_iter().any(|condition| condition["status"] == "False" && says(condition))
    })?;
    world.wait_handshakes(BLOCKED)?;
    ensure!(bundle(&status(world)?) == ["CN=partners"], "expected the old CA alone, saw {}", status(world)?["bundle"]);

    world.step("a newer proxy declared")?;
    world.patch("rotationpolicy/default", &json!({ "spec": { "oldestEnvoy": "1.40" } }))?;
    wait(world, "gateways to trust both CAs", |status| bundle(status) == ["CN=partners 2", "CN=partners"])?;
    wait(world, "gateways to have them", |status| status["phase"] == "Converged")?;
    renew_client(world, &new)?;
    world.step("client re-issued")?;
    wait(world, "the old CA to be dropped", |status| {
        status["phase"] == "Steady" && bundle(status) == ["CN=partners 2"]
    })?;
    world.wait_handshakes(BLOCKED)
}
