//! Clients and gateways that the agent does not see: a rotation must not count them as up to date.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::{
    acts::{self, wait_stopped},
    issuer::{Certificates, ROOT},
    issuers::by_certificate,
    run::{BLOCKED, condition, finish, phase, renew_clients, summary, wait_end, wait_status},
    scenarios::SHOP,
    testbed::{Cluster, wait_for},
    world::{FEW, Layout, World},
};

/// In the reason of the wait for gateways that have earlier content.
const STALE: &str = "content of the managed Secret";
/// The client whose CertificateRequest is deleted.
const CLIENT: &str = "client-00";
/// The Issuer signs with the CA's own Secret, so certificates are issued before there is a GatewaySecret.
const UNSTAGED: Certificates = Certificates { issuer: ROOT, ..FEW };
/// Longer than a client needs to be issued on a busy machine.
const ISSUED: Duration = Duration::from_secs(120);

/// A client's CertificateRequests are deleted before the GatewaySecret is created, as after a restore without status.
pub(crate) fn without_requests(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    cluster.apply(ns, &UNSTAGED.manifests(hosts))?;
    wait_for("the client's Certificate to be ready", ISSUED, || {
        let certificate = cluster.get("certificates.cert-manager.io", ns, CLIENT)?;
        Ok(condition(&certificate["status"], "Ready").is_some_and(|ready| ready["status"] == "True"))
    })?;
    for request in cluster.list("certificaterequests.cert-manager.io", ns, "")? {
        let name = request["metadata"]["name"].as_str().unwrap_or_default();
        if name.starts_with(CLIENT) {
            cluster.kubectl(["delete", "certificaterequests.cert-manager.io", name]).ns(ns).ok()?;
        }
    }
    Ok(Layout::with_clients_of(UNSTAGED, ns, by_certificate(ns)))
}

/// The client connects after the old CA was dropped.
pub(crate) fn still_connects(world: &mut World<'_>) -> Result<()> {
    world.step("CA rotated")?;
    world.rotate_ca()?;
    wait_end(world)?;
    world.wait_handshakes(BLOCKED)?;
    renew_clients(world)
}

/// A Service that selects the gateways by one more label than the GatewaySecret.
pub(crate) fn narrow_service(world: &mut World<'_>) -> Result<()> {
    for pod in ["ingressgateway-0", "ingressgateway-1"] {
        world.cluster.kubectl(["label", "pod", pod, "app=ingressgateway"]).ns(&world.ns).ok()?;
    }
    world.patch("service/ingressgateway", &json!({ "spec": { "selector": { "app": "ingressgateway" } } }))?;
    acts::slow_gateways(world)
}

/// The same, with a debug pod that has the gateways' label, and that the Service does not select.
pub(crate) fn with_a_debug_pod(world: &mut World<'_>) -> Result<()> {
    narrow_service(world)?;
    create_debug_pod(world)
}

/// The rotation waits for gateways that get no updates, although the Service does not select all pods with their label.
pub(crate) fn gateways_are_stale(world: &mut World<'_>) -> Result<()> {
    stop_and_rotate(world)?;
    resume_after_the_delay(world)
}

/// A debug pod is created while gateways are known to be stale. It has their label, and the Service does not select it.
pub(crate) fn debug_pod(world: &mut World<'_>) -> Result<()> {
    stop_and_rotate(world)?;
    wait_stale(world)?;
    world.step("debug pod created")?;
    create_debug_pod(world)?;
    resume_after_the_delay(world)
}

fn stop_and_rotate(world: &mut World<'_>) -> Result<()> {
    world.step("istiod stopped")?;
    world.stop_istiod()?;
    world.step("CA rotated")?;
    world.rotate_ca()
}

fn create_debug_pod(world: &World<'_>) -> Result<()> {
    world.apply(&[json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "debug", "labels": { "istio": world.ns } },
        // A node must not run it.
        "spec": { "schedulerName": "none", "containers": [{ "name": "debug", "image": "debug" }] },
    })])
}

fn resume_after_the_delay(world: &mut World<'_>) -> Result<()> {
    wait_stopped(world)?;
    world.wait_handshakes(BLOCKED)?;
    let status = world.operator.status()?;
    ensure!(
        phase(&status) == "TrustExpanded",
        "expected the rotation to wait for the gateways, saw {}",
        summary(&status)
    );
    world.step("istiod continued")?;
    world.continue_istiod()?;
    finish(world)
}

fn wait_stale(world: &World<'_>) -> Result<()> {
    wait_status(world, "a wait for stale gateways", |status| {
        let mut waits = status["waits"].as_array()?.iter();
        waits.any(|wait| wait["reason"].as_str().is_some_and(|reason| reason.contains(STALE))).then_some(())
    })
}

/// A gateway behind a second istiod that lags. It gets ready after the others have the new CA.
pub(crate) fn gateways_scaled_up(world: &mut World<'_>) -> Result<()> {
    world.start_second_istiod()?;
    let number = world.start_another_gateway()?;
    let address = world.ingress.addresses()[number];
    // Its clients connect from the moment at which it is an endpoint, so only the first wait is before that.
    world.wait_gateway(SHOP, address)?;
    world.second_istiod()?.pause()?;
    world.patch("gatewaysecret/gateway", &json!({ "spec": { "paused": true } }))?;
    world.step("CA rotated")?;
    world.rotate_ca()?;
    wait_status(world, "the other gateways to trust both CAs", |status| {
        let bundle = status["bundle"].as_array()?;
        (bundle.len() == 2 && bundle.iter().all(|ca| ca["converged"] == true)).then_some(())
    })?;
    world.step("gateways scaled up")?;
    world.ingress.publish(world.cluster, &world.ns, number)?;
    world.visit_also(SHOP, &[address])?;
    world.patch("gatewaysecret/gateway", &json!({ "spec": { "paused": false } }))?;
    world.wait_handshakes(BLOCKED)?;
    wait_stale(world)?;
    world.step("second istiod continued")?;
    world.second_istiod()?.resume()?;
    finish(world)
}
