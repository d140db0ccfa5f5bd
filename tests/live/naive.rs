//! Common ways to rotate a CA that cut clients off, each as a small script. Each must fail in its expected way, which
//! shows that the test detects failures.

use std::thread::sleep;

use anyhow::Result;
use k8s_openapi::ByteString;

use crate::{
    issuer::{Data, MANAGED, PROMOTED, ROOT, SERVER},
    pace::{POLL, TIMER},
    world::{World, ca_of, pair_of},
};

/// Steps of the scripts after there is a new CA. None waits until gateways or clients have loaded a change.
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

    /// Clients trust both CAs: `ca.crt` of each client's Secret gets both until its next issuance.
    pub(crate) fn expand_clients(&self, world: &World<'_>) -> Result<()> {
        world.step("clients get both CAs");
        let both = self.both()?;
        let clients = world.certificates.clients();
        let data = || Data::from([("ca.crt".to_owned(), both.clone())]);
        let writes: Vec<_> = clients.iter().map(|(name, _)| (name.as_str(), data())).collect();
        world.operator.write(&writes)
    }

    /// From now on the issuer signs with the new CA.
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

    /// Every client gets a certificate of the new CA, and the `ca.crt` that cert-manager writes.
    pub(crate) fn reissue_clients(&self, world: &World<'_>) -> Result<()> {
        world.step("clients re-issued");
        let clients = world.certificates.clients();
        world.operator.reissue_under(&self.new, &clients.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>())
    }

    /// Gateways trust only the new CA.
    pub(crate) fn drop_old(&self, world: &World<'_>) -> Result<()> {
        world.step("old CA dropped");
        world.operator.write(&[(MANAGED, self.managed(world, ca_of(&self.new)?, true)?)])
    }

    fn both(&self) -> Result<ByteString> {
        Ok(ByteString([ca_of(&self.new)?.0, ca_of(&self.old)?.0].concat()))
    }

    /// Writes the managed Secret with this bundle, and with the issuer's newest certificate or its current one.
    fn managed(&self, world: &World<'_>, bundle: ByteString, newest_leaf: bool) -> Result<Data> {
        let mut data = pair_of(&world.operator.read(if newest_leaf { SERVER } else { MANAGED })?)?;
        data.insert("ca.crt".to_owned(), bundle);
        Ok(data)
    }
}

/// Gateways use the Secret of cert-manager, so CA and certificate are switched at once.
pub(crate) fn root_used_directly(world: &mut World<'_>) -> Result<()> {
    let step = Step::rotate_root(world)?;
    world.wait_followed()?;
    world.wait_handshakes(50)?;
    world.step("leaf re-issued");
    world.operator.reissue_under(&step.new, &[SERVER])?;
    world.wait_followed()?;
    world.wait_handshakes(50)
}

/// Kyma's lifecycle manager: both CAs are added at once, and the serving certificate is switched after a fixed time,
/// regardless of the clients.
pub(crate) fn timed_leaf_switch(world: &mut World<'_>) -> Result<()> {
    let step = Step::rotate_root(world)?;
    step.expand_gateways(world)?;
    step.expand_clients(world)?;
    // This script waits for a fixed time.
    sleep(world.scaled(TIMER));
    step.promote(world)?;
    step.switch_leaf(world)?;
    world.wait_followed()?;
    world.wait_handshakes(50)
}

/// Both CAs and the new serving certificate are written at once, and clients at the same time.
pub(crate) fn bundle_and_leaf_in_one_write(world: &mut World<'_>) -> Result<()> {
    let step = Step::rotate_root(world)?;
    step.promote(world)?;
    step.switch_leaf(world)?;
    step.expand_clients(world)?;
    world.wait_followed()?;
    world.wait_handshakes(50)
}

/// All steps in the right order, without a wait between them.
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

/// Gateways trust both CAs before clients are reissued, but a reissued client trusts only the CA that cert-manager
/// wrote, while gateways still serve the old certificate.
pub(crate) fn ca_crt_as_it_comes(world: &mut World<'_>) -> Result<()> {
    let step = Step::rotate_root(world)?;
    step.expand_gateways(world)?;
    world.wait_followed()?;
    step.promote(world)?;
    step.reissue_clients(world)?;
    world.wait_followed()?;
    world.wait_handshakes(50)
}

/// The issuer signs with the new CA at once. A client that renews before a job has updated the gateways is refused,
/// although its own trust is up to date.
pub(crate) fn unstaged_issuer(world: &mut World<'_>) -> Result<()> {
    let step = Step::rotate_root(world)?;
    step.reissue_clients(world)?;
    step.expand_clients(world)?;
    // The job runs again after this time.
    sleep(world.scaled(POLL));
    step.expand_gateways(world)?;
    world.wait_followed()?;
    world.wait_handshakes(50)
}
