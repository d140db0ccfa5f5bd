//! A Gateway that names the source Secret and selects other pods than the GatewaySecret: it is not rewritten.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::{
    acts::credential_name,
    issuer::{MANAGED, SERVER},
    objects::{gateway_of_pods, route},
    run::{BLOCKED, finish, needed_action, phase, summary, wait_status},
    scenarios::OTHER,
    world::World,
};

/// Name of the Gateway, and of its pods' Service.
const NAME: &str = "selects-others";
const GATEWAYS: &str = "othergateway";

/// Applies the Gateway. `kubectl apply` warns.
pub(crate) fn other_pods(world: &mut World<'_>) -> Result<()> {
    credential_name(world)?;
    world.start_second_istiod()?;
    let label = format!("{}-other", world.ns);
    world.start_second_ingress(GATEWAYS, &label, 1)?;
    let tls = json!({ "mode": "MUTUAL", "credentialName": SERVER });
    let apply = world.cluster.kubectl(["apply", "-f", "-"]).ns(&world.ns);
    let output = apply.stdin(gateway_of_pods(&label, NAME, &[OTHER], &tls).to_string()).run()?;
    ensure!(output.success(), "expected the Gateway to be applied, saw {}", output.stderr);
    world.apply(&[route(NAME, &[OTHER])])?;
    world.warnings = output.stderr;
    Ok(())
}

/// The rotation waits for the Gateway until that names the managed Secret.
pub(crate) fn waits_for_it(world: &mut World<'_>) -> Result<()> {
    let addresses = world.second_ingress.as_ref().context("other gateways")?.addresses();
    world.visit_also(OTHER, &addresses)?;
    world.step("CA rotated")?;
    world.rotate_ca()?;
    wait_status(world, "a wait that names the Gateway, or the end", |status| {
        let is_over = phase(status) == "ServingCertificateSwitched";
        (is_over || needed_action(status, &[NAME]).is_some()).then_some(())
    })?;
    world.wait_handshakes(BLOCKED)?;
    let status = world.operator.status()?;
    ensure!(needed_action(&status, &[NAME]).is_some(), "expected a wait that names {NAME}, saw {}", summary(&status));
    ensure!(world.warnings.contains(MANAGED), "expected a warning that names {MANAGED}, saw {:?}", world.warnings);
    world.step("the Gateway names the managed Secret")?;
    let tls = json!({ "mode": "MUTUAL", "credentialName": MANAGED });
    world.apply(&[gateway_of_pods(&format!("{}-other", world.ns), NAME, &[OTHER], &tls)])?;
    finish(world)
}
