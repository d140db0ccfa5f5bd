//! Single plans, as documentation: a snapshot, and the steps that follow.

use jiff::SignedDuration;

use super::scene::{HOUR, Scene, before_the_switch, bundle, pair, reissues, source, subjects, waits};
use crate::api::{GatewaySecretStatus, Mode, Phase, StepName, TrustAnchor};
use crate::rotation::SecretSummary;
use crate::rotation::journal::{Journal, JournalError};
use crate::rotation::planner::{ClientState, Issuance, PairOf, Step, Trust};
use crate::trust::Certificate;
use crate::trust::fixtures::{ca, ca_between, certificates, now, parsed};

#[test]
fn a_plain_rotation_goes_step_by_step() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    let plan = scene.reconcile();
    assert_eq!((plan.phase, plan.steps.as_slice(), plan.wake.is_some()), (Phase::Steady, &[][..], true));

    // The new CA is added at once, at the top of the bundle. Nothing else changes.
    scene.ca = source(&new);
    let plan = scene.reconcile();
    assert_eq!((plan.phase, bundle(&plan)), (Phase::TrustExpanded, Some(vec!["CN=new", "CN=old"])));
    assert_eq!(plan.client_bundle.iter().map(|ca| ca.subject.as_str()).collect::<Vec<_>>(), ["CN=new", "CN=old"]);
    assert_eq!((plan.steps.len(), waits(&plan)), (1, vec![StepName::PromoteIssuer]));
    scene.take(&plan);

    // Gateways have 30 s to load the bundle, and webhooks 10 s to learn of it.
    let plan = scene.reconcile();
    assert_eq!((plan.phase, plan.steps.as_slice()), (Phase::TrustExpanded, &[][..]));
    let promotion = plan.waits.iter().find(|wait| wait.step == StepName::PromoteIssuer).unwrap();
    assert_eq!(promotion.until, Some(scene.now + SignedDuration::from_secs(30)));
    assert!(plan.wake.is_some_and(|wake| wake <= scene.now + SignedDuration::from_secs(30)));
    scene.now += SignedDuration::from_secs(30);

    // After all gateways trust the new CA, the Issuer may sign with it.
    let plan = scene.reconcile();
    assert_eq!((plan.phase, plan.steps.as_slice()), (Phase::Converged, &[Step::PromoteIssuer][..]));
    scene.take(&plan);
    let plan = scene.reconcile();
    assert_eq!((plan.phase, reissues(&plan)), (Phase::Converged, vec!["client"]));

    // The client has a new certificate, and three minutes to load it. The source Secret's certificate is reissued when
    // the client trusts the new CA.
    scene.client = pair(&new, "client");
    scene.client.anchors.push(parsed(old.der()));
    let plan = scene.reconcile();
    assert_eq!(
        (plan.phase, reissues(&plan), waits(&plan)),
        (Phase::Converged, vec![], vec![StepName::DropOldCA, StepName::ReissueServingCertificate])
    );
    scene.now += SignedDuration::from_mins(3);
    let plan = scene.reconcile();
    assert_eq!((plan.phase, reissues(&plan)), (Phase::ClientsMigrated, vec!["gateway"]));
    assert_eq!(bundle(&plan), Some(vec!["CN=new"]));
    scene.take(&plan);

    // The new serving certificate is served at once. After all gateways serve it, the old CA is removed from the
    // clients' bundle.
    scene.source = pair(&new, "gateway");
    let plan = scene.reconcile();
    assert!(matches!(plan.steps.as_slice(), [Step::WriteManaged { pair: PairOf::Source, .. }]), "{:?}", plan.steps);
    scene.take(&plan);
    assert_eq!(scene.reconcile().phase, Phase::ServingCertificateSwitched);
    scene.now += SignedDuration::from_secs(30);
    let plan = scene.reconcile();
    assert_eq!(plan.client_bundle, [parsed(new.der())]);
    let plan = scene.reconcile();
    assert_eq!((plan.phase, plan.steps.as_slice(), plan.waits.as_slice()), (Phase::Steady, &[][..], &[][..]));
}

#[test]
fn a_ca_renewed_under_the_same_key_replaces_the_old_one() {
    let old = ca_between("root", 2026, 2032);
    let renewed = old.renewed(2029, 2040);
    let mut scene = Scene::steady(&old);
    scene.ca = source(&renewed);
    let plan = scene.reconcile();
    let written = plan.steps.iter().find_map(|step| match step {
        Step::WriteManaged { trust, .. } => Some(trust.clone()),
        _ => None,
    });
    assert_eq!(written, Some(vec![parsed(renewed.der())]));
}

#[test]
fn reformatted_pem_is_no_change() {
    let authority = ca("root");
    let mut scene = Scene::steady(&authority);
    let text = format!("# exported\r\n{}", authority.pem().replace('\n', "\r\n"));
    // A duplicate does not change the set of CAs either.
    scene.ca.anchors = certificates(&format!("{text}{text}"));
    assert_eq!(scene.ca.anchors.len(), 2);
    let plan = scene.reconcile();
    assert_eq!((plan.phase, plan.steps.as_slice()), (Phase::Steady, &[][..]));
}

#[test]
fn a_bundle_in_the_wrong_order_is_reordered() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.ca = source(&new);
    let plan = scene.reconcile();
    scene.take(&plan);
    scene.reconcile();
    scene.managed.as_mut().unwrap().anchors.reverse();
    assert_eq!(bundle(&scene.reconcile()), Some(vec!["CN=new", "CN=old"]));
}

#[test]
fn several_new_cas_at_once_keep_those_in_use_and_the_newest() {
    let (old, passing, new) = (ca("old"), ca("passing"), ca("new"));
    let mut scene = Scene::steady(&old);
    for authority in [&passing, &new] {
        scene.ca = source(authority);
        let plan = scene.reconcile();
        scene.take(&plan);
        scene.now += SignedDuration::from_secs(5);
    }
    let held = scene.managed.as_ref().unwrap().anchors.clone();
    assert_eq!(held, [&new, &passing, &old].map(|ca| parsed(ca.der())));
    // The second CA has signed nothing. It is removed when that is certain.
    scene.now += SignedDuration::from_mins(3);
    assert_eq!(bundle(&scene.reconcile()), Some(vec!["CN=new", "CN=old"]));
}

#[test]
fn a_lagging_client_blocks_the_switch_until_its_deadline() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, true);
    let plan = scene.reconcile();
    let wait = plan.waits.iter().find(|wait| wait.step == StepName::SwitchServingCertificate).unwrap();
    assert!(wait.reason.ends_with(": client. Restart those that read their CAs only at startup"), "{}", wait.reason);
    // Twice the gateways' propagation delay, and a minute, before the serving certificate expires.
    let deadline = scene.managed.as_ref().unwrap().chain[0].not_after - SignedDuration::from_mins(2);
    assert_eq!(wait.until, Some(deadline));
    assert!(plan.steps.iter().all(|step| !matches!(step, Step::WriteManaged { pair: PairOf::Source, .. })));
    scene.now = deadline;
    let plan = scene.reconcile();
    assert!(plan.steps.iter().any(|step| matches!(step, Step::WriteManaged { pair: PairOf::Source, .. })));
    // A client that trusts the new CA does not block it.
    let plan = before_the_switch(&old, &new, false).reconcile();
    assert!(plan.steps.iter().any(|step| matches!(step, Step::WriteManaged { pair: PairOf::Source, .. })));
}

#[test]
fn only_a_client_whose_reissue_was_requested_lags() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    assert!(scene.reconcile().lagging.is_empty());
    // No reissue was requested yet, because gateways do not trust the new CA.
    scene.ca = source(&new);
    let plan = scene.reconcile();
    assert!(plan.lagging.is_empty());
    scene.take(&plan);
    scene.pass(HOUR);
    let plan = scene.reconcile();
    scene.take(&plan);
    scene.pass(HOUR);
    assert_eq!(scene.reconcile().lagging, ["client"]);
    scene.entry.spec.paused = true;
    assert!(scene.reconcile().lagging.is_empty());
    scene.entry.spec.paused = false;
    // After its reissue it may use its earlier content until the propagation delay has passed.
    scene.client = pair(&new, "client");
    scene.client.anchors.push(parsed(old.der()));
    assert_eq!(scene.reconcile().lagging, ["client"]);
    scene.pass(HOUR);
    assert!(scene.reconcile().lagging.is_empty());
}

#[test]
fn a_slow_clock_drops_no_renewed_ca_in_use() {
    let (first, new) = (ca("old"), ca("new"));
    let renewed = first.renewed(2030, 2040);
    let of_renewed = |name| SecretSummary { anchors: vec![parsed(renewed.der())], ..pair(&first, name) };
    let mut scene = Scene::steady_with(source(&renewed), of_renewed("gateway"), of_renewed("client"));
    scene.now = parsed(renewed.der()).not_before - HOUR * 72;
    scene.ca = source(&new);
    for _ in 0..24 {
        scene.now += HOUR;
        let plan = scene.reconcile();
        scene.take(&plan);
    }
    assert_eq!(scene.managed.unwrap().anchors, [parsed(new.der()), parsed(renewed.der())]);
}

#[test]
fn of_a_previous_ca_and_its_renewal_the_one_that_lasts_longest_is_kept() {
    let (first, new) = (ca_between("old", 2026, 2032), ca("new"));
    let renewed = first.renewed(2027, 2040);
    for restored in [true, false] {
        let mut scene = Scene::steady(&first);
        // The first certificate of the CA is restored. The serving certificate is valid for longer than that.
        for held in [&renewed, if restored { &first } else { &renewed }, &new] {
            scene.ca = source(held);
            let plan = scene.reconcile();
            scene.take(&plan);
            scene.now += SignedDuration::from_mins(1);
        }
        assert_eq!(scene.managed.unwrap().anchors, [parsed(new.der()), parsed(renewed.der())], "{restored}");
        let trusted: Vec<_> = scene.entry.status.client_bundle.iter().map(|ca| ca.fingerprint.clone()).collect();
        assert_eq!(trusted, [&new, &renewed].map(|ca| parsed(ca.der()).fingerprint), "{restored}");
    }
}

#[test]
fn a_client_that_was_issued_before_the_first_bundle_is_waited_for() {
    let (old, new, of_clients) = (ca("old"), ca("new"), ca("clients"));
    let mut scene = Scene::steady_with(source(&old), pair(&old, "gateway"), pair(&of_clients, "client"));
    scene.entry.spec.clients.ca_secret_ref = Some("client-ca".into());
    (scene.client_ca, scene.issuer) = (Some(source(&of_clients)), source(&of_clients));
    scene.managed = Some(SecretSummary { anchors: source(&of_clients).anchors, ..scene.source.clone() });
    scene.journal = Journal::default();
    scene.entry.status = GatewaySecretStatus::default();
    // The client's Secret is not read, and was written before the agent ran. The client verifies gateways, so it has
    // their CA.
    let clients = || {
        let ca = source(&of_clients).anchors;
        let trust = Trust::Issued { ca, at: now() - HOUR };
        let certificate = Some(Issuance { name: "client".to_owned(), ..Issuance::default() });
        let chain = pair(&of_clients, "client").chain;
        vec![ClientState {
            name: "client".to_owned(),
            chain,
            trust,
            loads_once: true,
            is_retired: false,
            certificate,
            pending: None,
        }]
    };
    let clients = clients();
    let reconcile = |scene: &mut Scene| {
        let plan = scene.plan_with(clients.clone());
        scene.journal = plan.journal.clone();
        scene.now += HOUR;
        plan
    };
    assert_eq!(reconcile(&mut scene).steps, []);
    scene.ca = source(&new);
    // The serving certificate is reissued early, by its owner.
    scene.source = pair(&new, "gateway");
    for _ in 0..2 {
        let plan = reconcile(&mut scene);
        assert!(waits(&plan).contains(&StepName::SwitchServingCertificate), "{:?}", plan.waits);
        assert!(!plan.steps.iter().any(|step| matches!(step, Step::WriteManaged { .. })), "{:?}", plan.steps);
    }
}

#[test]
fn a_certificate_from_the_future_does_not_count_as_one_with_the_newest_bundle() {
    let (old, new, of_clients) = (ca("old"), ca("new"), ca("clients"));
    let client = pair(&of_clients, "client");
    let mut scene = Scene::steady_with(source(&old), pair(&old, "gateway"), client.clone());
    scene.entry.spec.clients.ca_secret_ref = Some("client-ca".into());
    (scene.client_ca, scene.issuer) = (Some(source(&of_clients)), source(&of_clients));
    scene.managed = Some(SecretSummary { anchors: client.anchors.clone(), ..scene.source.clone() });
    let chain = pair(&of_clients, "client").chain;
    let issued = |chain: &[Certificate], at| {
        let trust = Trust::Issued { ca: client.anchors.clone(), at };
        let certificate = Some(Issuance { name: "client".to_owned(), ..Issuance::default() });
        let chain = chain.to_vec();
        vec![ClientState {
            name: "client".to_owned(),
            chain,
            trust,
            loads_once: false,
            is_retired: false,
            certificate,
            pending: None,
        }]
    };
    let reconcile = |scene: &mut Scene, clients| {
        let plan = scene.plan_with(clients);
        scene.journal = plan.journal.clone();
        scene.entry.status.client_bundle = plan.client_bundle.iter().map(TrustAnchor::from).collect();
        scene.now += HOUR;
        plan
    };
    reconcile(&mut scene, issued(&client.chain, now() - HOUR));
    scene.ca = source(&new);
    reconcile(&mut scene, issued(&client.chain, now() - HOUR));
    // The agent's clock is set back by an hour. Seconds after the new bundle was written, the client is renewed by a
    // webhook that does not have it yet.
    scene.now -= HOUR;
    let issuance = scene.now + HOUR;
    reconcile(&mut scene, issued(&chain, issuance));
    scene.source = pair(&new, "gateway");
    let plan = reconcile(&mut scene, issued(&chain, issuance));
    assert!(waits(&plan).contains(&StepName::SwitchServingCertificate), "{:?}", plan.waits);
    assert!(!plan.steps.iter().any(|step| matches!(step, Step::WriteManaged { .. })), "{:?}", plan.steps);
}

#[test]
fn distrust_drops_a_ca_at_once_and_never_empties_a_bundle() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.entry.spec.distrusted_cas = vec![parsed(old.der()).fingerprint];
    assert_eq!(scene.reconcile().steps, []);
    scene.ca = source(&new);
    assert_eq!(bundle(&scene.reconcile()), Some(vec!["CN=new"]));
}

#[test]
fn a_pause_only_lets_new_cas_be_added() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.entry.spec.paused = true;
    scene.ca = source(&new);
    let plan = scene.reconcile();
    assert_eq!(bundle(&plan), Some(vec!["CN=new", "CN=old"]));
    scene.take(&plan);
    scene.pass(HOUR);
    assert_eq!(scene.reconcile().steps, []);
}

#[test]
fn a_copy_follows_the_source_secret_unless_paused() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.entry.spec.mode = Mode::Copy;
    assert_eq!(scene.reconcile().steps, []);
    scene.source = pair(&new, "gateway");
    assert!(scene.reconcile().steps.contains(&Step::CopySource));
    scene.entry.spec.paused = true;
    let plan = scene.reconcile();
    assert_eq!((plan.steps.as_slice(), waits(&plan).contains(&StepName::SwitchServingCertificate)), (&[][..], true));
}

#[test]
fn reads_a_journal_as_it_was_stored() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.ca = source(&new);
    let journal = scene.reconcile().journal;
    let text = journal.to_text();
    assert_eq!(Journal::from_text(&text).unwrap(), journal);
    let count = |certificate: &Certificate| text.matches(certificate.pem().lines().nth(3).unwrap()).count();
    assert_eq!((count(&parsed(old.der())), text.contains("PRIVATE KEY")), (1, false));
}

#[test]
fn rejects_a_journal_without_one_of_its_certificates_and_other_text() {
    assert!(matches!(Journal::from_text("no json"), Err(JournalError::Json(_))));
    let text = Scene::steady(&ca("root")).journal.to_text();
    let mut stored: serde_json::Value = serde_json::from_str(&text).unwrap();
    let last = stored["certificates"].as_array_mut().unwrap();
    last.pop();
    let missing = last.len();
    let error = Journal::from_text(&stored.to_string()).unwrap_err();
    assert_eq!(error.to_string(), format!("certificate {missing} is missing"));
}

#[test]
fn a_client_with_an_unknown_certificate_counts_by_what_it_trusts() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.client.chain.clear();
    scene.pass(HOUR);
    (scene.ca, scene.source) = (source(&new), pair(&new, "gateway"));
    for _ in 0..3 {
        let plan = scene.reconcile();
        scene.take(&plan);
        scene.now += HOUR;
    }
    let plan = scene.reconcile();
    let held =
        plan.waits.iter().find(|wait| wait.step == StepName::SwitchServingCertificate).expect("a leaf that is held");
    assert!(held.reason.contains("client"), "{}", held.reason);
}

#[test]
fn does_not_rewrite_its_own_bundle_although_a_rule_denies_it() {
    let old = ca("old");
    let mut scene = Scene::steady(&old);
    let denied = || {
        vec![crate::trust::Finding {
            rule: "same-subject-ambiguity",
            severity: crate::trust::Severity::Deny,
            field: "data[ca.crt]".to_owned(),
            message: String::new(),
        }]
    };
    let managed = scene.managed.take().expect("a managed Secret");
    scene.managed = Some(SecretSummary { denials: denied(), is_plain: true, ..managed.clone() });
    assert_eq!(scene.reconcile().steps, []);
    scene.managed = Some(SecretSummary { denials: denied(), is_plain: false, ..managed });
    assert_eq!(scene.reconcile().steps.len(), 1, "somebody put something beside it");
}

#[test]
fn a_source_without_a_ca_is_reported_and_changes_nothing() {
    let old = ca("old");
    let mut scene = Scene::steady(&old);
    scene.ca = SecretSummary { chain: pair(&old, "leaf").chain, ..SecretSummary::default() };
    let plan = scene.reconcile();
    assert!(plan.trouble.as_deref().is_some_and(|trouble| trouble.contains("holds no CA")), "{:?}", plan.trouble);
    assert_eq!(plan.steps, []);
}

#[test]
fn the_first_bundle_keeps_the_cas_of_the_source_secret_and_of_the_issuer() {
    let [new, old, signing] = ["new", "old", "signing"].map(ca);
    let mut scene = Scene::steady(&old);
    (scene.ca, scene.issuer, scene.managed) = (source(&new), source(&signing), None);
    let begin = |scene: &mut Scene| {
        scene.journal = Journal::default();
        scene.entry.status = GatewaySecretStatus::default();
        scene.reconcile()
    };
    let plan = begin(&mut scene);
    assert_eq!(bundle(&plan).unwrap(), ["CN=new", "CN=old", "CN=signing"]);
    assert_eq!(subjects(&plan.client_bundle), ["CN=new", "CN=old", "CN=signing"]);

    scene.entry.spec.clients.ca_secret_ref = Some("client-ca".into());
    scene.client_ca = Some(source(&new));
    scene.client = pair(&new, "client");
    let plan = begin(&mut scene);
    assert_eq!(bundle(&plan).unwrap(), ["CN=new", "CN=signing"], "the root's CA signs no clients");
    assert_eq!(subjects(&plan.client_bundle), ["CN=new", "CN=old"]);
}
