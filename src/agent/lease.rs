//! Leader election by a Lease (coordination.k8s.io/v1), as in client-go's `leaderelection`: clocks of different machines are never
//! compared. A Lease has expired when it has not changed for its duration, by the local clock, since this process last saw it change.

use std::panic;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::AgentError;
use crate::health::CheckResult;
use crate::store::{CheckHandle, cluster};

/// Configuration of the leader election (client-go: `LeaderElectionConfig`).
#[derive(Clone, Debug)]
pub struct LeaderElection {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Unique name of this process.
    pub identity: String,
    /// How long other candidates wait for a renewal before they acquire the Lease; whole seconds.
    pub lease_duration: Duration,
}

impl Default for LeaderElection {
    fn default() -> Self {
        Self {
            namespace: "trustspan-system".to_owned(),
            name: "trustspan-agent".to_owned(),
            identity: identity(),
            lease_duration: Duration::from_secs(15),
        }
    }
}

impl LeaderElection {
    /// How long this process acts as leader after its last renewal. It stops well before another candidate can acquire
    /// the Lease.
    fn renew_deadline(&self) -> Duration {
        self.lease_duration * 2 / 3
    }

    /// Time between two attempts.
    fn retry_period(&self) -> Duration {
        self.lease_duration / 8
    }

    /// Timeout of one attempt.
    fn request_timeout(&self) -> Duration {
        self.lease_duration / 2
    }
}

/// A unique name: two processes on one machine, and two containers of one pod in succession, differ.
pub fn identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "agent".to_owned());
    let mut random = [0; 4];
    // Without a source of randomness, the process id still distinguishes most processes.
    let suffix = match aws_lc_rs::rand::fill(&mut random) {
        Ok(()) => u32::from_be_bytes(random),
        Err(_) => std::process::id(),
    };
    format!("{host}_{suffix:08x}")
}

/// Until when this process is the leader. Checked before each write.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Option<Instant>>);

#[cfg(test)]
impl Default for Leadership {
    /// A process that is never the leader.
    fn default() -> Self {
        Self(watch::channel(None).1)
    }
}

impl Leadership {
    /// Whether this process is the leader now.
    pub fn is_leader(&self) -> bool {
        self.0.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Checks that this process is the leader, before it writes.
    ///
    /// # Errors
    /// When it is not.
    pub(super) fn ensure_leader(&self) -> Result<(), AgentError> {
        if self.is_leader() { Ok(()) } else { Err(AgentError::NotLeading) }
    }

    /// Waits until this process is the leader.
    pub async fn acquired(&mut self) {
        while !self.is_leader() {
            if self.0.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until this process is not the leader any more.
    pub async fn lost(&mut self) {
        loop {
            let Some(until) = *self.0.borrow_and_update() else { return };
            tokio::select! {
                () = tokio::time::sleep_until(until) => {
                    if !self.is_leader() {
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

/// The API server refuses the Lease of this process, which is one of its start-up settings.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot acquire Lease {namespace}/{name}: {reason}; grant get, create and update on it, or set --lease-namespace and --lease-name"
)]
pub struct LeaseRefused {
    namespace: String,
    name: String,
    reason: String,
}

/// A process that can become the leader.
#[derive(Debug)]
pub struct Candidate {
    api: Api<Lease>,
    election: LeaderElection,
    leadership: Leadership,
    /// Separate, since a renewal must not wait for other work.
    task: JoinSet<LeaseRefused>,
}

impl Candidate {
    /// Spawns a task that acquires and renews the Lease, and records in `check` whether it can.
    pub fn start(client: Client, election: LeaderElection, check: CheckHandle) -> Self {
        let api: Api<Lease> = Api::namespaced(client, &election.namespace);
        let (sender, receiver) = watch::channel(None);
        let mut task = JoinSet::new();
        task.spawn(acquire_and_renew(api.clone(), election.clone(), check, sender));
        Self { api, election, leadership: Leadership(receiver), task }
    }

    /// Until when this process is the leader.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Ends only if the API server refuses the Lease for a whole lease duration at start. Later, it is tried again: another process may lead
    /// meanwhile.
    pub async fn refused(&mut self) -> LeaseRefused {
        match self.task.join_next().await {
            Some(Ok(refused)) => refused,
            Some(Err(error)) => panic::resume_unwind(error.into_panic()),
            None => std::future::pending().await,
        }
    }

    /// Releases the Lease, so that another candidate need not wait for its expiry. Must be called after the last write.
    pub async fn release(mut self) {
        self.task.shutdown().await;
        let Self { api, election, .. } = self;
        let release = async {
            let mut lease = api.get_opt(&election.name).await?;
            let spec = lease.as_mut().and_then(|lease| lease.spec.as_mut());
            if let Some(spec) = spec.filter(|spec| spec.holder_identity.as_deref() == Some(&election.identity)) {
                spec.holder_identity = None;
                if let Some(lease) = &lease {
                    api.replace(&election.name, &PostParams::default(), lease).await?;
                }
            }
            Ok(())
        };
        let outcome = timeout(election.request_timeout(), release).await;
        if let Err(error) = outcome.unwrap_or_else(|_| Err(kube::Error::Service("no answer".into()))) {
            tracing::warn!("Lease {} not released: {}", election.name, cluster::error_message(&error));
        }
    }
}

async fn acquire_and_renew(
    api: Api<Lease>,
    election: LeaderElection,
    check: CheckHandle,
    leadership: watch::Sender<Option<Instant>>,
) -> LeaseRefused {
    let mut observed: Option<(LeaseSpec, Instant)> = None;
    let mut refused_since = None;
    let mut has_succeeded = false;
    loop {
        let started = Instant::now();
        let attempt = try_acquire_or_renew(&api, &election, &mut observed);
        let outcome = timeout(election.request_timeout(), attempt).await;
        let outcome = outcome.unwrap_or_else(|_| Err(kube::Error::Service("no answer".into())));
        if outcome.is_ok() {
            has_succeeded = true;
            check.record(CheckResult::Ok);
        }
        match outcome {
            Ok(true) => {
                if leadership.send_replace(Some(started + election.renew_deadline())).is_none() {
                    tracing::info!(identity = election.identity, "became the leader");
                }
            }
            Ok(false) => {
                if leadership.send_replace(None).is_some() {
                    tracing::warn!("another process became the leader");
                }
            }
            // A failed renewal does not end the leadership before the renew deadline.
            Err(error) => {
                let reason = cluster::error_message(&error);
                let failure = cluster::check_failure(&error, reason.clone());
                let is_refused = matches!(failure, CheckResult::Misconfigured(_));
                check.record(failure);
                refused_since = refused_since.or(Some(started)).filter(|_| is_refused);
                // Permissions that were granted at the same time as this process was started may take effect later. An API server that has just
                // started refuses everything until it has read the Roles.
                let is_final = |since: Instant| since.elapsed() >= election.lease_duration;
                if !has_succeeded && refused_since.is_some_and(is_final) {
                    let LeaderElection { namespace, name, .. } = election;
                    return LeaseRefused { namespace, name, reason };
                }
            }
        }
        sleep(election.retry_period()).await;
    }
}

/// Acquires the Lease, or renews it. Returns whether this process holds it afterwards.
async fn try_acquire_or_renew(
    api: &Api<Lease>,
    election: &LeaderElection,
    observed: &mut Option<(LeaseSpec, Instant)>,
) -> kube::Result<bool> {
    let now = || Some(MicroTime(Timestamp::now()));
    let record = |transitions| LeaseSpec {
        holder_identity: Some(election.identity.clone()),
        lease_duration_seconds: i32::try_from(election.lease_duration.as_secs()).ok(),
        acquire_time: now(),
        renew_time: now(),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    };
    let Some(mut lease) = api.get_opt(&election.name).await? else {
        let metadata = ObjectMeta { name: Some(election.name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(record(0)) };
        return was_written(api.create(&PostParams::default(), &lease).await);
    };
    let stored = lease.spec.clone().unwrap_or_default();
    if observed.as_ref().is_none_or(|(before, _)| *before != stored) {
        *observed = Some((stored.clone(), Instant::now()));
    }
    let holder = stored.holder_identity.as_deref().filter(|holder| !holder.is_empty());
    let is_holder = holder == Some(&election.identity);
    let duration = stored
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or(election.lease_duration, Duration::from_secs);
    let has_expired = observed.as_ref().is_some_and(|(_, since)| since.elapsed() > duration);
    if holder.is_some() && !is_holder && !has_expired {
        return Ok(false);
    }
    let transitions = stored.lease_transitions.unwrap_or_default();
    let next = record(if is_holder { transitions } else { transitions + 1 });
    let acquire_time = if is_holder { stored.acquire_time } else { next.acquire_time.clone() };
    lease.spec = Some(LeaseSpec { acquire_time, ..next });
    // The write has the resourceVersion that was read, so of two candidates one gets a conflict.
    was_written(api.replace(&election.name, &PostParams::default(), &lease).await)
}

fn was_written(result: kube::Result<Lease>) -> kube::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use kube::client::Body;

    use super::*;
    use crate::health::Requirement;
    use crate::store::HealthState;

    /// How an API server answers from a time on, in seconds since the start: not at all, or with this status code.
    type Phase = (u64, Option<u16>);

    /// When the election ends because the Lease is refused, in seconds; `None` if it still goes on after a minute.
    async fn ends_after(phases: &'static [Phase]) -> Option<u64> {
        let start = Instant::now();
        let answer = move |_: axum::http::Request<Body>| async move {
            let (_, code) =
                phases.iter().rev().find(|(from, _)| start.elapsed() >= Duration::from_secs(*from)).expect("a phase");
            let Some(code) = code else { return std::future::pending().await };
            let status = serde_json::json!({ "kind": "Status", "status": "Failure", "code": code, "reason": "Reason", "message": "" });
            let response =
                axum::http::Response::builder().status(*code).body(Body::from(status.to_string().into_bytes()));
            Ok::<_, Infallible>(response.expect("a response"))
        };
        let client = Client::new(tower::service_fn(answer), "default");
        let check = Arc::new(HealthState::default()).add("leader-lease", Requirement::Never);
        let mut candidate = Candidate::start(client, LeaderElection::default(), check);
        timeout(Duration::from_secs(60), candidate.refused()).await.ok().map(|_| start.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_refused_for_its_duration_at_start_ends_the_process() {
        assert_eq!(ends_after(&[(0, Some(403))]).await, Some(15));
        assert_eq!(ends_after(&[(0, Some(500))]).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_right_after_an_outage_does_not_end_the_process() {
        assert_eq!(ends_after(&[(0, None), (20, Some(403)), (30, Some(500))]).await, None);
        assert_eq!(ends_after(&[(0, Some(403)), (10, None), (20, Some(403)), (30, Some(500))]).await, None);
    }
}
