//! Clients that connect to the gateways of two GatewaySecrets with one CA. Their label names one of them.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    acts::credential_name,
    issuer::ROOT,
    objects::{certificate, gateway_of_pods, rotation_policy_of, route},
    run::{BLOCKED, phase, renew_clients, summary, wait_end},
    scenarios::OTHER,
    testbed::{Cluster, SOON, wait_for},
    world::{FEW, Layout, World},
};

/// Names of the second GatewaySecret and its RotationPolicy, of its source Secret, and of its gateways.
const NAME: &str = "second";
const SOURCE: &str = "second-server";
const GATEWAYS: &str = "secondgateway";

fn label(world: &World<'_>) -> String {
    format!("{}-second", world.ns)
}

/// The Issuer signs with the CA's own Secret: two GatewaySecrets cannot both write a copy.
pub(crate) fn layout(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    let certificates = crate::issuer::Certificates { issuer: ROOT, ..FEW };
    cluster.apply(ns, &certificates.manifests(hosts))?;
    let mut gateway_secret = crate::objects::gateway_secret(ns);
    gateway_secret["spec"].as_object_mut().context("spec")?.remove("issuerSecretName");
    Ok(Layout::with_clients_of(certificates, ns, gateway_secret))
}

/// Starts the second gateways, behind a second istiod, with another host and GatewaySecret.
pub(crate) fn two_gateway_secrets(world: &mut World<'_>) -> Result<()> {
    credential_name(world)?;
    world.start_second_istiod()?;
    let label = label(world);
    world.start_second_ingress(GATEWAYS, &label, 1)?;
    world.apply(&[certificate(SOURCE, OTHER, "ECDSA", 256)])?;
    world.wait_certificate(SOURCE)?;
    world.apply(&[
        rotation_policy_of(NAME, "1h"),
        json!({
            "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": { "name": NAME },
            "spec": {
                "sourceSecretName": SOURCE, "caSecretRef": { "name": ROOT }, "secretName": "second-managed",
                "workloadLabels": { "istio": label }, "policyName": NAME, "clients": { "allDeclared": true },
            },
        }),
    ])?;
    world.agents.grant()?;
    wait_steady(world)?;
    let tls = json!({ "mode": "MUTUAL", "credentialName": SOURCE });
    world.apply(&[gateway_of_pods(&label, NAME, &[OTHER], &tls), route(NAME, &[OTHER])])
}

/// The second gateways get no updates while the CA is rotated. The clients keep their certificates until they do.
pub(crate) fn second_gateways_lag(world: &mut World<'_>) -> Result<()> {
    let addresses = world.second_ingress.as_ref().context("second gateways")?.addresses();
    world.visit_also(OTHER, &addresses)?;
    world.step("second istiod stopped")?;
    world.second_istiod()?.pause()?;
    world.step("CA rotated")?;
    world.rotate_ca()?;
    wait_for("the second GatewaySecret to see it", SOON, || Ok(phase(&second(world)?) != "Steady"))?;
    wait_for("the first to see it", SOON, || Ok(phase(&world.operator.status()?) != "Steady"))?;
    world.wait_handshakes(2 * BLOCKED)?;
    let status = world.operator.status()?;
    let waits = status["waits"].to_string();
    ensure!(waits.contains(NAME), "expected a wait that names GatewaySecret {NAME}, saw {}", summary(&status));
    world.step("second istiod continued")?;
    world.second_istiod()?.resume()?;
    let delays = json!({ "spec": { "propagationDelays": { "gateways": "10s" } } });
    world.patch(&format!("rotationpolicy/{NAME}"), &delays)?;
    wait_end(world)?;
    wait_steady(world)?;
    world.wait_handshakes(BLOCKED)?;
    renew_clients(world)
}

fn second(world: &World<'_>) -> Result<Value> {
    Ok(world.cluster.get("gatewaysecret", &world.ns, NAME)?["status"].take())
}

fn wait_steady(world: &World<'_>) -> Result<()> {
    let steady = wait_for("the second GatewaySecret to be Steady", SOON, || Ok(phase(&second(world)?) == "Steady"));
    steady.with_context(|| second(world).map_or_else(|error| error.to_string(), |status| summary(&status)))
}
