//! The deadlines before the end of a CA, which override a pause.

use jiff::{SignedDuration, Timestamp};
use rcgen::date_time_ymd;

use super::lost_journal::unknown;
use super::probe::{ONE, TWO, expanded};
use super::scene::{HOUR, Scene, before_the_switch, bundle, pair, reissues, source};
use crate::api::StepName;
use crate::rotation::planner::rules::{Rule, without};
use crate::rotation::planner::{Answer, PairOf, Plan, Step};
use crate::trust::fixtures::{Authority, ca, ca_with, parsed};

/// A CA that expires two days after the scene begins, long before the certificates that it signs.
fn ending() -> (Authority, Timestamp) {
    let authority = ca_with("old", |params| params.not_after = date_time_ymd(2030, 1, 3));
    let end = parsed(authority.der()).not_after;
    (authority, end)
}

/// Twice the sum of the default `propagationDelays`: 30s, 10s and 3m.
const BEFORE: SignedDuration = SignedDuration::from_secs(2 * (30 + 10 + 180));
const SECOND: SignedDuration = SignedDuration::from_secs(1);

fn until(plan: &Plan, step: StepName) -> Option<Timestamp> {
    plan.waits.iter().find(|wait| wait.step == step).unwrap_or_else(|| panic!("no {step:?} in {:?}", plan.waits)).until
}

/// A paused rotation: gateways trust the new CA, and no client is reissued.
fn paused(old: &Authority, new: &Authority) -> Scene {
    let mut scene = Scene::steady(old);
    scene.entry.spec.paused = true;
    scene.ca = source(new);
    let plan = scene.reconcile();
    assert_eq!(bundle(&plan), Some(vec!["CN=new", "CN=old"]));
    scene.take(&plan);
    scene.pass(HOUR);
    scene
}

/// The same, after the Issuer's Secret has got the new CA.
fn promoted(old: &Authority, new: &Authority) -> Scene {
    let mut scene = paused(old, new);
    scene.entry.spec.paused = false;
    let plan = scene.reconcile();
    assert_eq!(plan.steps, [Step::PromoteIssuer]);
    scene.take(&plan);
    scene.entry.spec.paused = true;
    scene
}

#[test]
fn a_pause_blocks_until_the_old_ca_is_about_to_expire() {
    let ((old, end), new) = (ending(), ca("new"));
    let mut scene = paused(&old, &new);
    for now in [scene.now, end - BEFORE - SECOND] {
        scene.now = now;
        let plan = scene.reconcile();
        assert_eq!((plan.steps.as_slice(), until(&plan, StepName::PromoteIssuer)), (&[][..], Some(end - BEFORE)));
        assert_eq!(plan.wake, Some(end - BEFORE));
    }
}

#[test]
fn a_pause_does_not_let_the_issuer_sign_with_an_expired_ca() {
    let ((old, end), new) = (ending(), ca("new"));
    let mut scene = paused(&old, &new);
    scene.now = end - BEFORE;
    let plan = scene.reconcile();
    assert_eq!(plan.steps, [Step::PromoteIssuer]);
    scene.take(&plan);
    // The clients are reissued before their CA expires, then the serving certificate.
    assert_eq!(reissues(&scene.reconcile()), ["client"]);
    scene.client = pair(&new, "client");
    scene.client.anchors.push(parsed(old.der()));
    scene.pass(SignedDuration::from_secs(181));
    assert_eq!(reissues(&scene.reconcile()), ["gateway"]);
    scene.source = pair(&new, "gateway");
    let switch = end - SignedDuration::from_mins(2);
    assert_eq!(until(&scene.reconcile(), StepName::SwitchServingCertificate), Some(switch));
    scene.now = switch;
    let switches = |step: &Step| matches!(step, Step::WriteManaged { pair: PairOf::Source, .. });
    assert!(scene.reconcile().steps.iter().any(switches));
}

#[test]
fn does_not_promote_a_ca_that_a_gateway_does_not_trust_however_late() {
    let ((old, end), new) = (ending(), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.entry.spec.paused = true;
    scene.now = end - BEFORE + SECOND;
    scene.ca = source(&new);
    let plan = scene.reconcile();
    assert_eq!(bundle(&plan), Some(vec!["CN=new", "CN=old"]));
    assert!(!plan.steps.contains(&Step::PromoteIssuer));
}

#[test]
fn a_gateway_with_an_earlier_bundle_blocks_until_the_ca_of_its_clients_is_about_to_expire() {
    let ((old, end), new) = (ending(), ca("new"));
    let mut scene = expanded(&old, &new);
    let (served, canary) = (scene.source.clone(), pair(&new, "canary"));
    let shown = [(ONE, Ok((&served, Some(Answer::Accepted)))), (TWO, Ok((&served, Some(Answer::Untrusted))))];
    let deadline = end - BEFORE;
    for now in [scene.now + HOUR, deadline - SECOND * 2] {
        scene.now = now;
        scene.see(Some(&canary), &shown);
        let plan = scene.reconcile();
        assert_eq!((plan.steps.as_slice(), until(&plan, StepName::PromoteIssuer)), (&[][..], Some(deadline)));
        let stale = plan.waits.iter().find(|wait| wait.reason.contains(TWO)).expect("a wait that names it");
        assert!(stale.needs_action && stale.reason.contains(&format!("At {deadline} clients get")), "{stale:?}");
        assert!(plan.converged.iter().all(|ca| ca.subject == "CN=old"));
    }
    scene.see(Some(&canary), &shown);
    let plan = scene.reconcile();
    assert_eq!(plan.steps, [Step::PromoteIssuer]);
    assert!(plan.converged.contains(&parsed(new.der())), "admission lets the new certificates pass");
    assert_eq!(plan.endpoints.unwrap().stale, 1, "it is still reported");
}

#[test]
fn a_client_gets_a_certificate_of_the_present_issuer_before_its_ca_expires_although_a_newer_ca_waits() {
    let ((old, end), next, newest) = (ending(), ca("new"), ca("newest"));
    let mut scene = promoted(&old, &next);
    scene.ca = source(&newest);
    let plan = scene.reconcile();
    scene.take(&plan);
    scene.pass(HOUR);
    assert_eq!(scene.reconcile().wake, Some(end - BEFORE));
    scene.now = end - BEFORE;
    let plan = scene.reconcile();
    assert_eq!(reissues(&plan), ["client"], "{:?}", plan.waits);
    assert!(!plan.steps.contains(&Step::PromoteIssuer), "the pause blocks it");
    scene.client = pair(&next, "client");
    scene.client.anchors.push(parsed(old.der()));
    scene.pass(SECOND);
    assert_eq!(reissues(&scene.reconcile()), [""; 0], "its certificate is of a CA that does not expire");
}

#[test]
fn an_unknown_certificate_is_reissued_before_the_first_ca_expires_despite_a_pause() {
    let ((old, end), new) = (ending(), ca("new"));
    let mut scene = promoted(&old, &new);
    let plan_at = |scene: &mut Scene, now: Timestamp| {
        scene.now = now;
        let plan = scene.plan_with(vec![unknown(end + HOUR)]);
        scene.journal = plan.journal.clone();
        plan
    };
    let plan = plan_at(&mut scene, end - BEFORE - SECOND);
    assert_eq!((reissues(&plan), until(&plan, StepName::ReissueClients)), (vec![], Some(end - BEFORE)));
    let without_rule = without(Rule::UnknownMayEndFirst, || plan_at(&mut scene.clone(), end - BEFORE));
    assert_eq!(reissues(&without_rule), [""; 0], "without the rule the pause lasts");
    assert_eq!(reissues(&plan_at(&mut scene, end - BEFORE)), ["client"]);
}

#[test]
fn a_lagging_client_is_cut_off_when_the_ca_of_the_serving_certificate_expires() {
    let ((old, end), new) = (ending(), ca("new"));
    let mut scene = before_the_switch(&old, &new, true);
    let plan = scene.reconcile();
    assert_eq!(until(&plan, StepName::SwitchServingCertificate), Some(end - SignedDuration::from_mins(2)));
    assert_eq!(plan.switch_blocker.unwrap().end, end);
}
