//! What was issued for a client, and waits at admission for its CA.

use jiff::SignedDuration;

use super::scene::{Scene, pair, reissues, source};
use crate::api::StepName;
use crate::rotation::planner::{ClientState, Issuance, Pending, Plan, Trust};
use crate::trust::fixtures::{Authority, ca, ca_between, parsed};

/// The source Secret alone says which CA signs, and a client was issued a certificate of another.
fn external(old: &Authority, new: &Authority) -> Scene {
    let mut scene = Scene::steady(old);
    scene.entry.resolved.ca_secret_ref = None;
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
    scene.entry.resolved.ca_secret_ref = Some("ca".into());
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

#[test]
fn a_client_of_another_issuer_blocks_no_other() {
    let (old, new, own) = (ca("old"), ca("new"), ca("own"));
    let mut scene = external(&old, &new);
    scene.issued = Some(scene.now - SignedDuration::from_hours(1));
    let client = |name: &str, issuer: &str, authority: &Authority| ClientState {
        name: name.to_owned(),
        chain: pair(&old, name).chain,
        trust: Trust::Read(source(&old).anchors),
        loads_once: false,
        certificate: Some(Issuance { name: name.to_owned(), issuer: issuer.to_owned(), ..Issuance::default() }),
        pending: Some(Pending { chain: pair(authority, name).chain, at: scene.now }),
    };
    let plan = scene.ask_with(vec![client("tenant", "Issuer.x/apps/own", &own), client("payments", "", &new)]);
    assert_eq!(reissues(&plan), ["gateway"]);
    assert!(reason(&plan).contains("certificates of tenant: they are signed by CN=own"), "{}", reason(&plan));
}

#[test]
fn the_serving_certificate_is_not_reissued_again_and_again() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = external(&old, &new);
    // It was issued just before, or the issue failed.
    scene.issued = Some(scene.now - SignedDuration::from_secs(1));
    assert!(
        reissues(&scene.ask()).is_empty() && reason(&scene.ask()).contains("is reissued at"),
        "{}",
        reason(&scene.ask())
    );
    // A certificate of a known CA that gateways refuse for another reason shows no new CA, and neither does one of tomorrow.
    let mut scene = external(&old, &new);
    scene.issued = Some(scene.now - SignedDuration::from_hours(1));
    let server_only = old.leaf_with("client", |params| {
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    scene.pending = Some(Pending { chain: vec![parsed(server_only.der())], at: scene.now });
    assert!(reissues(&scene.ask()).is_empty() && reason(&scene.ask()).is_empty(), "{}", reason(&scene.ask()));
    let tomorrow = scene.now + SignedDuration::from_hours(24);
    scene.pending = Some(Pending { chain: pair(&new, "client").chain, at: tomorrow });
    assert!(reissues(&scene.ask()).is_empty());
}

#[test]
fn an_expired_ca_is_not_known_any_more() {
    let old = ca_between("old", 2026, 2031);
    let mut scene = external(&old, &ca("unused"));
    scene.issued = Some(scene.now - SignedDuration::from_hours(1));
    // The same key, as with rotationPolicy Never.
    let renewed = old.renewed(2026, 2040);
    let leaf = renewed.leaf_with("client", |params| params.use_authority_key_identifier_extension = true);
    scene.pending = Some(Pending { chain: vec![parsed(leaf.der())], at: scene.now });
    assert!(reissues(&scene.ask()).is_empty());
    scene.now = "2031-01-02T00:00:00Z".parse().unwrap();
    assert!(reissues(&scene.ask()).contains(&"gateway"), "{:?}", scene.ask().steps);
}
