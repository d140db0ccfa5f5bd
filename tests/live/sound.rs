//! What must not fail: the harness recognises success, too.

use anyhow::Result;

use crate::{naive::Step, world::World};

/// No rotation: leaves renewed by cert-manager under the same CA, consumers that load them when they come to it, and
/// gateways restarted one by one.
pub(crate) fn renewals(world: &mut World<'_>) -> Result<()> {
    world.step("leaves are renewed");
    world.wait_reloaded()?;
    world.step("gateways restarted");
    world.roll_gateways()?;
    world.wait_handshakes(100)
}

/// A rotation as somebody with much patience makes it: every step waits until all have followed the last one, those that
/// load once are restarted each time, and nothing renews meanwhile. The API server and gateways are restarted in the midst. (cert-manager writes the new CA alone into a client's
/// Secret when it re-issues it: so the serving certificate is switched first, and clients trust both CAs by then.)
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
