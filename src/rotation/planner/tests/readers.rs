//! Gateways that take their clients' CAs from other objects.

use super::scene::*;
use crate::api::{ConditionStatus, Phase, StepName};
use crate::connectivity;
use crate::rotation::planner::{ClientState, FurtherCertificate, Issuance, Plan, SourceState, Step, Trust};
use crate::rotation::readers::{ReaderTrust, SourceName, TlsReader};
use crate::rotation::{SecretSummary, TRUST};
use crate::trust::fixtures::{Authority, ca, now, parsed};
use crate::trust::{ParsedSecret, Secret, TlsConsumer};
use jiff::SignedDuration;

fn partners() -> SourceName {
    SourceName::config_map("apps", "partners")
}

fn reader(trust: ReaderTrust) -> TlsReader {
    TlsReader::of("Gateway apps/public", "spec.servers[0].tls.caCertCredentialName", trust)
}

fn holding(authorities: &[&Authority]) -> SourceState {
    SourceState::Holds(authorities.iter().map(|authority| parsed(authority.der())).collect())
}

/// A scene at the beginning of a rotation. A gateway takes its clients' CAs from a ConfigMap.
fn rotating(old: &Authority, new: &Authority, state: SourceState) -> Scene {
    let mut scene = Scene::steady(old);
    scene.readers.push(reader(ReaderTrust::FirstOf(vec![partners()])));
    scene.sources.insert(partners(), state);
    scene.pass(HOUR);
    scene.ca = source(new);
    step(&mut scene);
    scene
}

/// Reconciles and takes the steps, and lets an hour pass.
fn step(scene: &mut Scene) -> Plan {
    for _ in 0..4 {
        let plan = scene.reconcile();
        scene.take(&plan);
        scene.now += SignedDuration::from_mins(10);
    }
    scene.reconcile()
}

fn promotes(plan: &Plan) -> bool {
    plan.steps.contains(&Step::PromoteIssuer)
}

fn condition(scene: &Scene, plan: &Plan) -> (ConditionStatus, String, String) {
    let status = scene.status(plan);
    let condition = status.condition(TRUST).expect("the condition");
    (condition.status, condition.reason.clone(), condition.message.clone())
}

#[test]
fn the_new_ca_does_not_sign_while_a_gateway_reads_a_source_without_it() {
    let (old, new, partner) = (ca("old"), ca("new"), ca("partner"));
    let mut scene = rotating(&old, &new, holding(&[&old, &partner]));
    let plan = step(&mut scene);
    assert_eq!(scene.issuer.chain[0].subject, "CN=old");
    assert_eq!((plan.phase, reissues(&plan)), (Phase::TrustExpanded, vec![]));
    let wait = plan.waits.iter().find(|wait| wait.step == StepName::PromoteIssuer).expect("a wait");
    for said in ["Gateway apps/public", "caCertCredentialName", "ConfigMap apps/partners", "CN=new", "extend-trust"] {
        assert!(wait.reason.contains(said), "{said}: {}", wait.reason);
    }
    assert_eq!(condition(&scene, &plan).0, ConditionStatus::False);
    // The ConfigMap has the new CA, but proxies may not have loaded it.
    scene.sources.insert(partners(), holding(&[&new, &old, &partner]));
    let plan = scene.reconcile();
    assert!(!promotes(&plan));
    assert_eq!(condition(&scene, &plan).1, "Propagating");
    scene.now += SignedDuration::from_mins(1);
    assert!(promotes(&scene.reconcile()));
    step(&mut scene);
    assert_eq!(scene.issuer.chain[0].subject, "CN=new");
    assert_eq!(condition(&scene, &scene.plan()).0, ConditionStatus::True);
}

#[test]
fn a_source_for_other_clients_blocks_nothing() {
    let (old, new, partner) = (ca("old"), ca("new"), ca("partner"));
    let scene = rotating(&old, &new, holding(&[&partner]));
    assert_eq!(scene.issuer.chain[0].subject, "CN=new");
}

#[test]
fn a_source_with_only_a_distrusted_ca_blocks_nothing() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = rotating(&old, &new, holding(&[&old]));
    assert_eq!(scene.issuer.chain[0].subject, "CN=old");
    scene.entry.spec.distrusted_cas = vec![parsed(old.der()).fingerprint];
    let plan = scene.plan();
    assert!(promotes(&plan), "at once: {:?}", plan.waits);
    assert_eq!(condition(&scene, &plan).0, ConditionStatus::True);
}

#[test]
fn an_unreadable_source_blocks_and_says_how_to_grant_access() {
    let (old, new) = (ca("old"), ca("new"));
    for (state, trust, said) in [
        (SourceState::Unreadable("forbidden".to_owned()), ReaderTrust::FirstOf(vec![partners()]), "--grant"),
        (SourceState::Absent, ReaderTrust::Unknowable("/etc/ca.pem".to_owned()), "/etc/ca.pem"),
        (SourceState::Absent, ReaderTrust::Unlisted("forbidden".to_owned()), "cannot be listed"),
    ] {
        let mut scene = rotating(&old, &new, state);
        scene.readers = vec![reader(trust)];
        (scene.issuer, scene.managed) = (source(&old), Some(pair(&old, "gateway")));
        let plan = step(&mut scene);
        assert_eq!(scene.issuer.chain[0].subject, "CN=old", "{said}");
        let (status, _, message) = condition(&scene, &plan);
        assert_eq!(status, ConditionStatus::Unknown);
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn a_source_that_never_existed_blocks_nothing() {
    let (old, new) = (ca("old"), ca("new"));
    let scene = rotating(&old, &new, SourceState::Absent);
    assert_eq!(scene.issuer.chain[0].subject, "CN=new");
}

#[test]
fn a_deleted_source_blocks_because_running_gateways_keep_its_content() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.readers.push(reader(ReaderTrust::FirstOf(vec![partners()])));
    scene.sources.insert(partners(), holding(&[&old]));
    scene.pass(HOUR);
    scene.sources.insert(partners(), SourceState::Absent);
    scene.pass(HOUR);
    scene.ca = source(&new);
    let plan = step(&mut scene);
    assert_eq!(scene.issuer.chain[0].subject, "CN=old");
    let (status, reason, message) = condition(&scene, &plan);
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "TrustSourceDeleted"), "{message}");
    scene.sources.insert(partners(), holding(&[&new, &old]));
    step(&mut scene);
    assert_eq!(scene.issuer.chain[0].subject, "CN=new", "it is there again");
}

#[test]
fn a_foreign_sibling_of_the_managed_secret_blocks_until_it_is_deleted() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = rotating(&old, &new, SourceState::Absent);
    let sibling = SourceName::secret("mesh", "gw-cacert");
    scene.readers = crate::rotation::readers::readers(&scene.entry, &[], &[]);
    scene.sources.insert(sibling, holding(&[&old]));
    (scene.issuer, scene.managed) = (source(&old), Some(pair(&old, "gateway")));
    let plan = step(&mut scene);
    assert_eq!(scene.issuer.chain[0].subject, "CN=old");
    assert!(condition(&scene, &plan).2.contains("kubectl delete secret gw-cacert -n mesh"));
}

#[test]
fn does_not_wait_for_a_gateway_when_the_old_ca_is_about_to_expire() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = rotating(&old, &new, holding(&[&old]));
    assert!(!promotes(&scene.reconcile()));
    scene.now = parsed(old.der()).not_after - SignedDuration::from_mins(1);
    assert!(promotes(&scene.reconcile()));
}

#[test]
fn no_step_waits_for_a_gateway_that_was_granted_nothing_and_the_condition_names_it() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.readers = vec![TlsReader { is_ungranted: true, ..reader(ReaderTrust::NotVerified) }];
    scene.pass(HOUR);
    scene.ca = source(&new);
    step(&mut scene);
    let plan = step(&mut scene);
    assert_eq!(plan.phase, Phase::Converged, "{:?}", plan.waits);
    let (status, reason, message) = condition(&scene, &plan);
    assert_eq!((status, reason.as_str()), (ConditionStatus::True, "Current"));
    assert!(
        message.contains("No step waits for Gateway apps/public: no ReferenceGrant in namespace mesh"),
        "{message}"
    );
}

#[test]
fn the_source_is_not_reissued_under_a_gateway_that_presents_it() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, false);
    scene.source = pair(&old, "gateway");
    scene.client.anchors = vec![parsed(new.der()), parsed(old.der())];
    scene.pass(HOUR);
    assert_eq!(reissues(&scene.reconcile()), ["gateway"]);
    scene.readers = vec![TlsReader { presents_source: true, opted_out: true, ..reader(ReaderTrust::NotVerified) }];
    let plan = scene.reconcile();
    assert_eq!(reissues(&plan), [""; 0]);
    assert!(plan.waits.iter().any(|wait| wait.reason.contains("trustspan.dev/rewrite")), "{:?}", plan.waits);
    let rule = TlsReader::of("DestinationRule apps/upstream", "", ReaderTrust::NotVerified);
    let namespace = "apps".to_owned();
    scene.readers = vec![TlsReader { presents_source: true, is_exported: true, namespace, ..rule }];
    let waits = scene.reconcile().waits;
    let advice = "rewrites it if namespace apps has a GatewaySecret for Secret root. Otherwise let it name Secret gw";
    assert!(waits.iter().any(|wait| wait.needs_action && wait.reason.contains(advice)), "{waits:?}");
    let direct = || TlsReader { presents_source: true, ..reader(ReaderTrust::NotVerified) };
    let annotated = TlsReader { issuer_annotation: Some("cert-manager.io/issuer"), ..direct() };
    for (reader, advice) in [
        (TlsReader { selects_others: true, ..direct() }, "Let it select these labels, or name Secret gw in it"),
        (annotated, "Remove the annotation: Certificate root stays"),
    ] {
        scene.readers = vec![reader];
        let waits = scene.reconcile().waits;
        assert!(waits.iter().any(|wait| wait.needs_action && wait.reason.contains(advice)), "{waits:?}");
    }
}

#[test]
fn clients_keep_the_old_ca_while_gateways_present_another_certificate_of_it() {
    let (old, new) = (ca("old"), ca("new"));
    let second = |authority: &Authority, is_issuing: bool| FurtherCertificate {
        name: "second".to_owned(),
        chain: Some(pair(authority, "second").chain),
        certificate: Some(Issuance { name: "second".to_owned(), issuing: is_issuing.then(now), ..Issuance::default() }),
    };
    let mut scene = before_the_switch(&old, &new, false);
    scene.presented_also = vec![second(&old, false)];
    scene.client.anchors = vec![parsed(new.der()), parsed(old.der())];
    scene.pass(HOUR);
    scene.entry.spec.clients.all_declared = false;
    let plan = scene.reconcile();
    assert_eq!(reissues(&plan), [""; 0], "clients that are not declared may trust the old CA only");
    assert!(
        plan.waits.iter().any(|wait| wait.reason.starts_with("Certificate second: Clients that are not declared")),
        "{:?}",
        plan.waits
    );
    scene.entry.spec.clients.all_declared = true;
    let plan = step(&mut scene);
    assert_eq!(reissues(&plan), ["second"], "clients trust the new CA by now");
    assert_ne!(plan.phase, Phase::Steady);
    assert!(plan.client_bundle.contains(&parsed(old.der())));
    scene.presented_also = vec![second(&new, false)];
    scene.client.anchors = vec![parsed(new.der())];
    step(&mut scene);
    scene.now += HOUR;
    let plan = step(&mut scene);
    assert_eq!((plan.phase, plan.client_bundle.len()), (Phase::Steady, 1));
}

#[test]
fn another_certificate_of_our_issuer_is_reissued_although_no_secret_holds_its_ca() {
    let (old, new) = (ca("old"), ca("new"));
    let reissued = |issuer: &str| {
        let certificate = Issuance { name: "second".to_owned(), issuer: issuer.to_owned(), ..Issuance::default() };
        let chain = Some(pair(&old, "second").chain);
        let second = FurtherCertificate { name: "second".to_owned(), chain, certificate: Some(certificate) };
        let mut scene = Scene::steady(&old);
        scene.presented_also = vec![second];
        scene.entry.spec.distrusted_cas = vec![parsed(old.der()).fingerprint];
        (scene.ca, scene.issuer, scene.client) = (source(&new), source(&new), pair(&new, "client"));
        scene.source = pair(&new, "gateway");
        scene.managed = Some(scene.source.clone());
        // Without status and journal, only a certificate shows that there was an old CA.
        scene.entry.status = Default::default();
        scene.journal = Default::default();
        let plan = step(&mut scene);
        (reissues(&plan).contains(&"second"), plan.phase == Phase::Steady)
    };
    assert_eq!(reissued(""), (true, false), "the issuer of the source Secret's Certificate");
    assert_eq!(reissued("ClusterIssuer.cert-manager.io/public"), (false, true));
}

#[test]
fn a_foreign_certificate_next_to_ours_is_ignored() {
    let (old, new, public) = (ca("old"), ca("new"), ca("public"));
    let mut scene = before_the_switch(&old, &new, false);
    let chain = Some(pair(&public, "shop").chain);
    scene.presented_also = vec![FurtherCertificate { name: "public".to_owned(), chain, certificate: None }];
    scene.client.anchors = vec![parsed(new.der())];
    step(&mut scene);
    scene.now += HOUR;
    let plan = step(&mut scene);
    assert_eq!((plan.phase, plan.waits.len()), (Phase::Steady, 0), "{:?}", plan.waits);
}

#[test]
fn a_client_whose_certificate_is_pinned_is_not_reissued() {
    let (old, new) = (ca("old"), ca("new"));
    for pin in [0, 1] {
        let mut scene = Scene::steady(&old);
        let leaf = scene.client.chain[0].clone();
        let pin = [leaf.fingerprint.to_uppercase(), leaf.public_key_hash()][pin].clone();
        scene.readers = vec![TlsReader { pins: vec![pin], ..reader(ReaderTrust::NotVerified) }];
        scene.ca = source(&new);
        let plan = step(&mut scene);
        assert!(!reissues(&plan).contains(&"client"), "{plan:?}");
        assert!(plan.waits.iter().any(|wait| wait.reason.contains("verifyCertificateHash")), "{:?}", plan.waits);
        assert!(plan.lagging.is_empty(), "nobody asked it: {:?}", plan.lagging);
        let pinned = plan.waits.iter().find(|wait| wait.reason.contains("accepts client only by the hash"));
        assert!(pinned.is_some_and(|wait| wait.needs_action), "{:?}", plan.waits);
        let other = TlsReader { object: "Gateway apps/other".to_owned(), ..scene.readers[0].clone() };
        scene.readers.push(other);
        let plan = scene.reconcile();
        let both = "Gateway apps/public (spec.servers[0].tls.caCertCredentialName) accept client only";
        assert!(plan.waits.iter().any(|wait| wait.reason.contains(both)), "{:?}", plan.waits);
        scene.readers.clear();
        assert!(reissues(&scene.reconcile()).contains(&"client"));
    }
}

#[test]
fn a_pinned_client_is_reported_although_other_waits_hide_its_reason() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.ca = source(&new);
    step(&mut scene);
    let client = |name: &str, blocked: Option<String>| ClientState {
        name: name.to_owned(),
        chain: pair(&old, name).chain,
        trust: Trust::Read(vec![parsed(old.der())]),
        loads_once: false,
        is_retired: false,
        certificate: Some(Issuance { name: name.to_owned(), blocked, ..Issuance::default() }),
        pending: None,
    };
    let blocked = ["a", "b", "c"].map(|name| client(name, Some("Correct it".to_owned())));
    let clients: Vec<_> = blocked.into_iter().chain([client("pinned", None)]).collect();
    let pins = vec![clients[3].chain[0].fingerprint.clone()];
    scene.readers = vec![TlsReader { pins, ..reader(ReaderTrust::NotVerified) }];
    let plan = scene.plan_with(clients);
    assert!(plan.waits.iter().all(|wait| !wait.reason.contains("only by the hash")), "{:?}", plan.waits);
    let status = scene.status(&plan);
    let clients = status.condition("ClientsCurrent").expect("a condition");
    assert_eq!((clients.status, clients.reason.as_str()), (ConditionStatus::False, "Pinned"));
}

#[test]
fn a_journal_keeps_what_sources_held() {
    let (old, new, partner) = (ca("old"), ca("new"), ca("partner"));
    let scene = rotating(&old, &new, holding(&[&old, &partner]));
    let text = scene.journal.to_text();
    assert_eq!(crate::rotation::journal::Journal::from_text(&text).unwrap(), scene.journal);
    let held = &scene.journal.trust_sources["ConfigMap apps/partners"];
    assert_eq!(subjects(&held[0].trust), ["CN=old"], "strangers' CAs are not kept");
}

/// A `-cacert` sibling of the source Secret, with the clients' CA between two other CAs.
fn next_to(old: &Authority, partners: [&Authority; 2]) -> SecretSummary {
    let anchors = [partners[0], old, partners[1]].map(|authority| parsed(authority.der())).to_vec();
    SecretSummary { anchors, ..SecretSummary::default() }
}

#[test]
fn the_managed_sibling_holds_the_source_siblings_cas_with_ours_overlapped() {
    let (old, new, first, last) = (ca("old"), ca("new"), ca("first"), ca("last"));
    let mut scene = Scene::steady(&old);
    scene.source_sibling = Some(next_to(&old, [&first, &last]));
    step(&mut scene);
    let held = |scene: &Scene| subjects(&scene.managed_sibling.as_ref().unwrap().anchors).join(" ");
    assert_eq!(held(&scene), "CN=first CN=old CN=last");
    scene.ca = source(&new);
    let plan = scene.reconcile();
    scene.take(&plan);
    assert_eq!(held(&scene), "CN=first CN=new CN=old CN=last", "trust grows first");
    scene.client = pair(&new, "client");
    scene.source = pair(&new, "gateway");
    for _ in 0..3 {
        step(&mut scene);
        scene.now += HOUR;
    }
    assert_eq!(held(&scene), "CN=first CN=new CN=last");
    scene.source_sibling = None;
    step(&mut scene);
    assert_eq!(held(&scene), "CN=new", "as istiod falls back to the Secret itself");
}

#[test]
fn no_one_has_to_act_where_the_agent_adds_the_new_ca_to_its_own_sibling() {
    let (old, new, partner) = (ca("old"), ca("new"), ca("partner"));
    let mut scene = Scene::steady(&old);
    scene.source_sibling = Some(next_to(&old, [&partner, &partner]));
    step(&mut scene);
    let sibling = SourceName::secret("mesh", "gw-cacert");
    scene.readers = vec![reader(ReaderTrust::FirstOf(vec![sibling.clone()]))];
    scene.sources.insert(sibling, holding(&[&old, &partner]));
    step(&mut scene);
    scene.ca = source(&new);
    let wait = |scene: &mut Scene| {
        let waits = step(scene).waits;
        let found = waits.iter().find(|wait| wait.reason.contains("gw-cacert, which lacks the new CA"));
        found.map(|wait| (wait.needs_action, wait.reason.clone())).expect("a wait for the sibling")
    };
    let (needs_action, reason) = wait(&mut scene.clone());
    assert!(!needs_action && reason.ends_with("The agent adds it"), "{reason}");
    (scene.source_sibling, scene.managed_sibling) = (None, None);
    let (needs_action, reason) = wait(&mut scene);
    assert!(needs_action && reason.contains("Delete it: kubectl delete secret gw-cacert"), "{reason}");
}

#[test]
fn a_sibling_for_other_clients_is_copied() {
    let (old, first, last) = (ca("old"), ca("first"), ca("last"));
    let mut scene = Scene::steady(&old);
    scene.source_sibling =
        Some(SecretSummary { anchors: vec![parsed(first.der()), parsed(last.der())], ..SecretSummary::default() });
    step(&mut scene);
    assert_eq!(subjects(&scene.managed_sibling.as_ref().unwrap().anchors), ["CN=first", "CN=last"]);
}

#[test]
fn writes_no_sibling_where_an_owner_named_the_managed_secret() {
    let (old, first, last) = (ca("old"), ca("first"), ca("last"));
    let mut scene = Scene::steady(&old);
    scene.source_sibling = Some(next_to(&old, [&first, &last]));
    scene.readers = vec![TlsReader { names_managed: true, ..reader(ReaderTrust::NotVerified) }];
    let plan = step(&mut scene);
    assert!(scene.managed_sibling.is_none());
    assert!(plan.waits.iter().any(|wait| wait.reason.contains("names Secret gw itself")), "{:?}", plan.waits);
}

#[test]
fn an_old_ca_stays_while_a_gateway_presents_its_certificate_to_an_upstream() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, false);
    scene.source = pair(&old, "gateway");
    scene.client.anchors = vec![parsed(new.der()), parsed(old.der())];
    let held = |scene: &Scene| {
        let mut scene = scene.clone();
        step(&mut scene);
        subjects(&scene.managed.unwrap().anchors).join(" ")
    };
    assert_eq!(held(&scene), "CN=new");
    scene.readers = vec![TlsReader { is_client: true, ..reader(ReaderTrust::NotVerified) }];
    assert_eq!(held(&scene), "CN=new CN=old");
}

#[test]
fn status_says_which_sources_accept_declared_clients() {
    let (old, new, partner) = (ca("old"), ca("new"), ca("partner"));
    let accepts = |cas: &[&Authority]| rotating(&old, &new, holding(cas)).plan().trust_sources[0].accepts_clients;
    assert!(accepts(&[&partner, &old]) && !accepts(&[&partner]));
}

/// A sibling with only the CA of the live client is fine, and so is a certificate of another CA in the managed Secret: not both together.
#[test]
fn a_client_gets_no_certificate_of_a_ca_that_the_managed_sibling_lacks() {
    let (old, new) = (ca("old"), ca("new"));
    let sibling = SourceName::secret("mesh", "gw-cacert");
    let verdict = |cas: &[&Authority]| {
        let mut scene = rotating(&old, &new, holding(&[&old, &new]));
        scene.readers.push(reader(ReaderTrust::FirstOf(vec![sibling.clone(), SourceName::secret("mesh", "gw")])));
        scene.sources.insert(sibling.clone(), holding(cas));
        scene.reconcile();
        scene.now += HOUR;
        let plan = step(&mut scene);
        scene.keep_status(&plan);
        let status = &scene.entry.status;
        let leaf = new.leaf("client");
        let object = serde_json::json!({"stringData": {"tls.crt": leaf.pem(), "tls.key": leaf.key_pem()}});
        let secret = Secret::from_value(&object).unwrap();
        let renewed = ParsedSecret::new(&secret, TlsConsumer::Envoy);
        let subjects: Vec<_> = status.bundle.iter().map(|anchor| anchor.subject.as_str()).collect();
        assert_eq!(subjects, ["CN=new", "CN=old"], "the managed Secret has both");
        connectivity::client(None, &renewed, status, &[], scene.now)
    };
    let broken = verdict(&[&old]);
    assert!(broken.len() == 1 && broken[0].1.contains("gateways do not accept"), "{broken:?}");
    assert_eq!(verdict(&[&old, &new]), []);
}
