//! Those who take their trust from an object of `spec.trustBundleTargets`.

use jiff::SignedDuration;

use super::scene::*;
use crate::api::{StepName, TrustBundleTarget, TrustBundleTargetKind};
use crate::rotation::SecretSummary;
use crate::rotation::planner::{ClientState, PairOf, Plan, Step, Trust};
use crate::trust::fixtures::{Authority, ca, ca_without_key_id, parsed};

/// The object holds these CAs.
fn distribute(scene: &mut Scene, kind: TrustBundleTargetKind, authorities: &[&Authority]) {
    let place = TrustBundleTarget { kind, namespace: None, name: "trust".to_owned(), key: "ca.crt".to_owned() };
    scene.bundle_readers = vec![ClientState {
        name: place.readers(),
        chain: Vec::new(),
        trust: Trust::Read(authorities.iter().map(|authority| parsed(authority.der())).collect()),
        loads_once: false,
        certificate: None,
        pending: None,
    }];
    scene.entry.spec.trust_bundle_targets = vec![place];
}

fn switches(plan: &Plan) -> bool {
    plan.steps.iter().any(|step| matches!(step, Step::WriteManaged { pair: PairOf::Root, .. }))
}

fn held_for(plan: &Plan, step: StepName, words: &str) -> bool {
    plan.waits.iter().any(|wait| wait.step == step && wait.reason.contains(words))
}

#[test]
fn the_leaf_changes_when_readers_of_what_is_distributed_have_had_time_for_the_new_ca() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, false);
    distribute(&mut scene, TrustBundleTargetKind::ConfigMap, &[&old]);
    scene.pass(HOUR);
    let plan = scene.look();
    assert!(
        !switches(&plan) && held_for(&plan, StepName::SwitchServingCertificate, "readers of ConfigMap trust (ca.crt)"),
        "{plan:?}"
    );
    assert_eq!(plan.lagging, ["readers of ConfigMap trust (ca.crt)"]);
    scene.keep_status(&plan);
    scene.now += HOUR;
    let status = scene.status(&scene.ask());
    let follows = status.condition("ClientsCurrent").unwrap();
    assert!(follows.message.contains("see condition Synced"), "{}", follows.message);
    distribute(&mut scene, TrustBundleTargetKind::ConfigMap, &[&new, &old]);
    scene.look();
    scene.now += SignedDuration::from_secs(179);
    assert!(!switches(&scene.look()), "written a moment ago");
    scene.now += SignedDuration::from_secs(1);
    assert!(switches(&scene.look()));
}

#[test]
fn nobody_waits_for_readers_of_what_is_distributed_no_more_or_holds_no_ca_that_counts() {
    let (old, new, other) = (ca("old"), ca("new"), ca("other"));
    let mut scene = before_the_switch(&old, &new, false);
    distribute(&mut scene, TrustBundleTargetKind::ConfigMap, &[&old]);
    scene.pass(HOUR);
    scene.bundle_readers.clear();
    scene.entry.spec.trust_bundle_targets.clear();
    assert!(switches(&scene.look()));
    distribute(&mut scene, TrustBundleTargetKind::ConfigMap, &[&other]);
    assert!(switches(&scene.look()), "they do not verify what is served now, either");
}

#[test]
fn an_object_that_cannot_be_read_counts_as_it_was_last() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, false);
    distribute(&mut scene, TrustBundleTargetKind::ConfigMap, &[&old]);
    scene.pass(HOUR);
    distribute(&mut scene, TrustBundleTargetKind::ConfigMap, &[]);
    scene.pass(HOUR);
    assert!(!switches(&scene.look()));
}

/// What a CA signs without key identifiers, as `openssl x509 -req` did before 3.0.
fn plain(authority: &Authority, name: &str) -> SecretSummary {
    let leaf = authority.leaf_with(name, |_| {});
    SecretSummary {
        anchors: vec![parsed(authority.der())],
        chain: vec![parsed(leaf.der())],
        ..SecretSummary::default()
    }
}

#[test]
fn two_cas_that_a_leaf_does_not_tell_apart_are_not_given_to_readers_that_take_them_in_any_order() {
    let (old, new) = (ca_without_key_id("root"), ca_without_key_id("root"));
    let mid_rotation = |kind| {
        let mut scene = Scene::steady_with(source(&old), plain(&old, "gateway"), plain(&old, "client"));
        distribute(&mut scene, kind, &[&old]);
        scene.pass(HOUR);
        scene.ca = source(&new);
        scene
    };
    let plan = mid_rotation(TrustBundleTargetKind::ClusterTrustBundle).look();
    assert_eq!(plan.client_bundle.len(), 2);
    assert!(plan.unordered.is_some(), "{plan:?}");
    assert!(held_for(&plan, StepName::ExpandTrust, "ClusterTrustBundle trust is not changed"), "{:?}", plan.waits);
    assert_eq!(mid_rotation(TrustBundleTargetKind::ConfigMap).look().unordered, None, "its order is kept");
    // They do not get the new CA, and so the leaf does not change.
    let mut scene = mid_rotation(TrustBundleTargetKind::ClusterTrustBundle);
    scene.root = plain(&new, "gateway");
    scene.client = plain(&new, "client");
    scene.client.anchors.push(parsed(old.der()));
    for _ in 0..5 {
        let plan = scene.look();
        assert!(!switches(&plan));
        scene.take(&plan);
        scene.now += HOUR;
    }
    assert!(held_for(&scene.look(), StepName::SwitchServingCertificate, "readers of ClusterTrustBundle trust"));
}

#[test]
fn two_cas_of_one_name_with_key_identifiers_are_given_to_them() {
    let (old, new) = (ca("root"), ca("root"));
    let mut scene = Scene::steady(&old);
    distribute(&mut scene, TrustBundleTargetKind::ClusterTrustBundle, &[&old]);
    scene.ca = source(&new);
    let plan = scene.look();
    assert_eq!((plan.client_bundle.len(), plan.unordered), (2, None));
}
