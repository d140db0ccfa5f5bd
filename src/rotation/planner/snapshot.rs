//! What is seen of one GatewaySecret's world at one instant, and the view of it that the steps ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use jiff::{SignedDuration, Timestamp};

use crate::api::{GatewaySecretSpec, OnServingCertificateExpiry, RotationPolicySpec, TrustSourceUse, WindowState};
use crate::registry::Entry;
use crate::rotation::journal::{Authority, Journal, Version};
use crate::rotation::readers::{ReaderTrust, SourceName, TlsReader, sibling_or_self};
use crate::rotation::{RenewalPolicy, SecretSummary};
use crate::trust::credential::CA_KEYS;
use crate::trust::{Certificate, EXPIRED, Finding, connectivity, field, is_distrusted};

/// What is seen. A Secret is `None` when it is not there.
#[derive(Clone, Debug)]
pub struct Snapshot<'a> {
    /// The GatewaySecret.
    pub entry: &'a Entry,
    /// The root Secret.
    pub root: Option<&'a SecretSummary>,
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
    /// The ConfigMaps of `spec.clients.caConfigMapNames`.
    pub config_maps: Vec<CaConfigMap<'a>>,
    /// The declared clients.
    pub clients: Vec<ClientState>,
    /// Those who take their trust from an object of `spec.trustBundleTargets`: clients without a certificate.
    pub bundle_readers: Vec<ClientState>,
    /// Those of `spec.clients.namespaces` whose clients the agent may not list.
    pub unlisted_namespaces: &'a [String],
    /// The Certificate of cert-manager that writes the root Secret.
    pub root_certificate: Option<Issuance>,
    /// The canary of `probe.target`.
    pub canary: Option<Canary>,
    /// What gateways showed on the wire; `None` when nobody looked.
    pub wire: Option<ProbeResult>,
    /// Why gateways are not probed, when that is known: part of a sentence.
    pub unprobed: Option<String>,
    /// What gateways read beside the managed Secret.
    pub readers: Vec<TlsReader>,
    /// What the objects hold from which readers take CAs.
    pub sources: BTreeMap<SourceName, SourceState>,
    /// The Secrets that gateways present next to the managed one.
    pub presented_also: Vec<FurtherCertificate>,
}

/// A ConfigMap of `spec.clients.caConfigMapNames`.
#[derive(Clone, Debug)]
pub struct CaConfigMap<'a> {
    /// Its name.
    pub name: String,
    /// What it holds; `None` when it is not there.
    pub source: Option<&'a SecretSummary>,
    /// What is kept from it.
    pub managed: TrustCopy<'a>,
}

/// What the agent keeps from an object with CAs, with its own CAs as the managed Secret has them.
#[derive(Clone, Copy, Debug, Default)]
pub enum TrustCopy<'a> {
    /// There is none.
    #[default]
    Absent,
    /// The agent wrote it.
    Managed(&'a SecretSummary),
    /// Somebody else did.
    Foreign,
}

/// A Secret that a gateway presents next to the managed one: which of both a client gets is not known.
#[derive(Clone, Debug)]
pub struct FurtherCertificate {
    /// Its name, in the GatewaySecret's namespace.
    pub name: String,
    /// Its chain, leaf first; `None` when that is not known.
    pub chain: Option<Vec<Certificate>>,
    /// The Certificate of cert-manager that writes it.
    pub certificate: Option<Issuance>,
}

/// A client of the agent's own.
#[derive(Clone, Debug)]
pub struct Canary {
    /// The chain that it presents, leaf first.
    pub chain: Vec<Certificate>,
    /// The Certificate of cert-manager that writes its Secret.
    pub certificate: Option<Issuance>,
}

/// A declared client.
#[derive(Clone, Debug)]
pub struct ClientState {
    /// Name of its Secret, or of what it reads.
    pub name: String,
    /// The chain that it presents, leaf first.
    pub chain: Vec<Certificate>,
    /// What it is known to trust.
    pub trust: Trust,
    /// It reads its Secret once, at start.
    pub loads_once: bool,
    /// The Certificate of cert-manager that writes the Secret.
    pub certificate: Option<Issuance>,
    /// What was issued for it and is not in its Secret: admission refuses a certificate that gateways do not verify yet.
    pub pending: Option<Pending>,
}

/// A certificate that was issued and is not delivered yet.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Its chain, leaf first.
    pub chain: Vec<Certificate>,
    /// When it was issued.
    pub at: Timestamp,
}

/// How a client's trust is known.
#[derive(Clone, Debug)]
pub enum Trust {
    /// The Secret was read.
    Read(Vec<Certificate>),
    /// The Secret was not read. It holds what the issuer wrote, and what the webhook added to it at that time.
    Issued {
        /// The issuer's CA.
        ca: Vec<Certificate>,
        /// When the certificate was issued; the Secret was written no sooner.
        at: Timestamp,
    },
}

/// A Certificate of cert-manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Issuance {
    /// Its name.
    pub name: String,
    /// Who issues it: kind, group and name, as its `issuerRef` gives them, with the namespace where the kind is namespaced.
    pub issuer: String,
    /// When what its Secret holds was issued.
    pub issued: Option<Timestamp>,
    /// When an issue failed last, if none has succeeded since (`status.lastFailureTime`).
    pub failed: Option<Timestamp>,
    /// An issue is under way.
    pub is_issuing: bool,
    /// When its owner lets it be renewed.
    pub renewal: RenewalPolicy,
}

/// What an object that may hold CAs was found to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// It does not exist.
    Absent,
    /// Its CAs, as a proxy takes them.
    Holds(Vec<Certificate>),
    /// It could not be read: why.
    Unreadable(String),
}

/// What gateways showed when they were looked at last.
#[derive(Clone, Debug, Default)]
pub struct ProbeResult {
    /// The chain that was presented to them, leaf first; empty: none was.
    pub canary: Vec<Certificate>,
    /// Every endpoint of their Service.
    pub endpoints: Vec<Endpoint>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// IP address and port.
    pub address: String,
    /// Name of the pod behind it, where that is known.
    pub pod: Option<String>,
    /// When the connection was begun: of later nothing is known.
    pub at: Timestamp,
    /// What it showed, or why it could not be looked at.
    pub shown: Result<Shown, String>,
}

impl Endpoint {
    /// As people find it.
    pub(super) fn label(&self) -> String {
        self.pod.as_ref().map_or_else(|| self.address.clone(), |pod| format!("{pod} ({})", self.address))
    }
}

/// What one of them showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// SHA-256 over the served leaf's DER, lower-case hex.
    pub leaf: String,
    /// What it made of the canary; `None` when it did not ask for one, or did not answer.
    pub canary: Option<Answer>,
}

/// An answer to the canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was let in.
    Accepted,
    /// Its certificate was refused.
    Refused,
}

impl<'a> Snapshot<'a> {
    /// The declared clients, and those who read what is distributed.
    pub(super) fn all_clients(&self) -> impl Iterator<Item = &ClientState> {
        self.clients.iter().chain(&self.bundle_readers)
    }

    /// Whether every client is known: all are declared, and none of their namespaces is closed to the agent.
    pub(super) fn knows_all_clients(&self) -> bool {
        self.entry.spec.clients.all_declared && self.unlisted_namespaces.is_empty()
    }

    /// The Secret of the CA that signs what gateways serve, with its name.
    pub(super) fn server_source(&self) -> (Option<&'a SecretSummary>, String) {
        let facts = if self.entry.resolved.ca_secret_ref.is_some() { self.ca } else { self.root };
        (facts, self.entry.server_ca_name())
    }

    /// The Secret of the CA that signs what clients present, with its name.
    pub(super) fn client_source(&self) -> (Option<&'a SecretSummary>, String) {
        match self.entry.own_client_ca_name() {
            Some(name) => (self.client_ca, name),
            None => self.server_source(),
        }
    }
}

/// The Secret when it can be relied on.
///
/// # Errors
/// Why it cannot: a sentence.
pub(super) fn usable((facts, name): (Option<&SecretSummary>, impl Display)) -> Result<&SecretSummary, String> {
    let facts = facts.ok_or_else(|| format!("Secret {name} does not exist"))?;
    match facts.denials.first() {
        Some(finding) => Err(format!("Secret {name}: {}: {}: {}", finding.rule, finding.field, finding.message)),
        None => Ok(facts),
    }
}

/// The CAs that a source stands for, each once: its bundle, or else its own certificate, where that is a CA.
pub(super) fn authorities(facts: &SecretSummary) -> Vec<Certificate> {
    if facts.anchors.is_empty() {
        return facts.chain.iter().take(1).filter(|certificate| certificate.is_ca).cloned().collect();
    }
    let mut known = BTreeSet::new();
    facts.anchors.iter().filter(|certificate| known.insert(&certificate.fingerprint)).cloned().collect()
}

/// The source that a reader goes by.
pub(super) enum Resolved<'s> {
    /// The managed Secret, or nothing that could refuse anybody.
    Follows,
    Source(&'s SourceName, &'s SourceState),
    /// None of these exists.
    Nothing(&'s [SourceName]),
    Unknowable(&'s str),
    Unlisted(&'s str),
}

pub(super) fn resolve<'s>(seen: &'s Snapshot<'_>, reader: &'s TlsReader) -> Resolved<'s> {
    let sources = match &reader.trust {
        ReaderTrust::NotVerified => return Resolved::Follows,
        ReaderTrust::Unknowable(what) => return Resolved::Unknowable(what),
        ReaderTrust::Unlisted(why) => return Resolved::Unlisted(why),
        ReaderTrust::FirstOf(sources) => sources,
    };
    let is_managed =
        |source: &SourceName| *source == SourceName::secret(&seen.entry.namespace, seen.entry.managed_name());
    let found = sources.iter().find_map(|source| match seen.sources.get(source) {
        _ if is_managed(source) => Some(Resolved::Follows),
        Some(SourceState::Absent) => None,
        Some(state) => Some(Resolved::Source(source, state)),
        None => Some(Resolved::Unknowable("a source that was not looked up")),
    });
    found.unwrap_or(Resolved::Nothing(sources))
}

/// Objects that status lists of those that gateways use beside the managed Secret.
const LISTED: usize = 32;

/// What gateways use beside the Secrets of the GatewaySecret's spec and their siblings.
pub(super) fn uses(seen: &Snapshot<'_>) -> Vec<TrustSourceUse> {
    let entry = seen.entry;
    let own = [entry.source_name(), entry.managed_name()];
    let own: Vec<_> = own.into_iter().flat_map(|name| sibling_or_self(&entry.namespace, name)).collect();
    let mut uses: Vec<TrustSourceUse> = Vec::new();
    for reader in &seen.readers {
        let sources = match &reader.trust {
            ReaderTrust::FirstOf(sources) => sources.as_slice(),
            _ => &[],
        };
        let also = reader.presents_also.iter().map(|name| SourceName::secret(&entry.namespace, name.as_str()));
        for source in sources.iter().cloned().chain(also).filter(|source| !own.contains(source)) {
            let used_by = format!("{} {}", reader.object, reader.field);
            let SourceName { kind, namespace, name } = source;
            let found = TrustSourceUse { kind: kind.name().to_owned(), namespace, name, used_by };
            let is_same = |known: &TrustSourceUse| {
                (&known.kind, &known.namespace, &known.name) == (&found.kind, &found.namespace, &found.name)
            };
            if uses.len() < LISTED && !uses.iter().any(is_same) {
                uses.push(found);
            }
        }
    }
    uses
}

pub(super) struct View<'a> {
    pub(super) seen: &'a Snapshot<'a>,
    pub(super) journal: &'a Journal,
    /// Of the policy's `changeWindows`.
    pub(super) windows: WindowState,
    pub(super) now: Timestamp,
}

impl<'a> View<'a> {
    pub(super) fn spec(&self) -> &'a GatewaySecretSpec {
        &self.seen.entry.spec
    }

    /// How carefully it is rotated.
    pub(super) fn policy(&self) -> &'a RotationPolicySpec {
        &self.seen.entry.policy
    }

    /// What gateways may still go by.
    pub(super) fn gateways_in_use(&self) -> impl Iterator<Item = &'a Version> {
        let (settle, now) = (self.policy().propagation_delays.gateways, self.now);
        self.journal.gateways.iter().filter(move |version| version.may_be_in_use(settle, now))
    }

    /// What declared clients may still go by, with their names.
    pub(super) fn clients_in_use(&self) -> impl Iterator<Item = (&'a str, &'a Version)> {
        let (settle, now) = (self.policy().propagation_delays.clients, self.now);
        let clients = self.journal.clients.iter();
        clients.flat_map(move |(name, client)| client.in_use(settle, now).map(move |version| (name.as_str(), version)))
    }

    /// A client's name, and why it counts where nobody can see that.
    pub(super) fn told(&self, name: &str) -> String {
        if self.seen.all_clients().any(|client| client.name == name) {
            return name.to_owned();
        }
        let held = self.clients_in_use().filter(|(held_by, _)| *held_by == name);
        let end = held.filter_map(|(_, version)| version.chain.first()).map(|leaf| leaf.not_after).max();
        let until = end.map_or("its certificate ends, which is not known".to_owned(), |end| end.to_string());
        format!("{name} (its Secret is not declared any more, but whoever loaded it may go on until {until})")
    }

    /// The chain in the root Secret, when it can be served.
    pub(super) fn root_chain(&self) -> Option<&'a [Certificate]> {
        let root = usable((self.seen.root, self.seen.entry.source_name())).ok()?;
        Some(root.chain.as_slice()).filter(|chain| !chain.is_empty())
    }

    /// The chain in the managed Secret, when its pair is sound: a broken bundle beside it is no reason to change the leaf, nor is its
    /// end with `onServingCertificateExpiry: Keep`.
    pub(super) fn served_chain(&self) -> Option<&'a [Certificate]> {
        let is_kept = self.policy().on_serving_certificate_expiry == OnServingCertificateExpiry::Keep;
        let is_no_reason = |finding: &Finding| {
            CA_KEYS.iter().any(|key| finding.field == field(key)) || is_kept && finding.rule == EXPIRED
        };
        let managed = self.seen.managed.filter(|managed| managed.denials.iter().all(is_no_reason))?;
        Some(managed.chain.as_slice()).filter(|chain| !chain.is_empty())
    }

    /// Whether nothing is wrong with the managed Secret but that its leaf has ended, with `onServingCertificateExpiry: Keep`.
    pub(super) fn keeps_ended_leaf(&self) -> bool {
        let is_ended = |denials: &[Finding]| !denials.is_empty() && denials.iter().all(|found| found.rule == EXPIRED);
        self.policy().on_serving_certificate_expiry == OnServingCertificateExpiry::Keep
            && self.seen.managed.is_some_and(|managed| is_ended(&managed.denials))
    }

    /// The CAs that now sign, or shall sign, what clients present.
    pub(super) fn client_issuers(&self) -> Vec<Certificate> {
        self.sound(&self.journal.client_issuers)
    }

    /// The CAs that now sign, or shall sign, what gateways serve.
    pub(super) fn server_issuers(&self) -> Vec<Certificate> {
        self.sound(&self.journal.server_issuers)
    }

    /// What the source holds, without what is distrusted, unless nothing were left.
    pub(super) fn sound(&self, issuers: &[Authority]) -> Vec<Certificate> {
        let current =
            issuers.iter().filter(|authority| authority.current).map(|authority| authority.certificate.clone());
        let (distrusted, sound): (Vec<_>, Vec<_>) =
            current.partition(|certificate| is_distrusted(certificate, &self.spec().distrusted_cas));
        if sound.is_empty() { distrusted } else { sound }
    }
}

/// The chains that gateways present next to the managed Secret's, with the name of each one's Secret.
pub(super) fn presented_also<'v>(view: &'v View<'_>) -> impl Iterator<Item = (&'v str, &'v Version)> {
    let (settle, now) = (view.policy().propagation_delays.gateways, view.now);
    let all = view.journal.presented_also.iter();
    let all = all.flat_map(|(name, versions)| versions.iter().map(move |version| (name.as_str(), version)));
    all.filter(move |(_, version)| version.may_be_in_use(settle, now))
}

/// Until when some gateway may not trust what signs; `None` when all do.
pub(super) fn unconverged(view: &View<'_>) -> Option<Option<Timestamp>> {
    let issuers = view.client_issuers();
    let lacking: Vec<_> = view.gateways_in_use().filter(|version| !holds(&version.trust, &issuers)).collect();
    let settle = view.policy().propagation_delays.gateways;
    // A content that nothing has replaced yet has no end, and neither has one that was seen in use.
    let timed = |version: &Version| version.replaced.filter(|_| version.seen.is_empty());
    let ends = lacking.iter().map(|version| timed(version).map(|at| settle.after(at)));
    (!lacking.is_empty()).then(|| ends.max_by_key(|end| end.unwrap_or(Timestamp::MAX)).flatten())
}

/// Whether what is signed now is signed by the source's CA, and accepted by all gateways.
pub(super) fn signs_current(view: &View<'_>) -> bool {
    let Ok(source) = usable(view.seen.client_source()) else { return false };
    let promoted =
        view.spec().issuer_secret_name.is_none() || view.seen.issuer.is_some_and(|issuer| issuer.chain == source.chain);
    promoted && unconverged(view).is_none()
}

/// Whether gateways with this bundle accept a client's chain.
pub(super) fn admits(trust: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    connectivity::admits(trust, chain, begun(chain, now))
}

/// Whether a client that trusts these CAs verifies a gateway's chain.
pub(super) fn verifies(trust: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    connectivity::verifies(trust, chain, begun(chain, now))
}

/// Whether a client verifies a gateway's chain, or did so at its end: whoever does not look at dates still does.
pub(super) fn verifies_to_the_end(trust: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    // For BoringSSL a certificate has ended in its last second (X509_cmp_time).
    let ends = chain.iter().map(|certificate| certificate.not_after - SignedDuration::from_secs(1));
    verifies(trust, chain, ends.fold(now, Timestamp::min))
}

/// By a clock that is behind, what is in use seems not to be valid yet. It is needed all the same.
fn begun(chain: &[Certificate], now: Timestamp) -> Timestamp {
    chain.iter().map(|certificate| certificate.not_before).fold(now, Timestamp::max)
}

/// Whether a client's leaf is of the new CA; what is not known of it is not waited for.
pub(super) fn migrated(issuers: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    chain.is_empty() || admits(issuers, chain, now)
}

/// Whether `trust` holds all of `wanted`, or what supersedes them.
pub(super) fn holds(trust: &[Certificate], wanted: &[Certificate]) -> bool {
    wanted.iter().all(|certificate| trust.iter().any(|held| held.supersedes(certificate)))
}
