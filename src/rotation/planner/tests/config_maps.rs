//! Copies of the ConfigMaps of `spec.clients.caConfigMapNames`.

use jiff::SignedDuration;
use proptest::prelude::*;

use super::scene::*;
use crate::api::{Mode, StepName};
use crate::rotation::SecretSummary;
use crate::rotation::planner::{Plan, SourceState};
use crate::rotation::readers::{ReaderTrust, SourceName, TlsReader};
use crate::trust::Certificate;
use crate::trust::fixtures::{Authority, ca, parsed};

fn held(authorities: &[&Authority]) -> SecretSummary {
    let anchors = authorities.iter().map(|authority| parsed(authority.der())).collect();
    SecretSummary { anchors, ..SecretSummary::default() }
}

/// A gateway uses the copy of ConfigMap `partners`, and all writes have propagated.
fn steady(old: &Authority, source: &[&Authority]) -> Scene {
    let mut scene = Scene::steady(old);
    scene.entry.spec.clients.ca_config_map_names = vec!["partners".to_owned()];
    scene.config_maps.push(ConfigMapScene { name: "partners".to_owned(), source: Some(held(source)), managed: None });
    reconcile_times(&mut scene, 2);
    let kept = SourceName::config_map("mesh", "partners.trustspan");
    let trust = ReaderTrust::FirstOf(vec![kept]);
    scene.readers.push(TlsReader::of("Gateway apps/public", "spec.servers[0].tls.caCertCredentialName", trust));
    reconcile_times(&mut scene, 2);
    scene
}

/// Reconciles and takes the steps this many times, every ten minutes.
fn reconcile_times(scene: &mut Scene, times: usize) -> Plan {
    for _ in 0..times {
        let kept: Vec<_> = scene.config_maps.iter().flat_map(|map| map.managed.clone()).collect();
        for facts in kept {
            let name = SourceName::config_map("mesh", "partners.trustspan");
            scene.sources.insert(name, SourceState::Holds(facts.anchors));
        }
        let plan = scene.reconcile();
        scene.take(&plan);
        scene.now += SignedDuration::from_mins(10);
    }
    scene.reconcile()
}

fn kept(scene: &Scene) -> Vec<&str> {
    scene.config_maps[0].managed.as_ref().map(|facts| subjects(&facts.anchors)).unwrap_or_default()
}

fn follow(scene: &mut Scene, new: &Authority) {
    scene.client = pair(new, "client");
    scene.source = pair(new, "gateway");
}

#[test]
fn our_cas_are_replaced_by_those_of_the_managed_secret_and_others_stay_in_their_places() {
    let (old, new, partner) = (ca("old"), ca("new"), ca("partner"));
    let mut scene = steady(&old, &[&partner, &old]);
    assert_eq!(kept(&scene), ["CN=partner", "CN=old"]);
    scene.ca = source(&new);
    reconcile_times(&mut scene, 1);
    assert_eq!(kept(&scene), ["CN=partner", "CN=new", "CN=old"]);
    reconcile_times(&mut scene, 4);
    assert_eq!(scene.issuer.chain[0].subject, "CN=new", "the gateway has it");
    follow(&mut scene, &new);
    reconcile_times(&mut scene, 20);
    assert_eq!(kept(&scene), ["CN=partner", "CN=new"]);
}

#[test]
fn rotates_again_although_the_owner_never_changes_the_source() {
    let (old, new, newer) = (ca("old"), ca("new"), ca("newer"));
    let mut scene = steady(&old, &[&old]);
    for next in [&new, &newer] {
        scene.ca = source(next);
        reconcile_times(&mut scene, 5);
        follow(&mut scene, next);
        reconcile_times(&mut scene, 20);
        assert_eq!(kept(&scene), [parsed(next.der()).subject.as_str()]);
    }
}

#[test]
fn the_new_ca_does_not_sign_while_a_proxy_may_use_the_source_named_before() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = steady(&old, &[&old]);
    // The Gateway names the source itself, and a rotation begins.
    let source_name = SourceName::config_map("mesh", "partners");
    let kept_reader = scene.readers.clone();
    scene.readers[0].trust = ReaderTrust::FirstOf(vec![source_name.clone()]);
    scene.sources.insert(source_name, SourceState::Holds(held(&[&old]).anchors));
    scene.ca = source(&new);
    reconcile_times(&mut scene, 3);
    assert_eq!(scene.issuer.chain[0].subject, "CN=old");
    scene.readers = kept_reader;
    let plan = scene.reconcile();
    assert!(waits(&plan).contains(&StepName::PromoteIssuer));
    scene.take(&plan);
    assert_eq!(scene.issuer.chain[0].subject, "CN=old", "written a moment ago");
    reconcile_times(&mut scene, 2);
    assert_eq!(scene.issuer.chain[0].subject, "CN=new");
}

#[test]
fn a_copy_keeps_rotating_when_its_source_is_deleted_or_unsound() {
    let (old, new, partner) = (ca("old"), ca("new"), ca("partner"));
    for broken in [None, Some(SecretSummary::default())] {
        let mut scene = steady(&old, &[&partner, &old]);
        scene.config_maps[0].source = broken;
        scene.ca = source(&new);
        let plan = reconcile_times(&mut scene, 5);
        assert_eq!(kept(&scene), ["CN=partner", "CN=new", "CN=old"]);
        assert!(plan.waits.iter().any(|wait| wait.reason.contains("ConfigMap partners")), "{:?}", plan.waits);
    }
}

#[test]
fn our_cas_stay_in_the_copy_when_the_owner_removes_them_and_that_is_reported() {
    let (old, partner) = (ca("old"), ca("partner"));
    let mut scene = steady(&old, &[&partner, &old]);
    scene.config_maps[0].source = Some(held(&[&partner]));
    let plan = reconcile_times(&mut scene, 2);
    assert_eq!(kept(&scene), ["CN=partner", "CN=old"]);
    let published = |wait: &crate::api::Wait| wait.reason.contains("ConfigMap partners.trustspan keeps them");
    assert!(plan.waits.iter().any(published), "{:?}", plan.waits);
}

#[test]
fn mode_copy_writes_our_ca_as_in_the_source_secret() {
    let (old, new, partner) = (ca("old"), ca("new"), ca("partner"));
    let mut scene = steady(&old, &[&partner, &old]);
    scene.entry.spec.mode = Mode::Copy;
    scene.ca = source(&new);
    follow(&mut scene, &new);
    reconcile_times(&mut scene, 5);
    assert_eq!(kept(&scene), ["CN=partner", "CN=new"]);
}

#[test]
fn new_revocation_lists_are_copied() {
    let old = ca("old");
    let mut scene = steady(&old, &[&old]);
    assert!(scene.reconcile().steps.is_empty());
    let revocation = Some("a hash".to_owned());
    scene.config_maps[0].source.as_mut().unwrap().revocation.clone_from(&revocation);
    reconcile_times(&mut scene, 1);
    assert_eq!(scene.config_maps[0].managed.as_ref().unwrap().revocation, revocation);
    assert!(scene.reconcile().steps.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// At every step of a rotation, a server accepts the foreign clients that its owner chose, and the GatewaySecret's
    /// clients.
    #[test]
    fn a_copy_admits_no_foreign_client(order in Just([0, 1, 2, 3]).prop_shuffle(), strangers in 0..4_usize) {
        let (old, new) = (ca("old"), ca("new"));
        let all = [ca("a"), ca("b"), ca("c")];
        let mut source_cas: Vec<&Authority> = all[..strangers.min(3)].iter().collect();
        source_cas.insert(order[0].min(source_cas.len()), &old);
        let mut scene = steady(&old, &source_cas);
        let allowed: Vec<Certificate> = source_cas.iter().chain([&&new]).map(|ca| parsed(ca.der())).collect();
        let of_others: Vec<_> = all[..strangers.min(3)].iter().map(|ca| parsed(ca.der())).collect();
        scene.ca = source(&new);
        for at in 0..16 {
            reconcile_times(&mut scene, 1);
            if at == 6 {
                follow(&mut scene, &new);
            }
            let anchors = &scene.config_maps[0].managed.as_ref().unwrap().anchors;
            prop_assert!(anchors.iter().all(|ca| allowed.contains(ca)));
            prop_assert!(of_others.iter().all(|ca| anchors.contains(ca)));
            let managed = &scene.managed.as_ref().unwrap().anchors;
            prop_assert!(managed.iter().all(|ca| anchors.contains(ca)), "our clients get in as at the managed Secret");
            prop_assert!(managed.iter().all(|ca| !of_others.contains(ca)), "no stranger gets in elsewhere");
        }
    }
}
