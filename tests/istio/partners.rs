//! Another GatewaySecret, for another host, whose clients have a separate CA. The test writes that CA and the certificates itself.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{
    acts::credential_name,
    objects::{gateway, route},
    run::summary,
    scenarios::OTHER,
    testbed::{Authority, SOON, wait_for},
    world::{PARTNER, World},
};

/// The name of the GatewaySecret.
pub(crate) const NAME: &str = "partners";
/// The source Secret, and the Secret of the clients' CA.
const SOURCE: &str = "partners-server";
const CLIENTS: &str = "partners-clients";

/// Creates it with a client of this CA, and the Gateways of both GatewaySecrets.
pub(crate) fn create(world: &mut World<'_>, ca: &Authority) -> Result<()> {
    let server = Authority::new("server")?;
    let (chain, key) = server.issue(&[OTHER])?;
    world.apply(&[secret(SOURCE, &chain, &key, &server.pem())])?;
    write_ca(world, ca)?;
    write_client(world, ca, &server.pem())?;
    world.apply(&[json!({
        "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": { "name": NAME },
        "spec": {
            "sourceSecretName": SOURCE, "secretName": "partners-managed", "workloadLabels": { "istio": world.ns },
            "clients": { "secretNames": [PARTNER], "allDeclared": true, "caSecretRef": { "name": CLIENTS } },
        },
    })])?;
    world.agents.grant()?;
    wait(world, "GatewaySecret partners to be Steady", |status| status["phase"] == "Steady")?;
    credential_name(world)?;
    let tls = json!({ "mode": "MUTUAL", "credentialName": SOURCE });
    world.apply(&[gateway(&world.ns, NAME, OTHER, &tls), route(NAME, &[OTHER])])
}

/// Writes the Secret of the clients' CA.
pub(crate) fn write_ca(world: &World<'_>, ca: &Authority) -> Result<()> {
    world.apply(&[secret(CLIENTS, &ca.pem(), &ca.key_pem(), &ca.pem())])
}

/// Writes a new certificate of this CA to the client's Secret. The client trusts the same CAs as before.
pub(crate) fn renew_client(world: &World<'_>, ca: &Authority) -> Result<()> {
    let known = world.operator.read(PARTNER)?;
    let trust = String::from_utf8(known.get("ca.crt").context("ca.crt")?.0.clone())?;
    write_client(world, ca, &trust)
}

/// The client's Secret, with a P-256 key.
fn write_client(world: &World<'_>, ca: &Authority, trust: &str) -> Result<()> {
    let (chain, key) = ca.issue_client(PARTNER)?;
    world.apply(&[secret(PARTNER, &chain, &key, trust)])
}

fn secret(name: &str, chain: &str, key: &str, ca: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": { "name": name },
        "stringData": { "tls.crt": chain, "tls.key": key, "ca.crt": ca },
    })
}

/// Its status.
pub(crate) fn status(world: &World<'_>) -> Result<Value> {
    Ok(world.cluster.get("gatewaysecret", &world.ns, NAME)?["status"].take())
}

/// Waits until its status is as expected.
pub(crate) fn wait(world: &World<'_>, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<()> {
    let waited = wait_for(what, 2 * SOON, || Ok(is_so(&status(world)?)));
    waited.with_context(|| status(world).map_or_else(|error| error.to_string(), |status| summary(&status)))
}

/// The subjects of the CAs that its gateways trust.
pub(crate) fn bundle(status: &Value) -> Vec<&str> {
    let cas = status["bundle"].as_array().into_iter().flatten();
    cas.filter_map(|ca| ca["subject"].as_str()).collect()
}
