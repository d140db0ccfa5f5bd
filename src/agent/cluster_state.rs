//! Reads the objects that one GatewaySecret's rotation depends on. Secrets are read by name. Clients' certificates are read from
//! cert-manager's CertificateRequests, which contain no private keys.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind, NamespaceResourceScope};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::AgentError;
use super::owned_objects::{self, StoredObject};
use super::permission::{self, INJECT};
use crate::api::names::{
    CACERT_SUFFIX, CLIENT_LABEL, RELOAD, RELOAD_NEVER, RETIRED, journal_name, managed_config_map_name,
};
use crate::api::{AdditionalTrust, MirroredFile, SourceKind, TrustBundleTarget, TrustConsumer};
use crate::consumer;
use crate::json::Json;
use crate::registry::{Entry, owner_of_certificate};
use crate::rotation::journal::Journal;
use crate::rotation::planner::{
    AdditionalSource, CaConfigMap, Canary, ClientState, FurtherCertificate, Issuance, NamespaceState, Pending,
    ProbeResult, Snapshot, SourceState, Trust, TrustCopy, TrustLoader, share_a_ca, shared_clients,
};
use crate::rotation::readers::{self, SourceName, TlsReader};
use crate::rotation::{RenewalPolicy, SecretSummary, few};
use crate::store::cluster;
use crate::trust::{self, Secret, SecretUsage, Severities, UsageKind, bundle, certificates_under};

/// Requests of one kind that a reconcile makes at the same time.
const REQUESTS: usize = 8;

/// The objects as read in one reconcile. Has no `Debug`: it holds Secrets.
pub(super) struct ClusterState {
    /// By qualified name: see [`Entry::qualified`].
    secrets: BTreeMap<String, (StoredObject, SecretSummary)>,
    /// The ConfigMaps of `spec.clients.caConfigMapNames`, and the managed ones.
    config_maps: BTreeMap<String, (StoredObject, SecretSummary)>,
    clients: Vec<ClientState>,
    source_certificate: Option<Issuance>,
    canary_certificate: Option<Issuance>,
    /// Names of the Certificates that write Secrets, by the Secret's name.
    certificates_of_secret: BTreeMap<String, BTreeSet<String>>,
    /// The objects for which cert-manager makes Certificates, by the Certificate's name.
    owners_of_certificates: BTreeMap<String, String>,
    /// The result of probing the gateways, if they were probed.
    pub(super) probe_result: Option<ProbeResult>,
    /// Why the gateways cannot be probed.
    pub(super) not_probed: Option<String>,
    readers: Vec<TlsReader>,
    sources: BTreeMap<SourceName, SourceState>,
    presented_also: Vec<FurtherCertificate>,
    /// The readers of `spec.trustBundleTargets`, each target as one client.
    pub(super) bundle_readers: Vec<ClientState>,
    /// TrustConsumers and MirroredFiles that load CAs of this GatewaySecret.
    trust_loaders: Vec<TrustLoader>,
    /// The other GatewaySecrets of the namespace.
    other_gateway_secrets: Vec<Arc<Entry>>,
    /// Namespaces of `spec.clients.namespaces` whose Certificates the agent cannot list.
    unlisted_namespaces: Vec<String>,
    /// The other namespaces of clients that are not found: whether they exist.
    namespaces: BTreeMap<String, NamespaceState>,
    /// The stored journal.
    pub(super) journal: Journal,
    /// Its ConfigMap, if there is one.
    pub(super) journal_object: Option<Value>,
}

/// The objects of a kind in a namespace.
pub(super) fn objects(client: &Client, namespace: &str, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

pub(super) fn secrets(client: &Client, namespace: &str) -> Api<DynamicObject> {
    objects(client, namespace, "", "v1", "Secret")
}

pub(super) fn config_maps(client: &Client, namespace: &str) -> Api<DynamicObject> {
    objects(client, namespace, "", "v1", "ConfigMap")
}

/// The objects that a GatewaySecret's reconciler watches.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct WatchedNames {
    pub(super) secrets: Vec<String>,
    /// Including the journal's.
    pub(super) config_maps: Vec<String>,
    /// Namespaces of the Certificates of its clients and CAs.
    pub(super) namespaces: Vec<String>,
    /// Namespaces of TrustConsumers that can load its CAs.
    pub(super) consumer_namespaces: BTreeSet<String>,
}

impl WatchedNames {
    pub(super) fn of(entry: &Entry) -> Self {
        let mut config_maps = config_map_names(entry);
        config_maps.push(journal_name(&entry.name));
        Self {
            secrets: secret_names(entry),
            config_maps,
            namespaces: entry.issuing_namespaces().map(str::to_owned).collect(),
            consumer_namespaces: consumer_namespaces(entry),
        }
    }

    /// The number of watches, without those of the GatewaySecret's namespace, which all GatewaySecrets there share.
    pub(super) fn number(&self) -> usize {
        let by_name = self.secrets.len() + self.config_maps.len();
        // Both include that namespace.
        let elsewhere = [self.namespaces.len(), self.consumer_namespaces.len()].map(|all| all.saturating_sub(1));
        by_name + elsewhere.iter().sum::<usize>()
    }
}

/// The names of the ConfigMaps of `spec.clients.caConfigMapNames`, of the managed ones, and of those of `spec.additionalTrust`.
pub(super) fn config_map_names(entry: &Entry) -> Vec<String> {
    let sources = &entry.spec.clients.ca_config_map_names;
    let copies = sources.iter().map(|name| managed_config_map_name(name));
    let mut names: Vec<_> =
        sources.iter().cloned().chain(copies).chain(additional_trust(entry, SourceKind::ConfigMap)).collect();
    names.sort();
    names.dedup();
    names
}

fn additional_trust(entry: &Entry, kind: SourceKind) -> impl Iterator<Item = String> {
    entry.spec.additional_trust.iter().filter(move |named| named.kind == kind).map(|named| named.name.clone())
}

/// The names of all Secrets that a GatewaySecret's rotation depends on: see [`Entry::qualified`].
pub(super) fn secret_names(entry: &Entry) -> Vec<String> {
    let mut names = vec![entry.source_name().to_owned(), entry.managed_name().to_owned()];
    // The source Secret's name is empty until it is derived.
    names.retain(|name| !name.is_empty());
    names.extend(names.clone().iter().map(|name| format!("{name}{CACERT_SUFFIX}")));
    names.extend([entry.ca_name(), entry.issuer_name(), entry.own_client_ca_name()].into_iter().flatten());
    // The CRD rejects names of other namespaces, but a manifest can contain one.
    names.extend(entry.spec.clients.secret_names.iter().filter(|name| !name.contains('/')).cloned());
    names.extend(entry.canary_name().map(str::to_owned));
    names.extend(additional_trust(entry, SourceKind::Secret));
    names.sort();
    names.dedup();
    names
}

/// The namespaces in which TrustConsumers can load CAs of a GatewaySecret: those of the managed Secret and of `spec.trustBundleTargets`.
fn consumer_namespaces(entry: &Entry) -> BTreeSet<String> {
    let targets = entry.spec.trust_bundle_targets.iter().filter_map(|target| target.namespace.clone());
    targets.chain([entry.namespace.clone()]).collect()
}

async fn read_trust_loaders(client: &Client, entry: &Entry) -> Result<Vec<TrustLoader>, AgentError> {
    let mut all = Vec::new();
    for namespace in consumer_namespaces(entry) {
        let listed: Vec<TrustConsumer> = list_if_installed(client, "trustconsumers.trustspan.dev", &namespace).await?;
        let loaders = |TrustConsumer { metadata, spec, status }| {
            let name = metadata.name.unwrap_or_default();
            consumer::trust_loaders(entry, (&namespace, &name), &spec, &status.unwrap_or_default())
        };
        all.extend(listed.into_iter().flat_map(loaders));
    }
    Ok(all)
}

async fn read_mirror_loaders(client: &Client, entry: &Entry) -> Result<Vec<TrustLoader>, AgentError> {
    let namespace = &entry.namespace;
    let listed: Vec<MirroredFile> = list_if_installed(client, "mirroredfiles.trustspan.dev", namespace).await?;
    let loaders = |MirroredFile { metadata, spec, status }| {
        let name = metadata.name.unwrap_or_default();
        consumer::mirror_loaders(entry, (namespace, &name), &spec, &status.unwrap_or_default())
    };
    Ok(listed.into_iter().flat_map(loaders).collect())
}

/// The parameters of a list from the API server's watch cache. If that is outdated, a watch event triggers another reconcile. Any other
/// list waits up to 100 ms until etcd has confirmed that the cache is current (Kubernetes, KEP-2340 "Consistent reads from cache").
pub(super) fn from_watch_cache() -> ListParams {
    ListParams::default().match_any()
}

/// The objects of one of trustspan's kinds in a namespace; none if the kind is not installed.
async fn list_if_installed<K>(client: &Client, resource: &'static str, namespace: &str) -> Result<Vec<K>, AgentError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    match api.list(&from_watch_cache()).await {
        Ok(listed) => Ok(listed.items),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(AgentError::api("list", resource, namespace, error)),
    }
}

/// The qualified name of an object: see [`Entry::qualified`].
pub(super) fn qualified(entry: &Entry, object: &Value) -> String {
    let metadata = &object["metadata"];
    entry.qualified(metadata["namespace"].as_str().unwrap_or("default"), metadata["name"].as_str().unwrap_or_default())
}

impl ClusterState {
    /// Reads the state from a cluster. The source Secret was read before.
    pub(super) async fn read(
        client: &Client,
        entry: &Entry,
        source: Option<Value>,
        readers: Vec<TlsReader>,
        other_gateway_secrets: Vec<Arc<Entry>>,
    ) -> Result<Self, AgentError> {
        if let Some(stored_name) = entry.left_behind() {
            let (stored_name, managed) = (stored_name.to_owned(), entry.managed_name().to_owned());
            return Err(AgentError::Renamed { stored_name, managed });
        }
        let names = secret_names(entry).into_iter().filter(|name| name != entry.source_name());
        let secret = async |name: String| {
            let (namespace, name) = entry.place_of(&name);
            get(&secrets(client, namespace), "secrets", name).await
        };
        let read: Vec<_> = stream::iter(names).map(secret).buffered(REQUESTS).try_collect().await?;
        let objects_read = source.into_iter().chain(read.into_iter().flatten());
        // After the Secrets: the journal is stored before a step, so it is then not older than what a step has written.
        let configmaps = config_maps(client, &entry.namespace);
        let config_map = async |name: String| get(&configmaps, "configmaps", &name).await;
        let (journal, ca_config_maps, own, others, consumers, mirrors) = tokio::join!(
            config_map(journal_name(&entry.name)),
            stream::iter(config_map_names(entry)).map(config_map).buffered(REQUESTS).try_collect::<Vec<_>>(),
            CertManagerState::read(client, &entry.namespace, true),
            CertManagerState::read_others(client, entry, &other_gateway_secrets),
            read_trust_loaders(client, entry),
            read_mirror_loaders(client, entry),
        );
        let (journal, ca_config_maps, own) = (journal?, ca_config_maps?.into_iter().flatten(), own?);
        let (others, unlisted) = others?;
        let mut state = Self::from_objects(entry, objects_read, ca_config_maps, journal.as_ref(), Timestamp::now());
        state.unlisted_namespaces = unlisted;
        state.other_gateway_secrets = other_gateway_secrets;
        state.take_certificates(entry, &own, &others, Timestamp::now());
        state.read_namespaces(client).await;
        state.block_clients_without_bundle(client, entry).await;
        for source in readers::sources(&readers).into_iter().take(MAX_SOURCES).cloned() {
            let (stored, known) = match source.kind {
                SourceKind::Secret => (&state.secrets, secret_names(entry)),
                SourceKind::ConfigMap => (&state.config_maps, config_map_names(entry)),
            };
            let is_own = source.namespace == entry.namespace;
            let source_state = match stored.get(&source.name).filter(|_| is_own) {
                Some((stored, _)) => source_state(source.kind, Some(&stored.object)),
                None if is_own && known.contains(&source.name) => SourceState::Absent,
                None => read_source(client, &source).await,
            };
            state.sources.insert(source, source_state);
        }
        let names: BTreeSet<_> = readers.iter().flat_map(|reader| &reader.presents_also).collect();
        for name in names.into_iter().take(MAX_SOURCES) {
            let also = own.further_certificate(name);
            let chain = match also.chain {
                Some(chain) => Some(chain),
                None => match secrets(client, &entry.namespace).get_opt(name).await {
                    // istiod presents nothing for a Secret that does not exist.
                    Ok(None) => continue,
                    Ok(Some(object)) => chain_of(&object),
                    Err(_) => None,
                },
            };
            state.presented_also.push(FurtherCertificate { chain, ..also });
        }
        state.readers = readers;
        state.trust_loaders = consumers?;
        state.trust_loaders.extend(mirrors?);
        Ok(state)
    }

    /// Adds the gateways' sources of trust from manifests, which contain all objects.
    pub(super) fn read_gateways(&mut self, entry: &Entry, objects: &[Value]) {
        let pods: Vec<_> = objects.iter().filter(|object| object["kind"] == "Pod").collect();
        self.readers = readers::readers(entry, objects, &pods);
        for source in readers::sources(&self.readers) {
            let kind = source.kind.name();
            let matches = |object: &&Value| {
                let metadata = &object["metadata"];
                object["kind"] == kind
                    && metadata["name"] == source.name.as_str()
                    && metadata["namespace"].as_str().unwrap_or("default") == source.namespace
            };
            self.sources.insert(source.clone(), source_state(source.kind, objects.iter().find(matches)));
        }
        let also = self.readers.iter().flat_map(|reader| &reader.presents_also);
        let also: BTreeSet<_> = also.collect();
        self.presented_also = also
            .into_iter()
            .map(|name| {
                let matches =
                    |object: &&Value| object["kind"] == "Secret" && object["metadata"]["name"] == name.as_str();
                let secret = objects.iter().find(matches).and_then(|object| Secret::from_value(object).ok());
                let chain = secret.map(|secret| certificates_under(&secret, "tls.crt"));
                FurtherCertificate { name: name.clone(), chain, certificate: None }
            })
            .collect();
    }

    /// The state that these Secrets, ConfigMaps with CAs and journal show.
    pub(super) fn from_objects(
        entry: &Entry,
        secrets: impl IntoIterator<Item = Value>,
        config_maps: impl IntoIterator<Item = Value>,
        journal: Option<&Value>,
        now: Timestamp,
    ) -> Self {
        let severities = Severities::default().under(&entry.policy.severities);
        let secret = |object: Value| {
            let secret = Secret::from_value(&object).ok()?;
            let name = qualified(entry, &object);
            let summary = SecretSummary::of(&secret, entry.usage(&name), &severities, now);
            Some((name, (StoredObject { object, secret }, summary)))
        };
        let bundle = SecretUsage { kind: UsageKind::TrustBundle, ..entry.usage("") };
        let config_map = |object: Value| {
            let secret = readers::decode(SourceKind::ConfigMap, &Json::from(&object)).ok()?;
            let summary = SecretSummary::of(&secret, bundle, &severities, now);
            let name = object["metadata"]["name"].as_str()?.to_owned();
            Some((name, (StoredObject { object, secret }, summary)))
        };
        Self {
            secrets: secrets.into_iter().filter_map(secret).collect(),
            config_maps: config_maps.into_iter().filter_map(config_map).collect(),
            clients: Vec::new(),
            source_certificate: None,
            canary_certificate: None,
            certificates_of_secret: BTreeMap::new(),
            owners_of_certificates: BTreeMap::new(),
            probe_result: None,
            not_probed: None,
            readers: Vec::new(),
            sources: BTreeMap::new(),
            presented_also: Vec::new(),
            bundle_readers: Vec::new(),
            trust_loaders: Vec::new(),
            other_gateway_secrets: Vec::new(),
            unlisted_namespaces: Vec::new(),
            namespaces: BTreeMap::new(),
            journal: owned_objects::read_journal(entry, journal),
            journal_object: journal.cloned(),
        }
    }

    /// The Certificate that writes a Secret.
    pub(super) fn writer(&self, secret: &str) -> Option<&str> {
        self.certificates_of_secret.get(secret)?.first().map(String::as_str)
    }

    /// The Gateway, ListenerSet or Ingress for which cert-manager makes a Certificate.
    pub(super) fn owner_of_certificate(&self, certificate: &str) -> Option<&str> {
        self.owners_of_certificates.get(certificate).map(String::as_str)
    }

    /// Takes the clients from cert-manager's objects, and those of `spec.clients.secretNames`, of which some have a Certificate, too.
    fn take_certificates(
        &mut self,
        entry: &Entry,
        own: &CertManagerState,
        others: &[CertManagerState],
        now: Timestamp,
    ) {
        let all = || std::iter::once(own).chain(others);
        for (secret, certificate) in all().flat_map(|issued| issued.certificates_of_secrets(entry)) {
            self.certificates_of_secret.entry(secret).or_default().insert(certificate);
        }
        self.owners_of_certificates = all().flat_map(|issued| issued.owners(entry)).collect();
        let named = entry.spec.clients.secret_names.iter().filter_map(|name| {
            let pending = own.certificate_of(name).and_then(|certificate| own.pending(certificate));
            Some(ClientState { certificate: own.issuance_of(name), pending, ..self.client(name)? })
        });
        let labelled = all().flat_map(|issued| issued.clients(entry, &[entry]));
        let mut clients = one_per_secret(labelled.chain(named));
        let gateway_secrets: Vec<_> = self.other_gateway_secrets.iter().map(Arc::as_ref).collect();
        let mut of_others = one_per_secret(all().flat_map(|issued| issued.clients(entry, &gateway_secrets)));
        of_others.retain(|other| !clients.iter().any(|client| client.name == other.name));
        clients.extend(shared_clients(of_others, &self.snapshot(entry), &self.journal, now));
        let mut source_certificate = own.issuance_of(entry.source_name());
        let mut canary_certificate = entry.canary_name().and_then(|name| own.issuance_of(name));
        let of_clients = clients.iter_mut().map(|client| (client.name.as_str(), client.certificate.as_mut()));
        let own = [(entry.source_name(), source_certificate.as_mut()), {
            (entry.canary_name().unwrap_or_default(), canary_certificate.as_mut())
        }];
        for (secret, certificate) in of_clients.chain(own) {
            let writers = self.certificates_of_secret.get(secret).filter(|writers| writers.len() > 1);
            if let (Some(certificate), Some(writers)) = (certificate, writers.and_then(few)) {
                certificate.blocked = Some(format!(
                    "Certificates {writers} write the same Secret {secret}, and a reissue of one can be overwritten by another. Set another \
                     spec.secretName in all but one of them"
                ));
            }
        }
        (self.clients, self.source_certificate, self.canary_certificate) =
            (clients, source_certificate, canary_certificate);
    }

    /// Asks whether the namespaces exist of clients that are not found. Without a Role in a namespace its Certificates cannot be listed, and its
    /// Roles are deleted with it.
    async fn read_namespaces(&mut self, client: &Client) {
        let is_found = |name: &str| self.clients.iter().any(|client| client.name == name);
        let missing =
            self.journal.clients.keys().filter(|name| !is_found(name) && !TrustBundleTarget::is_readers(name));
        let of_missing = missing.filter_map(|name| name.split_once('/')).map(|(namespace, _)| namespace.to_owned());
        // Others have an error after their name.
        let forbidden = self.unlisted_namespaces.iter().filter(|name| !name.contains(' '));
        let asked: BTreeSet<_> = of_missing.chain(forbidden.cloned()).collect();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let state = async |name: String| {
            let state = match namespaces.get_metadata_opt(&name).await {
                Ok(Some(_)) => NamespaceState::Exists,
                Ok(None) => NamespaceState::Deleted,
                Err(_) => NamespaceState::Unknown,
            };
            (name, state)
        };
        self.namespaces = stream::iter(asked).map(state).buffered(REQUESTS).collect().await;
    }

    /// Blocks the reissue of clients to whose Secret admission would not add the clients' bundle: without it, they would refuse the serving
    /// certificate. The webhook knows a client by its label, or by the verb [`INJECT`] in the agent's Role.
    async fn block_clients_without_bundle(&mut self, client: &Client, entry: &Entry) {
        let has_label = |name: &str| {
            let labels = self.secrets.get(name).map(|(stored, _)| &stored.object["metadata"]["labels"]);
            let label = labels.and_then(|labels| labels[CLIENT_LABEL].as_str());
            label.is_some_and(|label| entry.has_client(&entry.namespace, label))
        };
        let is_named = |name: &str| entry.spec.clients.secret_names.iter().any(|named| named == name);
        let unlabelled: Vec<_> = (self.clients.iter())
            .filter(|client| client.certificate.as_ref().is_some_and(|certificate| certificate.blocked.is_none()))
            .map(|client| client.name.clone())
            .filter(|name| is_named(name) && !has_label(name))
            .collect();
        let ask = async |name: String| {
            let secret = (entry.namespace.as_str(), name.as_str());
            let has_verb = permission::has_verb(client, INJECT, SourceKind::Secret, secret).await;
            (!has_verb).then_some(name)
        };
        let mut answers = std::pin::pin!(stream::iter(unlabelled).map(ask).buffered(REQUESTS));
        while let Some(answer) = answers.next().await {
            let Some(name) = answer else { continue };
            let client = self.clients.iter_mut().find(|client| client.name == name);
            if let Some(certificate) = client.and_then(|client| client.certificate.as_mut()) {
                certificate.blocked = Some(format!(
                    "Admission does not know Secret {name}, so it would not add the clients' bundle when the Secret is renewed. Apply the \
                     output of trustspan rbac, or set label {CLIENT_LABEL}: {} in secretTemplate of Certificate {}",
                    entry.name, certificate.name
                ));
            }
        }
    }

    /// Records why the API server refused the last request to reissue Certificates, by qualified name.
    pub(super) fn record_refused(&mut self, refused: &BTreeMap<&str, String>) {
        let clients = self.clients.iter_mut().filter_map(|client| client.certificate.as_mut());
        let further = self.presented_also.iter_mut().filter_map(|also| also.certificate.as_mut());
        let own = [&mut self.source_certificate, &mut self.canary_certificate];
        for certificate in clients.chain(further).chain(own.into_iter().flatten()) {
            certificate.refused = refused.get(certificate.name.as_str()).cloned();
        }
    }

    /// Treats these Secrets as those of declared clients.
    pub(super) fn declare_clients(&mut self, names: impl IntoIterator<Item = String>) {
        self.clients = names.into_iter().filter_map(|name| self.client(&name)).collect();
    }

    /// A client, from its Secret.
    fn client(&self, name: &str) -> Option<ClientState> {
        let (stored, summary) = self.secrets.get(name)?;
        Some(ClientState {
            name: name.to_owned(),
            // A Secret without a key has no serving pair, but the client may have its key from elsewhere.
            chain: if summary.chain.is_empty() {
                certificates_under(&stored.secret, "tls.crt")
            } else {
                summary.chain.clone()
            },
            trust: Trust::Read(summary.anchors.clone()),
            loads_once: stored.object["metadata"]["annotations"][RELOAD] == RELOAD_NEVER,
            is_retired: stored.object["metadata"]["annotations"][RETIRED] == "true",
            certificate: None,
            pending: None,
        })
    }

    /// The planner's input.
    pub(super) fn snapshot<'a>(&'a self, entry: &'a Entry) -> Snapshot<'a> {
        let spec = &entry.spec;
        let summary = |name: &str| self.secrets.get(name).map(|(_, summary)| summary);
        Snapshot {
            entry,
            source: summary(entry.source_name()),
            ca: entry.ca_name().as_deref().and_then(summary),
            client_ca: entry.own_client_ca_name().as_deref().and_then(summary),
            issuer: entry.issuer_name().as_deref().and_then(summary),
            managed: summary(entry.managed_name()),
            source_sibling: summary(&format!("{}{CACERT_SUFFIX}", entry.source_name())),
            managed_sibling: trust_copy(entry, self.secrets.get(&format!("{}{CACERT_SUFFIX}", entry.managed_name()))),
            additional_trust: spec.additional_trust.iter().map(|named| self.additional_trust(named)).collect(),
            config_maps: spec.clients.ca_config_map_names.iter().map(|name| self.ca_config_map(entry, name)).collect(),
            clients: self.clients.clone(),
            other_gateway_secrets: self.other_gateway_secrets.iter().map(Arc::as_ref).collect(),
            bundle_readers: self.bundle_readers.clone(),
            trust_loaders: self.trust_loaders.clone(),
            unlisted_namespaces: &self.unlisted_namespaces,
            namespaces: self.namespaces.clone(),
            source_certificate: self.source_certificate.clone(),
            canary: entry
                .canary_name()
                .and_then(summary)
                .map(|summary| Canary { chain: summary.chain.clone(), certificate: self.canary_certificate.clone() }),
            probe_result: self.probe_result.clone(),
            unprobed: self.not_probed.clone(),
            readers: self.readers.clone(),
            sources: self.sources.clone(),
            presented_also: self.presented_also.clone(),
        }
    }

    fn additional_trust<'a>(&'a self, named: &'a AdditionalTrust) -> AdditionalSource<'a> {
        let stored = match named.kind {
            SourceKind::Secret => &self.secrets,
            SourceKind::ConfigMap => &self.config_maps,
        };
        AdditionalSource { named, content: stored.get(&named.name).map(|(_, summary)| summary) }
    }

    fn ca_config_map(&self, entry: &Entry, name: &str) -> CaConfigMap<'_> {
        let source = self.config_maps.get(name).map(|(_, summary)| summary);
        let managed = trust_copy(entry, self.config_maps.get(&managed_config_map_name(name)));
        CaConfigMap { name: name.to_owned(), source, managed }
    }

    /// A ConfigMap with CAs.
    pub(super) fn stored_config_map(&self, name: &str) -> Option<&StoredObject> {
        self.config_maps.get(name).map(|(stored, _)| stored)
    }

    /// A Secret.
    pub(super) fn stored_secret(&self, name: &str) -> Option<&StoredObject> {
        self.secrets.get(name).map(|(stored, _)| stored)
    }

    /// All Secrets, and all ConfigMaps with CAs.
    pub(super) fn stored_objects(&self) -> impl Iterator<Item = &Value> {
        self.secrets.values().chain(self.config_maps.values()).map(|(stored, _)| &stored.object)
    }
}

/// One client for each Secret. If several Certificates write it, the Secret holds what was issued last.
fn one_per_secret(clients: impl IntoIterator<Item = ClientState>) -> Vec<ClientState> {
    let recency = |client: &ClientState| match client.trust {
        Trust::Read(_) => Timestamp::MAX,
        Trust::Issued { at, .. } => at,
    };
    let mut by_secret: BTreeMap<String, ClientState> = BTreeMap::new();
    for client in clients {
        let Some(known) = by_secret.remove(&client.name) else {
            by_secret.insert(client.name.clone(), client);
            continue;
        };
        let (older, newer) = if recency(&known) < recency(&client) { (known, client) } else { (client, known) };
        let merged = ClientState {
            loads_once: newer.loads_once || older.loads_once,
            is_retired: newer.is_retired && older.is_retired,
            certificate: newer.certificate.or(older.certificate),
            pending: newer.pending.or(older.pending),
            ..newer
        };
        by_secret.insert(merged.name.clone(), merged);
    }
    by_secret.into_values().collect()
}

/// Whether a copy exists, and who wrote it.
fn trust_copy<'s>(entry: &Entry, stored: Option<&'s (StoredObject, SecretSummary)>) -> TrustCopy<'s> {
    match stored {
        None => TrustCopy::Absent,
        Some((stored, summary)) if owned_objects::is_owned_by(&stored.object, entry) => TrustCopy::Managed(summary),
        Some(_) => TrustCopy::Foreign,
    }
}

/// Reads the source Secret.
pub(super) async fn read_source_secret(client: &Client, entry: &Entry) -> Result<Option<Value>, AgentError> {
    match entry.source_name() {
        // It is not derived yet.
        "" => Ok(None),
        name => get(&secrets(client, &entry.namespace), "secrets", name).await,
    }
}

pub(super) async fn get(
    api: &Api<DynamicObject>,
    plural: &'static str,
    name: &str,
) -> Result<Option<Value>, AgentError> {
    let found = api.get_opt(name).await.map_err(|e| AgentError::api("get", plural, name, e))?;
    found.map(serde_json::to_value).transpose().map_err(AgentError::Encode)
}

/// Limit of other sources of trust that are read for one GatewaySecret. Further ones count as unreadable.
const MAX_SOURCES: usize = 64;

async fn read_source(client: &Client, source: &SourceName) -> SourceState {
    match objects(client, &source.namespace, "", "v1", source.kind.name()).get_opt(&source.name).await {
        Ok(found) => source_state(source.kind, found.and_then(|found| serde_json::to_value(found).ok()).as_ref()),
        Err(error) => SourceState::Unreadable(cluster::error_message(&error)),
    }
}

/// The CAs of a source, as istiod and Envoy read it.
fn source_state(kind: SourceKind, object: Option<&Value>) -> SourceState {
    let Some(object) = object else { return SourceState::Absent };
    let secret = match readers::decode(kind, &Json::from(object)) {
        Ok(secret) => secret,
        Err(error) => return SourceState::Unreadable(error.to_string()),
    };
    // Proxies keep the previous bundle if they reject a bundle or get none.
    let ca_bundle = trust::credential::ca_bundle(&secret).map(|ca| bundle::read(ca.pem));
    match ca_bundle.filter(|bundle| bundle.rejected.is_none()).map(bundle::Bundle::into_certificates) {
        Some(trust) if !trust.is_empty() => SourceState::Holds(trust),
        _ => SourceState::Unreadable("it holds no CA bundle that Envoy accepts".to_owned()),
    }
}

fn chain_of(object: &DynamicObject) -> Option<Vec<trust::Certificate>> {
    let secret = Secret::from_value(&serde_json::to_value(object).ok()?).ok()?;
    Some(certificates_under(&secret, "tls.crt"))
}

/// The number of issuances of a cert-manager Certificate, and the CAs that its Secret got with the last one: the issuer's, or its own certificate.
///
/// # Errors
/// When the Certificates or CertificateRequests of the namespace cannot be listed.
pub async fn issued_ca(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<(i64, Vec<trust::Certificate>), AgentError> {
    let state = CertManagerState::read(client, namespace, true).await?;
    let certificate = state.certificates.iter().find(|certificate| certificate.metadata.name.as_deref() == Some(name));
    let issued = certificate.and_then(|certificate| {
        let status = &state.request(certificate)?.data["status"];
        let ca = bundle::read(&decoded(&status["ca"])).into_certificates();
        let own = || bundle::read_chain(&decoded(&status["certificate"])).into_certificates().into_iter().take(1);
        let ca = if ca.is_empty() { own().collect() } else { ca };
        Some((certificate.data["status"]["revision"].as_i64()?, ca))
    });
    Ok(issued.unwrap_or_default())
}

/// cert-manager's objects in one namespace.
struct CertManagerState {
    certificates: Vec<DynamicObject>,
    /// The CertificateRequests of Certificates, by the name of the Certificate and the revision.
    requests: BTreeMap<(String, String), Vec<DynamicObject>>,
}

impl CertManagerState {
    /// Reads the objects; none if cert-manager is not installed. Requests are read only in namespaces that may have clients.
    async fn read(client: &Client, namespace: &str, has_clients: bool) -> Result<Self, AgentError> {
        let list = async |kind: &str, plural: &'static str| {
            let api = objects(client, namespace, "cert-manager.io", "v1", kind);
            match api.list(&from_watch_cache()).await {
                Ok(list) => Ok(list.items),
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
                Err(error) => Err(AgentError::api("list", plural, "", error)),
            }
        };
        let certificates = list("Certificate", "certificates.cert-manager.io").await?;
        let mut requests: BTreeMap<_, Vec<_>> = BTreeMap::new();
        if has_clients {
            // Requests last, so that they include the request of each Certificate's current revision.
            for request in list("CertificateRequest", "certificaterequests.cert-manager.io").await? {
                let annotation = |key: &str| request.metadata.annotations.as_ref()?.get(key).cloned();
                let certificate = annotation("cert-manager.io/certificate-name");
                let of = certificate.zip(annotation("cert-manager.io/certificate-revision"));
                if let Some(of) = of {
                    requests.entry(of).or_default().push(request);
                }
            }
        }
        Ok(Self { certificates, requests })
    }

    /// Reads the objects in the other namespaces of clients and CAs. Returns also the namespaces that cannot be listed: an error in one
    /// namespace does not hide the clients in others.
    async fn read_others(
        client: &Client,
        entry: &Entry,
        other_gateway_secrets: &[Arc<Entry>],
    ) -> Result<(Vec<Self>, Vec<String>), AgentError> {
        let sharing = other_gateway_secrets.iter().filter(|other| share_a_ca(entry, other));
        let of_sharing: BTreeSet<_> = sharing.flat_map(|other| other.client_namespaces()).map(str::to_owned).collect();
        let has_clients =
            |namespace: &str| of_sharing.contains(namespace) || entry.client_namespaces().any(|one| one == namespace);
        let mut namespaces: Vec<_> = entry.issuing_namespaces().map(str::to_owned).collect();
        namespaces
            .extend(of_sharing.iter().filter(|further| entry.issuing_namespaces().all(|one| one != *further)).cloned());
        // The first one is its own.
        namespaces.remove(0);
        let read = async |name: String| (Self::read(client, &name, has_clients(&name)).await, name);
        let mut reads = std::pin::pin!(stream::iter(namespaces).map(read).buffered(REQUESTS));
        let (mut others, mut unlisted) = (Vec::new(), Vec::new());
        while let Some((read, namespace)) = reads.next().await {
            match read {
                Ok(other) => others.push(other),
                Err(error) if has_clients(&namespace) && !entry.ca_namespaces().contains(&*namespace) => {
                    unlisted.push(match error.has_code(403) {
                        true => namespace,
                        false => format!("{namespace} ({error})"),
                    })
                }
                Err(error) => return Err(error),
            }
        }
        Ok((others, unlisted))
    }

    /// Names of Secrets, each with the name of the Certificate that writes it.
    fn certificates_of_secrets(&self, entry: &Entry) -> impl Iterator<Item = (String, String)> {
        let pair = |certificate: &DynamicObject| {
            let namespace = certificate.metadata.namespace.as_deref()?;
            let secret = entry.qualified(namespace, certificate.data["spec"]["secretName"].as_str()?);
            Some((secret, entry.qualified(namespace, certificate.metadata.name.as_deref()?)))
        };
        self.certificates.iter().filter_map(pair)
    }

    /// Names of Certificates, each with the kind and name of the object for which cert-manager makes it.
    fn owners(&self, entry: &Entry) -> impl Iterator<Item = (String, String)> {
        let pair = |certificate: &DynamicObject| {
            let owner = owner_of_certificate(&serde_json::to_value(&certificate.metadata).ok()?)?;
            let (namespace, name) = (certificate.metadata.namespace.as_deref()?, certificate.metadata.name.as_deref()?);
            Some((entry.qualified(namespace, name), owner))
        };
        self.certificates.iter().filter_map(pair)
    }

    /// The first Certificate that writes a Secret.
    fn certificate_of(&self, name: &str) -> Option<&DynamicObject> {
        self.certificates.iter().find(|certificate| certificate.data["spec"]["secretName"] == name)
    }

    /// The issuance of the Certificate that writes a Secret.
    fn issuance_of(&self, name: &str) -> Option<Issuance> {
        let certificate = self.certificate_of(name)?;
        let issued = self.request(certificate).and_then(ready_since);
        Some(Issuance { issued, ..issuance(certificate) })
    }

    /// Another Secret that gateways present, with the certificate issued last.
    fn further_certificate(&self, name: &str) -> FurtherCertificate {
        let certificate = self.certificates.iter().find(|certificate| certificate.data["spec"]["secretName"] == name);
        let request = certificate.and_then(|certificate| self.request(certificate));
        let chain = request
            .map(|request| bundle::read_chain(&decoded(&request.data["status"]["certificate"])).into_certificates());
        FurtherCertificate { name: name.to_owned(), chain, certificate: certificate.map(issuance) }
    }

    /// The clients whose Secrets are labelled for one of these GatewaySecrets, which are in the namespace of `entry`.
    fn clients(&self, entry: &Entry, gateway_secrets: &[&Entry]) -> Vec<ClientState> {
        let template = |certificate: &DynamicObject| certificate.data["spec"]["secretTemplate"].clone();
        let client = |certificate: &DynamicObject| {
            let namespace = certificate.metadata.namespace.as_deref()?;
            let label = template(certificate)["labels"][CLIENT_LABEL].as_str()?.to_owned();
            let name = entry.qualified(namespace, certificate.data["spec"]["secretName"].as_str()?);
            // The canary is not a declared client: to test gateways, it may have a certificate that they refuse.
            let named = gateway_secrets.iter().find(|named| named.has_client(namespace, &label))?;
            if [entry, *named].iter().any(|one| one.canary_name() == Some(&name)) {
                return None;
            }
            let request = self.request(certificate);
            let pem = |field: &str| request.map(|request| decoded(&request.data["status"][field])).unwrap_or_default();
            Some(ClientState {
                name,
                chain: bundle::read_chain(&pem("certificate")).into_certificates(),
                trust: Trust::Issued {
                    ca: bundle::read(&pem("ca")).into_certificates(),
                    at: request.and_then(ready_since).unwrap_or(Timestamp::MIN),
                },
                loads_once: template(certificate)["annotations"][RELOAD] == RELOAD_NEVER,
                is_retired: template(certificate)["annotations"][RETIRED] == "true",
                certificate: Some(Issuance {
                    name: entry.qualified(namespace, certificate.metadata.name.as_deref()?),
                    issued: request.and_then(ready_since),
                    ..issuance(certificate)
                }),
                pending: self.pending(certificate),
            })
        };
        self.certificates.iter().filter_map(client).collect()
    }

    /// A certificate that was issued and is not in the Secret yet.
    fn pending(&self, certificate: &DynamicObject) -> Option<Pending> {
        let revision = certificate.data["status"]["revision"].as_i64().unwrap_or_default();
        // A request can be created for another issuer and name this Certificate in its annotation.
        let of_issuer =
            |request: &&DynamicObject| request.data["spec"]["issuerRef"] == certificate.data["spec"]["issuerRef"];
        let request =
            self.requests_of(certificate, revision + 1).filter(of_issuer).find(|one| ready_since(one).is_some())?;
        let chain = bundle::read_chain(&decoded(&request.data["status"]["certificate"])).into_certificates();
        Some(Pending { chain, at: ready_since(request)? })
    }

    /// The request whose certificate is in the Secret: cert-manager increments the revision after it has written the Secret.
    fn request(&self, certificate: &DynamicObject) -> Option<&DynamicObject> {
        self.requests_of(certificate, certificate.data["status"]["revision"].as_i64()?).next()
    }

    fn requests_of(&self, certificate: &DynamicObject, revision: i64) -> impl Iterator<Item = &DynamicObject> {
        let of = certificate.metadata.name.clone().map(|name| (name, revision.to_string()));
        of.and_then(|of| self.requests.get(&of)).into_iter().flatten()
    }
}

fn issuance(certificate: &DynamicObject) -> Issuance {
    let reference = &certificate.data["spec"]["issuerRef"];
    // The defaults of cert-manager's API.
    let field = |name: &str, default: &'static str| reference[name].as_str().unwrap_or(default).to_owned();
    let kind = field("kind", "Issuer");
    // The external issuers that cert-manager lists also begin the names of their cluster-scoped kinds with `Cluster`.
    let namespace = if kind.contains("Cluster") { None } else { certificate.metadata.namespace.as_deref() };
    let group = field("group", "cert-manager.io");
    let status = &certificate.data["status"];
    Issuance {
        issuer: format!("{kind}.{group}/{}/{}", namespace.unwrap_or_default(), field("name", "")),
        issued: None,
        failed: time(&status["lastFailureTime"]),
        name: certificate.metadata.name.clone().unwrap_or_default(),
        failures: status["failedIssuanceAttempts"].as_u64().and_then(|times| times.try_into().ok()).unwrap_or_default(),
        issuing: condition(certificate, "Issuing")
            .map(|issuing| time(&issuing["lastTransitionTime"]).unwrap_or(Timestamp::MIN)),
        validity: time(&status["notBefore"]).zip(time(&status["notAfter"])),
        lacks_secret: lacks_secret(status),
        blocked: None,
        refused: None,
        renewal: RenewalPolicy::of(&certificate.data),
        renders_pkcs12: certificate.data["spec"]["keystores"]["pkcs12"]["create"] == true,
    }
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// Whether cert-manager's readiness controller has found no Secret (`internal/controller/certificates/policies/checks.go`).
fn lacks_secret(status: &Value) -> bool {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["reason"] == "DoesNotExist")
}

/// A condition that is true.
fn condition<'o>(object: &'o DynamicObject, type_: &str) -> Option<&'o Value> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == type_ && condition["status"] == "True")
}

fn ready_since(request: &DynamicObject) -> Option<Timestamp> {
    time(&condition(request, "Ready")?["lastTransitionTime"])
}

fn decoded(value: &Value) -> Vec<u8> {
    use base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use serde_json::json;

    use super::*;
    use crate::registry::tests::entry;
    use crate::rotation::planner;
    use crate::trust::fixtures::{Authority, ca, now, parsed};

    fn encoded(text: &str) -> String {
        STANDARD.encode(text)
    }

    /// A Certificate that writes a Secret, with its issued request.
    fn issued(name: &str, secret: &str, label: Option<&str>, by: &Authority, at: &str) -> [DynamicObject; 2] {
        let labels = label.map_or(json!({}), |label| json!({ CLIENT_LABEL: label }));
        let certificate = json!({
            "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": { "namespace": "mesh", "name": name },
            "spec": { "secretName": secret, "secretTemplate": { "labels": labels } }, "status": { "revision": 1 },
        });
        let leaf = by.leaf_with(name, |params| params.use_authority_key_identifier_extension = true);
        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": at });
        let request = json!({
            "apiVersion": "cert-manager.io/v1", "kind": "CertificateRequest", "metadata": { "namespace": "mesh", "name": name },
            "status": { "certificate": encoded(&leaf.pem()), "ca": encoded(&by.pem()), "conditions": [ready] },
        });
        [certificate, request].map(|object| serde_json::from_value(object).expect("an object"))
    }

    fn cert_manager(issued: Vec<[DynamicObject; 2]>) -> CertManagerState {
        let mut state = CertManagerState { certificates: Vec::new(), requests: BTreeMap::new() };
        for [certificate, request] in issued {
            let name = certificate.metadata.name.clone().unwrap_or_default();
            state.requests.insert((name, "1".to_owned()), vec![request]);
            state.certificates.push(certificate);
        }
        state
    }

    fn state(entry: &Entry, secrets: Vec<Value>, own: &CertManagerState) -> ClusterState {
        let mut state = ClusterState::from_objects(entry, secrets, [], None, now());
        state.take_certificates(entry, own, &[], now());
        state
    }

    fn secret(name: &str, by: &Authority) -> Value {
        let leaf = by.leaf_with(name, |params| params.use_authority_key_identifier_extension = true);
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "namespace": "mesh", "name": name },
            "stringData": { "ca.crt": by.pem(), "tls.crt": leaf.pem(), "tls.key": leaf.key_pem() },
        })
    }

    #[test]
    fn a_named_client_has_the_certificate_that_writes_its_secret() {
        let (root, mut entry) = (ca("root"), entry("mesh", "root", "gw"));
        entry.spec.clients.secret_names = vec!["payments".to_owned(), "checkout".to_owned()];
        let own = cert_manager(vec![
            issued("payments-certificate", "payments", None, &root, "2030-01-01T00:00:00Z"),
            issued("unrelated", "unrelated", None, &root, "2030-01-01T00:00:00Z"),
        ]);
        let state = state(&entry, vec![secret("payments", &root), secret("checkout", &root)], &own);
        let certificates: Vec<_> = (state.clients.iter())
            .map(|client| {
                (client.name.as_str(), client.certificate.as_ref().map(|certificate| certificate.name.as_str()))
            })
            .collect();
        assert_eq!(certificates, [("checkout", None), ("payments", Some("payments-certificate"))]);
        assert!(state.clients.iter().all(|client| matches!(client.trust, Trust::Read(_))));
    }

    #[test]
    fn two_certificates_that_write_one_secret_are_one_client_whose_journal_does_not_change() {
        let (old, new, entry) = (ca("old"), ca("new"), entry("mesh", "root", "gw"));
        let first = issued("payments-1", "payments", Some("gw"), &old, "2030-01-01T00:00:00Z");
        let last = issued("payments-2", "payments", Some("gw"), &new, "2030-01-01T00:00:01Z");
        for order in [vec![first.clone(), last.clone()], vec![last, first]] {
            let own = cert_manager(order);
            let state = state(&entry, vec![secret("root", &old)], &own);
            let [client] = state.clients.as_slice() else { panic!("{:?}", state.clients) };
            assert_eq!(client.chain.last().map(|leaf| leaf.issuer.as_str()), Some("CN=new"), "the last one issued");
            let certificate = client.certificate.as_ref().expect("a Certificate");
            let blocked = certificate.blocked.as_deref().unwrap_or_default();
            assert!(
                blocked.starts_with("Certificates payments-1, payments-2 write the same Secret payments"),
                "{blocked}"
            );
            let plan = |journal: &Journal| planner::plan(&state.snapshot(&entry), journal, now()).journal;
            let journal = plan(&Journal::default());
            assert_eq!(journal, plan(&journal));
            assert_eq!(journal.clients["payments"].versions.len(), 1);
        }
    }

    #[test]
    fn the_remedy_for_a_certificate_of_a_gateway_s_annotation_is_to_remove_that() {
        let (root, entry) = (ca("root"), entry("mesh", "root", "gw"));
        let said = |change: &dyn Fn(&mut DynamicObject)| {
            let mut issued = issued("gw", "gw", None, &root, "2030-01-01T00:00:00Z");
            change(&mut issued[0]);
            let state = state(&entry, vec![], &cert_manager(vec![issued]));
            super::super::apply::check_single_writer(&entry, &state).expect_err("two writers").to_string()
        };
        let plain = said(&|_| {});
        assert!(plain.ends_with("does not write it. Set spec.secretName of the Certificate to root"), "{plain}");
        let of_gateway = said(&|certificate| {
            let owner = json!([{ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "edge", "uid": "1", "controller": true }]);
            certificate.metadata.owner_references = serde_json::from_value(owner).expect("an owner");
        });
        assert!(of_gateway.contains("makes this Certificate for Gateway edge and restores its fields"), "{of_gateway}");
        assert!(of_gateway.ends_with("there, then set spec.secretName of the Certificate to root"), "{of_gateway}");
    }

    #[test]
    fn clients_of_another_gateway_secret_that_these_gateways_accept_are_clients_of_both() {
        let (root, foreign) = (ca("root"), ca("foreign"));
        let (own, mut first) = (entry("mesh", "root", "gw"), entry("mesh", "first-root", "first"));
        first.spec.clients.namespaces = vec!["apps".to_owned()];
        let at = "2030-01-01T00:00:00Z";
        let issued = |namespace: &str, name: &str, label: &str, by: &Authority| {
            let mut both = issued(name, name, Some(label), by, at);
            both.iter_mut().for_each(|object| object.metadata.namespace = Some(namespace.to_owned()));
            both
        };
        let here = cert_manager(vec![
            issued("mesh", "payments", "first", &root),
            issued("mesh", "foreign", "first", &foreign),
            issued("mesh", "known", "first", &foreign),
            issued("mesh", "unrelated", "third", &root),
        ]);
        let elsewhere = cert_manager(vec![
            issued("apps", "checkout", "mesh_first", &root),
            issued("apps", "local", "first", &root),
        ]);
        let names = |others: Vec<Entry>| {
            let mut state = ClusterState::from_objects(&own, vec![secret("root", &root)], [], None, now());
            state.journal.clients.entry("known".to_owned()).or_default();
            state.other_gateway_secrets = others.into_iter().map(Arc::new).collect();
            state.take_certificates(&own, &here, std::slice::from_ref(&elsewhere), now());
            state.snapshot(&own).clients.into_iter().map(|client| client.name).collect::<Vec<_>>()
        };
        assert_eq!(names(vec![first.clone()]), ["apps/checkout", "known", "payments"]);
        assert_eq!(names(Vec::new()), Vec::<String>::new());
    }

    #[test]
    fn a_named_client_with_the_label_is_one_client() {
        let (root, mut entry) = (ca("root"), entry("mesh", "root", "gw"));
        entry.spec.clients.secret_names = vec!["payments".to_owned()];
        let own = cert_manager(vec![issued("payments", "payments", Some("gw"), &root, "2030-01-01T00:00:00Z")]);
        let state = state(&entry, vec![secret("payments", &root)], &own);
        let [client] = state.clients.as_slice() else { panic!("{:?}", state.clients) };
        assert!(
            matches!(&client.trust, Trust::Read(trust) if *trust == [parsed(root.der())]),
            "what was read is exact"
        );
        assert!(client.certificate.as_ref().is_some_and(|certificate| certificate.blocked.is_none()));
    }
}
