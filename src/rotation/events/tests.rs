#![allow(clippy::unwrap_used)]

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::*;
use crate::api::{ConditionStatus, LaggingClient, Period, TrustAnchor};
use crate::registry::tests::entry;
use crate::rotation::{
    CLIENTS, JOURNAL, SOURCES, SecretSummary, change_windows, journal::Journal, planner, report, set,
};
use crate::trust::Certificate;
use crate::trust::fixtures::{ca, now, parsed};

fn previous() -> Entry {
    entry("mesh", "root", "gw")
}

fn with(change: impl FnOnce(&mut GatewaySecretStatus)) -> GatewaySecretStatus {
    let mut status = previous().status;
    change(&mut status);
    status
}

fn reasons(notices: &[StatusEvent]) -> Vec<(&str, bool)> {
    notices.iter().map(|notice| (notice.reason, notice.is_warning)).collect()
}

fn anchors(cas: &[&Certificate]) -> Vec<TrustAnchor> {
    cas.iter().map(|ca| TrustAnchor::from(*ca)).collect()
}

fn write(trust: &[&Certificate], pair: PairOf) -> Step {
    Step::WriteManaged { trust: trust.iter().map(|ca| (*ca).clone()).collect(), pair }
}

#[test]
fn an_unchanged_status_makes_no_event() {
    let status = with(|status| status.phase = Some(Phase::Steady));
    let entry = Entry { status: status.clone(), ..previous() };
    assert_eq!(notices(&entry, &status, &[]), []);
}

#[test]
fn a_change_of_phase_makes_one_event() {
    let status = with(|status| status.phase = Some(Phase::Steady));
    let events = notices(&previous(), &status, &[]);
    assert_eq!(reasons(&events), [("PhaseChanged", false)]);
    let steady = Entry { status, ..previous() };
    let lost = with(|status| {
        status.phase = Some(Phase::Pending);
        let said = (ConditionStatus::False, "SecretMissing", "Secret gw does not exist.".to_owned());
        set(&previous(), status, READY, said, now());
    });
    let [events] = &notices(&steady, &lost, &[])[..] else { panic!("one notice") };
    assert!(
        events.is_warning && events.note == "The rotation is in phase Pending, was Steady: Secret gw does not exist.",
        "{events:?}"
    );
}

#[test]
fn a_write_reports_added_and_removed_cas() {
    let [old, new] = ["old", "new"].map(|name| parsed(ca(name).der()));
    let held = |cas: &[&Certificate]| with(|status| status.bundle = anchors(cas));
    let of = |before: &[&Certificate], step: Step| {
        let entry = Entry { status: held(before), ..previous() };
        notices(&entry, &held(before), &[step])
    };
    let events = of(&[&old], write(&[&new, &old], PairOf::Managed));
    assert_eq!(reasons(&events), [("ManagedSecretWritten", false)]);
    assert_eq!(events[0].note, "Secret gw holds 2 CAs, new: CN=new.");
    assert_eq!(events[0].secret.as_deref(), Some("gw"));
    let events = of(&[&new, &old], write(&[&new, &old], PairOf::Source));
    assert_eq!(reasons(&events), [("ManagedSecretWritten", false), ("ServingCertificateSwitched", false)]);
    let events = of(&[&new, &old], write(&[&new], PairOf::Managed));
    assert_eq!(reasons(&events), [("ManagedSecretWritten", false), ("OldCADropped", false)]);
    assert_eq!(events[1].note, "Gateways no longer trust CN=old.");
    // The first serving certificate is not a switch, and a CA that another writer has added is not an old CA.
    assert_eq!(reasons(&of(&[], write(&[&new], PairOf::Source))), [("ManagedSecretWritten", false)]);
    let entry = Entry { status: held(&[&new]), ..previous() };
    let events = notices(&entry, &held(&[&new, &old]), &[write(&[&new], PairOf::Managed)]);
    assert_eq!(reasons(&events), [("ManagedSecretWritten", false)]);
}

#[test]
fn other_steps_name_what_they_write() {
    let mut entry = previous();
    entry.spec.issuer_secret_name = Some("issuer".to_owned());
    let steps = [Step::CopySource, Step::PromoteIssuer, Step::Reissue { certificate: "payments".to_owned() }];
    let events = notices(&entry, &entry.status, &steps);
    let named: Vec<_> = events.iter().map(|notice| (notice.reason, notice.secret.as_deref())).collect();
    assert_eq!(
        named,
        [("ManagedSecretWritten", Some("gw")), ("IssuerPromoted", Some("issuer")), ("ReissueRequested", None)]
    );
    assert!(events[2].note.contains("Certificate payments"), "{}", events[2].note);
}

#[test]
fn a_condition_makes_an_event_when_it_fails_changes_and_is_restored() {
    let said = |type_: &str, status, reason: &str, message: &str| {
        with(|entry| set(&previous(), entry, type_, (status, reason, message.to_owned()), now()))
    };
    use ConditionStatus::{False, True};
    for (type_, begins, ends) in [(SOURCES, "SourceUnusable", "SourceUsable"), (SYNCED, "StepFailed", "StepsDone")] {
        let [good, gone, bad] = [
            said(type_, True, "Good", "all is well"),
            said(type_, False, "Gone", "Secret root does not exist"),
            said(type_, False, "Bad", "Secret root: expired"),
        ];
        let between = |before: &GatewaySecretStatus, after| {
            let entry = Entry { status: before.clone(), ..previous() };
            notices(&entry, after, &[]).into_iter().map(|n| (n.reason, n.is_warning, n.note)).collect::<Vec<_>>()
        };
        let warned = |note: &str| vec![(begins, true, note.to_owned())];
        assert_eq!(between(&previous().status, &good), []);
        assert_eq!(between(&previous().status, &gone), warned("Secret root does not exist"));
        assert_eq!(between(&good, &gone), warned("Secret root does not exist"));
        assert_eq!(between(&gone, &gone), []);
        assert_eq!(between(&gone, &bad), warned("Secret root: expired"));
        assert_eq!(between(&bad, &good), [(ends, false, "all is well".to_owned())]);
    }
    let kept = said(JOURNAL, False, "Lost", "the journal was deleted");
    assert_eq!(reasons(&notices(&previous(), &kept, &[])), [("JournalLost", true)]);
    assert_eq!(notices(&Entry { status: kept.clone(), ..previous() }, &kept, &[]), []);
    // The API server may word the same rejection differently each time.
    let [one, two] = ["refused at 1", "refused at 2"].map(|message| said(SYNCED, False, "Failed", message));
    assert_eq!(notices(&Entry { status: one, ..previous() }, &two, &[]), []);
}

#[test]
fn windows_that_never_open_make_an_event_before_a_rotation_needs_them() {
    let with_zones = |zones: &[&str], status: GatewaySecretStatus| {
        let mut entry = Entry { status, ..previous() };
        let window = |zone: &&str| json!({ "from": "22:00", "to": "02:00", "timeZone": zone });
        let windows = zones.iter().map(window).map(serde_json::from_value).collect::<Result<_, _>>();
        entry.policy.change_windows = windows.expect("windows");
        let mut status = entry.status.clone();
        change_windows::report(&entry, &mut status, now());
        (notices(&entry, &status, &[]), status)
    };
    let (events, status) = with_zones(&["Europe/Berlin"], previous().status);
    assert_eq!(events, []);
    let (events, status) = with_zones(&["Europe/Berlin", "Mars/Base"], status);
    assert_eq!(reasons(&events), [("ChangeWindowsInvalid", true)]);
    assert!(
        events[0].note.contains("1 of 2 windows in changeWindows never opens") && events[0].note.contains("Mars/Base"),
        "{events:?}"
    );
    let (events, status) = with_zones(&["Europe/Berlin", "Mars/Base"], status);
    assert_eq!(events, [], "one Event");
    let (events, status) = with_zones(&["Mars/Base"], status);
    assert_eq!(reasons(&events), [("ChangeWindowsInvalid", true)], "no window is left that opens");
    assert_eq!(with_zones(&["UTC"], status).0, []);
}

#[test]
fn each_client_makes_an_event_when_it_becomes_overdue() {
    let lagging = |names: &[&str], overdue| {
        let client = |name: &&str| LaggingClient { name: (*name).to_owned(), since: now(), overdue };
        with(|status| status.lagging = names.iter().map(client).collect())
    };
    let between = |before: GatewaySecretStatus, after: &GatewaySecretStatus| {
        notices(&Entry { status: before, ..previous() }, after, &[])
    };
    assert_eq!(between(previous().status, &lagging(&["payments"], false)), []);
    let events = between(lagging(&["payments", "checkout"], false), &lagging(&["payments", "checkout"], true));
    assert_eq!(reasons(&events), [("ClientLagging", true), ("ClientLagging", true)]);
    assert_eq!(events[1].secret.as_deref(), Some("checkout"));
    let events = between(previous().status, &lagging(&["readers of ConfigMap trust (ca.crt)"], true));
    assert_eq!(events[0].secret, None, "it is no Secret");
    assert_eq!(between(lagging(&["payments"], true), &lagging(&["payments"], true)), []);
    let many: Vec<_> = (0..30).map(|n| format!("client-{n}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let events = between(previous().status, &lagging(&many, true));
    assert_eq!((events.len(), events[10].note.contains("20 more clients")), (11, true));
}

fn plan(lagging: &[&str]) -> planner::Plan {
    let facts = SecretSummary::default();
    let entry = previous();
    let seen = planner::Snapshot {
        entry: &entry,
        source: Some(&facts),
        ca: None,
        client_ca: None,
        issuer: None,
        managed: None,
        other_gateway_secrets: Vec::new(),
        bundle_readers: Vec::new(),
        clients: Vec::new(),
        trust_loaders: Vec::new(),
        unlisted_namespaces: &[],
        namespaces: Default::default(),
        source_certificate: None,
        probe_result: None,
        unprobed: None,
        canary: None,
        readers: Vec::new(),
        sources: Default::default(),
        presented_also: Vec::new(),
        source_sibling: None,
        managed_sibling: planner::TrustCopy::Absent,
        additional_trust: Vec::new(),
        config_maps: Vec::new(),
    };
    let lagging = lagging.iter().map(|name| (*name).to_owned()).collect();
    planner::Plan { lagging, ..planner::plan(&seen, &Journal::default(), now()) }
}

#[test]
fn a_client_is_overdue_after_twice_the_time_that_following_takes() {
    let mut entry = previous();
    (entry.policy.propagation_delays.admission, entry.policy.propagation_delays.clients) =
        (Period::from_secs(10), Period::from_secs(50));
    let mut at = |after: i64, names: &[&str]| {
        let now: Timestamp = now() + SignedDuration::from_secs(after);
        entry.status = report(&entry, &plan(names), entry.status.clone(), now);
        let overdue: Vec<_> = entry.status.lagging.iter().map(|client| client.overdue).collect();
        (overdue, entry.status.condition(CLIENTS).unwrap().status)
    };
    use ConditionStatus::{False, True};
    assert_eq!(at(0, &["payments"]), (vec![false], True));
    assert_eq!(at(119, &["payments", "checkout"]), (vec![false, false], True));
    assert_eq!(at(120, &["payments", "checkout"]), (vec![true, false], False));
    assert_eq!(at(130, &["checkout"]), (vec![false], True));
    // The time for which it lags starts again.
    assert_eq!(at(140, &["payments"]), (vec![false], True));
}
