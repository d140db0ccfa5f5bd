//! What is seen of one GatewaySecret's world at one instant.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use jiff::Timestamp;

use super::probe::ProbeResult;
use super::readers::SourceState;
use crate::registry::Entry;
use crate::rotation::readers::{SourceName, TlsReader};
use crate::rotation::{RenewalPolicy, SecretSummary};
use crate::trust::Certificate;

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
