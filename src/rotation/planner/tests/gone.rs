//! Clients that are gone: those of `spec.clients.secretNames` whose Secret was deleted, retired ones, and those of a deleted namespace.

use jiff::SignedDuration;

use super::scene::{HOUR, Scene, before_the_switch, pair, reissues, source};
use crate::rotation::journal::Journal;
use crate::rotation::planner::rules::{Rule, without};
use crate::rotation::planner::{ClientState, NamespaceState, Plan, Step, Trust};
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

const SECOND: SignedDuration = SignedDuration::from_secs(1);

fn delay(scene: &Scene) -> SignedDuration {
    scene.entry.policy.propagation_delays.clients.duration()
}

#[test]
fn a_retired_client_counts_for_the_propagation_delay_whether_it_loads_its_secret_once_or_not() {
    for (loads_once, is_deleted) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut scene = Scene::steady(&ca("old"));
        scene.loads_once = loads_once;
        scene.pass(HOUR);
        scene.is_retired = true;
        let plan = scene.reconcile();
        assert!(plan.journal.clients.contains_key("client"), "it may run for a moment");
        assert_eq!(plan.wake, Some(scene.now + delay(&scene)));
        scene.declared = !is_deleted;
        scene.now += delay(&scene) - SECOND;
        assert!(is_known(&mut scene));
        scene.now += SECOND;
        assert!(!is_known(&mut scene));
    }
}

#[test]
fn what_a_client_that_loads_its_secret_once_has_loaded_counts_for_the_propagation_delay() {
    let mut scene = Scene::steady(&ca("old"));
    scene.loads_once = true;
    scene.pass(HOUR);
    scene.client = pair(&ca("new"), "client");
    scene.pass(HOUR);
    scene.is_retired = true;
    assert_eq!(scene.reconcile().journal.clients["client"].versions.len(), 2);
    scene.now += delay(&scene) - SECOND;
    assert_eq!(scene.reconcile().journal.clients["client"].versions.len(), 2);
}

#[test]
fn a_client_whose_annotation_is_removed_counts_again_at_once() {
    for passed in [SECOND, HOUR] {
        let mut scene = Scene::steady(&ca("old"));
        scene.is_retired = true;
        scene.pass(passed);
        scene.reconcile();
        scene.is_retired = false;
        scene.pass(HOUR);
        scene.declared = false;
        scene.pass(HOUR);
        assert!(is_known(&mut scene), "it is deleted, and its owner no longer says that it is gone");
    }
}

#[test]
fn a_deleted_client_that_is_created_again_as_retired_is_forgotten() {
    let mut scene = Scene::steady(&ca("old"));
    scene.declared = false;
    scene.pass(HOUR);
    assert!(is_known(&mut scene));
    (scene.declared, scene.is_retired, scene.client) = (true, true, pair(&ca("old"), "client"));
    scene.pass(SECOND);
    scene.declared = false;
    scene.pass(HOUR);
    assert!(!is_known(&mut scene));
}

#[test]
fn a_rotation_goes_on_when_the_last_client_that_lags_is_retired() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, true);
    let switches = |plan: &Plan| plan.steps.iter().any(|step| matches!(step, Step::WriteManaged { .. }));
    scene.pass(24 * HOUR);
    assert!(!switches(&scene.reconcile()), "it has loaded only the old CA");
    scene.is_retired = true;
    let plan = scene.reconcile();
    let until = format!("client (retired: it counts until {})", scene.now + delay(&scene));
    assert!(!switches(&plan) && plan.waits.iter().any(|wait| wait.reason.contains(&until)), "{:?}", plan.waits);
    scene.now += delay(&scene);
    let awaited = without(Rule::RetiredClientsAreNotAwaited, || scene.plan());
    assert!(!switches(&awaited), "without the rule it is waited for");
    assert!(switches(&scene.reconcile()));
}

#[test]
fn a_retired_client_is_not_reissued() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    (scene.ca, scene.issuer) = (source(&new), source(&new));
    let reissued = |scene: &Scene| {
        let mut scene = scene.clone();
        let mut asked = Vec::new();
        for _ in 0..6 {
            let plan = scene.reconcile();
            asked.extend(reissues(&plan).into_iter().map(str::to_owned));
            scene.take(&plan);
            scene.now += SignedDuration::from_mins(1);
        }
        asked
    };
    assert!(reissued(&scene).contains(&"client".to_owned()));
    scene.is_retired = true;
    assert!(!reissued(&scene).contains(&"client".to_owned()));
}

/// A scene with a client in another namespace, which was deleted.
struct Elsewhere {
    scene: Scene,
    client: ClientState,
    is_declared: bool,
}

impl Elsewhere {
    fn deleted() -> Self {
        let old = ca("old");
        let mut scene = Scene::steady(&old);
        scene.declared = false;
        let secret = pair(&old, "checkout");
        let client = ClientState {
            name: "shop/checkout".to_owned(),
            chain: secret.chain,
            trust: Trust::Read(secret.anchors),
            loads_once: false,
            is_retired: false,
            certificate: None,
            pending: None,
        };
        let mut elsewhere = Self { scene, client, is_declared: true };
        assert!(elsewhere.is_known());
        elsewhere.is_declared = false;
        elsewhere
    }

    fn journal(&mut self) -> &Journal {
        let clients = self.is_declared.then(|| self.client.clone()).into_iter().collect();
        self.scene.journal = self.scene.plan_with(clients).journal;
        &self.scene.journal
    }

    fn is_known(&mut self) -> bool {
        self.journal().clients.contains_key("shop/checkout")
    }

    fn set(&mut self, state: NamespaceState) {
        self.scene.namespaces = [("shop".to_owned(), state)].into();
    }
}

#[test]
fn the_clients_of_a_deleted_namespace_count_for_a_day() {
    let mut elsewhere = Elsewhere::deleted();
    elsewhere.set(NamespaceState::Deleted);
    assert!(elsewhere.is_known());
    let wake = elsewhere.scene.plan_with(Vec::new()).wake;
    assert_eq!(wake, Some(elsewhere.scene.now + 24 * HOUR));
    elsewhere.scene.now += 24 * HOUR - SECOND;
    assert!(elsewhere.is_known());
    let plan = without(Rule::DeletedNamespacesAreRemembered, || elsewhere.scene.plan_with(Vec::new()));
    assert!(!plan.journal.clients.contains_key("shop/checkout"), "without the rule it is forgotten at once");
    elsewhere.scene.now += SECOND;
    assert!(!elsewhere.is_known());
    elsewhere.scene.namespaces.clear();
    assert!(elsewhere.journal().deleted_namespaces.is_empty());
}

#[test]
fn a_namespace_that_is_restored_within_a_day_resets_the_time() {
    for is_declared in [true, false] {
        let mut elsewhere = Elsewhere::deleted();
        elsewhere.set(NamespaceState::Deleted);
        assert!(elsewhere.is_known());
        elsewhere.scene.now += 23 * HOUR;
        elsewhere.set(NamespaceState::Exists);
        elsewhere.is_declared = is_declared;
        assert!(elsewhere.is_known() && elsewhere.journal().deleted_namespaces.is_empty());
        elsewhere.is_declared = false;
        elsewhere.set(NamespaceState::Deleted);
        elsewhere.scene.now += 2 * HOUR;
        assert!(elsewhere.is_known());
        elsewhere.scene.now += 23 * HOUR;
        assert!(elsewhere.is_known(), "the day begins with the second deletion");
        elsewhere.scene.now += HOUR;
        assert!(!elsewhere.is_known());
    }
}

#[test]
fn an_unknown_state_of_a_namespace_forgets_nothing() {
    let mut elsewhere = Elsewhere::deleted();
    elsewhere.set(NamespaceState::Unknown);
    assert!(elsewhere.is_known() && elsewhere.journal().deleted_namespaces.is_empty());
    elsewhere.set(NamespaceState::Deleted);
    assert!(elsewhere.is_known());
    elsewhere.set(NamespaceState::Unknown);
    elsewhere.scene.now += 48 * HOUR;
    assert!(elsewhere.is_known(), "after a 403");
    elsewhere.set(NamespaceState::Deleted);
    assert!(!elsewhere.is_known());
}

#[test]
fn a_deleted_namespace_whose_certificates_cannot_be_listed_has_unknown_clients_for_a_day() {
    let mut elsewhere = Elsewhere::deleted();
    elsewhere.scene.unlisted_namespaces = vec!["shop".to_owned()];
    elsewhere.set(NamespaceState::Deleted);
    elsewhere.journal();
    let unlisted = elsewhere.scene.plan_with(Vec::new()).unlisted_clients.expect("a reason");
    assert!(unlisted.contains("Namespace shop of spec.clients.namespaces was deleted"), "{unlisted}");
    elsewhere.scene.now += 24 * HOUR;
    assert_eq!(elsewhere.scene.plan_with(Vec::new()).unlisted_clients, None);
}
