//! Errors of the approver, and how to fix them.

use crate::health::CheckResult;
use crate::store::cluster;

/// Why a ClientIdentity could not be reconciled. No message contains a key or a token.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApproveError {
    /// The API server refused a request or failed.
    #[error("Cannot {action}: {}", cluster::error_message(source))]
    Api { action: String, source: Box<kube::Error> },
    /// An object has to be changed.
    #[error("{0}")]
    Invalid(String),
    /// A bootstrap kubeconfig could not be delivered to another cluster.
    #[error("{0}")]
    NotDelivered(String),
    /// The API server did not answer in time.
    #[error("The API server does not answer")]
    NoAnswer,
    /// Another process may be the leader.
    #[error("This process is not the leader any more")]
    NotLeading,
}

impl ApproveError {
    pub(super) fn api(action: impl Into<String>, source: kube::Error) -> Self {
        Self::Api { action: action.into(), source: Box::new(source) }
    }

    pub(super) fn has_code(&self, code: u16) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(status) if status.code == code))
    }

    /// Reason of a condition.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "Invalid",
            Self::NotDelivered(_) => "NotDelivered",
            error if error.has_code(403) => "Forbidden",
            _ => "Failed",
        }
    }

    /// Result of a health check.
    pub(super) fn check_result(&self) -> CheckResult {
        match self {
            Self::Api { source, .. } => cluster::check_failure(source, self.to_string()),
            Self::Invalid(_) => CheckResult::Misconfigured(self.to_string()),
            Self::NotDelivered(_) | Self::NoAnswer | Self::NotLeading => CheckResult::Unreachable(self.to_string()),
        }
    }
}
