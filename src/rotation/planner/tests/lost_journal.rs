//! A journal that is deleted, or becomes unreadable, during a rotation.

use jiff::{SignedDuration, Timestamp};

use super::probe::{ONE, TWO};
use super::scene::{HOUR, Scene, before_the_switch, pair, source, subjects};
use crate::api::{ConditionStatus, Phase, StepName, UnknownClient};
use crate::rotation::JOURNAL;
use crate::rotation::journal::Journal;
use crate::rotation::planner::{ClientState, Issuance, Plan, Step, Trust};
use crate::trust::fixtures::{Authority, ca};

impl Scene {
    /// Reconciles, and stores the status.
    fn report(&mut self) -> Plan {
        let plan = self.reconcile();
        self.keep_status(&plan);
        plan
    }

    fn lose_the_journal(&mut self) -> Plan {
        self.journal = Journal::default();
        self.report()
    }
}

/// A scene in which the new CA was just written next to the old one.
fn expanded(old: &Authority, new: &Authority) -> Scene {
    let mut scene = Scene::steady(old);
    scene.report();
    scene.ca = source(new);
    let plan = scene.report();
    scene.take(&plan);
    scene.report();
    scene
}

#[test]
fn waits_the_whole_propagation_delay_of_gateways_after_the_journal_was_lost() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = expanded(&old, &new);
    scene.now += SignedDuration::from_secs(20);
    let plan = scene.lose_the_journal();
    assert_eq!((plan.phase, plan.steps.as_slice()), (Phase::TrustExpanded, &[][..]));
    assert_eq!(subjects(&plan.converged), ["CN=old"], "clients' renewals by the old CA go on");
    let promotion = plan.waits.iter().find(|wait| wait.step == StepName::PromoteIssuer).unwrap();
    assert_eq!(promotion.until, Some(scene.now + SignedDuration::from_secs(30)));
    let published = scene.entry.status.condition(JOURNAL).unwrap();
    assert_eq!(published.status, ConditionStatus::False);
    assert!(published.message.contains(&scene.now.to_string()), "{}", published.message);

    scene.now += SignedDuration::from_secs(29);
    assert_eq!(scene.report().steps, []);
    scene.now += SignedDuration::from_secs(1);
    let plan = scene.report();
    assert_eq!((plan.phase, plan.steps.as_slice()), (Phase::Converged, &[Step::PromoteIssuer][..]));
    assert_eq!(scene.entry.status.condition(JOURNAL), None);
}

#[test]
fn clients_keep_the_old_ca_after_the_journal_was_lost() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, false);
    let plan = scene.report();
    scene.take(&plan);
    assert_eq!(scene.report().phase, Phase::ServingCertificateSwitched);
    scene.now += SignedDuration::from_secs(29);
    for seconds in [29, 29, 1] {
        let plan = if seconds > 1 { scene.lose_the_journal() } else { scene.report() };
        assert_eq!(
            (plan.phase, subjects(&plan.client_bundle)),
            (Phase::ServingCertificateSwitched, vec!["CN=new", "CN=old"])
        );
        scene.now += SignedDuration::from_secs(seconds);
    }
    scene.now += HOUR;
    assert_eq!(subjects(&scene.report().client_bundle), ["CN=new"]);
    assert_eq!(scene.report().phase, Phase::Steady);
}

#[test]
fn a_probed_certificate_that_the_journal_lost_outlasts_the_propagation_delay() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, false);
    scene.watch();
    let former = scene.managed.clone().unwrap();
    let plan = scene.report();
    scene.take(&plan);
    scene.report();
    scene.lose_the_journal();
    let source = scene.source.clone();
    let behind = [(ONE, Ok((&source, None))), (TWO, Ok((&former, None)))];
    for _ in 0..2 {
        scene.see(None, &behind);
        let plan = scene.report();
        assert_eq!(
            (plan.phase, subjects(&plan.client_bundle)),
            (Phase::ServingCertificateSwitched, vec!["CN=new", "CN=old"])
        );
        scene.now += HOUR;
    }
    let published = scene.report();
    let wait = published.waits.iter().find(|wait| wait.reason.contains(TWO)).expect("a wait that names it");
    assert_eq!((wait.step, wait.until, published.endpoints.unwrap().stale), (StepName::DropOldCA, None, 1));
    assert!(published.waits.iter().all(|wait| !wait.reason.contains("Check probe.target")), "{:?}", published.waits);
    // The endpoint no longer exists.
    scene.see(None, &behind[..1]);
    assert_eq!(subjects(&scene.report().client_bundle), ["CN=new"]);
}

#[test]
fn does_not_switch_to_a_certificate_that_a_client_with_its_secret_in_memory_does_not_trust() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = before_the_switch(&old, &new, true);
    let holds = |plan: &Plan| plan.waits.iter().any(|wait| wait.step == StepName::SwitchServingCertificate);
    assert!(holds(&scene.report()));
    // Only the status has the certificate that the client has loaded.
    assert!(holds(&scene.lose_the_journal()));
    scene.now += HOUR;
    assert!(holds(&scene.report()));
}

#[test]
fn a_steady_rotation_stays_steady_after_the_journal_was_lost() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    scene.report();
    let plan = scene.lose_the_journal();
    assert_eq!((plan.phase, plan.steps.as_slice(), plan.waits.as_slice()), (Phase::Steady, &[][..], &[][..]));
    assert_eq!(scene.entry.status.condition(JOURNAL), None);
    // A missing journal is not lost if there never was one.
    let mut scene = Scene::steady(&old);
    scene.managed = None;
    (scene.journal, scene.entry.status) = Default::default();
    scene.source = pair(&new, "gateway");
    scene.report();
    assert_eq!(scene.entry.status.condition(JOURNAL), None);
}

/// A client without a CertificateRequest, whose certificate ends then.
pub(super) fn unknown(end: Timestamp) -> ClientState {
    let validity = Some((Timestamp::UNIX_EPOCH, end));
    ClientState {
        name: "client".to_owned(),
        chain: Vec::new(),
        trust: Trust::Issued { ca: Vec::new(), at: Timestamp::MIN },
        loads_once: true,
        is_retired: false,
        certificate: Some(Issuance { name: "client".to_owned(), validity, ..Issuance::default() }),
        pending: None,
    }
}

#[test]
fn an_unknown_certificate_counts_until_its_end_although_the_journal_is_lost() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&old);
    let end = scene.now + HOUR * 3;
    let reconcile = |scene: &mut Scene, client: ClientState| {
        let plan = scene.plan_with(vec![client]);
        scene.journal = plan.journal.clone();
        scene.keep_status(&plan);
        plan
    };
    reconcile(&mut scene, unknown(end - HOUR));
    scene.ca = source(&new);
    // It was renewed, and a workload may use either certificate.
    let plan = reconcile(&mut scene, unknown(end));
    scene.take(&plan);
    let known = |not_after| vec![UnknownClient { name: "client".to_owned(), not_after: Some(not_after) }];
    assert_eq!(scene.entry.status.unknown_clients, known(end));
    scene.journal = Journal::default();
    let of_new = pair(&new, "client");
    let reissued =
        ClientState { chain: of_new.chain.clone(), trust: Trust::Read(of_new.anchors.clone()), ..unknown(end) };
    let plan = reconcile(&mut scene, reissued.clone());
    assert_eq!(plan.unknown_clients, known(end), "it may have loaded its Secret before");
    scene.now = end;
    assert_eq!(reconcile(&mut scene, reissued).unknown_clients, []);
}
