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
#[derive(Default)]
pub(super) struct WriteFailures(Vec<FailedWrite>);

impl WriteFailures {
    /// Forgets writes that are not planned any more.
    pub(super) fn retain(&mut self, plan: &Plan, targets: &[TrustBundleTarget]) {
        self.0.retain(|failed| match &failed.write {
            PlannedWrite::Step(step) => plan.steps.contains(step),
            PlannedWrite::Target(target) => targets.contains(target),
        });
    }

    /// Whether a write may be tried now.
    pub(super) fn is_due(&self, write: &PlannedWrite, now: Instant) -> bool {
        let failed = self.0.iter().find(|failed| failed.write == *write);
        failed.is_none_or(|failed| !failed.is_request() || failed.backoff.remaining(now).is_none())
    }

    /// Records the outcome of a write. Returns whether it failed, and had not failed before.
    pub(super) fn record(
        &mut self,
        write: PlannedWrite,
        outcome: Result<(), AgentError>,
        now: Instant,
        max: Duration,
    ) -> bool {
        let known = self.0.iter().position(|failed| failed.write == write);
        let Err(error) = outcome else {
            known.map(|at| self.0.remove(at));
            return false;
        };
        let failed = match known {
            Some(at) => &mut self.0[at],
            None => {
                self.0.push(FailedWrite { write, error: AgentError::NoAnswer, backoff: Backoff::default() });
                let last = self.0.len() - 1;
                &mut self.0[last]
            }
        };
        failed.error = error;
        failed.backoff.record_failure(now, max);
        known.is_none()
    }

    /// The error that is reported for all of them: one that needs a change, if there is one.
    pub(super) fn reported(&self) -> Option<&AgentError> {
        let needs_change = |failed: &&FailedWrite| matches!(failed.error.check_result(), CheckResult::Misconfigured(_));
        self.0.iter().find(needs_change).or(self.0.first()).map(|failed| &failed.error)
    }

    /// The message of a condition: the reported error, and the number of the others.
    pub(super) fn condition_message(&self) -> Option<String> {
        let message = self.reported()?.condition_message();
        Some(match self.0.len() - 1 {
            0 => message,
            others => format!("1 of {} failed writes: {message}", others + 1),
        })
    }

    /// Time until the next attempt of any of them.
    pub(super) fn remaining(&self, now: Instant) -> Option<Duration> {
        let requests = self.0.iter().filter(|failed| failed.is_request());
        requests.map(|failed| failed.backoff.remaining(now).unwrap_or_default()).min()
    }

    /// Certificates whose reissue the API server refused, with its answer.
    pub(super) fn refused_reissues(&self) -> BTreeMap<&str, String> {
        let refused = |failed: &'_ FailedWrite| match failed.error.check_result() {
            CheckResult::Misconfigured(message) => Some(message),
            _ => None,
        };
        let reissues = self.0.iter().filter_map(|failed| match &failed.write {
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
            AgentError::Foreign { .. } | AgentError::NotCreated { .. } | AgentError::NotGranted { .. }
        )
    }
}
