//! The results of probes: which versions of the managed Secret the gateways use.
//!
//! A proxy gets its pair and its bundle as two resources (Envoy's SDS), each at its own time, so the serving
//! certificate shows nothing about the bundle. A canary does: a client that only newer bundles accept. If neither
//! distinguishes two versions, the propagation delay decides.

use jiff::Timestamp;

use super::history::{View, admits, authorities};
use super::pace;
use super::pause::Pause;
use super::rules::{Rule, applies};
use super::snapshot::{Answer, Endpoint, Issuance, LoadedTrust, ProbeResult, Shown, Snapshot};
use crate::api::{Endpoints, ProbeMode, Wait};
use crate::rotation::journal::{Sightings, Version};
use crate::rotation::name_list::few;

/// Marks versions as over that no endpoint uses according to the probe, and keeps those that an endpoint uses even after the
/// propagation delay.
pub(super) fn record_sightings(snapshot: &Snapshot<'_>, versions: &mut [Version], now: Timestamp) {
    let (entry, policy) = (snapshot.entry, &snapshot.entry.policy);
    // What earlier probes have shown must not block the rotation after probes were disabled. It counts while there is nothing to probe.
    let outlives = applies(Rule::SightingsOutliveTheirTarget) && policy.probe.mode != ProbeMode::Disabled;
    let is_lost = policy.probe.target.is_none();
    let is_shown = snapshot.probe_result.as_ref().is_some_and(|probe| !probe.canary.is_empty());
    let has_canary = entry.canary_name().is_some() || !is_lost && is_shown;
    for sightings in versions.iter_mut().map(|version| &mut version.seen) {
        if is_lost && !outlives {
            sightings.leaf.clear();
        }
        if !(has_canary || is_lost && outlives) {
            sightings.bundle.clear();
        }
    }
    let Some(probe) = &snapshot.probe_result else { return };
    let Some(newest) = versions.last().cloned() else { return };
    let known: Vec<_> =
        versions.iter().filter_map(|version| version.chain.first()).map(|leaf| leaf.fingerprint.clone()).collect();
    let evidence = Evidence::new(snapshot, probe, &newest, now);
    for version in versions.iter_mut() {
        version.seen = evidence.sightings(version, &known);
        version.over |= !version.may_be_in_use(policy.propagation_delays.gateways, now);
    }
    let is_in_files =
        snapshot.trust_loaders.iter().any(|one| one.is_read_by_others && one.object == LoadedTrust::Managed);
    if is_in_files {
        // Gateways do not show what the readers of a mirrored file have.
        return;
    }
    // A version that is over can make another one over, so iterate to a fixpoint.
    loop {
        let rest: Vec<_> = versions.iter().filter(|version| !version.over).cloned().collect();
        let is_over = |at: &usize| rest[*at].seen.is_empty() && evidence.is_over(&rest, *at);
        let Some(over) = (0..rest.len()).find(is_over) else { return };
        let is_it = |version: &&mut Version| !version.over && **version == rest[over];
        let Some(version) = versions.iter_mut().find(is_it) else { return };
        version.over = true;
    }
}

struct Evidence<'a> {
    probe: &'a ProbeResult,
    newest: &'a Version,
    /// The canary is of the CA that the next bundle adds, so it shows nothing about earlier ones.
    is_canary_ahead: bool,
    now: Timestamp,
}

impl<'a> Evidence<'a> {
    fn new(snapshot: &Snapshot<'_>, probe: &'a ProbeResult, newest: &'a Version, now: Timestamp) -> Self {
        let is_of_source = || {
            let source = snapshot.usable_client_ca().ok();
            source.is_some_and(|secret| admits(&authorities(secret), &probe.canary, now))
        };
        let is_canary_ahead = !probe.canary.is_empty() && !admits(&newest.trust, &probe.canary, now) && is_of_source();
        Self { probe, newest, is_canary_ahead, now }
    }

    fn admits_canary(&self, version: &Version) -> bool {
        !self.probe.canary.is_empty() && admits(&version.trust, &self.probe.canary, self.now)
    }

    /// Whether no endpoint uses a version any more.
    fn is_over(&self, versions: &[Version], at: usize) -> bool {
        let Some(is_past) = self.past(versions, at) else { return false };
        !self.probe.endpoints.is_empty() && self.probe.endpoints.iter().all(is_past)
    }

    /// Whether an endpoint uses a later version than this one; `None` if this is the newest, or was guessed. The
    /// endpoint must show something that only later versions have: what an earlier version has, too, is no evidence.
    fn past<'v>(&self, versions: &'v [Version], at: usize) -> Option<impl Fn(&Endpoint) -> bool + 'v> {
        let replaced = versions[at].replaced.filter(|_| !versions[at].guessed)?;
        let (until, after) = versions.split_at(at + 1);
        // If all later versions have the same chain or bundle as this one, it does not matter which of them the
        // endpoint uses.
        let same_chain = versions[at..].iter().all(|version| version.chain == self.newest.chain);
        let no_less_trust = versions[at..].iter().all(|version| self.trusts_newest(version));
        let admits = |versions: &[Version]| versions.iter().any(|version| self.admits_canary(version));
        // A guessed version may have any content.
        let is_known = !until.iter().any(|version| version.guessed);
        let shown_by_canary = is_known && admits(after) && !admits(until);
        Some(move |endpoint: &Endpoint| {
            let Ok(shown) = &endpoint.shown else { return false };
            let is_later_leaf =
                || after.iter().any(|version| serves(version, shown)) && !until.iter().any(|v| serves(v, shown));
            endpoint.at >= replaced
                && (same_chain || is_known && is_later_leaf())
                && (no_less_trust || shown_by_canary && shown.canary == Some(Answer::Accepted))
        })
    }

    /// Whether a version trusts all that the newest does.
    fn trusts_newest(&self, version: &Version) -> bool {
        self.newest.trust.iter().all(|ca| version.trust.contains(ca))
    }

    /// The endpoints that have a replaced version. An endpoint that shows nothing keeps its earlier sightings while it exists. `known` are
    /// the serving certificates that the managed Secret is known to have held.
    fn sightings(&self, version: &Version, known: &[String]) -> Sightings {
        let consumers = version.seen.consumers.clone();
        let Some(replaced) = version.replaced else { return Sightings { consumers, ..Sightings::default() } };
        // An endpoint with a version that equals the newest has what was written last: a CA was added, and the copy has it no longer.
        let with = |is_newest: bool, before: &[String], has: &dyn Fn(&Shown) -> Option<bool>| {
            if is_newest {
                return Vec::new();
            }
            let has = |endpoint: &&Endpoint| {
                let shown = endpoint.shown.as_ref().ok().filter(|_| endpoint.at >= replaced);
                shown.and_then(has).unwrap_or_else(|| before.contains(&endpoint.address))
            };
            self.probe.endpoints.iter().filter(has).map(|endpoint| endpoint.address.clone()).collect()
        };
        let has_leaf = |shown: &Shown| match version.guessed {
            true => !known.contains(&shown.leaf),
            false => serves(version, shown) && !serves(self.newest, shown),
        };
        // Until the next bundle is in use, an endpoint that rejects a canary of its CA may have any content.
        let differs = match self.is_canary_ahead {
            true => !self.trusts_newest(version),
            false => self.admits_canary(self.newest) && !self.admits_canary(version),
        };
        let Version { chain, trust, seen, .. } = version;
        Sightings {
            leaf: with(*chain == self.newest.chain, &seen.leaf, &|shown| Some(has_leaf(shown))),
            bundle: with(*trust == self.newest.trust, &seen.bundle, &|shown| {
                shown.canary.filter(|_| differs).map(lacks_ca)
            }),
            consumers,
        }
    }
}

fn serves(version: &Version, shown: &Shown) -> bool {
    version.chain.first().is_some_and(|leaf| leaf.fingerprint == shown.leaf)
}

/// Whether an answer shows that the canary's CA is not trusted.
fn lacks_ca(answer: Answer) -> bool {
    match answer {
        Answer::Accepted => false,
        Answer::Untrusted => true,
        Answer::Refused => !applies(Rule::RefusalsNameTheirReason),
    }
}

impl Endpoint {
    /// Pod and address.
    fn pod_and_address(&self) -> String {
        self.pod.as_ref().map_or_else(|| self.address.clone(), |pod| format!("{pod} ({})", self.address))
    }
}

/// What a probe says about this plan.
pub(super) struct Report<'v> {
    /// The number of endpoints in each state; `None` without a probe.
    pub(super) endpoints: Option<Endpoints>,
    /// What the step of the gateways waits for while some endpoints may have an earlier content.
    pub(super) waits: Vec<Wait>,
    /// The canary's Certificate, if it is to be reissued.
    pub(super) canary: Option<&'v Issuance>,
}

/// `before` are the versions in the journal before this snapshot.
pub(super) fn report<'v>(view: &View<'v>, before: &[Version]) -> Report<'v> {
    let waits = waits(view).into_iter().map(|pause| pause.wait(view.gateway_step)).collect();
    Report { endpoints: count(view, before), waits, canary: canary_to_reissue(view) }
}

/// The number of endpoints in each state; `None` without a probe. `before` are the versions in the journal before this
/// snapshot: one whose propagation delay has just ended was not observed to be out of use.
fn count(view: &View<'_>, before: &[Version]) -> Option<Endpoints> {
    let probe = view.snapshot.probe_result.as_ref()?;
    let endpoints = &probe.endpoints;
    let newest = view.journal.gateways.last()?;
    let is_former = |version: &&Version| {
        version.replaced.is_some() || version.trust != newest.trust || version.chain != newest.chain
    };
    let replaced = |version: &Version| Version { replaced: version.replaced.or(Some(view.now)), ..version.clone() };
    let before = before.iter().filter(|version| !version.over);
    let versions: Vec<_> = before.filter(is_former).map(replaced).chain([newest.clone()]).collect();
    let evidence = Evidence::new(view.snapshot, probe, newest, view.now);
    // No endpoint is known to be past a guessed version.
    let past: Option<Vec<_>> = (0..versions.len() - 1).map(|at| evidence.past(&versions, at)).collect();
    let is_current = |endpoint: &Endpoint| {
        let serves_newest = endpoint.shown.as_ref().is_ok_and(|shown| serves(newest, shown));
        let is_past_all = past.as_ref().is_some_and(|past| past.iter().all(|is_past| is_past(endpoint)));
        serves_newest && is_past_all && !is_stale(view, endpoint)
    };
    let number = |is: &dyn Fn(&Endpoint) -> bool| {
        u32::try_from(endpoints.iter().filter(|endpoint| is(endpoint)).count()).unwrap_or(u32::MAX)
    };
    Some(Endpoints {
        total: number(&|_| true),
        current: number(&is_current),
        stale: number(&|endpoint| is_stale(view, endpoint)),
        unreachable: number(&|endpoint| endpoint.shown.is_err()),
    })
}

fn is_stale(view: &View<'_>, endpoint: &Endpoint) -> bool {
    view.journal.gateways.iter().any(|version| version.seen.has_endpoint(&endpoint.address))
}

/// What a step waits for while some endpoints may have an earlier content. Each ends with the propagation delay, unless an endpoint was seen with
/// that content.
fn waits(view: &View<'_>) -> Vec<Pause> {
    let (Some(target), Some(probe)) = (&view.entry.policy.probe.target, &view.snapshot.probe_result) else {
        return Vec::new();
    };
    let Some(replaced) = view.gateways_in_use.iter().filter_map(|version| version.replaced).max() else {
        return Vec::new();
    };
    let propagated = view.entry.policy.propagation_delays.gateways.after(replaced);
    let ahead = Some(propagated).filter(|propagated| *propagated > view.now);
    let which = |is: &dyn Fn(&Endpoint) -> bool| {
        few(probe.endpoints.iter().filter(|endpoint| is(endpoint)).map(Endpoint::pod_and_address))
    };
    let is_foreign = |endpoint: &Endpoint| {
        let known = |shown: &Shown| view.journal.gateways.iter().any(|version| serves(version, shown));
        endpoint.shown.as_ref().is_ok_and(|shown| !known(shown))
    };
    let stale = which(&|endpoint| is_stale(view, endpoint)).map(|names| {
        // Before the delay is over, this is as expected.
        let check = ahead.map_or("Check".to_owned(), |at| format!("No action is needed before {at}. After that, check"));
        let end = view.unconverged.and_then(|unconverged| unconverged.until).filter(|end| *end > propagated);
        let then = end.map_or_else(String::new, |end| {
            format!(
                ". At {end} clients get certificates of the new CA regardless, because theirs end with the old CA: gateways that still lack it \
                 refuse them"
            )
        });
        let reason = format!(
            "Gateways have earlier content of the managed Secret: {names}. {check} that istiod runs and sends updates; restart a \
             gateway only if others have the new content{then}"
        );
        Pause { until: end, reason, needs_action: ahead.is_none() }
    });
    let why = probe.endpoints.iter().find_map(|endpoint| endpoint.shown.as_ref().err());
    let unreachable = which(&|endpoint| endpoint.shown.is_err()).zip(why).map(|(names, why)| {
        let reason = format!("Gateways cannot be probed ({why}), so propagationDelays.gateways is assumed: {names}");
        Pause::without_action(ahead, reason)
    });
    let foreign = which(&|endpoint| is_foreign(endpoint) && !is_stale(view, endpoint)).map(|names| {
        let reason = format!(
            "Gateways serve {} with a certificate that the managed Secret did not hold, so propagationDelays.gateways is assumed: \
             {names}. Check probe.target",
            target.host
        );
        Pause::without_action(ahead, reason)
    });
    let none = probe.endpoints.is_empty().then(|| {
        let reason = format!(
            "Service {} has no endpoint to probe, so propagationDelays.gateways is assumed. Check probe.target.serviceName",
            target.service_name
        );
        Pause::without_action(ahead, reason)
    });
    let mute = mute_canary(view, probe).map(|why| {
        let reason = format!(
            "The canary cannot show which gateways trust the new CA, so propagationDelays.gateways is assumed: {why}"
        );
        Pause::without_action(ahead, reason)
    });
    [stale, unreachable, foreign, none, mute].into_iter().flatten().collect()
}

/// Why the canary does not show which bundle gateways have, and how to correct that.
fn mute_canary(view: &View<'_>, probe: &ProbeResult) -> Option<String> {
    let name = view.entry.canary_name();
    let newest = view.journal.gateways.last()?;
    let evidence = Evidence::new(view.snapshot, probe, newest, view.now);
    let mut narrower = view.gateways_in_use.iter().filter(|version| !evidence.trusts_newest(version)).peekable();
    narrower.peek()?;
    let source = view.entry.client_ca_name();
    let Some(leaf) = probe.canary.first() else {
        return Some(match (name, &view.snapshot.canary) {
            (None, _) => {
                format!("Secret {source} holds no key to sign a canary with. Set probe.target.clientSecretName")
            }
            (Some(name), None) => format!("Secret {name} does not exist. Create a Certificate that writes it"),
            (Some(name), Some(_)) => {
                format!("Secret {name} holds no certificate with its key. Check the Certificate that writes it")
            }
        });
    };
    let held = name.map_or_else(|| format!("signed by Secret {source}"), |name| format!("in Secret {name}"));
    if leaf.is_expired(view.now) {
        return Some(format!("its certificate {held} expired at {}. Renew it", leaf.not_after));
    }
    let certificate = view.snapshot.canary.as_ref().and_then(|canary| canary.certificate.as_ref());
    let blocker = certificate.and_then(|one| Some((&one.name, one.renewal.blocker(view.now)?.reason)));
    let fix = match blocker {
        Some((name, reason)) => format!("Certificate {name}: {reason}. Renew it: cmctl renew {name}"),
        None => format!("It needs a certificate of the new CA, from an Issuer that refers to Secret {source} itself"),
    };
    if !evidence.admits_canary(newest) {
        return Some(format!("its certificate {held} is of no CA of the new bundle. {fix}"));
    }
    if narrower.any(|version| evidence.admits_canary(version)) {
        return Some(format!("its certificate {held} is of a CA that gateways trusted before, too. {fix}"));
    }
    let answering = |answer: Option<Answer>| {
        let answers = |endpoint: &&Endpoint| endpoint.shown.as_ref().is_ok_and(|shown| shown.canary == answer);
        few(probe.endpoints.iter().filter(answers).map(Endpoint::pod_and_address))
    };
    if let Some(names) = answering(Some(Answer::Refused)) {
        return Some(format!(
            "its certificate {held} is rejected for another reason than its CA by {names}. A server that limits clients by name or hash does \
             so: let probe.target.clientSecretName name a certificate that it accepts"
        ));
    }
    let silent = answering(None)?;
    Some(format!("neither accepted nor rejected by {silent}. Let gateways request client certificates"))
}

/// The Certificate of a canary that is not of the new CA yet. It is reissued before the clients. While its Issuer signs
/// with the old CA, the time between requests doubles.
fn canary_to_reissue<'v>(view: &View<'v>) -> Option<&'v Issuance> {
    let canary = view.snapshot.canary.as_ref()?;
    let may_be_issued = |issuance: &&Issuance| !issuance.is_issuing() && issuance.renewal.blocker(view.now).is_none();
    let certificate = canary.certificate.as_ref().filter(may_be_issued)?;
    let issued = Some(certificate.issued.unwrap_or(canary.chain.first()?.not_before));
    let of_source = view.journal.client_issuers.iter().filter(|authority| authority.current);
    let retired = view.journal.client_issuers.iter().filter_map(|authority| authority.retired);
    let changed = of_source.map(|authority| authority.since).chain(retired).max()?;
    let is_due = pace::pause(&Issuance { issued, ..certificate.clone() }, changed, || None, view.now).is_none();
    (is_due && !admits(&view.client_issuers, &canary.chain, view.now)).then_some(certificate)
}
