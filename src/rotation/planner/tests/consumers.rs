//! TrustConsumers, whose workloads load CAs when they start.

use super::scene::*;
use super::waits::needs_action;
use crate::api::{Phase, StepName, TrustBundleTarget, TrustBundleTargetKind};
use crate::rotation::planner::{ClientState, LoadedTrust, PairOf, Plan, Step, Trust, TrustLoader};
use crate::trust::fixtures::{Authority, ca, parsed};
use crate::trust::{Certificate, content_hash};

fn certificates(authorities: &[&Authority]) -> Vec<Certificate> {
    authorities.iter().map(|authority| parsed(authority.der())).collect()
}

/// A TrustConsumer that has loaded these CAs. Without CAs it is unknown what it has loaded.
fn loader(object: LoadedTrust, loaded: &[&Authority]) -> Vec<TrustLoader> {
    let hash = content_hash(&certificates(loaded));
    let loaded = (!loaded.is_empty()).then_some(hash);
    let reason = "Deployment web is paused".to_owned();
    vec![TrustLoader { name: "mesh/web".to_owned(), object, loaded, reason, needs_action: true }]
}

fn switches(plan: &Plan) -> bool {
    plan.steps.iter().any(|step| matches!(step, Step::WriteManaged { pair: PairOf::Source, .. }))
}

fn is_blocked(plan: &Plan, step: StepName) -> bool {
    let mut waits = plan.waits.iter().filter(|wait| wait.step == step);
    waits.any(|wait| wait.reason.contains("TrustConsumer mesh/web may have earlier CAs") && wait.needs_action)
}

#[test]
fn the_issuer_is_not_promoted_before_a_trust_consumer_has_loaded_the_managed_secret() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.trust_loaders = loader(LoadedTrust::Managed, &[&old]);
    scene.ca = source(&new);
    let plan = scene.reconcile();
    scene.take(&plan);
    let promotes = |plan: &Plan| plan.steps.contains(&Step::PromoteIssuer);
    for loaded in [&[&old][..], &[]] {
        scene.trust_loaders = loader(LoadedTrust::Managed, loaded);
        scene.pass(HOUR);
        let plan = scene.reconcile();
        assert!(!promotes(&plan) && is_blocked(&plan, StepName::PromoteIssuer), "{:?}", plan.waits);
        assert_eq!(plan.phase, Phase::TrustExpanded);
        assert!(needs_action(&plan.waits, "Deployment web is paused"));
    }
    // The order of the CAs does not matter.
    scene.trust_loaders = loader(LoadedTrust::Managed, &[&old, &new]);
    let plan = scene.reconcile();
    assert!(promotes(&plan) && !is_blocked(&plan, StepName::PromoteIssuer), "{:?}", plan.waits);
}

#[test]
fn a_report_does_not_shorten_the_propagation_delay_of_other_readers() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.trust_loaders = loader(LoadedTrust::Managed, &[&old]);
    scene.ca = source(&new);
    let plan = scene.reconcile();
    scene.take(&plan);
    scene.trust_loaders = loader(LoadedTrust::Managed, &[&new, &old]);
    let plan = scene.reconcile();
    assert!(!plan.steps.contains(&Step::PromoteIssuer), "{:?}", plan.steps);
    assert!(!is_blocked(&plan, StepName::PromoteIssuer), "{:?}", plan.waits);
}

#[test]
fn the_serving_certificate_does_not_switch_before_a_trust_consumer_has_loaded_a_trust_bundle_target() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, false);
    let (kind, name, key) = (TrustBundleTargetKind::ConfigMap, "trust".to_owned(), "ca.crt".to_owned());
    let target = TrustBundleTarget { kind, namespace: None, name, key };
    let readers = LoadedTrust::Client(target.readers());
    let holds = |scene: &mut Scene, authorities: &[&Authority]| {
        scene.bundle_readers = vec![ClientState {
            name: target.readers(),
            chain: Vec::new(),
            trust: Trust::Read(certificates(authorities)),
            loads_once: false,
            certificate: None,
            pending: None,
        }];
        scene.pass(HOUR);
    };
    scene.entry.spec.trust_bundle_targets = vec![target.clone()];
    scene.trust_loaders = loader(readers.clone(), &[&old]);
    holds(&mut scene, &[&old]);
    holds(&mut scene, &[&new, &old]);
    let plan = scene.reconcile();
    assert!(!switches(&plan) && is_blocked(&plan, StepName::SwitchServingCertificate), "{:?}", plan.waits);
    scene.trust_loaders = loader(readers, &[&new, &old]);
    assert!(switches(&scene.reconcile()));
}

#[test]
fn a_trust_consumer_that_is_deleted_or_reads_something_else_is_not_waited_for() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.trust_loaders = loader(LoadedTrust::Managed, &[&old]);
    scene.ca = source(&new);
    let plan = scene.reconcile();
    scene.take(&plan);
    scene.pass(HOUR);
    for left in [Vec::new(), loader(LoadedTrust::Client("unknown".to_owned()), &[&old])] {
        scene.trust_loaders = left;
        assert!(scene.plan().steps.contains(&Step::PromoteIssuer));
    }
}
