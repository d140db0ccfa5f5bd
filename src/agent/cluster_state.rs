//! Reads what one GatewaySecret's rotation depends on. Secrets are read one by one, by name; clients' certificates from
//! cert-manager's CertificateRequests, which hold public certificates only.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::Value;

use super::AgentError;
use super::owned_objects::{self, StoredObject};
use crate::api::SourceKind;
use crate::api::names::{CACERT_SUFFIX, CLIENT_LABEL, RELOAD, RELOAD_NEVER, journal_name, managed_config_map_name};
use crate::registry::Entry;
use crate::rotation::journal::Journal;
use crate::rotation::planner::{
    CaConfigMap, Canary, ClientState, FurtherCertificate, Issuance, Pending, ProbeResult, Snapshot, SourceState, Trust,
    TrustCopy,
};
use crate::rotation::readers::{self, SourceName, TlsReader};
use crate::rotation::{RenewalPolicy, SecretSummary};
use crate::store::cluster;
use crate::trust::{self, Duty, Secret, SecretUsage, Severities, bundle, certificates_under};

/// One reading. Has no `Debug`: it holds Secrets.
pub(super) struct ClusterState {
    /// By name, those of clients elsewhere by namespace and name.
    secrets: BTreeMap<String, (StoredObject, SecretSummary)>,
    /// Those of `spec.clients.caConfigMapNames`, and what is kept from them.
    config_maps: BTreeMap<String, (StoredObject, SecretSummary)>,
    clients: Vec<ClientState>,
    root_certificate: Option<Issuance>,
    canary_certificate: Option<Issuance>,
    /// The Certificates that write Secrets, by the Secret's name: each one's own.
    writers: BTreeMap<String, String>,
    /// What gateways showed on the wire, when somebody looked.
    pub(super) wire: Option<ProbeResult>,
    /// Why nobody can look.
    pub(super) unprobed: Option<String>,
    readers: Vec<TlsReader>,
    sources: BTreeMap<SourceName, SourceState>,
    presented_also: Vec<FurtherCertificate>,
    /// Readers of the objects of `spec.trustBundleTargets`.
    pub(super) bundle_readers: Vec<ClientState>,
    /// Those of `spec.clients.namespaces` whose Certificates the agent may not list.
    unlisted_namespaces: Vec<String>,
    /// What is remembered.
    pub(super) journal: Journal,
    /// Where that stands, when it is stored already.
    pub(super) journal_object: Option<Value>,
}

/// `v1` Secrets, ConfigMaps and cert-manager's objects of a namespace.
pub(super) fn objects(client: &Client, namespace: &str, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// Secrets of a namespace.
pub(super) fn secrets(client: &Client, namespace: &str) -> Api<DynamicObject> {
    objects(client, namespace, "", "v1", "Secret")
}

/// ConfigMaps of a namespace.
pub(super) fn config_maps(client: &Client, namespace: &str) -> Api<DynamicObject> {
    objects(client, namespace, "", "v1", "ConfigMap")
}

/// What a GatewaySecret's rotation depends on, by name.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct WatchedNames {
    pub(super) secrets: Vec<String>,
    /// With the journal's.
    pub(super) config_maps: Vec<String>,
    /// Where Certificates are of its clients and its CAs.
    pub(super) namespaces: Vec<String>,
}

impl WatchedNames {
    pub(super) fn of(entry: &Entry) -> Self {
        let mut config_maps = config_map_names(entry);
        config_maps.push(journal_name(&entry.name));
        Self { secrets: names(entry), config_maps, namespaces: entry.issuing_namespaces().map(str::to_owned).collect() }
    }
}

/// The names of the ConfigMaps of `spec.clients.caConfigMapNames`, and of what is kept from them.
pub(super) fn config_map_names(entry: &Entry) -> Vec<String> {
    let sources = &entry.spec.clients.ca_config_map_names;
    sources.iter().cloned().chain(sources.iter().map(|name| managed_config_map_name(name))).collect()
}

/// The names of all Secrets that a GatewaySecret's rotation depends on: see [`Entry::qualified`].
pub(super) fn names(entry: &Entry) -> Vec<String> {
    let mut names = vec![entry.source_name().to_owned(), entry.managed_name().to_owned()];
    // It is not derived yet.
    names.retain(|name| !name.is_empty());
    names.extend(names.clone().iter().map(|name| format!("{name}{CACERT_SUFFIX}")));
    names.extend([entry.ca_name(), entry.issuer_name(), entry.own_client_ca_name()].into_iter().flatten());
    // The CRD refuses one of another namespace; a manifest can still say it.
    names.extend(entry.spec.clients.secret_names.iter().filter(|name| !name.contains('/')).cloned());
    names.extend(entry.canary_name().map(str::to_owned));
    names.sort();
    names.dedup();
    names
}

/// What an object is called among a GatewaySecret's: see [`Entry::qualified`].
pub(super) fn qualified(entry: &Entry, object: &Value) -> String {
    let metadata = &object["metadata"];
    entry.qualified(metadata["namespace"].as_str().unwrap_or("default"), metadata["name"].as_str().unwrap_or_default())
}

impl ClusterState {
    /// Reads it from a cluster.
    pub(super) async fn read(client: &Client, entry: &Entry, readers: Vec<TlsReader>) -> Result<Self, AgentError> {
        if let Some(former) = entry.left_behind() {
            let (former, managed) = (former.to_owned(), entry.managed_name().to_owned());
            return Err(AgentError::Renamed { former, managed });
        }
        let mut objects_read = Vec::new();
        for name in names(entry) {
            let (namespace, name) = entry.place_of(&name);
            objects_read.extend(get(&secrets(client, namespace), "secrets", name).await?);
        }
        let configmaps = config_maps(client, &entry.namespace);
        let journal = get(&configmaps, "configmaps", &journal_name(&entry.name)).await?;
        let mut with_cas = Vec::new();
        for name in config_map_names(entry) {
            with_cas.extend(get(&configmaps, "configmaps", &name).await?);
        }
        let issued = Issued::read(client, &entry.namespace, true).await?;
        let mut elsewhere = Vec::new();
        let mut unlisted = Vec::new();
        for namespace in entry.issuing_namespaces().skip(1) {
            let has_clients = entry.client_namespaces().any(|one| one == namespace);
            match Issued::read(client, namespace, has_clients).await {
                Ok(issued) => elsewhere.push(issued),
                // One namespace that cannot be listed, for a missing right or otherwise, says nothing about the others' clients.
                Err(error) if has_clients && !entry.ca_namespaces().contains(namespace) => {
                    unlisted.push(match error.is(403) {
                        true => namespace.to_owned(),
                        false => format!("{namespace} ({error})"),
                    })
                }
                Err(error) => return Err(error),
            }
        }
        let mut world = Self::of(entry, objects_read, with_cas, journal.as_ref(), Timestamp::now());
        world.clients = std::iter::once(&issued).chain(&elsewhere).flat_map(|issued| issued.clients(entry)).collect();
        world.unlisted_namespaces = unlisted;
        let by_name = entry.spec.clients.secret_names.iter().filter_map(|name| world.client(name)).collect::<Vec<_>>();
        world.clients.extend(by_name);
        world.root_certificate = issued.of_secret(entry.source_name());
        world.writers = std::iter::once(&issued).chain(&elsewhere).flat_map(|issued| issued.writers(entry)).collect();
        world.canary_certificate = entry.canary_name().and_then(|name| issued.of_secret(name));
        for source in readers::sources(&readers).into_iter().take(SOURCES).cloned() {
            let (held, known) = match source.kind {
                SourceKind::Secret => (&world.secrets, names(entry)),
                SourceKind::ConfigMap => (&world.config_maps, config_map_names(entry)),
            };
            let is_own = source.namespace == entry.namespace;
            let state = match held.get(&source.name).filter(|_| is_own) {
                Some((held, _)) => held_by(source.kind, Some(&held.object)),
                None if is_own && known.contains(&source.name) => SourceState::Absent,
                None => read_source(client, &source).await,
            };
            world.sources.insert(source, state);
        }
        let names: BTreeSet<_> = readers.iter().flat_map(|reader| &reader.presents_also).collect();
        for name in names.into_iter().take(SOURCES) {
            let also = issued.presented(name);
            let chain = match also.chain {
                Some(chain) => Some(chain),
                None => match secrets(client, &entry.namespace).get_opt(name).await {
                    // istiod presents nothing then.
                    Ok(None) => continue,
                    Ok(Some(object)) => chain_of(&object),
                    Err(_) => None,
                },
            };
            world.presented_also.push(FurtherCertificate { chain, ..also });
        }
        world.readers = readers;
        Ok(world)
    }

    /// The same of manifests, which hold everything there is.
    pub(super) fn read_from(&mut self, entry: &Entry, objects: &[Value]) {
        let pods: Vec<_> = objects.iter().filter(|object| object["kind"] == "Pod").collect();
        self.readers = readers::readers(entry, objects, &pods);
        for source in readers::sources(&self.readers) {
            let kind = source.kind.name();
            let is_it = |object: &&Value| {
                let metadata = &object["metadata"];
                object["kind"] == kind
                    && metadata["name"] == source.name.as_str()
                    && metadata["namespace"].as_str().unwrap_or("default") == source.namespace
            };
            self.sources.insert(source.clone(), held_by(source.kind, objects.iter().find(is_it)));
        }
        let also = self.readers.iter().flat_map(|reader| &reader.presents_also);
        let also: BTreeSet<_> = also.collect();
        self.presented_also = also
            .into_iter()
            .map(|name| {
                let is_it = |object: &&Value| object["kind"] == "Secret" && object["metadata"]["name"] == name.as_str();
                let secret = objects.iter().find(is_it).and_then(|object| Secret::from_value(object).ok());
                let chain = secret.map(|secret| certificates_under(&secret, "tls.crt"));
                FurtherCertificate { name: name.clone(), chain, certificate: None }
            })
            .collect();
    }

    /// Takes it from Secrets, ConfigMaps with CAs, and the journal's ConfigMap.
    pub(super) fn of(
        entry: &Entry,
        secrets: impl IntoIterator<Item = Value>,
        config_maps: impl IntoIterator<Item = Value>,
        journal: Option<&Value>,
        now: Timestamp,
    ) -> Self {
        let severities = Severities::default().under(&entry.policy.severities);
        let held = |object: Value| {
            let secret = Secret::from_value(&object).ok()?;
            let name = qualified(entry, &object);
            let facts = SecretSummary::of(&secret, entry.duty(&name), &severities, now);
            Some((name, (StoredObject { object, secret }, facts)))
        };
        let bundle = Duty { usage: SecretUsage::TrustBundle, ..entry.duty("") };
        let config_map = |object: Value| {
            let secret = readers::decode(SourceKind::ConfigMap, &object).ok()?;
            let facts = SecretSummary::of(&secret, bundle, &severities, now);
            let name = object["metadata"]["name"].as_str()?.to_owned();
            Some((name, (StoredObject { object, secret }, facts)))
        };
        Self {
            secrets: secrets.into_iter().filter_map(held).collect(),
            config_maps: config_maps.into_iter().filter_map(config_map).collect(),
            clients: Vec::new(),
            root_certificate: None,
            canary_certificate: None,
            writers: BTreeMap::new(),
            wire: None,
            unprobed: None,
            readers: Vec::new(),
            sources: BTreeMap::new(),
            presented_also: Vec::new(),
            bundle_readers: Vec::new(),
            unlisted_namespaces: Vec::new(),
            journal: owned_objects::read_journal(entry, journal),
            journal_object: journal.cloned(),
        }
    }

    /// The Certificate that writes a Secret.
    pub(super) fn writer(&self, secret: &str) -> Option<&str> {
        self.writers.get(secret).map(String::as_str)
    }

    /// Declares the clients whose Secrets were read.
    pub(super) fn declare(&mut self, names: impl IntoIterator<Item = String>) {
        self.clients = names.into_iter().filter_map(|name| self.client(&name)).collect();
    }

    /// A client whose Secret was read.
    fn client(&self, name: &str) -> Option<ClientState> {
        let (held, facts) = self.secrets.get(name)?;
        Some(ClientState {
            name: name.to_owned(),
            // Without its key the Secret presents nothing; a client that has it from elsewhere does.
            chain: if facts.chain.is_empty() {
                certificates_under(&held.secret, "tls.crt")
            } else {
                facts.chain.clone()
            },
            trust: Trust::Read(facts.anchors.clone()),
            loads_once: held.object["metadata"]["annotations"][RELOAD] == RELOAD_NEVER,
            certificate: None,
            pending: None,
        })
    }

    /// As the decision wants it.
    pub(super) fn seen<'a>(&'a self, entry: &'a Entry) -> Snapshot<'a> {
        let spec = &entry.spec;
        let facts = |name: &str| self.secrets.get(name).map(|(_, facts)| facts);
        Snapshot {
            entry,
            root: facts(entry.source_name()),
            ca: entry.ca_name().as_deref().and_then(facts),
            client_ca: entry.own_client_ca_name().as_deref().and_then(facts),
            issuer: entry.issuer_name().as_deref().and_then(facts),
            managed: facts(entry.managed_name()),
            source_sibling: facts(&format!("{}{CACERT_SUFFIX}", entry.source_name())),
            managed_sibling: copy(entry, self.secrets.get(&format!("{}{CACERT_SUFFIX}", entry.managed_name()))),
            config_maps: spec.clients.ca_config_map_names.iter().map(|name| self.ca_config_map(entry, name)).collect(),
            clients: self.clients.clone(),
            bundle_readers: self.bundle_readers.clone(),
            unlisted_namespaces: &self.unlisted_namespaces,
            root_certificate: self.root_certificate.clone(),
            canary: entry
                .canary_name()
                .and_then(facts)
                .map(|facts| Canary { chain: facts.chain.clone(), certificate: self.canary_certificate.clone() }),
            wire: self.wire.clone(),
            unprobed: self.unprobed.clone(),
            readers: self.readers.clone(),
            sources: self.sources.clone(),
            presented_also: self.presented_also.clone(),
        }
    }

    fn ca_config_map(&self, entry: &Entry, name: &str) -> CaConfigMap<'_> {
        let source = self.config_maps.get(name).map(|(_, facts)| facts);
        let managed = copy(entry, self.config_maps.get(&managed_config_map_name(name)));
        CaConfigMap { name: name.to_owned(), source, managed }
    }

    /// A ConfigMap with CAs that was read.
    pub(super) fn held_config_map(&self, name: &str) -> Option<&StoredObject> {
        self.config_maps.get(name).map(|(held, _)| held)
    }

    /// A Secret that was read.
    pub(super) fn held(&self, name: &str) -> Option<&StoredObject> {
        self.secrets.get(name).map(|(held, _)| held)
    }

    /// All Secrets, and ConfigMaps with CAs, that were read.
    pub(super) fn held_objects(&self) -> impl Iterator<Item = &Value> {
        self.secrets.values().chain(self.config_maps.values()).map(|(held, _)| &held.object)
    }
}

/// What the agent keeps from another object, if it stands.
fn copy<'h>(entry: &Entry, held: Option<&'h (StoredObject, SecretSummary)>) -> TrustCopy<'h> {
    match held {
        None => TrustCopy::Absent,
        Some((held, facts)) if owned_objects::is_kept_for(&held.object, entry) => TrustCopy::Managed(facts),
        Some(_) => TrustCopy::Foreign,
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

/// Objects beside the GatewaySecret's own that are read for what gateways take from them. More count as unreadable.
const SOURCES: usize = 64;

async fn read_source(client: &Client, source: &SourceName) -> SourceState {
    match objects(client, &source.namespace, "", "v1", source.kind.name()).get_opt(&source.name).await {
        Ok(found) => held_by(source.kind, found.and_then(|found| serde_json::to_value(found).ok()).as_ref()),
        Err(error) => SourceState::Unreadable(cluster::told(&error)),
    }
}

/// What a source holds, as istiod and Envoy take it.
fn held_by(kind: SourceKind, object: Option<&Value>) -> SourceState {
    let Some(object) = object else { return SourceState::Absent };
    let secret = match readers::decode(kind, object) {
        Ok(secret) => secret,
        Err(error) => return SourceState::Unreadable(error.to_string()),
    };
    // Proxies keep what they had before where they reject a bundle, or get none.
    let taken = trust::credential::ca_bundle(&secret).map(|ca| bundle::read(ca.pem));
    match taken.filter(|bundle| bundle.rejected.is_none()).map(bundle::Bundle::into_certificates) {
        Some(trust) if !trust.is_empty() => SourceState::Holds(trust),
        _ => SourceState::Unreadable("it holds no bundle of CAs that Envoy takes".to_owned()),
    }
}

fn chain_of(object: &DynamicObject) -> Option<Vec<trust::Certificate>> {
    let secret = Secret::from_value(&serde_json::to_value(object).ok()?).ok()?;
    Some(certificates_under(&secret, "tls.crt"))
}

/// cert-manager's objects of a namespace.
struct Issued {
    certificates: Vec<DynamicObject>,
    requests: Vec<DynamicObject>,
}

impl Issued {
    /// Without cert-manager there are none. Requests are read only where clients may be.
    async fn read(client: &Client, namespace: &str, has_clients: bool) -> Result<Self, AgentError> {
        let list = async |kind: &str, plural: &'static str| {
            // Any version that the API server has in memory: a watch tells of a newer one.
            let params = ListParams::default().match_any();
            match objects(client, namespace, "cert-manager.io", "v1", kind).list(&params).await {
                Ok(list) => Ok(list.items),
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
                Err(error) => Err(AgentError::api("list", plural, "", error)),
            }
        };
        // Requests last: one that a Certificate counts already is among them.
        Ok(Self {
            certificates: list("Certificate", "certificates.cert-manager.io").await?,
            requests: match has_clients {
                true => list("CertificateRequest", "certificaterequests.cert-manager.io").await?,
                false => Vec::new(),
            },
        })
    }

    /// Which Certificate writes which Secret, by the Secret's name.
    fn writers(&self, entry: &Entry) -> impl Iterator<Item = (String, String)> {
        let pair = |certificate: &DynamicObject| {
            let namespace = certificate.metadata.namespace.as_deref()?;
            let secret = entry.qualified(namespace, certificate.data["spec"]["secretName"].as_str()?);
            Some((secret, entry.qualified(namespace, certificate.metadata.name.as_deref()?)))
        };
        self.certificates.iter().filter_map(pair)
    }

    /// The Certificate that writes a Secret.
    fn of_secret(&self, name: &str) -> Option<Issuance> {
        let certificate =
            self.certificates.iter().find(|certificate| certificate.data["spec"]["secretName"] == name)?;
        let issued = self.request(certificate).and_then(ready_since);
        Some(Issuance { issued, ..issuance(certificate) })
    }

    /// A Secret that gateways present, with the certificate that was issued for it last.
    fn presented(&self, name: &str) -> FurtherCertificate {
        let certificate = self.certificates.iter().find(|certificate| certificate.data["spec"]["secretName"] == name);
        let request = certificate.and_then(|certificate| self.request(certificate));
        let chain = request
            .map(|request| bundle::read_chain(&decoded(&request.data["status"]["certificate"])).into_certificates());
        FurtherCertificate { name: name.to_owned(), chain, certificate: certificate.map(issuance) }
    }

    /// The clients whose Secrets are labelled for a GatewaySecret.
    fn clients(&self, entry: &Entry) -> Vec<ClientState> {
        let template = |certificate: &DynamicObject| certificate.data["spec"]["secretTemplate"].clone();
        let client = |certificate: &DynamicObject| {
            let namespace = certificate.metadata.namespace.as_deref()?;
            let label = template(certificate)["labels"][CLIENT_LABEL].as_str()?.to_owned();
            let name = entry.qualified(namespace, certificate.data["spec"]["secretName"].as_str()?);
            // The canary is nobody whom gateways must not refuse.
            if !entry.has_client(namespace, &label) || entry.canary_name() == Some(&name) {
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
                certificate: Some(Issuance {
                    name: entry.qualified(namespace, certificate.metadata.name.as_deref()?),
                    ..issuance(certificate)
                }),
                pending: self.pending(certificate),
            })
        };
        self.certificates.iter().filter_map(client).collect()
    }

    /// What was issued and is not in the Secret.
    fn pending(&self, certificate: &DynamicObject) -> Option<Pending> {
        let revision = certificate.data["status"]["revision"].as_i64().unwrap_or_default();
        // Anybody may make a request of another issuer and write a Certificate's name on it.
        let of_issuer =
            |request: &&DynamicObject| request.data["spec"]["issuerRef"] == certificate.data["spec"]["issuerRef"];
        let request =
            self.requests_of(certificate, revision + 1).filter(of_issuer).find(|one| ready_since(one).is_some())?;
        let chain = bundle::read_chain(&decoded(&request.data["status"]["certificate"])).into_certificates();
        Some(Pending { chain, at: ready_since(request)? })
    }

    /// The request whose certificate stands in the Secret: cert-manager counts its revision up after it wrote it there.
    fn request(&self, certificate: &DynamicObject) -> Option<&DynamicObject> {
        self.requests_of(certificate, certificate.data["status"]["revision"].as_i64()?).next()
    }

    fn requests_of(&self, certificate: &DynamicObject, revision: i64) -> impl Iterator<Item = &DynamicObject> {
        let (name, revision) = (certificate.metadata.name.clone(), revision.to_string());
        let is_of = move |request: &&DynamicObject| {
            let annotation = |key: &str| request.metadata.annotations.as_ref()?.get(key).cloned();
            name.is_some()
                && annotation("cert-manager.io/certificate-name") == name
                && annotation("cert-manager.io/certificate-revision").as_ref() == Some(&revision)
        };
        self.requests.iter().filter(is_of)
    }
}

fn issuance(certificate: &DynamicObject) -> Issuance {
    let reference = &certificate.data["spec"]["issuerRef"];
    // The defaults of cert-manager's API.
    let field = |name: &str, default: &'static str| reference[name].as_str().unwrap_or(default).to_owned();
    let kind = field("kind", "Issuer");
    // Kinds that serve all namespaces are called so by all issuers that cert-manager lists.
    let namespace = if kind.contains("Cluster") { None } else { certificate.metadata.namespace.as_deref() };
    let group = field("group", "cert-manager.io");
    Issuance {
        issuer: format!("{kind}.{group}/{}/{}", namespace.unwrap_or_default(), field("name", "")),
        issued: None,
        failed: certificate.data["status"]["lastFailureTime"].as_str().and_then(|at| at.parse().ok()),
        name: certificate.metadata.name.clone().unwrap_or_default(),
        is_issuing: condition(certificate, "Issuing").is_some(),
        renewal: RenewalPolicy::of(&certificate.data["spec"]["renewal"]),
    }
}

/// A condition that is true.
fn condition<'o>(object: &'o DynamicObject, type_: &str) -> Option<&'o Value> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == type_ && condition["status"] == "True")
}

fn ready_since(request: &DynamicObject) -> Option<Timestamp> {
    condition(request, "Ready")?["lastTransitionTime"].as_str()?.parse().ok()
}

fn decoded(value: &Value) -> Vec<u8> {
    use base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default()
}
