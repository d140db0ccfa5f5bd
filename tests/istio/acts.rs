//! What users apply in a scenario, and what an administrator does to end a wait.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::{
    issuer::{CANARY, Data, SERVER},
    objects::{self, certificate, gateway, gateway_of, http_route, route},
    run::summary,
    scenarios::{OTHER, SHOP},
    testbed::{SOON, wait_for},
    upstream,
    world::World,
};

/// Secret `<source>-cacert`, from which istiod takes the CAs of a server that names the source Secret.
pub(crate) const SOURCE_CACERT: &str = "gateway-server-cacert";
/// The same for the managed Secret.
pub(crate) const MANAGED_CACERT: &str = "gateway-managed-cacert";
/// A Secret with the clients' CA and the partner's CA.
pub(crate) const PARTNERS_CACERT: &str = "partners-cacert";
/// A ConfigMap with the same CAs.
const PARTNERS: &str = "partners";
/// The Gateway of [`shop`].
const SHOP_GATEWAY: &str = "gateways.networking.istio.io/shop";
/// istiod is paused for at least this long, three times `propagationDelays.gateways`.
const STOPPED: Duration = Duration::from_secs(35);

/// A Gateway that names the source Secret; the webhook rewrites it.
pub(crate) fn credential_name(world: &mut World<'_>) -> Result<()> {
    shop(world, &json!({ "mode": "MUTUAL", "credentialName": SERVER }))
}

/// The same, with a second host whose clients' CAs are in another Secret.
pub(crate) fn other_secret(world: &mut World<'_>) -> Result<()> {
    extend_partners_cacert(world)?;
    credential_name(world)?;
    partners(world, PARTNERS_CACERT)
}

fn extend_partners_cacert(world: &mut World<'_>) -> Result<()> {
    let partner = world.partners.pem();
    extend(world, PARTNERS_CACERT, &partner)
}

/// The same, with the CAs of the second host in a ConfigMap.
pub(crate) fn config_map(world: &mut World<'_>) -> Result<()> {
    extend_config_map(world)?;
    credential_name(world)?;
    let name = format!("configmap://{}/{PARTNERS}", world.ns);
    partners(world, &name)
}

/// The same, and the agent writes a copy of the ConfigMap, which the webhook names in the Gateway.
pub(crate) fn kept_config_map(world: &mut World<'_>) -> Result<()> {
    extend_config_map(world)?;
    keep_config_map(world)?;
    config_map(world)?;
    let stored = world.cluster.get("gateways.networking.istio.io", &world.ns, "partners")?;
    let named = &stored["spec"]["servers"][0]["tls"]["caCertCredentialName"];
    let expected = format!("configmap://{}/{PARTNERS}.trustspan", world.ns);
    ensure!(*named == expected, "expected the Gateway to name {expected}, saw {named}");
    Ok(())
}

/// The same, with a Gateway of the Gateway API.
pub(crate) fn gateway_api(world: &mut World<'_>) -> Result<()> {
    extend_config_map(world)?;
    keep_config_map(world)?;
    credential_name(world)?;
    let upstream = upstream::start(&world.operator.runtime)?;
    world.apply(&upstream::objects(upstream))?;
    let gateway = objects::gateway_api(&world.ns, "partners", OTHER, PARTNERS);
    world.apply(&[gateway, http_route("partners", OTHER, upstream::NAME, upstream::PORT)])?;
    let stored = world.cluster.get("gateways.gateway.networking.k8s.io", &world.ns, "partners")?;
    let spec = &stored["spec"];
    let named = &spec["tls"]["frontend"]["default"]["validation"]["caCertificateRefs"][0]["name"];
    ensure!(*named == "partners.trustspan", "expected the Gateway to name partners.trustspan, saw {named}");
    Ok(())
}

fn keep_config_map(world: &World<'_>) -> Result<()> {
    set(world, "gatewaysecret/gateway", &json!({ "clients": { "caConfigMapNames": [PARTNERS] } }))?;
    world.agents.grant()?;
    wait_for("the ConfigMap to be kept", SOON, || Ok(!world.operator.status()?["managedConfigMaps"].is_null()))
}

fn extend_config_map(world: &mut World<'_>) -> Result<()> {
    let known = world.cluster.exists("configmap", &world.ns, PARTNERS)?;
    let known = known.then(|| world.cluster.get("configmap", &world.ns, PARTNERS)).transpose()?;
    let known = known.map_or_else(|| world.partners.pem(), |known| text(&known["data"]["ca.crt"]));
    let data = json!({ "ca.crt": world.newest_ca()? + &known });
    world.apply(&[json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": PARTNERS }, "data": data })])
}

/// A Gateway that names `<source>-cacert`, which does not exist: istiod uses the source Secret.
pub(crate) fn source_cacert_name(world: &mut World<'_>) -> Result<()> {
    shop(world, &json!({ "mode": "MUTUAL", "credentialName": SERVER, "caCertCredentialName": SOURCE_CACERT }))
}

/// The Gateway names another serving Secret first, from which istiod takes the CAs. Clients prefer ECDSA, so they get
/// the source Secret's certificate.
pub(crate) fn other_first(world: &mut World<'_>) -> Result<()> {
    world.apply(&[certificate("other", SHOP, "RSA", 2048)])?;
    world.wait_certificate("other")?;
    shop(world, &json!({ "mode": "MUTUAL", "credentialNames": ["other", SERVER] }))
}

/// Secret `<managed>-cacert` exists, so istiod takes the CAs from it and not from the managed Secret.
pub(crate) fn managed_cacert(world: &mut World<'_>) -> Result<()> {
    credential_name(world)?;
    extend(world, MANAGED_CACERT, "")
}

/// A name without the suffix `-cacert`: istiod serves the Secret as a certificate, and the gateway accepts every
/// client. The test first shows that without admission.
pub(crate) fn plain_name(world: &mut World<'_>) -> Result<()> {
    let tls = json!({ "mode": "MUTUAL", "credentialName": SERVER, "caCertCredentialName": SERVER });
    world.admission_off()?;
    shop(world, &tls)?;
    world.wait_admitted_without_certificate(SHOP)?;
    world.cluster.kubectl(["delete", "gateways.networking.istio.io", "shop"]).ns(&world.ns).ok()?;
    world.admission_on()?;
    let dry_run = world.cluster.kubectl(["apply", "--dry-run=server", "-f", "-"]).ns(&world.ns);
    let said = dry_run.stdin(gateway(&world.ns, "shop", SHOP, &tls).to_string()).fails()?;
    ensure!(said.contains("admits-everybody"), "expected a dry run to be denied, saw {said}");
    shop(world, &tls)
}

/// A Gateway that its finalizer keeps until the end of the run. istiod serves it until it is gone, so its changes are judged.
pub(crate) fn in_deletion(world: &mut World<'_>) -> Result<()> {
    credential_name(world)?;
    world.patch(SHOP_GATEWAY, &json!({ "metadata": { "finalizers": ["example.com/hold"] } }))?;
    world.cluster.kubectl(["delete", "--wait=false", SHOP_GATEWAY]).ns(&world.ns).ok()?;
    let tls = json!({ "mode": "MUTUAL", "credentialName": SERVER, "caCertCredentialName": SERVER });
    let change = json!([{ "op": "replace", "path": "/spec/servers/0/tls", "value": tls }]).to_string();
    let patch = world.cluster.kubectl(["patch", SHOP_GATEWAY, "--type=json", "--patch", &change]).ns(&world.ns);
    let said = patch.fails()?;
    ensure!(said.contains("admits-everybody"), "expected the change to be denied, saw {said}");
    Ok(())
}

/// A server that accepts clients by the hashes of their certificates.
pub(crate) fn pinned(world: &mut World<'_>) -> Result<()> {
    let hashes = world.client_hashes()?;
    shop(world, &json!({ "mode": "MUTUAL", "credentialName": SERVER, "verifyCertificateHash": hashes }))
}

/// The same, by a name that all clients' certificates have.
pub(crate) fn let_in_by_name(world: &mut World<'_>) -> Result<()> {
    shop(world, &json!({ "mode": "MUTUAL", "credentialName": SERVER, "subjectAltNames": [SHOP] }))
}

/// A second certificate of the same issuer is served for another host.
pub(crate) fn second_credential(world: &mut World<'_>) -> Result<()> {
    world.apply(&[certificate("second", OTHER, "ECDSA", 256)])?;
    world.wait_certificate("second")?;
    let tls = json!({ "mode": "MUTUAL", "credentialNames": [SERVER, "second"] });
    world.apply(&[gateway_of(&world.ns, "shop", &[SHOP, OTHER], &tls), route("shop", &[SHOP, OTHER])])
}

/// A gateway presents the source Secret's certificate to an upstream that requires one of the clients' CA. The upstream
/// is the other host, at the second gateway. Exported to its own namespace only: gateways of other scenarios would use
/// it, too.
pub(crate) fn destination_rule(world: &mut World<'_>) -> Result<()> {
    credential_name(world)?;
    let tls = json!({ "mode": "MUTUAL", "credentialName": SERVER });
    let upstream = world.ingress.addresses()[1];
    world.apply(&[
        gateway(&world.ns, "relay", OTHER, &tls),
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry", "metadata": { "name": "upstream" },
            "spec": {
                "hosts": ["upstream.example.com"], "location": "MESH_EXTERNAL", "resolution": "STATIC",
                "ports": [{ "number": 443, "name": "http", "protocol": "HTTP" }],
                "endpoints": [{ "address": upstream.ip().to_string(), "ports": { "http": upstream.port() } }],
            },
        }),
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "DestinationRule", "metadata": { "name": "upstream" },
            "spec": { "host": "upstream.example.com", "exportTo": ["."], "trafficPolicy": {
                "tls": { "mode": "MUTUAL", "credentialName": SERVER, "sni": SHOP },
                // A connection for each request, so that each makes a handshake.
                "connectionPool": { "http": { "maxRequestsPerConnection": 1 } },
            } },
        }),
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": { "name": "relay" },
            "spec": { "hosts": [OTHER], "gateways": ["relay"], "http": [{
                "rewrite": { "authority": SHOP },
                "route": [{ "destination": { "host": "upstream.example.com", "port": { "number": 443 } } }],
            }] },
        }),
    ])
}

/// A Gateway that was applied while the webhook was down still names the source Secret. A separate Secret has the
/// source's CAs and a partner's CA.
pub(crate) fn missed_by_the_webhook(world: &mut World<'_>) -> Result<()> {
    extend_source_cacert(world)?;
    world.admission_off()?;
    credential_name(world)?;
    world.admission_on()
}

/// The same, because the owner has opted out of the rewrite.
pub(crate) fn opted_out(world: &mut World<'_>) -> Result<()> {
    extend_source_cacert(world)?;
    let mut gateway = gateway(&world.ns, "shop", SHOP, &json!({ "mode": "MUTUAL", "credentialName": SERVER }));
    gateway["metadata"]["annotations"] = json!({ "trustspan.dev/rewrite": "disabled" });
    world.apply(&[gateway, route("shop", &[SHOP])])
}

fn extend_source_cacert(world: &mut World<'_>) -> Result<()> {
    let partner = world.partners.pem();
    extend(world, SOURCE_CACERT, &partner)
}

/// A propagation delay that is common for gateways.
pub(crate) fn slow_gateways(world: &mut World<'_>) -> Result<()> {
    set(world, POLICY, &json!({ "propagationDelays": { "gateways": "10s" } }))?;
    credential_name(world)
}

/// The same, with a canary for probes.
pub(crate) fn probed_gateways(world: &mut World<'_>) -> Result<()> {
    slow_gateways(world)?;
    world.cluster.apply(&world.ns, CANARY)?;
    world.wait_certificate("canary")?;
    let target = json!({ "serviceName": "ingressgateway", "host": SHOP, "clientSecretName": "canary" });
    set(world, POLICY, &json!({ "probe": { "target": target } }))?;
    world.agents.grant()
}

/// Runs the command at the end of a wait's reason, as an administrator.
pub(crate) fn run_printed(world: &mut World<'_>) -> Result<()> {
    let status = world.operator.status()?;
    let reasons = status["waits"].as_array().into_iter().flatten().filter_map(|wait| wait["reason"].as_str());
    let command = |reason: &str| {
        let at = [": trustspan ", ": kubectl "].iter().find_map(|start| Some(reason.rfind(start)? + 2))?;
        Some(reason[at..].to_owned())
    };
    let command = reasons.filter_map(command).next();
    let command = command.with_context(|| format!("no wait ends with a command: {}", summary(&status)))?;
    world.cluster.run_command(&command)
}

pub(crate) fn continue_istiod(world: &mut World<'_>) -> Result<()> {
    wait_stopped(world)?;
    world.continue_istiod()
}

/// Waits until istiod is paused for longer than `propagationDelays.gateways`.
pub(crate) fn wait_stopped(world: &World<'_>) -> Result<()> {
    let stopped = world.since_stop()?;
    wait_for("istiod to be paused long enough", SOON, || Ok(stopped.elapsed() >= STOPPED))
}

fn shop(world: &World<'_>, tls: &Value) -> Result<()> {
    world.apply(&[gateway(&world.ns, "shop", SHOP, tls), route("shop", &[SHOP])])
}

fn partners(world: &World<'_>, ca: &str) -> Result<()> {
    let tls = json!({ "mode": "MUTUAL", "credentialName": SERVER, "caCertCredentialName": ca });
    world.apply(&[gateway(&world.ns, "partners", OTHER, &tls), route("partners", &[OTHER])])
}

/// Adds the newest CA at the top of a Secret. If the Secret does not exist, it is created with the newest CA and
/// `first`.
fn extend(world: &World<'_>, name: &str, first: &str) -> Result<()> {
    let known = match world.cluster.exists("secret", &world.ns, name)? {
        true => String::from_utf8(world.operator.read(name)?["ca.crt"].0.clone())?,
        false => first.to_owned(),
    };
    let bundle = world.newest_ca()? + &known;
    world.operator.write(&[(name, Data::from([("ca.crt".to_owned(), ByteString(bundle.into_bytes()))]))])
}

const POLICY: &str = "rotationpolicy/default";

fn set(world: &World<'_>, object: &str, spec: &Value) -> Result<()> {
    world.patch(object, &json!({ "spec": spec }))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
