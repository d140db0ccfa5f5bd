//! Named health checks, answered in the format of kube-apiserver (k8s.io/apiserver, package `healthz`).
//!
//! A check is a value: what was found when a dependency was last used. `/livez` says that the process answers, `/readyz` whether it
//! should get requests, `/healthz` how every dependency is.

mod request;

pub use request::{Endpoint, HealthRequest};

/// What was found when a dependency was last used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// It does what is needed of it.
    Ok,
    /// It does not answer, or not now. The next attempt may succeed without any change.
    Unreachable(String),
    /// It refuses, or holds what cannot be used, until a person or another controller changes something.
    Misconfigured(String),
}

impl CheckResult {
    /// Whether the dependency does what is needed of it.
    pub fn is_ok(&self) -> bool {
        *self == Self::Ok
    }

    /// Whether a change to `other` deserves a line in the log. While a dependency is unreachable its error text varies with
    /// each attempt.
    pub fn is_same_state(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unreachable(_), Self::Unreachable(_)) => true,
            _ => self == other,
        }
    }

    /// The value of a metric: 1 if it is ok, 0 if it is unreachable, -1 if it is misconfigured.
    pub fn gauge_value(&self) -> i64 {
        match self {
            Self::Ok => 1,
            Self::Unreachable(_) => 0,
            Self::Misconfigured(_) => -1,
        }
    }

    /// The HTTP status code of a failure.
    fn code(&self) -> u16 {
        match self {
            Self::Ok => 200,
            Self::Unreachable(_) => 503,
            Self::Misconfigured(_) => 500,
        }
    }
}

/// Whether the process is ready while a check fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// Never: without this dependency every request fails.
    Always,
    /// Only after all checks succeeded once: all replicas share the dependency, so no other one would serve better.
    AtStart,
    /// Yes: the dependency belongs to one GatewaySecret.
    Never,
}

/// A check with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Its name, which may contain slashes.
    pub name: String,
    /// When it makes the process unready.
    pub requirement: Requirement,
    /// What was found last.
    pub result: CheckResult,
}

/// What a port shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Names and reasons, for administrators.
    Names,
    /// Only how many checks failed: names of Secrets are not for every caller.
    Totals,
}

/// All checks of a process.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// In the order in which they are listed.
    pub checks: Vec<Check>,
    /// Whether all checks that the start requires succeeded once.
    pub has_started: bool,
    /// Whether the process ends soon.
    pub is_shutting_down: bool,
}

/// A response to a health request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthResponse {
    /// HTTP status code: 200; 404 for a name that does not exist; 503 while failing checks may succeed by themselves; 500 if one of
    /// them needs a change.
    pub code: u16,
    /// Body, as text/plain.
    pub text: String,
}

impl Health {
    /// Whether all checks that the start requires succeed.
    pub fn may_start(&self) -> bool {
        self.checks.iter().all(|check| check.requirement == Requirement::Never || check.result.is_ok())
    }

    /// Answers a request.
    pub fn respond(&self, request: &HealthRequest, detail: Detail) -> HealthResponse {
        let checks = self.checks_of(request.endpoint);
        match (&request.name, detail) {
            (None, _) => self.respond_with_all(request, &checks, detail),
            (Some(name), Detail::Names) => match checks.iter().find(|check| check.name == *name) {
                Some(check) => respond_with_one(&check.result),
                None => not_found(),
            },
            // A response that depends on the name would show a stranger which names exist.
            (Some(_), Detail::Totals) => not_found(),
        }
    }

    fn checks_of(&self, endpoint: Endpoint) -> Vec<Check> {
        let built_in = |name: &str, result| Check { name: name.to_owned(), requirement: Requirement::Always, result };
        // That this code runs is the result.
        let mut checks = vec![built_in("ping", CheckResult::Ok)];
        if endpoint == Endpoint::Readyz {
            let is_ending = || CheckResult::Unreachable("the process is shutting down".to_owned());
            let shutdown = if self.is_shutting_down { is_ending() } else { CheckResult::Ok };
            checks.push(built_in("shutdown", shutdown));
        }
        if endpoint != Endpoint::Livez {
            checks.extend(self.checks.iter().cloned());
        }
        checks
    }

    /// Whether a check is listed and not counted.
    fn is_excluded(&self, check: &Check, request: &HealthRequest, detail: Detail) -> bool {
        // On the port of strangers, an exclusion would show whether a name exists.
        let by_request = detail == Detail::Names && request.excluded.contains(&check.name);
        let by_requirement = request.endpoint == Endpoint::Readyz
            && match check.requirement {
                Requirement::Always => false,
                Requirement::AtStart => self.has_started,
                Requirement::Never => true,
            };
        by_request || (by_requirement && !check.result.is_ok())
    }

    fn respond_with_all(&self, request: &HealthRequest, checks: &[Check], detail: Detail) -> HealthResponse {
        let mut lines = String::new();
        let mut failed = Vec::new();
        for check in checks {
            let name = &check.name;
            lines += &if self.is_excluded(check, request, detail) {
                format!("[+]{name} excluded: ok\n")
            } else if check.result.is_ok() {
                format!("[+]{name} ok\n")
            } else {
                failed.push(check.result.code());
                format!("[-]{name} failed: reason withheld\n")
            };
        }
        if detail == Detail::Totals {
            let total = checks.len();
            lines = format!("{} of {total} checks ok\n", total - failed.len());
        } else if let Some(warning) = request.unknown_exclusions(checks) {
            lines += &warning;
        }
        let endpoint = request.endpoint.name();
        // A failure that needs a change outweighs those that may end by themselves.
        match failed.into_iter().min() {
            Some(code) => HealthResponse { code, text: format!("{lines}{endpoint} check failed\n") },
            None if request.is_verbose => {
                HealthResponse { code: 200, text: format!("{lines}{endpoint} check passed\n") }
            }
            None => ok(),
        }
    }
}

fn ok() -> HealthResponse {
    HealthResponse { code: 200, text: "ok".to_owned() }
}

fn not_found() -> HealthResponse {
    HealthResponse { code: 404, text: "404 page not found\n".to_owned() }
}

fn respond_with_one(result: &CheckResult) -> HealthResponse {
    let text = match result {
        CheckResult::Ok => return ok(),
        CheckResult::Unreachable(reason) => format!("service unavailable: unreachable, retrying: {reason}\n"),
        CheckResult::Misconfigured(reason) => format!("internal server error: misconfigured: {reason}\n"),
    };
    HealthResponse { code: result.code(), text }
}

#[cfg(test)]
mod tests;
