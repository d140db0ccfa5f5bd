//! TrustConsumers, whose workloads load CAs when they start.

use super::scene::*;
use super::waits::needs_action;
use crate::api::{Phase, StepName, TrustAnchor, TrustBundleTarget, TrustBundleTargetKind};
use crate::rotation::journal::Journal;
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
    let name = "TrustConsumer mesh/web".to_owned();
    vec![TrustLoader { name, object, loaded, reason, needs_action: true, is_read_by_others: false }]
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
            is_retired: false,
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
    // After the journal was lost, only status shows what the workloads may have.
    scene.entry.status.client_trust = Some(vec![TrustAnchor::from(&parsed(old.der()))]);
    scene.entry.status.phase = Some(Phase::ClientsMigrated);
    scene.journal = Journal::default();
    for _ in 0..2 {
        scene.pass(HOUR);
        let plan = scene.reconcile();
        assert!(!switches(&plan) && is_blocked(&plan, StepName::SwitchServingCertificate), "{:?}", plan.waits);
    }
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

/// Files on nodes that have these CAs.
pub(super) fn files(nodes: &[(&str, &Authority)]) -> Vec<TrustLoader> {
    let file = |(node, newest): &(&str, &Authority)| TrustLoader {
        name: format!("File /etc/ca.crt on node {node} (MirroredFile mesh/{node})"),
        object: LoadedTrust::Managed,
        loaded: Some(content_hash(&certificates(&[*newest]))),
        reason: "Start it".to_owned(),
        needs_action: false,
        is_read_by_others: true,
    };
    nodes.iter().map(file).collect()
}

#[test]
fn the_propagation_delay_begins_when_the_last_mirror_reports() {
    let (old, new) = (ca("old"), ca("new"));
    let both = content_hash(&certificates(&[&new, &old]));
    let mut scene = Scene::steady(&old);
    scene.trust_loaders = files(&[("a", &old), ("b", &old)]);
    scene.ca = source(&new);
    let plan = scene.reconcile();
    scene.take(&plan);
    let wait = |plan: &Plan| {
        let mut waits = plan.waits.iter().filter(|wait| wait.step == StepName::PromoteIssuer);
        waits.find(|wait| wait.reason.contains("may have earlier CAs of Secret gw")).cloned()
    };
    let promotes = |plan: &Plan| plan.steps.contains(&Step::PromoteIssuer);
    let plan = scene.reconcile();
    let first = wait(&plan).expect("a wait");
    assert!(first.reason.starts_with("File /etc/ca.crt on node a (MirroredFile mesh/a), File "), "{}", first.reason);
    assert!(!first.needs_action, "mirrors take a moment");
    scene.pass(HOUR);
    scene.trust_loaders[0].loaded = Some(both.clone());
    let plan = scene.reconcile();
    let second = wait(&plan).expect("a wait");
    assert!(second.needs_action && second.reason.contains("node b") && !second.reason.contains("node a"), "{second:?}");
    assert!(!promotes(&plan));

    // The last one reports: from now on its readers get the new content.
    scene.pass(HOUR);
    scene.trust_loaders[1].loaded = Some(both);
    let delay = scene.entry.policy.propagation_delays.gateways.duration();
    for _ in 0..2 {
        let plan = scene.reconcile();
        assert!(!promotes(&plan) && wait(&plan).is_none(), "{:?}", plan.waits);
        scene.now += delay / 3;
    }
    scene.now += delay;
    assert!(promotes(&scene.reconcile()));
}

#[test]
fn a_mirror_that_is_deleted_is_not_waited_for() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.trust_loaders = files(&[("a", &old)]);
    scene.ca = source(&new);
    let plan = scene.reconcile();
    scene.take(&plan);
    scene.pass(HOUR);
    assert!(!scene.reconcile().steps.contains(&Step::PromoteIssuer));
    scene.trust_loaders.clear();
    scene.pass(HOUR);
    assert!(scene.plan().steps.contains(&Step::PromoteIssuer));
}

#[test]
fn the_journal_does_not_grow_with_the_number_of_nodes() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    let names: Vec<_> = (0..5_000).map(|node| format!("node-{node}")).collect();
    scene.trust_loaders = files(&names.iter().map(|name| (name.as_str(), &old)).collect::<Vec<_>>());
    scene.ca = source(&new);
    let plan = scene.reconcile();
    scene.take(&plan);
    let plan = scene.reconcile();
    assert!(plan.journal.to_text().len() < 20_000);
    assert!(plan.waits.iter().all(|wait| wait.reason.len() < 2_000), "{:?}", plan.waits);
}
