//! What steps wait for: a pause, a closed window, clients that do not trust the new CA, and readers of trust which the managed Secret
//! does not reach. And what no wait outlives: the end of a CA that something live still goes by.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::bundles::{config_map_trouble, is_unordered, orders};
use super::snapshot::{
    CaConfigMap, ClientState, Issuance, Resolved, Snapshot, SourceState, TrustCopy, View, admits, holds, resolve,
    verifies, verifies_to_the_end,
};
use crate::api::names::{ADOPT, CACERT_SUFFIX, managed_config_map_name};
use crate::api::{OnServingCertificateExpiry, SourceKind, StepName, Wait, WindowState};
use crate::registry::Entry;
use crate::rotation::journal::{Authority, Version};
use crate::rotation::name_list::few;
use crate::rotation::readers::{SourceName, TlsReader, sibling_or_self};
use crate::trust::Certificate;

/// What holds back every step that takes something away from anybody.
pub(in crate::rotation) struct Pause {
    /// When time alone ends it.
    pub(super) until: Option<Timestamp>,
    pub(in crate::rotation) reason: String,
}

impl Pause {
    /// `spec.paused`, or a time outside the policy's `changeWindows`, of which `windows` is the state.
    pub(in crate::rotation) fn of(entry: &Entry, windows: WindowState) -> Option<Self> {
        if entry.spec.paused {
            return Some(Self { until: None, reason: "spec.paused is set".to_owned() });
        }
        let change_windows = &entry.policy.change_windows;
        if windows.is_open || change_windows.is_empty() {
            return None;
        }
        let reason = match (windows.until, change_windows.iter().find_map(|window| window.zone().err())) {
            (None, Some(unknown)) => format!("no change window of the RotationPolicy ever opens: {unknown}"),
            _ => "no change window of the RotationPolicy is open".to_owned(),
        };
        Some(Self { until: windows.until, reason })
    }
}

impl View<'_> {
    /// `spec.paused`, or a time outside the policy's `changeWindows`.
    pub(super) fn pause(&self) -> Option<Pause> {
        Pause::of(self.seen.entry, self.windows)
    }

    /// The same, for a step that has to be taken at a deadline.
    pub(super) fn pause_until(&self, deadline: Option<Timestamp>) -> Option<Pause> {
        let pause = self.pause().filter(|_| deadline.is_none_or(|at| self.now < at))?;
        Some(Pause { until: pause.until.into_iter().chain(deadline).min(), ..pause })
    }

    /// What holds back the re-issue of a Certificate that has to be made at a deadline: the same, or the Certificate's own
    /// `spec.renewal`, which cert-manager does not apply to an issue that is asked for.
    pub(super) fn reissue_pause(&self, certificate: Option<&Issuance>, deadline: Option<Timestamp>) -> Option<Pause> {
        self.pause_until(deadline).or_else(|| self.renewal_pause(certificate?, deadline))
    }

    fn renewal_pause(&self, certificate: &Issuance, deadline: Option<Timestamp>) -> Option<Pause> {
        // One that is under way is its owner's wish.
        let is_open = certificate.is_issuing || deadline.is_some_and(|at| self.now >= at);
        let hold = certificate.renewal.hold(self.now).filter(|_| !is_open)?;
        let name = &certificate.name;
        let renew = match name.split_once('/') {
            Some((namespace, name)) => format!("cmctl renew {name} -n {namespace}"),
            None => format!("cmctl renew {name}"),
        };
        let advice = match deadline {
            Some(at) => format!(
                "Renew it ({renew}) before {at}: then it is re-issued all the same, since a CA that it depends on ends"
            ),
            None => format!("Renew it: {renew}"),
        };
        let reason = format!("Certificate {name}: {}. {advice}", hold.reason);
        Some(Pause { until: hold.until.into_iter().chain(deadline).min(), reason })
    }

    /// What holds back the re-issue of a client's Certificate.
    pub(super) fn client_pause(&self, client: &ClientState) -> Option<Pause> {
        let is_held = |certificate: &Issuance| !certificate.is_issuing && certificate.renewal.hold(self.now).is_some();
        // Deadlines cost signatures to be verified.
        if self.pause().is_none() && !client.certificate.as_ref().is_some_and(is_held) {
            return None;
        }
        let held = self.journal.clients.get(&client.name).and_then(|known| known.newest());
        self.reissue_pause(client.certificate.as_ref(), held.and_then(|held| client_deadline(self, held)))
    }
}

/// Waits of a status for each reason that re-issues are held for.
const REASONS: usize = 3;

/// The waits of a step for what holds it: the first of each reason, those that end first, and how many more there are.
pub(super) fn pause_waits(step: StepName, mut pauses: Vec<Pause>) -> Vec<Wait> {
    pauses.sort_by_key(|pause| pause.until.unwrap_or(Timestamp::MAX));
    let mut reasons = BTreeSet::new();
    pauses.retain(|pause| reasons.insert(pause.reason.clone()));
    let more = pauses.len().saturating_sub(REASONS);
    let mut waits: Vec<_> =
        pauses.into_iter().take(REASONS).map(|pause| Wait { step, until: pause.until, reason: pause.reason }).collect();
    if let Some(last) = waits.last_mut().filter(|_| more > 0) {
        let noun = if more == 1 { "Certificate" } else { "Certificates" };
        last.reason += &format!(". {more} more {noun} may not be renewed now");
    }
    waits
}

/// By when the Issuer is to sign with the new CA: before the one ends that it signs with.
pub(super) fn issuer_deadline(view: &View<'_>) -> Option<Timestamp> {
    let signing = view.seen.issuer.and_then(|issuer| issuer.chain.first())?;
    Some(deadline_before(view, signing.not_after))
}

/// By when a client is to be re-issued: before the CA of its leaf ends, or the one by which it verifies gateways.
pub(super) fn client_deadline(view: &View<'_>, held: &Version) -> Option<Timestamp> {
    let leaf = last_end(&view.journal.client_issuers, |ca| admits(ca, &held.chain, view.now));
    let served = view.served_chain().unwrap_or_default();
    let trusted = |ca: &[Certificate]| held.trust.contains(&ca[0]) && verifies(ca, served, view.now);
    let gateways = last_end(&view.journal.server_issuers, trusted);
    leaf.into_iter().chain(gateways).min().map(|end| deadline_before(view, end))
}

/// By when the root is to be re-issued: before the CA of its leaf ends.
pub(super) fn source_deadline(view: &View<'_>, root: &[Certificate]) -> Option<Timestamp> {
    last_end(&view.journal.server_issuers, |ca| verifies(ca, root, view.now)).map(|end| deadline_before(view, end))
}

/// When clients stop to verify what gateways serve: at the end of the leaf, or of the CA behind it.
pub(super) fn end_of_served(view: &View<'_>, served: &[Certificate]) -> Option<Timestamp> {
    let leaf = served.first()?.not_after;
    let ca = last_end(&view.journal.server_issuers, |ca| verifies(ca, served, view.now));
    Some(ca.map_or(leaf, |ca| ca.min(leaf)))
}

/// The end of the CA that lasts longest of those that alone suffice.
fn last_end(issuers: &[Authority], suffices: impl Fn(&[Certificate]) -> bool) -> Option<Timestamp> {
    let certificates = issuers.iter().map(|authority| &authority.certificate);
    certificates.filter(|ca| suffices(std::slice::from_ref(*ca))).map(|ca| ca.not_after).max()
}

/// Before an end, twice the time that all the steps up to it take.
fn deadline_before(view: &View<'_>, end: Timestamp) -> Timestamp {
    let settle = &view.policy().propagation_delays;
    let hops = [settle.gateways, settle.admission, settle.clients].map(|hop| hop.duration());
    let once = hops.into_iter().fold(jiff::SignedDuration::ZERO, jiff::SignedDuration::saturating_add);
    end.saturating_sub(once.saturating_mul(2)).unwrap_or(Timestamp::MIN)
}

/// Clients that hold the change of the gateways' leaf, and what becomes of them at its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafHold {
    /// The declared clients, for people; `None`: there may be some that are not declared.
    pub clients: Option<String>,
    /// When the leaf ends that gateways serve, or the CA behind it.
    pub end: Timestamp,
    /// When the gateways serve a new one all the same; `None`: not at all (`onServingCertificateExpiry: Keep`).
    pub switch: Option<Timestamp>,
}

impl LeafHold {
    pub(super) fn of(view: &View<'_>, served: &[Certificate], clients: Option<String>) -> Option<Self> {
        let end = end_of_served(view, served)?;
        Some(Self { clients, end, switch: switch_deadline(view, served).filter(|_| !keeps(view)) })
    }
}

fn keeps(view: &View<'_>) -> bool {
    view.policy().on_serving_certificate_expiry == OnServingCertificateExpiry::Keep
}

/// Shortly before the end of the old leaf: after it nobody verifies that one either.
fn switch_deadline(view: &View<'_>, served: &[Certificate]) -> Option<Timestamp> {
    let margin = view.policy().propagation_delays.gateways.duration().saturating_mul(2);
    end_of_served(view, served).map(|end| end.saturating_sub(margin).unwrap_or(view.now))
}

/// Why the gateways must not serve what a pause or a closed window holds back. Neither is worth an expired leaf.
pub(super) fn switch_pause(view: &View<'_>, served: &[Certificate]) -> Option<Wait> {
    view.pause().and_then(|pause| switch_wait(view, switch_deadline(view, served), pause.until, pause.reason))
}

/// Why gateways must not serve another leaf in the place of `served` yet, and the clients that do not follow. `verifies_next`: whether
/// who trusts these CAs verifies the other.
pub(super) fn switch_blocker(
    view: &View<'_>,
    served: &[Certificate],
    verifies_next: impl Fn(&[Certificate]) -> bool,
) -> (Option<Wait>, Option<LeafHold>) {
    let now = view.now;
    let breaks = |trust: &[Certificate]| verifies_to_the_end(trust, served, now) && !verifies_next(trust);
    let lags = |name: &str, trust: &[Certificate]| {
        breaks(trust) || is_unordered(view, name) && orders(trust).any(|order| breaks(&order))
    };
    let lagging =
        few(view.clients_in_use().filter(|(name, held)| lags(name, &held.trust)).map(|(name, _)| view.told(name)));
    let before: Vec<_> = view.journal.server_issuers.iter().map(|authority| authority.certificate.clone()).collect();
    let sufficed = |ca: &Certificate| verifies_to_the_end(std::slice::from_ref(ca), served, now);
    let sufficed: Vec<_> = before.into_iter().filter(sufficed).collect();
    let others = breaks(&sufficed);
    let since = view.journal.server_issuers.iter().filter(|a| a.current).map(|a| a.since).max().unwrap_or(now);
    let overlap = view.policy().propagation_delays.minimum_overlap.after(since);
    let of = |clients| LeafHold::of(view, served, clients);
    let (why, hold_by) = match lagging {
        Some(names) => {
            let reason = format!("clients that may not trust the new leaf's CA yet: {names}");
            (Some((None, reason)), of(Some(names)))
        }
        None if others && !view.seen.knows_all_clients() => {
            let reason = unlisted_clients(view.seen).unwrap_or_else(|| {
                "there may be clients that are not declared: declare all, and say so with spec.clients.allDeclared"
                    .to_owned()
            });
            (Some((None, reason)), of(None))
        }
        None if others && now < overlap => {
            (Some((Some(overlap), "propagationDelays.minimumOverlap is not over".to_owned())), None)
        }
        None => (None, None),
    };
    let last = switch_deadline(view, served).filter(|_| !keeps(view));
    let held =
        switch_pause(view, served).or_else(|| why.and_then(|(until, reason)| switch_wait(view, last, until, reason)));
    let hold = hold_by.filter(|_| held.is_some());
    (held, hold)
}

/// A wait for the change of the leaf, until the deadline at the latest.
fn switch_wait(view: &View<'_>, deadline: Option<Timestamp>, until: Option<Timestamp>, reason: String) -> Option<Wait> {
    let until = until.into_iter().chain(deadline).min();
    deadline.is_none_or(|at| view.now < at).then(|| Wait { step: StepName::SwitchServingCertificate, until, reason })
}

/// Namespaces of clients that the agent may not see, and what to do: a sentence.
pub(super) fn unlisted_clients(seen: &Snapshot<'_>) -> Option<String> {
    let names = few(seen.unlisted_namespaces.iter().cloned())?;
    Some(format!(
        "cannot list Certificates in {names} (spec.clients.namespaces), so clients there are unknown. Apply the output of trustspan rbac"
    ))
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

/// Clients that are not known to trust all of these CAs, for people.
pub(super) fn without(view: &View<'_>, anchors: &[Certificate]) -> Option<String> {
    let lacks = |held: &Version| !holds(&held.trust, anchors);
    few(view.clients_in_use().filter(|(_, held)| lacks(held)).map(|(name, _)| view.told(name)))
}

pub(super) fn lacking(names: &str) -> String {
    format!("clients that may not trust the new CA yet: {names}")
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

/// What holds a step that has every client present a leaf of the new CA; `None` from its deadline on.
pub(super) fn readers_until(view: &View<'_>, deadline: Option<Timestamp>) -> Option<ReaderHold> {
    deadline.is_none_or(|at| view.now < at).then(|| of_readers(view)).flatten()
}

/// The first thing that is against it, and how many readers more there are.
pub(super) fn of_readers(view: &View<'_>) -> Option<ReaderHold> {
    let issuers = view.client_issuers();
    let mut holds: Vec<_> = view.seen.readers.iter().filter_map(|reader| of_reader(view, reader, &issuers)).collect();
    holds.extend(of_former(view, &issuers));
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
fn of_former<'v>(view: &'v View<'_>, issuers: &'v [Certificate]) -> impl Iterator<Item = ReaderHold> + 'v {
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

fn of_reader(view: &View<'_>, reader: &TlsReader, issuers: &[Certificate]) -> Option<ReaderHold> {
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
                extend_command(entry, source)
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
            extend_command(entry, source)
        )
    } else {
        format!("Add it: {}", extend_command(entry, source))
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

fn extend_command(entry: &Entry, source: &SourceName) -> String {
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
    let until = client_deadline(view, held);
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
