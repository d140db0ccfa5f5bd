//! Java clients: cert-manager renders their keystores, and they verify gateways by `truststore.jks` or `truststore.p12`.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    client::ReadTrust,
    issuer::{ROOT, SERVER},
    objects,
    run::{blocked, condition, finish, phase},
    testbed::{Cluster, SOON, wait_for, wait_for_value},
    truststores::{PASSWORD, jks, pkcs12},
    world::{CERTIFICATES, Layout, World},
};

/// The Secret with the password of the JKS stores. That of the others is in the Certificates.
const PASSWORD_SECRET: &str = "keystore-password";

/// Clients that read `truststore.jks`.
pub(crate) fn all_jks(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    layout(cluster, ns, hosts, |_| jks)
}

/// Clients of which half read `truststore.jks`, and half `truststore.p12`.
pub(crate) fn both(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    layout(cluster, ns, hosts, |name| if number(name).is_multiple_of(2) { jks } else { pkcs12 })
}

fn number(client: &str) -> usize {
    client.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// Whether a client reads `truststore.p12`.
pub(crate) fn reads_pkcs12(trust: ReadTrust) -> bool {
    std::ptr::fn_addr_eq(trust, pkcs12 as ReadTrust)
}

fn layout(cluster: &Cluster, ns: &str, hosts: &str, trust: fn(&str) -> ReadTrust) -> Result<Layout> {
    let password = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": PASSWORD_SECRET }, "stringData": { "password": PASSWORD },
    });
    cluster.apply(ns, &password.to_string())?;
    let objects: Vec<Value> = serde_saphyr::from_multiple(&CERTIFICATES.manifests(hosts))?;
    for mut object in objects {
        if !object["spec"]["secretTemplate"]["labels"]["trustspan.dev/client"].is_null() {
            let name = object["metadata"]["name"].as_str().context("a name")?;
            object["spec"]["keystores"] = keystores(name, trust(name));
        }
        cluster.apply(ns, &object.to_string())?;
    }
    Ok(Layout { trust, ..Layout::in_one_namespace(ns, objects::gateway_secret(ns)) })
}

/// Only what the client reads, in some of cert-manager's profiles.
fn keystores(client: &str, trust: ReadTrust) -> Value {
    if !reads_pkcs12(trust) {
        let password = json!({ "name": PASSWORD_SECRET, "key": "password" });
        return json!({ "jks": { "create": true, "passwordSecretRef": password, "alias": client } });
    }
    let mut pkcs12 = json!({ "create": true, "password": PASSWORD });
    if let Some(profile) = ["LegacyDES", "Modern2023"].get(number(client) / 2 % 3) {
        pkcs12["profile"] = json!(profile);
    }
    json!({ "pkcs12": pkcs12 })
}

/// Replaces the CA by one with another subject.
pub(crate) fn to_another_subject(world: &mut World<'_>) -> Result<()> {
    world.step("CA rotated")?;
    rename_ca(world)?;
    wait_for("the agent to see it", SOON, || Ok(phase(&world.operator.status()?) != "Steady"))?;
    finish(world)
}

/// Sets another subject in the CA's Certificate: cert-manager reissues it.
fn rename_ca(world: &World<'_>) -> Result<()> {
    let before = world.newest_ca()?;
    let patch = json!({ "spec": { "commonName": "gateway clients, next" } });
    world.patch(&format!("certificates.cert-manager.io/{ROOT}"), &patch)?;
    wait_for("the new CA", SOON, || Ok(world.newest_ca()? != before))
}

/// Replaces the CA by one with the same subject. Nothing is reissued until it has another one, and the status has said so before.
pub(crate) fn to_the_same_subject(world: &mut World<'_>) -> Result<()> {
    let names: Vec<_> = world.layout.clients.iter().map(|(_, name)| name.clone()).collect();
    let hidden = names.iter().filter(|name| reads_pkcs12((world.layout.trust)(name)));
    let first = hidden.min().context("a client that reads truststore.p12")?;
    wait_for_value("condition RotationReady to name the clients", SOON, || {
        let status = world.operator.status()?;
        let ready = condition(&status, "RotationReady").filter(|ready| ready["status"] == "False");
        let said = ready.and_then(|ready| ready["message"].as_str());
        Ok(said.filter(|said| said.contains("truststore.p12") && said.contains(first)).map(str::to_owned))
    })?;
    let issued: Vec<_> = names.iter().map(String::as_str).chain([SERVER]).collect();
    let before = world.operator.revisions(&issued)?;
    world.step("CA rotated")?;
    world.rotate_ca()?;
    wait_for("the agent to see it", SOON, || Ok(phase(&world.operator.status()?) != "Steady"))?;
    let why = blocked(world, "truststore.p12")?;
    ensure!(why.contains("another subject"), "expected a wait that says what to do, saw {why}");
    let after = world.operator.revisions(&issued)?;
    ensure!(before == after, "expected nothing to be reissued, saw revisions {before:?} become {after:?}");
    world.step("an operator acts")?;
    rename_ca(world)?;
    finish(world)
}
