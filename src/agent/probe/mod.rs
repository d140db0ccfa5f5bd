//! Looks at the gateways of a GatewaySecret on the wire: which leaf each of them serves, and whether it lets the canary in.

mod canary;
mod targets;
mod tls_session;

use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::Client;
use tokio::time::Instant;

use super::AgentError;
use super::cluster_state::ClusterState;
use crate::registry::Entry;
use crate::rotation::planner::{Endpoint, ProbeResult};
use crate::rotation::probe_target::Probe;
use canary::ClientIdentity;
use targets::Target;

/// Between two looks at gateways that may have a former content.
pub(super) const PACE: Duration = Duration::from_secs(2);
/// What a connection may take, with the answer to the canary. Refusals come within one round trip.
const PATIENCE: Duration = Duration::from_secs(2);
/// What all of them may take together: less than one look of the agent.
const ROUND: Duration = Duration::from_secs(10);
/// Connections at a time.
const AT_ONCE: usize = 32;

/// Looks while something is to be seen, at a steady pace.
#[derive(Default)]
pub(super) struct Prober {
    last: Option<(Instant, Probe, ProbeResult)>,
}

impl Prober {
    /// What the gateways show now, or showed a moment ago; `None` when nothing is to be seen: all have the newest content.
    ///
    /// # Errors
    /// When the endpoints cannot be listed. That is found out before anything depends on it.
    pub(super) async fn look(
        &mut self,
        client: &Client,
        entry: &Entry,
        probe: &Probe,
        world: &ClusterState,
    ) -> Result<Option<ProbeResult>, AgentError> {
        let targets = targets::of(client, &entry.namespace, &probe.reach).await?;
        if !world.journal.is_converging() {
            self.last = None;
            return Ok(None);
        }
        if let Some((at, of, wire)) = &self.last
            && of == probe
            && at.elapsed() < PACE
        {
            return Ok(Some(wire.clone()));
        }
        let secret = |name: &str| world.held(name).map(|held| &held.secret);
        let canary = match entry.canary_name() {
            Some(name) => secret(name).and_then(canary::held),
            None => secret(&entry.client_ca_name()).and_then(|ca| canary::signed(ca, Timestamp::now())),
        };
        let wire = look_at(targets, &probe.hosts, canary).await;
        self.last = Some((Instant::now(), probe.clone(), wire.clone()));
        Ok(Some(wire))
    }
}

/// Looks at all of them: each is asked for one host after the other, until it serves one. Without a canary only what they serve is
/// seen.
async fn look_at(targets: Vec<Target>, hosts: &[String], canary: Option<ClientIdentity>) -> ProbeResult {
    let certified = canary.as_ref().map(|presented| &presented.certified);
    let end = Instant::now() + ROUND;
    let look = |target: Target| async move {
        let mut shown = Err(String::new());
        let mut at = Timestamp::now();
        let until = end.min(Instant::now() + PATIENCE);
        for host in hosts {
            at = Timestamp::now();
            shown = match &target.socket {
                Ok(socket) => tls_session::at(*socket, host, certified.cloned(), until).await,
                Err(error) => Err(error.clone()),
            };
            if shown.is_ok() {
                break;
            }
        }
        Endpoint { address: target.address, pod: target.pod, at, shown }
    };
    let endpoints = stream::iter(targets).map(look).buffered(AT_ONCE).collect().await;
    ProbeResult { canary: canary.map(|presented| presented.chain).unwrap_or_default(), endpoints }
}

#[cfg(test)]
mod tests;
