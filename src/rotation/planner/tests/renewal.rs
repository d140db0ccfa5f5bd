//! `spec.renewal` of Certificates, which blocks a reissue in the same way as change windows.

use jiff::{SignedDuration, Timestamp};
use rcgen::date_time_ymd;

use super::super::pause::Pause;
use super::super::plan;
use super::scene::{HOUR, Scene, pair, reissues, source};
use crate::api::{Phase, StepName, Wait};
use crate::rotation::RenewalPolicy;
use crate::rotation::planner::{Canary, Issuance, Plan, Step};
use crate::trust::fixtures::{Authority, ca, ca_with, parsed};

/// Twice the sum of the default `propagationDelays`: 30s, 10s and 3m.
const BEFORE: SignedDuration = SignedDuration::from_secs(2 * (30 + 10 + 180));
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// A CA that expires two days after the scene begins, and the deadline for the reissue of what depends on it.
fn ending() -> (Authority, Timestamp) {
    let authority = ca_with("old", |params| params.not_after = date_time_ymd(2030, 1, 3));
    let deadline = parsed(authority.der()).not_after - BEFORE;
    (authority, deadline)
}

fn waits(plan: &Plan, step: StepName) -> Vec<&Wait> {
    plan.waits.iter().filter(|wait| wait.step == step).collect()
}

/// A scene in which the Issuer signs with the new CA and webhooks know it, so that only reissues are missing.
pub(super) fn promoted(old: &Authority, new: &Authority, renewal: [RenewalPolicy; 2]) -> Scene {
    let mut scene = Scene::steady(old);
    scene.renewal = renewal;
    scene.ca = source(new);
    for _ in 0..2 {
        let plan = scene.reconcile();
        scene.take(&plan);
        scene.reconcile();
        scene.now += SignedDuration::from_mins(10);
    }
    assert_eq!(scene.issuer.chain, scene.ca.chain);
    scene
}

/// Reissues the client.
fn follow(scene: &mut Scene, old: &Authority, new: &Authority) {
    scene.client = pair(new, "client");
    scene.client.anchors.push(parsed(old.der()));
    scene.pass(HOUR);
}

#[test]
fn a_client_whose_renewal_is_disabled_is_reissued_only_before_a_ca_expires() {
    let ((old, deadline), new) = (ending(), ca("new"));
    let mut scene = promoted(&old, &new, [RenewalPolicy::Disabled, RenewalPolicy::Anytime]);
    for now in [scene.now, deadline - SECOND] {
        scene.now = now;
        let plan = scene.reconcile();
        assert_eq!((reissues(&plan), plan.lagging.as_slice(), plan.phase), (vec![], &[][..], Phase::Converged));
        let [held] = waits(&plan, StepName::ReissueClients)[..] else { panic!("{:?}", plan.waits) };
        let said = format!(
            "Certificate client: spec.renewal.policy is Disabled. Renew it before {deadline}, when it is reissued regardless \
             because a CA that it depends on expires: cmctl renew client"
        );
        assert_eq!((held.until, &held.reason), (Some(deadline), &said));
        assert_eq!(plan.wake, Some(deadline));
    }
    scene.now = deadline;
    assert_eq!(reissues(&scene.reconcile()), ["client"]);
}

#[test]
fn a_client_with_renewal_windows_is_reissued_from_its_renewal_time_on() {
    let ((old, deadline), new) = (ending(), ca("new"));
    let due = "2030-01-01T04:00:00Z".parse().unwrap();
    let mut scene = promoted(&old, &new, [RenewalPolicy::Windows(Some(due)), RenewalPolicy::Anytime]);
    assert!(scene.now < due);
    let plan = scene.reconcile();
    let [held] = waits(&plan, StepName::ReissueClients)[..] else { panic!("{:?}", plan.waits) };
    assert_eq!((reissues(&plan), held.until, held.needs_action), (vec![], Some(due), false));
    let said = format!(
        "Certificate client: spec.renewal.windows allows no renewal before {due} (status.renewalTime). Renew it"
    );
    assert!(held.reason.starts_with(&said) && held.reason.contains(&format!("before {deadline}")), "{}", held.reason);
    scene.now = due;
    assert_eq!(reissues(&scene.reconcile()), ["client"]);
    // A renewal that is due after the deadline is not waited for.
    scene.renewal[0] = RenewalPolicy::Windows(Some(deadline + HOUR));
    scene.now = deadline - SECOND;
    let plan = scene.reconcile();
    let [held] = waits(&plan, StepName::ReissueClients)[..] else { panic!("{:?}", plan.waits) };
    assert_eq!((reissues(&plan), held.until), (vec![], Some(deadline)));
    scene.now = deadline;
    assert_eq!(reissues(&scene.reconcile()), ["client"]);
}

#[test]
fn the_source_certificate_waits_for_its_renewal_policy_until_its_ca_is_about_to_expire() {
    let ((old, deadline), new) = (ending(), ca("new"));
    let mut scene = promoted(&old, &new, [RenewalPolicy::Anytime, RenewalPolicy::Disabled]);
    assert_eq!(reissues(&scene.reconcile()), ["client"]);
    follow(&mut scene, &old, &new);
    let plan = scene.reconcile();
    let [held] = waits(&plan, StepName::ReissueServingCertificate)[..] else { panic!("{:?}", plan.waits) };
    assert_eq!((reissues(&plan), held.until), (vec![], Some(deadline)));
    assert!(held.reason.starts_with("Certificate gateway: spec.renewal.policy is Disabled."), "{}", held.reason);
    scene.now = deadline;
    assert_eq!(reissues(&scene.reconcile()), ["gateway"]);
}

#[test]
fn the_wait_names_the_pause_if_a_renewal_policy_blocks_too() {
    let ((old, _), new) = (ending(), ca("new"));
    let mut scene = promoted(&old, &new, [RenewalPolicy::Disabled, RenewalPolicy::Anytime]);
    scene.entry.spec.paused = true;
    let plan = scene.reconcile();
    let [held] = waits(&plan, StepName::ReissueClients)[..] else { panic!("{:?}", plan.waits) };
    assert_eq!((reissues(&plan), held.reason.as_str()), (vec![], "spec.paused is true. To continue, set it to false"));
    scene.entry.spec.paused = false;
    let plan = scene.reconcile();
    assert_eq!(reissues(&plan), [""; 0], "{:?}", plan.waits);
}

#[test]
fn a_canary_whose_renewal_is_disabled_is_not_reissued_and_named() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.watch();
    scene.ca = source(&new);
    let canary = |renewal| {
        let certificate = Issuance { name: "canary".to_owned(), renewal, ..Issuance::default() };
        Some(Canary { chain: pair(&old, "canary").chain, certificate: Some(certificate) })
    };
    scene.canary = canary(RenewalPolicy::Disabled);
    let plan = scene.reconcile();
    assert_eq!(reissues(&plan), [""; 0]);
    scene.take(&plan);
    let (source, presented) = (scene.source.clone(), pair(&old, "canary"));
    scene.see(Some(&presented), &[("10.0.0.1:8443", Ok((&source, None)))]);
    let plan = scene.reconcile();
    let named = |wait: &Wait| wait.reason.contains("Certificate canary: spec.renewal.policy is Disabled");
    assert!(plan.waits.iter().any(named), "{:?}", plan.waits);
    scene.canary = canary(RenewalPolicy::Anytime);
    assert!(scene.reconcile().steps.contains(&Step::Reissue { certificate: "canary".to_owned() }));
}

#[test]
fn names_the_pauses_that_need_a_person_and_those_that_end_first_and_counts_the_others() {
    let pause = |number: i64| Pause {
        until: (number > 0).then(|| Timestamp::UNIX_EPOCH + HOUR * i32::try_from(number).unwrap()),
        reason: format!("Certificate {number}"),
        needs_action: number == 0,
    };
    let reasons = |numbers: &[i64]| -> Vec<String> {
        let waits = plan::pause_waits(StepName::ReissueClients, numbers.iter().map(|number| pause(*number)).collect());
        waits.into_iter().map(|wait| wait.reason).collect()
    };
    assert_eq!(reasons(&[3, 1, 1]), ["Certificate 1", "Certificate 3"]);
    let three = ["Certificate 0", "Certificate 1", "Certificate 2. 1 more Certificate may not be reissued now"];
    assert_eq!(reasons(&[0, 2, 1, 3]), three);
    assert!(reasons(&[4, 5, 2, 1, 3])[2].ends_with(". 2 more Certificates may not be reissued now"));
}
