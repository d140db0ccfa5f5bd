//! Readers of an object of `spec.trustBundleTargets`.

use jiff::SignedDuration;

use super::scene::*;
use crate::api::{StepName, TrustBundleTarget, TrustBundleTargetKind};
use crate::rotation::SecretSummary;
use crate::rotation::planner::{ClientState, PairOf, Plan, Step, Trust};
use crate::trust::fixtures::{Authority, ca, ca_without_key_id, parsed};

/// Writes an object of `spec.trustBundleTargets` with these CAs.
fn distribute(scene: &mut Scene, kind: TrustBundleTargetKind, authorities: &[&Authority]) {
    let place = TrustBundleTarget { kind, namespace: None, name: "trust".to_owned(), key: "ca.crt".to_owned() };
    scene.bundle_readers = vec![ClientState {
        name: place.readers(),
        chain: Vec::new(),
        trust: Trust::Read(authorities.iter().map(|authority| parsed(authority.der())).collect()),
        loads_once: false,
        is_retired: false,
        certificate: None,
        pending: None,
    }];
    scene.entry.spec.trust_bundle_targets = vec![place];
}

fn switches(plan: &Plan) -> bool {
    plan.steps.iter().any(|step| matches!(step, Step::WriteManaged { pair: PairOf::Source, .. }))
}

fn held_for(plan: &Plan, step: StepName, words: &str) -> bool {
    plan.waits.iter().any(|wait| wait.step == step && wait.reason.contains(words))
}

#[test]
fn the_serving_certificate_switches_after_bundle_readers_had_time_to_load_the_new_ca() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, false);
    distribute(&mut scene, TrustBundleTargetKind::ConfigMap, &[&old]);
    scene.pass(HOUR);
    let plan = scene.reconcile();
    assert!(
        !switches(&plan) && held_for(&plan, StepName::SwitchServingCertificate, "readers of ConfigMap trust (ca.crt)"),
        "{plan:?}"
    );
    assert_eq!(plan.lagging, ["readers of ConfigMap trust (ca.crt)"]);
    scene.keep_status(&plan);
    scene.now += HOUR;
    let status = scene.status(&scene.plan());
    let follows = status.condition("ClientsCurrent").unwrap();
    assert!(follows.message.contains("see condition Synced"), "{}", follows.message);
    distribute(&mut scene, TrustBundleTargetKind::ConfigMap, &[&new, &old]);
    scene.reconcile();
    scene.now += SignedDuration::from_secs(179);
    assert!(!switches(&scene.reconcile()), "written a moment ago");
    scene.now += SignedDuration::from_secs(1);
    assert!(switches(&scene.reconcile()));
}

#[test]
fn does_not_wait_for_readers_of_a_removed_target_or_of_one_without_our_ca() {
    let (old, new, other) = (ca("old"), ca("new"), ca("other"));
    let mut scene = before_the_switch(&old, &new, false);
    distribute(&mut scene, TrustBundleTargetKind::ConfigMap, &[&old]);
    scene.pass(HOUR);
    scene.bundle_readers.clear();
    scene.entry.spec.trust_bundle_targets.clear();
    assert!(switches(&scene.reconcile()));
    distribute(&mut scene, TrustBundleTargetKind::ConfigMap, &[&other]);
    assert!(switches(&scene.reconcile()), "they do not verify what is served now, either");
}

#[test]
fn an_unreadable_object_counts_with_its_last_content() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, false);
    distribute(&mut scene, TrustBundleTargetKind::ConfigMap, &[&old]);
    scene.pass(HOUR);
    distribute(&mut scene, TrustBundleTargetKind::ConfigMap, &[]);
    scene.pass(HOUR);
    assert!(!switches(&scene.reconcile()));
}

/// A certificate without key identifiers, as `openssl x509 -req` wrote them before version 3.0.
fn plain(authority: &Authority, name: &str) -> SecretSummary {
    let leaf = authority.leaf_with(name, |_| {});
    SecretSummary {
        anchors: vec![parsed(authority.der())],
        chain: vec![parsed(leaf.der())],
        ..SecretSummary::default()
    }
}

#[test]
fn does_not_write_indistinguishable_cas_where_readers_may_take_any_order() {
    let (old, new) = (ca_without_key_id("root"), ca_without_key_id("root"));
    let mid_rotation = |kind| {
        let mut scene = Scene::steady_with(source(&old), plain(&old, "gateway"), plain(&old, "client"));
        distribute(&mut scene, kind, &[&old]);
        scene.pass(HOUR);
        scene.ca = source(&new);
        scene
    };
    let plan = mid_rotation(TrustBundleTargetKind::ClusterTrustBundle).reconcile();
    assert_eq!(plan.client_bundle.len(), 2);
    assert!(plan.unordered.is_some(), "{plan:?}");
    assert!(held_for(&plan, StepName::ExpandTrust, "ClusterTrustBundle trust is not changed"), "{:?}", plan.waits);
    assert_eq!(mid_rotation(TrustBundleTargetKind::ConfigMap).reconcile().unordered, None, "its order is kept");
    // The readers do not get the new CA, so the serving certificate is not switched.
    let mut scene = mid_rotation(TrustBundleTargetKind::ClusterTrustBundle);
    scene.source = plain(&new, "gateway");
    scene.client = plain(&new, "client");
    scene.client.anchors.push(parsed(old.der()));
    for _ in 0..5 {
        let plan = scene.reconcile();
        assert!(!switches(&plan));
        scene.take(&plan);
        scene.now += HOUR;
    }
    assert!(held_for(&scene.reconcile(), StepName::SwitchServingCertificate, "readers of ClusterTrustBundle trust"));
}

#[test]
fn writes_cas_with_one_subject_if_key_identifiers_distinguish_them() {
    let (old, new) = (ca("root"), ca("root"));
    let mut scene = Scene::steady(&old);
    distribute(&mut scene, TrustBundleTargetKind::ClusterTrustBundle, &[&old]);
    scene.ca = source(&new);
    let plan = scene.reconcile();
    assert_eq!((plan.client_bundle.len(), plan.unordered), (2, None));
}
