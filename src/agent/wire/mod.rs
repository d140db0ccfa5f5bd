//! Looks at the gateways of a GatewaySecret on the wire: which leaf each of them serves, and whether it lets the canary in.

mod glance;
mod targets;

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::Client;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use tokio::time::Instant;

use super::AgentError;
use super::world::World;
use crate::api::Reach;
use crate::registry::Entry;
use crate::rotation::next::{Endpoint, Wire};
use crate::trust::{Secret, bundle, credential};
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
pub(super) struct Lookout {
    last: Option<(Instant, Reach, Wire)>,
}

impl Lookout {
    /// What the gateways show now, or showed a moment ago; `None` when nothing is to be seen: `spec.reach` is not set, or
    /// all have the newest content.
    ///
    /// # Errors
    /// When the endpoints cannot be listed. That is found out before anything depends on it.
    pub(super) async fn look(
        &mut self,
        client: &Client,
        entry: &Entry,
        world: &World,
    ) -> Result<Option<Wire>, AgentError> {
        let Some(reach) = &entry.spec.reach else { return Ok(None) };
        let targets = targets::of(client, &entry.namespace, reach).await?;
        if !world.journal.is_converging() {
            self.last = None;
            return Ok(None);
        }
        if let Some((at, of, wire)) = &self.last
            && of == reach
            && at.elapsed() < PACE
        {
            return Ok(Some(wire.clone()));
        }
        let canary = reach.canary_secret_name.as_deref().and_then(|name| world.held(name));
        let wire = look_at(targets, &reach.host, canary.map(|held| &held.secret)).await;
        self.last = Some((Instant::now(), reach.clone(), wire.clone()));
        Ok(Some(wire))
    }
}

/// Looks at all of them. A canary that cannot be presented is left out.
async fn look_at(targets: Vec<Target>, host: &str, canary: Option<&Secret>) -> Wire {
    let presented = canary.and_then(pair);
    let certified = presented.as_ref().map(|(_, certified)| certified);
    let end = Instant::now() + ROUND;
    let look = |target: Target| async move {
        let at = Timestamp::now();
        let shown = match target.socket {
            Ok(socket) => {
                let until = end.min(Instant::now() + PATIENCE);
                glance::at(socket, host, certified.cloned(), until).await
            }
            Err(error) => Err(error),
        };
        Endpoint { address: target.address, pod: target.pod, at, shown }
    };
    let endpoints = stream::iter(targets).map(look).buffered(AT_ONCE).collect().await;
    Wire { canary: presented.map(|(chain, _)| chain).unwrap_or_default(), endpoints }
}

/// The canary's chain, and the same with its key for a handshake.
fn pair(secret: &Secret) -> Option<(Vec<crate::trust::Certificate>, Arc<CertifiedKey>)> {
    let pair = credential::serving_pair(secret)?;
    let chain = CertificateDer::pem_slice_iter(pair.chain).collect::<Result<Vec<_>, _>>().ok()?;
    let key = PrivateKeyDer::from_pem_slice(pair.private_key).ok()?;
    let certified = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).ok()?;
    Some((bundle::read_chain(pair.chain).into_certificates(), Arc::new(certified)))
}

#[cfg(test)]
mod tests;
