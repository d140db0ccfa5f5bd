//! New client certificates that admission rejects until gateways trust their CA.

use jiff::SignedDuration;

use super::scene::{HOUR, Scene, bundle, pair, reissues, source};
use crate::api::StepName;
use crate::rotation::planner::rules::{Rule, without};
use crate::rotation::planner::{ClientState, Issuance, Pending, Plan, Trust};
use crate::trust::fixtures::{Authority, ca, ca_between, parsed};

/// A scene in which only the source Secret shows which CA signs, and a client was issued a certificate of another CA.
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
fn the_source_certificate_is_reissued_once_to_obtain_a_new_ca() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = external(&old, &new);
    scene.issued = Some(scene.now - SignedDuration::from_hours(1));
    assert_eq!(reissues(&scene.plan()), ["gateway"]);
    scene.issued = Some(scene.now + SignedDuration::from_secs(1));
    let plan = scene.plan();
    assert!(
        reissues(&plan).is_empty() && reason(&plan).contains("was issued later, by another CA"),
        "{}",
        reason(&plan)
    );
    // By then the source Secret has the new CA.
    scene.source = pair(&new, "gateway");
    assert_eq!(reason(&scene.plan()), "");
}

#[test]
fn says_who_can_add_a_ca_that_no_reissue_brings() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = external(&old, &new);
    scene.entry.resolved.ca_secret_ref = Some("ca".into());
    let plan = scene.plan();
    assert!(reissues(&plan).is_empty());
    assert!(reason(&plan).contains("new certificates of client: they are signed by CN=new"), "{}", reason(&plan));
    assert!(reason(&plan).contains("to ca.crt of Secret ca"), "{}", reason(&plan));
    scene.ca = source(&new);
    assert_eq!(reason(&scene.plan()), "");
}

#[test]
fn known_and_expired_certificates_cause_no_wait() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = external(&old, &new);
    scene.pending = Some(Pending { chain: pair(&old, "client").chain, at: scene.now });
    assert!(reason(&scene.plan()).is_empty() && reissues(&scene.plan()).is_empty());
    let mut scene = external(&old, &new);
    scene.entry.spec.paused = true;
    assert!(reissues(&scene.plan()).is_empty(), "{:?}", scene.plan().steps);
    assert!(reason(&scene.plan()).contains("spec.paused"), "{}", reason(&scene.plan()));
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
        is_retired: false,
        certificate: Some(Issuance { name: name.to_owned(), issuer: issuer.to_owned(), ..Issuance::default() }),
        pending: Some(Pending { chain: pair(authority, name).chain, at: scene.now }),
    };
    let plan = scene.plan_with(vec![client("tenant", "Issuer.x/apps/own", &own), client("payments", "", &new)]);
    assert_eq!(reissues(&plan), ["gateway"]);
    assert!(reason(&plan).contains("certificates of tenant: they are signed by CN=own"), "{}", reason(&plan));
}

#[test]
fn the_serving_certificate_is_not_reissued_again_and_again() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = external(&old, &new);
    // The serving certificate was issued just before, or its issuance has failed.
    scene.issued = Some(scene.now - SignedDuration::from_secs(1));
    assert!(
        reissues(&scene.plan()).is_empty() && reason(&scene.plan()).contains("is reissued at"),
        "{}",
        reason(&scene.plan())
    );
    // Neither a certificate of a known CA that gateways refuse for another reason nor one that is not valid yet is
    // evidence of a new CA.
    let mut scene = external(&old, &new);
    scene.issued = Some(scene.now - SignedDuration::from_hours(1));
    let server_only = old.leaf_with("client", |params| {
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    scene.pending = Some(Pending { chain: vec![parsed(server_only.der())], at: scene.now });
    assert!(reissues(&scene.plan()).is_empty() && reason(&scene.plan()).is_empty(), "{}", reason(&scene.plan()));
    let tomorrow = scene.now + SignedDuration::from_hours(24);
    scene.pending = Some(Pending { chain: pair(&new, "client").chain, at: tomorrow });
    assert!(reissues(&scene.plan()).is_empty());
}

#[test]
fn an_expired_ca_counts_as_unknown() {
    let old = ca_between("old", 2026, 2031);
    let mut scene = external(&old, &ca("unused"));
    scene.issued = Some(scene.now - SignedDuration::from_hours(1));
    // A renewed CA with the same key (rotationPolicy: Never).
    let renewed = old.renewed(2026, 2040);
    let leaf = renewed.leaf_with("client", |params| params.use_authority_key_identifier_extension = true);
    scene.pending = Some(Pending { chain: vec![parsed(leaf.der())], at: scene.now });
    assert!(reissues(&scene.plan()).is_empty());
    scene.now = "2031-01-02T00:00:00Z".parse().unwrap();
    assert!(reissues(&scene.plan()).contains(&"gateway"), "{:?}", scene.plan().steps);
}

#[test]
fn a_replaced_ca_stays_while_a_certificate_of_it_is_not_admitted() {
    let (old, replaced, new) = (ca("old"), ca("replaced"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.entry.spec.issuer_secret_name = None;
    for authority in [&replaced, &new] {
        scene.ca = source(authority);
        let plan = scene.reconcile();
        scene.take(&plan);
    }
    scene.pending = Some(Pending { chain: pair(&replaced, "client").chain, at: scene.now });
    scene.pass(HOUR * 24);
    let dropped =
        without(Rule::PendingCertificatesKeepTheirCa, || bundle(&scene.clone().reconcile()).map(|cas| cas.len()));
    assert_eq!(dropped, Some(2), "without the rule it goes");
    assert_eq!(bundle(&scene.reconcile()), None, "gateways have all three");
    scene.pending = None;
    assert_eq!(bundle(&scene.reconcile()), Some(vec!["CN=new", "CN=old"]));
}
