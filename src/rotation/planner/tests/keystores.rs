//! Clients whose Java truststore names CAs by their subjects.

use super::scene::{HOUR, Scene, pair, source};
use crate::api::{ConditionStatus, Phase, StepName};
use crate::rotation::planner::{ClientState, Issuance, Plan, Step, Trust};
use crate::trust::Certificate;
use crate::trust::fixtures::{Authority, ca, ca_between, ca_with, parsed};

/// A client as cert-manager issued it now, whose `truststore.p12` cert-manager renders.
fn java_client(scene: &Scene, issuer: &Authority) -> ClientState {
    ClientState {
        name: "payments".to_owned(),
        chain: scene.client.chain.clone(),
        trust: Trust::Issued { ca: vec![parsed(issuer.der())], at: scene.now },
        loads_once: false,
        is_retired: false,
        certificate: Some(Issuance { name: "payments".to_owned(), renders_pkcs12: true, ..Issuance::default() }),
        pending: None,
    }
}

fn reconcile(scene: &mut Scene, clients: &[ClientState]) -> Plan {
    let plan = scene.plan_with(clients.to_vec());
    scene.journal = plan.journal.clone();
    scene.entry.status.client_bundle = plan.client_bundle.iter().map(Into::into).collect();
    scene.take(&plan);
    plan
}

/// Plans until nothing changes.
fn converge(scene: &mut Scene, clients: &[ClientState]) -> Plan {
    (0..6).fold(reconcile(scene, clients), |_, _| {
        scene.now += HOUR;
        reconcile(scene, clients)
    })
}

fn reissued(plan: &Plan) -> Vec<&str> {
    let reissues = plan.steps.iter().filter_map(|step| match step {
        Step::Reissue { certificate } => Some(certificate.as_str()),
        _ => None,
    });
    reissues.collect()
}

fn seen(trust: &[Certificate]) -> Vec<&[u8]> {
    trust.iter().map(|ca| ca.public_key.as_slice()).collect()
}

/// A rotation with such a client and another one, after all gateways trust the new CA.
fn rotation(old: &Authority, new: &Authority) -> (Scene, Vec<ClientState>, Plan) {
    let mut scene = Scene::steady(old);
    let java = java_client(&scene, old);
    let other = ClientState { name: "checkout".to_owned(), ..java.clone() };
    let certificate = Some(Issuance { name: "checkout".to_owned(), ..Issuance::default() });
    let clients = vec![ClientState { certificate, ..other }, java];
    converge(&mut scene, &clients);
    scene.ca = source(new);
    let plan = converge(&mut scene, &clients);
    (scene, clients, plan)
}

#[test]
fn nothing_is_reissued_while_a_truststore_would_hide_a_ca() {
    let (old, new) = (ca("root"), ca("ROOT"));
    let (mut scene, mut clients, plan) = rotation(&old, &new);
    assert_eq!(reissued(&plan), [""; 0]);
    let wait = plan.waits.iter().find(|wait| wait.step == StepName::ReissueClients).expect("a wait");
    assert!(wait.needs_action && wait.reason.contains("truststore.p12 of payments "), "{wait:?}");
    assert!(plan.lagging.is_empty(), "no reissue was requested: {:?}", plan.lagging);
    let status = scene.status(&plan);
    let current = status.condition("ClientsCurrent").expect("a condition");
    assert_eq!((current.status, current.reason.as_str()), (ConditionStatus::False, "TruststoreHidesCA"));

    // The remedy: a CA with another subject, or no such truststore.
    let mut other = (scene.clone(), clients.clone());
    other.0.ca = source(&ca("another root"));
    let plan = converge(&mut other.0, &other.1);
    assert_eq!(reissued(&plan), ["checkout", "payments"]);
    clients[1].certificate = clients[0].certificate.clone();
    assert_eq!(reissued(&converge(&mut scene, &clients)).len(), 2);
}

#[test]
fn cas_of_different_subjects_are_both_seen() {
    let (old, new) = (ca("old root"), ca("new root"));
    let (_, _, plan) = rotation(&old, &new);
    assert_eq!(reissued(&plan), ["checkout", "payments"]);
}

#[test]
fn a_client_that_renews_by_itself_trusts_only_the_last_ca_of_a_subject() {
    let (old, new) = (ca("root"), ca("root"));
    let (mut scene, mut clients, _) = rotation(&old, &new);
    for client in &mut clients {
        client.chain = pair(&new, &client.name).chain;
        client.trust = Trust::Issued { ca: vec![parsed(new.der())], at: scene.now };
    }
    scene.source = pair(&new, "gateway");
    let plan = converge(&mut scene, &clients);
    let trust = |name: &str| &plan.journal.newest_of(name).expect("a version").trust;
    let [old_key, new_key] = [&old, &new].map(|ca| parsed(ca.der()).public_key);
    assert_eq!(seen(trust("payments")), [&*old_key], "Java finds the last one");
    assert_eq!(seen(trust("checkout")), [&*new_key, &*old_key]);
    assert_eq!(reissued(&plan), [""; 0], "its truststore would be the same");
    assert_ne!(plan.phase, Phase::Steady);
    let switch = plan.waits.iter().find(|wait| wait.step == StepName::SwitchServingCertificate).expect("a wait");
    assert!(switch.reason.contains("payments") && !switch.reason.contains("checkout"), "{switch:?}");
}

#[test]
fn a_client_is_reissued_before_its_ca_ends_and_only_once() {
    let (old, new) = (ca_between("root", 2026, 2031), ca("root"));
    let (mut scene, mut clients, _) = rotation(&old, &new);
    scene.now = parsed(old.der()).not_after - HOUR / 60 * 7;
    let plan = reconcile(&mut scene, &clients);
    assert_eq!(reissued(&plan), ["checkout", "payments"], "{:?} {:?}", plan.waits, plan.phase);
    clients[1].chain = pair(&new, "payments").chain;
    assert_eq!(reissued(&reconcile(&mut scene, &clients)), ["checkout"]);
}

#[test]
fn a_ca_that_keeps_its_key_hides_nothing() {
    let old = ca("root");
    let renewed = old.changed(|params| params.not_after += std::time::Duration::from_secs(60));
    let (_, _, plan) = rotation(&old, &renewed);
    assert!(plan.waits.iter().all(|wait| !wait.reason.contains("truststore.p12")), "{:?}", plan.waits);
}

#[test]
fn names_of_entries_do_not_depend_on_the_order_of_attributes() {
    let subject = |names: [(rcgen::DnType, &'static str); 2]| {
        ca_with("", move |params| {
            params.distinguished_name = rcgen::DistinguishedName::new();
            names.into_iter().for_each(|(kind, value)| params.distinguished_name.push(kind, value));
        })
    };
    use rcgen::DnType::{CommonName, OrganizationName};
    let old = subject([(CommonName, "root"), (OrganizationName, "shop")]);
    let new = subject([(OrganizationName, "shop"), (CommonName, "root")]);
    let (_, _, plan) = rotation(&old, &new);
    assert_eq!(reissued(&plan), [""; 0]);
}
