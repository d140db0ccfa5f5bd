//! Revocation lists of the source Secret, and of a Secret that was taken over.

use super::scene::{HOUR, Scene, bundle, pair, source};
use crate::api::{Mode, StepName};
use crate::rotation::SecretSummary;
use crate::rotation::planner::{PairOf, Plan, Step};
use crate::trust::fixtures::{Authority, ca};
use crate::trust::{Finding, Severity, fingerprint_of};

/// A Secret with the lists of these CAs.
fn listed(secret: SecretSummary, of: &[&Authority]) -> SecretSummary {
    let text: String = of.iter().map(|ca| ca.crl_pem(2029, 2031, &[])).collect();
    let lists = crate::trust::bundle::read(text.as_bytes()).crls;
    assert_eq!(lists.len(), of.len());
    SecretSummary { lists, revocation: Some(fingerprint_of(text.as_bytes())), ..secret }
}

fn expansion(plan: &Plan) -> Option<(&str, bool)> {
    let wait = plan.waits.iter().find(|wait| wait.step == StepName::ExpandTrust)?;
    Some((wait.reason.as_str(), wait.needs_action))
}

fn converge(scene: &mut Scene) {
    for _ in 0..3 {
        let plan = scene.reconcile();
        scene.take(&plan);
        scene.now += HOUR;
    }
}

#[test]
fn the_lists_of_the_source_secret_are_written_and_followed() {
    let old = ca("old");
    let mut scene = Scene::steady(&old);
    scene.source = listed(scene.source.clone(), &[&old]);
    assert_eq!(bundle(&scene.reconcile()), Some(vec!["CN=old"]));
    converge(&mut scene);
    assert_eq!(scene.managed.as_ref().unwrap().revocation, scene.source.revocation);
    assert_eq!(scene.reconcile().steps, []);
    // Another writer of the source Secret drops the key: the lists stay in use.
    scene.source = pair(&old, "gateway");
    scene.managed.as_mut().unwrap().chain = scene.source.chain.clone();
    assert_eq!(scene.reconcile().steps, []);
    // Its owner says that there are none.
    scene.source.has_no_lists = true;
    converge(&mut scene);
    assert_eq!(scene.managed.as_ref().unwrap().revocation, None);
}

#[test]
fn mode_copy_follows_the_lists_too() {
    let old = ca("old");
    let mut scene = Scene::steady(&old);
    scene.entry.spec.mode = Mode::Copy;
    assert_eq!(scene.reconcile().steps, []);
    scene.source = listed(scene.source.clone(), &[&old]);
    assert_eq!(scene.reconcile().steps, [Step::CopySource]);
    scene.take(&scene.plan());
    assert_eq!(scene.reconcile().steps, []);
}

#[test]
fn a_new_ca_is_added_once_it_has_a_list() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.source = listed(scene.source.clone(), &[&old]);
    converge(&mut scene);
    scene.ca = source(&new);
    converge(&mut scene);
    let plan = scene.reconcile();
    assert_eq!(bundle(&plan), None, "clients of a CA without a list would be refused");
    assert_eq!(scene.managed.as_ref().unwrap().anchors, scene.source.anchors);
    let said = "Revocation lists are in use, and none covers CN=new, so gateways would refuse every client of it. Add its list to ca.crl of \
                Secret root (crl next to cacert), or set that key to an empty value to revoke nothing";
    assert_eq!(expansion(&plan), Some((said, true)));
    assert!(!plan.steps.iter().any(|step| matches!(step, Step::PromoteIssuer | Step::Reissue { .. })));
    scene.source = listed(scene.source.clone(), &[&old, &new]);
    let plan = scene.reconcile();
    assert_eq!((bundle(&plan), expansion(&plan)), (Some(vec!["CN=new", "CN=old"]), None));
}

#[test]
fn lists_that_expire_do_not_switch_the_serving_certificate() {
    let old = ca("old");
    let mut scene = Scene::steady(&old);
    scene.source = pair(&old, "renewed");
    let (rule, field, message) = ("crl-expired", "data[ca.crl]".to_owned(), "expired".to_owned());
    let mut managed = listed(scene.managed.clone().unwrap(), &[&old]);
    managed.denials = vec![Finding { rule, severity: Severity::Deny, field, message }];
    scene.managed = Some(managed);
    scene.entry.spec.paused = true;
    let writes_source = |step: &Step| matches!(step, Step::WriteManaged { pair: PairOf::Source, .. });
    assert!(!scene.reconcile().steps.iter().any(writes_source), "the pair can be served");
}
