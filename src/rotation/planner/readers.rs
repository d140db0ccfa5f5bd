//! Steps that wait for readers of trust which the managed Secret does not reach.
//!
//! A gateway may take its clients' CAs from a sibling, another Secret, a ConfigMap or a file. Clients that are re-issued by a
//! new CA are refused there until that source has it, so the steps that make them present it wait, as for clients that
//! nobody declared: until the instant at which waiting would lock the same clients out.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::expiry;
use super::record::supersede;
use super::snapshot::{CaConfigMap, Snapshot, TrustCopy};
use super::trust::holds;
use super::view::{View, verifies, verifies_to_the_end};
use crate::api::names::{ADOPT, CACERT_SUFFIX, managed_config_map_name};
use crate::api::{Mode, SourceKind, TrustSourceUse};
use crate::registry::Entry;
use crate::rotation::SecretSummary;
use crate::rotation::journal::{Authority, Journal, Version};
use crate::rotation::name_list::few;
use crate::rotation::readers::{ReaderTrust, SourceName, TlsReader, sibling_or_self};
use crate::trust::{Certificate, is_distrusted};

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

/// Why readers do not have the new CA yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderHold {
    /// One word for the condition.
    pub reason: &'static str,
    /// Which reader, what its source lacks, and what to do.
    pub message: String,
    /// When the clock alone ends it.
    pub until: Option<Timestamp>,
}

/// The source that a reader goes by.
enum Resolved<'s> {
    /// The managed Secret, or nothing that could refuse anybody.
    Follows,
    Source(&'s SourceName, &'s SourceState),
    /// None of these exists.
    Nothing(&'s [SourceName]),
    Unknowable(&'s str),
    Unlisted(&'s str),
}

fn resolve<'s>(seen: &'s Snapshot<'_>, reader: &'s TlsReader) -> Resolved<'s> {
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

/// Writes down what sources hold. One that no reader goes by any more counts until proxies have settled.
pub(super) fn record(seen: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
    let mut read = BTreeSet::new();
    // Only our own CAs matter, and a journal has no room for somebody else's thousands. A distrusted one counts for nothing from the first
    // moment on: its clients are re-issued, whatever a source still lets in.
    let counts = |authority: &Authority| {
        authority.current || !is_distrusted(&authority.certificate, &seen.entry.spec.distrusted_cas)
    };
    let issuers: Vec<_> =
        journal.client_issuers.iter().filter(|authority| counts(authority)).map(|ca| ca.certificate.clone()).collect();
    let is_ours = |held: &Certificate| issuers.iter().any(|ca| held.supersedes(ca));
    journal.trust_sources.values_mut().flatten().for_each(|version| version.trust.retain(is_ours));
    for reader in &seen.readers {
        match resolve(seen, reader) {
            Resolved::Source(source, SourceState::Holds(trust)) => {
                if !read.insert(source) {
                    continue;
                }
                let ours = trust.iter().filter(|held| is_ours(held)).cloned().collect();
                supersede(journal.trust_sources.entry(source.to_string()).or_default(), ours, Vec::new(), now);
            }
            // Proxies that run go on with what it held.
            Resolved::Source(source, _) => drop(read.insert(source)),
            Resolved::Nothing(sources) => read.extend(sources),
            Resolved::Follows | Resolved::Unknowable(_) | Resolved::Unlisted(_) => {}
        }
    }
    let names: BTreeSet<_> = read.iter().map(ToString::to_string).collect();
    retire(&mut journal.trust_sources, |name| names.contains(name), now);
    for also in &seen.presented_also {
        let versions = journal.presented_also.entry(also.name.clone()).or_default();
        if let Some(chain) = &also.chain {
            supersede(versions, Vec::new(), chain.clone(), now);
        }
    }
    retire(&mut journal.presented_also, |name| seen.presented_also.iter().any(|also| also.name == name), now);
    let gateways = seen.entry.policy.propagation_delays.gateways;
    for map in [&mut journal.trust_sources, &mut journal.presented_also] {
        map.values_mut().for_each(|versions| versions.retain(|version| version.may_be_in_use(gateways, now)));
        map.retain(|_, versions| !versions.is_empty());
    }
}

/// Ends what is not read any more.
fn retire(map: &mut BTreeMap<String, Vec<Version>>, is_read: impl Fn(&str) -> bool, now: Timestamp) {
    let gone = map.iter_mut().filter(|(name, _)| !is_read(name));
    for version in gone.flat_map(|(_, versions)| versions) {
        version.replaced.get_or_insert(now);
    }
}

/// Whether what a Secret presents is of a CA that clients trusted before, and not of the present one. One of a stranger's is neither.
pub(super) fn is_of_old(view: &View<'_>, secret: &str, chain: &[Certificate]) -> bool {
    let known: Vec<_> = view.journal.server_issuers.iter().map(|authority| authority.certificate.clone()).collect();
    let anchors = view.server_issuers();
    // One that has expired is renewed by its issuer, whichever CA it is of.
    let is_current = || verifies_to_the_end(&anchors, chain, view.now);
    !verifies(&anchors, chain, view.now)
        && (verifies(&known, chain, view.now) || (is_of_our_issuer(view, secret, &anchors) && !is_current()))
}

/// Whether a Secret's Certificate has the issuer of the source Secret's, which signs with the present CA by now. After a lost journal
/// nothing else tells of a CA that is distrusted: it is in no Secret any more.
fn is_of_our_issuer(view: &View<'_>, secret: &str, anchors: &[Certificate]) -> bool {
    let also = view.seen.presented_also.iter().find(|also| also.name == secret);
    let issuers = (also.and_then(|also| also.certificate.as_ref()), view.seen.root_certificate.as_ref());
    matches!(issuers, (Some(also), Some(root)) if also.issuer == root.issuer)
        && view.root_chain().is_some_and(|root| verifies(anchors, root, view.now))
}

/// What holds a step that has every client present a leaf of the new CA; `None` from its deadline on.
pub(super) fn hold(view: &View<'_>, deadline: Option<Timestamp>) -> Option<ReaderHold> {
    deadline.is_none_or(|at| view.now < at).then(|| of_all(view)).flatten()
}

/// The first thing that is against it, and how many readers more there are.
pub(super) fn of_all(view: &View<'_>) -> Option<ReaderHold> {
    let issuers = view.client_issuers();
    let mut holds: Vec<_> = view.seen.readers.iter().filter_map(|reader| of(view, reader, &issuers)).collect();
    holds.extend(former(view, &issuers));
    holds.dedup();
    let number = holds.len();
    // What a person has to do comes before what time does.
    let mut hold = holds.into_iter().min_by_key(|hold| hold.until)?;
    if number > 1 {
        hold.message = format!("1 of {number}: {}", hold.message);
    }
    Some(hold)
}

/// Sources that no Gateway names any more: proxies go by them until they have settled.
fn former<'v>(view: &'v View<'_>, issuers: &'v [Certificate]) -> impl Iterator<Item = ReaderHold> + 'v {
    let settle = view.policy().propagation_delays.gateways;
    let lacks = |version: &&Version| !version.trust.is_empty() && !holds(&version.trust, issuers);
    view.journal.trust_sources.iter().filter_map(move |(source, versions)| {
        // One that is still named is judged with its reader.
        let ended = versions.last().filter(|last| last.replaced.is_some())?.replaced;
        let mut in_use = versions.iter().filter(|version| version.may_be_in_use(settle, view.now));
        in_use.find(lacks)?;
        let message =
            format!("gateways may still take their clients' CAs from {source}, which no Gateway names any more");
        Some(ReaderHold { reason: "Propagating", message, until: ended.map(|at| settle.after(at)) })
    })
}

fn of(view: &View<'_>, reader: &TlsReader, issuers: &[Certificate]) -> Option<ReaderHold> {
    let TlsReader { object, field, .. } = reader;
    let entry = view.seen.entry;
    let namespace = &entry.namespace;
    let manual = |reason, message| Some(ReaderHold { reason, message, until: None });
    let (source, state) = match resolve(view.seen, reader) {
        Resolved::Follows => return None,
        Resolved::Nothing(sources) => {
            // istiod serves nothing to new proxies. Where there never was anything nobody connects, whatever is signed.
            let is_lost = |source: &&SourceName| {
                let last = view.journal.trust_sources.get(&source.to_string()).and_then(|versions| versions.last());
                last.is_some_and(|version| !version.trust.is_empty() && !holds(&version.trust, issuers))
            };
            let source = sources.iter().find(is_lost)?;
            return manual(
                "TrustSourceDeleted",
                format!(
                    "{object} ({field}) took its clients' CAs from {source}, which is deleted: gateways that run go on with what it \
                     held, without the new CA. Create it again with all CAs, or let {object} take them from another object"
                ),
            );
        }
        Resolved::Unlisted(why) => {
            return manual(
                "NotListed",
                format!(
                    "{object} cannot be listed ({why}), so whether one takes its clients' CAs from elsewhere is not known. \
                     Grant it to the agent: kubectl apply -k manifests/base"
                ),
            );
        }
        Resolved::Unknowable(what) => {
            return manual(
                "UnknownTrust",
                format!(
                    "{object} ({field}) takes its clients' CAs from {what}, whose content no object shows. Let it take them from \
                     Secret {} (credentialName without another source of CAs)",
                    entry.managed_name()
                ),
            );
        }
        Resolved::Source(source, state) => (source, state),
    };
    let is_own = |stem: &str| sibling_or_self(namespace, stem).contains(source);
    if let SourceState::Unreadable(why) = state {
        return manual(
            "UnreadableTrust",
            format!(
                "{object} ({field}) takes its clients' CAs from {source}, which the agent cannot read: {why}. Add the new CA \
                 and let the agent read it: {} --grant",
                extend(entry, source)
            ),
        );
    }
    let versions = view.journal.trust_sources.get(&source.to_string()).map(Vec::as_slice).unwrap_or_default();
    let in_use =
        || versions.iter().filter(|version| version.may_be_in_use(entry.policy.propagation_delays.gateways, view.now));
    if in_use().all(|version| version.trust.is_empty()) {
        // A server for other clients alone.
        return None;
    }
    let lacking: Vec<_> = in_use().filter(|version| !holds(&version.trust, issuers)).collect();
    if lacking.is_empty() {
        return None;
    }
    if let Some(until) = lacking.iter().map(|version| version.replaced).collect::<Option<Vec<_>>>() {
        let until = until.into_iter().max().map(|at| entry.policy.propagation_delays.gateways.after(at));
        let message = format!("{object} ({field}) may not have taken the new CA from {source} yet");
        return Some(ReaderHold { reason: "Propagating", message, until });
    }
    let trust = versions.last().map(|version| version.trust.as_slice()).unwrap_or_default();
    let lacks = few(issuers.iter().filter(|ca| !holds(trust, std::slice::from_ref(*ca))).map(|ca| ca.subject.clone()));
    let lacks = lacks.unwrap_or_default();
    let managed_sibling = SourceName::secret(namespace, format!("{}{CACERT_SUFFIX}", entry.managed_name()));
    let help = if is_own(entry.source_name()) {
        from_source(reader)
    } else if let Some(map) = of_config_map(view, source) {
        match config_map_hold(view, map) {
            Some(why) => why,
            None if source.name == map.name => from_source(reader),
            None => format!("The agent adds it, from ConfigMap {}", map.name),
        }
    } else if *source == managed_sibling {
        format!("Delete it: kubectl delete secret {} -n {namespace}", source.name)
    } else if source.kind == SourceKind::ConfigMap && source.namespace == *namespace {
        let name = &source.name;
        format!(
            "Name {name} in spec.clients.caConfigMapNames, and the agent keeps a copy; or add it: {}",
            extend(entry, source)
        )
    } else {
        format!("Add it: {}", extend(entry, source))
    };
    manual(
        "OtherTrustSource",
        format!("{object} ({field}) takes its clients' CAs from {source}, which lacks the new CA ({lacks}). {help}"),
    )
}

/// The ConfigMap of `spec.clients.caConfigMapNames` that a source is, or is kept from.
fn of_config_map<'v>(view: &'v View<'_>, source: &SourceName) -> Option<&'v CaConfigMap<'v>> {
    let is_here = source.kind == SourceKind::ConfigMap && source.namespace == view.seen.entry.namespace;
    let is_it = |map: &&CaConfigMap<'_>| source.name == map.name || source.name == managed_config_map_name(&map.name);
    view.seen.config_maps.iter().filter(|_| is_here).find(is_it)
}

fn extend(entry: &Entry, source: &SourceName) -> String {
    format!(
        "trustspan extend-trust {} -n {} --to {} --to-namespace {}",
        entry.name,
        entry.namespace,
        source.resource(),
        source.namespace
    )
}

/// What to do about a reader of the source Secret itself.
fn from_source(reader: &TlsReader) -> String {
    let TlsReader { resource, namespace, .. } = reader;
    match reader.opted_out {
        true => format!("Let it be rewritten: kubectl annotate {resource} -n {namespace} trustspan.dev/rewrite-"),
        false => "The webhook renames it once nothing holds the rename; trustspan check says what does".to_owned(),
    }
}

/// What `<managed>-cacert` is to hold: the CAs of `<source>-cacert`, with each of ours replaced by the managed bundle. So a
/// Gateway that is rewritten from one to the other lets in the same clients as before. `None`: nothing is to be written.
pub(super) fn sibling(view: &View<'_>, bundle: &[Certificate]) -> Option<Vec<Certificate>> {
    let written = match view.seen.managed_sibling {
        TrustCopy::Foreign => return None,
        TrustCopy::Absent => None,
        TrustCopy::Managed(facts) => Some(facts),
    };
    let source = view.seen.source_sibling;
    let wanted = match source {
        // istiod takes the bundle of the Secret itself where there is no sibling.
        None => written.map(|_| bundle.to_vec())?,
        Some(source) => with_overlap(view, &source.anchors, bundle),
    };
    let revocation = source.and_then(|source| source.revocation.as_ref());
    let stands = |written: &SecretSummary| {
        written.anchors == wanted && (source.is_none() || written.revocation.as_ref() == revocation)
    };
    (!wanted.is_empty() && !written.is_some_and(stands)).then_some(wanted)
}

fn is_ours(view: &View<'_>, ca: &Certificate) -> bool {
    view.journal.client_issuers.iter().any(|authority| ca.supersedes(&authority.certificate))
}

/// CAs, with those of ours replaced by the managed bundle.
fn with_overlap(view: &View<'_>, held: &[Certificate], bundle: &[Certificate]) -> Vec<Certificate> {
    let at = held.iter().position(|ca| is_ours(view, ca));
    let mut trust: Vec<_> = held.iter().filter(|ca| !is_ours(view, ca)).cloned().collect();
    if let Some(at) = at {
        trust.splice(at..at, bundle.iter().cloned());
    }
    trust
}

/// What the ConfigMap is to hold that is kept from one of `spec.clients.caConfigMapNames`. `None`: nothing is to be written.
pub(super) fn config_map(view: &View<'_>, map: &CaConfigMap<'_>, bundle: &[Certificate]) -> Option<Vec<Certificate>> {
    let written = match map.managed {
        TrustCopy::Foreign => return None,
        TrustCopy::Absent => None,
        TrustCopy::Managed(facts) => Some(facts),
    };
    let bundle = match view.spec().mode {
        Mode::Bundle => bundle,
        // Once the managed Secret is the copy that it is to be.
        Mode::Copy => {
            let [root, managed] = [view.seen.root?, view.seen.managed?].map(|facts| facts.anchors.as_slice());
            (root == managed).then_some(managed)?
        }
    };
    // What is kept outlives its source: gateways name it.
    let source = config_map_trouble(view, map).is_none().then_some(map.source).flatten().or(written)?;
    let wanted = with_overlap(view, &source.anchors, bundle);
    let stands = |written: &SecretSummary| written.anchors == wanted && written.revocation == source.revocation;
    (!bundle.is_empty() && !wanted.is_empty() && !written.is_some_and(stands)).then_some(wanted)
}

/// Why nothing is taken over from one of `spec.clients.caConfigMapNames`: what is kept from it holds on to the CAs of others that it has.
fn config_map_trouble(view: &View<'_>, map: &CaConfigMap<'_>) -> Option<String> {
    let Some(source) = map.source else { return Some("does not exist".to_owned()) };
    if let Some(finding) = source.denials.first() {
        return Some(format!("is not used: {}: {}: {}", finding.rule, finding.field, finding.message));
    }
    if source.anchors.is_empty() {
        return Some("holds no CA".to_owned());
    }
    let has_ours = |facts: &SecretSummary| facts.anchors.iter().any(|ca| is_ours(view, ca));
    match map.managed {
        TrustCopy::Managed(written) if has_ours(written) && !has_ours(source) => Some(format!(
            "holds none of the CAs any more that sign the clients' certificates, and ConfigMap {managed} keeps them: add one, or, if \
             these clients are to be refused, let the Gateway take its clients' CAs from another ConfigMap",
            managed = managed_config_map_name(&map.name)
        )),
        _ => None,
    }
}

/// What a person has to do about one of `spec.clients.caConfigMapNames`.
pub(super) fn config_map_hold(view: &View<'_>, map: &CaConfigMap<'_>) -> Option<String> {
    if matches!(map.managed, TrustCopy::Foreign) {
        let managed = managed_config_map_name(&map.name);
        return Some(format!(
            "ConfigMap {managed} is not the agent's. Delete it, or let the agent have it: kubectl annotate configmap {managed} \
             -n {} {ADOPT}=true",
            view.seen.entry.namespace
        ));
    }
    config_map_trouble(view, map).map(|why| format!("ConfigMap {} {why}", map.name))
}

/// Why `<managed>-cacert` is not made: a server whose owner named the managed Secret would let in the clients of strangers.
pub(super) fn sibling_hold(view: &View<'_>) -> Option<String> {
    let named = view.seen.readers.iter().filter(|reader| reader.names_managed);
    let named = few(named.map(|reader| reader.object.clone()))?;
    let entry = view.seen.entry;
    Some(format!(
        "{named} names Secret {managed} itself, and would let in the clients of every CA in Secret {source}{CACERT_SUFFIX}. \
         Name Secret {source} there, or set caCertCredentialName",
        managed = entry.managed_name(),
        source = entry.source_name()
    ))
}

/// Readers that present the source Secret's certificate the moment it is re-issued.
pub(super) fn of_source(view: &View<'_>) -> Option<String> {
    let direct = view.seen.readers.iter().filter(|reader| reader.presents_source);
    let named = few(direct.clone().map(|reader| reader.object.clone()))?;
    let help = direct.clone().next().map(from_source)?;
    Some(format!("{named} presents Secret {} itself. {help}", view.seen.entry.source_name()))
}

/// A server that names a client's certificate, or its key: another is refused there.
pub(super) struct Pin<'v> {
    pub(super) reader: &'v TlsReader,
    /// When the client is re-issued all the same.
    pub(super) until: Option<Timestamp>,
}

/// What pins a client, until shortly before the end of a CA by which it connects.
pub(super) fn pin<'v>(view: &View<'v>, held: &Version) -> Option<Pin<'v>> {
    let leaf = held.chain.first()?;
    let is_pin = |pin: &String| is_same_hash(pin, &leaf.fingerprint) || is_same_hash(pin, &leaf.public_key_hash());
    let reader = view.seen.readers.iter().find(|reader| reader.pins.iter().any(is_pin))?;
    let until = expiry::of_client(view, held);
    until.is_none_or(|at| view.now < at).then_some(Pin { reader, until })
}

/// Envoy takes hashes of certificates in hex, with colons or without, and those of keys in base64.
fn is_same_hash(pin: &str, hex: &str) -> bool {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let digits: String = pin.chars().filter(|c| *c != ':').collect();
    let decoded =
        || STANDARD.decode(pin).ok().map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    digits.eq_ignore_ascii_case(hex) || decoded().is_some_and(|decoded| decoded == hex)
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

/// The chains that gateways present next to the managed Secret's, with the name of each one's Secret.
pub(super) fn presented_also<'v>(view: &'v View<'_>) -> impl Iterator<Item = (&'v str, &'v Version)> {
    let (settle, now) = (view.policy().propagation_delays.gateways, view.now);
    let all = view.journal.presented_also.iter();
    let all = all.flat_map(|(name, versions)| versions.iter().map(move |version| (name.as_str(), version)));
    all.filter(move |(_, version)| version.may_be_in_use(settle, now))
}
