//! Counts the CertificateRequests of a namespace.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use futures::StreamExt;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind},
    runtime::{WatchStreamExt, watcher},
};

use crate::shelf::lock;

/// The annotation with the name of the Certificate.
const CERTIFICATE: &str = "cert-manager.io/certificate-name";

/// The CertificateRequests that have been seen. cert-manager deletes those of earlier revisions.
#[derive(Default)]
pub(crate) struct Requests {
    /// UIDs, by name of the Certificate.
    seen: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// The number of those that are not counted, by name of the Certificate.
    forgotten: Mutex<BTreeMap<String, usize>>,
}

impl Requests {
    /// Counts the requests, and never returns.
    pub(crate) async fn count(self: Arc<Self>, client: Client, ns: String) {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("cert-manager.io", "v1", "CertificateRequest"));
        let requests: Api<DynamicObject> = Api::namespaced_with(client, &ns, &kind);
        let events = watcher::watcher(requests, watcher::Config::default()).default_backoff().applied_objects();
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            // The watch reconnects by itself.
            let Ok(request) = event else { continue };
            let certificate = request.annotations().get(CERTIFICATE).cloned().unwrap_or_default();
            lock(&self.seen).entry(certificate).or_default().insert(request.uid().unwrap_or_default());
        }
    }

    /// Counts only later requests.
    pub(crate) fn forget(&self) {
        let seen = lock(&self.seen);
        *lock(&self.forgotten) = seen.iter().map(|(name, requests)| (name.clone(), requests.len())).collect();
    }

    /// The number of requests of these Certificates.
    pub(crate) fn of(&self, certificates: &[&str]) -> usize {
        let (seen, forgotten) = (lock(&self.seen), lock(&self.forgotten));
        let count = |name: &&str| {
            let all = seen.get(*name).map(BTreeSet::len).unwrap_or_default();
            all - forgotten.get(*name).copied().unwrap_or_default()
        };
        certificates.iter().map(count).sum()
    }
}
