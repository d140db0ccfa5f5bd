//! Rotations and renewals that must not fail, which shows that the test does not report false failures.

use anyhow::Result;

use crate::{naive::Step, world::World};

/// No rotation: certificates are renewed by the same CA, consumers load them with their usual delays, and gateways are
/// restarted one by one.
pub(crate) fn renewals(world: &mut World<'_>) -> Result<()> {
    world.step("leaves are renewed");
    world.wait_reloaded()?;
    world.step("gateways restarted");
    world.roll_gateways()?;
    world.wait_handshakes(100)
}

/// A manual rotation without hurry: each step waits until all consumers have loaded the last change, clients that load
/// once are restarted each time, and nothing is renewed meanwhile. The API server and gateways are restarted in
/// between. (cert-manager writes only the new CA into a client's Secret when it reissues that, so clients trust both
/// CAs and the serving certificate is switched before that.)
pub(crate) fn by_hand(world: &mut World<'_>) -> Result<()> {
    let step = Step::rotate_root(world)?;
    step.expand_gateways(world)?;
    step.expand_clients(world)?;
    world.wait_all_followed()?;
    world.step("API server restarted");
    world.cluster.restart_api_server()?;
    world.step("gateways restarted");
    world.roll_gateways()?;
    step.promote(world)?;
    step.switch_leaf(world)?;
    world.wait_all_followed()?;
    step.reissue_clients(world)?;
    world.wait_all_followed()?;
    step.drop_old(world)?;
    world.wait_all_followed()?;
    world.step("done");
    world.wait_handshakes(100)
}
