//! What was written when, as far as it may still be in use: the memory of a rotation, kept in the cluster. Public
//! certificates and instants only.

mod compact;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::Period;
use crate::trust::{Certificate, bundle};

use compact::Compact;

/// Bytes from which on a journal is stored compactly. A ConfigMap holds 1 MiB.
const LARGE: usize = 512 << 10;

/// The memory of one GatewaySecret's rotations. `C` is a certificate; its fingerprint where the journal is stored.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "C: Deserialize<'de>"), default)]
pub struct Journal<C = Certificate> {
    /// The CAs whose leaves clients present, newest first.
    pub client_issuers: Vec<Authority<C>>,
    /// The CAs whose leaves gateways serve, newest first.
    pub server_issuers: Vec<Authority<C>>,
    /// What gateways were given, oldest first: the managed Secret.
    pub gateways: Vec<Version<C>>,
    /// What the status told webhooks to give to clients, oldest first; without chains.
    pub client_bundles: Vec<Version<C>>,
    /// What it is to tell next, until it is seen there: it may have been told already, by an agent that was killed then.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub offered: Vec<C>,
    /// What declared clients were given, by the name of their Secret.
    pub clients: BTreeMap<String, Client<C>>,
    /// The clients' CAs in what gateways read beside the managed Secret, oldest first, by the object that holds them.
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    pub trust_sources: BTreeMap<String, Vec<Version<C>>>,
    /// The chains that gateways present next to the managed Secret's, oldest first, by the name of their Secret.
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    pub presented_also: BTreeMap<String, Vec<Version<C>>>,
}

/// A CA that the source held.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Authority<C = Certificate> {
    /// Its certificate.
    pub certificate: C,
    /// Whether the source holds it.
    pub current: bool,
    /// When it was first seen there.
    pub since: Timestamp,
    /// When it was first seen neither there nor in the Issuer's Secret: nothing was signed with it since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired: Option<Timestamp>,
}

/// One content of a Secret: what its reader trusts and presents.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Version<C = Certificate> {
    /// The CAs.
    pub trust: Vec<C>,
    /// The chain, leaf first.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub chain: Vec<C>,
    /// It was not seen: it stands for what was there when the journal before this one was lost. `trust` is the least of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guessed: bool,
    /// When it was seen first.
    pub since: Timestamp,
    /// When another was first seen in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Timestamp>,
    /// Where it was seen on the wire after that.
    #[serde(default, skip_serializing_if = "Sightings::is_empty")]
    pub seen: Sightings,
}

/// Endpoints that were seen with a content which was replaced, and not without it since: there it is in use, whatever the
/// clock says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Sightings {
    /// They serve its leaf.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub leaf: Vec<String>,
    /// They refuse whom newer bundles admit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bundle: Vec<String>,
}

impl Sightings {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.leaf.is_empty() && self.bundle.is_empty()
    }

    /// Whether an endpoint is among them.
    pub fn contains(&self, address: &str) -> bool {
        self.leaf.iter().chain(&self.bundle).any(|seen| seen == address)
    }
}

/// A declared client.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Client<C = Certificate> {
    /// It reads its Secret once, at start, or is not known to be there any more: it goes on with what it has until its leaf ends.
    #[serde(default)]
    pub loads_once: bool,
    /// Whether gateways were changed in spite of it.
    #[serde(default, skip_serializing_if = "CutOff::is_none")]
    pub cut_off: CutOff,
    /// Its contents, oldest first.
    pub versions: Vec<Version<C>>,
}

/// What parts a client from the gateways since the managed Secret was changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct CutOff {
    /// Gateways do not trust its CA any more.
    pub refused: bool,
    /// It does not trust the CA of their new leaf.
    pub refuses: bool,
}

impl CutOff {
    /// Whether nothing does.
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
        }
    }
}

impl<C> Default for Client<C> {
    fn default() -> Self {
        Self { loads_once: false, cut_off: CutOff::default(), versions: Vec::new() }
    }
}

impl<C> Version<C> {
    /// What is seen first now.
    pub fn new(trust: Vec<C>, chain: Vec<C>, now: Timestamp) -> Self {
        Self { trust, chain, guessed: false, since: now, replaced: None, seen: Sightings::default() }
    }

    /// Whether somebody may still use it: nothing has taken its place, or not for so long, or it was seen in use.
    pub fn may_be_in_use(&self, settle: Period, now: Timestamp) -> bool {
        !self.seen.is_empty() || self.replaced.is_none_or(|replaced| now < settle.after(replaced))
    }
}

impl Version {
    /// Whether its leaf still counts for anything; one that is not known does.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.chain.first().is_none_or(|leaf| !leaf.is_expired(now))
    }
}

impl Client {
    /// The contents that the client may still use. With an expired leaf it reaches nobody, whatever it trusts.
    pub fn in_use(&self, settle: Period, now: Timestamp) -> impl Iterator<Item = &Version> {
        let in_use = move |version: &&Version| self.loads_once || version.may_be_in_use(settle, now);
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
    /// A certificate that it refers to is not in it.
    #[error("certificate {0} is missing")]
    Missing(String),
}

/// A journal as it is stored: each certificate stands once.
#[derive(Deserialize, Serialize)]
struct StoredJournal {
    certificates: BTreeMap<String, String>,
    #[serde(flatten)]
    journal: Journal<String>,
}

impl Journal {
    /// The text to store.
    pub fn to_text(&self) -> String {
        let mut certificates = BTreeMap::new();
        let journal = self.convert(&mut |certificate: &Certificate| {
            let pem = || certificate.pem();
            certificates.entry(certificate.fingerprint.clone()).or_insert_with(pem);
            Some(certificate.fingerprint.clone())
        });
        let stored = StoredJournal { certificates, journal: journal.unwrap_or_default() };
        let text = serde_json::to_string_pretty(&stored).unwrap_or_default();
        if text.len() > LARGE { self.to_compact_text() } else { text }
    }

    /// The text to store of a large journal.
    pub(super) fn to_compact_text(&self) -> String {
        serde_json::to_string(&Compact::of(self)).unwrap_or_default()
    }

    /// Reads a stored journal.
    ///
    /// # Errors
    /// When it is not one, or misses a certificate.
    pub fn from_text(text: &str) -> Result<Self, JournalError> {
        let stored: StoredJournal = match (serde_json::from_str(text), serde_json::from_str::<Compact>(text)) {
            (Ok(stored), _) => stored,
            (Err(_), Ok(compact)) => return compact.journal(),
            (Err(error), Err(_)) => return Err(error.into()),
        };
        let known: BTreeMap<_, _> =
            stored.certificates.iter().filter_map(|(fingerprint, pem)| Some((fingerprint, read(pem)?))).collect();
        let mut missing = None;
        let journal = stored.journal.convert(&mut |fingerprint: &String| {
            let found = known.get(fingerprint).cloned();
            if found.is_none() {
                missing = Some(fingerprint.clone());
            }
            found
        });
        journal.ok_or_else(|| JournalError::Missing(missing.unwrap_or_default()))
    }
}

fn read(pem: &str) -> Option<Certificate> {
    bundle::read(pem.as_bytes()).into_certificates().into_iter().next()
}

impl<C> Journal<C> {
    /// Whether gateways may still have something else than the newest content.
    pub fn is_converging(&self) -> bool {
        self.gateways.iter().any(|version| version.replaced.is_some())
    }

    /// The same with other certificates; `None` as soon as there is none for one.
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
                    Some((name.clone(), Client { loads_once: client.loads_once, cut_off: client.cut_off, versions }))
                })
                .collect::<Option<_>>()?,
            trust_sources: by_name(&self.trust_sources, f)?,
            presented_also: by_name(&self.presented_also, f)?,
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
            let (guessed, since, replaced) = (version.guessed, version.since, version.replaced);
            Some(Version { trust, chain, guessed, since, replaced, seen: version.seen.clone() })
        })
        .collect()
}
