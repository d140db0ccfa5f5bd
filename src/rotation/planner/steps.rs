//! The decisions, one for each step, and the phase that they add up to.

use jiff::{SignedDuration, Timestamp};

use super::copy;
use super::expiry;
use super::leaf::{self, LeafHold};
use super::readers;
use super::snapshot::{ClientState, TrustCopy, authorities, usable};
use super::trust::{PlannedBundle, holds};
use super::view::{self, Pause, View, admits, verifies};
use super::{PairOf, Step, pending, probe, wait};
use crate::api::names::ADOPT;
use crate::api::{Mode, Phase, StepName, Wait};
use crate::rotation::SecretSummary;
use crate::rotation::journal::Version;
use crate::rotation::name_list::few;
use crate::trust::{Certificate, is_distrusted};

/// Certificates that cert-manager is asked for at a time.
const AT_ONCE: usize = 10;

#[derive(Default)]
pub(super) struct Decided {
    pub(super) steps: Vec<Step>,
    pub(super) waits: Vec<Wait>,
    pub(super) trouble: Option<String>,
    pub(super) leaf_hold: Option<LeafHold>,
    pub(super) undistrusted: Option<String>,
    pub(super) pinned: Option<String>,
    pub(super) phase: Phase,
}

pub(super) fn decide(view: &View<'_>, gateways: &PlannedBundle) -> Decided {
    let mut decided = Decided { trouble: trouble(view), ..Decided::default() };
    if view.spec().mode == Mode::Copy {
        match copy::step(view) {
            None => {}
            Some(step) => match view.served_chain().and_then(|served| leaf::paused(view, served)) {
                Some(wait) => decided.waits.push(wait),
                None => decided.steps.push(step),
            },
        }
    } else {
        manage(view, gateways, &mut decided);
    }
    for map in &view.seen.config_maps {
        let written = readers::config_map(view, map, &gateways.trust);
        decided.steps.extend(written.map(|trust| Step::WriteConfigMap { source: map.name.clone(), trust }));
        decided
            .waits
            .extend(readers::config_map_hold(view, map).map(|reason| wait(StepName::ExpandTrust, None, reason)));
    }
    probe::reissue_canary(view, &mut decided.steps);
    pending::learn(view, &mut decided);
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
pub(super) fn converged(view: &View<'_>, trust: &[Certificate]) -> Vec<Certificate> {
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
            let (held, leaf_hold) = leaf::held(view, served, |trust| verifies(trust, root, view.now));
            decided.leaf_hold = leaf_hold;
            let pair = if held.is_some() { PairOf::Managed } else { PairOf::Root };
            decided.waits.extend(held);
            pair
        }
    };
    if let Some(trust) = readers::sibling(view, &gateways.trust) {
        let is_first = matches!(view.seen.managed_sibling, TrustCopy::Absent);
        match readers::sibling_hold(view).filter(|_| is_first) {
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
    } else if let Some(pause) = view.pause_until(expiry::of_issuer(view)).filter(|_| signs) {
        decided.waits.push(hold(pause.until, pause.reason));
    } else if let Some(until) = unconverged(view) {
        decided.waits.push(hold(until, format!("not every gateway trusts the new CA yet: Secret {issuer_name} waits")));
        // What a person has to do may be why.
        let held = readers::hold(view, expiry::of_issuer(view)).filter(|held| held.until.is_none());
        decided.waits.extend(held.map(|held| hold(None, held.message)));
    } else if let Some(held) = readers::hold(view, expiry::of_issuer(view)).filter(|_| signs) {
        decided.waits.push(hold(held.until, held.message));
    } else {
        decided.steps.push(Step::PromoteIssuer);
    }
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
    decided.waits.extend(view::waits(StepName::ReissueClients, pauses));
    lagging.retain(|client| view.client_pause(client).is_none());
    // One whose CA nobody accepts any more has nothing to lose.
    let is_admitted = |held: &Version| {
        let known = view.journal.client_issuers.iter().map(|authority| std::slice::from_ref(&authority.certificate));
        known.into_iter().any(|ca| admits(ca, &held.chain, view.now))
    };
    if let Some(hold) = readers::of_all(view) {
        let waits = |held: &Version| is_admitted(held) && expiry::of_client(view, held).is_none_or(|at| view.now < at);
        let before = lagging.len();
        lagging.retain(|client| !newest(&client.name).is_some_and(waits));
        if lagging.len() < before {
            decided.waits.push(wait(StepName::ReissueClients, hold.until, hold.message));
        }
    }
    let pin = |client: &ClientState| newest(&client.name).and_then(|held| readers::pin(view, held));
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
    let deadline = expiry::of_root(view, root);
    let direct = readers::of_source(view).filter(|_| deadline.is_none_or(|at| view.now < at));
    match (view.reissue_pause(Some(certificate), deadline), lagging, direct) {
        (Some(pause), _, _) => decided.waits.push(hold(pause.until, pause.reason)),
        (None, Some(names), _) => decided.waits.push(hold(None, lacking(&names))),
        (None, None, Some(reason)) => decided.waits.push(hold(None, reason)),
        (None, None, None) => decided.steps.push(Step::Reissue { certificate: certificate.name.clone() }),
    }
}

/// Clients that are not known to trust all of these CAs, for people.
fn without(view: &View<'_>, anchors: &[Certificate]) -> Option<String> {
    let lacks = |held: &Version| !holds(&held.trust, anchors);
    few(view.clients_in_use().filter(|(_, held)| lacks(held)).map(|(name, _)| view.told(name)))
}

fn lacking(names: &str) -> String {
    format!("clients that may not trust the new CA yet: {names}")
}

/// What gateways present next to the managed Secret's leaf is in use the moment that it is issued: it is asked for when that leaf could
/// change, too.
fn reissue_presented_also(view: &View<'_>, decided: &mut Decided) {
    let anchors = view.server_issuers();
    let mut held = Vec::new();
    for also in &view.seen.presented_also {
        let Some((certificate, chain)) = also.certificate.as_ref().zip(also.chain.as_deref()) else { continue };
        if certificate.is_issuing || !readers::is_of_old(view, &also.name, chain) {
            continue;
        }
        let told = |until, reason: &str| Pause { until, reason: format!("Certificate {}: {reason}", certificate.name) };
        // Clients that nobody declared hold it as they hold the leaf of the managed Secret.
        let switch =
            || leaf::held(view, chain, |trust| holds(trust, &anchors)).0.map(|wait| told(wait.until, &wait.reason));
        let pause = view.reissue_pause(Some(certificate), expiry::of_root(view, chain));
        match pause.or_else(|| Some(told(None, &lacking(&without(view, &anchors)?)))).or_else(switch) {
            Some(pause) => held.push(pause),
            None => decided.steps.push(Step::Reissue { certificate: certificate.name.clone() }),
        }
    }
    decided.waits.extend(view::waits(StepName::ReissueServingCertificate, held));
}

/// Gateways present certificates of the old CA next to the managed Secret's: clients have to trust that CA for as long.
fn wait_for_presented_also(view: &View<'_>, decided: &mut Decided) {
    let rotates = view.journal.server_issuers.iter().any(|authority| !authority.current);
    let unmanaged = view.seen.presented_also.iter().filter(|also| rotates && also.certificate.is_none());
    let old =
        unmanaged.filter(|also| also.chain.as_deref().is_none_or(|chain| readers::is_of_old(view, &also.name, chain)));
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
    let also_switched =
        || readers::presented_also(view).all(|(name, version)| !readers::is_of_old(view, name, &version.chain));
    let switched = verifies(&anchors, served, now) && also_switched();
    let held = view.seen.managed.map(|managed| managed.anchors.as_slice()).unwrap_or_default();
    let dropped = held == gateways.trust && gateways.trust.iter().all(|ca| issuers.contains(ca));
    let told = view.journal.offered.is_empty();
    let bundle = view.journal.client_bundles.last().map(|bundle| bundle.trust.as_slice()).unwrap_or_default();
    match () {
        () if dropped && switched && migrated && told && bundle.iter().all(|ca| anchors.contains(ca)) => Phase::Steady,
        () if unconverged(view).is_some() || readers::hold(view, expiry::of_issuer(view)).is_some() => {
            Phase::TrustExpanded
        }
        () if switched && migrated => Phase::ServingCertificateSwitched,
        () if migrated && signs_current(view) => Phase::ClientsMigrated,
        () => Phase::Converged,
    }
}

/// Whether a client's leaf is of the new CA; what is not known of it is not waited for.
pub(super) fn migrated(issuers: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    chain.is_empty() || admits(issuers, chain, now)
}
