//! Reissues that do not bring a certificate of the new CA: the Issuer is another one, it fails, or it does not exist. A person has to act;
//! until then the agent requests few certificates, and the other clients are reissued.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::{
    issuer::{Certificates, ROOT, SERVER},
    issuers::{by_certificate, external_for},
    objects,
    requests::Requests,
    run::{BLOCKED, finish, is_full, needed_action, summary, wait_status},
    testbed::{Cluster, SOON, wait_for, wait_for_value},
    world::{FEW, Layout, World},
};

/// The Issuer of all certificates before the rotation.
const OLD: &str = "ca";
/// The new Issuer, and the Secret of its CA.
const NEW: &str = "ca-2";
const NEW_ROOT: &str = "root-ca-2";
/// An Issuer that does not exist.
const MISSING: &str = "missing";
/// As many Certificates as the agent reissues at the same time.
const STUCK: usize = 10;

const TWO_CLIENTS: Certificates = Certificates { clients: 2, issuer: ROOT, ..FEW };
const CLIENTS: [&str; 2] = ["client-00", "client-01"];

/// The most CertificateRequests of a Certificate in two minutes: four with a pause that doubles from 15 seconds on, and one before the switch of
/// the serving certificate, which is a change.
const MOST: usize = 5;

/// How long requests are counted.
fn counted() -> Duration {
    Duration::from_secs(if is_full() { 120 } else { 30 })
}

/// The source Secret and its CA are derived from the gateways' Certificate.
pub(crate) fn derived(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    cluster.apply(ns, &TWO_CLIENTS.manifests(hosts))?;
    Ok(Layout::with_clients_of(TWO_CLIENTS, ns, by_certificate(ns)))
}

/// The GatewaySecret names the source Secret and the CA's Secret.
pub(crate) fn named(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    cluster.apply(ns, &TWO_CLIENTS.manifests(hosts))?;
    let mut gateway_secret = objects::gateway_secret(ns);
    gateway_secret["spec"].as_object_mut().context("spec")?.remove("issuerSecretName");
    Ok(Layout::with_clients_of(TWO_CLIENTS, ns, gateway_secret))
}

/// An external issuer with two clients.
pub(crate) fn external(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    external_for(TWO_CLIENTS, cluster, ns, hosts)
}

/// The gateways' Certificate gets a new Issuer, and the clients keep the old one.
pub(crate) fn clients_keep_the_old_issuer(world: &mut World<'_>) -> Result<()> {
    create_new_issuer(world)?;
    let requests = count_requests(world, &CLIENTS)?;
    world.step("new Issuer of the gateways")?;
    world.use_issuer(SERVER, NEW)?;
    world.agents.grant()?;
    few_requests(world, &requests, &CLIENTS, &["client-0", "Issuer", OLD])?;
    world.step("new Issuer of the clients")?;
    CLIENTS.iter().try_for_each(|client| world.use_issuer(client, NEW))?;
    end(world)
}

/// The GatewaySecret names the new CA, and the clients have its Issuer. The gateways' Certificate keeps the old one.
pub(crate) fn gateways_keep_the_old_issuer(world: &mut World<'_>) -> Result<()> {
    create_new_issuer(world)?;
    let requests = count_requests(world, &[SERVER])?;
    world.step("new Issuer of the clients")?;
    world.patch("gatewaysecret/gateway", &json!({ "spec": { "caSecretRef": { "name": NEW_ROOT } } }))?;
    world.agents.grant()?;
    CLIENTS.iter().try_for_each(|client| world.use_issuer(client, NEW))?;
    few_requests(world, &requests, &[SERVER], &[SERVER, "Issuer", OLD])?;
    world.step("new Issuer of the gateways")?;
    world.use_issuer(SERVER, NEW)?;
    end(world)
}

/// The issuer changes its CA, and refuses the requests of one client.
pub(crate) fn request_failed(world: &mut World<'_>) -> Result<()> {
    let [refused, other] = CLIENTS;
    let issuer = world.layout.external.clone().context("an external issuer")?;
    let requests = count_requests(world, &[refused])?;
    issuer.refuse(refused);
    world.step("CA rotated")?;
    issuer.rotate()?;
    world.operator.reissue(&[other])?;
    wait_for("a request of the client", SOON, || Ok(requests.of(&[refused]) > 0))?;
    few_requests(world, &requests, &[refused], &[refused])?;
    issuer.accept_all();
    world.step("the client renewed")?;
    world.operator.reissue(&[refused])?;
    finish(world)
}

fn create_new_issuer(world: &mut World<'_>) -> Result<()> {
    world.apply(&[
        json!({
            "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": { "name": NEW_ROOT },
            "spec": {
                "secretName": NEW_ROOT, "commonName": "new gateway clients", "isCA": true, "duration": "2160h",
                "privateKey": { "algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always" },
                "issuerRef": { "name": "self-signed", "kind": "Issuer" },
            },
        }),
        objects::ca_issuer(NEW, NEW_ROOT),
    ])?;
    world.wait_certificate(NEW_ROOT)
}

/// The rotation to the new Issuer ends.
fn end(world: &mut World<'_>) -> Result<()> {
    world.layout.ca.1 = NEW_ROOT.to_owned();
    finish(world)
}

/// Counts the requests of Certificates from now on.
fn count_requests(world: &World<'_>, certificates: &[&str]) -> Result<Arc<Requests>> {
    let requests = world.count_requests()?;
    wait_for("the requests until now", SOON, || Ok(requests.of(certificates) >= certificates.len()))?;
    requests.forget();
    Ok(requests)
}

/// Counts the requests of Certificates for a while. There must be few, and, then or later, a wait for a person that has these words.
fn few_requests(world: &World<'_>, requests: &Requests, certificates: &[&str], words: &[&str]) -> Result<()> {
    let (began, mut needs_person) = (Instant::now(), false);
    wait_for("the requests to be counted", counted() + SOON, || {
        needs_person |= needed_action(&world.observe()?, words).is_some();
        Ok(began.elapsed() >= counted())
    })?;
    let (count, seconds) = (requests.of(certificates), began.elapsed().as_secs());
    let most = MOST * certificates.len();
    ensure!(
        count <= most,
        "expected at most {most} CertificateRequests of {certificates:?}, saw {count} in {seconds} s: {}",
        summary(&world.operator.status()?)
    );
    if needs_person {
        return Ok(());
    }
    wait_status(world, &format!("a wait for a person that says {words:?}"), |status| needed_action(status, words))
        .map(drop)
}

/// Ten Certificates of clients cannot be issued: five never could, five have a certificate of an Issuer that is gone.
pub(crate) fn stuck(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    let layout = Layout::of_few_clients(cluster, ns, hosts)?;
    for number in 0..STUCK {
        let issuer = if number % 2 == 0 { OLD } else { MISSING };
        cluster.apply(ns, &objects::client(&stuck_client(number), issuer).to_string())?;
    }
    Ok(layout)
}

fn stuck_client(number: usize) -> String {
    format!("stuck-{number}")
}

/// The other clients are reissued. Then the Issuer is created.
pub(crate) fn others_are_reissued(world: &mut World<'_>) -> Result<()> {
    for number in (0..STUCK).step_by(2) {
        world.wait_certificate(&stuck_client(number))?;
        world.use_issuer(&stuck_client(number), MISSING)?;
    }
    world.step("CA rotated")?;
    world.rotate_ca()?;
    wait_reissued(world, &["client-00", "client-01", "client-02", "client-03"], "stuck-")?;
    world.step("Issuer created")?;
    let secret = world.layout.gateway_secret["spec"]["issuerSecretName"].as_str().context("an Issuer's Secret")?;
    world.apply(&[objects::ca_issuer(MISSING, secret)])?;
    finish(world)
}

/// Waits until clients have certificates of the new CA, and a wait for a person names those that do not.
fn wait_reissued(world: &World<'_>, clients: &[&str], others: &str) -> Result<()> {
    let mut said = None;
    wait_status(world, &format!("{clients:?} to be reissued, and a wait that names {others}"), |status| {
        said = said.take().or_else(|| needed_action(status, &[others]));
        let is_reissued = clients.iter().all(|client| world.is_of_newest_ca(client).unwrap_or_default());
        (is_reissued && said.is_some()).then_some(())
    })?;
    world.wait_handshakes(BLOCKED)
}

/// A ValidatingAdmissionPolicy of somebody denies the status of one client's Certificate to all users but cert-manager's.
pub(crate) fn protected(world: &mut World<'_>) -> Result<()> {
    let (name, [client, ..]) = (format!("{}-protected", world.ns), CLIENTS);
    let api = "admissionregistration.k8s.io/v1";
    let rule = json!({
        "apiGroups": ["cert-manager.io"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["certificates/status"],
    });
    let expression = format!("request.name != '{client}' || request.userInfo.username == 'admin'");
    world.apply(&[
        json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": { "name": name },
            "spec": {
                "matchConstraints": { "resourceRules": [rule] },
                "validations": [{ "expression": expression, "message": "this Certificate is protected" }],
            },
        }),
        json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": name },
            "spec": {
                "policyName": name, "validationActions": ["Deny"],
                "matchResources": { "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": world.ns } } },
            },
        }),
    ])?;
    wait_for_value("the policy to deny", SOON, || {
        let patch = json!({ "status": { "revision": 1 } }).to_string();
        let resource = format!("certificates.cert-manager.io/{client}");
        let args = ["patch", &resource, "--subresource=status", "--dry-run=server", "--type=merge", "--patch", &patch];
        let as_another = ["--as=another", "--as-group=system:masters"];
        let patched = world.cluster.kubectl(args.into_iter().chain(as_another)).ns(&world.ns).run()?;
        Ok(patched.stderr.contains("is protected").then_some(()))
    })?;
    world.step("CA rotated")?;
    world.rotate_ca()?;
    wait_reissued(world, &["client-01", "client-02", "client-03"], client)?;
    world.step("policy deleted")?;
    for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
        world.cluster.kubectl(["delete", kind, &name]).ok()?;
    }
    finish(world)
}
