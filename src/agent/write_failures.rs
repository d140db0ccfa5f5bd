//! Writes of one GatewaySecret that failed. The writes of a plan are independent, so each is retried with its own backoff while the others go on.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::AgentError;
use super::backoff::Backoff;
use crate::api::TrustBundleTarget;
use crate::health::CheckResult;
use crate::rotation::planner::{Plan, Step};

/// A write that is repeated in each reconcile until it succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PlannedWrite {
    /// A step of the rotation.
    Step(Step),
    /// The clients' bundle in a trust bundle target.
    Target(TrustBundleTarget),
}

struct FailedWrite {
    write: PlannedWrite,
    error: AgentError,
    backoff: Backoff,
}

/// The writes that failed in their last attempt.
pub(super) struct WriteFailures {
    failed: Vec<FailedWrite>,
    max_backoff: Duration,
}

impl WriteFailures {
    pub(super) fn new(max_backoff: Duration) -> Self {
        Self { failed: Vec::new(), max_backoff }
    }

    /// Forgets writes that are not planned any more.
    pub(super) fn retain(&mut self, plan: &Plan, targets: &[TrustBundleTarget]) {
        self.failed.retain(|failed| match &failed.write {
            PlannedWrite::Step(step) => plan.steps.contains(step),
            PlannedWrite::Target(target) => targets.contains(target),
        });
    }

    /// Whether a write may be tried now.
    pub(super) fn is_due(&self, write: &PlannedWrite) -> bool {
        let failed = self.failed.iter().find(|failed| failed.write == *write);
        failed.is_none_or(|failed| !failed.is_request() || failed.backoff.remaining(Instant::now()).is_none())
    }

    /// Records the outcome of a write. Returns whether it failed, and had not failed before.
    pub(super) fn record(&mut self, write: PlannedWrite, outcome: Result<(), AgentError>) -> bool {
        let Err(error) = outcome else {
            self.failed.retain(|failed| failed.write != write);
            return false;
        };
        let now = Instant::now();
        if let Some(known) = self.failed.iter_mut().find(|failed| failed.write == write) {
            known.error = error;
            known.backoff.record_failure(now, self.max_backoff);
            return false;
        }
        let mut backoff = Backoff::default();
        backoff.record_failure(now, self.max_backoff);
        self.failed.push(FailedWrite { write, error, backoff });
        true
    }

    /// The error that is reported for all of them: one that needs a change, if there is one.
    pub(super) fn reported(&self) -> Option<&AgentError> {
        let needs_change = |failed: &&FailedWrite| matches!(failed.error.check_result(), CheckResult::Misconfigured(_));
        self.failed.iter().find(needs_change).or(self.failed.first()).map(|failed| &failed.error)
    }

    /// The message of a condition: the reported error, and the number of the others.
    pub(super) fn condition_message(&self) -> Option<String> {
        let message = self.reported()?.condition_message();
        Some(match self.failed.len() {
            1 => message,
            all => format!("1 of {all} failed writes: {message}"),
        })
    }

    /// Time until the next attempt of any of them.
    pub(super) fn remaining(&self) -> Option<Duration> {
        let requests = self.failed.iter().filter(|failed| failed.is_request());
        requests.map(|failed| failed.backoff.remaining(Instant::now()).unwrap_or_default()).min()
    }

    /// Certificates whose reissue the API server refused, with its answer.
    pub(super) fn refused_reissues(&self) -> BTreeMap<&str, String> {
        let refused = |failed: &FailedWrite| match failed.error.check_result() {
            CheckResult::Misconfigured(message) => Some(message),
            _ => None,
        };
        let reissues = self.failed.iter().filter_map(|failed| match &failed.write {
            PlannedWrite::Step(Step::Reissue { certificate }) => Some((certificate.as_str(), refused(failed)?)),
            _ => None,
        });
        reissues.collect()
    }
}

impl FailedWrite {
    /// Whether an attempt makes a request. The other failures are found in what was read.
    fn is_request(&self) -> bool {
        !matches!(
            self.error,
            AgentError::Foreign { .. }
                | AgentError::NotCreated { .. }
                | AgentError::NotGranted { .. }
                | AgentError::NotOfSigners { .. }
        )
    }
}
