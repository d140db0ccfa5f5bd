//! Keeps the serving certificate of the webhook and the `caBundle` fields of its configurations, by a profile of [`crate::certgen`]. The webhook
//! needs no right to a Secret: it serves what is mounted.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::runtime::watcher::watcher;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::backoff::Retry;
use super::lease::Leadership;
use super::metrics::AgentMetrics;
use super::watches::{by_name, notify_each};
use super::{FIELD_MANAGER, RECONCILE_TIMEOUT, Settings};
use crate::certgen::{Profile, upkeep};
use crate::health::{CheckResult, Requirement};
use crate::store::certgen::{self, CertgenError, CertgenStep, RequestError, Written, next_step};
use crate::store::{HealthState, cluster};

/// Name of the health check.
const CHECK: &str = "serving-certificate";
/// The shortest time between two reconciles: a program that reverts each write causes one write in this time. A reverted caBundle is
/// repaired after it at the latest.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// First delay after a failure.
const FIRST_DELAY: Duration = Duration::from_secs(2);
/// Writes of one reconcile. A rotation makes fewer, unless somebody else changes the same objects.
const MAX_WRITES: usize = 20;

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
enum UpkeepError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Step(#[from] CertgenError),
    #[error(
        "{MAX_WRITES} writes did not complete: find the controller or admission webhook that changes the same objects. The last one: {0}"
    )]
    Contested(String),
    #[error("the API server does not answer")]
    NoAnswer,
    #[error("this process is not the leader any more")]
    NotLeading,
}

impl UpkeepError {
    fn check_result(&self) -> CheckResult {
        match self {
            Self::Request(error) if error.is_forbidden() => {
                CheckResult::Misconfigured(format!("{error}. Grant the rights of manifests/base"))
            }
            Self::Request(error) => cluster::check_failure(&error.source, self.to_string()),
            Self::Step(_) | Self::Contested(_) => CheckResult::Misconfigured(self.to_string()),
            Self::NoAnswer | Self::NotLeading => CheckResult::Unreachable(self.to_string()),
        }
    }
}

/// Keeps the objects of the profile in `settings`, if there is one. Never returns then.
pub(super) async fn run(
    client: &Client,
    leadership: &Leadership,
    settings: &Settings,
    (health, metrics): (&Arc<HealthState>, &AgentMetrics),
) {
    let Some(profile) = &settings.serving_certificate else { return };
    let check = health.add(CHECK, Requirement::Never);
    let changed = Arc::new(Notify::new());
    let _watches = watch(client, profile, &changed);
    let mut retry = Retry::default();
    loop {
        let reconciled = timeout(RECONCILE_TIMEOUT, reconcile(client, leadership, profile, metrics)).await;
        let delay = match reconciled.unwrap_or(Err(UpkeepError::NoAnswer)) {
            Ok(until) => {
                check.record(CheckResult::Ok);
                retry = Retry::default();
                until.map_or(settings.poll, |until| time_to(until).min(settings.poll))
            }
            Err(error) => {
                check.record(error.check_result());
                retry.next_delay(FIRST_DELAY, settings.poll)
            }
        };
        sleep(DEBOUNCE).await;
        tokio::select! {
            () = changed.notified() => {}
            () = sleep(delay.saturating_sub(DEBOUNCE)) => {}
        }
    }
}

fn time_to(until: Timestamp) -> Duration {
    until.duration_since(Timestamp::now()).try_into().unwrap_or_default()
}

/// Watches the objects of a profile, each by its name: no right to others is needed.
fn watch(client: &Client, profile: &Profile, changed: &Arc<Notify>) -> JoinSet<()> {
    let mut watches = JoinSet::new();
    for object in profile.objects() {
        let events = watcher(certgen::api(client, &profile.namespace, object.kind), by_name(&object.name));
        let changed = changed.clone();
        watches.spawn(async move { notify_each(events, || changed.notify_one()).await });
    }
    watches
}

/// Makes all writes that are due. Returns when the next one is, if that is known.
async fn reconcile(
    client: &Client,
    leadership: &Leadership,
    profile: &Profile,
    metrics: &AgentMetrics,
) -> Result<Option<Timestamp>, UpkeepError> {
    let mut last = String::new();
    for _ in 0..MAX_WRITES {
        let (objects, now) = (certgen::read(client, profile).await?, Timestamp::now());
        let options = upkeep(profile, &objects, now).map_err(CertgenError::from)?;
        let (what, change) = match next_step(profile, &objects, options, now)? {
            CertgenStep::Done(_) => return Ok(None),
            CertgenStep::Wait { until, .. } => return Ok(until),
            CertgenStep::Write { what, change } => (what, change),
        };
        if !leadership.is_leader() {
            return Err(UpkeepError::NotLeading);
        }
        match certgen::write(client, profile, FIELD_MANAGER, change).await? {
            Written::Yes => {
                metrics.serving_certificate_written();
                tracing::info!("serving certificate: {what}");
            }
            Written::Conflict => {}
            Written::Unknown => return Err(UpkeepError::NoAnswer),
        }
        last = what;
    }
    Err(UpkeepError::Contested(last))
}
