//! The health checks of one GatewaySecret: one for its source Secret, one for everything else that its reconcile reads and writes. A failure is
//! reported by the check whose dependency failed, and no other GatewaySecret's checks change.

use std::sync::Arc;

use super::AgentError;
use super::reconcile_trigger::ReconcileInput;
use crate::health::{CheckResult, Requirement};
use crate::registry::Entry;
use crate::store::{CheckHandle, HealthState};

/// What one reconcile found out about the source Secret.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum SourceOutcome {
    /// It ended before the source Secret was read.
    #[default]
    NotRead,
    /// The source Secret cannot be read, or not derived from the Certificate.
    Unreadable(CheckResult),
    /// It was read.
    Read(CheckResult),
}

/// The checks of one GatewaySecret. Each exists from its first result on.
pub(super) struct ReconcilerChecks {
    health: Arc<HealthState>,
    source: Option<CheckHandle>,
    gateway_secret: Option<CheckHandle>,
}

impl ReconcilerChecks {
    pub(super) fn new(health: Arc<HealthState>) -> Self {
        Self { health, source: None, gateway_secret: None }
    }

    /// Records a reconcile that ended with this failure, or none.
    pub(super) fn record(&mut self, input: &ReconcileInput, source: SourceOutcome, failure: Option<&AgentError>) {
        let ReconcileInput { entry, has_conflict } = input;
        if *has_conflict {
            // The source Secret may be the other one's: its check is not replaced.
            self.source = None;
            let reason = "an older GatewaySecret claims one of its names, or two of its names are the same";
            return self.record_gateway_secret(entry, CheckResult::Misconfigured(reason.to_owned()));
        }
        // Not faults: the reconcile is repeated at once, or by the leader.
        let is_fault = |error: &&AgentError| !error.has_code(409) && !matches!(error, AgentError::NotLeading);
        let failed = failure.filter(is_fault).map(AgentError::check_result);
        match (source, failed) {
            (SourceOutcome::Unreadable(result), _) => {
                self.record_source(entry, result);
                // Nothing else was tried, and the last result may be outdated.
                self.gateway_secret = None;
            }
            (SourceOutcome::Read(result), failed) => {
                self.record_source(entry, result);
                if failed.is_some() || failure.is_none() {
                    let unread = entry.unread.clone().map(CheckResult::Misconfigured);
                    self.record_gateway_secret(entry, failed.or(unread).unwrap_or(CheckResult::Ok));
                }
            }
            (SourceOutcome::NotRead, Some(CheckResult::Unreachable(reason))) => {
                self.record_source(entry, CheckResult::Unreachable(reason));
            }
            (SourceOutcome::NotRead, Some(failed)) => self.record_gateway_secret(entry, failed),
            (SourceOutcome::NotRead, None) => {}
        }
    }

    fn record_source(&mut self, entry: &Entry, result: CheckResult) {
        let add = || self.health.add(source_check_name(entry), Requirement::Never);
        self.source.get_or_insert_with(add).record(result);
    }

    fn record_gateway_secret(&mut self, entry: &Entry, result: CheckResult) {
        let name = || format!("gatewaysecret/{}/{}", entry.namespace, entry.name);
        let add = || self.health.add(name(), Requirement::Never);
        self.gateway_secret.get_or_insert_with(add).record(result);
    }
}

/// The source Secret, or the Certificate as long as the Secret cannot be derived from it.
fn source_check_name(entry: &Entry) -> String {
    let namespace = &entry.namespace;
    match (entry.source_name(), &entry.spec.certificate_ref) {
        ("", Some(certificate)) => format!("certificate/{namespace}/{}", certificate.name),
        (name, _) => format!("source-secret/{namespace}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;
    use crate::registry::tests::entry;

    fn refused(code: u16) -> AgentError {
        let status = Status::failure("no", "Reason").with_code(code);
        AgentError::api("patch", "secrets", "gw", kube::Error::Api(status.boxed()))
    }

    fn input(name: &str) -> ReconcileInput {
        let entry = Entry { name: name.to_owned(), ..entry("mesh", name, "gw") };
        ReconcileInput { entry: Arc::new(entry), has_conflict: false }
    }

    fn results(health: &HealthState) -> Vec<(String, i64)> {
        health.health().checks.into_iter().map(|check| (check.name, check.result.gauge_value())).collect()
    }

    fn expected(results: &[(&str, i64)]) -> Vec<(String, i64)> {
        results.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn a_failure_is_of_the_dependency_that_failed() {
        let health = Arc::new(HealthState::default());
        let mut checks = ReconcilerChecks::new(health.clone());
        let root = input("root");
        let (own, source) = ("gatewaysecret/mesh/root", "source-secret/mesh/root");
        checks.record(&root, SourceOutcome::NotRead, Some(&AgentError::NoAnswer));
        assert_eq!(results(&health), expected(&[(source, 0)]), "nothing is known of the rest");
        checks.record(&root, SourceOutcome::Read(CheckResult::Ok), Some(&refused(403)));
        assert_eq!(results(&health), expected(&[(own, -1), (source, 1)]), "it can be read");
        checks.record(&root, SourceOutcome::Read(CheckResult::Ok), Some(&refused(409)));
        assert_eq!(results(&health), expected(&[(own, -1), (source, 1)]), "a conflict is no fault");
        checks.record(&root, SourceOutcome::Read(CheckResult::Ok), Some(&refused(503)));
        assert_eq!(results(&health), expected(&[(own, 0), (source, 1)]));
        checks.record(&root, SourceOutcome::Read(CheckResult::Ok), None);
        assert_eq!(results(&health), expected(&[(own, 1), (source, 1)]));
        checks.record(&root, SourceOutcome::Unreadable(refused(403).check_result()), Some(&refused(403)));
        assert_eq!(results(&health), expected(&[(source, -1)]), "the rest was not tried");
    }

    #[test]
    fn the_checks_of_two_gateway_secrets_are_independent() {
        let health = Arc::new(HealthState::default());
        let [mut one, mut two] = [ReconcilerChecks::new(health.clone()), ReconcilerChecks::new(health.clone())];
        let unusable = SourceOutcome::Read(CheckResult::Misconfigured("it holds no key".to_owned()));
        one.record(&input("root-1"), unusable, None);
        two.record(&input("root-2"), SourceOutcome::Read(CheckResult::Ok), None);
        let sources = |health: &HealthState| results(health).split_off(2);
        assert_eq!(results(&health)[0], ("gatewaysecret/mesh/root-1".to_owned(), 1));
        assert_eq!(sources(&health), expected(&[("source-secret/mesh/root-1", -1), ("source-secret/mesh/root-2", 1)]));
        // A GatewaySecret that claims the source Secret of an older one does not judge it.
        let mut conflicting = ReconcilerChecks::new(health.clone());
        let claim = ReconcileInput { has_conflict: true, ..input("root-2") };
        conflicting.record(&claim, SourceOutcome::NotRead, None);
        assert_eq!(sources(&health)[1], ("source-secret/mesh/root-2".to_owned(), 1));
        drop(one);
        assert_eq!(results(&health).len(), 2, "{:?}", results(&health));
    }
}
