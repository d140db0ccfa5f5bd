//! Waits for a permission, without the request that needs it.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::{sleep, timeout};

use super::RECONCILE_TIMEOUT;
use crate::api::SourceKind;

/// Waits until the API server says that this process may read an object. Every user may ask (ClusterRole `system:basic-user`).
pub(crate) async fn granted(client: &Client, kind: SourceKind, (namespace, name): (&str, &str), interval: Duration) {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let text = |text: &str| Some(text.to_owned());
    let attributes = ResourceAttributes {
        verb: text("get"),
        version: text("v1"),
        resource: text(kind.plural()),
        namespace: text(namespace),
        name: text(name),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    loop {
        sleep(interval).await;
        match timeout(RECONCILE_TIMEOUT, api.create(&PostParams::default(), &review)).await {
            Ok(Ok(answer)) if answer.status.as_ref().is_some_and(|status| status.allowed) => return,
            // The process may not even ask: only the read itself can show it.
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => return,
            _ => {}
        }
    }
}
