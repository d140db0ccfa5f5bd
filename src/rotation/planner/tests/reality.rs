//! Ordinary situations of cert-manager, users and issuers that random histories do not reach.

use jiff::SignedDuration;
use rcgen::date_time_ymd;

use super::scene::{HOUR, Scene, bundle, pair, reissues, source, subjects};
use crate::api::{AdditionalTrust, Phase, SourceKind, StepName};
use crate::rotation::SecretSummary;
use crate::rotation::planner::rules::{Rule, without};
use crate::rotation::planner::{ClientState, Issuance, Plan, SourceState, Step, Trust};
use crate::rotation::readers::{ReaderTrust, SourceName, TlsReader};
use crate::trust::fixtures::{Authority, Leaf, ca, ca_with, ca_without_key_id, parsed};

fn wait<'p>(plan: &'p Plan, words: &str) -> &'p crate::api::Wait {
    plan.waits.iter().find(|wait| wait.reason.contains(words)).unwrap_or_else(|| panic!("{words}: {:?}", plan.waits))
}

/// The leaf of an intermediate CA, with its chain, and these CAs.
fn below(intermediate: &Authority, leaf: &Leaf, anchors: &[&Authority]) -> SecretSummary {
    SecretSummary {
        anchors: anchors.iter().map(|ca| parsed(ca.der())).collect(),
        chain: vec![parsed(leaf.der()), parsed(intermediate.der())],
        ..SecretSummary::default()
    }
}

#[test]
fn the_expired_root_of_an_intermediate_is_left_out_of_the_bundle() {
    let (own, other) = (ca("own"), ca("other"));
    let expired = ca_with("expired", |params| params.not_after = date_time_ymd(2029, 1, 1));
    let mut scene = Scene::steady(&own);
    scene.entry.spec.additional_trust = vec![AdditionalTrust { kind: SourceKind::Secret, name: "partners".to_owned() }];
    let partners = [&other, &expired].map(|ca| parsed(ca.der())).to_vec();
    scene.additional_trust = vec![Some(SecretSummary { anchors: partners, ..SecretSummary::default() })];
    let plan = scene.reconcile();
    assert_eq!(bundle(&plan), Some(vec!["CN=own", "CN=other"]));
    assert!(wait(&plan, "CN=expired of Secret partners has expired").needs_action);
}

#[test]
fn a_root_with_the_name_of_an_issuer_in_use_is_not_added_where_a_client_would_be_refused() {
    // The anchor is an intermediate without an authority key identifier, whose issuer's name the new root has.
    let (gone, new) = (ca_without_key_id("root"), ca_without_key_id("root"));
    let tier = gone.intermediate("tier", |params| params.use_authority_key_identifier_extension = false);
    let mut scene = Scene::steady(&tier);
    scene.ca = source(&new);
    let plan = scene.reconcile();
    assert_eq!(bundle(&plan), None, "{:?}", plan.steps);
    let blocked = wait(&plan, "CN=root is not added to the bundle");
    assert!(blocked.needs_action && blocked.until.is_some() && blocked.reason.contains("client"), "{blocked:?}");
    scene.pass(HOUR);
    let plan = scene.reconcile();
    assert_eq!((bundle(&plan), plan.phase), (None, Phase::TrustExpanded), "the CA that the client needs stays");
    assert!(bundle(&without(Rule::WritesKeepConnections, || scene.plan())).is_some(), "without the rule it is written");
}

#[test]
fn a_root_stays_in_the_bundle_while_the_issuer_signs_with_an_intermediate_below_it() {
    let tiered = |root: &Authority| SecretSummary {
        anchors: vec![parsed(root.der())],
        chain: vec![parsed(root.intermediate("tier", |_| {}).der())],
        ..SecretSummary::default()
    };
    let (old, next, newest) = (ca("old"), ca("next"), ca("newest"));
    let later = || {
        let mut scene = Scene::steady(&old);
        scene.ca = tiered(&next);
        let plan = scene.reconcile();
        scene.take(&plan);
        scene.pass(HOUR);
        let plan = scene.reconcile();
        assert_eq!(plan.steps, [Step::PromoteIssuer]);
        scene.take(&plan);
        scene.entry.spec.paused = true;
        scene.ca = tiered(&newest);
        let plan = scene.reconcile();
        assert_eq!(bundle(&plan), Some(vec!["CN=newest", "CN=next", "CN=old"]));
        scene.take(&plan);
        scene.pass(HOUR);
        scene.reconcile()
    };
    assert_eq!(bundle(&later()), None, "no certificate of it is known, and the Issuer can sign one");
    let without_rule = without(Rule::IssuersKeepTheirRoot, later);
    assert_eq!(bundle(&without_rule), Some(vec!["CN=newest", "CN=old"]), "without the rule it is dropped");
}

#[test]
fn distrust_is_not_applied_while_a_path_over_the_key_or_certificate_is_accepted() {
    let (root, new) = (ca("root"), ca("new"));
    let tier = root.intermediate("tier", |_| {});
    let mut scene = Scene::steady(&root);
    scene.client = below(&tier, &tier.leaf("client"), &[&root]);
    scene.entry.spec.distrusted_cas = vec![parsed(tier.der()).fingerprint];
    let plan = scene.reconcile();
    let reason = plan.undistrusted.clone().expect("a reason");
    assert!(reason.contains("CN=tier is still accepted: CN=root") && reason.contains("has issued it"), "{reason}");
    // A successor with the key of the distrusted CA.
    let mut scene = Scene::steady(&root);
    let renewed = root.renewed(2029, 2045);
    scene.ca = source(&renewed);
    scene.entry.spec.distrusted_cas = vec![parsed(root.der()).fingerprint];
    let reason = scene.reconcile().undistrusted.expect("a reason");
    assert!(reason.contains("has its key"), "{reason}");
    // With another CA the distrusted one is gone.
    let mut scene = Scene::steady(&root);
    scene.ca = source(&new);
    scene.entry.spec.distrusted_cas = vec![parsed(root.der()).fingerprint];
    let plan = scene.reconcile();
    assert_eq!((plan.undistrusted, bundle(&scene.plan())), (None, Some(vec!["CN=new"])));
}

#[test]
fn an_old_ca_that_stays_for_undeclared_clients_asks_for_a_person_and_completes_the_rotation() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.entry.spec.clients.all_declared = false;
    scene.entry.spec.clients.ca_secret_ref = Some("client-ca".into());
    scene.client_ca = Some(source(&new));
    scene.issuer = source(&new);
    for _ in 0..3 {
        let plan = scene.reconcile();
        scene.take(&plan);
        scene.pass(HOUR);
    }
    scene.client = SecretSummary { anchors: vec![parsed(old.der())], ..pair(&new, "client") };
    scene.pass(HOUR);
    let plan = scene.reconcile();
    assert_eq!((plan.phase, plan.steps.as_slice()), (Phase::Steady, &[][..]), "{:?}", plan.waits);
    let kept = wait(&plan, "set spec.clients.allDeclared to true, or set maxCertificateLifetime");
    assert_eq!((kept.step, kept.needs_action), (StepName::DropOldCA, true));
    let managed = scene.managed.as_ref().expect("a managed Secret");
    assert_eq!(subjects(&managed.anchors), ["CN=new", "CN=old"]);
}

#[test]
fn an_expired_certificate_of_a_renewed_ca_is_no_successor() {
    let old = ca_with("root", |params| params.not_after = date_time_ymd(2029, 12, 1));
    let renewed = old.renewed(2029, 2045);
    let mut scene = Scene::steady(&renewed);
    let name = SourceName::secret("mesh", "partners-cacert");
    let trust = ReaderTrust::FirstOf(vec![name.clone()]);
    scene.readers = vec![TlsReader::of("Gateway apps/public", "caCertCredentialName", trust)];
    scene.sources = [(name.clone(), SourceState::Holds(vec![parsed(old.der())]))].into();
    let blocker = |scene: &mut Scene| scene.reconcile().trust_source_blocker.map(|(blocker, _)| blocker.reason);
    assert_eq!(blocker(&mut scene), Some("OtherTrustSource"));
    assert_eq!(without(Rule::ExpiredCasHoldNothing, || blocker(&mut scene.clone())), None);
    scene.sources = [(name, SourceState::Holds(vec![parsed(renewed.der())]))].into();
    scene.pass(HOUR);
    assert_eq!(blocker(&mut scene), None);
}

/// A rotation in which clients are reissued, with these Certificates.
fn reissuing(certificates: Vec<Issuance>) -> Plan {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.declared = false;
    (scene.ca, scene.issuer) = (source(&new), source(&new));
    let client = |certificate: &Issuance| ClientState {
        name: certificate.name.clone(),
        chain: pair(&old, &certificate.name).chain,
        trust: Trust::Read(vec![parsed(old.der())]),
        loads_once: false,
        is_retired: false,
        certificate: Some(certificate.clone()),
        pending: None,
    };
    let clients: Vec<_> = certificates.iter().map(client).collect();
    for _ in 0..4 {
        let plan = scene.plan_with(clients.clone());
        scene.journal = plan.journal.clone();
        scene.entry.status.client_bundle = plan.client_bundle.iter().map(Into::into).collect();
        scene.take(&plan);
        scene.now += SignedDuration::from_mins(1);
    }
    scene.plan_with(clients)
}

fn certificate(name: &str) -> Issuance {
    Issuance { name: name.to_owned(), issuer: "Issuer.cert-manager.io/apps/ca".to_owned(), ..Issuance::default() }
}

#[test]
fn certificates_whose_issuer_does_not_answer_do_not_delay_others_and_are_named() {
    let start = crate::trust::fixtures::now();
    let stuck = (0..12).map(|at| Issuance { issuing: Some(start), ..certificate(&format!("tenant/stuck-{at:02}")) });
    let all: Vec<_> = stuck.chain([certificate("shop/checkout"), certificate("payments")]).collect();
    let plan = reissuing(all.clone());
    assert_eq!(reissues(&plan), ["shop/checkout", "payments"], "{:?}", plan.waits);
    assert_eq!(reissues(&without(Rule::StuckRequestsDoNotDelayOthers, || reissuing(all))), [""; 0]);
    let named = wait(&plan, "Certificate tenant/stuck-00: its issuer has not answered since");
    assert!(
        named.needs_action && named.reason.contains("kubectl describe certificate stuck-00 -n tenant"),
        "{named:?}"
    );
}

#[test]
fn namespaces_take_turns() {
    let many = (0..30).map(|at| certificate(&format!("many/client-{at:02}")));
    let plan = reissuing(many.chain([certificate("shop/checkout")]).collect());
    let asked = reissues(&plan);
    assert!(asked.len() == 10 && asked.contains(&"shop/checkout"), "{asked:?}");
}

#[test]
fn a_failed_issuance_is_requested_again_after_the_backoff_of_cert_manager_and_names_the_request() {
    let failed = |minutes, failures| {
        let at = crate::trust::fixtures::now() + HOUR - SignedDuration::from_mins(minutes);
        reissuing(vec![Issuance { failed: Some(at), failures, ..certificate("payments") }])
    };
    assert_eq!(reissues(&failed(90, 1)), ["payments"]);
    for plan in [failed(10, 1), failed(90, 2)] {
        assert_eq!(reissues(&plan), [""; 0]);
        assert!(wait(&plan, "Certificate payments: its issuance failed at").needs_action);
    }
}

#[test]
fn a_certificate_of_the_old_ca_after_a_reissue_names_its_issuer() {
    let issued = Some(crate::trust::fixtures::now() + HOUR + SignedDuration::from_mins(4));
    let plan = reissuing(vec![Issuance { issued, ..certificate("payments") }]);
    assert_eq!(reissues(&plan), [""; 0]);
    let named = wait(&plan, "let its issuerRef name the Issuer of the new CA (now Issuer.cert-manager.io/apps/ca)");
    assert!(named.needs_action && named.until.is_some(), "{named:?}");
}
