//! Waits for a permission, without the request that needs it.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::{Mutex, watch};
use tokio::time::{sleep, timeout};

use super::RECONCILE_TIMEOUT;
use crate::api::SourceKind;
use crate::registry::Entry;

/// Time that passes for each request about a refused permission, over all namespaces: ten requests in a second.
const REFUSED_INTERVAL: Duration = Duration::from_millis(100);

/// How long after its creation a GatewaySecret may lack permissions without an error: `trustspan rbac` prints them from the GatewaySecret, so they
/// are always granted later.
const ADOPTION: SignedDuration = SignedDuration::from_mins(10);
/// How often the permission is asked for meanwhile.
const ADOPTION_INTERVAL: Duration = Duration::from_secs(3);

/// Whether a GatewaySecret is new, and nothing was done for it yet.
pub(super) fn is_being_adopted(entry: &Entry, now: Timestamp) -> bool {
    let is_new = entry.created.is_some_and(|created| now.duration_since(created) < ADOPTION);
    is_new && entry.status.bundle.is_empty()
}

/// How long to wait until a permission that was refused is asked for again.
pub(super) fn next_question(is_being_adopted: bool, resync_interval: Duration) -> Duration {
    if is_being_adopted { ADOPTION_INTERVAL.min(resync_interval) } else { resync_interval }
}

/// The verb for Secrets of `spec.clients.secretNames`, which no API server checks for a request. The shipped webhook configuration asks whether the
/// agent has it, and sends each write of such a Secret, so that the webhook adds the clients' bundle (docs/adr/0032).
pub(super) const INJECT: &str = "inject";

/// Waits until the API server says that this process may read an object. Every user may ask (ClusterRole `system:basic-user`).
pub(crate) async fn granted(client: &Client, kind: SourceKind, object: (&str, &str), interval: Duration) {
    loop {
        sleep(interval).await;
        if is_granted(client, kind, object).await {
            return;
        }
    }
}

/// The attributes of a request for one object of the core group.
fn attributes(verb: &str, kind: SourceKind, (namespace, name): (&str, &str)) -> ResourceAttributes {
    let text = |text: &str| Some(text.to_owned());
    ResourceAttributes {
        verb: text(verb),
        version: text("v1"),
        resource: text(kind.plural()),
        namespace: text(namespace),
        name: text(name),
        ..ResourceAttributes::default()
    }
}

/// Whether this process has a verb for an object that no request has; `false` also without an answer.
pub(super) async fn has_verb(client: &Client, verb: &str, kind: SourceKind, object: (&str, &str)) -> bool {
    let answer = timeout(RECONCILE_TIMEOUT, may(client, attributes(verb, kind, object))).await;
    answer.is_ok_and(|answer| answer.unwrap_or(false))
}

/// Whether this process may read an object; `false` also without an answer.
pub(super) async fn is_granted(client: &Client, kind: SourceKind, object: (&str, &str)) -> bool {
    let attributes = attributes("get", kind, object);
    match timeout(RECONCILE_TIMEOUT, may(client, attributes)).await {
        Ok(Ok(may)) => may,
        // The process may not even ask: only the read itself can show it.
        Ok(Err(kube::Error::Api(status))) => status.code == 403,
        _ => false,
    }
}

/// Whether the API server allows this process, or this user, a request.
pub(crate) async fn may(client: &Client, attributes: ResourceAttributes) -> kube::Result<bool> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let answer = api.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Namespace and name of a GatewaySecret.
pub(super) type Key = (String, String);

/// The GatewaySecrets whose source Secret may be read, and the budget for those whose may not.
#[derive(Default)]
pub(super) struct Permissions {
    granted: watch::Sender<BTreeSet<Key>>,
    refused: Mutex<()>,
}

impl Permissions {
    /// Whether the last answer was that the source Secret may be read.
    pub(super) fn has(&self, entry: &Entry) -> bool {
        self.granted.borrow().contains(&key(entry))
    }

    /// Notifies of permissions that are granted.
    pub(super) fn subscribe(&self) -> watch::Receiver<BTreeSet<Key>> {
        self.granted.subscribe()
    }

    /// Records an answer.
    pub(super) fn record(&self, entry: &Entry, is_granted: bool) {
        self.granted.send_if_modified(|granted| match is_granted {
            true => granted.insert(key(entry)),
            false => {
                granted.remove(&key(entry));
                false
            }
        });
    }

    /// Forgets GatewaySecrets that are gone.
    pub(super) fn retain(&self, exists: impl Fn(&Key) -> bool) {
        self.granted.send_if_modified(|granted| {
            granted.retain(exists);
            false
        });
    }

    /// Waits after requests about a permission that was refused. Namespaces wait in turn, since each waits for one object at a time
    /// (`NamespaceBudget::ask`).
    pub(super) async fn wait_after_refusal(&self, requests: u32) {
        let _turn = self.refused.lock().await;
        sleep(REFUSED_INTERVAL * requests).await;
    }
}

fn key(entry: &Entry) -> Key {
    (entry.namespace.clone(), entry.name.clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;
    use crate::api::TrustAnchor;
    use crate::registry::tests::entry;
    use crate::trust::fixtures::{ca, parsed};

    #[test]
    fn a_missing_permission_is_ordinary_until_something_was_done_or_ten_minutes_passed() {
        let (created, resync) = (Timestamp::UNIX_EPOCH, Duration::from_secs(30));
        let mut entry = Entry { created: Some(created), ..entry("mesh", "root", "gw") };
        let at = |minutes| created + SignedDuration::from_mins(minutes);
        assert!(
            is_being_adopted(&entry, at(0)) && is_being_adopted(&entry, at(9)) && !is_being_adopted(&entry, at(10))
        );
        assert_eq!(next_question(true, resync), ADOPTION_INTERVAL);
        assert_eq!(next_question(false, resync), resync);
        assert_eq!(next_question(true, Duration::from_secs(1)), Duration::from_secs(1));
        entry.status.bundle = vec![TrustAnchor::from(&parsed(ca("root").der()))];
        assert!(!is_being_adopted(&entry, at(0)), "it worked before");
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_of_many_namespaces_share_one_budget() {
        let (permissions, start) = (Arc::new(Permissions::default()), Instant::now());
        let refusal = |_| {
            let permissions = permissions.clone();
            tokio::spawn(async move { permissions.wait_after_refusal(1).await })
        };
        for task in (0..50).map(refusal).collect::<Vec<_>>() {
            task.await.expect("a refusal");
        }
        assert_eq!(start.elapsed().as_millis(), 50 * REFUSED_INTERVAL.as_millis());
    }
}
