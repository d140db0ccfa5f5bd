//! What blocks a rotation, and the waits and conditions that report it.

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::json;

use super::scene::{HOUR, Scene, before_the_switch, bundle, pair, reissues, source, waits};
use crate::api::{ChangeWindow, ConditionStatus, Mode, StepName, Wait};
use crate::rotation::planner::{PairOf, Plan, Step};
use crate::rotation::{CLIENTS, CONNECT, DISTRUST, LEAF, SecretSummary};
use crate::trust::fixtures::{Authority, ca, now, parsed, secret};
use crate::trust::{Level, SecretUsage, Severities};

/// A change window from 02:00 to 03:00 UTC each day. The scenes begin at midnight.
fn at_two() -> Vec<ChangeWindow> {
    vec![ChangeWindow::deserialize(json!({ "from": "02:00", "to": "03:00" })).unwrap()]
}

fn wait(plan: &Plan, step: StepName) -> &Wait {
    plan.waits.iter().find(|wait| wait.step == step).unwrap_or_else(|| panic!("no {step:?} in {:?}", plan.waits))
}

fn switches(plan: &Plan) -> bool {
    plan.steps.iter().any(|step| matches!(step, Step::WriteManaged { pair: PairOf::Source, .. }))
}

fn said(scene: &Scene, plan: &Plan, type_: &str) -> (ConditionStatus, String) {
    let status = scene.status(plan);
    let condition = status.condition(type_).unwrap_or_else(|| panic!("no condition {type_}"));
    (condition.status, condition.message.clone())
}

#[test]
fn outside_change_windows_only_new_cas_are_added() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    let opens = scene.now + HOUR;
    scene.entry.policy.change_windows = at_two();
    assert_eq!(scene.reconcile().wake, Some(opens), "the next opening");
    scene.ca = source(&new);
    let plan = scene.reconcile();
    assert_eq!(bundle(&plan), Some(vec!["CN=new", "CN=old"]));
    scene.take(&plan);
    scene.reconcile();
    scene.now += SignedDuration::from_mins(10);
    let plan = scene.reconcile();
    assert_eq!(plan.steps, []);
    let held = wait(&plan, StepName::PromoteIssuer);
    assert_eq!((held.until, held.reason.as_str()), (Some(opens), "No change window of the RotationPolicy is open"));
    scene.now = opens;
    let plan = scene.reconcile();
    assert_eq!(plan.steps, [Step::PromoteIssuer]);
    // The window has closed before the next step.
    scene.take(&plan);
    scene.now = opens + HOUR;
    let plan = scene.reconcile();
    assert_eq!(plan.steps, []);
    assert_eq!(wait(&plan, StepName::ReissueClients).until, Some(opens + HOUR * 24));
    scene.now = opens + HOUR * 24;
    assert_eq!(reissues(&scene.reconcile()), ["client"]);
}

#[test]
fn closed_windows_block_the_serving_certificate_and_its_reissue() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, false);
    scene.entry.policy.change_windows = at_two();
    scene.now += HOUR * 5;
    let source = std::mem::replace(&mut scene.source, pair(&old, "gateway"));
    scene.managed.as_mut().unwrap().chain = scene.source.chain.clone();
    let plan = scene.reconcile();
    assert_eq!((reissues(&plan), wait(&plan, StepName::ReissueServingCertificate).until.is_some()), (vec![], true));
    scene.source = source;
    let plan = scene.reconcile();
    let opens = wait(&plan, StepName::SwitchServingCertificate).until.unwrap();
    assert!(!switches(&plan) && opens > scene.now && opens < scene.now + HOUR * 24);
    scene.now = opens;
    assert!(switches(&scene.reconcile()));
}

#[test]
fn the_end_of_the_serving_certificate_overrides_pause_and_windows() {
    let (old, new) = (ca("old"), ca("new"));
    let hold = [(true, vec![]), (false, at_two())];
    for (paused, windows) in hold {
        for mode in [Mode::Bundle, Mode::Copy] {
            let mut scene = before_the_switch(&old, &new, false);
            (scene.entry.spec.paused, scene.entry.policy.change_windows) = (paused, windows.clone());
            scene.entry.spec.mode = mode;
            let deadline = scene.managed.as_ref().unwrap().chain[0].not_after - SignedDuration::from_mins(2);
            scene.now = deadline - HOUR / 2;
            let plan = scene.reconcile();
            assert!(!switches(&plan) && !plan.steps.contains(&Step::CopySource), "{mode:?}");
            assert_eq!(wait(&plan, StepName::SwitchServingCertificate).until, Some(deadline));
            scene.now = deadline;
            let plan = scene.reconcile();
            assert!(switches(&plan) || plan.steps.contains(&Step::CopySource), "{mode:?}: {:?}", plan.steps);
        }
    }
}

#[test]
fn a_window_in_an_unknown_time_zone_blocks_and_is_reported() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, false);
    scene.entry.policy.change_windows = at_two();
    scene.entry.policy.change_windows[0].time_zone = "Europe/Berlni".to_owned();
    let plan = scene.reconcile();
    let reason = &wait(&plan, StepName::SwitchServingCertificate).reason;
    assert!(!switches(&plan) && reason.contains("no such time zone: Europe/Berlni"), "{reason}");
}

#[test]
fn clients_that_the_switch_will_cut_off_are_reported_before() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, true);
    let end = scene.managed.as_ref().unwrap().chain[0].not_after;
    let plan = scene.reconcile();
    let (status, message) = said(&scene, &plan, LEAF);
    assert_eq!(status, ConditionStatus::False);
    let switch = format!("At {} gateways switch certificates", end - SignedDuration::from_mins(2));
    assert!(message.contains(": client.") && message.contains(&switch), "{message}");
    // Undeclared clients may exist.
    let mut scene = before_the_switch(&old, &new, false);
    scene.entry.spec.clients.all_declared = false;
    let plan = scene.reconcile();
    let (status, message) = said(&scene, &plan, LEAF);
    assert!(status == ConditionStatus::Unknown && message.contains("spec.clients.allDeclared"), "{message}");
    // The agent may not read a namespace of clients, so spec.clients.allDeclared is not sufficient.
    let mut scene = before_the_switch(&old, &new, false);
    scene.unlisted_namespaces = vec!["apps".to_owned()];
    let plan = scene.reconcile();
    for (condition, expected) in [(LEAF, "cannot list Certificates in apps"), (CLIENTS, "trustspan rbac")] {
        let (status, message) = said(&scene, &plan, condition);
        assert!(status == ConditionStatus::Unknown && message.contains(expected), "{message}");
    }
    assert!(!switches(&plan) && wait(&plan, StepName::SwitchServingCertificate).reason.contains("apps"));
    // No client lags.
    let mut scene = before_the_switch(&old, &new, false);
    let plan = scene.reconcile();
    assert_eq!(said(&scene, &plan, LEAF).0, ConditionStatus::True);
}

#[test]
fn a_cut_off_client_is_reported_until_it_can_connect() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, true);
    assert_eq!(said(&scene, &scene.plan(), CONNECT).0, ConditionStatus::True);
    scene.now = scene.managed.as_ref().unwrap().chain[0].not_after - SignedDuration::from_mins(1);
    let plan = scene.reconcile();
    scene.take(&plan);
    for _ in 0..2 {
        let plan = scene.reconcile();
        assert_eq!(plan.cut_off, ["client"]);
        let (status, message) = said(&scene, &plan, CONNECT);
        assert!(status == ConditionStatus::False && message.contains(": client."), "{message}");
        // By then the journal no longer has the old certificate.
        scene.now += SignedDuration::from_secs(40);
    }
    scene.loads_once = false;
    scene.reconcile();
    scene.now += HOUR;
    assert_eq!(said(&scene, &scene.plan(), CONNECT).0, ConditionStatus::True);

    // Mode Copy has removed the client's CA from the managed Secret.
    let mut scene = before_the_switch(&old, &new, false);
    scene.client = pair(&old, "client");
    scene.reconcile();
    scene.entry.spec.mode = Mode::Copy;
    let plan = scene.reconcile();
    scene.take(&plan);
    assert_eq!(scene.reconcile().cut_off, ["client"]);
    scene.entry.spec.mode = Mode::Bundle;
    let plan = scene.reconcile();
    scene.take(&plan);
    scene.managed.as_mut().unwrap().anchors.push(parsed(old.der()));
    assert!(!scene.reconcile().journal.clients["client"].cut_off.refused, "gateways trust it again");
}

#[test]
fn a_client_that_blocks_the_reissue_of_the_source_certificate_is_reported() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, true);
    scene.source = pair(&old, "gateway");
    let plan = scene.reconcile();
    let (status, message) = said(&scene, &plan, LEAF);
    assert!(status == ConditionStatus::False && message.contains(": client."), "{message}");
}

#[test]
fn without_a_new_serving_certificate_it_is_unknown_who_would_not_trust_it() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, true);
    scene.source = SecretSummary::default();
    assert_eq!(said(&scene, &scene.plan(), LEAF).0, ConditionStatus::Unknown);
}

fn distrusting(authorities: &[&Authority]) -> Vec<String> {
    authorities.iter().map(|authority| parsed(authority.der()).fingerprint).collect()
}

#[test]
fn distrust_of_the_only_ca_is_reported_until_there_is_another() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    assert!(scene.status(&scene.plan()).condition(DISTRUST).is_none());
    scene.entry.spec.distrusted_cas = distrusting(&[&old]);
    let plan = scene.reconcile();
    assert_eq!(plan.steps, []);
    let reason = &wait(&plan, StepName::DropOldCA).reason;
    assert!(reason.contains("Cannot remove CN=old"), "{reason}");
    assert_eq!(said(&scene, &plan, DISTRUST), (ConditionStatus::False, reason.clone()));
    scene.ca = source(&new);
    let plan = scene.reconcile();
    assert_eq!(said(&scene, &plan, DISTRUST).0, ConditionStatus::True);
    assert_eq!(bundle(&plan), Some(vec!["CN=new"]));
}

#[test]
fn distrust_that_mode_copy_ignores_is_reported() {
    let old = ca("old");
    let mut scene = Scene::steady(&old);
    scene.entry.spec.distrusted_cas = distrusting(&[&old]);
    scene.entry.spec.mode = Mode::Copy;
    let plan = scene.reconcile();
    let (status, message) = said(&scene, &plan, DISTRUST);
    assert!(status == ConditionStatus::False && message.contains("mode Copy"), "{message}");
}

#[test]
fn an_undeclared_former_client_is_named_with_the_end_of_its_certificate() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.declared = false;
    (scene.ca, scene.issuer) = (source(&new), source(&new));
    for _ in 0..2 {
        let plan = scene.reconcile();
        scene.take(&plan);
        scene.now += HOUR;
    }
    let plan = scene.reconcile();
    let end = scene.client.chain[0].not_after;
    let why = format!(
        "client (deleted or no longer declared: it counts until {end}; to have it forgotten before, create it again with annotation \
             trustspan.dev/retired: \"true\")"
    );
    assert_eq!(waits(&plan), [StepName::DropOldCA, StepName::ReissueServingCertificate]);
    for held in &plan.waits {
        assert!(held.reason.contains(&why), "{}", held.reason);
    }
    scene.source = pair(&new, "gateway");
    let plan = scene.reconcile();
    assert!(wait(&plan, StepName::SwitchServingCertificate).reason.ends_with(&why));
    // After it is declared again, the content of its Secret counts.
    scene.declared = true;
    let plan = scene.reconcile();
    assert!(wait(&plan, StepName::SwitchServingCertificate).reason.ends_with(": client"), "{:?}", plan.waits);
}

#[test]
fn clients_that_mode_copy_would_cut_off_are_reported_from_both_sides() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    assert_eq!(scene.reconcile().cut_off_by_copy, [""; 0]);
    // The source Secret has only the new CA: gateways would reject the client.
    (scene.ca, scene.source) = (source(&new), pair(&new, "gateway"));
    let plan = scene.reconcile();
    scene.take(&plan);
    assert_eq!(scene.reconcile().cut_off_by_copy, ["client"]);
    // The client has a new certificate, and would reject the gateways.
    scene.client.chain = pair(&new, "client").chain;
    scene.pass(HOUR);
    let plan = scene.reconcile();
    scene.take(&plan);
    assert_eq!(scene.reconcile().cut_off_by_copy, ["client"]);
    // The client trusts both CAs, so a copy no longer cuts it off.
    scene.client.anchors.push(parsed(new.der()));
    scene.pass(HOUR);
    assert_eq!(scene.reconcile().cut_off_by_copy, [""; 0]);
    // The source Secret has only the old CA, which did not sign the client's certificate.
    scene.source = pair(&old, "gateway");
    assert_eq!(scene.reconcile().cut_off_by_copy, ["client"]);
    scene.entry.spec.mode = Mode::Copy;
    assert_eq!(scene.reconcile().cut_off_by_copy, [""; 0], "it is one already");
}

#[test]
fn a_stricter_severity_does_not_make_a_stored_secret_unusable() {
    let authority = ca("root");
    let leaf = authority.leaf_with("gateway", |params| {
        params.not_before = rcgen::date_time_ymd(2029, 6, 1);
        params.not_after = rcgen::date_time_ymd(2030, 1, 8);
    });
    let stored = secret(&[("ca.crt", &authority.pem()), ("tls.crt", &leaf.pem()), ("tls.key", &leaf.key_pem())]);
    let denials = |levels: &[(&str, Level)]| -> Vec<&str> {
        let severities = levels.iter().map(|(rule, level)| ((*rule).to_owned(), *level)).collect::<Severities>();
        let summary = SecretSummary::of(&stored, SecretUsage::default(), &severities, now());
        summary.denials.iter().map(|finding| finding.rule).collect()
    };
    let warned = crate::trust::judge_with(&stored, SecretUsage::default(), &Severities::default(), now());
    assert!(warned.iter().any(|finding| finding.rule == "expiring"), "{warned:?}");
    assert_eq!(denials(&[("expiring", Level::Deny)]), [""; 0]);
}
