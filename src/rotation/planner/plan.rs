//! Plans the steps of a rotation, and determines its phase.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::blockers::{
    Blockers, SwitchBlocker, TrustSourceBlocker, config_map_blocker, refused_reissue, ungranted, unlisted_clients,
};
use super::bundles::{Bundles, LeftOut, PlannedBundle};
use super::clients::{clients_that, is_admitted, needs_restart, restart_help};
use super::deadlines::{client_deadline, is_ahead, last_reissue, serving_deadline};
use super::history::{View, admits, authorities, holds, verifies, verifies_to_the_end};
use super::pause::Pause;
use super::revocation::list_source;
use super::rules::{Rule, applies};
use super::snapshot::{ClientState, Issuance, Pending, Snapshot, TrustCopy};
use super::{consumers, deleted, history, keystores, pace, probe, shared_clients};
use crate::api::names::{ADOPT, CACERT_SUFFIX};
use crate::api::{Endpoints, Mode, Period, Phase, StepName, TrustSourceUse, UnknownClient, Wait};
use crate::rotation::SecretSummary;
use crate::rotation::journal::{DelaysInForce, Journal, Version};
use crate::rotation::name_list::few;
use crate::rotation::readers::{ReaderTrust, SourceName, sibling_or_self};
use crate::trust::{Certificate, is_distrusted};

/// The result of planning: the steps to take now, and what the status reports.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The phase of the rotation.
    pub phase: Phase,
    /// The new journal. It must be stored before the steps are taken.
    pub journal: Journal,
    /// The CAs that clients are to trust from now on.
    pub client_bundle: Vec<Certificate>,
    /// Why that bundle must not be written to objects whose readers may use its CAs in any order.
    pub unordered: Option<String>,
    /// CAs that every gateway trusts.
    pub converged: Vec<Certificate>,
    /// The writes to make, in this order.
    pub steps: Vec<Step>,
    /// What steps wait for.
    pub waits: Vec<Wait>,
    /// Why the clients of some namespaces are unknown: a sentence.
    pub unlisted_clients: Option<String>,
    /// Declared clients that still use or trust only an old CA although their reissue was requested, by name.
    pub lagging: Vec<String>,
    /// Why clients are not reissued that a server accepts only by the hash of their certificate, and what to do.
    pub pinned: Option<String>,
    /// Why clients are not reissued whose Java truststore would hide a CA, and what to do.
    pub hidden: Option<String>,
    /// Declared clients whose certificates are unknown, by name.
    pub unknown_clients: Vec<UnknownClient>,
    /// Declared clients that a change of the gateways' content cut off, by name.
    pub cut_off: Vec<String>,
    /// What the gateways showed; `None` if they were not probed.
    pub endpoints: Option<Endpoints>,
    /// Why they are not probed, if that is known.
    pub unprobed: Option<String>,
    /// Other objects than the managed Secret that gateways use: the agent needs the right to read them.
    pub trust_sources: Vec<TrustSourceUse>,
    /// Why a source of CAs cannot be used. Its earlier content stays in use.
    pub trouble: Option<String>,
    /// Clients that block the switch of the serving certificate.
    pub switch_blocker: Option<SwitchBlocker>,
    /// A gateway that takes its clients' CAs from a source without the new CA, and when the rotation continues
    /// regardless.
    pub trust_source_blocker: Option<(TrustSourceBlocker, Option<Timestamp>)>,
    /// Gateways of other namespaces for which no step waits, and what would change that: sentences.
    pub ungranted: Option<String>,
    /// The source Secret holds a certificate that gateways could serve.
    pub has_next_leaf: bool,
    /// Declared clients that mode `Copy` would cut off now.
    pub cut_off_by_copy: Vec<String>,
    /// Why a CA of `spec.distrustedCAs` is not removed.
    pub undistrusted: Option<String>,
    /// Since when the journal is complete, if an earlier one was lost: what gateways had before is unknown.
    pub forgotten: Option<Timestamp>,
    /// Whether gateways of another GatewaySecret are waited for.
    pub awaits_other_gateways: bool,
    /// The next instant at which the plan changes by itself.
    pub wake: Option<Timestamp>,
}

/// A write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write the managed Secret.
    WriteManaged {
        /// The bundle, new first.
        trust: Vec<Certificate>,
        /// The serving pair: certificate and key.
        pair: PairOf,
    },
    /// Write `<managed>-cacert`: the CAs of `<source>-cacert`, with the GatewaySecret's CAs as in the managed Secret.
    WriteSibling {
        /// The CAs, in order.
        trust: Vec<Certificate>,
    },
    /// Write the copy of a ConfigMap of `spec.clients.caConfigMapNames`: its CAs, with the GatewaySecret's CAs as in
    /// the managed Secret.
    WriteConfigMap {
        /// Name of that ConfigMap.
        source: String,
        /// The CAs, in order.
        trust: Vec<Certificate>,
    },
    /// Write the managed Secret as a copy of the source Secret.
    CopySource,
    /// Write the Issuer's Secret as a copy of the CA's Secret.
    PromoteIssuer,
    /// Request the reissue of a Certificate from cert-manager.
    Reissue {
        /// Its name.
        certificate: String,
    },
}

/// The source of a serving pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairOf {
    /// The managed Secret: the pair stays.
    Managed,
    /// The source Secret.
    Source,
}

/// Computes what to do now. After its steps are taken, the next plan has the next steps. The same input gives the same plan.
pub fn plan(snapshot: &Snapshot<'_>, before: &Journal, now: Timestamp) -> Plan {
    let delays = history::delays_in_force(&snapshot.entry.policy, before, now);
    if delays.delays == snapshot.entry.policy.propagation_delays {
        return plan_with(snapshot, delays, before, now);
    }
    let mut entry = snapshot.entry.clone();
    entry.policy.propagation_delays = delays.delays.clone();
    plan_with(&Snapshot { entry: &entry, ..snapshot.clone() }, delays, before, now)
}

/// The plan with the delays in force, which the policy of `snapshot` has.
fn plan_with(snapshot: &Snapshot<'_>, delays: DelaysInForce, before: &Journal, now: Timestamp) -> Plan {
    let mut journal = history::record(snapshot, before, now);
    let shorter = delays.end();
    journal.delays = Some(delays);
    probe::record_sightings(snapshot, &mut journal.gateways, now);
    consumers::record(snapshot, &mut journal, now);
    let bundles = Bundles::plan(&View::derive(snapshot, &journal, now));
    // The bundles are recorded before any decision, because the next plan knows only what is stored.
    history::record_bundles(snapshot, &mut journal, &bundles.gateways.trust, &bundles.clients.trust, now);
    let view = View::derive(snapshot, &journal, now);
    let blockers = Blockers::find(&view, &bundles.clients.trust);
    let probe = probe::report(&view, &before.gateways);
    let mut decided = decide(&view, &blockers, &bundles, probe.canary);
    decided.waits.extend(probe.waits);
    decided.waits.extend(consumers::waits(&view));
    let wake = wake(&view, &decided.waits, [bundles.gateways.until, bundles.clients.until, shorter]);
    decided
        .waits
        .extend(blockers.unordered.iter().map(|reason| Pause::for_action(reason.as_str()).wait(StepName::ExpandTrust)));
    let sibling: Vec<_> = sibling_in_use(&view).collect();
    let is_everywhere = |ca: &&Certificate| {
        view.awaited.iter().all(|version| version.trust.contains(ca))
            && sibling.iter().all(|version| holds(&version.trust, std::slice::from_ref(*ca), now))
    };
    let mut plan = Plan {
        phase: phase(&view, &blockers, &bundles.gateways),
        journal: Journal::default(),
        unordered: blockers.unordered.clone(),
        converged: bundles.gateways.trust.iter().filter(is_everywhere).cloned().collect(),
        steps: decided.steps,
        waits: decided.waits,
        unlisted_clients: unlisted_clients(&view),
        lagging: if decided.hidden.is_none() { lagging(&view, &blockers) } else { Vec::new() },
        pinned: decided.pinned,
        hidden: decided.hidden,
        unknown_clients: unknown_clients(&view),
        cut_off: Vec::new(),
        endpoints: probe.endpoints,
        unprobed: snapshot.unprobed.clone(),
        trust_sources: trust_sources(&view),
        trouble: trouble(snapshot),
        switch_blocker: decided.switch_blocker,
        trust_source_blocker: blockers.readers.clone().map(|blocker| (blocker, blockers.issuer_deadline)),
        ungranted: ungranted(&view),
        has_next_leaf: view.source_chain.is_some(),
        cut_off_by_copy: cut_off_by_copy(&view),
        undistrusted: decided.undistrusted,
        forgotten: view.gateways_in_use.iter().find(|version| version.guessed).map(|version| version.since),
        awaits_other_gateways: !blockers.behind.is_empty(),
        wake,
        client_bundle: bundles.clients.trust,
    };
    history::conclude(snapshot, &mut journal, plan.phase, now);
    let cut_off = journal.clients.iter().filter(|(_, client)| !client.cut_off.is_none());
    plan.cut_off = cut_off.map(|(name, _)| name.clone()).collect();
    plan.journal = journal;
    plan
}

/// What gateways may use of `<managed>-cacert`, from which istiod takes CAs instead of the managed Secret. One with none of ours is left out: no
/// client can connect, whatever its certificate is.
fn sibling_in_use<'v>(view: &'v View<'_>) -> impl Iterator<Item = &'v Version> {
    let sibling = format!("{}{CACERT_SUFFIX}", view.entry.managed_name());
    let versions = versions_in_use(view, &SourceName::secret(&view.entry.namespace, sibling));
    versions.filter(|version| !version.trust.is_empty())
}

/// The contents of another source of trust that gateways may use.
fn versions_in_use<'v, 'a>(view: &'v View<'a>, source: &SourceName) -> impl Iterator<Item = &'v Version> + use<'v, 'a> {
    let delay = view.entry.policy.propagation_delays.gateways;
    let versions = view.journal.trust_sources.get(&source.to_string()).into_iter().flatten();
    versions.filter(move |version| version.may_be_in_use(delay, view.now))
}

/// The next instant at which a version is no longer in use, the validity of a certificate begins or ends, or a CA is about to end.
fn wake(view: &View<'_>, waits: &[Wait], until: [Option<Timestamp>; 3]) -> Option<Timestamp> {
    let (snapshot, journal, delays) = (view.snapshot, view.journal, &view.entry.policy.propagation_delays);
    let propagated = |versions: &[Version], delay: Period| {
        versions.iter().filter_map(|version| version.replaced).map(|at| delay.after(at)).collect::<Vec<_>>()
    };
    let mut at = propagated(&journal.gateways, delays.gateways);
    let others = journal.trust_sources.values().chain(journal.presented_also.values());
    at.extend(others.flat_map(|versions| propagated(versions, delays.gateways)));
    at.extend(journal.clients.values().flat_map(|client| propagated(&client.versions, delays.clients)));
    at.extend(journal.deleted_namespaces.values().map(|since| deleted::forgotten_at(*since)));
    at.extend(waits.iter().filter_map(|wait| wait.until));
    at.extend(until.into_iter().flatten());
    at.extend(view.windows.until);
    let sources = [snapshot.source, snapshot.ca, snapshot.client_ca];
    let chains = sources.into_iter().flatten().flat_map(|secret| &secret.chain);
    let clients = journal.clients.values().flat_map(|client| &client.versions);
    let clients = clients.flat_map(|version| &version.chain);
    let issuers = journal.client_issuers.iter().chain(&journal.server_issuers).map(|authority| &authority.certificate);
    for certificate in chains.chain(clients).chain(issuers) {
        at.extend([certificate.not_before, certificate.not_after]);
        at.extend(certificate.is_ca.then(|| delays.deadline(certificate.not_after)));
    }
    at.into_iter().filter(|at| *at > view.now).min()
}

fn trouble(snapshot: &Snapshot<'_>) -> Option<String> {
    let client_ca = snapshot.usable_client_ca();
    let has_ca = client_ca.as_ref().map_or(true, |secret| !authorities(secret).is_empty());
    let name = snapshot.entry.client_ca_name();
    let faults = [snapshot.usable_source(), snapshot.usable_server_ca(), client_ca];
    let no_ca = || format!("Secret {name} holds no CA. Set spec.caSecretRef to the Secret that does");
    let further = || snapshot.usable_additional_trust().find_map(Result::err);
    faults.into_iter().find_map(Result::err).or_else(|| (!has_ca).then(no_ca)).or_else(further)
}

/// The most entries of `status.trustSources`.
const LISTED: usize = 32;

/// The objects that gateways use, without the source Secret, the managed Secret and their siblings.
fn trust_sources(view: &View<'_>) -> Vec<TrustSourceUse> {
    let (snapshot, entry) = (view.snapshot, view.entry);
    let own = [entry.source_name(), entry.managed_name()];
    let own: Vec<_> = own.into_iter().flat_map(|name| sibling_or_self(&entry.namespace, name)).collect();
    let mut uses: Vec<TrustSourceUse> = Vec::new();
    for reader in &snapshot.readers {
        let sources = match &reader.trust {
            ReaderTrust::FirstOf(sources) => sources.as_slice(),
            _ => &[],
        };
        let also = reader.presents_also.iter().map(|name| SourceName::secret(&entry.namespace, name.as_str()));
        for source in sources.iter().cloned().chain(also).filter(|source| !own.contains(source)) {
            let used_by = format!("{} {}", reader.object, reader.field);
            let accepts_clients = versions_in_use(view, &source).any(|version| !version.trust.is_empty());
            let granted = !reader.ungranted_sources.contains(&source);
            let SourceName { kind, namespace, name } = source;
            let found =
                TrustSourceUse { kind: kind.name().to_owned(), namespace, name, used_by, accepts_clients, granted };
            let is_same = |known: &TrustSourceUse| {
                (&known.kind, &known.namespace, &known.name) == (&found.kind, &found.namespace, &found.name)
            };
            match uses.iter().position(is_same) {
                Some(known) if granted && !uses[known].granted => uses[known] = found,
                None if uses.len() < LISTED => uses.push(found),
                _ => {}
            }
        }
    }
    uses
}

/// The declared clients that can connect now, and could not if the managed Secret were a copy of the source Secret.
fn cut_off_by_copy(view: &View<'_>) -> Vec<String> {
    let (snapshot, now) = (view.snapshot, view.now);
    let source = snapshot.usable_source().ok();
    let (Some(source), Some(managed), Mode::Bundle) = (source, snapshot.managed, view.entry.spec.mode) else {
        return Vec::new();
    };
    let is_refused = |version: &Version| {
        admits(&managed.anchors, &version.chain, now) && !admits(&source.anchors, &version.chain, now)
    };
    let refuses = |version: &Version| {
        verifies(&version.trust, &managed.chain, now) && !verifies(&version.trust, &source.chain, now)
    };
    let lost = view.clients_in_use.iter().filter(|(_, version)| is_refused(version) || refuses(version));
    let mut names: Vec<_> = lost.map(|(name, _)| (*name).to_owned()).collect();
    names.dedup();
    names
}

#[derive(Default)]
struct Decided {
    steps: Vec<Step>,
    waits: Vec<Wait>,
    switch_blocker: Option<SwitchBlocker>,
    undistrusted: Option<String>,
    pinned: Option<String>,
    hidden: Option<String>,
}

impl Decided {
    /// Adds a wait that ends without a person.
    fn wait(&mut self, step: StepName, until: Option<Timestamp>, reason: impl Into<String>) {
        self.waits.push(Pause::without_action(until, reason).wait(step));
    }

    /// Adds a wait that ends only when a person acts.
    fn wait_for_action(&mut self, step: StepName, reason: impl Into<String>) {
        self.waits.push(Pause::for_action(reason).wait(step));
    }

    fn wait_for_source(&mut self, step: StepName, blocker: &TrustSourceBlocker) {
        let TrustSourceBlocker { message, until, needs_action, .. } = blocker.clone();
        self.waits.push(Wait { step, reason: message, until, needs_action });
    }

    fn reissue(&mut self, certificate: &Issuance) {
        self.steps.push(Step::Reissue { certificate: certificate.name.clone() });
    }

    /// Requests a reissue, and says why the API server refused the last request.
    fn reissue_for(&mut self, step: StepName, certificate: &Issuance) {
        self.reissue(certificate);
        self.waits.extend(refused_reissue(certificate).map(|pause| pause.wait(step)));
    }
}

fn decide(view: &View<'_>, blockers: &Blockers<'_>, bundles: &Bundles, canary: Option<&Issuance>) -> Decided {
    let mut decided = Decided::default();
    match view.entry.spec.mode {
        Mode::Copy => copy_source(view, blockers, &mut decided),
        Mode::Bundle => write_managed(view, blockers, bundles, &mut decided),
    }
    let unlisted = bundles.unlisted.iter().map(|reason| Pause::for_action(reason.as_str()).wait(StepName::ExpandTrust));
    decided.waits.extend(unlisted);
    let copies = bundles.config_maps.iter().cloned();
    decided.steps.extend(copies.map(|(source, trust)| Step::WriteConfigMap { source, trust }));
    for map in &view.snapshot.config_maps {
        if let Some(reason) = config_map_blocker(view, map) {
            decided.wait_for_action(StepName::ExpandTrust, reason);
        }
    }
    for named in missing_signers(view) {
        let reason = format!(
            "{named} does not exist, so its CAs are dropped when no certificate needs them. Create it, or remove it from spec.additionalTrust"
        );
        decided.wait_for_action(StepName::ExpandTrust, reason);
    }
    for left_out in [&bundles.gateways.left_out, &bundles.clients.left_out].into_iter().flatten() {
        decided.waits.push(left_out_pause(left_out).wait(StepName::ExpandTrust));
    }
    for reason in expired_signers(view) {
        decided.wait_for_action(StepName::ExpandTrust, reason);
    }
    if let Some(certificate) = canary {
        decided.reissue_for(view.gateway_step, certificate);
    }
    learn_ca(view, blockers, &mut decided);
    promote(view, blockers, &mut decided);
    reissue_clients(view, blockers, &mut decided);
    // A CA that signs only clients has no part in the serving certificate.
    let is_separate = view.entry.spec.clients.ca_secret_ref.is_some();
    let is_due = |chain: &[Certificate]| {
        let ends = || serving_deadline(view, chain).is_some_and(|deadline| view.now >= deadline);
        view.signs_current || is_separate || ends() && applies(Rule::TheEndOverridesPromotion)
    };
    if view.source_chain.is_some_and(is_due) {
        reissue_source(view, blockers, &mut decided);
    }
    reissue_further_certificates(view, blockers, is_due, &mut decided);
    wait_for_unmanaged_certificates(view, &mut decided);
    decided.undistrusted = undistrusted(view);
    decided
        .waits
        .extend(decided.undistrusted.iter().map(|reason| Pause::for_action(reason.as_str()).wait(StepName::DropOldCA)));
    decided
}

/// The missing objects of `spec.additionalTrust`, as text.
fn missing_signers(view: &View<'_>) -> impl Iterator<Item = String> {
    let missing = view.snapshot.additional_trust.iter().filter(|source| source.content.is_none());
    missing.map(|source| source.named.label())
}

/// The CAs of `spec.additionalTrust` that are left out, as text: with an expired root in a bundle, Envoy refuses the clients of its intermediates.
fn expired_signers(view: &View<'_>) -> impl Iterator<Item = String> {
    view.snapshot.additional_trust.iter().filter_map(|source| {
        let is_left_out = |ca: &&Certificate| ca.is_expired(view.now) && !view.client_issuers.contains(ca);
        let expired = few(source.content?.anchors.iter().filter(is_left_out).map(|ca| ca.subject.clone()))?;
        Some(format!(
            "{expired} of {} has expired, and is left out of the bundle. Remove it there",
            source.named.label()
        ))
    })
}

/// Mode `Copy`: the managed Secret holds what the source Secret does.
fn copy_source(view: &View<'_>, blockers: &Blockers<'_>, decided: &mut Decided) {
    let Ok(source) = view.snapshot.usable_source() else { return };
    let is_copy = |copy: &SecretSummary| {
        copy.anchors == source.anchors && copy.chain == source.chain && has_wanted_lists(view, copy)
    };
    if view.snapshot.managed.is_some_and(is_copy) {
        return;
    }
    match view.served_chain.and_then(|served| blockers.switch_pause(served)) {
        Some(wait) => decided.waits.push(wait),
        None => decided.steps.push(Step::CopySource),
    }
}

/// Mode `Bundle`: the managed Secret holds the gateways' bundle, and the source Secret's pair once clients verify it.
fn write_managed(view: &View<'_>, blockers: &Blockers<'_>, bundles: &Bundles, decided: &mut Decided) {
    let gateways = &bundles.gateways;
    if bundles.managed.is_empty() {
        return;
    }
    let pair = match (view.served_chain, view.source_chain) {
        (None, None) => return,
        (None, Some(_)) => PairOf::Source,
        (Some(_), None) => PairOf::Managed,
        (Some(served), Some(source)) if served == source => PairOf::Managed,
        (Some(served), Some(source)) => {
            let (wait, blocker) = blockers.switch(served, |trust| verifies(trust, source, view.now));
            decided.switch_blocker = blocker;
            let pair = if wait.is_some() { PairOf::Managed } else { PairOf::Source };
            decided.waits.extend(wait);
            pair
        }
    };
    if let Some(trust) = bundles.sibling.clone() {
        let is_first = matches!(view.snapshot.managed_sibling, TrustCopy::Absent);
        match sibling_blocker(view).filter(|_| is_first) {
            Some(reason) => decided.wait_for_action(StepName::ExpandTrust, reason),
            None => decided.steps.push(Step::WriteSibling { trust }),
        }
    }
    // If the agent wrote the content itself, another write would not correct it.
    let is_ours = |held: &SecretSummary| held.denials.is_empty() || held.is_plain;
    let is_current = |stored: &SecretSummary| stored.anchors == bundles.managed && has_wanted_lists(view, stored);
    let is_written = view.snapshot.managed.is_some_and(|stored| is_current(stored) && is_ours(stored));
    if !is_written || pair == PairOf::Source {
        decided.steps.push(Step::WriteManaged { trust: bundles.managed.clone(), pair });
    } else if !view.client_issuers.iter().all(|ca| gateways.trust.contains(ca)) || gateways.needed > 0 {
        let who = clients_that(view, |_, version| !view.has_followed(version));
        let who = who.map(|who| format!(": {who}")).unwrap_or_default();
        let noun = if gateways.needed == 1 { "CA" } else { "CAs" };
        let reason = format!("Certificates in use need {} previous {noun}{who}", gateways.needed);
        decided.wait(StepName::DropOldCA, gateways.until, reason);
    } else if let Some(until) = gateways.until {
        let is_bounded = view.entry.policy.max_certificate_lifetime.is_some();
        if gateways.for_undeclared.is_empty() || is_bounded {
            let reason = "Unknown certificates of the previous CA may be in use";
            decided.wait(StepName::DropOldCA, Some(until), reason);
        } else {
            let reason = "Clients that are not declared may use certificates of the previous CA, so it stays until it expires. Declare all \
                          clients and set spec.clients.allDeclared to true, or set maxCertificateLifetime in the RotationPolicy";
            decided.waits.push(Pause { until: Some(until), ..Pause::for_action(reason) }.wait(StepName::DropOldCA));
        }
    }
}

/// Whether the stored managed Secret has the revocation lists that it should have.
fn has_wanted_lists(view: &View<'_>, managed: &SecretSummary) -> bool {
    managed.revocation.as_ref() == list_source(view.snapshot).and_then(|source| source.revocation.as_ref())
}

fn left_out_pause(left_out: &LeftOut) -> Pause {
    let LeftOut { subject, refused, until } = left_out;
    let refused = refused.as_deref().unwrap_or("what gateways serve");
    let reason = format!(
        "{subject} is not added to the bundle: with it, certificates that are accepted now would be refused ({refused}), because Envoy would \
         verify their path by a CA that expired or has another key. Remove that CA where it comes from, or reissue these certificates with an \
         authority key identifier and give CAs of one name subject key identifiers"
    );
    Pause { until: *until, ..Pause::for_action(reason) }
}

/// Why `<managed>-cacert` is not created: a server whose owner named the managed Secret would accept foreign clients.
fn sibling_blocker(view: &View<'_>) -> Option<String> {
    let named = view.snapshot.readers.iter().filter(|reader| reader.names_managed);
    let named = few(named.map(|reader| reader.object.clone()))?;
    Some(format!(
        "{named} names Secret {managed} itself, and would accept the clients of every CA in Secret {source}{CACERT_SUFFIX}. \
         Name Secret {source} there, or set caCertCredentialName",
        managed = view.entry.managed_name(),
        source = view.entry.source_name()
    ))
}

/// Gets a CA into the source Secret that no Secret holds yet, or says who can add it.
///
/// An issuer whose key is not in the cluster (Vault, a cloud provider's private CA) changes its CA unannounced. The first renewed client
/// certificate shows it. Admission rejects that write, because gateways would reject the certificate, and cert-manager retries it with a backoff
/// of at most 30 seconds (`DefaultCertificateRateLimiter`). The serving certificate of the same issuer is then reissued: its `ca.crt` brings the new
/// CA into the source Secret, and the rotation starts.
fn learn_ca(view: &View<'_>, blockers: &Blockers<'_>, decided: &mut Decided) {
    // An expired CA admits no client, and its successor may have the same key.
    let known = view.journal.client_issuers.iter().map(|authority| authority.certificate.clone());
    let known: Vec<_> = known.filter(|ca| !ca.is_expired(view.now)).collect();
    let is_unknown = |pending: &&Pending| {
        let is_valid = pending.chain.first().is_some_and(|leaf| !leaf.is_expired(view.now)) && pending.at <= view.now;
        let is_known = || known.iter().any(|ca| is_issued_by(ca, &pending.chain, view.now));
        is_valid && !admits(&known, &pending.chain, view.now) && !is_known()
    };
    let clients = view.snapshot.declared_clients().filter(|_| !view.journal.client_issuers.is_empty());
    let unknown = clients.filter_map(|client| Some((client, client.pending.as_ref().filter(is_unknown)?)));
    // The source Secret's Certificate brings the CA only if no other Secret says which CA signs clients.
    let is_named = view.entry.ca_name().is_some() || view.entry.own_client_ca_name().is_some();
    let serving = view.snapshot.source_certificate.as_ref().filter(|_| !is_named);
    let has_its_issuer = |client: &ClientState| match (serving, &client.certificate) {
        (Some(serving), Some(certificate)) => certificate.issuer == serving.issuer,
        _ => false,
    };
    let (learnable, others): (Vec<_>, Vec<_>) = unknown.partition(|(client, _)| has_its_issuer(client));
    if let Some(rejected) = rejected(&others) {
        let source = view.entry.client_ca_name();
        let reason = format!("{rejected}. If this CA is yours, append its certificate to ca.crt of Secret {source}");
        decided.wait_for_action(StepName::ExpandTrust, reason);
    }
    if let (Some(certificate), Some(rejected)) = (serving, rejected(&learnable)) {
        let newest = learnable.iter().map(|(_, pending)| pending.at).max().unwrap_or(Timestamp::MIN);
        match learn_blocker(view, blockers, certificate, newest) {
            Some(pause) => {
                let reason = format!("{rejected}. {}", pause.reason);
                decided.waits.push(Pause { reason, ..pause }.wait(StepName::ExpandTrust));
            }
            None => decided.reissue_for(StepName::ExpandTrust, certificate),
        }
    }
}

/// Whether a CA issued a chain, regardless of validity and usage.
fn is_issued_by(ca: &Certificate, chain: &[Certificate], now: Timestamp) -> bool {
    let Some(last) = chain.last() else { return true };
    let has_its_key = match (&last.authority_key_id, &ca.subject_key_id) {
        (Some(key), Some(of_ca)) => key == of_ca,
        _ => verifies(std::slice::from_ref(ca), chain, now),
    };
    last == ca || last.issuer == ca.subject && has_its_key
}

/// The certificates that admission rejects; `None` for none.
fn rejected(waiting: &[(&ClientState, &Pending)]) -> Option<String> {
    let names = few(waiting.iter().map(|(client, _)| client.name.clone()))?;
    let ca = waiting.first()?.1.chain.last()?.issuer.clone();
    Some(format!("Admission rejects new certificates of {names}: they are signed by {ca}, which gateways do not trust"))
}

/// Why the serving Certificate is not reissued now to obtain the CA. A tenant may request any number of certificates: they do
/// not reissue it more often than a rotation takes, nor right after an issuance that failed.
fn learn_blocker(view: &View<'_>, blockers: &Blockers<'_>, certificate: &Issuance, newest: Timestamp) -> Option<Pause> {
    let (name, delays) = (&certificate.name, &view.entry.policy.propagation_delays);
    let interval = delays.gateways.duration().saturating_add(delays.clients.duration());
    let after_last = certificate.issued.map(|issued| issued.saturating_add(interval).unwrap_or(Timestamp::MAX));
    let next = after_last.max(pace::after_failure(certificate)).filter(|next| view.now < *next);
    if certificate.is_issuing() {
        let reason = format!("Certificate {name} of the same issuer is being reissued to obtain the CA");
        return Some(Pause::without_action(None, reason));
    }
    if certificate.issued.is_some_and(|issued| issued > newest) {
        let source = view.entry.source_name();
        let what = "was issued later, by another CA. Configure the issuer to use one CA, or append the other";
        return Some(Pause::for_action(format!("Certificate {name} {what} to ca.crt of Secret {source}")));
    }
    if let Some(next) = next {
        let reason = format!("Certificate {name} of the same issuer is reissued at {next} to obtain the CA");
        return Some(Pause::without_action(Some(next), reason));
    }
    blockers.reissue_pause(Some(certificate), None)
}

/// The Issuer signs with the new CA only once every gateway trusts it.
fn promote(view: &View<'_>, blockers: &Blockers<'_>, decided: &mut Decided) {
    let (entry, issuer) = (view.entry, view.snapshot.issuer);
    let Some(issuer_name) = entry.issuer_name() else { return };
    let Ok(source) = view.snapshot.usable_client_ca() else { return };
    if source.chain.is_empty() || issuer.is_some_and(|issuer| issuer.chain == source.chain) {
        return;
    }
    // The first promotion cannot cut off a client. In another namespace the Secret is created empty, so it counts as
    // the first, too.
    let signs = issuer.is_some_and(|issuer| !issuer.chain.is_empty());
    let namespace = entry.place_of(&issuer_name).0;
    let step = StepName::PromoteIssuer;
    if issuer.is_none() && namespace != entry.namespace {
        let reason = format!(
            "Secret {issuer_name} does not exist, and the agent creates none in another namespace. Create it empty, with the annotation \
             {ADOPT}: {}",
            entry.name_in(namespace)
        );
        decided.wait_for_action(step, reason);
    } else if !source.chain[0].is_ca {
        decided.wait_for_action(
            step,
            format!(
                "Secret {} holds no CA to sign with. Store the CA's certificate and key there",
                entry.client_ca_name()
            ),
        );
    } else if let Some(pause) = blockers.pause_until(blockers.issuer_deadline).filter(|_| signs) {
        decided.waits.push(pause.wait(step));
    } else if let Some(unconverged) = view.unconverged {
        let reason = format!("Not every gateway trusts the new CA yet, so Secret {issuer_name} is not updated");
        decided.wait(step, unconverged.until, reason);
        // The gateway may wait for something that only a person can correct.
        if let Some(blocker) = blockers.promotion.as_ref().filter(|blocker| blocker.until.is_none()) {
            decided.wait_for_source(step, blocker);
        }
    } else if let Some(blocker) = blockers.promotion.as_ref().filter(|_| signs) {
        decided.wait_for_source(step, blocker);
    } else if let Some(pause) = blockers.shared_pause().filter(|_| signs) {
        decided.waits.push(pause.wait(step));
    } else {
        decided.steps.push(Step::PromoteIssuer);
    }
}

/// The number of client Certificates that are reissued at the same time.
const AT_ONCE: usize = 10;
/// Timestamps of cert-manager have whole seconds.
const SECOND: SignedDuration = SignedDuration::from_secs(1);

fn reissue_clients(view: &View<'_>, blockers: &Blockers<'_>, decided: &mut Decided) {
    let step = StepName::ReissueClients;
    let newest = |client: &ClientState| view.journal.newest_of(&client.name);
    let accepted = accepted_issuer(view);
    if !view.signs_current && accepted.is_none() {
        return;
    }
    let lags = |client: &&ClientState| {
        newest(client).is_some_and(|newest| {
            let has_bundle = newest.is_unknown() || view.server_issuers.iter().all(|ca| newest.trust.contains(ca));
            let is_of = |signing: &Vec<Certificate>| admits(signing, &newest.chain, view.now);
            // A certificate of what signs now would change nothing for a client that has one.
            let is_useless = || accepted.as_ref().is_some_and(is_of);
            let may_wait = || is_useless() || is_ahead(view, client_deadline(view, newest));
            (!view.has_followed(newest) || !has_bundle) && (view.signs_current || !may_wait())
        })
    };
    let mut lagging: Vec<_> = view.snapshot.declared_clients().filter(lags).collect();
    if lagging.is_empty() {
        return;
    }
    let foreign = few(lagging.iter().filter(|client| client.certificate.is_none()).map(|client| client.name.clone()));
    if let Some(foreign) = foreign {
        let reason =
            format!("No cert-manager Certificate writes {foreign}. Renew manually, and include the new CA in ca.crt");
        decided.wait_for_action(step, reason);
    }
    let mut pauses = Vec::new();
    lagging.retain(|client| {
        let pause = blockers.client_pause(client);
        let is_free = pause.is_none();
        pauses.extend(pause);
        is_free
    });
    // The waits may count this reason without its text.
    let by_hash = blockers.by_hash.as_ref().map(|(_, reason)| reason);
    decided.pinned = by_hash.filter(|reason| pauses.iter().any(|pause| pause.reason == **reason)).cloned();
    decided.waits.extend(pause_waits(step, pauses));
    // A client that no gateway accepts any more can be reissued regardless.
    if let Some(blocker) = &blockers.readers {
        let waits = |version: &Version| is_admitted(view, version) && is_ahead(view, client_deadline(view, version));
        let before = lagging.len();
        lagging.retain(|client| !newest(client).is_some_and(waits));
        if lagging.len() < before {
            decided.wait_for_source(step, blocker);
        }
    }
    let blocked = shared_clients::block(view, &blockers.behind, &mut lagging);
    decided.waits.extend(pause_waits(step, blocked));
    if let Some(pause) = keystores::block(view, &mut lagging) {
        decided.hidden = Some(pause.reason.clone());
        decided.waits.push(pause.wait(step));
    }
    if lagging.iter().all(|client| client.certificate.is_none()) {
        return;
    }
    // A certificate that is issued before the webhook knows the new bundle would have to be reissued again.
    let lag = view.entry.policy.propagation_delays.admission;
    let published = view.journal.client_bundles.last().filter(|_| view.journal.offered.is_empty());
    let known = published.map(|bundle| lag.after(bundle.since) + SECOND);
    if known.is_none_or(|known| view.now < known) {
        decided.wait(step, known, "The webhook may not know the clients' new bundle yet");
        return;
    }
    request_reissues(view, &lagging, decided);
}

/// What the Issuer signs with, if it is not the current CA, and every gateway accepts its certificates.
fn accepted_issuer(view: &View<'_>) -> Option<Vec<Certificate>> {
    let issuer =
        view.snapshot.issuer.filter(|_| view.entry.spec.issuer_secret_name.is_some() && !view.signs_current)?;
    let signing = authorities(issuer);
    let is_accepted = |version: &&Version| holds(&version.trust, &signing, view.now);
    let is_accepted = !signing.is_empty() && view.awaited.iter().all(is_accepted);
    is_accepted.then_some(signing).filter(|_| applies(Rule::TheEndOverridesPromotion))
}

/// Requests certificates for clients: [`AT_ONCE`] at the same time.
fn request_reissues(view: &View<'_>, lagging: &[&ClientState], decided: &mut Decided) {
    let step = StepName::ReissueClients;
    let (mut pauses, mut due, mut names, changed) = (Vec::new(), Vec::new(), Vec::new(), view.changed());
    for client in lagging {
        let Some(certificate) = &client.certificate else { continue };
        // A refused request takes no place of another.
        if let Some(refused) = refused_reissue(certificate) {
            decided.reissue(certificate);
            pauses.push(refused);
            continue;
        }
        let deadline = || client_deadline(view, view.journal.newest_of(&client.name)?);
        match pace::pause(certificate, changed, deadline, view.now) {
            Some(pause) => pauses.push(pause),
            None if certificate.is_issuing() => names.push(certificate.name.clone()),
            None => due.push(certificate),
        }
    }
    decided.waits.extend(pause_waits(step, pauses));
    let certificates = view.snapshot.declared_clients().filter_map(|client| client.certificate.as_ref());
    let in_progress: Vec<_> = certificates.filter(|certificate| pace::is_in_progress(certificate, view.now)).collect();
    let room = AT_ONCE.saturating_sub(in_progress.len());
    let due = in_turn(due, &in_progress);
    let (asked, delayed) = due.split_at(room.min(due.len()));
    for certificate in asked {
        decided.reissue(certificate);
        names.push(certificate.name.clone());
    }
    if let Some(delayed) = few(delayed.iter().map(|certificate| certificate.name.clone())) {
        decided.wait(
            step,
            None,
            format!("cert-manager is asked for {AT_ONCE} certificates at once, and next for {delayed}"),
        );
    }
    if let Some(names) = few(names) {
        decided.wait(step, None, format!("cert-manager reissues {names}"));
    }
}

/// Certificates, in turn from each namespace, so that many of one namespace do not delay others. Those in progress had their turn.
fn in_turn<'c>(due: Vec<&'c Issuance>, in_progress: &[&Issuance]) -> Vec<&'c Issuance> {
    let namespace =
        |certificate: &Issuance| certificate.name.split_once('/').map(|(namespace, _)| namespace.to_owned());
    let mut turns: BTreeMap<Option<String>, usize> = BTreeMap::new();
    let mut turn = |certificate: &Issuance| {
        let turns = turns.entry(namespace(certificate)).or_default();
        *turns += 1;
        *turns
    };
    for certificate in in_progress {
        turn(certificate);
    }
    let mut due: Vec<_> = due.into_iter().map(|certificate| (turn(certificate), certificate)).collect();
    due.sort_by_key(|(turn, _)| *turn);
    due.into_iter().map(|(_, certificate)| certificate).collect()
}

/// Limit of the reasons that status lists for Certificates whose reissue waits.
const REASONS: usize = 3;

/// One wait for each reason of these pauses. At most [`REASONS`] are listed: those that need a person, then those that
/// end first. The last one counts the others.
pub(super) fn pause_waits(step: StepName, mut pauses: Vec<Pause>) -> Vec<Wait> {
    pauses.sort_by_key(|pause| (!pause.needs_action, pause.until.unwrap_or(Timestamp::MAX)));
    let mut reasons = BTreeSet::new();
    pauses.retain(|pause| reasons.insert(pause.reason.clone()));
    let more = pauses.len().saturating_sub(REASONS);
    let mut waits: Vec<_> = pauses.into_iter().take(REASONS).map(|pause| pause.wait(step)).collect();
    if let Some(last) = waits.last_mut().filter(|_| more > 0) {
        let noun = if more == 1 { "Certificate" } else { "Certificates" };
        last.reason += &format!(". {more} more {noun} may not be reissued now");
    }
    waits
}

/// Reissues the source Secret's Certificate once the new certificate can be served at once. Until then the source
/// Secret has the pair that is served, in case the managed Secret is lost.
fn reissue_source(view: &View<'_>, blockers: &Blockers<'_>, decided: &mut Decided) {
    let step = StepName::ReissueServingCertificate;
    let Some(chain) = view.source_chain else { return };
    let certificate = view.snapshot.source_certificate.as_ref().filter(|certificate| !certificate.is_issuing());
    let is_current = view.is_current_serving(chain);
    let Some(certificate) = certificate.filter(|_| !is_current) else { return };
    let lagging = clients_that(view, |_, version| !holds(&version.trust, &view.server_issuers, view.now));
    if let Some(names) = &lagging {
        decided.switch_blocker = SwitchBlocker::of(view, chain, Some(names.clone()));
    }
    let (deadline, last) = (serving_deadline(view, chain), last_reissue(view, chain));
    let lagging = lagging.filter(|_| is_ahead(view, last));
    let direct = blockers.direct.clone().filter(|_| is_ahead(view, last));
    let pace = || pace::pause(certificate, view.changed(), || deadline, view.now);
    match (blockers.reissue_pause(Some(certificate), deadline), lagging, direct) {
        (Some(pause), _, _) => decided.waits.push(pause.wait(step)),
        (None, Some(names), _) => decided.waits.push(lacking(view, &names, last).wait(step)),
        (None, None, Some(reason)) => decided.wait_for_action(step, reason),
        (None, None, None) => match pace() {
            Some(pause) => decided.waits.push(pause.wait(step)),
            None => decided.reissue_for(step, certificate),
        },
    }
}

/// The clients that do not trust the new CA yet, and what happens to them at the deadline.
fn lacking(view: &View<'_>, names: &str, deadline: Option<Timestamp>) -> Pause {
    let needs_action = needs_restart(view, |_, version| !holds(&version.trust, &view.server_issuers, view.now));
    let help = restart_help(needs_action);
    let then = deadline.map_or_else(String::new, |at| {
        format!(
            ". At {at} the serving certificate is reissued regardless, because its CA expires: those that do not trust the new CA when gateways \
             switch fail to connect"
        )
    });
    let reason = format!("Not every client trusts the new CA yet: {names}{help}{then}");
    Pause { until: deadline, reason, needs_action }
}

/// Reissues certificates that gateways present in addition. Gateways serve these as soon as they are issued, so the
/// conditions are those for the switch of the managed Secret's certificate.
fn reissue_further_certificates(
    view: &View<'_>,
    blockers: &Blockers<'_>,
    is_due: impl Fn(&[Certificate]) -> bool,
    decided: &mut Decided,
) {
    let anchors = &view.server_issuers;
    let mut pauses = Vec::new();
    for also in &view.snapshot.presented_also {
        let Some((certificate, chain)) = also.certificate.as_ref().zip(also.chain.as_deref()) else { continue };
        if certificate.is_issuing() || !is_of_old(view, &also.name, chain) || !is_due(chain) {
            continue;
        }
        let deadline = serving_deadline(view, chain);
        let of_certificate = |pause: Pause| {
            let reason = format!("Certificate {}: {}", certificate.name, pause.reason);
            Pause { reason, ..pause }
        };
        let lagging = || {
            let names = clients_that(view, |_, version| !holds(&version.trust, anchors, view.now))?;
            let last = last_reissue(view, chain);
            is_ahead(view, last).then(|| of_certificate(lacking(view, &names, last)))
        };
        let pace = || pace::pause(certificate, view.changed(), || deadline, view.now);
        // Undeclared clients block it as they block the switch of the managed Secret's certificate.
        let switch = || {
            let Wait { until, reason, needs_action, .. } =
                blockers.switch(chain, |trust| holds(trust, anchors, view.now)).0?;
            Some(of_certificate(Pause { until, reason, needs_action }))
        };
        let pause = blockers.reissue_pause(Some(certificate), deadline);
        match pause.or_else(lagging).or_else(switch).or_else(pace) {
            Some(pause) => pauses.push(pause),
            None => {
                decided.reissue(certificate);
                pauses.extend(refused_reissue(certificate));
            }
        }
    }
    decided.waits.extend(pause_waits(StepName::ReissueServingCertificate, pauses));
}

/// Whether a chain that gateways present in addition is of a previous CA of the GatewaySecret. One of a foreign CA is
/// neither old nor new.
fn is_of_old(view: &View<'_>, secret: &str, chain: &[Certificate]) -> bool {
    let (now, anchors) = (view.now, &view.server_issuers);
    if verifies(anchors, chain, now) {
        return !view.is_current_serving(chain);
    }
    let known: Vec<_> = view.journal.server_issuers.iter().map(|authority| authority.certificate.clone()).collect();
    if verifies(&known, chain, now) {
        return true;
    }
    // After the journal was lost, a distrusted CA is in no Secret. The issuer of the source Secret's Certificate signs with the current CA.
    let also = view.snapshot.presented_also.iter().find(|also| also.name == secret);
    let also = also.and_then(|also| also.certificate.as_ref());
    let has_our_issuer = match (also, &view.snapshot.source_certificate) {
        (Some(also), Some(source)) => also.issuer == source.issuer,
        _ => false,
    };
    // Expiry is ignored: the issuer renews an expired certificate.
    has_our_issuer
        && view.source_chain.is_some_and(|source| verifies(anchors, source, now))
        && !verifies_to_the_end(anchors, chain, now)
}

/// Adds a wait while gateways present a certificate of the old CA in addition, since clients have to trust that CA.
fn wait_for_unmanaged_certificates(view: &View<'_>, decided: &mut Decided) {
    let rotates = view.journal.server_issuers.iter().any(|authority| !authority.current);
    let unmanaged = view.snapshot.presented_also.iter().filter(|also| rotates && also.certificate.is_none());
    let old = unmanaged.filter(|also| also.chain.as_deref().is_none_or(|chain| is_of_old(view, &also.name, chain)));
    if let Some(names) = few(old.map(|also| also.name.clone())) {
        let reason = format!(
            "Gateways also present Secret {names}, which no cert-manager Certificate writes. Renew it with the new CA once all \
             clients trust that CA, or remove it from credentialNames"
        );
        decided.wait_for_action(StepName::ReissueServingCertificate, reason);
    }
}

/// Why a CA of `spec.distrustedCAs` is still in a bundle.
fn undistrusted(view: &View<'_>) -> Option<String> {
    let is_distrusted = |ca: &&Certificate| is_distrusted(ca, &view.entry.spec.distrusted_cas);
    if view.entry.spec.mode == Mode::Copy {
        let copied = view.snapshot.source.map(|source| source.anchors.as_slice()).unwrap_or_default();
        let kept = few(copied.iter().filter(is_distrusted).map(|ca| ca.subject.clone()))?;
        return Some(format!(
            "Cannot remove {kept}: mode Copy copies the source Secret with all of its CAs. Issue a new CA first"
        ));
    }
    let signing = || view.client_issuers.iter().chain(&view.server_issuers);
    if let Some(kept) = few(signing().filter(is_distrusted).map(|ca| ca.subject.clone())) {
        let reason = "spec.distrustedCAs names every CA that is left. Issue a new CA first";
        return Some(format!("Cannot remove {kept}: {reason}"));
    }
    // A path over it is still accepted if a trusted CA has its key, or has issued it.
    let accepts = |ca: &&Certificate, distrusted: &Certificate| {
        ca.public_key == distrusted.public_key || is_issued_by(ca, std::slice::from_ref(distrusted), view.now)
    };
    view.journal.distrusted.iter().find_map(|distrusted| {
        let by = signing().find(|ca| accepts(ca, distrusted))?;
        let relation = if by.public_key == distrusted.public_key { "has its key" } else { "has issued it" };
        Some(format!(
            "{} is still accepted: {} ({}) stays trusted and {relation}. Rotate to a CA that does not, or name that one in \
             spec.distrustedCAs, too; until then a revocation list in ca.crl rejects what an intermediate CA has issued",
            distrusted.subject, by.subject, by.fingerprint
        ))
    })
}

fn phase(view: &View<'_>, blockers: &Blockers<'_>, gateways: &PlannedBundle) -> Phase {
    let Some(served) = view.served_chain else { return Phase::Pending };
    let (issuers, anchors) = (&view.client_issuers, &view.server_issuers);
    let is_migrated = view.clients_in_use.iter().all(|(_, version)| view.has_followed(version));
    let is_switched = view.is_current_serving(served)
        && view.presented_also.iter().all(|(name, version)| !is_of_old(view, name, &version.chain));
    let held = view.snapshot.managed.map(|managed| managed.anchors.as_slice()).unwrap_or_default();
    // A CA that stays for clients that are not declared, perhaps for years, does not keep a rotation from being complete.
    let is_dropped = held == gateways.trust
        && gateways.trust.iter().all(|ca| issuers.contains(ca) || gateways.for_undeclared.contains(ca));
    let is_published = view.journal.offered.is_empty();
    let bundle = view.journal.client_bundles.last().map(|bundle| bundle.trust.as_slice()).unwrap_or_default();
    let is_done = is_dropped && is_switched && is_migrated && is_published;
    match () {
        () if is_done && bundle.iter().all(|ca| anchors.contains(ca)) => Phase::Steady,
        () if view.unconverged.is_some() || blockers.promotion.is_some() => Phase::TrustExpanded,
        () if is_switched && is_migrated => Phase::ServingCertificateSwitched,
        () if is_migrated && view.signs_current => Phase::ClientsMigrated,
        () => Phase::Converged,
    }
}

fn unknown_clients(view: &View<'_>) -> Vec<UnknownClient> {
    let unknown = view.clients_in_use.iter().filter(|(_, version)| version.is_unknown());
    let of = |(name, version): &(&str, &Version)| UnknownClient { name: (*name).to_owned(), not_after: version.ends };
    let mut clients: Vec<_> = unknown.map(of).collect();
    // The versions of a client follow one another.
    clients.dedup_by(|later, kept| {
        let is_same = later.name == kept.name;
        if is_same {
            kept.not_after = kept.not_after.zip(later.not_after).map(|(one, other)| one.max(other));
        }
        is_same
    });
    clients
}

/// The clients that may still use or trust only an old CA although the agent has done everything for them; sorted.
/// While a pause, a Certificate's renewal policy or a gateway blocks reissues, no client lags.
fn lagging(view: &View<'_>, blockers: &Blockers<'_>) -> Vec<String> {
    let is_blocked = blockers.pause.is_some() || blockers.promotion.is_some();
    if !view.journal.offered.is_empty() || !view.signs_current || is_blocked {
        return Vec::new();
    }
    let served = view.served_chain.unwrap_or_default();
    // A client that does not verify gateways by these CAs is not waited for.
    let trusts_old = |trust: &[Certificate]| {
        !served.is_empty()
            && verifies_to_the_end(trust, served, view.now)
            && !holds(trust, &view.server_issuers, view.now)
    };
    let lags = |version: &Version| !view.has_followed(version) || trusts_old(&version.trust);
    // A client is not reissued while its Certificate's renewal policy or a server that names its hash blocks that.
    let waits = |name: &str| {
        let client = view.snapshot.declared_clients().find(|client| client.name == name);
        let newest = view.journal.newest_of(name);
        let is_shared =
            newest.is_some_and(|newest| blockers.behind.iter().any(|gateways| gateways.block(view, newest)));
        is_shared || client.is_some_and(|client| blockers.client_pause(client).is_some())
    };
    // The journal is a map, so names are sorted.
    let lagging = view.clients_in_use.iter().filter(|(_, held)| lags(held));
    let mut names: Vec<_> = lagging.map(|(name, _)| (*name).to_owned()).collect();
    names.retain(|name| !waits(name));
    names.dedup();
    names
}
