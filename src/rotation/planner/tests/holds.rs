//! What holds a rotation back, and how that is told.

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::json;

use super::scene::{HOUR, Scene, before_the_switch, bundle, pair, reissues, source, waits};
use crate::api::{ChangeWindow, ConditionStatus, Mode, OnServingCertificateExpiry, Phase, StepName, Wait};
use crate::rotation::planner::{PairOf, Plan, Step};
use crate::rotation::{CLIENTS, CONNECT, DISTRUST, LEAF, SecretSummary};
use crate::trust::fixtures::{Authority, ca, parsed, secret};
use crate::trust::{Duty, Severities, certificates_under};

/// Open from 02:00 to 03:00 UTC each day; the scenes begin at midnight.
fn at_two() -> Vec<ChangeWindow> {
    vec![ChangeWindow::deserialize(json!({ "from": "02:00", "to": "03:00" })).unwrap()]
}

fn wait(plan: &Plan, step: StepName) -> &Wait {
    plan.waits.iter().find(|wait| wait.step == step).unwrap_or_else(|| panic!("no {step:?} in {:?}", plan.waits))
}

fn switches(plan: &Plan) -> bool {
    plan.steps.iter().any(|step| matches!(step, Step::WriteManaged { pair: PairOf::Root, .. }))
}

fn said(scene: &Scene, plan: &Plan, type_: &str) -> (ConditionStatus, String) {
    let status = scene.status(plan);
    let condition = status.condition(type_).unwrap_or_else(|| panic!("no condition {type_}"));
    (condition.status, condition.message.clone())
}

#[test]
fn outside_a_window_trust_grows_and_nothing_else_moves_until_it_opens() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    let opens = scene.now + HOUR;
    scene.entry.policy.change_windows = at_two();
    assert_eq!(scene.look().wake, Some(opens), "the next opening");
    scene.ca = source(&new);
    let plan = scene.look();
    assert_eq!(bundle(&plan), Some(vec!["CN=new", "CN=old"]));
    scene.take(&plan);
    scene.look();
    scene.now += SignedDuration::from_mins(10);
    let plan = scene.look();
    assert_eq!(plan.steps, []);
    let held = wait(&plan, StepName::PromoteIssuer);
    assert_eq!((held.until, held.reason.as_str()), (Some(opens), "no change window of the RotationPolicy is open"));
    scene.now = opens;
    let plan = scene.look();
    assert_eq!(plan.steps, [Step::PromoteIssuer]);
    // The next step comes too late.
    scene.take(&plan);
    scene.now = opens + HOUR;
    let plan = scene.look();
    assert_eq!(plan.steps, []);
    assert_eq!(wait(&plan, StepName::ReissueClients).until, Some(opens + HOUR * 24));
    scene.now = opens + HOUR * 24;
    assert_eq!(reissues(&scene.look()), ["client"]);
}

#[test]
fn a_window_holds_the_leaf_and_its_re_issue() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, false);
    scene.entry.policy.change_windows = at_two();
    scene.now += HOUR * 5;
    let root = std::mem::replace(&mut scene.root, pair(&old, "gateway"));
    scene.managed.as_mut().unwrap().chain = scene.root.chain.clone();
    let plan = scene.look();
    assert_eq!((reissues(&plan), wait(&plan, StepName::ReissueServingCertificate).until.is_some()), (vec![], true));
    scene.root = root;
    let plan = scene.look();
    let opens = wait(&plan, StepName::SwitchServingCertificate).until.unwrap();
    assert!(!switches(&plan) && opens > scene.now && opens < scene.now + HOUR * 24);
    scene.now = opens;
    assert!(switches(&scene.look()));
}

#[test]
fn the_end_of_the_old_leaf_wins_over_a_pause_and_over_windows() {
    let (old, new) = (ca("old"), ca("new"));
    let hold = [(true, vec![]), (false, at_two())];
    for (paused, windows) in hold {
        for mode in [Mode::Bundle, Mode::Copy] {
            let mut scene = before_the_switch(&old, &new, false);
            (scene.entry.spec.paused, scene.entry.policy.change_windows) = (paused, windows.clone());
            scene.entry.spec.mode = mode;
            let deadline = scene.managed.as_ref().unwrap().chain[0].not_after - SignedDuration::from_mins(1);
            scene.now = deadline - HOUR / 2;
            let plan = scene.look();
            assert!(!switches(&plan) && !plan.steps.contains(&Step::CopyRoot), "{mode:?}");
            assert_eq!(wait(&plan, StepName::SwitchServingCertificate).until, Some(deadline));
            scene.now = deadline;
            let plan = scene.look();
            assert!(switches(&plan) || plan.steps.contains(&Step::CopyRoot), "{mode:?}: {:?}", plan.steps);
        }
    }
}

#[test]
fn a_window_in_a_zone_that_there_is_none_of_holds_and_says_so() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, false);
    scene.entry.policy.change_windows = at_two();
    scene.entry.policy.change_windows[0].time_zone = "Europe/Berlni".to_owned();
    let plan = scene.look();
    let reason = &wait(&plan, StepName::SwitchServingCertificate).reason;
    assert!(!switches(&plan) && reason.contains("no such time zone: Europe/Berlni"), "{reason}");
}

#[test]
fn who_is_cut_off_at_the_leafs_end_is_told_before() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, true);
    let end = scene.managed.as_ref().unwrap().chain[0].not_after;
    let plan = scene.look();
    let (status, message) = said(&scene, &plan, LEAF);
    assert_eq!(status, ConditionStatus::False);
    let switch = format!("At {} gateways switch certificates", end - SignedDuration::from_mins(1));
    assert!(message.contains(": client.") && message.contains(&switch), "{message}");
    // Those that nobody knows of.
    let mut scene = before_the_switch(&old, &new, false);
    scene.entry.spec.clients.all_declared = false;
    let plan = scene.look();
    let (status, message) = said(&scene, &plan, LEAF);
    assert!(status == ConditionStatus::Unknown && message.contains("spec.clients.allDeclared"), "{message}");
    // Those in a namespace that the agent may not read, whatever spec.clients.allDeclared says.
    let mut scene = before_the_switch(&old, &new, false);
    scene.unlisted_namespaces = vec!["apps".to_owned()];
    let plan = scene.look();
    for (condition, expected) in [(LEAF, "Cannot list Certificates in apps"), (CLIENTS, "trustspan rbac")] {
        let (status, message) = said(&scene, &plan, condition);
        assert!(status == ConditionStatus::Unknown && message.contains(expected), "{message}");
    }
    assert!(!switches(&plan) && wait(&plan, StepName::SwitchServingCertificate).reason.contains("apps"));
    // Nobody.
    let mut scene = before_the_switch(&old, &new, false);
    let plan = scene.look();
    assert_eq!(said(&scene, &plan, LEAF).0, ConditionStatus::True);
}

#[test]
fn who_was_cut_off_is_told_until_it_follows() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, true);
    assert_eq!(said(&scene, &scene.ask(), CONNECT).0, ConditionStatus::True);
    scene.now = scene.managed.as_ref().unwrap().chain[0].not_after - SignedDuration::from_mins(1);
    let plan = scene.look();
    scene.take(&plan);
    for _ in 0..2 {
        let plan = scene.look();
        assert_eq!(plan.cut_off, ["client"]);
        let (status, message) = said(&scene, &plan, CONNECT);
        assert!(status == ConditionStatus::False && message.contains(": client."), "{message}");
        // Long after the old leaf is forgotten.
        scene.now += SignedDuration::from_secs(40);
    }
    scene.loads_once = false;
    scene.look();
    scene.now += HOUR;
    assert_eq!(said(&scene, &scene.ask(), CONNECT).0, ConditionStatus::True);

    // Its CA is gone, by a copy of the root.
    let mut scene = before_the_switch(&old, &new, false);
    scene.client = pair(&old, "client");
    scene.look();
    scene.entry.spec.mode = Mode::Copy;
    let plan = scene.look();
    scene.take(&plan);
    assert_eq!(scene.look().cut_off, ["client"]);
    scene.entry.spec.mode = Mode::Bundle;
    let plan = scene.look();
    scene.take(&plan);
    scene.managed.as_mut().unwrap().anchors.push(parsed(old.der()));
    assert!(!scene.look().journal.clients["client"].cut_off.refused, "gateways trust it again");
}

#[test]
fn a_client_that_holds_the_re_issue_of_the_root_is_told_too() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, true);
    scene.root = pair(&old, "gateway");
    let plan = scene.look();
    let (status, message) = said(&scene, &plan, LEAF);
    assert!(status == ConditionStatus::False && message.contains(": client."), "{message}");
}

#[test]
fn an_old_leaf_is_kept_beyond_its_end_where_the_spec_says_so() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, true);
    scene.entry.policy.on_serving_certificate_expiry = OnServingCertificateExpiry::Keep;
    // All others live longer.
    let served = old.leaf_with("gateway", |params| params.not_after = rcgen::date_time_ymd(2030, 6, 1));
    let stored =
        secret(&[("ca.crt", &(new.pem() + &old.pem())), ("tls.crt", &served.pem()), ("tls.key", &served.key_pem())]);
    let facts = |now| SecretSummary::of(&stored, Duty::default(), &Severities::default(), now);
    scene.managed = Some(facts(scene.now));
    scene.pass(HOUR);
    let end = certificates_under(&stored, "tls.crt")[0].not_after;
    for now in [end - SignedDuration::from_secs(30), end + HOUR] {
        scene.now = now;
        scene.managed = Some(facts(now));
        let plan = scene.look();
        assert!(!switches(&plan), "{now}: {:?}", plan.steps);
        assert_eq!(wait(&plan, StepName::SwitchServingCertificate).until, None);
        let (status, message) = said(&scene, &plan, LEAF);
        assert!(status == ConditionStatus::False && message.contains("onServingCertificateExpiry: Keep"), "{message}");
        assert_eq!(message.contains(&format!("it expired at {end}")), now > end, "{message}");
        // It lags before and after, and the rotation stands where it stood.
        scene.keep_status(&plan);
        let status = &scene.entry.status;
        assert_eq!((status.phase, status.is_ready()), (Some(Phase::Converged), now < end));
        assert_eq!((status.lagging.len(), plan.cut_off.len(), plan.client_bundle.len()), (1, 0, 2), "{now}");
    }
    // Nothing to change to: nobody knows who would hold it.
    let mut rootless = scene.clone();
    rootless.root = SecretSummary::default();
    assert_eq!(said(&rootless, &rootless.ask(), LEAF).0, ConditionStatus::Unknown);
    // A person decides otherwise.
    scene.entry.policy.on_serving_certificate_expiry = OnServingCertificateExpiry::Switch;
    assert!(switches(&scene.look()));
    // Or the client follows.
    scene.entry.policy.on_serving_certificate_expiry = OnServingCertificateExpiry::Keep;
    scene.loads_once = false;
    assert!(switches(&scene.look()));
}

fn distrusting(authorities: &[&Authority]) -> Vec<String> {
    authorities.iter().map(|authority| parsed(authority.der()).fingerprint).collect()
}

#[test]
fn distrust_that_would_leave_nothing_is_told_until_there_is_another_ca() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    assert!(scene.status(&scene.ask()).condition(DISTRUST).is_none());
    scene.entry.spec.distrusted_cas = distrusting(&[&old]);
    let plan = scene.look();
    assert_eq!(plan.steps, []);
    let reason = &wait(&plan, StepName::DropOldCA).reason;
    assert!(reason.contains("CN=old stays"), "{reason}");
    assert_eq!(said(&scene, &plan, DISTRUST), (ConditionStatus::False, reason.clone()));
    scene.ca = source(&new);
    let plan = scene.look();
    assert_eq!(said(&scene, &plan, DISTRUST).0, ConditionStatus::True);
    assert_eq!(bundle(&plan), Some(vec!["CN=new"]));
}

#[test]
fn distrust_that_a_copy_does_not_heed_is_told() {
    let old = ca("old");
    let mut scene = Scene::steady(&old);
    scene.entry.spec.distrusted_cas = distrusting(&[&old]);
    scene.entry.spec.mode = Mode::Copy;
    let plan = scene.look();
    let (status, message) = said(&scene, &plan, DISTRUST);
    assert!(status == ConditionStatus::False && message.contains("mode Copy"), "{message}");
}

#[test]
fn a_client_that_is_not_declared_any_more_is_named_with_the_end_of_its_leaf() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.declared = false;
    (scene.ca, scene.issuer) = (source(&new), source(&new));
    for _ in 0..2 {
        let plan = scene.look();
        scene.take(&plan);
        scene.now += HOUR;
    }
    let plan = scene.look();
    let end = scene.client.chain[0].not_after;
    let why = format!("client (its Secret is not declared any more, but whoever loaded it may go on until {end})");
    assert_eq!(waits(&plan), [StepName::DropOldCA, StepName::ReissueServingCertificate]);
    for held in &plan.waits {
        assert!(held.reason.ends_with(&why), "{}", held.reason);
    }
    scene.root = pair(&new, "gateway");
    let plan = scene.look();
    assert!(wait(&plan, StepName::SwitchServingCertificate).reason.ends_with(&why));
    // Declared again, it counts by what its Secret holds.
    scene.declared = true;
    let plan = scene.look();
    assert!(wait(&plan, StepName::SwitchServingCertificate).reason.ends_with(": client"), "{:?}", plan.waits);
}

#[test]
fn whom_a_copy_would_cut_off_is_known_from_both_sides() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    assert_eq!(scene.look().cut_off_by_copy, [""; 0]);
    // The root is new: gateways would refuse the client.
    (scene.ca, scene.root) = (source(&new), pair(&new, "gateway"));
    let plan = scene.look();
    scene.take(&plan);
    assert_eq!(scene.look().cut_off_by_copy, ["client"]);
    // It has a new leaf, and would refuse the gateways.
    scene.client.chain = pair(&new, "client").chain;
    scene.pass(HOUR);
    let plan = scene.look();
    scene.take(&plan);
    assert_eq!(scene.look().cut_off_by_copy, ["client"]);
    // It trusts both.
    scene.client.anchors.push(parsed(new.der()));
    scene.pass(HOUR);
    assert_eq!(scene.look().cut_off_by_copy, [""; 0]);
    // A root that is behind: the client's leaf is of a CA that the root does not hold.
    scene.root = pair(&old, "gateway");
    assert_eq!(scene.look().cut_off_by_copy, ["client"]);
    scene.entry.spec.mode = Mode::Copy;
    assert_eq!(scene.look().cut_off_by_copy, [""; 0], "it is one already");
}
