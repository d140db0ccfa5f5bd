//! Leadership by a Lease (coordination.k8s.io/v1), as client-go's leaderelection does it: the clocks of two machines are never
//! compared; a Lease is over when its holder has not renewed it for its duration by *our* clock since *we* saw it change.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::store::cluster;

/// Where the Lease stands, and who we are.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub lease: String,
    /// A name that no other process has.
    pub identity: String,
    /// How long a Lease lasts that is not renewed; whole seconds. The holder stops to write after two thirds of it, well before
    /// anybody else begins, and tries to renew it eight times in between.
    pub duration: Duration,
}

/// A name that no other process has: two on one machine, and a pod's next container, differ.
pub fn identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "agent".to_owned());
    let mut random = [0; 4];
    // Without randomness the process and the time still tell most apart.
    let suffix = match aws_lc_rs::rand::fill(&mut random) {
        Ok(()) => u32::from_be_bytes(random),
        Err(_) => std::process::id(),
    };
    format!("{host}_{suffix:08x}")
}

impl Default for Candidate {
    fn default() -> Self {
        Self {
            namespace: "trustspan-system".to_owned(),
            lease: "trustspan-agent".to_owned(),
            identity: identity(),
            duration: Duration::from_secs(15),
        }
    }
}

/// Until when this process leads; shared with everything that writes.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Option<Instant>>);

#[cfg(test)]
impl Default for Leadership {
    /// Nobody's, for ever.
    fn default() -> Self {
        Self(watch::channel(None).1)
    }
}

impl Leadership {
    /// Whether this process leads at this very instant.
    pub fn holds(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Waits until this process leads.
    pub async fn gained(&mut self) {
        while !self.holds() {
            if self.0.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until it does not any more.
    pub async fn lost(&mut self) {
        loop {
            let Some(until) = *self.0.borrow_and_update() else { return };
            tokio::select! {
                () = tokio::time::sleep_until(until) => {
                    if !self.holds() {
                        return;
                    }
                }
                changed = self.0.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// Tries to hold the Lease for as long as the task runs.
pub fn contend(client: Client, candidate: Candidate) -> (Leadership, impl Future<Output = ()>) {
    let (sender, receiver) = watch::channel(None);
    let task = async move {
        let api: Api<Lease> = Api::namespaced(client, &candidate.namespace);
        let mut seen: Option<(LeaseSpec, Instant)> = None;
        loop {
            let started = Instant::now();
            // Whoever waits longer than that has lost it.
            let tried = timeout(candidate.duration / 2, round(&api, &candidate, &mut seen)).await;
            match tried.unwrap_or_else(|_| Err(kube::Error::Service("no answer".into()))) {
                Ok(true) => {
                    if sender.send_replace(Some(started + candidate.duration * 2 / 3)).is_none() {
                        tracing::info!(identity = candidate.identity, "leading");
                    }
                }
                Ok(false) => {
                    if sender.send_replace(None).is_some() {
                        tracing::warn!("leadership lost to another");
                    }
                }
                // Leadership goes on until its time is over.
                Err(error) => tracing::warn!("lease {} not renewed: {}", candidate.lease, cluster::told(&error)),
            }
            sleep(candidate.duration / 8).await;
        }
    };
    (Leadership(receiver), task)
}

/// Lets the Lease go, so that another need not wait for its end.
pub async fn release(client: Client, candidate: &Candidate) {
    let api: Api<Lease> = Api::namespaced(client, &candidate.namespace);
    let Ok(Some(mut lease)) = api.get_opt(&candidate.lease).await else { return };
    if let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(&candidate.identity))
    {
        spec.holder_identity = None;
        let _ = api.replace(&candidate.lease, &PostParams::default(), &lease).await;
    }
}

/// One try. Whether the Lease is ours after it.
async fn round(api: &Api<Lease>, candidate: &Candidate, seen: &mut Option<(LeaseSpec, Instant)>) -> kube::Result<bool> {
    let now = || Some(MicroTime(Timestamp::now()));
    let spec = |transitions| LeaseSpec {
        holder_identity: Some(candidate.identity.clone()),
        lease_duration_seconds: i32::try_from(candidate.duration.as_secs()).ok(),
        acquire_time: now(),
        renew_time: now(),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    };
    let Some(mut lease) = api.get_opt(&candidate.lease).await? else {
        let metadata = ObjectMeta { name: Some(candidate.lease.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(spec(0)) };
        return settled(api.create(&PostParams::default(), &lease).await);
    };
    let held = lease.spec.clone().unwrap_or_default();
    if seen.as_ref().is_none_or(|(before, _)| *before != held) {
        *seen = Some((held.clone(), Instant::now()));
    }
    let holder = held.holder_identity.as_deref().filter(|holder| !holder.is_empty());
    let is_ours = holder == Some(&candidate.identity);
    let lasts = held
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or(candidate.duration, Duration::from_secs);
    let is_over = seen.as_ref().is_some_and(|(_, since)| since.elapsed() > lasts);
    if holder.is_some() && !is_ours && !is_over {
        return Ok(false);
    }
    let transitions = held.lease_transitions.unwrap_or_default();
    let next = spec(if is_ours { transitions } else { transitions + 1 });
    let acquire_time = if is_ours { held.acquire_time } else { next.acquire_time.clone() };
    lease.spec = Some(LeaseSpec { acquire_time, ..next });
    // With its resourceVersion: of two that try at once, one is refused.
    settled(api.replace(&candidate.lease, &PostParams::default(), &lease).await)
}

fn settled(result: kube::Result<Lease>) -> kube::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
