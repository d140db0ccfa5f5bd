//! The results of probes, and their effect on a plan.

use jiff::{SignedDuration, Timestamp};

use super::consumers::files;
use super::scene::{HOUR, Scene, before_the_switch, pair, reissues, source};
use super::waits::needs_action;
use crate::api::{Endpoints, Mode, Phase, ProbeMode, ProbeTarget, StepName};
use crate::rotation::SecretSummary;
use crate::rotation::journal::Journal;
use crate::rotation::planner::{Answer, Canary, Endpoint, Issuance, Plan, ProbeResult, Shown, Step};
use crate::trust::content_hash;
use crate::trust::fixtures::{Authority, ca, parsed};
use Answer::{Accepted, Refused, Untrusted};

pub(super) const ONE: &str = "10.0.0.1:8443";
pub(super) const TWO: &str = "10.0.0.2:8443";

/// The result for an endpoint: its serving certificate, and its answer to the canary; or an error.
pub(super) type Sight<'a> = (&'a str, Result<(&'a SecretSummary, Option<Answer>), &'a str>);

impl Scene {
    pub(super) fn watch(&mut self) {
        self.entry.policy.probe.target = Some(ProbeTarget {
            service_name: "gateway".to_owned(),
            port_name: "https".to_owned(),
            host: "shop.example.com".to_owned(),
            client_secret_name: Some("canary".to_owned()),
        });
    }

    /// Probes the endpoints a second later, with these results.
    pub(super) fn see(&mut self, canary: Option<&SecretSummary>, sights: &[Sight<'_>]) {
        self.now += SignedDuration::from_secs(1);
        let at = self.now;
        let endpoint = |(address, shown): &Sight<'_>| {
            let shown = shown.map(|(facts, canary)| Shown { leaf: facts.chain[0].fingerprint.clone(), canary });
            Endpoint { address: (*address).to_owned(), pod: None, at, shown: shown.map_err(str::to_owned) }
        };
        let canary = canary.map(|facts| facts.chain.clone()).unwrap_or_default();
        self.probe_result = Some(ProbeResult { canary, endpoints: sights.iter().map(endpoint).collect() });
    }

    fn promotes(&mut self) -> bool {
        self.reconcile().steps.contains(&Step::PromoteIssuer)
    }
}

/// A scene that is probed, and in which the new CA was just written next to the old one.
pub(super) fn expanded(old: &Authority, new: &Authority) -> Scene {
    let mut scene = Scene::steady(old);
    scene.watch();
    scene.ca = source(new);
    let plan = scene.reconcile();
    scene.take(&plan);
    scene.reconcile();
    scene
}

#[test]
fn a_bundle_counts_as_loaded_once_every_endpoint_accepts_the_canary() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = expanded(&old, &new);
    let (source, canary) = (scene.source.clone(), pair(&new, "canary"));
    let both = [(ONE, Ok((&source, Some(Accepted)))), (TWO, Ok((&source, Some(Accepted))))];
    scene.see(Some(&canary), &both);
    let plan = scene.reconcile();
    assert_eq!((plan.phase, plan.steps.as_slice()), (Phase::Converged, &[Step::PromoteIssuer][..]));
    assert_eq!(plan.converged, [&new, &old].map(|ca| parsed(ca.der())));
    assert_eq!(plan.endpoints, Some(Endpoints { total: 2, current: 2, stale: 0, unreachable: 0 }));
}

#[test]
fn a_probe_does_not_shorten_the_delay_of_those_that_read_a_mirrored_file() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = expanded(&old, &new);
    let (source, canary) = (scene.source.clone(), pair(&new, "canary"));
    scene.trust_loaders = files(&[("a", &old)]);
    scene.trust_loaders[0].loaded = Some(content_hash(&[&new, &old].map(|ca| parsed(ca.der()))));
    for _ in 0..2 {
        scene.see(Some(&canary), &[(ONE, Ok((&source, Some(Accepted))))]);
        assert!(!scene.promotes());
    }
    scene.now += scene.entry.policy.propagation_delays.gateways.duration();
    assert!(scene.promotes());
}

#[test]
fn a_bundle_that_not_every_endpoint_shows_waits_for_the_propagation_delay() {
    let (old, new) = (ca("old"), ca("new"));
    let (of_new, of_old) = (pair(&new, "canary"), pair(&old, "canary"));
    let source = Scene::steady(&old).source;
    let good = (ONE, Ok((&source, Some(Accepted))));
    let cases: [(&str, Option<&SecretSummary>, Vec<Sight<'_>>); 8] = [
        ("one refuses it", Some(&of_new), vec![good, (TWO, Ok((&source, Some(Untrusted))))]),
        ("one refuses its name", Some(&of_new), vec![good, (TWO, Ok((&source, Some(Refused))))]),
        ("one does not answer", Some(&of_new), vec![good, (TWO, Ok((&source, None)))]),
        ("one is not reached", Some(&of_new), vec![good, (TWO, Err("connection refused"))]),
        ("none is there", Some(&of_new), vec![]),
        ("the old content admits it, too", Some(&of_old), vec![good]),
        ("no canary was presented", None, vec![(ONE, Ok((&source, None)))]),
        ("its leaf says nothing of the bundle", None, vec![(ONE, Ok((&source, Some(Accepted))))]),
    ];
    for (what, canary, sights) in cases {
        let mut scene = expanded(&old, &new);
        scene.see(canary, &sights);
        assert!(!scene.promotes(), "{what}");
    }
    // A probe from before the write is no evidence.
    let mut scene = expanded(&old, &new);
    scene.see(Some(&of_new), &[good]);
    scene.probe_result.as_mut().unwrap().endpoints[0].at -= SignedDuration::from_secs(2);
    assert!(!scene.promotes());
}

#[test]
fn the_propagation_delay_decides_if_probes_show_nothing() {
    let (old, new) = (ca("old"), ca("new"));
    let source = Scene::steady(&old).source;
    let canary = pair(&new, "canary");
    let stranger = pair(&new, "stranger");
    let cases: [(&str, Vec<Sight<'_>>); 4] = [
        ("10.0.0.2:8443", vec![(ONE, Ok((&source, Some(Accepted)))), (TWO, Err("connection refused"))]),
        ("no endpoint", vec![]),
        ("shop.example.com", vec![(ONE, Ok((&stranger, None)))]),
        ("", vec![(ONE, Ok((&source, None)))]),
    ];
    for (published, sights) in cases {
        let mut scene = expanded(&old, &new);
        scene.see(Some(&canary), &sights);
        let plan = scene.reconcile();
        let wait = plan.waits.iter().find(|wait| !published.is_empty() && wait.reason.contains(published));
        assert_eq!(wait.is_none(), published.is_empty(), "{:?}", plan.waits);
        assert!(wait.is_none_or(|wait| wait.until == Some(scene.now + SignedDuration::from_secs(29))), "{wait:?}");
        scene.now += SignedDuration::from_secs(28);
        assert!(!scene.promotes(), "{published}");
        scene.now += SignedDuration::from_secs(1);
        assert!(scene.promotes(), "{published}");
    }
}

#[test]
fn the_propagation_delay_does_not_end_a_content_that_a_probe_found_in_use() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = expanded(&old, &new);
    let (source, canary) = (scene.source.clone(), pair(&new, "canary"));
    let good = (ONE, Ok((&source, Some(Accepted))));
    scene.see(Some(&canary), &[good, (TWO, Ok((&source, Some(Untrusted))))]);
    scene.pass(HOUR);
    scene.see(Some(&canary), &[good, (TWO, Ok((&source, Some(Untrusted))))]);
    let plan = scene.reconcile();
    assert_eq!((plan.phase, plan.steps.as_slice()), (Phase::TrustExpanded, &[][..]));
    let wait = plan.waits.iter().find(|wait| wait.reason.contains(TWO)).expect("a wait that names it");
    let end_of_the_old_ca = scene.entry.policy.propagation_delays.deadline(parsed(old.der()).not_after);
    assert_eq!((wait.step, wait.until), (StepName::PromoteIssuer, Some(end_of_the_old_ca)));
    assert_eq!(plan.endpoints, Some(Endpoints { total: 2, current: 1, stale: 1, unreachable: 0 }));
    assert_eq!(Journal::from_text(&plan.journal.to_text()).unwrap(), plan.journal);

    // An endpoint that cannot be reached, or was not probed, may still use the old content.
    scene.see(Some(&canary), &[good, (TWO, Err("connection refused"))]);
    assert!(!scene.promotes());
    scene.probe_result = None;
    assert!(!scene.promotes());
    // A canary that every content admits distinguishes nothing.
    let of_old = pair(&old, "canary");
    scene.see(Some(&of_old), &[good, (TWO, Ok((&source, Some(Accepted))))]);
    assert!(!scene.promotes());
    // The wait ends when the endpoint has the new content, when it no longer exists, and when probes are disabled.
    let ended = |sights: &[Sight<'_>]| {
        let mut scene = scene.clone();
        scene.see(Some(&canary), sights);
        scene.promotes()
    };
    assert!(ended(&[good, (TWO, Ok((&source, Some(Accepted))))]));
    assert!(ended(&[good]));
    assert!(ended(&[]));
    // If the target cannot be derived any more, the endpoint may still use the old content.
    scene.probe_result = None;
    scene.entry.policy.probe.target = None;
    assert!(!scene.promotes());
    scene.entry.policy.probe.mode = ProbeMode::Disabled;
    assert!(scene.promotes());
}

/// A scene in which the new serving certificate was just written. Clients trust both CAs.
fn switched(old: &Authority, new: &Authority) -> (Scene, SecretSummary) {
    let mut scene = before_the_switch(old, new, false);
    scene.watch();
    let former = scene.managed.clone().unwrap();
    let plan = scene.reconcile();
    scene.take(&plan);
    assert_eq!(scene.reconcile().phase, Phase::ServingCertificateSwitched);
    (scene, former)
}

#[test]
fn clients_forget_the_old_ca_once_every_endpoint_serves_the_new_certificate() {
    let (old, new) = (ca("old"), ca("new"));
    let (mut scene, former) = switched(&old, &new);
    let source = scene.source.clone();
    // CAs were only removed since, so no canary is needed.
    scene.see(None, &[(ONE, Ok((&source, None))), (TWO, Ok((&former, None)))]);
    let both = |plan: &Plan| plan.client_bundle.len() == 2;
    assert!(both(&scene.reconcile()));
    scene.see(None, &[(ONE, Ok((&source, None))), (TWO, Ok((&source, None)))]);
    let plan = scene.reconcile();
    assert_eq!(plan.client_bundle, [parsed(new.der())]);
    assert_eq!(scene.reconcile().phase, Phase::Steady);
}

#[test]
fn clients_keep_the_old_ca_while_an_endpoint_serves_the_old_certificate() {
    let (old, new) = (ca("old"), ca("new"));
    let (mut scene, former) = switched(&old, &new);
    let source = scene.source.clone();
    scene.see(None, &[(ONE, Ok((&source, None))), (TWO, Ok((&former, None)))]);
    assert!(!needs_action(&scene.plan().waits, TWO), "the propagation delay is not over");
    scene.pass(HOUR);
    let plan = scene.reconcile();
    assert!(needs_action(&plan.waits, TWO));
    assert_eq!((plan.phase, plan.client_bundle.len()), (Phase::ServingCertificateSwitched, 2));
    let wait = plan.waits.iter().find(|wait| wait.reason.contains(TWO)).expect("a wait that names it");
    assert_eq!((wait.step, wait.until), (StepName::DropOldCA, None));
}

#[test]
fn a_certificate_that_an_earlier_content_has_too_proves_nothing() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.watch();
    scene.entry.spec.mode = Mode::Copy;
    let (former, passing) = (scene.source.clone(), pair(&new, "gateway"));
    for source in [passing, former.clone()] {
        scene.source = source;
        let plan = scene.reconcile();
        scene.take(&plan);
        scene.reconcile();
    }
    // An endpoint with the earlier content may have it from before or from after the short-lived one.
    scene.see(None, &[(ONE, Ok((&former, None)))]);
    let held: Vec<_> = scene.reconcile().journal.gateways.iter().map(|version| version.replaced.is_some()).collect();
    assert_eq!(held, [true, true, false]);
}

/// Probes one endpoint after a write of a bundle, with this canary, which it presents or not. Returns how many
/// endpoints count as current, and the wait about the canary.
fn published(
    old: &Authority,
    new: &Authority,
    held: Option<&SecretSummary>,
    shown: bool,
    answer: Option<Answer>,
) -> (u32, String) {
    let mut scene = expanded(old, new);
    let source = scene.source.clone();
    scene.canary = held.map(|facts| Canary { chain: facts.chain.clone(), certificate: None });
    scene.see(held.filter(|_| shown), &[(ONE, Ok((&source, answer)))]);
    let plan = scene.reconcile();
    let of_canary = plan.waits.iter().map(|wait| wait.reason.as_str()).filter(|reason| reason.contains("canary"));
    (plan.endpoints.expect("a count").current, of_canary.collect::<Vec<_>>().join("; "))
}

#[test]
fn says_why_an_unusable_canary_shows_nothing() {
    let (old, new) = (ca("old"), ca("new"));
    let (of_new, of_old, strange) = (pair(&new, "canary"), pair(&old, "canary"), pair(&ca("strange"), "canary"));
    let mut ended = of_new.clone();
    ended.chain[0].not_after = Scene::steady(&old).now - HOUR;
    let cases = [
        (None, false, None, "Secret canary does not exist"),
        (Some(&of_new), false, None, "holds no certificate with its key"),
        (Some(&ended), true, Some(Untrusted), "expired at"),
        (Some(&strange), true, Some(Untrusted), "of no CA of the new bundle"),
        (Some(&of_old), true, Some(Accepted), "trusted before, too"),
        (Some(&of_new), true, Some(Refused), "rejected for another reason than its CA by 10.0.0.1:8443"),
        (Some(&of_new), true, None, "neither accepted nor rejected by 10.0.0.1:8443"),
    ];
    for (held, shown, answer, why) in cases {
        let (current, reason) = published(&old, &new, held, shown, answer);
        assert_eq!(current, 0, "{why}");
        assert!(reason.contains(why), "{why}: {reason}");
    }
    assert_eq!(published(&old, &new, Some(&of_new), true, Some(Accepted)), (1, String::new()));
    assert_eq!(published(&old, &new, Some(&of_new), true, Some(Untrusted)), (0, String::new()));
}

#[test]
fn an_ended_propagation_delay_is_no_observation() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = expanded(&old, &new);
    let source = scene.source.clone();
    scene.entry.policy.probe.target.as_mut().unwrap().client_secret_name = None;
    for (pause, promotes) in [(1, false), (HOUR.as_secs(), true)] {
        scene.now += SignedDuration::from_secs(pause);
        scene.see(None, &[(ONE, Ok((&source, None)))]);
        let plan = scene.reconcile();
        assert_eq!(plan.steps.contains(&Step::PromoteIssuer), promotes);
        assert_eq!(plan.endpoints, Some(Endpoints { total: 1, current: 0, stale: 0, unreachable: 0 }));
    }
}

/// The CA in between was gone before a probe with a canary of it: its propagation delay says nothing about an endpoint that hangs.
#[test]
fn an_endpoint_that_rejects_a_canary_of_the_next_ca_may_have_any_earlier_content() {
    let (old, new, next) = (ca("old"), ca("new"), ca("next"));
    let mut scene = expanded(&old, &new);
    let (served, canary) = (scene.source.clone(), pair(&next, "canary"));
    scene.now += HOUR;
    scene.ca = source(&next);
    scene.see(Some(&canary), &[(ONE, Ok((&served, Some(Untrusted))))]);
    let plan = scene.reconcile();
    assert_eq!(plan.converged, [parsed(old.der())]);
    scene.take(&plan);
    scene.reconcile();
    scene.see(Some(&canary), &[(ONE, Ok((&served, Some(Accepted))))]);
    assert_eq!(scene.reconcile().converged, [&next, &new, &old].map(|ca| parsed(ca.der())));
    // A canary of another issuer is never accepted, so nothing waits for it.
    let mut scene = expanded(&old, &new);
    scene.now += HOUR;
    scene.see(Some(&canary), &[(ONE, Ok((&served, Some(Untrusted))))]);
    assert_eq!(scene.reconcile().converged, [&new, &old].map(|ca| parsed(ca.der())));
}

#[test]
fn a_gateway_that_refuses_the_canary_for_its_name_has_no_earlier_content_after_the_delay() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = expanded(&old, &new);
    let (source, canary) = (scene.source.clone(), pair(&new, "canary"));
    // It takes the new bundle over in between.
    for answer in [Untrusted, Refused] {
        scene.see(Some(&canary), &[(ONE, Ok((&source, Some(answer))))]);
        assert!(!scene.promotes(), "{answer:?}");
        scene.reconcile();
    }
    scene.now += scene.entry.policy.propagation_delays.gateways.duration();
    assert!(scene.promotes());
}

#[test]
fn a_wait_names_pod_and_address() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = expanded(&old, &new);
    let (source, canary) = (scene.source.clone(), pair(&new, "canary"));
    scene.see(Some(&canary), &[(ONE, Ok((&source, Some(Untrusted))))]);
    scene.probe_result.as_mut().unwrap().endpoints[0].pod = Some("gateway-a".to_owned());
    let plan = scene.reconcile();
    assert!(plan.waits.iter().any(|wait| wait.reason.contains("gateway-a (10.0.0.1:8443)")), "{:?}", plan.waits);
    // The journal records the address: another pod may get it.
    assert_eq!(plan.journal.gateways[0].seen.bundle, [ONE]);
}

fn canary(authority: &Authority, issued: Timestamp) -> Option<Canary> {
    let leaf = authority.leaf_with("canary", |params| {
        params.use_authority_key_identifier_extension = true;
        let seconds = u64::try_from(issued.as_second()).unwrap();
        params.not_before = rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(seconds);
    });
    let certificate = Some(Issuance { name: "canary".to_owned(), ..Issuance::default() });
    Some(Canary { chain: vec![parsed(leaf.der())], certificate })
}

#[test]
fn the_canary_is_reissued_first_and_failed_requests_back_off() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.watch();
    scene.entry.spec.paused = true;
    scene.canary = canary(&old, scene.now);
    assert_eq!(reissues(&scene.reconcile()), [""; 0]);
    scene.now += SignedDuration::from_secs(5);
    scene.ca = source(&new);
    assert_eq!(reissues(&scene.reconcile()), ["canary"], "before anybody else, and in a pause");
    scene.canary.as_mut().unwrap().certificate.as_mut().unwrap().issuing = Some(scene.now);
    assert_eq!(reissues(&scene.reconcile()), [""; 0]);

    // The canary's Issuer still signs with the old CA.
    for pause in [6, 15, 21, 42] {
        scene.now += SignedDuration::from_secs(pause - 1);
        assert_eq!(reissues(&scene.reconcile()), [""; 0], "{pause}");
        scene.now += SignedDuration::from_secs(1);
        scene.canary.as_mut().unwrap().certificate.as_mut().unwrap().issuing = None;
        assert_eq!(reissues(&scene.reconcile()), ["canary"], "{pause}");
        scene.canary = canary(&old, scene.now);
    }
    // The Issuer's Secret now has the new CA.
    scene.now += SignedDuration::from_secs(1);
    scene.issuer = source(&new);
    assert_eq!(reissues(&scene.reconcile()), ["canary"]);
    scene.canary = canary(&new, scene.now);
    assert_eq!(reissues(&scene.reconcile()), [""; 0]);
}
