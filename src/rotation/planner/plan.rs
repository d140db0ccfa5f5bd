//! The decisions, one for each step, and the phase that they add up to.

use jiff::{SignedDuration, Timestamp};

use super::blockers::{
    LeafHold, Pause, ReaderHold, client_deadline, config_map_hold, is_of_old, issuer_deadline, lacking, of_readers,
    of_source, pause_waits, pin, readers_until, sibling_hold, source_deadline, switch_blocker, switch_pause,
    unlisted_clients, without,
};
use super::bundles::{self, PlannedBundle, config_map_bundle, cut_off_by_copy, sibling_bundle};
use super::snapshot::{
    ClientState, Issuance, Pending, Snapshot, TrustCopy, View, admits, authorities, holds, migrated, presented_also,
    signs_current, unconverged, usable, uses, verifies, verifies_to_the_end,
};
use super::{history, probe};
use crate::api::names::ADOPT;
use crate::api::{Endpoints, Mode, Period, Phase, StepName, TrustSourceUse, Wait, WindowState};
use crate::rotation::SecretSummary;
use crate::rotation::journal::{Journal, Version};
use crate::rotation::name_list::few;
use crate::trust::{Certificate, is_distrusted};

/// What to do now.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the rotation stands.
    pub phase: Phase,
    /// What to remember; to be stored before the steps are taken.
    pub journal: Journal,
    /// What clients are to trust from now on.
    pub client_bundle: Vec<Certificate>,
    /// Why it may not stand where readers take its CAs in any order.
    pub unordered: Option<String>,
    /// CAs that every gateway has by now.
    pub converged: Vec<Certificate>,
    /// What to write, in this order.
    pub steps: Vec<Step>,
    /// What is held back, and why.
    pub waits: Vec<Wait>,
    /// Why the clients of some namespaces are not known: a sentence.
    pub unlisted_clients: Option<String>,
    /// Declared clients that were asked to follow, and do not yet, by name.
    pub lagging: Vec<String>,
    /// Declared clients that a server lets in by the hash of their certificate alone: what that holds, and what to do.
    pub pinned: Option<String>,
    /// Declared clients that gateways were changed in spite of, by name.
    pub cut_off: Vec<String>,
    /// What the gateways showed on the wire, when somebody looked.
    pub endpoints: Option<Endpoints>,
    /// Why they are not probed, when that is known.
    pub unprobed: Option<String>,
    /// What gateways use beside the managed Secret, for the rights that the agent needs.
    pub trust_sources: Vec<TrustSourceUse>,
    /// Why a source cannot be used: what was there before stays.
    pub trouble: Option<String>,
    /// Who holds the change of the gateways' leaf, and what becomes of them.
    pub leaf_hold: Option<LeafHold>,
    /// Gateways that take their clients' CAs from a source without the new CA, and the instant at which they are not waited
    /// for any more.
    pub reader_hold: Option<(ReaderHold, Option<Timestamp>)>,
    /// The root holds a leaf that gateways could serve.
    pub has_next_leaf: bool,
    /// All that is wrong with the managed Secret is that its leaf has ended, and `onServingCertificateExpiry` keeps it.
    pub keeps_ended_leaf: bool,
    /// Declared clients that mode `Copy` would cut off now.
    pub cut_off_by_copy: Vec<String>,
    /// Why `spec.distrustedCAs` is not carried out.
    pub undistrusted: Option<String>,
    /// RegistryCache leaves need more previous CAs than `maxPreviousCAs` allows. They are kept.
    pub over_cap: bool,
    /// Since when a journal that is lost leaves open what gateways had before.
    pub forgotten: Option<Timestamp>,
    /// The next instant at which time alone changes something.
    pub wake: Option<Timestamp>,
}

/// A write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The managed Secret holds this bundle, and this pair.
    WriteManaged {
        /// The bundle, new first.
        trust: Vec<Certificate>,
        /// Whose pair it serves.
        pair: PairOf,
    },
    /// `<managed>-cacert` holds these CAs: what `<source>-cacert` does, with our own as the managed Secret has them.
    WriteSibling {
        /// The CAs, in order.
        trust: Vec<Certificate>,
    },
    /// The ConfigMap that is kept from another holds these CAs: what the other does, with our own as the managed Secret has them.
    WriteConfigMap {
        /// Name of the other.
        source: String,
        /// The CAs, in order.
        trust: Vec<Certificate>,
    },
    /// The managed Secret is a copy of the root.
    CopyRoot,
    /// The Issuer's Secret is a copy of the CA's.
    PromoteIssuer,
    /// cert-manager issues a Certificate anew.
    Reissue {
        /// Its name.
        certificate: String,
    },
}

/// Where a serving pair comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairOf {
    /// It stays as it is.
    Managed,
    /// The root Secret.
    Root,
}

/// Computes what to do now. Doing it and asking again gives the next steps; asking twice gives the same.
pub fn plan(seen: &Snapshot<'_>, before: &Journal, now: Timestamp) -> Plan {
    let mut journal = history::record(seen, before, now);
    let windows = WindowState::of(&seen.entry.policy.change_windows, now);
    let clients = bundles::of_clients(&View { seen, journal: &journal, windows, now });
    if !clients.trust.is_empty() {
        history::offer(&mut journal, &clients.trust);
    }
    let gateways = bundles::of_gateways(&View { seen, journal: &journal, windows, now });
    // Before anything is decided: asked again, the planner knows no more than what is stored.
    let kept: Vec<_> = gateways.trust.iter().chain(&clients.trust).cloned().collect();
    history::forget_authorities(seen, &mut journal, &kept, now);
    let view = View { seen, journal: &journal, windows, now };
    let decided = decide(&view, &gateways);
    let converged = converged(&view, &gateways.trust);
    let wake = wake(&view, &decided.waits, [gateways.until, clients.until]);
    let lagging = lagging(&view);
    let phase = decided.phase;
    let endpoints = probe::count(&view, &before.gateways);
    let cut_off_by_copy = cut_off_by_copy(&view);
    let cut_off = journal.clients.iter().filter(|(_, client)| !client.cut_off.is_none());
    let cut_off = cut_off.map(|(name, _)| name.clone()).collect();
    let (has_next_leaf, keeps_ended_leaf) = (view.root_chain().is_some(), view.keeps_ended_leaf());
    let over_cap = gateways.over_cap || clients.over_cap;
    let reader_hold = of_readers(&view).map(|hold| (hold, issuer_deadline(&view)));
    let client_bundle = clients.trust;
    let unordered = bundles::unordered(&view, &client_bundle);
    let forgotten = view.gateways_in_use().find(|version| version.guessed).map(|version| version.since);
    history::forget_versions(seen, &mut journal, now);
    let mut waits = decided.waits;
    waits.extend(unordered.iter().map(|reason| wait(StepName::ExpandTrust, None, reason.as_str())));
    Plan {
        phase,
        journal,
        client_bundle,
        unordered,
        converged,
        steps: decided.steps,
        waits,
        unlisted_clients: unlisted_clients(seen),
        lagging,
        pinned: decided.pinned,
        leaf_hold: decided.leaf_hold,
        reader_hold,
        trust_sources: uses(seen),
        has_next_leaf,
        keeps_ended_leaf,
        cut_off,
        undistrusted: decided.undistrusted,
        cut_off_by_copy,
        endpoints,
        unprobed: seen.unprobed.clone(),
        trouble: decided.trouble,
        over_cap,
        forgotten,
        wake,
    }
}

/// The next instant at which something that is in use now is not any more, or a certificate's validity begins or ends.
fn wake(view: &View<'_>, waits: &[Wait], until: [Option<Timestamp>; 2]) -> Option<Timestamp> {
    let (seen, journal, settle) = (view.seen, view.journal, &view.policy().propagation_delays);
    let settled = |versions: &[Version], period: Period| {
        versions.iter().filter_map(|version| version.replaced).map(|at| period.after(at)).collect::<Vec<_>>()
    };
    let mut at = settled(&journal.gateways, settle.gateways);
    let beside = journal.trust_sources.values().chain(journal.presented_also.values());
    at.extend(beside.flat_map(|versions| settled(versions, settle.gateways)));
    at.extend(journal.clients.values().flat_map(|client| settled(&client.versions, settle.clients)));
    at.extend(waits.iter().filter_map(|wait| wait.until));
    at.extend(until.into_iter().flatten());
    at.extend(view.windows.until);
    let sources = [seen.root, seen.ca, seen.client_ca].into_iter().flatten().flat_map(|facts| &facts.chain);
    let leaves =
        journal.clients.values().flat_map(|client| &client.versions).filter_map(|version| version.chain.first());
    let issuers = journal.client_issuers.iter().chain(&journal.server_issuers).map(|authority| &authority.certificate);
    for certificate in sources.chain(leaves).chain(issuers) {
        // The last second still counts.
        let end = certificate.not_after.saturating_add(SignedDuration::from_secs(1)).unwrap_or(Timestamp::MAX);
        at.extend([certificate.not_before, end]);
    }
    at.into_iter().filter(|at| *at > view.now).min()
}

fn wait(step: StepName, until: Option<Timestamp>, reason: impl Into<String>) -> Wait {
    Wait { step, reason: reason.into(), until }
}

/// Certificates that cert-manager is asked for at a time.
const AT_ONCE: usize = 10;

#[derive(Default)]
struct Decided {
    steps: Vec<Step>,
    waits: Vec<Wait>,
    trouble: Option<String>,
    leaf_hold: Option<LeafHold>,
    undistrusted: Option<String>,
    pinned: Option<String>,
    phase: Phase,
}

fn decide(view: &View<'_>, gateways: &PlannedBundle) -> Decided {
    let mut decided = Decided { trouble: trouble(view), ..Decided::default() };
    if view.spec().mode == Mode::Copy {
        match copy_step(view) {
            None => {}
            Some(step) => match view.served_chain().and_then(|served| switch_pause(view, served)) {
                Some(wait) => decided.waits.push(wait),
                None => decided.steps.push(step),
            },
        }
    } else {
        manage(view, gateways, &mut decided);
    }
    for map in &view.seen.config_maps {
        let written = config_map_bundle(view, map, &gateways.trust);
        decided.steps.extend(written.map(|trust| Step::WriteConfigMap { source: map.name.clone(), trust }));
        decided.waits.extend(config_map_hold(view, map).map(|reason| wait(StepName::ExpandTrust, None, reason)));
    }
    decided.steps.extend(probe::canary_to_reissue(view).map(|certificate| Step::Reissue { certificate }));
    learn_ca(view, &mut decided);
    promote(view, &mut decided);
    let signs_current = signs_current(view);
    if signs_current {
        reissue_clients(view, &mut decided);
    }
    // A CA of the clients' own has no part in the gateways' certificate.
    if signs_current || view.spec().clients.ca_secret_ref.is_some() {
        reissue_root(view, &mut decided);
        reissue_presented_also(view, &mut decided);
    }
    wait_for_presented_also(view, &mut decided);
    decided.undistrusted = undistrusted(view);
    let undistrusted = decided.undistrusted.iter().map(|reason| wait(StepName::DropOldCA, None, reason.as_str()));
    decided.waits.extend(undistrusted);
    decided.phase = phase(view, gateways);
    decided.waits.extend(probe::waits(view));
    decided
}

/// The CAs of `trust` that every gateway has, as far as time tells.
fn converged(view: &View<'_>, trust: &[Certificate]) -> Vec<Certificate> {
    let everywhere = |ca: &&Certificate| view.gateways_in_use().all(|version| version.trust.contains(ca));
    trust.iter().filter(everywhere).cloned().collect()
}

fn trouble(view: &View<'_>) -> Option<String> {
    let root = usable((view.seen.root, view.seen.entry.source_name()));
    let (facts, name) = view.seen.client_source();
    let source = usable((facts, &name));
    let without = || source.as_ref().ok().filter(|facts| authorities(facts).is_empty());
    let no_ca =
        || without().map(|_| format!("Secret {name} holds no CA: name the one that has it in spec.caSecretRef"));
    [root, usable(view.seen.server_source()), source.clone()].into_iter().find_map(Result::err).or_else(no_ca)
}

/// What is to be written.
fn copy_step(view: &View<'_>) -> Option<Step> {
    let root = usable((view.seen.root, view.seen.entry.source_name())).ok()?;
    let same = view.seen.managed.is_some_and(|held| held.anchors == root.anchors && held.chain == root.chain);
    (!same).then_some(Step::CopyRoot)
}

/// The managed Secret of mode `Bundle`.
fn manage(view: &View<'_>, gateways: &PlannedBundle, decided: &mut Decided) {
    if gateways.trust.is_empty() {
        return;
    }
    let pair = match (view.served_chain(), view.root_chain()) {
        (None, None) => return,
        (None, Some(_)) => PairOf::Root,
        (Some(_), None) => PairOf::Managed,
        (Some(served), Some(root)) if served == root => PairOf::Managed,
        (Some(served), Some(root)) => {
            let (held, leaf_hold) = switch_blocker(view, served, |trust| verifies(trust, root, view.now));
            decided.leaf_hold = leaf_hold;
            let pair = if held.is_some() { PairOf::Managed } else { PairOf::Root };
            decided.waits.extend(held);
            pair
        }
    };
    if let Some(trust) = sibling_bundle(view, &gateways.trust) {
        let is_first = matches!(view.seen.managed_sibling, TrustCopy::Absent);
        match sibling_hold(view).filter(|_| is_first) {
            Some(reason) => decided.waits.push(wait(StepName::ExpandTrust, None, reason)),
            None => decided.steps.push(Step::WriteSibling { trust }),
        }
    }
    // What the agent wrote itself would not get better by writing it again.
    let is_ours = |held: &SecretSummary| held.denials.is_empty() || held.is_plain;
    let held = view.seen.managed.is_some_and(|held| held.anchors == gateways.trust && is_ours(held));
    if !held || pair == PairOf::Root {
        decided.steps.push(Step::WriteManaged { trust: gateways.trust.clone(), pair });
    } else if !view.client_issuers().iter().all(|ca| gateways.trust.contains(ca)) || gateways.needed > 0 {
        let issuers = view.client_issuers();
        let needs = |held: &Version| !migrated(&issuers, &held.chain, view.now);
        let who = few(view.clients_in_use().filter(|(_, held)| needs(held)).map(|(name, _)| view.told(name)));
        let who = who.map(|who| format!(": {who}")).unwrap_or_default();
        let reason = format!("{} previous CA(s) are needed by live leaves{who}", gateways.needed);
        decided.waits.push(wait(StepName::DropOldCA, gateways.until, reason));
    } else if let Some(until) = gateways.until {
        let reason = "leaves of the previous CA may be in use that are not known";
        decided.waits.push(wait(StepName::DropOldCA, Some(until), reason));
    }
}

/// cert-manager's first backoff after an issue that failed, which a requested issue does not wait for.
const AFTER_FAILURE: SignedDuration = SignedDuration::from_hours(1);

/// Gets such a CA into the source Secret, or says who can add it.
fn learn_ca(view: &View<'_>, decided: &mut Decided) {
    // One that has expired admits nobody, and its successor may have the same key.
    let known = view.journal.client_issuers.iter().map(|authority| authority.certificate.clone());
    let known: Vec<_> = known.filter(|ca| ca.not_after >= view.now).collect();
    let is_unknown = |pending: &&Pending| {
        let is_live = pending.chain.first().is_some_and(|leaf| leaf.not_after >= view.now) && pending.at <= view.now;
        let is_known = || known.iter().any(|ca| is_issued_by(ca, &pending.chain, view.now));
        is_live && !admits(&known, &pending.chain, view.now) && !is_known()
    };
    let clients = view.seen.clients.iter().filter(|_| !view.journal.client_issuers.is_empty());
    let unknown = clients.filter_map(|client| Some((client, client.pending.as_ref().filter(is_unknown)?)));
    let own = learn_from(view);
    let is_of_own = |client: &ClientState| {
        own.is_some_and(|own| client.certificate.as_ref().is_some_and(|certificate| certificate.issuer == own.issuer))
    };
    let (learnable, others): (Vec<_>, Vec<_>) = unknown.partition(|(client, _)| is_of_own(client));
    if let Some(rejected) = rejected(&others) {
        let (_, source) = view.seen.client_source();
        let what = format!("{rejected}. If this CA is yours, append its certificate to ca.crt of Secret {source}");
        decided.waits.push(wait(StepName::ExpandTrust, None, what));
    }
    if let (Some(certificate), Some(rejected)) = (own, rejected(&learnable)) {
        let newest = learnable.iter().map(|(_, pending)| pending.at).max().unwrap_or(Timestamp::MIN);
        match learn_blocker(view, certificate, newest) {
            Some((until, why)) => decided.waits.push(wait(StepName::ExpandTrust, until, format!("{rejected}. {why}"))),
            None => decided.steps.push(Step::Reissue { certificate: certificate.name.clone() }),
        }
    }
}

/// Whether a CA issued a chain, valid or not, and for whatever use.
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
    Some(format!("admission rejects new certificates of {names}: they are signed by {ca}, which gateways do not trust"))
}

/// Why the serving Certificate is not reissued now to obtain the CA, and until when. A tenant may have as many certificates issued as it likes: none
/// of them makes it more often than a rotation could take, nor right after an issue that failed.
fn learn_blocker(view: &View<'_>, certificate: &Issuance, newest: Timestamp) -> Option<(Option<Timestamp>, String)> {
    let (name, settle) = (&certificate.name, &view.policy().propagation_delays);
    let pace = settle.gateways.duration().saturating_add(settle.clients.duration());
    let after = |at: Option<Timestamp>, pace| at.map(|at| at.saturating_add(pace).unwrap_or(Timestamp::MAX));
    let next = after(certificate.issued, pace).max(after(certificate.failed, pace.max(AFTER_FAILURE)));
    let next = next.filter(|next| view.now < *next);
    let source = view.seen.entry.source_name();
    if certificate.is_issuing {
        return Some((None, format!("Certificate {name} of the same issuer is being reissued, to obtain the CA")));
    }
    if certificate.issued.is_some_and(|issued| issued > newest) {
        let what = "was issued later, by another CA. Configure the issuer to use one CA, or append the other";
        return Some((None, format!("Certificate {name} {what} to ca.crt of Secret {source}")));
    }
    if let Some(next) = next {
        return Some((
            Some(next),
            format!("Certificate {name} of the same issuer is reissued at {next}, to obtain the CA"),
        ));
    }
    view.reissue_pause(Some(certificate), None).map(|pause| (pause.until, pause.reason))
}

/// The Certificate of the source Secret, where that Secret alone says which CA signs clients.
fn learn_from<'v>(view: &View<'v>) -> Option<&'v Issuance> {
    let entry = view.seen.entry;
    let is_told_elsewhere = entry.ca_name().is_some() || entry.own_client_ca_name().is_some();
    view.seen.root_certificate.as_ref().filter(|_| !is_told_elsewhere)
}

/// The new CA signs only when every gateway trusts it.
fn promote(view: &View<'_>, decided: &mut Decided) {
    let Some(issuer_name) = view.seen.entry.issuer_name() else { return };
    let Ok(source) = usable(view.seen.client_source()) else { return };
    if source.chain.is_empty() || view.seen.issuer.is_some_and(|issuer| issuer.chain == source.chain) {
        return;
    }
    let hold = |until, reason: String| wait(StepName::PromoteIssuer, until, reason);
    let entry = view.seen.entry;
    // Until it signs nothing is taken away from anybody. In another namespace it begins empty.
    let signs = view.seen.issuer.is_some_and(|issuer| !issuer.chain.is_empty());
    let namespace = entry.place_of(&issuer_name).0;
    if view.seen.issuer.is_none() && namespace != entry.namespace {
        let reason = format!(
            "Secret {issuer_name} does not exist, and the agent creates none in another namespace. Create it empty, with the annotation \
             {ADOPT}: {}",
            entry.name_in(namespace)
        );
        decided.waits.push(hold(None, reason));
    } else if !source.chain[0].is_ca {
        let reason = format!("Secret {} holds no CA: nothing to sign with", view.seen.client_source().1);
        decided.waits.push(hold(None, reason));
    } else if let Some(pause) = view.pause_until(issuer_deadline(view)).filter(|_| signs) {
        decided.waits.push(hold(pause.until, pause.reason));
    } else if let Some(until) = unconverged(view) {
        decided.waits.push(hold(until, format!("not every gateway trusts the new CA yet: Secret {issuer_name} waits")));
        // What a person has to do may be why.
        let held = readers_until(view, issuer_deadline(view)).filter(|held| held.until.is_none());
        decided.waits.extend(held.map(|held| hold(None, held.message)));
    } else if let Some(held) = readers_until(view, issuer_deadline(view)).filter(|_| signs) {
        decided.waits.push(hold(held.until, held.message));
    } else {
        decided.steps.push(Step::PromoteIssuer);
    }
}

fn reissue_clients(view: &View<'_>, decided: &mut Decided) {
    let (issuers, anchors) = (view.client_issuers(), view.server_issuers());
    let newest = |name: &str| view.journal.clients.get(name).and_then(|client| client.newest());
    let lags = |name: &str| {
        newest(name).is_some_and(|held| {
            !migrated(&issuers, &held.chain, view.now) || !anchors.iter().all(|ca| held.trust.contains(ca))
        })
    };
    let mut lagging: Vec<_> = view.seen.clients.iter().filter(|client| lags(&client.name)).collect();
    if lagging.is_empty() {
        return;
    }
    let foreign = few(lagging.iter().filter(|client| client.certificate.is_none()).map(|client| client.name.clone()));
    if let Some(foreign) = foreign {
        let reason =
            format!("no Certificate of cert-manager stands for {foreign}: renew by hand, with the new CA in ca.crt");
        decided.waits.push(wait(StepName::ReissueClients, None, reason));
    }
    let pauses = lagging.iter().filter_map(|client| view.client_pause(client)).collect();
    decided.waits.extend(pause_waits(StepName::ReissueClients, pauses));
    lagging.retain(|client| view.client_pause(client).is_none());
    // One whose CA nobody accepts any more has nothing to lose.
    let is_admitted = |held: &Version| {
        let known = view.journal.client_issuers.iter().map(|authority| std::slice::from_ref(&authority.certificate));
        known.into_iter().any(|ca| admits(ca, &held.chain, view.now))
    };
    if let Some(hold) = of_readers(view) {
        let waits = |held: &Version| is_admitted(held) && client_deadline(view, held).is_none_or(|at| view.now < at);
        let before = lagging.len();
        lagging.retain(|client| !newest(&client.name).is_some_and(waits));
        if lagging.len() < before {
            decided.waits.push(wait(StepName::ReissueClients, hold.until, hold.message));
        }
    }
    let pin = |client: &ClientState| newest(&client.name).and_then(|held| pin(view, held));
    let pinned: Vec<_> = lagging.iter().filter_map(|client| Some((client, pin(client)?))).collect();
    if let Some((_, first)) = pinned.first() {
        let names = few(pinned.iter().map(|(client, _)| client.name.clone())).unwrap_or_default();
        let until = pinned.iter().filter_map(|(_, pin)| pin.until).min();
        let reason = format!(
            "{} ({}) lets {names} in by the hash of the present certificate or key alone: no re-issue until that is changed. Replace \
             verifyCertificateHash and verifyCertificateSpki there by subjectAltNames, or renew clients and hashes together",
            first.reader.object, first.reader.field
        );
        decided.pinned = Some(reason.clone());
        decided.waits.push(wait(StepName::ReissueClients, until, reason));
    }
    lagging.retain(|client| pin(client).is_none());
    let certificates: Vec<_> = lagging.iter().filter_map(|client| client.certificate.as_ref()).collect();
    if certificates.is_empty() {
        return;
    }
    // What is asked for before webhooks know the clients' new bundle would have to be asked for again.
    let lag = view.policy().propagation_delays.admission;
    let told = view.journal.client_bundles.last().filter(|_| view.journal.offered.is_empty());
    let known = told.map(|bundle| lag.after(bundle.since) + SECOND);
    if known.is_none_or(|known| view.now < known) {
        decided.waits.push(wait(StepName::ReissueClients, known, "the webhook may not know the new bundle yet"));
        return;
    }
    let under_way = view.seen.clients.iter().filter_map(|client| client.certificate.as_ref()).filter(|c| c.is_issuing);
    let room = AT_ONCE.saturating_sub(under_way.count());
    let idle = certificates.iter().filter(|certificate| !certificate.is_issuing).take(room);
    decided.steps.extend(idle.map(|certificate| Step::Reissue { certificate: certificate.name.clone() }));
    if let Some(names) = few(certificates.iter().map(|certificate| certificate.name.clone())) {
        decided.waits.push(wait(StepName::ReissueClients, None, format!("being re-issued: {names}")));
    }
}

/// Instants of cert-manager are of whole seconds.
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// The gateways' leaf is asked for when it can be served at once: until then the root holds the pair that is served, should the
/// managed Secret be lost.
fn reissue_root(view: &View<'_>, decided: &mut Decided) {
    let anchors = view.server_issuers();
    let Some(root) = view.root_chain() else { return };
    let certificate = view.seen.root_certificate.as_ref().filter(|one| !one.is_issuing);
    let Some(certificate) = certificate.filter(|_| !verifies(&anchors, root, view.now)) else { return };
    let lagging = without(view, &anchors);
    let hold = |until, reason| wait(StepName::ReissueServingCertificate, until, reason);
    if let Some(names) = &lagging {
        decided.leaf_hold = LeafHold::of(view, root, Some(names.clone()));
    }
    let deadline = source_deadline(view, root);
    let direct = of_source(view).filter(|_| deadline.is_none_or(|at| view.now < at));
    match (view.reissue_pause(Some(certificate), deadline), lagging, direct) {
        (Some(pause), _, _) => decided.waits.push(hold(pause.until, pause.reason)),
        (None, Some(names), _) => decided.waits.push(hold(None, lacking(&names))),
        (None, None, Some(reason)) => decided.waits.push(hold(None, reason)),
        (None, None, None) => decided.steps.push(Step::Reissue { certificate: certificate.name.clone() }),
    }
}

/// What gateways present next to the managed Secret's leaf is in use the moment that it is issued: it is asked for when that leaf could
/// change, too.
fn reissue_presented_also(view: &View<'_>, decided: &mut Decided) {
    let anchors = view.server_issuers();
    let mut held = Vec::new();
    for also in &view.seen.presented_also {
        let Some((certificate, chain)) = also.certificate.as_ref().zip(also.chain.as_deref()) else { continue };
        if certificate.is_issuing || !is_of_old(view, &also.name, chain) {
            continue;
        }
        let told = |until, reason: &str| Pause { until, reason: format!("Certificate {}: {reason}", certificate.name) };
        // Clients that nobody declared hold it as they hold the leaf of the managed Secret.
        let switch =
            || switch_blocker(view, chain, |trust| holds(trust, &anchors)).0.map(|wait| told(wait.until, &wait.reason));
        let pause = view.reissue_pause(Some(certificate), source_deadline(view, chain));
        match pause.or_else(|| Some(told(None, &lacking(&without(view, &anchors)?)))).or_else(switch) {
            Some(pause) => held.push(pause),
            None => decided.steps.push(Step::Reissue { certificate: certificate.name.clone() }),
        }
    }
    decided.waits.extend(pause_waits(StepName::ReissueServingCertificate, held));
}

/// Gateways present certificates of the old CA next to the managed Secret's: clients have to trust that CA for as long.
fn wait_for_presented_also(view: &View<'_>, decided: &mut Decided) {
    let rotates = view.journal.server_issuers.iter().any(|authority| !authority.current);
    let unmanaged = view.seen.presented_also.iter().filter(|also| rotates && also.certificate.is_none());
    let old = unmanaged.filter(|also| also.chain.as_deref().is_none_or(|chain| is_of_old(view, &also.name, chain)));
    if let Some(names) = few(old.map(|also| also.name.clone())) {
        let reason = format!(
            "gateways present Secret {names} next to the managed one, and no Certificate of cert-manager writes it. Renew it \
             with the new CA once all clients trust that, or take it out of credentialNames"
        );
        decided.waits.push(wait(StepName::ReissueServingCertificate, None, reason));
    }
}

/// What `spec.distrustedCAs` names and the agent's bundle holds all the same, for people.
fn undistrusted(view: &View<'_>) -> Option<String> {
    let distrusted = |ca: &&Certificate| is_distrusted(ca, &view.spec().distrusted_cas);
    if view.spec().mode == Mode::Copy {
        let copied = view.seen.root.map(|root| root.anchors.as_slice()).unwrap_or_default();
        let kept = few(copied.iter().filter(distrusted).map(|ca| ca.subject.clone()))?;
        return Some(format!(
            "mode Copy takes the root as it is, with what spec.distrustedCAs names: {kept}. have a new CA written there"
        ));
    }
    let signing = [view.client_issuers(), view.server_issuers()].concat();
    let kept = few(signing.iter().filter(distrusted).map(|ca| ca.subject.clone()))?;
    Some(format!(
        "spec.distrustedCAs names every CA that its Secret holds: {kept} stays, or nothing were left. have a new CA written there"
    ))
}

fn phase(view: &View<'_>, gateways: &PlannedBundle) -> Phase {
    let now = view.now;
    let Some(served) = view.served_chain() else { return Phase::Pending };
    let (issuers, anchors) = (view.client_issuers(), view.server_issuers());
    let migrated = view.clients_in_use().all(|(_, version)| migrated(&issuers, &version.chain, now));
    let also_switched = || presented_also(view).all(|(name, version)| !is_of_old(view, name, &version.chain));
    let switched = verifies(&anchors, served, now) && also_switched();
    let held = view.seen.managed.map(|managed| managed.anchors.as_slice()).unwrap_or_default();
    let dropped = held == gateways.trust && gateways.trust.iter().all(|ca| issuers.contains(ca));
    let told = view.journal.offered.is_empty();
    let bundle = view.journal.client_bundles.last().map(|bundle| bundle.trust.as_slice()).unwrap_or_default();
    match () {
        () if dropped && switched && migrated && told && bundle.iter().all(|ca| anchors.contains(ca)) => Phase::Steady,
        () if unconverged(view).is_some() || readers_until(view, issuer_deadline(view)).is_some() => {
            Phase::TrustExpanded
        }
        () if switched && migrated => Phase::ServingCertificateSwitched,
        () if migrated && signs_current(view) => Phase::ClientsMigrated,
        () => Phase::Converged,
    }
}

/// The clients that may still go by something of an old CA, although all was asked of them that can be; sorted. While re-issues
/// are held back, by a pause, by a Certificate's own renewal policy or for the gateways, nobody lags.
fn lagging(view: &View<'_>) -> Vec<String> {
    let held = || view.pause().is_some() || readers_until(view, issuer_deadline(view)).is_some();
    if !view.journal.offered.is_empty() || !signs_current(view) || held() {
        return Vec::new();
    }
    let (issuers, anchors) = (view.client_issuers(), view.server_issuers());
    let served = view.served_chain().unwrap_or_default();
    // One that does not go by these CAs at all is not waited for.
    let trusts_old = |trust: &[Certificate]| {
        !served.is_empty() && verifies_to_the_end(trust, served, view.now) && !holds(trust, &anchors)
    };
    let lags = |held: &Version| !migrated(&issuers, &held.chain, view.now) || trusts_old(&held.trust);
    // What its Certificate's own renewal policy holds back, or a server that pins it, was not asked of it yet.
    let newest = |name: &str| view.journal.clients.get(name).and_then(|client| client.newest());
    let is_pinned = |name: &str| newest(name).is_some_and(|held| pin(view, held).is_some());
    let is_held = |name: &str| {
        let client = view.seen.clients.iter().find(|client| client.name == name);
        client.is_some_and(|client| view.client_pause(client).is_some() || is_pinned(name))
    };
    // Sorted already: the journal is a map.
    let mut names: Vec<_> =
        view.clients_in_use().filter(|(_, held)| lags(held)).map(|(name, _)| name.to_owned()).collect();
    names.retain(|name| !is_held(name));
    names.dedup();
    names
}
