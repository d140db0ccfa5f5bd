//! What was issued for a client, and waits at admission for its CA.

use jiff::SignedDuration;

use super::scene::{Scene, pair, reissues, source};
use crate::api::StepName;
use crate::rotation::next::{Pending, Plan};
use crate::trust::fixtures::{Authority, ca};

/// The source Secret alone says which CA signs, and a client was issued a certificate of another.
fn external(old: &Authority, new: &Authority) -> Scene {
    let mut scene = Scene::steady(old);
    scene.entry.spec.ca_secret_name = None;
    scene.entry.spec.issuer_secret_name = None;
    scene.pending = Some(Pending { chain: pair(new, "client").chain, at: scene.now });
    scene
}

fn reason(plan: &Plan) -> &str {
    plan.waits.iter().find(|wait| wait.step == StepName::ExpandTrust).map_or("", |wait| &wait.reason)
}

#[test]
fn the_source_learns_of_its_ca_once() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = external(&old, &new);
    scene.issued = Some(scene.now - SignedDuration::from_hours(1));
    assert_eq!(reissues(&scene.ask()), ["gateway"]);
    scene.issued = Some(scene.now + SignedDuration::from_secs(1));
    let plan = scene.ask();
    assert!(
        reissues(&plan).is_empty() && reason(&plan).contains("was issued later, by another CA"),
        "{}",
        reason(&plan)
    );
    // It holds the new CA by then.
    scene.root = pair(&new, "gateway");
    assert_eq!(reason(&scene.ask()), "");
}

#[test]
fn who_can_add_it_is_said_where_no_issue_tells() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = external(&old, &new);
    scene.entry.spec.ca_secret_name = Some("ca".to_owned());
    let plan = scene.ask();
    assert!(reissues(&plan).is_empty());
    assert!(reason(&plan).contains("new certificates of client: they are signed by CN=new"), "{}", reason(&plan));
    assert!(reason(&plan).contains("to ca.crt of Secret ca"), "{}", reason(&plan));
    scene.ca = source(&new);
    assert_eq!(reason(&scene.ask()), "");
}

#[test]
fn what_is_known_or_has_ended_waits_for_nothing() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = external(&old, &new);
    scene.pending = Some(Pending { chain: pair(&old, "client").chain, at: scene.now });
    assert!(reason(&scene.ask()).is_empty() && reissues(&scene.ask()).is_empty());
    let mut scene = external(&old, &new);
    scene.entry.spec.paused = true;
    assert!(reissues(&scene.ask()).is_empty(), "{:?}", scene.ask().steps);
    assert!(reason(&scene.ask()).contains("spec.paused"), "{}", reason(&scene.ask()));
}
