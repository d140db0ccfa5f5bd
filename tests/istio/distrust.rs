//! An intermediate CA in `spec.distrustedCAs` whose root stays trusted: gateways accept its clients all the same.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use trustspan::trust::bundle;

use crate::{
    issuers::{INTERMEDIATE, intermediate_for},
    run::{BLOCKED, condition, summary, wait_status},
    testbed::Cluster,
    world::{FEW, Layout, World},
};

/// The condition.
const DISTRUST: &str = "DistrustApplied";
/// The subject of the intermediate CA.
const SUBJECT: &str = "second tier";

/// An intermediate CA that signs few clients.
pub(crate) fn intermediate(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    intermediate_for(FEW, "1080h", cluster, ns, hosts)
}

/// A new intermediate of the same root is issued, and the old one is distrusted. Status must not say that this is applied.
pub(crate) fn of_a_trusted_root(world: &mut World<'_>) -> Result<()> {
    let chain = bundle::read_chain(&world.operator.read(INTERMEDIATE)?.get("tls.crt").context("tls.crt")?.0);
    let old = chain.into_certificates().first().context("a CA")?.fingerprint.clone();
    world.step("CA rotated")?;
    world.operator.reissue(&[INTERMEDIATE])?;
    world.step("old CA distrusted")?;
    world.patch("gatewaysecret/gateway", &json!({ "spec": { "distrustedCAs": [old] } }))?;
    wait_status(world, "a condition", |status| condition(status, DISTRUST).map(drop))?;
    world.wait_handshakes(BLOCKED)?;
    let status = world.operator.status()?;
    let condition = condition(&status, DISTRUST).context("no condition")?;
    ensure!(condition["status"] != "True", "expected {DISTRUST} not to be True, saw {condition}");
    let message = condition["message"].as_str().unwrap_or_default();
    ensure!(message.contains(SUBJECT), "expected a message that names {SUBJECT}, saw {}", summary(&status));
    Ok(())
}
