//! Health check of the API server.

use std::time::Duration;

use kube::api::ListParams;
use kube::runtime::utils::Backoff;
use kube::{Api, Client};
use tokio::time::{sleep, timeout};

use super::{CheckHandle, cluster, watch};
use crate::api::GatewaySecret;
use crate::health::CheckResult;

/// Time between two requests while the API server answers.
const INTERVAL: Duration = Duration::from_secs(5);
/// Limit of one request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Requests the metadata of one GatewaySecret again and again, with backoff while that fails. Never returns.
///
/// It is a request of the kind that trustspan needs: `/readyz` of the API server would also judge what trustspan does not use.
pub async fn probe(client: Client, check: CheckHandle) {
    let api: Api<GatewaySecret> = Api::all(client);
    let mut backoff = watch::backoff();
    loop {
        let result = match timeout(TIMEOUT, api.list_metadata(&ListParams::default().limit(1))).await {
            Ok(listed) => judge(listed.map(drop)),
            Err(_) => CheckResult::Unreachable(format!("no answer within {} s", TIMEOUT.as_secs())),
        };
        let delay = if result.is_ok() {
            backoff.reset();
            INTERVAL
        } else {
            backoff.next().unwrap_or(INTERVAL)
        };
        check.record(result);
        sleep(delay).await;
    }
}

fn judge(answer: kube::Result<()>) -> CheckResult {
    match answer {
        Ok(()) => CheckResult::Ok,
        // It answered. A missing permission or CRD fails check `gatewaysecret-cache`.
        Err(kube::Error::Api(status)) if [403, 404].contains(&status.code) => CheckResult::Ok,
        Err(error) => cluster::check_failure(&error, cluster::error_message(&error)),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn is_reachable_when_it_answers_with_a_missing_permission_or_kind() {
        let answered = |code| judge(Err(kube::Error::Api(Status::failure("no", "Reason").with_code(code).boxed())));
        assert_eq!([answered(403), answered(404)], [CheckResult::Ok, CheckResult::Ok]);
        assert_eq!(answered(401), CheckResult::Misconfigured("no".to_owned()), "the credentials of this process");
        assert_eq!(answered(503), CheckResult::Unreachable("no".to_owned()));
        assert_eq!(answered(429), CheckResult::Unreachable("no".to_owned()));
        let refused = judge(Err(kube::Error::Service("connection refused".into())));
        assert!(matches!(refused, CheckResult::Unreachable(_)), "{refused:?}");
    }
}
