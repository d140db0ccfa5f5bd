//! Clients of `spec.clients.secretNames` whose Secret was deleted.

use jiff::SignedDuration;

use super::scene::{HOUR, Scene};
use crate::trust::fixtures::ca;

/// A scene whose client is in the list.
fn listed() -> Scene {
    let mut scene = Scene::steady(&ca("old"));
    scene.entry.spec.clients.secret_names = vec!["client".to_owned()];
    scene.pass(HOUR);
    scene
}

fn is_known(scene: &mut Scene) -> bool {
    scene.reconcile().journal.clients.contains_key("client")
}

#[test]
fn a_client_that_is_deleted_and_then_taken_out_of_the_list_counts_for_the_propagation_delay() {
    let mut scene = listed();
    scene.declared = false;
    scene.pass(24 * HOUR);
    assert!(is_known(&mut scene), "its owner has not said that it is gone");
    scene.entry.spec.clients.secret_names.clear();
    let plan = scene.reconcile();
    assert!(plan.journal.clients.contains_key("client"), "it may run for a moment");
    let delay = scene.entry.policy.propagation_delays.clients.duration();
    assert_eq!(plan.wake, Some(scene.now + delay));
    scene.now += delay - SignedDuration::from_secs(1);
    assert!(is_known(&mut scene));
    scene.now += SignedDuration::from_secs(1);
    assert!(!is_known(&mut scene));
}

#[test]
fn a_client_whose_secret_exists_counts_until_its_certificate_expires() {
    let mut scene = listed();
    scene.entry.spec.clients.secret_names.clear();
    scene.declared = false;
    scene.pass(24 * HOUR);
    assert!(is_known(&mut scene), "its Secret was there when it was read last");
    // Listed again, it is found to be deleted.
    scene.entry.spec.clients.secret_names = vec!["client".to_owned()];
    scene.pass(HOUR);
    scene.entry.spec.clients.secret_names.clear();
    scene.pass(HOUR);
    assert!(!is_known(&mut scene));
}

#[test]
fn a_client_that_is_back_counts_again() {
    let mut scene = listed();
    scene.declared = false;
    scene.pass(HOUR);
    scene.declared = true;
    scene.pass(HOUR);
    scene.declared = false;
    scene.entry.spec.clients.secret_names.clear();
    scene.pass(24 * HOUR);
    assert!(is_known(&mut scene));
}
