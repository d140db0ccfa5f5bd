//! Clients of an intermediate CA that gateways trust without its root. Envoy builds a path from a client up to the topmost CA of the bundle, so a
//! CA that is added can make it refuse a client.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    acts::credential_name,
    objects::{gateway, route},
    run::{BLOCKED, summary},
    scenarios::OTHER,
    testbed::{Authority, SOON, wait_for_value},
    world::{PARTNER, World},
};

/// The names of the GatewaySecret with these clients, of its source Secret, and of the Secret of the clients' CA.
const NAME: &str = "partners";
const SOURCE: &str = "partners-server";
const CLIENTS: &str = "partners-clients";
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
    own_client_ca(world, &root)
}

/// The same, and the root is valid and unknown.
pub(crate) fn unknown_root(world: &mut World<'_>) -> Result<()> {
    own_client_ca(world, &Authority::new(ROOT)?)
}

fn own_client_ca(world: &mut World<'_>, root: &Authority) -> Result<()> {
    let (server, intermediate) = (Authority::new("server")?, root.intermediate("intermediate of partners")?);
    let (chain, key) = server.issue(&[OTHER])?;
    let (client_chain, client_key) = intermediate.issue_client(PARTNER)?;
    world.apply(&[
        secret(SOURCE, &chain, &key, &server.pem()),
        client_ca(&intermediate),
        secret(PARTNER, &client_chain, &client_key, &server.pem()),
        json!({
            "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": { "name": NAME },
            "spec": {
                "sourceSecretName": SOURCE, "secretName": "partners-managed", "workloadLabels": { "istio": world.ns },
                "clients": { "secretNames": [PARTNER], "allDeclared": true, "caSecretRef": { "name": CLIENTS } },
            },
        }),
    ])?;
    world.agents.grant()?;
    wait(world, "GatewaySecret partners to be Steady", |status| (status["phase"] == "Steady").then_some(()))?;
    credential_name(world)?;
    let tls = json!({ "mode": "MUTUAL", "credentialName": SOURCE });
    world.apply(&[gateway(&world.ns, NAME, OTHER, &tls), route(NAME, &[OTHER])])
}

/// The ConfigMap is added to `spec.additionalTrust`. The root would make gateways refuse the client, so it is not written.
pub(crate) fn trust_the_expired_root(world: &mut World<'_>) -> Result<()> {
    let further = json!([{ "kind": "ConfigMap", "name": FURTHER }]);
    world.step("additionalTrust set")?;
    world.patch(&format!("gatewaysecret/{NAME}"), &json!({ "spec": { "additionalTrust": further } }))?;
    world.agents.grant()?;
    wait(world, "the other CA to be trusted", |status| {
        status["bundle"].to_string().contains("further clients").then_some(())
    })?;
    world.wait_handshakes(BLOCKED)?;
    let status = status(world)?;
    ensure!(says(&status, ROOT), "expected the reason why {ROOT} is not trusted, saw {}", summary(&status));
    Ok(())
}

/// The new CA is a root with the name of the intermediate's issuer. A bundle with both makes gateways refuse the client, so the rotation waits.
/// It ends with a CA of another name.
pub(crate) fn rotate_to_a_root_of_that_name(world: &mut World<'_>) -> Result<()> {
    world.step("CA rotated")?;
    world.apply(&[client_ca(&Authority::new(ROOT)?)])?;
    wait(world, "the reason why the rotation waits", |status| says(status, ROOT).then_some(()))?;
    world.wait_handshakes(BLOCKED)?;
    ensure!(says(&status(world)?, ROOT), "expected the rotation to wait, saw {}", summary(&status(world)?));

    let other = Authority::new("partners 2")?;
    world.step("CA of another name")?;
    world.apply(&[client_ca(&other)])?;
    wait(world, "gateways to trust both CAs", |status| {
        let subjects = status["bundle"].to_string();
        (subjects.contains("CN=partners 2") && subjects.contains("CN=intermediate of partners")).then_some(())
    })?;
    wait(world, "gateways to have them", |status| (status["phase"] == "Converged").then_some(()))?;
    let known = world.operator.read(PARTNER)?;
    let trust = String::from_utf8(known.get("ca.crt").context("ca.crt")?.0.clone())?;
    let (chain, key) = other.issue_client(PARTNER)?;
    world.step("client re-issued")?;
    world.apply(&[secret(PARTNER, &chain, &key, &trust)])?;
    wait(world, "the old CA to be dropped", |status| (status["phase"] == "Steady").then_some(()))?;
    world.wait_handshakes(BLOCKED)
}

/// Whether a wait, or a condition that is not True, has these words.
fn says(status: &Value, words: &str) -> bool {
    let waits = status["waits"].as_array().into_iter().flatten().filter_map(|wait| wait["reason"].as_str());
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let failing = conditions.filter(|condition| condition["status"] != "True");
    waits.chain(failing.filter_map(|condition| condition["message"].as_str())).any(|text| text.contains(words))
}

fn client_ca(authority: &Authority) -> Value {
    secret(CLIENTS, &authority.pem(), &authority.key_pem(), &authority.pem())
}

fn secret(name: &str, chain: &str, key: &str, ca: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": { "name": name },
        "stringData": { "tls.crt": chain, "tls.key": key, "ca.crt": ca },
    })
}

fn status(world: &World<'_>) -> Result<Value> {
    Ok(world.cluster.get("gatewaysecret", &world.ns, NAME)?["status"].take())
}

fn wait<T>(world: &World<'_>, what: &str, found: impl Fn(&Value) -> Option<T>) -> Result<T> {
    let seen = wait_for_value(what, 2 * SOON, || Ok(found(&status(world)?)));
    seen.with_context(|| status(world).map_or_else(|error| error.to_string(), |status| summary(&status)))
}
