//! A CA that ends soon. The others must go on to connect after its end although some lag.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use trustspan::trust::bundle;

use crate::{
    issuer::ROOT,
    issuers::{INTERMEDIATE, intermediate_for},
    objects,
    run::FOLLOWED,
    testbed::{Cluster, SOON, wait_for},
    world::{FEW, Layout, World},
};

/// Lifetime of the first CA: longer than a scenario needs until the rotation, also on a busy machine. cert-manager does not limit leaves
/// to it.
const LIFE: Duration = Duration::from_secs(150);
/// What the rotation needs of it.
const LEFT: Duration = Duration::from_secs(40);

/// The client whose Certificate gets an Issuer that does not exist, and the one that is deleted.
const NEVER_ISSUED: &str = "client-00";
const DELETED: &str = "client-01";

/// A CA that ends soon. Two of four clients connect.
pub(crate) fn short_ca(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    let manifests = FEW.manifests(hosts);
    let short = manifests.replacen("duration: 2160h", &format!("duration: {}s\n  renewBefore: 1s", LIFE.as_secs()), 1);
    ensure!(short != manifests, "expected the duration of the CA in {manifests}");
    cluster.apply(ns, &short)?;
    let mut layout = Layout::with_clients_of(FEW, ns, objects::gateway_secret(ns));
    layout.clients.retain(|(_, name)| ![NEVER_ISSUED, DELETED].contains(&name.as_str()));
    Ok(layout)
}

/// Two clients never follow the rotation. The others connect after the end of the old CA, and a wait has named who will not, and when.
pub(crate) fn others_outlive_the_ca(world: &mut World<'_>) -> Result<()> {
    [NEVER_ISSUED, DELETED].iter().try_for_each(|client| world.wait_certificate(client))?;
    let end = end_of(world, ROOT)?;
    world.use_issuer(NEVER_ISSUED, "missing")?;
    for kind in ["certificates.cert-manager.io", "secret"] {
        world.cluster.kubectl(["delete", kind, DELETED]).ns(&world.ns).ok()?;
    }
    replace(world, ROOT, end)?;
    let mut named: [Option<Timestamp>; 2] = [None; 2];
    outlive(world, end, |status| {
        for (client, until) in [NEVER_ISSUED, DELETED].iter().zip(&mut named) {
            *until = until.or_else(|| end_of_wait(status, client));
        }
    })?;
    let is_beforehand = |until: &Option<Timestamp>| until.is_some_and(|until| until <= end);
    ensure!(
        named.iter().all(is_beforehand),
        "expected waits that name {NEVER_ISSUED} and {DELETED}, and end before the CA at {end}, saw {named:?}"
    );
    Ok(())
}

/// When a wait ends that names a client.
fn end_of_wait(status: &Value, client: &str) -> Option<Timestamp> {
    let mut waits = status["waits"].as_array()?.iter();
    waits.find_map(|wait| {
        let is_named = wait["reason"].as_str().is_some_and(|reason| reason.contains(client));
        wait["until"].as_str().filter(|_| is_named)?.parse().ok()
    })
}

/// Leaves of an intermediate CA that ends soon.
pub(crate) fn short_intermediate(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    intermediate_for(FEW, &format!("{}s", LIFE.as_secs()), cluster, ns, hosts)
}

/// The intermediate CA is renewed under the same root. Clients and gateways get the new chain before the old one ends.
pub(crate) fn intermediate_renewed(world: &mut World<'_>) -> Result<()> {
    let end = end_of(world, INTERMEDIATE)?;
    replace(world, INTERMEDIATE, end)?;
    outlive(world, end, |_| ())
}

/// When the certificate in a Secret ends.
fn end_of(world: &World<'_>, secret: &str) -> Result<Timestamp> {
    let chain = bundle::read_chain(&world.operator.read(secret)?.get("tls.crt").context("tls.crt")?.0);
    Ok(chain.into_certificates().first().context("a certificate")?.not_after)
}

/// Has a CA issued again, with a long lifetime.
fn replace(world: &World<'_>, ca: &str, end: Timestamp) -> Result<()> {
    let left = end.duration_since(Timestamp::now());
    ensure!(left.unsigned_abs() > LEFT && !left.is_negative(), "the machine is too busy: the CA ends in {left:#}");
    world.step("CA rotated")?;
    let spec = json!({ "duration": "2160h", "renewBefore": Value::Null });
    world.patch(&format!("certificates.cert-manager.io/{ca}"), &json!({ "spec": spec }))?;
    wait_for("the new CA", SOON, || Ok(end_of(world, ca)? != end))
}

/// Waits until the old CA has ended and clients have connected since. `read` gets each status until then.
fn outlive(world: &World<'_>, end: Timestamp, mut read: impl FnMut(&Value)) -> Result<()> {
    wait_for("the old CA to end", LIFE, || {
        let status = world.observe()?;
        read(&status);
        Ok(Timestamp::now() > end)
    })?;
    world.step("the old CA has ended")?;
    world.wait_handshakes(FOLLOWED)
}
