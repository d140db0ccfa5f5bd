//! Ways to rotate a CA that teams use today, each represented by a small script. Every one fails, each in a way of
//! its own; a harness that did not see it would prove nothing.

use std::thread::sleep;

use anyhow::Result;
use k8s_openapi::ByteString;

use crate::{
    issuer::{Data, MANAGED, PROMOTED, ROOT, SERVER},
    pace::{POLL, TIMER},
    world::{World, ca_of, pair_of},
};

/// The steps that scripts are made of, once there is a new CA. None of them waits for consumers.
pub(crate) struct Step {
    old: Data,
    new: Data,
}

impl Step {
    /// Reissues the source Secret, with a new key.
    pub(crate) fn rotate_root(world: &World<'_>) -> Result<Self> {
        world.step("root rotated");
        let old = world.operator.read(ROOT)?;
        world.operator.reissue(&[ROOT])?;
        Ok(Self { old, new: world.operator.read(ROOT)? })
    }

    /// Gateways trust both CAs, the new one first.
    pub(crate) fn expand_gateways(&self, world: &World<'_>) -> Result<()> {
        world.step("gateways get both CAs");
        world.operator.write(&[(MANAGED, self.managed(world, self.both()?, false)?)])
    }

    /// Clients trust both CAs: into `ca.crt` of each one's Secret, where it stays until its next issue.
    pub(crate) fn expand_clients(&self, world: &World<'_>) -> Result<()> {
        world.step("clients get both CAs");
        let both = self.both()?;
        let clients = world.certificates.clients();
        let data = || Data::from([("ca.crt".to_owned(), both.clone())]);
        let writes: Vec<_> = clients.iter().map(|(name, _)| (name.as_str(), data())).collect();
        world.operator.write(&writes)
    }

    /// The issuer signs with the new CA from now on.
    pub(crate) fn promote(&self, world: &World<'_>) -> Result<()> {
        world.step("issuer promoted");
        world.operator.write(&[(PROMOTED, pair_of(&self.new)?)])
    }

    /// Gateways serve a leaf of the new CA, and trust both.
    pub(crate) fn switch_leaf(&self, world: &World<'_>) -> Result<()> {
        world.operator.reissue_under(&self.new, &[SERVER])?;
        world.step("leaf switched");
        world.operator.write(&[(MANAGED, self.managed(world, self.both()?, true)?)])
    }

    /// Every client gets a leaf of the new CA, and cert-manager's `ca.crt`.
    pub(crate) fn reissue_clients(&self, world: &World<'_>) -> Result<()> {
        world.step("clients re-issued");
        let clients = world.certificates.clients();
        world.operator.reissue_under(&self.new, &clients.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>())
    }

    /// Gateways trust the new CA alone.
    pub(crate) fn drop_old(&self, world: &World<'_>) -> Result<()> {
        world.step("old CA dropped");
        world.operator.write(&[(MANAGED, self.managed(world, ca_of(&self.new)?, true)?)])
    }

    fn both(&self) -> Result<ByteString> {
        Ok(ByteString([ca_of(&self.new)?.0, ca_of(&self.old)?.0].concat()))
    }

    /// The managed Secret with this bundle, and the issuer's leaf or its own as it is.
    fn managed(&self, world: &World<'_>, bundle: ByteString, newest_leaf: bool) -> Result<Data> {
        let mut data = pair_of(&world.operator.read(if newest_leaf { SERVER } else { MANAGED })?)?;
        data.insert("ca.crt".to_owned(), bundle);
        Ok(data)
    }
}

/// Gateways use what cert-manager writes: CA and leaf switch hard.
pub(crate) fn root_used_directly(world: &mut World<'_>) -> Result<()> {
    let step = Step::rotate_root(world)?;
    world.wait_followed()?;
    world.wait_handshakes(50)?;
    world.step("leaf re-issued");
    world.operator.reissue_under(&step.new, &[SERVER])?;
    world.wait_followed()?;
    world.wait_handshakes(50)
}

/// As Kyma's lifecycle manager does it: both CAs at once, the leaf after a fixed time, whichever clients have followed by then.
pub(crate) fn timed_leaf_switch(world: &mut World<'_>) -> Result<()> {
    let step = Step::rotate_root(world)?;
    step.expand_gateways(world)?;
    step.expand_clients(world)?;
    // The timer is what is tried here.
    sleep(world.scaled(TIMER));
    step.promote(world)?;
    step.switch_leaf(world)?;
    world.wait_followed()?;
    world.wait_handshakes(50)
}

/// Both CAs and the new leaf in one write, clients at the same time.
pub(crate) fn bundle_and_leaf_in_one_write(world: &mut World<'_>) -> Result<()> {
    let step = Step::rotate_root(world)?;
    step.promote(world)?;
    step.switch_leaf(world)?;
    step.expand_clients(world)?;
    world.wait_followed()?;
    world.wait_handshakes(50)
}

/// Every step in its right order, and no wait between them.
pub(crate) fn no_propagation_delay(world: &mut World<'_>) -> Result<()> {
    let step = Step::rotate_root(world)?;
    step.expand_gateways(world)?;
    step.expand_clients(world)?;
    step.promote(world)?;
    step.switch_leaf(world)?;
    step.reissue_clients(world)?;
    step.drop_old(world)?;
    world.wait_followed()?;
    world.wait_handshakes(50)
}

/// Gateways trust both CAs before any client is re-issued, but a re-issued client trusts what cert-manager wrote: the new
/// CA alone, while gateways serve the old leaf.
pub(crate) fn ca_crt_as_it_comes(world: &mut World<'_>) -> Result<()> {
    let step = Step::rotate_root(world)?;
    step.expand_gateways(world)?;
    world.wait_followed()?;
    step.promote(world)?;
    step.reissue_clients(world)?;
    world.wait_followed()?;
    world.wait_handshakes(50)
}

/// The issuer signs with the new CA at once. Clients that renew before a job has updated the gateways are refused, although their
/// trust was updated at once.
pub(crate) fn unstaged_issuer(world: &mut World<'_>) -> Result<()> {
    let step = Step::rotate_root(world)?;
    step.reissue_clients(world)?;
    step.expand_clients(world)?;
    // This tests the next run of the job.
    sleep(world.scaled(POLL));
    step.expand_gateways(world)?;
    world.wait_followed()?;
    world.wait_handshakes(50)
}
