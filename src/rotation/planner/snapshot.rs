//! What was read from the cluster for one GatewaySecret at one instant: the planner's input.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::api::AdditionalTrust;
use crate::registry::Entry;
use crate::rotation::journal::Version;
use crate::rotation::readers::{SourceName, TlsReader};
use crate::rotation::{RenewalPolicy, SecretSummary};
use crate::trust::Certificate;

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
    /// The clients, also those of other GatewaySecrets whose certificates these gateways accept. Retired ones are not declared.
    pub clients: Vec<ClientState>,
    /// The other namespaces of clients that are not found: whether they exist.
    pub namespaces: BTreeMap<String, NamespaceState>,
    /// The other GatewaySecrets of the namespace: their gateways may accept the same clients.
    pub other_gateway_secrets: Vec<&'a Entry>,
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

/// Whether a namespace exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceState {
    /// It exists, or is being deleted: pods may still run in it.
    Exists,
    /// It does not exist.
    Deleted,
    /// The API server did not say.
    Unknown,
}

/// A client.
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
    /// No workload uses it any more, as annotation `trustspan.dev/retired` says.
    pub is_retired: bool,
    /// The cert-manager Certificate that writes its Secret.
    pub certificate: Option<Issuance>,
    /// A new certificate that is not in its Secret yet: admission rejects a certificate that gateways do not accept
    /// yet.
    pub pending: Option<Pending>,
}

impl ClientState {
    /// Whether nothing is known of its certificate although it has one: cert-manager's request for it was deleted, or is not marked as its own.
    pub fn is_unknown(&self) -> bool {
        self.chain.is_empty() && self.certificate.as_ref().is_some_and(|certificate| !certificate.lacks_secret)
    }

    /// Whether its certificate has the dates of a version.
    pub(super) fn has_dates_of(&self, version: &Version) -> bool {
        let dates = version.chain.first().map(|leaf| (leaf.not_before, leaf.not_after));
        dates.is_some() && dates == self.certificate.as_ref().and_then(|certificate| certificate.validity)
    }
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
    /// How often it has failed in a row (`status.failedIssuanceAttempts`).
    pub failures: u32,
    /// Since when it is being issued, if it is (condition `Issuing`).
    pub issuing: Option<Timestamp>,
    /// The validity of the certificate in its Secret (`status.notBefore`, `status.notAfter`).
    pub validity: Option<(Timestamp, Timestamp)>,
    /// cert-manager reports that its Secret does not exist (condition `Ready`, reason `DoesNotExist`).
    pub lacks_secret: bool,
    /// Why its reissue must not be requested, and what to do: a sentence without its full stop.
    pub blocked: Option<String>,
    /// Why the API server refused the last request to reissue it, and what to do: a sentence.
    pub refused: Option<String>,
    /// When its owner allows a renewal.
    pub renewal: RenewalPolicy,
    /// Whether cert-manager renders `truststore.p12` (`spec.keystores.pkcs12`).
    pub renders_pkcs12: bool,
}

impl Issuance {
    /// Whether it is being issued now.
    pub fn is_issuing(&self) -> bool {
        self.issuing.is_some()
    }
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
    /// The CA of the certificate is not trusted, or what is trusted of it has expired.
    Untrusted,
    /// The certificate was rejected for another reason, such as its name or hash. That is no proof that its CA is trusted.
    Refused,
}
