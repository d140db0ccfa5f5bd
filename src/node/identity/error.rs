//! Errors of requests to the API server of a kubeconfig.

use std::error::Error;
use std::io;
use std::time::Duration;

use tokio::time::timeout;

use crate::health::CheckResult;
use crate::store::cluster;

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a step failed. No message contains a key or a token.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    /// The API server does not accept the credentials, or its certificate is of another CA.
    #[error("{0}")]
    Refused(String),
    /// It may work later.
    #[error("{0}")]
    Unreachable(String),
    /// Something has to be changed.
    #[error("{0}")]
    Misconfigured(String),
}

impl StepError {
    pub(super) fn misconfigured(message: String) -> Self {
        Self::Misconfigured(message)
    }

    pub(super) fn into_check_result(self) -> CheckResult {
        match self {
            // A new bootstrap kubeconfig arrives without a change by people.
            Self::Refused(message) | Self::Unreachable(message) => CheckResult::Unreachable(message),
            Self::Misconfigured(message) => CheckResult::Misconfigured(message),
        }
    }
}

/// What a failed request means.
pub(super) fn api_error(action: &str, error: &kube::Error) -> StepError {
    let message = format!("cannot {action}: {}", cluster::error_message(error));
    match error {
        kube::Error::Api(status) if status.code == 401 => StepError::Refused(message),
        kube::Error::Api(_) => match cluster::check_failure(error, message.clone()) {
            CheckResult::Misconfigured(message) => StepError::Misconfigured(message),
            _ => StepError::Unreachable(message),
        },
        other if is_certificate_error(other) => StepError::Refused(format!("cannot {action}: {}", root_cause(other))),
        other => StepError::Unreachable(format!("cannot {action}: {}", root_cause(other))),
    }
}

/// Whether one side of a TLS connection refused the certificate of the other.
fn is_certificate_error(error: &(dyn Error + 'static)) -> bool {
    use rustls::Error::{AlertReceived, InvalidCertificate};
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return matches!(error, InvalidCertificate(_) | AlertReceived(_));
    }
    // The source of an io::Error is that of the error in it.
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    inner.is_some_and(|inner| is_certificate_error(inner)) || error.source().is_some_and(is_certificate_error)
}

fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

/// A request with a timeout.
pub(super) async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    timeout(REQUEST_TIMEOUT, request).await.unwrap_or_else(|_| Err(kube::Error::Service("no answer".into())))
}
