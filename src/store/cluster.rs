//! Watches the GatewaySecrets and policies of a cluster. Nothing else is listed or watched, so no permission to read Secrets is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use futures::{Stream, StreamExt, stream};
use kube::api::{DynamicObject, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, DeserializeGuard, GroupVersionKind};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Config, ResourceExt};
use serde::Deserialize;

use super::{CheckHandle, RegistryCache, Unread, watch};
use crate::api::{
    ClusterRotationPolicy, GatewaySecret, GatewaySecretStatus, RotationPolicy, RotationPolicySpec, TrustConsumer,
    with_short_quotes,
};
use crate::consumer::ConsumerSummary;
use crate::health::CheckResult;
use crate::registry::{Entry, Policies, PolicyKey, Registry};
use crate::text::excerpt;

/// Why no client can be created for a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error("{}: cannot use this kubeconfig: {source}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: kube::config::KubeconfigError,
    },
    /// No kubeconfig was given, and this process does not run in a pod.
    #[error("not in a cluster ({0}): set --kubeconfig, or -f for a directory")]
    InCluster(#[from] kube::config::InClusterError),
    /// The kubeconfig that kubectl would use does not exist, or has no such context.
    #[error("cannot use this context of the kubeconfig: {0}")]
    Context(#[source] kube::config::KubeconfigError),
    /// No kubeconfig was found.
    #[error("no kubeconfig found: {0}")]
    Infer(#[from] kube::config::InferConfigError),
    /// The client cannot be created.
    #[error("cannot create a client for the cluster: {0}")]
    Client(#[from] kube::Error),
}

/// A client for the cluster of a kubeconfig, or without one for the cluster that this pod runs in. Does not connect yet.
///
/// # Errors
/// When the kubeconfig cannot be used, or there is none outside a cluster.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let config = match kubeconfig {
        None => Config::incluster()?,
        Some(path) => read(path, &KubeConfigOptions::default()).await?,
    };
    Ok(Client::try_from(config)?)
}

/// Connects with a context of a kubeconfig, or with its current one; without a kubeconfig, with the one that kubectl would use.
///
/// # Errors
/// When there is no usable kubeconfig, or it has no such context.
pub async fn connect_as_kubectl(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Client, ConnectError> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let config = match (kubeconfig, context) {
        (Some(path), _) => read(path, &options).await?,
        (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(ConnectError::Context)?,
        (None, None) => Config::infer().await?,
    };
    Ok(Client::try_from(config)?)
}

async fn read(path: &Path, options: &KubeConfigOptions) -> Result<Config, ConnectError> {
    let wrap = |source| ConnectError::Kubeconfig { path: path.to_owned(), source };
    let read = Kubeconfig::read_from(path).map_err(wrap)?;
    Config::from_custom_kubeconfig(read, options).await.map_err(wrap)
}

/// Whether the API server has answered with this status code.
pub fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Lists all GatewaySecrets, and those that cannot be parsed.
///
/// # Errors
/// When they cannot be listed.
pub async fn list(client: Client) -> kube::Result<(Vec<Entry>, Unread)> {
    let listed = Api::<Guarded>::all(client.clone()).list(&ListParams::default()).await?;
    let mut policies = Policies::default();
    for resource in policy_resources() {
        for policy in Api::<DynamicObject>::all_with(client.clone(), &resource).list(&ListParams::default()).await? {
            keep(&mut policies, &policy);
        }
    }
    let (mut entries, mut unread) = (Vec::new(), Unread::new());
    for object in listed.items {
        let key = key(&object);
        let parsed = parse(object).and_then(|entry| Ok(Entry { policy: policy_of(&entry, &policies)?, ..entry }));
        match parsed {
            Ok(entry) => entries.push(entry),
            Err(error) => drop(unread.insert(key, error)),
        }
    }
    Ok((entries, unread))
}

/// All TrustConsumers of the cluster, in summary.
///
/// # Errors
/// When they cannot be listed.
pub async fn trust_consumers(client: Client) -> kube::Result<Vec<ConsumerSummary>> {
    let listed = Api::<TrustConsumer>::all(client).list(&ListParams::default()).await?;
    let summary = |object: &TrustConsumer| {
        let status = object.status.clone().unwrap_or_default();
        ConsumerSummary::of(&object.namespace().unwrap_or_default(), &object.name_any(), &object.spec, &status)
    };
    Ok(listed.iter().map(summary).collect())
}

/// The kinds of policies.
fn policy_resources() -> [ApiResource; 2] {
    [ApiResource::erase::<RotationPolicy>(&()), ApiResource::erase::<ClusterRotationPolicy>(&())]
}

fn policy_key(policy: &DynamicObject) -> PolicyKey {
    (policy.namespace(), policy.name_any())
}

fn keep(policies: &mut Policies, policy: &DynamicObject) {
    policies.insert(policy_key(policy), policy.data["spec"].clone());
}

/// A GatewaySecret's policy.
fn policy_of(entry: &Entry, policies: &Policies) -> Result<RotationPolicySpec, String> {
    let policy = policies.policy(&entry.namespace, entry.spec.policy_name());
    policy.map_err(|error| format!("policy {}: {}", entry.spec.policy_name(), with_short_quotes(&error.to_string())))
}

/// The stored GatewaySecret, with the known policy; `None` when it is deleted or being deleted. One that cannot be
/// parsed keeps its known spec, with its stored status.
///
/// # Errors
/// When it cannot be read.
pub async fn current(client: Client, known: &Entry) -> kube::Result<Option<Entry>> {
    let resource = ApiResource::erase::<GatewaySecret>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client, &known.namespace, &resource);
    let entry = api.get_opt(&known.name).await?.map(|object| parse_or_keep(object, known));
    Ok(entry.filter(|entry| !entry.being_deleted))
}

fn parse_or_keep(object: DynamicObject, known: &Entry) -> Entry {
    let status = GatewaySecretStatus::deserialize(&object.data["status"]).unwrap_or_else(|_| known.status.clone());
    let being_deleted = object.metadata.deletion_timestamp.is_some();
    let guarded = serde_json::to_value(object).and_then(serde_json::from_value).map_err(|error| error.to_string());
    let parsed = guarded.and_then(parse).map(|entry| Entry { policy: known.policy.clone(), ..entry });
    parsed.unwrap_or_else(|error| Entry { unread: Some(error), being_deleted, status, ..known.clone() })
}

/// cert-manager's Certificates of a namespace.
pub fn certificates(client: Client, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate"));
    Api::namespaced_with(client, namespace, &resource)
}

/// A GatewaySecret from a watch. One that cannot be parsed does not make the whole list fail.
pub type Guarded = DeserializeGuard<GatewaySecret>;

/// An event of one of the watches.
enum Change {
    GatewaySecret(Box<Event<Guarded>>),
    Policy(PolicyKind, Box<Event<DynamicObject>>),
}

/// Index of the kind in [`policy_resources`].
type PolicyKind = usize;

const ROTATION_POLICIES: PolicyKind = 0;

/// Publishes the cluster's GatewaySecrets in `cache`, and records in `check` whether its watches work. Lost connections, an unavailable
/// API server and a missing CRD are logged once and retried with exponential backoff of up to half a minute; meanwhile the last registry
/// stays.
pub async fn follow(client: Client, cache: Arc<RegistryCache>, check: CheckHandle) {
    let check = Arc::new(CacheCheck::new(check));
    let watched = |watch| {
        let (cache, check) = (cache.clone(), check.clone());
        observed(&client, move || {
            // A watch that starts again sends no event until an object changes. Before the first registry, its list is not complete.
            if cache.registry().is_some() {
                check.record(watch, CheckResult::Ok);
            }
        })
    };
    let gateway_secrets = watcher::watcher(Api::<Guarded>::all(watched(GATEWAY_SECRETS)), watcher::Config::default());
    let [namespaced, cluster] = policy_resources();
    let policies = [(namespaced, watched(0)), (cluster, watched(1))].map(|(resource, client)| {
        watcher::watcher(Api::<DynamicObject>::all_with(client, &resource), watcher::Config::default())
    });
    publish_events(gateway_secrets, policies, &cache, &check).await;
}

/// A client that calls a function at each successful response.
pub fn observed(client: &Client, on_success: impl Fn() + Clone + Send + 'static) -> Client {
    let client = client.clone();
    let service = tower::service_fn(move |request| {
        let (client, on_success) = (client.clone(), on_success.clone());
        async move {
            let response = client.send(request).await?;
            if response.status().is_success() {
                on_success();
            }
            Ok::<_, kube::Error>(response)
        }
    });
    Client::new(service, "default")
}

/// Index of the watch on GatewaySecrets; those of policies precede it.
const GATEWAY_SECRETS: usize = 2;

/// The health check of the cache: all three watches work, and their objects were published once.
struct CacheCheck {
    check: CheckHandle,
    /// Without a result: the first list is in progress.
    watches: Mutex<[Option<CheckResult>; 3]>,
}

impl CacheCheck {
    fn new(check: CheckHandle) -> Self {
        Self { check, watches: Mutex::default() }
    }

    fn record(&self, watch: usize, result: CheckResult) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches[watch] = Some(result);
        // What needs a change is reported first.
        let failed =
            watches.iter().flatten().filter(|result| !result.is_ok()).min_by_key(|result| result.gauge_value());
        match failed {
            Some(failed) => self.check.record(failed.clone()),
            None if watches.iter().all(Option::is_some) => self.check.record(CheckResult::Ok),
            None => {}
        }
    }
}

/// Whether an event says that a watch has shown all objects.
fn is_listed<K>(event: &Event<K>) -> bool {
    !matches!(event, Event::Init | Event::InitApply(_))
}

/// The objects that the watches have shown.
#[derive(Default)]
struct WatchState {
    /// With their policies.
    known: BTreeMap<ObjectKey, Arc<Entry>>,
    unread: Unread,
    /// Those whose policy cannot be parsed.
    without_policy: Unread,
    policies: Policies,
    /// Initial lists in progress.
    listed: (BTreeMap<ObjectKey, Arc<Entry>>, Unread),
    listed_policies: [Policies; 2],
    /// By watch, whether it has shown all objects.
    is_listed: [bool; 3],
}

/// Events that are published together, if they are there together. Publishing takes time for each GatewaySecret.
const EVENTS: usize = 256;

/// Publishes the events of the watches in `cache`, and records how they are in `check`.
async fn publish_events<P: Stream<Item = watcher::Result<Event<DynamicObject>>> + Send>(
    gateway_secrets: impl Stream<Item = watcher::Result<Event<Guarded>>> + Send,
    policies: [P; 2],
    cache: &RegistryCache,
    check: &CacheCheck,
) {
    let gateway_secrets = watch::with_backoff(gateway_secrets)
        .map(|event| (GATEWAY_SECRETS, event.map(|event| Change::GatewaySecret(Box::new(event)))));
    let [namespaced, cluster] = policies;
    let policies = [watch::with_backoff(namespaced).boxed(), watch::with_backoff(cluster).boxed()];
    let policies = policies.into_iter().enumerate().map(|(kind, events)| {
        events.map(move |event| (kind, event.map(|event| Change::Policy(kind, Box::new(event))))).boxed()
    });
    let mut events = stream::select_all(std::iter::once(gateway_secrets.boxed()).chain(policies)).ready_chunks(EVENTS);
    let mut state = WatchState::default();
    while let Some(events) = events.next().await {
        let mut listed = BTreeSet::new();
        for (watch, event) in events {
            match event {
                Ok(Change::GatewaySecret(event)) => {
                    listed.extend(is_listed(&event).then_some(watch));
                    state.apply(*event, cache);
                }
                Ok(Change::Policy(kind, event)) => {
                    listed.extend(is_listed(&event).then_some(watch));
                    state.apply_policy(kind, *event);
                }
                Err(error) => {
                    state.listed = Default::default();
                    state.listed_policies = Default::default();
                    cache.record_failure();
                    if let Some(failure) = watch_failure(&error, describe(&error)) {
                        check.record(watch, failure);
                        listed.remove(&watch);
                    }
                }
            }
        }
        if !listed.is_empty() {
            state.publish(cache);
        }
        for watch in listed {
            check.record(watch, CheckResult::Ok);
        }
    }
}

impl WatchState {
    fn apply(&mut self, event: Event<Guarded>, cache: &RegistryCache) {
        match event {
            Event::Init => self.listed = Default::default(),
            // Only identity, spec and status are kept: not managedFields and the rest of the object.
            Event::InitApply(object) => {
                let key = key(&object);
                let known = self.known.get(&key).map(Arc::as_ref);
                let entry = parse_or_log(object, known, &mut self.listed.1, cache);
                self.listed.0.extend(entry.map(|entry| (key, Arc::new(entry))));
            }
            Event::InitDone => {
                (self.known, self.unread) = std::mem::take(&mut self.listed);
                self.is_listed[GATEWAY_SECRETS] = true;
                tracing::info!(gatewaysecrets = self.known.len(), "GatewaySecrets listed");
                self.without_policy.clear();
                self.set_policies(|_| true);
            }
            Event::Apply(object) => {
                let key = key(&object);
                let known = self.known.get(&key).map(Arc::as_ref);
                let entry = parse_or_log(object, known, &mut self.unread, cache);
                self.known.extend(entry.map(|entry| (key.clone(), Arc::new(entry))));
                self.set_policies(|applied| *applied == key);
            }
            Event::Delete(object) => {
                let key = key(&object);
                self.known.remove(&key);
                self.unread.remove(&key);
                self.without_policy.remove(&key);
            }
        }
    }

    fn apply_policy(&mut self, kind: PolicyKind, event: Event<DynamicObject>) {
        let listed = &mut self.listed_policies[kind];
        match event {
            Event::Init => return *listed = Policies::default(),
            Event::InitApply(policy) => return keep(listed, &policy),
            Event::InitDone => {
                self.policies.replace(kind == ROTATION_POLICIES, std::mem::take(listed));
                self.is_listed[kind] = true;
            }
            Event::Apply(policy) => keep(&mut self.policies, &policy),
            Event::Delete(policy) => self.policies.remove(&policy_key(&policy)),
        }
        self.set_policies(|_| true);
    }

    /// Sets the policies of some GatewaySecrets, after both kinds of policies were listed: if one cannot be parsed, the other would
    /// stay as if it were the last policy.
    fn set_policies(&mut self, is_meant: impl Fn(&ObjectKey) -> bool) {
        if self.is_listed[..GATEWAY_SECRETS].contains(&false) {
            return;
        }
        for (key, entry) in self.known.iter_mut().filter(|(key, _)| is_meant(key)) {
            match policy_of(entry, &self.policies) {
                Ok(policy) => {
                    self.without_policy.remove(key);
                    if policy != entry.policy {
                        Arc::make_mut(entry).policy = policy;
                    }
                }
                // The last policy stays.
                Err(error) => drop(self.without_policy.insert(key.clone(), error)),
            }
        }
    }

    /// Publishes the registry after all kinds were listed. Without its policy, a GatewaySecret would have the default
    /// one.
    fn publish(&self, cache: &RegistryCache) {
        if self.is_listed.contains(&false) {
            return;
        }
        let unread: Unread =
            self.unread.iter().chain(&self.without_policy).map(|(key, error)| (key.clone(), error.clone())).collect();
        let registry = Registry::new(self.known.values().cloned()).with_unread(unread.keys().cloned());
        cache.publish_unread(unread);
        cache.publish(registry);
    }
}

type ObjectKey = (String, String);

fn key(object: &Guarded) -> ObjectKey {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// The entry of an object. If the object cannot be parsed, the last entry stays: without one its Secret would be unguarded.
fn parse_or_log(object: Guarded, known: Option<&Entry>, unread: &mut Unread, cache: &RegistryCache) -> Option<Entry> {
    let key = key(&object);
    match parse(object) {
        Ok(entry) => {
            unread.remove(&key);
            let policy = known.map(|known| known.policy.clone()).unwrap_or_default();
            Some(Entry { policy, ..entry })
        }
        Err(error) => {
            cache.record_failure();
            let (namespace, name) = (&key.0, &key.1);
            tracing::error!(
                namespace,
                name,
                "GatewaySecret cannot be parsed, its last valid version stays in use: {error}"
            );
            unread.insert(key, error.clone());
            known.map(|known| Entry { unread: Some(error), ..known.clone() })
        }
    }
}

/// The entry of an object, or why it cannot be parsed.
fn parse(object: Guarded) -> Result<Entry, String> {
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
        resolved: object.spec.resolved(status.resolved.as_ref()),
        policy: RotationPolicySpec::default(),
        spec: object.spec,
        status,
    })
}

/// The API server's message about a failed request, or what failed before the request was answered. At most 1 KiB: a message may quote the object.
pub fn error_message(error: &kube::Error) -> String {
    excerpt(&match error {
        // kube's message ends with a dump of the response.
        kube::Error::Api(status) if status.message.is_empty() => status.reason.clone(),
        kube::Error::Api(status) => status.message.clone(),
        other => {
            // The causes in between say no more than that connecting failed.
            let cause =
                std::iter::successors(other.source(), |error| (*error).source()).last().map(ToString::to_string);
            let message = other.to_string();
            match cause.filter(|cause| !message.contains(cause.as_str())) {
                Some(cause) => format!("{message}: {cause}"),
                None => message,
            }
        }
    })
}

/// The result of a health check whose request failed, with a text that describes it.
///
/// A request that the API server refuses for what it is, or for who sent it, fails again until something is changed. 408, 409 and 429 ask for
/// another attempt, and 5xx is the API server's own fault.
pub fn check_failure(error: &kube::Error, text: String) -> CheckResult {
    match error {
        kube::Error::Api(status) => failure_by_code(status.code, text),
        _ => CheckResult::Unreachable(text),
    }
}

fn failure_by_code(code: u16, text: String) -> CheckResult {
    match code {
        400..500 if ![408, 409, 429].contains(&code) => CheckResult::Misconfigured(text),
        _ => CheckResult::Unreachable(text),
    }
}

/// The API server's message about a failed watch, or what failed before it answered.
pub fn watch_error_message(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => error_message(error),
        WatchError(status) => excerpt(&status.message),
        other => other.to_string(),
    }
}

/// Whether a watch failed because a permission is missing.
pub fn is_forbidden(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status)) => status.code == 403,
        WatchError(status) => status.code == 403,
        _ => false,
    }
}

/// How a failed watch affects the health check, with a text that describes it.
pub fn watch_failure(error: &watcher::Error, text: String) -> Option<CheckResult> {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error) => Some(check_failure(error, text)),
        // The API server has compacted its history: a normal reason to list again.
        WatchError(status) if status.code == 410 => None,
        WatchError(status) => Some(failure_by_code(status.code, text)),
        _ => Some(CheckResult::Unreachable(text)),
    }
}

fn describe(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status)) | WatchStartFailed(kube::Error::Api(status))
            if status.code == 404 =>
        {
            "a kind of trustspan.dev is not installed: install the CRDs (`trustspan crd | kubectl apply -f -`)"
                .to_owned()
        }
        InitialListFailed(e) => format!("cannot list GatewaySecrets or policies: {}", error_message(e)),
        WatchStartFailed(e) | WatchFailed(e) => {
            format!("cannot watch GatewaySecrets or policies: {}", error_message(e))
        }
        WatchError(status) => format!("a watch on GatewaySecrets or policies ended: {}", excerpt(&status.message)),
        other => format!("cannot follow GatewaySecrets: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use kube::core::Status;
    use serde_json::{Value, json};

    use super::*;
    use crate::health::Requirement;
    use crate::store::HealthState;

    #[test]
    fn a_request_that_was_not_sent_is_reported_with_its_cause() {
        #[derive(Debug, thiserror::Error)]
        #[error("client error (Connect)")]
        struct NotConnected(#[source] std::io::Error);
        let cause = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "Connection refused");
        let error = kube::Error::Service(Box::new(NotConnected(cause)));
        assert_eq!(error_message(&error), "ServiceError: client error (Connect): Connection refused");
        let status = Status::failure("no quorum", "Reason").with_code(500);
        assert_eq!(error_message(&kube::Error::Api(status.boxed())), "no quorum");
    }

    fn cache_check() -> CacheCheck {
        CacheCheck::new(Arc::new(HealthState::default()).add("gatewaysecret-cache", Requirement::AtStart))
    }

    fn object(name: &str, spec: Value) -> Guarded {
        let object = json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "spec": spec,
            "metadata": {"namespace": "istio-ingress", "name": name, "generation": 1}});
        serde_json::from_value(object).unwrap()
    }

    /// Both kinds are installed, without any object.
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
        let cache = RegistryCache::default();
        publish_events(stream::iter(events), no_policies(), &cache, &cache_check()).await;
        let names = cache.registry().map(|r| r.entries().iter().map(|e| e.name.clone()).collect());
        (names, cache.failures())
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

    #[tokio::test]
    async fn a_change_of_one_gateway_secret_copies_no_other() {
        let cache = RegistryCache::default();
        let mut state = WatchState::default();
        for event in [Event::Init, Event::InitApply(good("a")), Event::InitApply(good("b")), Event::InitDone] {
            state.apply(event, &cache);
        }
        for kind in [0, 1] {
            state.apply_policy(kind, Event::InitDone);
        }
        let published = |state: &WatchState| {
            state.publish(&cache);
            cache.registry().expect("a registry").entries().to_vec()
        };
        let before = published(&state);
        state.apply(Event::Apply(object("b", json!({ "sourceSecretName": "other" }))), &cache);
        let after = published(&state);
        assert!(Arc::ptr_eq(&before[0], &after[0]), "{after:?}");
        assert_eq!((before[1].source_name(), after[1].source_name()), ("root", "other"));
    }

    #[tokio::test]
    async fn the_last_policy_stays_while_the_new_one_cannot_be_parsed() {
        let (cache, mut state) = (RegistryCache::default(), WatchState::default());
        let policy = |name: &str, spec: Value| -> DynamicObject {
            let metadata = json!({ "name": name });
            let object = json!({ "apiVersion": "trustspan.dev/v1alpha1", "kind": "ClusterRotationPolicy", "metadata": metadata, "spec": spec });
            serde_json::from_value(object).expect("an object")
        };
        let named = |policy: &str| object("a", json!({ "sourceSecretName": "root", "policyName": policy }));
        for event in [Event::Init, Event::InitApply(named("three")), Event::InitDone] {
            state.apply(event, &cache);
        }
        state.apply_policy(0, Event::InitDone);
        for event in [
            Event::InitApply(policy("three", json!({ "oldestEnvoy": "1.43" }))),
            Event::InitApply(policy("bad", json!({ "oldestEnvoy": 7 }))),
            Event::InitDone,
        ] {
            state.apply_policy(1, event);
        }
        let published = |state: &WatchState| {
            state.publish(&cache);
            (cache.registry().expect("a registry").entries()[0].policy.oldest_envoy.clone(), cache.unread().len())
        };
        assert_eq!(published(&state), (Some("1.43".to_owned()), 0));
        state.apply(Event::Apply(named("bad")), &cache);
        assert_eq!(published(&state), (Some("1.43".to_owned()), 1));
        state.apply_policy(1, Event::Apply(policy("bad", json!({ "oldestEnvoy": "1.42" }))));
        assert_eq!(published(&state), (Some("1.42".to_owned()), 0));
    }

    #[tokio::test]
    async fn a_policy_of_the_namespace_alone_is_not_used_while_that_of_the_cluster_cannot_be_parsed() {
        let policy = |namespace: Option<&str>, spec: Value| -> DynamicObject {
            let metadata = json!({ "name": "default", "namespace": namespace });
            let object =
                json!({ "apiVersion": "trustspan.dev/v1alpha1", "kind": "Policy", "metadata": metadata, "spec": spec });
            serde_json::from_value(object).expect("an object")
        };
        let listed = [
            policy(Some("istio-ingress"), json!({ "clusterResourceNamespace": "certs" })),
            policy(None, json!({ "oldestEnvoy": 7 })),
        ];
        for order in [[0, 1], [1, 0]] {
            let (cache, mut state) = (RegistryCache::default(), WatchState::default());
            for event in [Event::Init, Event::InitApply(good("a")), Event::InitDone] {
                state.apply(event, &cache);
            }
            for kind in order {
                state.apply_policy(kind, Event::InitApply(listed[kind].clone()));
                state.apply_policy(kind, Event::InitDone);
            }
            state.publish(&cache);
            let registry = cache.registry().expect("a registry");
            assert_eq!(
                (&registry.entries()[0].policy.cluster_resource_namespace, cache.unread().len()),
                (&None, 1),
                "{order:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn discards_a_list_that_failed() {
        let mut events = vec![Ok(Event::Init), Ok(Event::InitApply(good("gone"))), Err(lost())];
        events.extend([Ok(Event::Init), Ok(Event::InitApply(good("a"))), Ok(Event::InitDone)]);
        assert_eq!(names_after(events).await, (Some(vec!["a".to_owned()]), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_check_fails_until_all_kinds_are_listed_and_while_a_watch_fails() {
        let health = Arc::new(HealthState::default());
        let check = CacheCheck::new(health.add("gatewaysecret-cache", Requirement::AtStart));
        let result = || health.health().checks.remove(0).result;
        let listed = || vec![Ok(Event::Init), Ok(Event::InitApply(good("a"))), Ok(Event::InitDone)];
        let status = |code| Status::failure("no", "Reason").with_code(code).boxed();
        let failing = |error| [Ok(Event::Init), Err(error)];

        let cache = RegistryCache::default();
        let policies = [stream::iter(vec![]), stream::iter(vec![Ok(Event::InitDone)])];
        publish_events(stream::iter(listed()), policies, &cache, &check).await;
        assert!(matches!(result(), CheckResult::Unreachable(_)) && cache.registry().is_none());

        publish_events(stream::iter(listed()), no_policies(), &cache, &check).await;
        assert_eq!(result(), CheckResult::Ok);
        let compacted = watcher::Error::WatchError(status(410));
        publish_events(stream::iter(failing(compacted)), no_policies(), &cache, &check).await;
        assert_eq!(result(), CheckResult::Ok, "listed again without a failure");

        let not_installed = watcher::Error::InitialListFailed(kube::Error::Api(status(404)));
        publish_events(stream::iter(failing(not_installed)), no_policies(), &cache, &check).await;
        let CheckResult::Misconfigured(reason) = result() else { panic!("{:?}", result()) };
        assert!(reason.contains("install the CRDs"), "{reason}");

        let malformed = [Event::Init, Event::InitApply(object("b", json!({"sourceSecretName": 7}))), Event::InitDone];
        publish_events(stream::iter(malformed.map(Ok)), no_policies(), &cache, &check).await;
        assert_eq!(result(), CheckResult::Ok, "an object that cannot be parsed is not the API server's fault");
    }

    #[tokio::test]
    async fn a_malformed_object_does_not_affect_others() {
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
    async fn lists_gateway_secrets_that_cannot_be_parsed() {
        let cache = RegistryCache::default();
        let bad = |name| object(name, json!({"sourceSecretName": "root", "mode": "Other"}));
        let events = [Event::Init, Event::InitApply(good("a")), Event::InitApply(bad("b")), Event::InitDone];
        publish_events(
            stream::iter(events.into_iter().chain([Event::Apply(bad("a"))]).map(Ok)),
            no_policies(),
            &cache,
            &cache_check(),
        )
        .await;
        let unread = cache.unread();
        let names: Vec<_> = unread.keys().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(unread.values().all(|reason| reason.contains("variant Other")), "{unread:?}");
        let registry = cache.registry().expect("a registry");
        assert!(["a", "b"].iter().all(|name| registry.knows("istio-ingress", name)), "{registry:?}");
        let known = registry.entries();
        assert!(known.len() == 1 && known[0].unread.is_some() && known[0].source_name() == "root", "{known:?}");

        publish_events(
            stream::iter([Event::Init, Event::InitApply(good("a")), Event::InitDone].map(Ok)),
            no_policies(),
            &cache,
            &cache_check(),
        )
        .await;
        assert_eq!(cache.unread().len(), 0);
        assert!(!cache.registry().expect("a registry").knows("istio-ingress", "b"));
    }

    #[test]
    fn the_last_valid_spec_is_kept_with_the_stored_status() {
        let known = parse(good("a")).expect("an entry");
        let stored = |spec: Value| -> DynamicObject {
            serde_json::from_value(
                json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "spec": spec,
                "metadata": {"namespace": "istio-ingress", "name": "a"}, "status": {"phase": "Steady"}}),
            )
            .expect("an object")
        };
        let kept = parse_or_keep(stored(json!({"sourceSecretName": 7})), &known);
        assert_eq!((kept.source_name(), kept.status.phase), ("root", Some(crate::api::Phase::Steady)));
        assert!(kept.unread.is_some());
        let parsed = parse_or_keep(stored(json!({"sourceSecretName": "other"})), &known);
        assert!(parsed.source_name() == "other" && parsed.unread.is_none(), "{parsed:?}");
    }
}
