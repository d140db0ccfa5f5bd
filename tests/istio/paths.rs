//! Clients of an intermediate CA that gateways trust without its root. Envoy builds a path from a client up to the topmost CA of the bundle, so a
//! CA that is added can make it refuse a client.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{
    partners::{self, NAME, bundle, renew_client, status, wait, write_ca},
    run::{BLOCKED, summary},
    testbed::Authority,
    world::World,
};

/// The subject of the intermediate CA's root.
const ROOT: &str = "root of partners";
/// A ConfigMap with a CA of other clients, and the root.
const FURTHER: &str = "further";

/// Another GatewaySecret, for another host, whose clients are of an intermediate CA. The root of that has expired.
pub(crate) fn expired_root(world: &mut World<'_>) -> Result<()> {
    let root = Authority::expired(ROOT)?;
    let data = json!({ "ca.crt": Authority::new("further clients")?.pem() + &root.pem() });
    world
        .apply(&[json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": FURTHER }, "data": data })])?;
    partners::create(world, &intermediate_of(&root)?)
}

/// The same, and the root is valid and unknown.
pub(crate) fn unknown_root(world: &mut World<'_>) -> Result<()> {
    partners::create(world, &intermediate_of(&Authority::new(ROOT)?)?)
}

fn intermediate_of(root: &Authority) -> Result<Authority> {
    root.intermediate("intermediate of partners")
}

/// The ConfigMap is added to `spec.additionalTrust`. The root would make gateways refuse the client, so it is not written.
pub(crate) fn trust_the_expired_root(world: &mut World<'_>) -> Result<()> {
    let further = json!([{ "kind": "ConfigMap", "name": FURTHER }]);
    world.step("additionalTrust set")?;
    world.patch(&format!("gatewaysecret/{NAME}"), &json!({ "spec": { "additionalTrust": further } }))?;
    world.agents.grant()?;
    wait(world, "the other CA to be trusted", |status| bundle(status).contains(&"CN=further clients"))?;
    world.wait_handshakes(BLOCKED)?;
    let status = status(world)?;
    ensure!(says(&status, ROOT), "expected the reason why {ROOT} is not trusted, saw {}", summary(&status));
    Ok(())
}

/// The new CA is a root with the name of the intermediate's issuer. A bundle with both makes gateways refuse the client, so the rotation waits.
/// It ends with a CA of another name.
pub(crate) fn rotate_to_a_root_of_that_name(world: &mut World<'_>) -> Result<()> {
    world.step("CA rotated")?;
    write_ca(world, &Authority::new(ROOT)?)?;
    wait(world, "the reason why the rotation waits", |status| says(status, ROOT))?;
    world.wait_handshakes(BLOCKED)?;
    ensure!(says(&status(world)?, ROOT), "expected the rotation to wait, saw {}", summary(&status(world)?));

    let other = Authority::new("partners 2")?;
    world.step("CA of another name")?;
    write_ca(world, &other)?;
    wait(world, "gateways to trust both CAs", |status| {
        ["CN=partners 2", "CN=intermediate of partners"].iter().all(|ca| bundle(status).contains(ca))
    })?;
    wait(world, "gateways to have them", |status| status["phase"] == "Converged")?;
    world.step("client re-issued")?;
    renew_client(world, &other)?;
    wait(world, "the old CA to be dropped", |status| status["phase"] == "Steady")?;
    world.wait_handshakes(BLOCKED)
}

/// Whether a wait, or a condition that is not True, has these words.
fn says(status: &Value, words: &str) -> bool {
    let waits = status["waits"].as_array().into_iter().flatten().filter_map(|wait| wait["reason"].as_str());
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let failing = conditions.filter(|condition| condition["status"] != "True");
    waits.chain(failing.filter_map(|condition| condition["message"].as_str())).any(|text| text.contains(words))
}
