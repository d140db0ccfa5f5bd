//! What a step waits for: a pause, a closed window, clients that do not trust the new CA, and gateways that take their
//! clients' CAs from another object than the managed Secret.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::bundles::{config_map_fault, served_chains};
use super::clients::{clients_that, needs_restart, restart_help};
use super::deadlines::{client_deadline, deadline, end_of_serving, is_ahead, switch_deadline};
use super::deleted;
use super::history::{ReaderSource, View, holds, verifies_to_the_end};
use super::pause::{Pause, command_for};
use super::shared_clients::{GatewaysBehind, gateways_behind};
use super::snapshot::{CaConfigMap, ClientState, Issuance, SourceState, TrustCopy};
use crate::api::names::{ADOPT, CACERT_SUFFIX, managed_config_map_name};
use crate::api::{SourceKind, StepName, TrustBundleTarget, Wait};
use crate::registry::Entry;
use crate::rotation::journal::Version;
use crate::rotation::name_list::few;
use crate::rotation::readers::{SourceName, TlsReader, is_among, sibling_or_self};
use crate::trust::Certificate;

/// The command with which a person renews a Certificate.
const RENEW: &str = "cmctl renew";

/// Why a gateway does not have the new CA yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustSourceBlocker {
    /// Reason of the condition.
    pub reason: &'static str,
    /// Which gateway, what its source of CAs lacks, and what to do.
    pub message: String,
    /// When it ends without a person.
    pub until: Option<Timestamp>,
    /// Whether a person has to act.
    pub needs_action: bool,
}

/// Clients that block the switch of the serving certificate, and what happens at its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchBlocker {
    /// The declared clients, as text; `None` if undeclared clients may exist.
    pub clients: Option<String>,
    /// When the certificate that gateways serve expires, or its CA.
    pub end: Timestamp,
    /// When gateways switch to the new one regardless of clients.
    pub switch: Timestamp,
}

/// What blocks more than one step, computed once.
pub(super) struct Blockers<'a> {
    view: &'a View<'a>,
    pub(super) pause: Option<Pause>,
    /// The first gateway that lacks the new CA.
    pub(super) readers: Option<TrustSourceBlocker>,
    /// By when the Issuer must sign with the new CA.
    pub(super) issuer_deadline: Option<Timestamp>,
    /// The same gateway, until that deadline. It blocks steps after which all clients present certificates of the new CA.
    pub(super) promotion: Option<TrustSourceBlocker>,
    /// Other GatewaySecrets that share a CA of clients, and whose gateways may lack the new one.
    pub(super) behind: Vec<GatewaysBehind<'a>>,
    /// Why the source Secret's certificate is not reissued: gateways present the source Secret directly, and would
    /// switch at once.
    pub(super) direct: Option<String>,
    /// The clients whose present certificate a server names by its hash, and why they are not reissued.
    pub(super) by_hash: Option<(BTreeSet<&'a str>, String)>,
    /// Why the clients' bundle must not be written where readers may use its CAs in any order.
    pub(super) unordered: Option<String>,
}

impl<'a> Blockers<'a> {
    /// `client_bundle`: the CAs that clients are to trust.
    pub(super) fn find(view: &'a View<'a>, client_bundle: &[Certificate]) -> Self {
        let signing = view.snapshot.issuer.and_then(|issuer| issuer.chain.first());
        let mut found = Self {
            view,
            pause: Pause::of(view.entry, view.windows),
            readers: readers(view),
            issuer_deadline: signing.map(|signing| deadline(view, signing.not_after)),
            promotion: None,
            behind: gateways_behind(view),
            direct: presents_source(view),
            by_hash: clients_by_hash(view),
            unordered: unordered(view, client_bundle),
        };
        found.promotion = found.readers.clone().filter(|_| found.is_ahead(found.issuer_deadline));
        found
    }

    /// The pause, unless a step's deadline has passed. It ends at the deadline at the latest.
    pub(super) fn pause_until(&self, deadline: Option<Timestamp>) -> Option<Pause> {
        let pause = self.pause.clone().filter(|_| self.is_ahead(deadline))?;
        Some(Pause { until: pause.until.into_iter().chain(deadline).min(), ..pause })
    }

    /// Why a Certificate is not reissued: the pause, or its own `spec.renewal`, which cert-manager does not apply to requested issuance.
    pub(super) fn reissue_pause(&self, certificate: Option<&Issuance>, deadline: Option<Timestamp>) -> Option<Pause> {
        if let Some(pause) = self.pause_until(deadline) {
            return Some(pause);
        }
        // A Certificate that is already being issued needs no permission.
        let certificate = certificate.filter(|certificate| !certificate.is_issuing() && self.is_ahead(deadline))?;
        let name = &certificate.name;
        if let Some(blocked) = &certificate.blocked {
            let reason = format!("Certificate {name} is not reissued. {blocked}");
            return Some(Pause { until: deadline, ..Pause::for_action(reason) });
        }
        let blocker = certificate.renewal.blocker(self.view.now)?;
        let renew = command_for(RENEW, name);
        let advice = match deadline {
            Some(at) => format!(
                "Renew it before {at}, when it is reissued regardless because a CA that it depends on expires: {renew}"
            ),
            None => format!("Renew it: {renew}"),
        };
        let reason = format!("Certificate {name}: {}. {advice}", blocker.reason);
        let needs_action = blocker.until.is_none();
        Some(Pause { until: blocker.until.into_iter().chain(deadline).min(), reason, needs_action })
    }

    /// Why a client's Certificate is not reissued.
    pub(super) fn client_pause(&self, client: &ClientState) -> Option<Pause> {
        let certificate = client.certificate.as_ref();
        let is_closed = |one: &Issuance| {
            !one.is_issuing() && (one.blocked.is_some() || one.renewal.blocker(self.view.now).is_some())
        };
        let by_hash = self.by_hash.as_ref().filter(|(names, _)| names.contains(client.name.as_str()));
        // Deadlines are computed only if necessary, since they cost signature checks.
        if self.pause.is_none() && by_hash.is_none() && !certificate.is_some_and(is_closed) {
            return None;
        }
        let newest = self.view.journal.newest_of(&client.name);
        let deadline = newest.and_then(|newest| client_deadline(self.view, newest));
        let by_hash = by_hash.filter(|_| self.is_ahead(deadline));
        let by_hash = by_hash.map(|(_, reason)| Pause { until: deadline, ..Pause::for_action(reason.as_str()) });
        self.reissue_pause(certificate, deadline).or(by_hash)
    }

    /// Why a pause blocks the switch of the serving certificate. Shortly before that certificate expires, nothing
    /// blocks it.
    pub(super) fn switch_pause(&self, served: &[Certificate]) -> Option<Wait> {
        let pause = self.pause.clone()?;
        self.switch_wait(switch_deadline(self.view, served), pause)
    }

    /// Why gateways must not replace the certificate `served` yet, and the clients that block that. `verifies_next`: whether a client that trusts
    /// these CAs verifies the next certificate.
    pub(super) fn switch(
        &self,
        served: &[Certificate],
        verifies_next: impl Fn(&[Certificate]) -> bool,
    ) -> (Option<Wait>, Option<SwitchBlocker>) {
        let (view, now) = (self.view, self.view.now);
        let breaks = |trust: &[Certificate]| verifies_to_the_end(trust, served, now) && !verifies_next(trust);
        let lags = |name: &str, trust: &[Certificate]| {
            breaks(trust) || is_unordered(view, name) && orders(trust).any(|order| breaks(&order))
        };
        let known = view.journal.server_issuers.iter().map(|authority| authority.certificate.clone());
        let sufficient: Vec<_> =
            known.filter(|ca| verifies_to_the_end(std::slice::from_ref(ca), served, now)).collect();
        let breaks_others = breaks(&sufficient);
        // What an unknown client trusts matters only if the next certificate has another CA.
        let lagging =
            clients_that(view, |name, version| lags(name, &version.trust) || version.is_unknown() && breaks_others);
        let blocker_of = |clients| SwitchBlocker::of(view, served, clients);
        let (pause, blocker) = match lagging {
            Some(names) => {
                let needs_action = needs_restart(view, |name, version| lags(name, &version.trust));
                let help = restart_help(needs_action);
                let reason =
                    format!("Not every client trusts the CA of the new serving certificate yet: {names}{help}");
                (Some(Pause { until: None, reason, needs_action }), blocker_of(Some(names)))
            }
            None if breaks_others && !view.knows_all_clients() => {
                let reason = unlisted_clients(view).unwrap_or_else(|| {
                    "Clients that are not declared may trust only the old CA. Declare all clients, then set \
                     spec.clients.allDeclared to true"
                        .to_owned()
                });
                (Some(Pause::for_action(reason)), blocker_of(None))
            }
            None => (None, None),
        };
        let last = switch_deadline(view, served);
        let wait = self.pause.clone().or(pause).and_then(|pause| self.switch_wait(last, pause));
        let blocker = blocker.filter(|_| wait.is_some());
        (wait, blocker)
    }

    fn switch_wait(&self, deadline: Option<Timestamp>, pause: Pause) -> Option<Wait> {
        let until = pause.until.into_iter().chain(deadline).min();
        self.is_ahead(deadline).then(|| Pause { until, ..pause }.wait(StepName::SwitchServingCertificate))
    }

    /// Why the Issuer must not sign with the new CA yet: gateways of another GatewaySecret would refuse the clients, too.
    pub(super) fn shared_pause(&self) -> Option<Pause> {
        let pause = self.behind.iter().find_map(|gateways| gateways.pause(self.view))?;
        self.is_ahead(self.issuer_deadline).then_some(Pause { until: self.issuer_deadline, ..pause })
    }

    fn is_ahead(&self, deadline: Option<Timestamp>) -> bool {
        is_ahead(self.view, deadline)
    }
}

/// The wait for a Certificate whose reissue the API server refuses.
pub(super) fn refused_reissue(certificate: &Issuance) -> Option<Pause> {
    let (name, refused) = (&certificate.name, certificate.refused.as_ref().filter(|_| !certificate.is_issuing())?);
    let refused = refused.trim_end_matches('.');
    let renew = command_for(RENEW, name);
    Some(Pause::for_action(format!("Certificate {name} is not reissued. {refused}. Or renew it yourself: {renew}")))
}

impl SwitchBlocker {
    pub(super) fn of(view: &View<'_>, served: &[Certificate], clients: Option<String>) -> Option<Self> {
        Some(Self { clients, end: end_of_serving(view, served)?, switch: switch_deadline(view, served)? })
    }
}

/// Why clients of some namespaces are unknown, and what to do: a sentence.
pub(super) fn unlisted_clients(view: &View<'_>) -> Option<String> {
    let View { snapshot, journal, now, .. } = *view;
    let until = |namespace: &str| deleted::deleted_until(snapshot, journal, namespace);
    let unlisted = || deleted::unlisted_namespaces(snapshot, journal, now);
    let deleted = || unlisted().filter_map(|namespace| Some((namespace, until(namespace)?)));
    if let Some(names) = few(unlisted().filter(|namespace| until(namespace).is_none())) {
        return Some(format!(
            "The agent cannot list Certificates in {names} (spec.clients.namespaces), so clients there are unknown. Apply the output of \
             trustspan rbac with --allow-namespace for each"
        ));
    }
    let (names, until) = (few(deleted().map(|(name, _)| name))?, deleted().map(|(_, until)| until).max()?);
    Some(format!(
        "Namespace {names} of spec.clients.namespaces was deleted, and counts until {until}, in case a backup is restored. Otherwise take it \
         out of spec.clients.namespaces"
    ))
}

/// The gateway or listener that blocks the rotation. If there are several, one that needs a person comes first, and the
/// message counts the others.
fn readers(view: &View<'_>) -> Option<TrustSourceBlocker> {
    let mut found: Vec<_> =
        view.snapshot.readers.iter().filter_map(|reader| trust_source_blocker(view, reader)).collect();
    found.extend(unnamed_sources(view));
    found.dedup();
    let number = found.len();
    let mut blocker = found.into_iter().min_by_key(|blocker| (!blocker.needs_action, blocker.until))?;
    if number > 1 {
        blocker.message = format!("1 of {number}: {}", blocker.message);
    }
    Some(blocker)
}

/// Gateways of other namespaces for which no step waits, and what would change that: sentences.
pub(super) fn ungranted(view: &View<'_>) -> Option<String> {
    let ungranted = view.snapshot.readers.iter().filter(|reader| reader.is_ungranted);
    let named = few(ungranted.map(|reader| reader.object.as_str()))?;
    let (entry, managed) = (view.entry, view.entry.managed_name());
    Some(format!(
        "No step waits for {named}: no ReferenceGrant in namespace {} lets other namespaces use Secret {managed} there, and \
         spec.clients.namespaces does not list them. Clients may be rejected where it is used with another certificate or another source of \
         CAs. Add one of these to have steps wait",
        entry.namespace
    ))
}

/// Sources that no Gateway names any more. Proxies use them until the propagation delay is over.
fn unnamed_sources<'v>(view: &'v View<'_>) -> impl Iterator<Item = TrustSourceBlocker> + 'v {
    let delay = view.entry.policy.propagation_delays.gateways;
    let lacks =
        |version: &&Version| !version.trust.is_empty() && !holds(&version.trust, &view.client_issuers, view.now);
    view.journal.trust_sources.iter().filter_map(move |(source, versions)| {
        // A source that a Gateway still names is judged with that Gateway.
        let ended = versions.last().filter(|last| last.replaced.is_some())?.replaced;
        let mut in_use = versions.iter().filter(|version| version.may_be_in_use(delay, view.now));
        in_use.find(lacks)?;
        let message =
            format!("Gateways may still take their clients' CAs from {source}, which no Gateway names any more");
        let until = ended.map(|at| delay.after(at));
        Some(TrustSourceBlocker { reason: "Propagating", message, until, needs_action: false })
    })
}

fn trust_source_blocker(view: &View<'_>, reader: &TlsReader) -> Option<TrustSourceBlocker> {
    let TlsReader { object, field, .. } = reader;
    let (entry, issuers) = (view.entry, &view.client_issuers);
    let manual = |reason, message| Some(TrustSourceBlocker { reason, message, until: None, needs_action: true });
    let versions = |source: &SourceName| view.journal.trust_sources.get(&source.to_string()).map(Vec::as_slice);
    let (source, state) = match view.snapshot.source_of(reader) {
        ReaderSource::Managed => return None,
        ReaderSource::Missing(sources) => {
            // istiod has no CAs to send to new proxies. If the source never existed, no client could connect before
            // either.
            let is_lost = |source: &&SourceName| {
                let last = versions(source).and_then(<[_]>::last);
                last.is_some_and(|version| !version.trust.is_empty() && !holds(&version.trust, issuers, view.now))
            };
            let source = sources.iter().find(is_lost)?;
            return manual(
                "TrustSourceDeleted",
                format!(
                    "{object} ({field}) takes its clients' CAs from {source}, which was deleted: running gateways keep its last \
                     content, without the new CA. Create it again with all CAs, or let {object} use another object"
                ),
            );
        }
        ReaderSource::Unlisted(why) => {
            return manual(
                "NotListed",
                format!(
                    "{object} cannot be listed ({why}), so it is unknown whether one of them takes its clients' CAs from another \
                     object. Grant the agent that right: kubectl apply -k manifests/base"
                ),
            );
        }
        ReaderSource::Unknowable(what) => {
            return manual(
                "UnknownTrust",
                format!(
                    "{object} ({field}) takes its clients' CAs from {what}, whose content no Kubernetes object shows. Let it use \
                     Secret {} (credentialName without another source of CAs)",
                    entry.managed_name()
                ),
            );
        }
        ReaderSource::Object(source, state) => (source, state),
    };
    if let SourceState::Unreadable(why) = state {
        return manual(
            "UnreadableTrust",
            format!(
                "{object} ({field}) takes its clients' CAs from {source}, which the agent cannot read: {why}. Add the new CA \
                 and grant the agent the right to read it: {} --grant",
                extend_trust_command(entry, source)
            ),
        );
    }
    let delay = entry.policy.propagation_delays.gateways;
    let versions = versions(source).unwrap_or_default();
    let in_use: Vec<_> = versions.iter().filter(|version| version.may_be_in_use(delay, view.now)).collect();
    if in_use.iter().all(|version| version.trust.is_empty()) {
        // The server accepts only clients of other CAs.
        return None;
    }
    let lacking: Vec<_> = in_use.into_iter().filter(|version| !holds(&version.trust, issuers, view.now)).collect();
    if lacking.is_empty() {
        return None;
    }
    if let Some(replaced) = lacking.iter().map(|version| version.replaced).collect::<Option<Vec<_>>>() {
        let until = replaced.into_iter().max().map(|at| delay.after(at));
        let message = format!("{object} ({field}) may not have loaded the new CA from {source} yet");
        return Some(TrustSourceBlocker { reason: "Propagating", message, until, needs_action: false });
    }
    let trust = versions.last().map(|version| version.trust.as_slice()).unwrap_or_default();
    let lacks = few(issuers
        .iter()
        .filter(|ca| !holds(trust, std::slice::from_ref(*ca), view.now))
        .map(|ca| ca.subject.clone()));
    let lacks = lacks.unwrap_or_default();
    let addition = addition_by_agent(view, source);
    let needs_action = addition.is_none();
    let help = addition.unwrap_or_else(|| source_help(view, reader, source));
    let message =
        format!("{object} ({field}) takes its clients' CAs from {source}, which lacks the new CA ({lacks}). {help}");
    Some(TrustSourceBlocker { reason: "OtherTrustSource", message, until: None, needs_action })
}

/// Why the clients' bundle must not be written where readers may use its CAs in any order: in some order it does not
/// verify a chain that gateways serve.
fn unordered(view: &View<'_>, bundle: &[Certificate]) -> Option<String> {
    let target = unordered_targets(view).next()?;
    let verifies = |order: &[Certificate], chain: &[Certificate]| verifies_to_the_end(order, chain, view.now);
    let is_refused =
        |chain: &&[Certificate]| verifies(bundle, chain) && orders(bundle).any(|order| !verifies(&order, chain));
    let leaf = served_chains(view).into_iter().find(is_refused)?.first()?;
    Some(format!(
        "{} {} is not changed: its readers may take the CAs in any order, and two CAs of the clients' bundle have the same subject. \
         {} has no key identifiers (SKI, AKI) that distinguish them. Give the new CA another subject, or use a ConfigMap in \
         spec.trustBundleTargets",
        target.kind.name(),
        target.name,
        leaf.subject
    ))
}

/// Whether the readers that the journal knows by this name may take CAs in any order.
fn is_unordered(view: &View<'_>, readers: &str) -> bool {
    unordered_targets(view).any(|target| target.readers() == readers)
}

fn unordered_targets<'a>(view: &View<'a>) -> impl Iterator<Item = &'a TrustBundleTarget> {
    view.entry.spec.trust_bundle_targets.iter().filter(|target| !target.kind.keeps_order())
}

/// The orders of a bundle that can give different verdicts: each CA once in the first place, since a verifier uses the
/// first that fits.
fn orders(trust: &[Certificate]) -> impl Iterator<Item = Vec<Certificate>> {
    (0..trust.len()).map(|first| {
        let mut order = trust.to_vec();
        order[..=first].rotate_right(1);
        order
    })
}

/// How the agent adds the new CA to a source that it writes: a sentence. `None`: it does not write this source.
fn addition_by_agent(view: &View<'_>, source: &SourceName) -> Option<String> {
    let is_sibling = *source == managed_sibling(view.entry);
    if is_sibling && matches!(view.snapshot.managed_sibling, TrustCopy::Managed(_)) {
        return Some("The agent adds it".to_owned());
    }
    copied_from(view, source).map(|name| format!("The agent adds it from ConfigMap {name}"))
}

/// Secret `<managed>-cacert`.
fn managed_sibling(entry: &Entry) -> SourceName {
    SourceName::secret(&entry.namespace, format!("{}{CACERT_SUFFIX}", entry.managed_name()))
}

/// The ConfigMap of `spec.clients.caConfigMapNames` from which the agent writes a source, if nothing blocks that.
fn copied_from<'v>(view: &'v View<'_>, source: &SourceName) -> Option<&'v str> {
    let is_local_map = source.kind == SourceKind::ConfigMap && source.namespace == view.entry.namespace;
    let mut maps = view.snapshot.config_maps.iter().filter(|_| is_local_map);
    let map = maps.find(|map| source.name == managed_config_map_name(&map.name))?;
    config_map_blocker(view, map).is_none().then_some(map.name.as_str())
}

/// What a person has to do, so that a source gets the new CA.
fn source_help(view: &View<'_>, reader: &TlsReader, source: &SourceName) -> String {
    let entry = view.entry;
    let namespace = &entry.namespace;
    let is_local_map = source.kind == SourceKind::ConfigMap && source.namespace == *namespace;
    let is_of = |map: &&CaConfigMap<'_>| source.name == map.name || source.name == managed_config_map_name(&map.name);
    if sibling_or_self(namespace, entry.source_name()).contains(source) {
        return rename_help(entry, reader);
    }
    if let Some(map) = view.snapshot.config_maps.iter().filter(|_| is_local_map).find(is_of) {
        return config_map_blocker(view, map).unwrap_or_else(|| rename_help(entry, reader));
    }
    if *source == managed_sibling(entry) {
        return format!("Delete it: kubectl delete secret {} -n {namespace}", source.name);
    }
    let extend = extend_trust_command(entry, source);
    if is_local_map {
        return format!(
            "Add {} to spec.clients.caConfigMapNames, and the agent keeps a copy of it with the new CA. Or add the new CA: {extend}",
            source.name
        );
    }
    format!("Add the new CA: {extend}")
}

fn extend_trust_command(entry: &Entry, source: &SourceName) -> String {
    format!(
        "trustspan extend-trust {} -n {} --to {} --to-namespace {}",
        entry.name,
        entry.namespace,
        source.resource(),
        source.namespace
    )
}

/// How to make an object that names the source Secret use the managed Secret.
fn rename_help(entry: &Entry, reader: &TlsReader) -> String {
    let TlsReader { resource, namespace, .. } = reader;
    if reader.opted_out {
        return format!(
            "Allow the webhook to rewrite it: kubectl annotate {resource} -n {namespace} trustspan.dev/rewrite-"
        );
    }
    if let Some(annotation) = reader.issuer_annotation {
        let source = entry.source_name();
        return format!(
            "cert-manager would issue Secret {} by its annotation {annotation}, so the webhook does not rewrite it. Remove the annotation: \
             Certificate {source} stays, and the webhook rewrites the Gateway",
            entry.managed_name()
        );
    }
    if reader.selects_others {
        return format!(
            "It does not select spec.workloadLabels, so the webhook does not rewrite it. Let it select these labels, or name Secret {} in it",
            entry.managed_name()
        );
    }
    if reader.is_exported {
        return format!(
            "The webhook rewrites it if namespace {namespace} has a GatewaySecret for Secret {}. Otherwise let it name Secret {}, or limit it \
             to gateways of its namespace (spec.exportTo: [\".\"])",
            entry.source_name(),
            entry.managed_name()
        );
    }
    "The webhook rewrites it as soon as nothing blocks that. trustspan check shows what does".to_owned()
}

/// What a person has to do about a ConfigMap of `spec.clients.caConfigMapNames`.
pub(super) fn config_map_blocker(view: &View<'_>, map: &CaConfigMap<'_>) -> Option<String> {
    if matches!(map.managed, TrustCopy::Foreign) {
        let managed = managed_config_map_name(&map.name);
        return Some(format!(
            "ConfigMap {managed} was not created by the agent. Delete it, or allow the agent to overwrite it: kubectl annotate \
             configmap {managed} -n {} {ADOPT}=true",
            view.entry.namespace
        ));
    }
    config_map_fault(view, map).map(|why| format!("ConfigMap {} {why}", map.name))
}

/// The clients that a server accepts only by the hash of the present certificate or key, and what to do: a reissued one would be refused.
fn clients_by_hash<'a>(view: &View<'a>) -> Option<(BTreeSet<&'a str>, String)> {
    let readers: Vec<_> = view.snapshot.readers.iter().map(|reader| (reader, reader.hashes())).collect();
    let named = view.snapshot.declared_clients().flat_map(|client| {
        let leaf = client.chain.first();
        let pins = readers.iter().filter(move |(_, hashes)| leaf.is_some_and(|leaf| is_among(hashes, leaf)));
        pins.map(|(reader, _)| (client.name.as_str(), *reader))
    });
    let (names, readers): (BTreeSet<_>, Vec<_>) = named.unzip();
    let servers: BTreeSet<_> = readers.iter().map(|reader| format!("{} ({})", reader.object, reader.field)).collect();
    let verb = if servers.len() == 1 { "accepts" } else { "accept" };
    let reason = format!(
        "{} {verb} {} only by the hash of the present certificate or key, so the agent does not request a reissue. \
         Replace verifyCertificateHash and verifyCertificateSpki there by subjectAltNames, or renew clients and hashes together",
        few(servers)?,
        few(names.iter().map(|name| (*name).to_owned()))?
    );
    Some((names, reason))
}

fn presents_source(view: &View<'_>) -> Option<String> {
    let direct: Vec<_> = view.snapshot.readers.iter().filter(|reader| reader.presents_source).collect();
    let named = few(direct.iter().map(|reader| reader.object.clone()))?;
    let help = rename_help(view.entry, direct.first()?);
    let source = view.entry.source_name();
    Some(format!("{named} presents Secret {source} itself, so it would switch as soon as that is reissued. {help}"))
}
