//! What gateways were seen to have on the wire, and what that says of the contents that they were given.
//!
//! A proxy takes its pair and its bundle as two resources (Envoy's SDS), each at its own time: the leaf that it serves says
//! nothing of the bundle. That is told by a canary, a client that only newer bundles admit. Where neither tells two
//! contents apart, the settle time decides.

use jiff::{SignedDuration, Timestamp};

use super::snapshot::{Answer, Endpoint, Issuance, ProbeResult, Shown, Snapshot, View, admits, unconverged};
use crate::api::{Endpoints, StepName, Wait};
use crate::rotation::journal::{Sightings, Version};
use crate::rotation::name_list::few;

/// Ends what was seen to be out of use before its time, and keeps what was seen in use beyond it.
pub(super) fn record(seen: &Snapshot<'_>, versions: &mut Vec<Version>, now: Timestamp) {
    // What nobody is to look at any more is not waited for.
    let (entry, policy) = (seen.entry, &seen.entry.policy);
    let is_shown = seen.wire.as_ref().is_some_and(|wire| !wire.canary.is_empty());
    let has_canary = entry.canary_name().is_some() || policy.probe.target.is_some() && is_shown;
    for seen in versions.iter_mut().map(|version| &mut version.seen) {
        if policy.probe.target.is_none() {
            seen.leaf.clear();
        }
        if !has_canary {
            seen.bundle.clear();
        }
    }
    let Some(wire) = &seen.wire else { return };
    let Some(newest) = versions.last().cloned() else { return };
    let known: Vec<_> =
        versions.iter().filter_map(|version| version.chain.first()).map(|leaf| leaf.fingerprint.clone()).collect();
    let evidence = Evidence { wire, newest: &newest, now };
    for version in versions.iter_mut() {
        version.seen = evidence.sightings(version, &known);
    }
    versions.retain(|version| version.may_be_in_use(policy.propagation_delays.gateways, now));
    // Each that goes may be what hid that another one is over.
    let is_over = |versions: &[Version], at: &usize| versions[*at].seen.is_empty() && evidence.is_over(versions, *at);
    while let Some(at) = (0..versions.len()).find(|at| is_over(versions, at)) {
        versions.remove(at);
    }
}

struct Evidence<'a> {
    wire: &'a ProbeResult,
    newest: &'a Version,
    now: Timestamp,
}

impl Evidence<'_> {
    fn admits_canary(&self, version: &Version) -> bool {
        !self.wire.canary.is_empty() && admits(&version.trust, &self.wire.canary, self.now)
    }

    /// Whether every endpoint was seen to be past a version.
    fn is_over(&self, versions: &[Version], at: usize) -> bool {
        let Some(is_past) = self.past(versions, at) else { return false };
        !self.wire.endpoints.is_empty() && self.wire.endpoints.iter().all(is_past)
    }

    /// Whether an endpoint was seen to be past a version; `None` when that is the newest, or was guessed. What it shows must be of
    /// later versions alone: with what an earlier one has too, the endpoint may be before the version as well as after it.
    fn past<'v>(&self, versions: &'v [Version], at: usize) -> Option<impl Fn(&Endpoint) -> bool + 'v> {
        let replaced = versions[at].replaced.filter(|_| !versions[at].guessed)?;
        let (until, after) = versions.split_at(at + 1);
        // A part that is as good as the newest in it, and in all that came between, makes no difference to anybody.
        let same_chain = versions[at..].iter().all(|version| version.chain == self.newest.chain);
        let no_less_trust = versions[at..].iter().all(|version| self.trusts_newest(version));
        let admits = |versions: &[Version]| versions.iter().any(|version| self.admits_canary(version));
        // What is not known may be anything.
        let is_told = !until.iter().any(|version| version.guessed);
        let told_by_canary = is_told && admits(after) && !admits(until);
        Some(move |endpoint: &Endpoint| {
            let Ok(shown) = &endpoint.shown else { return false };
            let is_later_leaf =
                || after.iter().any(|version| serves(version, shown)) && !until.iter().any(|v| serves(v, shown));
            endpoint.at >= replaced
                && (same_chain || is_told && is_later_leaf())
                && (no_less_trust || told_by_canary && shown.canary == Some(Answer::Accepted))
        })
    }

    /// Whether a version trusts all that the newest does.
    fn trusts_newest(&self, version: &Version) -> bool {
        self.newest.trust.iter().all(|ca| version.trust.contains(ca))
    }

    /// The endpoints that have a version which was replaced. One that does not say keeps what was said of it before, as long
    /// as it is there. `known`: the leaves that the managed Secret is known to have held.
    fn sightings(&self, version: &Version, known: &[String]) -> Sightings {
        let Some(replaced) = version.replaced else { return Sightings::default() };
        let with = |before: &[String], has: &dyn Fn(&Shown) -> Option<bool>| {
            let has = |endpoint: &&Endpoint| {
                let shown = endpoint.shown.as_ref().ok().filter(|_| endpoint.at >= replaced);
                shown.and_then(has).unwrap_or_else(|| before.contains(&endpoint.address))
            };
            self.wire.endpoints.iter().filter(has).map(|endpoint| endpoint.address.clone()).collect()
        };
        let has_leaf = |shown: &Shown| match version.guessed {
            true => !known.contains(&shown.leaf),
            false => serves(version, shown) && !serves(self.newest, shown),
        };
        let tells = self.admits_canary(self.newest) && !self.admits_canary(version);
        Sightings {
            leaf: with(&version.seen.leaf, &|shown| Some(has_leaf(shown))),
            bundle: with(&version.seen.bundle, &|shown| {
                shown.canary.filter(|_| tells).map(|answer| answer == Answer::Refused)
            }),
        }
    }
}

fn serves(version: &Version, shown: &Shown) -> bool {
    version.chain.first().is_some_and(|leaf| leaf.fingerprint == shown.leaf)
}

/// How many endpoints showed what; `None` when nobody looked. `before`: the contents that were known before this look, with those
/// that the clock has just ended: that it did is nothing that was seen.
pub(super) fn count(view: &View<'_>, before: &[Version]) -> Option<Endpoints> {
    let wire = view.seen.wire.as_ref()?;
    let endpoints = &wire.endpoints;
    let newest = view.journal.gateways.last()?;
    let is_former = |version: &&Version| {
        version.replaced.is_some() || version.trust != newest.trust || version.chain != newest.chain
    };
    let replaced = |version: &Version| Version { replaced: version.replaced.or(Some(view.now)), ..version.clone() };
    let versions: Vec<_> = before.iter().filter(is_former).map(replaced).chain([newest.clone()]).collect();
    let evidence = Evidence { wire, newest, now: view.now };
    // None is known to be past a content that was guessed.
    let past: Option<Vec<_>> = (0..versions.len() - 1).map(|at| evidence.past(&versions, at)).collect();
    let is_current = |endpoint: &Endpoint| {
        let serves_newest = endpoint.shown.as_ref().is_ok_and(|shown| serves(newest, shown));
        let is_past_all = past.as_ref().is_some_and(|past| past.iter().all(|is_past| is_past(endpoint)));
        serves_newest && is_past_all && !has_former(view, endpoint)
    };
    let number = |is: &dyn Fn(&Endpoint) -> bool| {
        u32::try_from(endpoints.iter().filter(|endpoint| is(endpoint)).count()).unwrap_or(u32::MAX)
    };
    Some(Endpoints {
        total: number(&|_| true),
        current: number(&is_current),
        former: number(&|endpoint| has_former(view, endpoint)),
        unreachable: number(&|endpoint| endpoint.shown.is_err()),
    })
}

fn has_former(view: &View<'_>, endpoint: &Endpoint) -> bool {
    view.journal.gateways.iter().any(|version| version.seen.contains(&endpoint.address))
}

/// What is told of endpoints while some may have a former content.
pub(super) fn waits(view: &View<'_>) -> Vec<Wait> {
    let (Some(reach), Some(wire)) = (&view.policy().probe.target, &view.seen.wire) else { return Vec::new() };
    let in_use = || view.gateways_in_use().filter(|version| version.replaced.is_some());
    let Some(settled) = in_use().filter_map(|version| version.replaced).max() else { return Vec::new() };
    let settled = view.policy().propagation_delays.gateways.after(settled);
    let step = match unconverged(view) {
        None => StepName::DropOldCA,
        Some(_) if view.spec().issuer_secret_name.is_some() => StepName::PromoteIssuer,
        Some(_) => StepName::ReissueClients,
    };
    let which = |is: &dyn Fn(&Endpoint) -> bool| {
        few(wire.endpoints.iter().filter(|endpoint| is(endpoint)).map(Endpoint::label))
    };
    let is_strange = |endpoint: &Endpoint| {
        let known = |shown: &Shown| view.journal.gateways.iter().any(|version| serves(version, shown));
        endpoint.shown.as_ref().is_ok_and(|shown| !known(shown))
    };
    let former = which(&|endpoint| has_former(view, endpoint)).map(|names| {
        let reason = format!("seen with a former content of the managed Secret: {names}. check that istiod runs and sends updates; restart a gateway only if others have the new content");
        Wait { step, until: None, reason }
    });
    let ahead = Some(settled).filter(|settled| *settled > view.now);
    let why = wire.endpoints.iter().find_map(|endpoint| endpoint.shown.as_ref().err());
    let unreachable = which(&|endpoint| endpoint.shown.is_err()).zip(why).map(|(names, why)| {
        let reason = format!("not to be looked at ({why}): {names}. expected TLS there; the settle time counts");
        Wait { step, until: ahead, reason }
    });
    let strange = which(&|endpoint| is_strange(endpoint) && !has_former(view, endpoint)).map(|names| {
        let reason = format!(
            "serving {} with a leaf that the managed Secret did not hold: {names}. check probe.target; the settle time counts",
            reach.host
        );
        Wait { step, until: ahead, reason }
    });
    let none = wire.endpoints.is_empty().then(|| {
        let reason = format!("Service {} has no endpoint to look at: the settle time counts", reach.service_name);
        Wait { step, until: ahead, reason }
    });
    let mute = mute_canary(view, wire).map(|why| {
        let reason =
            format!("the canary does not tell whether gateways trust the new CA: {why}. the settle time counts");
        Wait { step, until: ahead, reason }
    });
    [former, unreachable, strange, none, mute].into_iter().flatten().collect()
}

/// Why nothing can be told by the canary, where one is named and there is something to tell; and what mends it.
fn mute_canary(view: &View<'_>, wire: &ProbeResult) -> Option<String> {
    let name = view.seen.entry.canary_name();
    let newest = view.journal.gateways.last()?;
    let evidence = Evidence { wire, newest, now: view.now };
    let mut narrower = view.gateways_in_use().filter(|version| !evidence.trusts_newest(version)).peekable();
    narrower.peek()?;
    let source = view.seen.client_source().1;
    let Some(leaf) = wire.canary.first() else {
        return Some(match (name, &view.seen.canary) {
            (None, _) => {
                format!("Secret {source} holds no key that can sign one. name one in probe.target.clientSecretName")
            }
            (Some(name), None) => format!("Secret {name} does not exist. have a Certificate write it"),
            (Some(name), Some(_)) => {
                format!("Secret {name} holds no certificate with its key. check the Certificate that writes it")
            }
        });
    };
    let held = name.map_or_else(|| format!("signed by Secret {source}"), |name| format!("in Secret {name}"));
    if leaf.not_after < view.now {
        return Some(format!("its certificate {held} ended at {}. have it renewed", leaf.not_after));
    }
    let certificate = view.seen.canary.as_ref().and_then(|canary| canary.certificate.as_ref());
    let hold = certificate.and_then(|one| Some((&one.name, one.renewal.hold(view.now)?.reason)));
    let mend = match hold {
        Some((name, reason)) => format!("Certificate {name}: {reason}. Renew it: cmctl renew {name}"),
        None => format!("expected one of the new CA, from an Issuer that refers to Secret {source} itself"),
    };
    if !evidence.admits_canary(newest) {
        return Some(format!("its certificate {held} is of no CA of the new bundle. {mend}"));
    }
    if narrower.any(|version| evidence.admits_canary(version)) {
        return Some(format!("its certificate {held} is of a CA that gateways trusted before, too. {mend}"));
    }
    let is_silent = |endpoint: &&Endpoint| endpoint.shown.as_ref().is_ok_and(|shown| shown.canary.is_none());
    let silent = few(wire.endpoints.iter().filter(is_silent).map(Endpoint::label))?;
    Some(format!("neither let in nor refused by {silent}. expected gateways that ask for a client's certificate"))
}

/// The least time between two issues of a canary that is not of the new CA.
const PATIENCE: SignedDuration = SignedDuration::from_secs(5);

/// The canary is to be of the new CA before anybody else is. Where its Issuer is held back it is asked for in vain, each time
/// after twice as long, until the Issuer signs with the new CA.
pub(super) fn canary_to_reissue(view: &View<'_>) -> Option<String> {
    let canary = view.seen.canary.as_ref()?;
    let may_be_issued = |issuance: &&Issuance| !issuance.is_issuing && issuance.renewal.hold(view.now).is_none();
    let certificate = canary.certificate.as_ref().filter(may_be_issued)?;
    let issued = canary.chain.first()?.not_before;
    let of_source = view.journal.client_issuers.iter().filter(|authority| authority.current);
    let retired = view.journal.client_issuers.iter().filter_map(|authority| authority.retired);
    let turned = of_source.map(|authority| authority.since).chain(retired).max()?;
    let waited = issued.duration_since(turned);
    let is_due = waited.is_negative() || view.now.duration_since(issued) >= waited.max(PATIENCE);
    (is_due && !admits(&view.client_issuers(), &canary.chain, view.now)).then(|| certificate.name.clone())
}
