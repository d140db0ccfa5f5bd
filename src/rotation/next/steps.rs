//! The decisions, one for each step, and the phase that they add up to.

use jiff::{SignedDuration, Timestamp};

use super::seen::{authorities, usable};
use super::trust::{Bundle, holds};
use super::view::{View, admits, verifies};
use super::{PairOf, Step, wait, wire};
use crate::api::{Mode, Phase, StepName, Wait};
use crate::rotation::Facts;
use crate::rotation::journal::Version;
use crate::trust::Certificate;

/// Certificates that cert-manager is asked for at a time.
const AT_ONCE: usize = 10;
/// Names that one reason gives.
const NAMED: usize = 3;

#[derive(Default)]
pub(super) struct Decided {
    pub(super) steps: Vec<Step>,
    pub(super) waits: Vec<Wait>,
    pub(super) trouble: Option<String>,
    pub(super) phase: Phase,
}

pub(super) fn decide(view: &View<'_>, gateways: &Bundle) -> Decided {
    let mut decided = Decided { trouble: trouble(view), ..Decided::default() };
    if view.spec().mode == Mode::Copy {
        match copy(view) {
            Some(_) if view.spec().paused && view.seen.managed.is_some() => {
                decided.waits.push(wait(StepName::SwitchLeaf, None, "spec.paused is set"));
            }
            step => decided.steps.extend(step),
        }
    } else {
        manage(view, gateways, &mut decided);
    }
    wire::reissue_canary(view, &mut decided.steps);
    promote(view, &mut decided);
    let signs_current = signs_current(view);
    if signs_current {
        reissue_clients(view, &mut decided);
    }
    // A CA of the clients' own has no part in the gateways' certificate.
    if signs_current || view.spec().client_ca.is_some() {
        reissue_root(view, &mut decided);
    }
    decided.phase = phase(view, gateways);
    decided.waits.extend(wire::waits(view));
    decided
}

/// The CAs of `trust` that every gateway has, as far as time tells.
pub(super) fn converged(view: &View<'_>, trust: &[Certificate]) -> Vec<Certificate> {
    let everywhere = |ca: &&Certificate| view.gateways_in_use().all(|version| version.trust.contains(ca));
    trust.iter().filter(everywhere).cloned().collect()
}

fn trouble(view: &View<'_>) -> Option<String> {
    let root = usable((view.seen.root, view.seen.entry.root_name()));
    let source = view.seen.client_source();
    let without = || usable(source).ok().filter(|facts| authorities(facts).is_empty());
    let no_ca =
        || without().map(|_| format!("Secret {} holds no CA: name the one that has it in spec.caSecretName", source.1));
    [root, usable(view.seen.server_source()), usable(source)].into_iter().find_map(Result::err).or_else(no_ca)
}

/// The managed Secret of mode `Copy`.
fn copy(view: &View<'_>) -> Option<Step> {
    let root = usable((view.seen.root, view.seen.entry.root_name())).ok()?;
    let same = view.seen.managed.is_some_and(|held| held.anchors == root.anchors && held.chain == root.chain);
    (!same).then_some(Step::CopyRoot)
}

/// The managed Secret of mode `Bundle`.
fn manage(view: &View<'_>, gateways: &Bundle, decided: &mut Decided) {
    if gateways.trust.is_empty() {
        return;
    }
    let pair = match (view.served_chain(), view.root_chain()) {
        (None, None) => return,
        (None, Some(_)) => PairOf::Root,
        (Some(_), None) => PairOf::Managed,
        (Some(served), Some(root)) if served == root => PairOf::Managed,
        (Some(served), Some(root)) => match held_leaf(view, served, root) {
            None => PairOf::Root,
            Some(wait) => {
                decided.waits.push(wait);
                PairOf::Managed
            }
        },
    };
    // What the agent wrote itself would not get better by writing it again.
    let is_ours = |held: &Facts| held.denials.is_empty() || held.is_plain;
    let held = view.seen.managed.is_some_and(|held| held.anchors == gateways.trust && is_ours(held));
    if !held || pair == PairOf::Root {
        decided.steps.push(Step::WriteManaged { trust: gateways.trust.clone(), pair });
    } else if !view.client_issuers().iter().all(|ca| gateways.trust.contains(ca)) || gateways.needed > 0 {
        let reason = format!("{} previous CA(s) are needed by live leaves", gateways.needed);
        decided.waits.push(wait(StepName::DropOldCa, gateways.until, reason));
    } else if let Some(until) = gateways.until {
        let reason = "leaves of the previous CA may be in use that are not known";
        decided.waits.push(wait(StepName::DropOldCa, Some(until), reason));
    }
}

/// Why the gateways must not serve the root's leaf yet.
fn held_leaf(view: &View<'_>, served: &[Certificate], root: &[Certificate]) -> Option<Wait> {
    let (spec, now) = (view.spec(), view.now);
    // Its own end is the deadline: after it nobody verifies the old leaf either.
    let end = served.first().map_or(now, |leaf| leaf.not_after);
    let margin = spec.settle.gateways.duration().saturating_mul(2);
    let deadline = end.saturating_sub(margin).unwrap_or(now);
    let hold = |until: Timestamp, reason: String| Some(wait(StepName::SwitchLeaf, Some(until), reason));
    if now >= deadline {
        return None;
    }
    if spec.paused {
        return hold(deadline, "spec.paused is set".to_owned());
    }
    let breaks = |trust: &[Certificate]| verifies(trust, served, now) && !verifies(trust, root, now);
    let lagging = names(view.clients_in_use().filter(|(_, version)| breaks(&version.trust)).map(|(name, _)| name));
    if let Some(lagging) = lagging {
        return hold(deadline, format!("clients that may not trust the new leaf's CA yet: {lagging}"));
    }
    let before: Vec<_> = view.journal.server_issuers.iter().map(|authority| authority.certificate.clone()).collect();
    let sufficed: Vec<_> = before.into_iter().filter(|ca| verifies(std::slice::from_ref(ca), served, now)).collect();
    if !breaks(&sufficed) {
        return None;
    }
    if !spec.clients.complete {
        let reason = "there may be clients that are not declared: declare all, and say so with spec.clients.complete";
        return hold(deadline, reason.to_owned());
    }
    let since = view.journal.server_issuers.iter().filter(|a| a.current).map(|a| a.since).max().unwrap_or(now);
    let overlap = spec.settle.overlap.after(since);
    if now < overlap {
        return hold(overlap.min(deadline), "the overlap of spec.settle.overlap is not over".to_owned());
    }
    None
}

/// The new CA signs only when every gateway trusts it.
fn promote(view: &View<'_>, decided: &mut Decided) {
    let Some(issuer_name) = &view.spec().issuer_secret_name else { return };
    let Ok(source) = usable(view.seen.client_source()) else { return };
    if source.chain.is_empty() || view.seen.issuer.is_some_and(|issuer| issuer.chain == source.chain) {
        return;
    }
    let hold = |until, reason: String| wait(StepName::PromoteIssuer, until, reason);
    if !source.chain[0].is_ca {
        let reason = format!("Secret {} holds no CA: nothing to sign with", view.seen.client_source().1);
        decided.waits.push(hold(None, reason));
    } else if view.spec().paused && view.seen.issuer.is_some() {
        decided.waits.push(hold(None, "spec.paused is set".to_owned()));
    } else if let Some(until) = unconverged(view) {
        decided.waits.push(hold(until, format!("not every gateway trusts the new CA yet: Secret {issuer_name} waits")));
    } else {
        decided.steps.push(Step::PromoteIssuer);
    }
}

/// Until when some gateway may not trust what signs; `None` when all do.
pub(super) fn unconverged(view: &View<'_>) -> Option<Option<Timestamp>> {
    let issuers = view.client_issuers();
    let lacking: Vec<_> = view.gateways_in_use().filter(|version| !holds(&version.trust, &issuers)).collect();
    let settle = view.spec().settle.gateways;
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
    let lagging: Vec<_> = view.seen.clients.iter().filter(|client| lags(&client.name)).collect();
    if lagging.is_empty() {
        return;
    }
    let foreign =
        names(lagging.iter().filter(|client| client.certificate.is_none()).map(|client| client.name.as_str()));
    if let Some(foreign) = foreign {
        let reason =
            format!("no Certificate of cert-manager stands for {foreign}: renew by hand, with the new CA in ca.crt");
        decided.waits.push(wait(StepName::ReissueClients, None, reason));
    }
    let certificates: Vec<_> = lagging.iter().filter_map(|client| client.certificate.as_ref()).collect();
    if view.spec().paused {
        decided.waits.push(wait(StepName::ReissueClients, None, "spec.paused is set"));
        return;
    }
    // What is asked for before webhooks know the clients' new bundle would have to be asked for again.
    let lag = view.spec().settle.admission;
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
    if let Some(names) = names(certificates.iter().map(|certificate| certificate.name.as_str())) {
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
    let Some(certificate) = &view.seen.root_certificate else { return };
    if verifies(&anchors, root, view.now) || certificate.is_issuing {
        return;
    }
    let lagging =
        names(view.clients_in_use().filter(|(_, version)| !holds(&version.trust, &anchors)).map(|(name, _)| name));
    let hold = |reason: String| wait(StepName::ReissueRoot, None, reason);
    match lagging {
        _ if view.spec().paused => decided.waits.push(hold("spec.paused is set".to_owned())),
        Some(lagging) => decided.waits.push(hold(format!("clients that may not trust the new CA yet: {lagging}"))),
        None => decided.steps.push(Step::Reissue { certificate: certificate.name.clone() }),
    }
}

fn phase(view: &View<'_>, gateways: &Bundle) -> Phase {
    let now = view.now;
    let Some(served) = view.served_chain() else { return Phase::Pending };
    let (issuers, anchors) = (view.client_issuers(), view.server_issuers());
    let migrated = view.clients_in_use().all(|(_, version)| migrated(&issuers, &version.chain, now));
    let switched = verifies(&anchors, served, now);
    let held = view.seen.managed.map(|managed| managed.anchors.as_slice()).unwrap_or_default();
    let dropped = held == gateways.trust && gateways.trust.iter().all(|ca| issuers.contains(ca));
    let told = view.journal.offered.is_empty();
    let bundle = view.journal.client_bundles.last().map(|bundle| bundle.trust.as_slice()).unwrap_or_default();
    match () {
        () if dropped && switched && migrated && told && bundle.iter().all(|ca| anchors.contains(ca)) => Phase::Steady,
        () if unconverged(view).is_some() => Phase::TrustExpanded,
        () if switched && migrated => Phase::LeafSwitched,
        () if migrated && signs_current(view) => Phase::ClientsMigrated,
        () => Phase::Converged,
    }
}

/// Whether a client's leaf is of the new CA; what is not known of it is not waited for.
pub(super) fn migrated(issuers: &[Certificate], chain: &[Certificate], now: Timestamp) -> bool {
    chain.is_empty() || admits(issuers, chain, now)
}

/// A few of the names, each once; `None` when there is none.
pub(super) fn names<'n>(names: impl Iterator<Item = &'n str>) -> Option<String> {
    let mut names: Vec<_> = names.collect();
    names.dedup();
    let told = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => None,
        1..=NAMED => Some(told),
        more => Some(format!("{told} and {} more", more - NAMED)),
    }
}
