//! The CA of clients changes from an ECDSA key to an ML-DSA key. cert-manager cannot issue from such a CA, so the test
//! writes it and the certificates itself.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    acts::credential_name,
    objects::{gateway, route},
    scenarios::OTHER,
    testbed::{Authority, SOON, wait_for},
    world::{PARTNER, World},
};

/// The names of the GatewaySecret with these clients, of its source Secret, and of the Secret of the clients' CA.
const NAME: &str = "ml-dsa";
const SOURCE: &str = "ml-dsa-server";
const CLIENTS: &str = "ml-dsa-clients";
/// Handshakes while the rotation waits until a newer proxy is declared.
const HELD: u32 = 500;

/// Creates another GatewaySecret, for another host, whose clients have a separate CA.
pub(crate) fn own_client_ca(world: &mut World<'_>) -> Result<()> {
    let server = Authority::new("server")?;
    let (chain, key) = server.issue(&[OTHER])?;
    world.apply(&[secret(SOURCE, &chain, &key, &server.pem()), client_ca(&world.partners)])?;
    write_client(world, &world.partners, &server.pem())?;
    world.apply(&[json!({
        "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": { "name": NAME },
        "spec": {
            "sourceSecretName": SOURCE, "secretName": "ml-dsa-managed", "workloadLabels": { "istio": world.ns },
            "clients": { "secretNames": [PARTNER], "allDeclared": true, "caSecretRef": { "name": CLIENTS } },
        },
    })])?;
    world.agents.grant()?;
    wait(world, "GatewaySecret ml-dsa to be Steady", |status| status["phase"] == "Steady")?;
    credential_name(world)?;
    let tls = json!({ "mode": "MUTUAL", "credentialName": SOURCE });
    world.apply(&[gateway(&world.ns, "partners", OTHER, &tls), route("partners", &[OTHER])])
}

/// The rotation waits while an older Envoy may be among the gateways, and completes after a newer one is declared.
pub(crate) fn rotate(world: &mut World<'_>) -> Result<()> {
    let new = Authority::of_ml_dsa("partners 2")?;
    world.step("CA rotated")?;
    world.apply(&[client_ca(&new)])?;
    wait(world, "the wait for a newer proxy", |status| {
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let says = |condition: &Value| condition["message"].as_str().is_some_and(|text| text.contains("Envoy 1.37"));
        conditions.into_iter().any(|condition| condition["status"] == "False" && says(condition))
    })?;
    world.wait_handshakes(HELD)?;
    ensure!(bundle(&status(world)?) == ["CN=partners"], "expected the old CA alone, saw {}", status(world)?["bundle"]);

    world.step("a newer proxy declared")?;
    let patch = json!({ "spec": { "oldestEnvoy": "1.40" } }).to_string();
    let args = ["patch", "rotationpolicy", "default", "--type=merge", "--patch", &patch];
    world.cluster.kubectl(args).ns(&world.ns).ok()?;
    wait(world, "gateways to trust both CAs", |status| bundle(status) == ["CN=partners 2", "CN=partners"])?;
    wait(world, "gateways to have them", |status| status["phase"] == "Converged")?;
    let known = world.operator.read(PARTNER)?;
    let trust = String::from_utf8(known.get("ca.crt").context("ca.crt")?.0.clone())?;
    write_client(world, &new, &trust)?;
    world.step("client re-issued")?;
    wait(world, "the old CA to be dropped", |status| {
        status["phase"] == "Steady" && bundle(status) == ["CN=partners 2"]
    })?;
    world.wait_handshakes(HELD)
}

fn client_ca(authority: &Authority) -> Value {
    secret(CLIENTS, &authority.pem(), &authority.key_pem(), &authority.pem())
}

/// The client's Secret, with a P-256 key.
fn write_client(world: &World<'_>, authority: &Authority, trust: &str) -> Result<()> {
    let (chain, key) = authority.issue_client(PARTNER)?;
    world.apply(&[secret(PARTNER, &chain, &key, trust)])
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

fn wait(world: &World<'_>, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<()> {
    let seen = wait_for(what, SOON, || Ok(is_so(&status(world)?)));
    seen.with_context(|| status(world).map_or_else(|error| error.to_string(), |status| status.to_string()))
}

fn bundle(status: &Value) -> Vec<&str> {
    let cas = status["bundle"].as_array().into_iter().flatten();
    cas.filter_map(|ca| ca["subject"].as_str()).collect()
}
