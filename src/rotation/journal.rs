//! The journal of a GatewaySecret's rotations, which is stored in the cluster: what was written when, as long as it may be in use. It has
//! public certificates and timestamps only.

mod stored;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::{Period, PropagationDelays};
use crate::trust::Certificate;

use stored::StoredJournal;

/// The journal of one GatewaySecret. `C` is a certificate, or in the stored form its number.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "C: Deserialize<'de>"), default)]
pub struct Journal<C = Certificate> {
    /// The CAs that sign client certificates, newest first.
    pub client_issuers: Vec<Authority<C>>,
    /// The CAs that sign serving certificates, newest first.
    pub server_issuers: Vec<Authority<C>>,
    /// The contents of the managed Secret, oldest first.
    pub gateways: Vec<Version<C>>,
    /// The clients' bundles that status published to the webhooks, oldest first; without chains.
    pub client_bundles: Vec<Version<C>>,
    /// The clients' bundle that is published next, until the stored status has it. An agent that was killed may have
    /// published it already.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub offered: Vec<C>,
    /// The contents of declared clients' Secrets, by name.
    pub clients: BTreeMap<String, Client<C>>,
    /// The CAs for clients in other objects that gateways use, oldest version first, by object.
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    pub trust_sources: BTreeMap<String, Vec<Version<C>>>,
    /// Certificates of `spec.distrustedCAs` that were seen.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub distrusted: Vec<C>,
    /// The propagation delays in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delays: Option<DelaysInForce>,
    /// The chains that gateways present in addition to the managed Secret's, oldest version first, by the name of their
    /// Secret.
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    pub presented_also: BTreeMap<String, Vec<Version<C>>>,
    /// Other namespaces of clients that do not exist, and since when that is known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub deleted_namespaces: BTreeMap<String, Timestamp>,
}

/// The propagation delays of the policy. Those of a policy object that does not exist any more stay for as long as the longest of them: an
/// object that is replaced does not exist for a moment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DelaysInForce {
    /// The delays.
    pub delays: PropagationDelays,
    /// The number of policy objects that they are from.
    pub objects: usize,
    /// Since when fewer objects exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fewer_since: Option<Timestamp>,
}

/// A CA that the source Secret, or the Secret of a CA, holds or held.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Authority<C = Certificate> {
    /// Its certificate.
    pub certificate: C,
    /// Whether that Secret still holds it.
    pub current: bool,
    /// When it was first observed there.
    pub since: Timestamp,
    /// When it was first found neither in that Secret nor in the Issuer's Secret. It has signed nothing since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired: Option<Timestamp>,
}

/// A version of a Secret's content: what its reader trusts and presents.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Version<C = Certificate> {
    /// The CAs.
    pub trust: Vec<C>,
    /// The chain, leaf first.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<C>,
    /// Whether it was not observed, but assumed after a journal was lost. `trust` then has the CAs that it contained at
    /// least.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guessed: bool,
    /// No gateway uses it, as far as was seen. It stays in the journal until the rotation is over: a gateway that starts behind an outdated
    /// control plane has it again, and a probe shows that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
    /// When its certificate expires, if its chain is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<Timestamp>,
    /// When it was first observed.
    pub since: Timestamp,
    /// When the next version was first observed. `None` for the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Timestamp>,
    /// Where a probe has found this version after that.
    #[serde(default, skip_serializing_if = "Sightings::is_empty")]
    pub seen: Sightings,
}

/// Which endpoints, TrustConsumers and MirroredFiles are known to use a replaced version. They use it even after the propagation
/// delay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Sightings {
    /// Endpoints that presented its certificate, and have presented no other since.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub leaf: Vec<String>,
    /// Endpoints that rejected a canary which newer bundles accept, and have not accepted it since.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bundle: Vec<String>,
    /// TrustConsumers with workloads that may not have loaded a later version, and MirroredFiles that have not reported one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub consumers: Vec<String>,
}

impl Sightings {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.leaf.is_empty() && self.bundle.is_empty() && self.consumers.is_empty()
    }

    /// Whether an endpoint is among them.
    pub fn has_endpoint(&self, address: &str) -> bool {
        self.leaf.iter().chain(&self.bundle).any(|seen| seen == address)
    }
}

/// A declared client.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Client<C = Certificate> {
    /// Whether it reads its Secret only at startup, or is no longer declared. It may then use a version until its
    /// certificate expires.
    #[serde(default)]
    pub loads_once: bool,
    /// Whether `spec.clients.secretNames` listed it when its Secret was seen last, and that Secret did not exist. If the list then no longer has it,
    /// the client is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_absent: bool,
    /// Whether its Secret had annotation `trustspan.dev/retired: "true"` when it was seen last: no workload uses it any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_retired: bool,
    /// Whether a change of the managed Secret has cut it off.
    #[serde(default, skip_serializing_if = "CutOff::is_none")]
    pub cut_off: CutOff,
    /// The versions of its Secret, oldest first.
    pub versions: Vec<Version<C>>,
}

/// Why a client cannot connect since the managed Secret changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct CutOff {
    /// Gateways do not trust its CA any more.
    pub refused: bool,
    /// The client does not trust the CA of the new serving certificate.
    pub refuses: bool,
}

impl CutOff {
    /// Whether the client can connect.
    pub fn is_none(&self) -> bool {
        !self.refused && !self.refuses
    }
}

impl<C> Default for Journal<C> {
    fn default() -> Self {
        Self {
            client_issuers: Vec::new(),
            server_issuers: Vec::new(),
            gateways: Vec::new(),
            client_bundles: Vec::new(),
            offered: Vec::new(),
            clients: BTreeMap::new(),
            trust_sources: BTreeMap::new(),
            presented_also: BTreeMap::new(),
            deleted_namespaces: BTreeMap::new(),
            distrusted: Vec::new(),
            delays: None,
        }
    }
}

impl<C> Default for Client<C> {
    fn default() -> Self {
        Self {
            loads_once: false,
            is_absent: false,
            is_retired: false,
            cut_off: CutOff::default(),
            versions: Vec::new(),
        }
    }
}

impl<C> Version<C> {
    /// A version that is first observed now.
    pub fn new(trust: Vec<C>, chain: Vec<C>, now: Timestamp) -> Self {
        Self {
            trust,
            chain,
            guessed: false,
            over: false,
            ends: None,
            since: now,
            replaced: None,
            seen: Sightings::default(),
        }
    }

    /// Whether it may be in use: it was not replaced, or only recently, or a probe has found it in use.
    pub fn may_be_in_use(&self, delay: Period, now: Timestamp) -> bool {
        !self.seen.is_empty() || !self.over && self.replaced.is_none_or(|replaced| now < delay.after(replaced))
    }
}

impl Version {
    /// A version of a client's Secret of which at most the end of its certificate is known.
    pub fn unknown(ends: Option<Timestamp>, now: Timestamp) -> Self {
        Self { guessed: true, ends, ..Self::new(Vec::new(), Vec::new(), now) }
    }

    /// Whether nothing is known of it.
    pub fn is_unknown(&self) -> bool {
        self.guessed && self.chain.is_empty() && self.trust.is_empty()
    }

    /// Whether its certificate is not expired, or unknown.
    pub fn is_live(&self, now: Timestamp) -> bool {
        match self.chain.first() {
            Some(leaf) => !leaf.is_expired(now),
            None => self.ends.is_none_or(|end| now < end),
        }
    }
}

impl Client {
    /// The versions that the client may use. With an expired certificate it cannot connect, whatever it trusts.
    pub fn in_use(&self, delay: Period, now: Timestamp) -> impl Iterator<Item = &Version> {
        let in_use = move |version: &&Version| self.loads_once || version.may_be_in_use(delay, now);
        self.versions.iter().filter(in_use).filter(move |version| version.is_live(now))
    }

    /// Its newest content.
    pub fn newest(&self) -> Option<&Version> {
        self.versions.last()
    }
}

impl Journal {
    /// The newest content of a client.
    pub fn newest_of(&self, client: &str) -> Option<&Version> {
        self.clients.get(client).and_then(Client::newest)
    }
}

/// Why a stored journal cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// It is not the JSON of a journal.
    #[error("not a journal: {0}")]
    Json(#[from] serde_json::Error),
    /// A certificate that it refers to is missing.
    #[error("certificate {0} is missing")]
    Missing(usize),
}

impl Journal {
    /// The journal as text, to be stored.
    pub fn to_text(&self) -> String {
        serde_json::to_string(&StoredJournal::of(self)).unwrap_or_default()
    }

    /// Reads a stored journal.
    ///
    /// # Errors
    /// When it is no journal, or a certificate is missing.
    pub fn from_text(text: &str) -> Result<Self, JournalError> {
        serde_json::from_str::<StoredJournal>(text)?.journal()
    }
}

impl<C> Journal<C> {
    /// Whether gateways may use another version than the newest, or a gateway that starts may.
    pub fn is_converging(&self) -> bool {
        self.gateways.iter().any(|version| version.replaced.is_some())
    }

    /// Whether no gateway uses another version than the newest, as far as was seen.
    pub fn is_converged(&self) -> bool {
        self.gateways.iter().all(|version| version.replaced.is_none() || version.over)
    }

    /// The journal with each certificate converted by `f`. `None` if `f` returns `None` for one.
    fn convert<D>(&self, f: &mut impl FnMut(&C) -> Option<D>) -> Option<Journal<D>> {
        Some(Journal {
            client_issuers: authorities(&self.client_issuers, f)?,
            server_issuers: authorities(&self.server_issuers, f)?,
            gateways: versions(&self.gateways, f)?,
            client_bundles: versions(&self.client_bundles, f)?,
            offered: self.offered.iter().map(&mut *f).collect::<Option<_>>()?,
            clients: self
                .clients
                .iter()
                .map(|(name, client)| {
                    let versions = versions(&client.versions, f)?;
                    let Client { loads_once, is_absent, is_retired, cut_off, .. } = *client;
                    Some((name.clone(), Client { loads_once, is_absent, is_retired, cut_off, versions }))
                })
                .collect::<Option<_>>()?,
            trust_sources: by_name(&self.trust_sources, f)?,
            presented_also: by_name(&self.presented_also, f)?,
            deleted_namespaces: self.deleted_namespaces.clone(),
            distrusted: self.distrusted.iter().map(&mut *f).collect::<Option<_>>()?,
            delays: self.delays.clone(),
        })
    }
}

fn by_name<C, D>(
    map: &BTreeMap<String, Vec<Version<C>>>,
    f: &mut impl FnMut(&C) -> Option<D>,
) -> Option<BTreeMap<String, Vec<Version<D>>>> {
    map.iter().map(|(name, list)| Some((name.clone(), versions(list, f)?))).collect()
}

fn authorities<C, D>(list: &[Authority<C>], f: &mut impl FnMut(&C) -> Option<D>) -> Option<Vec<Authority<D>>> {
    list.iter()
        .map(|a| {
            Some(Authority { certificate: f(&a.certificate)?, current: a.current, since: a.since, retired: a.retired })
        })
        .collect()
}

fn versions<C, D>(list: &[Version<C>], f: &mut impl FnMut(&C) -> Option<D>) -> Option<Vec<Version<D>>> {
    list.iter()
        .map(|version| {
            let trust = version.trust.iter().map(&mut *f).collect::<Option<_>>()?;
            let chain = version.chain.iter().map(&mut *f).collect::<Option<_>>()?;
            let Version { guessed, over, ends, since, replaced, .. } = *version;
            Some(Version { trust, chain, guessed, over, ends, since, replaced, seen: version.seen.clone() })
        })
        .collect()
}
