//! What was read from the cluster for one GatewaySecret at one instant ([`Snapshot`]), and what all steps derive from it and the journal ([`View`]).

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::api::{AdditionalTrust, OnServingCertificateExpiry, Period, StepName, WindowState};
use crate::connectivity;
use crate::registry::Entry;
use crate::rotation::journal::{Authority, Client, Journal, Version};
use crate::rotation::readers::{ReaderTrust, SourceName, TlsReader};
use crate::rotation::{RenewalPolicy, SecretSummary};
use crate::trust::credential::CA_KEYS;
use crate::trust::{Certificate, EXPIRED, Finding, field, is_distrusted};

/// What was read for one GatewaySecret. A Secret that does not exist is `None`.
#[derive(Clone, Debug)]
pub struct Snapshot<'a> {
    /// The GatewaySecret.
    pub entry: &'a Entry,
    /// The source Secret.
    pub source: Option<&'a SecretSummary>,
    /// The Secret of `spec.caSecretRef`.
    pub ca: Option<&'a SecretSummary>,
    /// The Secret of `spec.clients.caSecretRef`.
    pub client_ca: Option<&'a SecretSummary>,
    /// The Secret of `spec.issuerSecretName`.
    pub issuer: Option<&'a SecretSummary>,
    /// The managed Secret.
    pub managed: Option<&'a SecretSummary>,
    /// `<source>-cacert`, from which gateways that name the source Secret take their clients' CAs.
    pub source_sibling: Option<&'a SecretSummary>,
    /// `<managed>-cacert`, the same for the managed Secret.
    pub managed_sibling: TrustCopy<'a>,
    /// The objects of `spec.additionalTrust`, in that order.
    pub additional_trust: Vec<AdditionalSource<'a>>,
    /// The ConfigMaps of `spec.clients.caConfigMapNames`.
    pub config_maps: Vec<CaConfigMap<'a>>,
    /// The declared clients.
    pub clients: Vec<ClientState>,
    /// Readers of an object of `spec.trustBundleTargets`: clients without a certificate.
    pub bundle_readers: Vec<ClientState>,
    /// TrustConsumers and MirroredFiles that load the managed Secret or what a client reads.
    pub trust_loaders: Vec<TrustLoader>,
    /// Namespaces of `spec.clients.namespaces` whose Certificates the agent may not list.
    pub unlisted_namespaces: &'a [String],
    /// The cert-manager Certificate that writes the source Secret.
    pub source_certificate: Option<Issuance>,
    /// The canary of `probe.target`.
    pub canary: Option<Canary>,
    /// What the gateways showed; `None` if they were not probed.
    pub probe_result: Option<ProbeResult>,
    /// Why gateways are not probed, if that is known: part of a sentence.
    pub unprobed: Option<String>,
    /// The TLS settings of gateways that use other objects than the managed Secret.
    pub readers: Vec<TlsReader>,
    /// The objects from which these readers take CAs.
    pub sources: BTreeMap<SourceName, SourceState>,
    /// Secrets that gateways present in addition to the managed Secret.
    pub presented_also: Vec<FurtherCertificate>,
}

/// An object of `spec.additionalTrust`.
#[derive(Clone, Copy, Debug)]
pub struct AdditionalSource<'a> {
    /// Its kind and name.
    pub named: &'a AdditionalTrust,
    /// Its content; `None` if it does not exist.
    pub content: Option<&'a SecretSummary>,
}

/// A ConfigMap of `spec.clients.caConfigMapNames`, and its copy.
#[derive(Clone, Debug)]
pub struct CaConfigMap<'a> {
    /// Its name.
    pub name: String,
    /// Its content; `None` if it does not exist.
    pub source: Option<&'a SecretSummary>,
    /// The copy of it that the agent writes.
    pub managed: TrustCopy<'a>,
}

/// A copy of an object with CAs. The copy has the GatewaySecret's current CAs in place of those in the original.
#[derive(Clone, Copy, Debug, Default)]
pub enum TrustCopy<'a> {
    /// The copy does not exist.
    #[default]
    Absent,
    /// The agent wrote it.
    Managed(&'a SecretSummary),
    /// Another writer wrote it.
    Foreign,
}

/// A Secret that a gateway presents in addition to the managed Secret: a client may get either certificate.
#[derive(Clone, Debug)]
pub struct FurtherCertificate {
    /// Its name, in the GatewaySecret's namespace.
    pub name: String,
    /// Its chain, leaf first; `None` if that is unknown.
    pub chain: Option<Vec<Certificate>>,
    /// The cert-manager Certificate that writes it.
    pub certificate: Option<Issuance>,
}

/// The client certificate with which the agent probes gateways.
#[derive(Clone, Debug)]
pub struct Canary {
    /// The chain that it presents, leaf first.
    pub chain: Vec<Certificate>,
    /// The cert-manager Certificate that writes its Secret.
    pub certificate: Option<Issuance>,
}

/// A declared client.
#[derive(Clone, Debug)]
pub struct ClientState {
    /// Name of its Secret, or of the trust bundle target that it reads.
    pub name: String,
    /// The chain that it presents, leaf first.
    pub chain: Vec<Certificate>,
    /// The CAs that it is known to trust.
    pub trust: Trust,
    /// It reads its Secret only at startup.
    pub loads_once: bool,
    /// The cert-manager Certificate that writes its Secret.
    pub certificate: Option<Issuance>,
    /// A new certificate that is not in its Secret yet: admission rejects a certificate that gateways do not accept
    /// yet.
    pub pending: Option<Pending>,
}

/// A certificate that was issued, but is not in its Secret.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Its chain, leaf first.
    pub chain: Vec<Certificate>,
    /// When it was issued.
    pub at: Timestamp,
}

/// The source of what is known about a client's CAs.
#[derive(Clone, Debug)]
pub enum Trust {
    /// The Secret was read.
    Read(Vec<Certificate>),
    /// The Secret was not read. It has the CAs that the issuer wrote, and those that the webhook added at that time.
    Issued {
        /// The issuer's CA.
        ca: Vec<Certificate>,
        /// When the certificate was issued. The Secret was not written earlier.
        at: Timestamp,
    },
}

/// What reports which CAs of a GatewaySecret it has loaded: a TrustConsumer, for workloads that load them when they start, or a MirroredFile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustLoader {
    /// Its kind, and its namespace and name, for people. No two have the same.
    pub name: String,
    /// What is loaded.
    pub object: LoadedTrust,
    /// The hash of the CAs that are loaded everywhere: see [`crate::trust::content_hash`]. `None`: not everywhere the same, or unknown.
    pub loaded: Option<String>,
    /// Why earlier content may be loaded: a sentence.
    pub reason: String,
    /// Whether a person has to act before later content is loaded.
    pub needs_action: bool,
    /// Others read what it has loaded, such as a file, so the propagation delay begins with its report. A report is then expected within
    /// [`REPORT_TIMEOUT`]; after that a person has to act.
    pub is_read_by_others: bool,
}

/// How long a mirror of a file may take until it reports new content. It takes seconds while it runs.
pub const REPORT_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

/// An object with CAs of a GatewaySecret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadedTrust {
    /// The managed Secret.
    Managed,
    /// The bundle of a client, by the name of the client.
    Client(String),
}

/// A cert-manager Certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Issuance {
    /// Its name.
    pub name: String,
    /// Its issuer: kind, group and name of its `issuerRef`, with the namespace if the kind is namespaced.
    pub issuer: String,
    /// When the certificate in its Secret was issued.
    pub issued: Option<Timestamp>,
    /// When issuance last failed, if none has succeeded since (`status.lastFailureTime`).
    pub failed: Option<Timestamp>,
    /// Whether it is being issued now.
    pub is_issuing: bool,
    /// When its owner allows a renewal.
    pub renewal: RenewalPolicy,
}

/// The content of an object that may hold CAs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// It does not exist.
    Absent,
    /// Its CAs, as a proxy reads them.
    Holds(Vec<Certificate>),
    /// Why it could not be read.
    Unreadable(String),
}

/// The results of a probe of the gateways.
#[derive(Clone, Debug, Default)]
pub struct ProbeResult {
    /// The chain that was presented to them, leaf first; empty if none was.
    pub canary: Vec<Certificate>,
    /// Every endpoint of their Service.
    pub endpoints: Vec<Endpoint>,
}

/// One endpoint of the gateways' Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// IP address and port.
    pub address: String,
    /// Name of its pod, if that is known.
    pub pod: Option<String>,
    /// When the connection was opened. It shows nothing about a later time.
    pub at: Timestamp,
    /// What it showed, or why it could not be probed.
    pub shown: Result<Shown, String>,
}

impl Endpoint {
    /// Pod and address.
    pub(super) fn label(&self) -> String {
        self.pod.as_ref().map_or_else(|| self.address.clone(), |pod| format!("{pod} ({})", self.address))
    }
}

/// What an endpoint showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// SHA-256 of the serving certificate's DER, in lower-case hex.
    pub leaf: String,
    /// Its answer to the canary; `None` if it requested no certificate, or did not answer.
    pub canary: Option<Answer>,
}

/// Whether an endpoint accepts the canary's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The connection was accepted.
    Accepted,
    /// The certificate was rejected.
    Refused,
}

/// Where a reader takes its clients' CAs from.
pub(super) enum ReaderSource<'s> {
    /// From the managed Secret, or it verifies no client.
    Managed,
    /// From this object.
    Object(&'s SourceName, &'s SourceState),
    /// From the first of these that exists, and none does.
    Missing(&'s [SourceName]),
    /// From a source that is no Kubernetes object: what it is.
    Unknowable(&'s str),
    /// Objects of this kind cannot be listed: why.
    Unlisted(&'s str),
}

impl<'a> Snapshot<'a> {
    /// The declared clients, and the readers of trust bundle targets.
    pub(super) fn all_clients(&self) -> impl Iterator<Item = &ClientState> {
        self.clients.iter().chain(&self.bundle_readers)
    }

    /// Whether every client is known: all are declared, and the agent may list all of their namespaces.
    pub(super) fn knows_all_clients(&self) -> bool {
        self.entry.spec.clients.all_declared && self.unlisted_namespaces.is_empty()
    }

    /// The source Secret.
    ///
    /// # Errors
    /// Why it cannot be used: a sentence.
    pub(super) fn usable_source(&self) -> Result<&'a SecretSummary, String> {
        usable(self.source, self.entry.source_name())
    }

    /// Why the source Secret cannot be used, if so: a sentence.
    pub fn source_fault(&self) -> Option<String> {
        self.usable_source().err()
    }

    /// The Secret of the CA that signs serving certificates.
    ///
    /// # Errors
    /// Why it cannot be used: a sentence.
    pub(super) fn usable_server_ca(&self) -> Result<&'a SecretSummary, String> {
        let secret = if self.entry.resolved.ca_secret_ref.is_some() { self.ca } else { self.source };
        usable(secret, &self.entry.server_ca_name())
    }

    /// The Secret of the CA that signs client certificates.
    ///
    /// # Errors
    /// Why it cannot be used: a sentence.
    pub(super) fn usable_client_ca(&self) -> Result<&'a SecretSummary, String> {
        match self.entry.own_client_ca_name() {
            Some(name) => usable(self.client_ca, &name),
            None => self.usable_server_ca(),
        }
    }

    /// The objects of `spec.additionalTrust` that exist.
    ///
    /// # Errors
    /// Why one cannot be used: a sentence.
    pub(super) fn usable_additional_trust(&self) -> impl Iterator<Item = Result<&'a SecretSummary, String>> {
        self.additional_trust.iter().filter_map(|source| {
            let (label, content) = (source.named.label(), source.content?);
            Some(match content.denials.first() {
                Some(finding) => Err(format!("{label}: {}: {}: {}", finding.rule, finding.field, finding.message)),
                None if authorities(content).is_empty() => {
                    Err(format!("{label} holds no CA. Add one, or remove it from spec.additionalTrust"))
                }
                None => Ok(content),
            })
        })
    }

    /// The object that decides which clients a reader accepts.
    pub(super) fn source_of<'s>(&'s self, reader: &'s TlsReader) -> ReaderSource<'s> {
        let sources = match &reader.trust {
            ReaderTrust::NotVerified => return ReaderSource::Managed,
            ReaderTrust::Unknowable(what) => return ReaderSource::Unknowable(what),
            ReaderTrust::Unlisted(why) => return ReaderSource::Unlisted(why),
            ReaderTrust::FirstOf(sources) => sources,
        };
        let managed = SourceName::secret(&self.entry.namespace, self.entry.managed_name());
        let existing = sources.iter().find_map(|source| match self.sources.get(source) {
            _ if *source == managed => Some(ReaderSource::Managed),
            Some(SourceState::Absent) => None,
            Some(state) => Some(ReaderSource::Object(source, state)),
            None => Some(ReaderSource::Unknowable("a source that was not looked up")),
        });
        existing.unwrap_or(ReaderSource::Missing(sources))
    }
}

fn usable<'a>(secret: Option<&'a SecretSummary>, name: &str) -> Result<&'a SecretSummary, String> {
    let secret = secret.ok_or_else(|| format!("Secret {name} does not exist"))?;
    match secret.denials.first() {
        Some(finding) => Err(format!("Secret {name}: {}: {}: {}", finding.rule, finding.field, finding.message)),
        None => Ok(secret),
    }
}

/// The CAs of a source, each once: its bundle, or its own certificate if that is a CA and there is no bundle.
pub(super) fn authorities(secret: &SecretSummary) -> Vec<Certificate> {
    if secret.anchors.is_empty() {
        return secret.chain.iter().take(1).filter(|certificate| certificate.is_ca).cloned().collect();
    }
    let mut known = BTreeSet::new();
    secret.anchors.iter().filter(|certificate| known.insert(&certificate.fingerprint)).cloned().collect()
}

/// What all steps derive from a snapshot and its journal, computed once.
pub(super) struct View<'a> {
    pub(super) snapshot: &'a Snapshot<'a>,
    pub(super) entry: &'a Entry,
    pub(super) journal: &'a Journal,
    pub(super) now: Timestamp,
    /// The state of the policy's `changeWindows`.
    pub(super) windows: WindowState,
    /// The contents of the managed Secret that gateways may use.
    pub(super) gateways_in_use: Vec<&'a Version>,
    /// The contents that declared clients may use, with their names.
    pub(super) clients_in_use: Vec<(&'a str, &'a Version)>,
    /// The chains that gateways may present in addition to the managed Secret's, with the names of their Secrets.
    pub(super) presented_also: Vec<(&'a str, &'a Version)>,
    /// The current CAs that sign client certificates.
    pub(super) client_issuers: Vec<Certificate>,
    /// The current CAs that sign serving certificates.
    pub(super) server_issuers: Vec<Certificate>,
    /// The chain in the source Secret, if it can be served.
    pub(super) source_chain: Option<&'a [Certificate]>,
    /// The chain in the managed Secret, if its pair is sound.
    pub(super) served_chain: Option<&'a [Certificate]>,
    /// Some gateway may not trust the current client CAs.
    pub(super) unconverged: Option<Unconverged>,
    /// The clients' Issuer signs with the current CA, and every gateway accepts certificates of it.
    pub(super) signs_current: bool,
}

/// Some gateway may not trust the current client CAs.
#[derive(Clone, Copy)]
pub(super) struct Unconverged {
    /// When the propagation delay ends; `None` if something else must happen first.
    pub(super) until: Option<Timestamp>,
}

impl<'a> View<'a> {
    pub(super) fn derive(snapshot: &'a Snapshot<'a>, journal: &'a Journal, now: Timestamp) -> Self {
        let entry = snapshot.entry;
        let delays = &entry.policy.propagation_delays;
        let is_in_use = |version: &&Version| version.may_be_in_use(delays.gateways, now);
        let of_client = |(name, client): (&'a String, &'a Client)| {
            client.in_use(delays.clients, now).map(|version| (name.as_str(), version))
        };
        let of_secret = |(name, versions): (&'a String, &'a Vec<Version>)| {
            versions.iter().filter(is_in_use).map(|version| (name.as_str(), version))
        };
        let gateways_in_use: Vec<_> = journal.gateways.iter().filter(is_in_use).collect();
        let client_issuers = current(&journal.client_issuers, &entry.spec.distrusted_cas);
        let unconverged = unconverged(&gateways_in_use, &client_issuers, delays.gateways);
        let signs = snapshot.usable_client_ca().is_ok_and(|source| {
            entry.spec.issuer_secret_name.is_none()
                || snapshot.issuer.is_some_and(|issuer| issuer.chain == source.chain)
        });
        Self {
            snapshot,
            entry,
            journal,
            now,
            windows: WindowState::of(&entry.policy.change_windows, now),
            gateways_in_use,
            clients_in_use: journal.clients.iter().flat_map(of_client).collect(),
            presented_also: journal.presented_also.iter().flat_map(of_secret).collect(),
            client_issuers,
            server_issuers: current(&journal.server_issuers, &entry.spec.distrusted_cas),
            source_chain: snapshot.usable_source().ok().and_then(|source| non_empty(&source.chain)),
            served_chain: served_chain(snapshot),
            unconverged,
            signs_current: signs && unconverged.is_none(),
        }
    }
}

impl View<'_> {
    /// The step that waits for gateways.
    pub(super) fn step_of_gateways(&self) -> StepName {
        match self.unconverged {
            None => StepName::DropOldCA,
            Some(_) if self.entry.spec.issuer_secret_name.is_some() => StepName::PromoteIssuer,
            Some(_) => StepName::ReissueClients,
        }
    }
}

/// The current CAs: those that their Secret holds. Distrusted ones are left out, unless all are distrusted.
pub(super) fn current(issuers: &[Authority], distrusted_cas: &[String]) -> Vec<Certificate> {
    let current = issuers.iter().filter(|authority| authority.current).map(|authority| authority.certificate.clone());
    let (distrusted, trusted): (Vec<_>, Vec<_>) =
        current.partition(|certificate| is_distrusted(certificate, distrusted_cas));
    if trusted.is_empty() { distrusted } else { trusted }
}

fn unconverged(gateways: &[&Version], issuers: &[Certificate], delay: Period) -> Option<Unconverged> {
    let lacking: Vec<_> = gateways.iter().filter(|version| !holds(&version.trust, issuers)).collect();
    // The newest version, and one that a probe has found in use, have no end.
    let replaced = |version: &Version| version.replaced.filter(|_| version.seen.is_empty());
    let ends = lacking.iter().map(|version| replaced(version).map(|at| delay.after(at)));
    let until = ends.max_by_key(|end| end.unwrap_or(Timestamp::MAX))?;
    Some(Unconverged { until })
}

/// The chain of the managed Secret, if it can be served. A broken bundle does not matter here; with `onServingCertificateExpiry: Keep`, neither does
/// an expired certificate.
fn served_chain<'a>(snapshot: &Snapshot<'a>) -> Option<&'a [Certificate]> {
    let is_kept = snapshot.entry.policy.on_serving_certificate_expiry == OnServingCertificateExpiry::Keep;
    let spares_pair =
        |finding: &Finding| CA_KEYS.iter().any(|key| finding.field == field(key)) || is_kept && finding.rule == EXPIRED;
    let managed = snapshot.managed.filter(|managed| managed.denials.iter().all(spares_pair))?;
    non_empty(&managed.chain)
}

fn non_empty(chain: &[Certificate]) -> Option<&[Certificate]> {
    (!chain.is_empty()).then_some(chain)
}

/// Whether gateways with this bundle accept a client's chain.
pub(super) fn admits(trust: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    connectivity::admits(trust, chain, begun(chain, now))
}

/// Whether a client's chain is of these CAs. A client whose chain is unknown is not waited for.
pub(super) fn migrated(issuers: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    chain.is_empty() || admits(issuers, chain, now)
}

/// Whether a client that trusts these CAs verifies a gateway's chain.
pub(super) fn verifies(trust: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    connectivity::verifies(trust, chain, begun(chain, now))
}

/// Whether a client verifies a gateway's chain, or did so before it expired: some clients ignore dates.
pub(super) fn verifies_to_the_end(trust: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    // For BoringSSL a certificate has expired in its last second (X509_cmp_time).
    let ends = chain.iter().map(|certificate| certificate.not_after - SignedDuration::from_secs(1));
    verifies(trust, chain, ends.fold(now, Timestamp::min))
}

/// The instant at which a chain is judged. If the clock is slow, a certificate in use does not seem valid yet, and is
/// judged at the start of its validity.
fn begun(chain: &[Certificate], now: Timestamp) -> Timestamp {
    chain.iter().map(|certificate| certificate.not_before).fold(now, Timestamp::max)
}

/// Whether `trust` holds all of these CAs, or successors that supersede them.
pub(super) fn holds(trust: &[Certificate], wanted: &[Certificate]) -> bool {
    wanted.iter().all(|certificate| trust.iter().any(|held| held.supersedes(certificate)))
}
