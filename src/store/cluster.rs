//! GatewaySecrets and policies of a cluster, watched. Nothing else is listed or watched: no right to read a Secret is needed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::{Stream, StreamExt, stream};
use kube::api::{DynamicObject, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, DeserializeGuard, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Config, ResourceExt};
use serde::Deserialize;
use serde_json::Value;

use super::{RegistryCache, Unread, watch};
use crate::api::{
    ClusterRotationPolicy, GatewaySecret, GatewaySecretStatus, Resolved, RotationPolicy, RotationPolicySpec,
    with_short_quotes,
};
use crate::registry::{Entry, Policies, PolicyKey, Registry};

/// Why there is no client for a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error("{}: not a kubeconfig that can be used: {source}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        source: kube::config::KubeconfigError,
    },
    /// No kubeconfig was given, and this is no pod.
    #[error("not in a cluster ({0}): name a kubeconfig with --kubeconfig, or a directory with -f")]
    InCluster(#[from] kube::config::InClusterError),
    /// No kubeconfig was found.
    #[error("no cluster: {0}")]
    Infer(#[from] kube::config::InferConfigError),
    /// The client cannot be built.
    #[error("cannot build a client for the cluster: {0}")]
    Client(#[from] kube::Error),
}

/// A client for the cluster of a kubeconfig, or else for the one that this process is a pod of. Does not connect yet.
///
/// # Errors
/// When the kubeconfig cannot be used, or none is given outside a cluster.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let config = match kubeconfig {
        None => Config::incluster()?,
        Some(path) => {
            let wrap = |source| ConnectError::Kubeconfig { path: path.to_owned(), source };
            let read = Kubeconfig::read_from(path).map_err(wrap)?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.map_err(wrap)?
        }
    };
    Ok(Client::try_from(config)?)
}

/// The same for a person: without a kubeconfig, as kubectl finds one.
///
/// # Errors
/// When there is none that can be used.
pub async fn connect_as_kubectl(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    match kubeconfig {
        Some(_) => connect(kubeconfig).await,
        None => Ok(Client::try_from(Config::infer().await?)?),
    }
}

/// All GatewaySecrets, once, and those that do not fit the type.
///
/// # Errors
/// When they cannot be listed.
pub async fn list(client: Client) -> kube::Result<(Vec<Entry>, Unread)> {
    let listed = Api::<Guarded>::all(client.clone()).list(&ListParams::default()).await?;
    let mut policies = Policies::default();
    for resource in policy_resources() {
        for policy in Api::<DynamicObject>::all_with(client.clone(), &resource).list(&ListParams::default()).await? {
            policies.insert(policy_key(&policy), policy.data["spec"].clone());
        }
    }
    let (mut entries, mut unread) = (Vec::new(), Unread::new());
    for object in listed.items {
        let key = key(&object);
        match read(object).and_then(|entry| under(&entry, &policies)) {
            Ok(entry) => entries.push(entry),
            Err(error) => drop(unread.insert(key, error)),
        }
    }
    Ok((entries, unread))
}

/// The kinds of policies.
fn policy_resources() -> [ApiResource; 2] {
    [ApiResource::erase::<RotationPolicy>(&()), ApiResource::erase::<ClusterRotationPolicy>(&())]
}

fn policy_key(policy: &DynamicObject) -> PolicyKey {
    (policy.namespace(), policy.name_any())
}

/// A GatewaySecret with its policy.
fn under(entry: &Entry, policies: &Policies) -> Result<Entry, String> {
    let policy = policies.policy(&entry.namespace, entry.spec.policy_name());
    let policy = policy
        .map_err(|error| format!("policy {}: {}", entry.spec.policy_name(), with_short_quotes(&error.to_string())))?;
    Ok(Entry { policy, ..entry.clone() })
}

/// A GatewaySecret as it stands now, with the policy as it is known. One that does not fit the type any more stays as it is known, with its stored status; `None`
/// when it is gone, or about to be.
///
/// # Errors
/// When it cannot be read.
pub async fn current(client: Client, known: &Entry) -> kube::Result<Option<Entry>> {
    let resource = ApiResource::erase::<GatewaySecret>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client, &known.namespace, &resource);
    let entry = api.get_opt(&known.name).await?.map(|object| last_good(object, known));
    Ok(entry.filter(|entry| !entry.being_deleted))
}

fn last_good(object: DynamicObject, known: &Entry) -> Entry {
    let status = GatewaySecretStatus::deserialize(&object.data["status"]).unwrap_or_else(|_| known.status.clone());
    let being_deleted = object.metadata.deletion_timestamp.is_some();
    let guarded = serde_json::to_value(object).and_then(serde_json::from_value).map_err(|error| error.to_string());
    let read = guarded.and_then(read).map(|entry| Entry { policy: known.policy.clone(), ..entry });
    read.unwrap_or_else(|error| Entry { unread: Some(error), being_deleted, status, ..known.clone() })
}

/// cert-manager's Certificates of a namespace.
pub fn certificates(client: Client, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate"));
    Api::namespaced_with(client, namespace, &resource)
}

/// One GatewaySecret of a watch; an object that does not fit the type spoils itself only, not the list.
pub type Guarded = DeserializeGuard<GatewaySecret>;

/// An event of one of the watches.
enum Change {
    GatewaySecret(Box<Event<Guarded>>),
    Policy(PolicyKind, Box<Event<DynamicObject>>),
}

/// Index of a kind of policy in [`policy_resources`].
type PolicyKind = usize;

/// Keeps `live` up to date with the cluster. Lost connections, an API server that is down and a CRD that is not
/// installed are told once, and tried again at growing intervals of up to half a minute; the last registry stays meanwhile.
pub async fn follow(client: Client, live: Arc<RegistryCache>) {
    let gateway_secrets = watcher::watcher(Api::<Guarded>::all(client.clone()), watcher::Config::default());
    let policies = policy_resources().map(|resource| {
        watcher::watcher(Api::<DynamicObject>::all_with(client.clone(), &resource), watcher::Config::default())
    });
    feed(gateway_secrets, policies, &live).await;
}

/// What the watches have shown so far.
#[derive(Default)]
struct Watched {
    known: BTreeMap<ObjectKey, Entry>,
    unread: Unread,
    /// A list that is not complete yet.
    listed: (BTreeMap<ObjectKey, Entry>, Unread),
    is_listed: bool,
    policies: [Option<BTreeMap<PolicyKey, Value>>; 2],
    listed_policies: [BTreeMap<PolicyKey, Value>; 2],
}

/// Feeds the events of watches into `live`.
async fn feed<P: Stream<Item = watcher::Result<Event<DynamicObject>>> + Send>(
    gateway_secrets: impl Stream<Item = watcher::Result<Event<Guarded>>> + Send,
    policies: [P; 2],
    live: &RegistryCache,
) {
    let gateway_secrets =
        watch::with_backoff(gateway_secrets).map(|event| event.map(|event| Change::GatewaySecret(Box::new(event))));
    let [near, cluster] = policies;
    let policies = [watch::with_backoff(near).boxed(), watch::with_backoff(cluster).boxed()];
    let policies = policies.into_iter().enumerate().map(|(kind, events)| {
        events.map(move |event| event.map(|event| Change::Policy(kind, Box::new(event)))).boxed()
    });
    let mut events = stream::select_all(std::iter::once(gateway_secrets.boxed()).chain(policies));
    let mut watched = Watched::default();
    let mut trouble = Trouble::default();
    while let Some(event) = events.next().await {
        if event.is_ok() {
            trouble = Trouble::default();
        }
        match event {
            Ok(Change::GatewaySecret(event)) => watched.take(*event, live),
            Ok(Change::Policy(kind, event)) => watched.take_policy(kind, *event, live),
            Err(error) => {
                watched.listed = Default::default();
                watched.listed_policies = Default::default();
                live.failed();
                if let Some(sentence) = trouble.news(sentence(&error)) {
                    tracing::warn!("{sentence}");
                }
            }
        }
    }
}

impl Watched {
    fn take(&mut self, event: Event<Guarded>, live: &RegistryCache) {
        match event {
            Event::Init => self.listed = Default::default(),
            // managedFields and the rest of the object end here: an entry is identity, spec and status.
            Event::InitApply(object) => {
                let key = key(&object);
                let former = self.known.get(&key).cloned();
                let entry = take(object, former, &mut self.listed.1, live);
                self.listed.0.extend(entry.map(|entry| (key, entry)));
            }
            Event::InitDone => {
                (self.known, self.unread) = std::mem::take(&mut self.listed);
                self.is_listed = true;
                tracing::info!(gatewaysecrets = self.known.len(), "GatewaySecrets listed");
                self.publish(live);
            }
            Event::Apply(object) => {
                let key = key(&object);
                let former = self.known.get(&key).cloned();
                self.known.extend(take(object, former, &mut self.unread, live).map(|entry| (key, entry)));
                self.publish(live);
            }
            Event::Delete(object) => {
                self.known.remove(&key(&object));
                self.unread.remove(&key(&object));
                self.publish(live);
            }
        }
    }

    fn take_policy(&mut self, kind: PolicyKind, event: Event<DynamicObject>, live: &RegistryCache) {
        let listed = &mut self.listed_policies[kind];
        let known = &mut self.policies[kind];
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(policy) => {
                listed.insert(policy_key(&policy), policy.data["spec"].clone());
            }
            Event::InitDone => {
                *known = Some(std::mem::take(listed));
                self.publish(live);
            }
            Event::Apply(policy) => {
                known.get_or_insert_default().insert(policy_key(&policy), policy.data["spec"].clone());
                self.publish(live);
            }
            Event::Delete(policy) => {
                known.get_or_insert_default().remove(&policy_key(&policy));
                self.publish(live);
            }
        }
    }

    /// Publishes what is known, once all kinds were listed: without its policy a GatewaySecret would be judged by the defaults.
    fn publish(&mut self, live: &RegistryCache) {
        let [Some(near), Some(cluster)] = &self.policies else { return };
        if !self.is_listed {
            return;
        }
        let mut policies = Policies::default();
        for (key, spec) in near.iter().chain(cluster) {
            policies.insert(key.clone(), spec.clone());
        }
        let mut unread = self.unread.clone();
        for (key, entry) in &mut self.known {
            match under(entry, &policies) {
                Ok(read) => *entry = read,
                // It keeps the policy that it had.
                Err(error) => drop(unread.insert(key.clone(), error)),
            }
        }
        live.publish_unread(unread.clone());
        live.publish(Registry::new(self.known.values().cloned()).with_unread(unread.keys().cloned()));
    }
}

/// What was said last of tries that fail one after the other.
#[derive(Debug, Default)]
struct Trouble(Option<String>);

impl Trouble {
    /// A sentence that was not said just before.
    fn news(&mut self, sentence: String) -> Option<&str> {
        let is_new = self.0.as_ref() != Some(&sentence);
        let said = self.0.insert(sentence);
        is_new.then_some(said)
    }
}

type ObjectKey = (String, String);

fn key(object: &Guarded) -> ObjectKey {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// What an object says. Where it does not fit the type its former state stays in place: to forget it would leave its Secret
/// unguarded.
fn take(object: Guarded, former: Option<Entry>, unread: &mut Unread, live: &RegistryCache) -> Option<Entry> {
    let key = key(&object);
    match read(object) {
        Ok(entry) => {
            unread.remove(&key);
            Some(entry)
        }
        Err(error) => {
            live.failed();
            let (namespace, name) = (&key.0, &key.1);
            tracing::error!(namespace, name, "GatewaySecret not read, its last good state stays: {error}");
            unread.insert(key, error.clone());
            former.map(|former| Entry { unread: Some(error), ..former })
        }
    }
}

/// Why not, for an object that does not fit the type.
fn read(object: Guarded) -> Result<Entry, String> {
    let (namespace, name) = key(&object);
    let object = object.0.map_err(|error| with_short_quotes(&error.to_string()))?;
    let status = object.status.unwrap_or_default();
    Ok(Entry {
        namespace,
        name,
        uid: object.metadata.uid,
        created: object.metadata.creation_timestamp.map(|t| t.0),
        generation: object.metadata.generation,
        being_deleted: object.metadata.deletion_timestamp.is_some(),
        unread: None,
        resolved: Resolved::of(&object.spec, status.resolved.as_ref()),
        policy: RotationPolicySpec::default(),
        spec: object.spec,
        status,
    })
}

/// What the API server said of a request that failed, or what went wrong before it could: a sentence.
pub fn told(error: &kube::Error) -> String {
    match error {
        // kube's own words end with a dump of the answer.
        kube::Error::Api(status) if status.message.is_empty() => status.reason.clone(),
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

fn sentence(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status)) | WatchStartFailed(kube::Error::Api(status))
            if status.code == 404 =>
        {
            "the cluster lacks a kind of trustspan: install the CRDs (`trustspan crd | kubectl apply -f -`); trying again"
                .to_owned()
        }
        InitialListFailed(e) => format!("cannot list GatewaySecrets or policies, trying again: {}", told(e)),
        WatchStartFailed(e) | WatchFailed(e) => format!("cannot watch GatewaySecrets or policies, trying again: {}", told(e)),
        WatchError(status) => format!("a watch on GatewaySecrets or policies ended, trying again: {}", status.message),
        other => format!("cannot follow GatewaySecrets, trying again: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    fn object(name: &str, spec: serde_json::Value) -> Guarded {
        let object = json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "spec": spec,
            "metadata": {"namespace": "istio-ingress", "name": name, "generation": 1}});
        serde_json::from_value(object).unwrap()
    }

    /// Both kinds are installed, and there is none.
    fn no_policies() -> [impl Stream<Item = watcher::Result<Event<DynamicObject>>>; 2] {
        let none = || stream::iter([Ok(Event::Init), Ok(Event::InitDone)]);
        [none(), none()]
    }

    fn good(name: &str) -> Guarded {
        object(name, json!({"sourceSecretName": "root"}))
    }

    fn lost() -> watcher::Error {
        watcher::Error::NoResourceVersion
    }

    async fn names_after(events: Vec<watcher::Result<Event<Guarded>>>) -> (Option<Vec<String>>, u64) {
        let live = RegistryCache::default();
        feed(stream::iter(events), no_policies(), &live).await;
        let names = live.registry().map(|r| r.entries().iter().map(|e| e.name.clone()).collect());
        (names, live.failures())
    }

    #[tokio::test(start_paused = true)]
    async fn is_not_synced_before_the_list_is_complete() {
        assert_eq!(names_after(vec![Err(lost()), Ok(Event::Init), Ok(Event::InitApply(good("a")))]).await, (None, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_what_it_knew_while_listing_again() {
        let mut events = vec![Ok(Event::Init), Ok(Event::InitApply(good("a"))), Ok(Event::InitApply(good("b")))];
        events.extend([Ok(Event::InitDone), Ok(Event::Apply(good("c"))), Ok(Event::Delete(good("b")))]);
        events.extend([Err(lost()), Ok(Event::Init), Ok(Event::InitApply(good("d")))]);
        assert_eq!(names_after(events).await, (Some(vec!["a".to_owned(), "c".to_owned()]), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn rejects_what_a_list_told_that_then_failed() {
        let mut events = vec![Ok(Event::Init), Ok(Event::InitApply(good("gone"))), Err(lost())];
        events.extend([Ok(Event::Init), Ok(Event::InitApply(good("a"))), Ok(Event::InitDone)]);
        assert_eq!(names_after(events).await, (Some(vec!["a".to_owned()]), 1));
    }

    #[test]
    fn a_trouble_that_lasts_is_told_once() {
        let missing = || {
            let status = Status::failure("the server could not find the requested resource", "NotFound").with_code(404);
            sentence(&watcher::Error::InitialListFailed(kube::Error::Api(status.boxed())))
        };
        let mut trouble = Trouble::default();
        assert!(trouble.news(missing()).expect("news").contains("install the CRD"));
        assert_eq!(trouble.news(missing()), None);
        assert!(trouble.news(sentence(&lost())).is_some(), "another one");
        assert!(trouble.news(missing()).is_some(), "it is back");
    }

    #[tokio::test]
    async fn a_malformed_object_spoils_only_itself() {
        let events = vec![
            Ok(Event::Init),
            Ok(Event::InitApply(good("a"))),
            Ok(Event::InitApply(object("b", json!({"sourceSecretName": 7})))),
            Ok(Event::InitDone),
            Ok(Event::Apply(object("a", json!({"mode": "Other"})))),
        ];
        assert_eq!(names_after(events).await, (Some(vec!["a".to_owned()]), 2));
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_told_until_it_can() {
        let live = RegistryCache::default();
        let bad = |name| object(name, json!({"sourceSecretName": "root", "mode": "Other"}));
        let events = [Event::Init, Event::InitApply(good("a")), Event::InitApply(bad("b")), Event::InitDone];
        feed(stream::iter(events.into_iter().chain([Event::Apply(bad("a"))]).map(Ok)), no_policies(), &live).await;
        let unread = live.unread();
        let names: Vec<_> = unread.keys().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(unread.values().all(|why| why.contains("variant Other")), "{unread:?}");
        let registry = live.registry().expect("a registry");
        assert!(["a", "b"].iter().all(|name| registry.knows("istio-ingress", name)), "{registry:?}");
        let known = registry.entries();
        assert!(known.len() == 1 && known[0].unread.is_some() && known[0].source_name() == "root", "{known:?}");

        feed(stream::iter([Event::Init, Event::InitApply(good("a")), Event::InitDone].map(Ok)), no_policies(), &live)
            .await;
        assert_eq!(live.unread().len(), 0);
        assert!(!live.registry().expect("a registry").knows("istio-ingress", "b"));
    }

    #[test]
    fn the_last_good_spec_is_kept_with_the_stored_status() {
        let known = read(good("a")).expect("an entry");
        let stored = |spec: serde_json::Value| -> DynamicObject {
            serde_json::from_value(
                json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "spec": spec,
                "metadata": {"namespace": "istio-ingress", "name": "a"}, "status": {"phase": "Steady"}}),
            )
            .expect("an object")
        };
        let kept = last_good(stored(json!({"sourceSecretName": 7})), &known);
        assert_eq!((kept.source_name(), kept.status.phase), ("root", Some(crate::api::Phase::Steady)));
        assert!(kept.unread.is_some());
        let read = last_good(stored(json!({"sourceSecretName": "other"})), &known);
        assert!(read.source_name() == "other" && read.unread.is_none(), "{read:?}");
    }
}
