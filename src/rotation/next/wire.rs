//! What gateways were seen to have on the wire, and what that says of the contents that they were given.
//!
//! A proxy takes its pair and its bundle as two resources (Envoy's SDS), each at its own time: the leaf that it serves says
//! nothing of the bundle. That is told by a canary, a client that only newer bundles admit. Where neither tells two
//! contents apart, the settle time decides.

use jiff::{SignedDuration, Timestamp};

use super::seen::Seen;
use super::steps::unconverged;
use super::view::{View, admits};
use super::{Step, wait};
use crate::api::{Endpoints, StepName, Wait};
use crate::rotation::few::few;
use crate::rotation::journal::{Sightings, Version};
use crate::trust::Certificate;

/// What gateways showed when they were looked at last.
#[derive(Clone, Debug, Default)]
pub struct Wire {
    /// The chain that was presented to them, leaf first; empty: none was.
    pub canary: Vec<Certificate>,
    /// Every endpoint of their Service.
    pub endpoints: Vec<Endpoint>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// IP address and port.
    pub address: String,
    /// When the connection was begun: of later nothing is known.
    pub at: Timestamp,
    /// What it showed, or why it could not be looked at.
    pub shown: Result<Shown, String>,
}

/// What one of them showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// SHA-256 over the served leaf's DER, lower-case hex.
    pub leaf: String,
    /// What it made of the canary; `None` when it did not ask for one, or did not answer.
    pub canary: Option<Answer>,
}

/// An answer to the canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was let in.
    Accepted,
    /// Its certificate was refused.
    Refused,
}

/// Ends what was seen to be out of use before its time, and keeps what was seen in use beyond it.
pub(super) fn record(seen: &Seen<'_>, versions: &mut Vec<Version>, now: Timestamp) {
    // What nobody is to look at any more is not waited for.
    let spec = &seen.entry.spec;
    for seen in versions.iter_mut().map(|version| &mut version.seen) {
        if spec.reach.is_none() {
            seen.leaf.clear();
        }
        if spec.canary_name().is_none() {
            seen.bundle.clear();
        }
    }
    let Some(wire) = &seen.wire else { return };
    let Some(newest) = versions.last().cloned() else { return };
    let evidence = Evidence { wire, newest: &newest, now };
    for version in versions.iter_mut() {
        version.seen = evidence.sightings(version);
    }
    versions.retain(|version| version.may_be_in_use(spec.settle.gateways, now));
    // Each that goes may be what hid that another one is over.
    let is_over = |versions: &[Version], at: &usize| versions[*at].seen.is_empty() && evidence.is_over(versions, *at);
    while let Some(at) = (0..versions.len()).find(|at| is_over(versions, at)) {
        versions.remove(at);
    }
}

struct Evidence<'a> {
    wire: &'a Wire,
    newest: &'a Version,
    now: Timestamp,
}

impl Evidence<'_> {
    fn admits_canary(&self, version: &Version) -> bool {
        !self.wire.canary.is_empty() && admits(&version.trust, &self.wire.canary, self.now)
    }

    /// Whether every endpoint was seen to be past a version. What it shows must be of later versions alone: with what an
    /// earlier one has too, the endpoint may be before the version as well as after it.
    fn is_over(&self, versions: &[Version], at: usize) -> bool {
        let Some(replaced) = versions[at].replaced else { return false };
        let (until, after) = versions.split_at(at + 1);
        // A part that is as good as the newest in it, and in all that came between, makes no difference to anybody.
        let same_chain = versions[at..].iter().all(|version| version.chain == self.newest.chain);
        let trusts_newest = |version: &Version| self.newest.trust.iter().all(|ca| version.trust.contains(ca));
        let no_less_trust = versions[at..].iter().all(trusts_newest);
        let admits = |versions: &[Version]| versions.iter().any(|version| self.admits_canary(version));
        let told_by_canary = admits(after) && !admits(until);
        let is_past = |endpoint: &Endpoint| {
            let Ok(shown) = &endpoint.shown else { return false };
            let is_later_leaf =
                || after.iter().any(|version| serves(version, shown)) && !until.iter().any(|v| serves(v, shown));
            endpoint.at >= replaced
                && (same_chain || is_later_leaf())
                && (no_less_trust || told_by_canary && shown.canary == Some(Answer::Accepted))
        };
        !self.wire.endpoints.is_empty() && self.wire.endpoints.iter().all(is_past)
    }

    /// The endpoints that have a version which was replaced. One that does not say keeps what was said of it before, as long
    /// as it is there.
    fn sightings(&self, version: &Version) -> Sightings {
        let Some(replaced) = version.replaced else { return Sightings::default() };
        let with = |before: &[String], has: &dyn Fn(&Shown) -> Option<bool>| {
            let has = |endpoint: &&Endpoint| {
                let shown = endpoint.shown.as_ref().ok().filter(|_| endpoint.at >= replaced);
                shown.and_then(has).unwrap_or_else(|| before.contains(&endpoint.address))
            };
            self.wire.endpoints.iter().filter(has).map(|endpoint| endpoint.address.clone()).collect()
        };
        let tells = self.admits_canary(self.newest) && !self.admits_canary(version);
        Sightings {
            leaf: with(&version.seen.leaf, &|shown| Some(serves(version, shown) && !serves(self.newest, shown))),
            bundle: with(&version.seen.bundle, &|shown| {
                shown.canary.filter(|_| tells).map(|answer| answer == Answer::Refused)
            }),
        }
    }
}

fn serves(version: &Version, shown: &Shown) -> bool {
    version.chain.first().is_some_and(|leaf| leaf.fingerprint == shown.leaf)
}

/// How many endpoints showed what; `None` when nobody looked.
pub(super) fn count(view: &View<'_>) -> Option<Endpoints> {
    let endpoints = &view.seen.wire.as_ref()?.endpoints;
    let number = |is: &dyn Fn(&Endpoint) -> bool| {
        u32::try_from(endpoints.iter().filter(|endpoint| is(endpoint)).count()).unwrap_or(u32::MAX)
    };
    Some(Endpoints {
        total: number(&|_| true),
        current: number(&|endpoint| is_current(view, endpoint)),
        former: number(&|endpoint| has_former(view, endpoint)),
        unreachable: number(&|endpoint| endpoint.shown.is_err()),
    })
}

fn has_former(view: &View<'_>, endpoint: &Endpoint) -> bool {
    view.journal.gateways.iter().any(|version| version.seen.contains(&endpoint.address))
}

fn is_current(view: &View<'_>, endpoint: &Endpoint) -> bool {
    let newest = view.journal.gateways.last();
    let serves_newest = endpoint.shown.as_ref().is_ok_and(|shown| newest.is_some_and(|newest| serves(newest, shown)));
    serves_newest && !has_former(view, endpoint)
}

/// What is told of endpoints while some may have a former content.
pub(super) fn waits(view: &View<'_>) -> Vec<Wait> {
    let (Some(reach), Some(wire)) = (&view.spec().reach, &view.seen.wire) else { return Vec::new() };
    let in_use = || view.gateways_in_use().filter(|version| version.replaced.is_some());
    let Some(settled) = in_use().filter_map(|version| version.replaced).max() else { return Vec::new() };
    let settled = view.spec().settle.gateways.after(settled);
    let step = match unconverged(view) {
        None => StepName::DropOldCa,
        Some(_) if view.spec().issuer_secret_name.is_some() => StepName::PromoteIssuer,
        Some(_) => StepName::ReissueClients,
    };
    let which = |is: &dyn Fn(&Endpoint) -> bool| {
        few(wire.endpoints.iter().filter(|endpoint| is(endpoint)).map(|endpoint| endpoint.address.clone()))
    };
    let is_strange = |endpoint: &Endpoint| {
        let known = |shown: &Shown| view.journal.gateways.iter().any(|version| serves(version, shown));
        endpoint.shown.as_ref().is_ok_and(|shown| !known(shown))
    };
    let former = which(&|endpoint| has_former(view, endpoint)).map(|names| {
        let reason = format!("seen with a former content of the managed Secret: {names}. restart what stays behind");
        wait(step, None, reason)
    });
    let ahead = Some(settled).filter(|settled| *settled > view.now);
    let why = wire.endpoints.iter().find_map(|endpoint| endpoint.shown.as_ref().err());
    let unreachable = which(&|endpoint| endpoint.shown.is_err()).zip(why).map(|(names, why)| {
        let reason = format!("not to be looked at ({why}): {names}. expected TLS there; the settle time counts");
        wait(step, ahead, reason)
    });
    let strange = which(&is_strange).map(|names| {
        let reason = format!(
            "serving {} with a leaf that the managed Secret did not hold: {names}. check spec.reach; the settle time counts",
            reach.host
        );
        wait(step, ahead, reason)
    });
    let none = wire.endpoints.is_empty().then(|| {
        let reason = format!("Service {} has no endpoint to look at: the settle time counts", reach.service_name);
        wait(step, ahead, reason)
    });
    [former, unreachable, strange, none].into_iter().flatten().collect()
}

/// The least time between two issues of a canary that is not of the new CA.
const PATIENCE: SignedDuration = SignedDuration::from_secs(5);

/// The canary is to be of the new CA before anybody else is. Where its Issuer is held back it is asked for in vain, each time
/// after twice as long, until the Issuer signs with the new CA.
pub(super) fn reissue_canary(view: &View<'_>, steps: &mut Vec<Step>) {
    let Some(canary) = &view.seen.canary else { return };
    let Some(certificate) = canary.certificate.as_ref().filter(|certificate| !certificate.is_issuing) else { return };
    let Some(issued) = canary.chain.first().map(|leaf| leaf.not_before) else { return };
    let of_source = view.journal.client_issuers.iter().filter(|authority| authority.current);
    let retired = view.journal.client_issuers.iter().filter_map(|authority| authority.retired);
    let Some(turned) = of_source.map(|authority| authority.since).chain(retired).max() else { return };
    let waited = issued.duration_since(turned);
    let is_due = waited.is_negative() || view.now.duration_since(issued) >= waited.max(PATIENCE);
    if is_due && !admits(&view.client_issuers(), &canary.chain, view.now) {
        steps.push(Step::Reissue { certificate: certificate.name.clone() });
    }
}
