//! The latest result of each health check. The task that uses a dependency records it; the ports and the metrics read it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::health::{Check, CheckResult, Health, Requirement};

/// The latest result of each health check of this process.
#[derive(Debug, Default)]
pub struct HealthState {
    checks: Mutex<BTreeMap<String, Arc<RecordedCheck>>>,
    has_started: AtomicBool,
}

#[derive(Debug)]
struct RecordedCheck {
    last: Mutex<(Requirement, Option<CheckResult>)>,
}

/// Records the results of one check. The check ends when this value is dropped.
#[derive(Debug)]
pub struct CheckHandle {
    state: Arc<HealthState>,
    name: String,
    check: Arc<RecordedCheck>,
}

impl HealthState {
    /// Adds a check, which fails until its first result. It replaces one of the same name.
    ///
    /// Checks that the start requires must be added before any result is recorded.
    pub fn add(self: &Arc<Self>, name: impl Into<String>, requirement: Requirement) -> CheckHandle {
        let (name, check) = (name.into(), Arc::new(RecordedCheck { last: Mutex::new((requirement, None)) }));
        lock(&self.checks).insert(name.clone(), check.clone());
        CheckHandle { state: self.clone(), name, check }
    }

    /// All checks, by name.
    pub fn health(&self) -> Health {
        let check = |(name, check): (&String, &Arc<RecordedCheck>)| {
            let (requirement, last) = lock(&check.last).clone();
            let result = last.unwrap_or_else(|| CheckResult::Unreachable("not checked yet".to_owned()));
            Check { name: name.clone(), requirement, result }
        };
        let checks = lock(&self.checks).iter().map(check).collect();
        Health { checks, has_started: self.has_started.load(Ordering::Acquire), is_shutting_down: false }
    }
}

impl CheckHandle {
    /// Records a result. It is logged if the state has changed, and a first success never.
    pub fn record(&self, result: CheckResult) {
        let requirement = lock(&self.check.last).0;
        self.record_as(requirement, result);
    }

    /// Records a result, and when it makes the process unready.
    pub fn record_as(&self, requirement: Requirement, result: CheckResult) {
        let (_, before) = std::mem::replace(&mut *lock(&self.check.last), (requirement, Some(result.clone())));
        let check = &self.name;
        let is_change = before.as_ref().is_none_or(|before| !before.is_same_state(&result));
        match &result {
            CheckResult::Ok if before.is_some() && is_change => tracing::info!(check, "health check succeeds again"),
            CheckResult::Unreachable(reason) if is_change => {
                tracing::warn!(check, "health check fails, retrying: {reason}");
            }
            CheckResult::Misconfigured(reason) if is_change => {
                tracing::error!(check, "health check fails, a change is needed: {reason}");
            }
            _ => {}
        }
        if result.is_ok() && !self.state.has_started.load(Ordering::Acquire) && self.state.health().may_start() {
            self.state.has_started.store(true, Ordering::Release);
        }
    }
}

impl Drop for CheckHandle {
    fn drop(&mut self) {
        let mut checks = lock(&self.state.checks);
        if checks.get(&self.name).is_some_and(|check| Arc::ptr_eq(check, &self.check)) {
            checks.remove(&self.name);
        }
    }
}

/// A panic leaves no result half written, so a poisoned lock is used.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(state: &HealthState) -> Vec<(String, bool)> {
        state.health().checks.into_iter().map(|check| (check.name, check.result.is_ok())).collect()
    }

    #[test]
    fn each_handle_records_its_own_check() {
        let state = Arc::new(HealthState::default());
        let names = ["source-secret/mesh/root", "source-secret/shop/root"];
        let [one, two] = names.map(|name| state.add(name, Requirement::Never));
        one.record(CheckResult::Ok);
        two.record(CheckResult::Misconfigured("forbidden".to_owned()));
        assert_eq!(results(&state), [(names[0].to_owned(), true), (names[1].to_owned(), false)]);
        two.record(CheckResult::Ok);
        one.record(CheckResult::Unreachable("no answer".to_owned()));
        assert_eq!(results(&state), [(names[0].to_owned(), false), (names[1].to_owned(), true)]);
    }

    #[test]
    fn a_check_ends_with_its_handle_and_not_with_the_one_that_it_replaced() {
        let state = Arc::new(HealthState::default());
        let first = state.add("leader-lease", Requirement::AtStart);
        let second = state.add("leader-lease", Requirement::AtStart);
        second.record(CheckResult::Ok);
        first.record(CheckResult::Unreachable("no answer".to_owned()));
        drop(first);
        assert_eq!(results(&state), [("leader-lease".to_owned(), true)]);
        drop(second);
        assert_eq!(results(&state), []);
    }

    #[test]
    fn starts_when_all_required_checks_succeed_at_once() {
        let state = Arc::new(HealthState::default());
        let [server, certificate] =
            ["api-server", "serving-certificate"].map(|name| state.add(name, Requirement::AtStart));
        let _source = state.add("source-secret/mesh/root", Requirement::Never);
        server.record(CheckResult::Ok);
        server.record(CheckResult::Unreachable("no answer".to_owned()));
        certificate.record(CheckResult::Ok);
        assert!(!state.health().has_started);
        server.record(CheckResult::Ok);
        assert!(state.health().has_started);
        server.record(CheckResult::Unreachable("no answer".to_owned()));
        assert!(state.health().has_started, "it does not start twice");
    }
}
