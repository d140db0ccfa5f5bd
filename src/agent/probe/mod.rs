//! Probes the gateways of a GatewaySecret over TLS: which serving certificate each presents, and whether it accepts the canary.

mod canary;
mod targets;
mod tls_session;

use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::Client;
use kube::api::ListParams;
use tokio::time::Instant;

use super::AgentError;
use super::cluster_state::{ClusterState, from_watch_cache};
use crate::registry::Entry;
use crate::rotation::planner::{Answer, Endpoint, ProbeResult, Shown};
use crate::rotation::probe_target::Probe;
use canary::ClientIdentity;
use targets::Target;

/// Time between two probes while gateways may have an older Secret.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);
/// Time between two probes while all gateways have the newest Secret and the rotation goes on: a gateway that starts may have an older one.
pub(super) const CALM_INTERVAL: Duration = Duration::from_secs(30);
/// Time between two probes while nothing rotates: whether gateways can be probed is known before the next rotation.
const IDLE_INTERVAL: Duration = Duration::from_secs(300);
/// Timeout of one connection. Gateways refuse a canary within one round trip.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of all connections together, shorter than that of a reconcile.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of concurrent connections.
const CONCURRENCY: usize = 32;

/// Probes gateways at most once per [`INTERVAL`].
#[derive(Default)]
pub(super) struct Prober {
    /// Whether endpoints were listed at least once.
    pub(super) has_listed: bool,
    last: Option<(Instant, Probe, ProbeResult)>,
}

impl Prober {
    /// The result of a probe, or of the last one if it is recent.
    ///
    /// # Errors
    /// When the endpoints cannot be listed. They are listed even if nothing is probed, so that a missing permission is reported early.
    pub(super) async fn probe(
        &mut self,
        client: &Client,
        entry: &Entry,
        probe: &Probe,
        state: &ClusterState,
    ) -> Result<ProbeResult, AgentError> {
        let is_converging = state.journal.is_converging();
        // What is probed must be all endpoints. Otherwise only the permission matters.
        let params = if is_converging { ListParams::default() } else { from_watch_cache() };
        let targets = targets::of(client, &entry.namespace, &probe.reach, params).await?;
        self.has_listed = true;
        let is_seen = |result: &ProbeResult| result.endpoints.iter().all(|endpoint| endpoint.shown.is_ok());
        let interval = |result: &ProbeResult| match is_converging {
            true => INTERVAL,
            false if is_seen(result) => IDLE_INTERVAL,
            false => CALM_INTERVAL,
        };
        if let Some((at, last_probe, result)) = &self.last
            && last_probe == probe
            && at.elapsed() < interval(result)
        {
            return Ok(result.clone());
        }
        let secret = |name: &str| state.stored_secret(name).map(|stored| &stored.secret);
        let canary = match entry.canary_name() {
            Some(name) => secret(name).and_then(canary::from_secret),
            None => secret(&entry.client_ca_name()).and_then(|ca| canary::sign(ca, Timestamp::now())),
        };
        let mut result = probe_all(targets, &probe.hosts, canary).await;
        let unselected = |pod: &String| Endpoint {
            address: format!("pod {pod}"),
            pod: None,
            at: Timestamp::now(),
            shown: Err(format!("Service {} does not select it", probe.reach.service_name)),
        };
        result.endpoints.extend(probe.unselected.iter().map(unselected));
        self.last = Some((Instant::now(), probe.clone(), result.clone()));
        Ok(result)
    }
}

/// Probes all targets, each with one host after the other until it presents a certificate and shows whether it trusts the canary's CA: some
/// servers limit clients by name or hash. Without a canary only the certificate is reported.
async fn probe_all(targets: Vec<Target>, hosts: &[String], canary: Option<ClientIdentity>) -> ProbeResult {
    let certified = canary.as_ref().map(|presented| &presented.certified);
    let end = Instant::now() + PROBE_TIMEOUT;
    let probe = |target: Target| async move {
        let (mut at, mut shown) = (Timestamp::now(), Err(String::new()));
        let deadline = end.min(Instant::now() + CONNECTION_TIMEOUT);
        for host in hosts {
            let since = Timestamp::now();
            let next = match &target.socket {
                Ok(socket) => tls_session::connect(*socket, host, certified.cloned(), deadline).await,
                Err(error) => Err(error.clone()),
            };
            let shows_trust = |next: &Shown| matches!(next.canary, Some(Answer::Accepted | Answer::Untrusted));
            let is_enough = next.as_ref().is_ok_and(|next| certified.is_none() || shows_trust(next));
            if is_enough || shown.is_err() {
                (at, shown) = (since, next);
            }
            if is_enough {
                break;
            }
        }
        Endpoint { address: target.address, pod: target.pod, at, shown }
    };
    let endpoints = stream::iter(targets).map(probe).buffered(CONCURRENCY).collect().await;
    ProbeResult { canary: canary.map(|presented| presented.chain).unwrap_or_default(), endpoints }
}

#[cfg(test)]
mod tests;
