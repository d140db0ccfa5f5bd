//! Signers of client certificates that rotate independently: `spec.additionalTrust`.

use jiff::SignedDuration;

use super::scene::{HOUR, Scene, bundle, pair, source, subjects};
use crate::api::{AdditionalTrust, Phase, SourceKind, StepName};
use crate::rotation::SecretSummary;
use crate::rotation::journal::Journal;
use crate::rotation::planner::{ClientState, Issuance, Plan, Trust};
use crate::trust::Finding;
use crate::trust::fixtures::{Authority, ca, parsed};

/// A scene with its own signer of client certificates, and these further ones.
fn with_signers(own: &Authority, further: &[&Authority]) -> Scene {
    let mut scene = Scene::steady(own);
    for (number, signer) in further.iter().enumerate() {
        let kind = if number % 2 == 0 { SourceKind::ConfigMap } else { SourceKind::Secret };
        scene.entry.spec.additional_trust.push(AdditionalTrust { kind, name: format!("signer-{number}") });
        scene.additional_trust.push(Some(bundle_of(&[signer])));
    }
    settle(&mut scene);
    scene
}

fn bundle_of(signers: &[&Authority]) -> SecretSummary {
    SecretSummary { anchors: signers.iter().map(|signer| parsed(signer.der())).collect(), ..SecretSummary::default() }
}

fn step(scene: &mut Scene) -> Plan {
    let plan = scene.reconcile();
    scene.take(&plan);
    plan
}

/// Reconciles for some hours. Returns the number of writes of the managed Secret.
fn settle(scene: &mut Scene) -> usize {
    (0..6)
        .map(|_| {
            let plan = step(scene);
            scene.now += HOUR;
            usize::from(bundle(&plan).is_some())
        })
        .sum()
}

fn held(scene: &Scene) -> Vec<&str> {
    subjects(&scene.managed.as_ref().expect("a managed Secret").anchors)
}

#[test]
fn the_cas_of_all_signers_are_trusted_in_the_order_of_the_spec() {
    let (own, first, second) = (ca("own"), ca("first"), ca("second"));
    let mut scene = with_signers(&own, &[&first, &second]);
    assert_eq!(held(&scene), ["CN=own", "CN=first", "CN=second"]);
    let plan = scene.reconcile();
    assert_eq!((plan.phase, plan.steps.len(), plan.waits.len()), (Phase::Steady, 0, 0), "{:?}", plan.waits);
    // Clients verify gateways by the CA of the serving certificate, not by the signers of other clients.
    assert_eq!(subjects(&plan.client_bundle), ["CN=own"]);
}

#[test]
fn clients_never_get_the_cas_of_further_signers() {
    let (own, first) = (ca("own"), ca("first"));
    let mut scene = Scene::steady(&own);
    (scene.managed, scene.journal) = (None, Journal::default());
    scene.entry.spec.additional_trust = vec![AdditionalTrust { kind: SourceKind::Secret, name: "partners".to_owned() }];
    scene.additional_trust = vec![Some(bundle_of(&[&first]))];
    for _ in 0..3 {
        let plan = step(&mut scene);
        assert_eq!(subjects(&plan.client_bundle), ["CN=own"], "{:?}", plan.phase);
        scene.now += SignedDuration::from_secs(1);
    }
}

#[test]
fn each_rotation_of_a_signer_is_one_write_to_add_and_one_to_drop() {
    let (own, first, second, renewed) = (ca("own"), ca("first"), ca("second"), ca("first-2"));
    let mut scene = with_signers(&own, &[&first, &second]);
    scene.additional_trust[0] = Some(bundle_of(&[&renewed]));
    let plan = step(&mut scene);
    assert_eq!(held(&scene), ["CN=own", "CN=first-2", "CN=second", "CN=first"]);
    assert_eq!(plan.phase, Phase::TrustExpanded);
    assert_eq!(settle(&mut scene), 1);
    assert_eq!(held(&scene), ["CN=own", "CN=first-2", "CN=second"]);
    assert_eq!(settle(&mut scene), 0);
    // The same CA in another text does not change the set.
    scene.additional_trust[0] = Some(bundle_of(&[&renewed, &renewed]));
    assert_eq!(settle(&mut scene), 0);
}

#[test]
fn a_signer_that_is_deleted_keeps_its_ca_while_a_client_needs_it() {
    let (own, first) = (ca("own"), ca("first"));
    let mut scene = with_signers(&own, &[&first]);
    let client = |scene: &mut Scene, signer: &Authority| {
        let client = ClientState {
            name: "partner".to_owned(),
            chain: pair(signer, "partner").chain,
            trust: Trust::Read(bundle_of(&[&own]).anchors),
            loads_once: false,
            is_retired: false,
            certificate: None,
            pending: None,
        };
        for _ in 0..6 {
            let plan = scene.plan_with(vec![client.clone()]);
            scene.journal = plan.journal.clone();
            scene.take(&plan);
            scene.now += HOUR;
        }
        scene.plan_with(vec![client])
    };
    client(&mut scene, &first);
    scene.additional_trust[0] = None;
    let plan = client(&mut scene, &first);
    assert_eq!(held(&scene), ["CN=own", "CN=first"]);
    let reasons: Vec<_> = plan.waits.iter().filter(|wait| wait.step == StepName::ExpandTrust).collect();
    assert!(reasons[0].reason.contains("ConfigMap signer-0 does not exist"), "{reasons:?}");
    assert!(plan.waits.iter().any(|wait| wait.step == StepName::DropOldCA && wait.reason.contains("partner")));
    // The client gets a certificate of the remaining signer.
    client(&mut scene, &own);
    assert_eq!(held(&scene), ["CN=own"]);
}

#[test]
fn a_signer_that_cannot_be_used_takes_no_ca_away() {
    let (own, first, new) = (ca("own"), ca("first"), ca("new"));
    let mut scene = with_signers(&own, &[&first]);
    let broken = Finding {
        rule: "unparsable",
        severity: crate::trust::Severity::Deny,
        field: "data[ca.crt]".to_owned(),
        message: "no certificate".to_owned(),
    };
    scene.additional_trust[0] = Some(SecretSummary { denials: vec![broken], ..SecretSummary::default() });
    assert_eq!(settle(&mut scene), 0);
    let trouble = scene.reconcile().trouble.expect("a reason");
    assert!(trouble.starts_with("ConfigMap signer-0: unparsable"), "{trouble}");
    // A rotation of another CA continues, but drops nothing until the missing object is corrected.
    scene.ca = source(&new);
    settle(&mut scene);
    assert_eq!(held(&scene), ["CN=new", "CN=own", "CN=first"]);
    scene.additional_trust[0] = Some(bundle_of(&[&first]));
    scene.client = pair(&new, "client");
    scene.source = pair(&new, "gateway");
    settle(&mut scene);
    assert_eq!(held(&scene), ["CN=new", "CN=first"]);
}

#[test]
fn clients_of_a_rotated_signer_are_reissued_once_gateways_accept_its_new_ca() {
    let (own, first, renewed) = (ca("own"), ca("first"), ca("first-2"));
    let mut scene = with_signers(&own, &[&first]);
    let partner = |signer: &Authority| ClientState {
        name: "partner".to_owned(),
        chain: pair(signer, "partner").chain,
        trust: Trust::Read(bundle_of(&[&own]).anchors),
        loads_once: false,
        is_retired: false,
        certificate: Some(Issuance { name: "partner".to_owned(), ..Issuance::default() }),
        pending: None,
    };
    let client = partner(&first);
    let reconcile = |scene: &mut Scene, after: SignedDuration| {
        let plan = scene.plan_with(vec![client.clone()]);
        scene.journal = plan.journal.clone();
        scene.take(&plan);
        scene.now += after;
        super::scene::reissues(&plan).iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        assert!(reconcile(&mut scene, HOUR).is_empty());
    }
    scene.additional_trust[0] = Some(bundle_of(&[&renewed]));
    assert!(reconcile(&mut scene, SignedDuration::from_secs(1)).is_empty());
    assert!(reconcile(&mut scene, HOUR).is_empty(), "gateways may not accept it yet");
    assert_eq!(reconcile(&mut scene, HOUR), ["partner"]);
}
