use rcgen::{DistinguishedName, SanType};

use super::*;
use crate::api::{
    ConditionStatus::{self, False, True, Unknown},
    LaggingClient, Leaf, LeafKind, Mode, Phase, READY, TrustAnchor,
};
use crate::consumer::{AVAILABLE, LOADED, RESTARTABLE};
use crate::registry::{Entry, tests::entry};
use crate::rotation::{CLIENTS, CONNECT, Expiry, GATEWAYS, LEAF, READINESS, SOURCES, set};
use crate::trust::fixtures::ca;

const NOW: &str = "2030-06-01T00:00:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().expect("an instant")
}

/// A GatewaySecret of 2030-06-01 in a phase that began two and a half minutes ago.
fn in_phase(phase: Phase, bundle: &[(&str, &str, &str, &str)]) -> Entry {
    let mut entry = entry("istio-system", "public-gateway-source", "public-gateway");
    entry.spec.clients.all_declared = true;
    let status = &mut entry.status;
    status.phase = Some(phase);
    status.phase_since = Some(at("2030-05-31T23:57:30Z"));
    status.bundle = bundle
        .iter()
        .map(|(subject, fingerprint, from, to)| TrustAnchor {
            subject: format!("CN={subject}"),
            fingerprint: (*fingerprint).to_owned(),
            not_before: at(from),
            not_after: at(to),
            pem: None,
            converged: None,
        })
        .collect();
    entry
}

fn with(mut entry: Entry, type_: &str, status: ConditionStatus, reason: &str, message: &str, since: &str) -> Entry {
    let former = entry.clone();
    set(&former, &mut entry.status, type_, (status, reason, message.to_owned()), at(since));
    entry
}

/// Its summary, with what uses the CAs of its bundle: client names, and whether the serving certificate is of it.
fn summary(entry: &Entry, users: &[(&[&str], bool)]) -> StatusSummary {
    let mut summary = StatusSummary::of(entry, at(NOW));
    for (ca, (clients, serves)) in summary.bundle.iter_mut().zip(users) {
        (ca.clients, ca.serves) = (clients.iter().map(|name| (*name).to_owned()).collect(), *serves);
    }
    summary.clients.declared = users.iter().map(|(clients, _)| clients.len()).sum();
    summary.clients.migrated = summary.bundle.first().map_or(0, |ca| ca.clients.len());
    summary.served = Some(Validity {
        subject: "CN=shop.example.com".to_owned(),
        not_before: at("2030-04-01T00:00:00Z"),
        not_after: at("2030-06-12T00:00:00Z"),
    });
    let what = "serving certificate CN=shop.example.com".to_owned();
    summary.next_expiry = Some(Expiry { what, at: at("2030-06-12T00:00:00Z") });
    summary
}

const NEW: (&str, &str, &str, &str) = ("mesh-ca", "2f1a9c04d5e6f708", "2030-05-01T00:00:00Z", "2031-05-01T00:00:00Z");
const OLD: (&str, &str, &str, &str) = ("mesh-ca", "9b7c3e11a2b3c4d5", "2029-06-15T00:00:00Z", "2030-06-15T00:00:00Z");

fn rotating() -> Entry {
    let mut entry = in_phase(Phase::Converged, &[NEW, OLD]);
    entry.status.waits = vec![
        Wait {
            step: StepName::ReissueClients,
            reason: "being reissued: payments".to_owned(),
            until: None,
            needs_action: false,
        },
        Wait {
            step: StepName::SwitchServingCertificate,
            reason: "clients that may not trust the new CA yet: payments".to_owned(),
            until: Some(at("2030-06-11T23:59:00Z")),
            needs_action: false,
        },
    ];
    entry.status.endpoints = Some(Endpoints { total: 3, current: 3, stale: 0, unreachable: 0 });
    let lagging = LaggingClient { name: "payments".to_owned(), since: at("2030-05-31T23:59:55Z"), overdue: false };
    (entry.status.lagging, entry.status.lagging_count) = (vec![lagging], Some(1));
    let message =
        "Clients do not trust the CA of the new serving certificate yet: payments. The agent has them reissued.";
    with(entry, LEAF, False, "Reissuing", message, "2030-05-31T23:59:55Z")
}

const USERS: [(&[&str], bool); 2] =
    [(&["checkout", "orders", "search", "stock", "users"], false), (&["payments"], true)];

#[test]
fn steady() {
    let entry = in_phase(Phase::Steady, &[OLD]);
    let message = "A CA rotation started now would complete without manual steps in about 4 minutes.";
    let entry = with(entry, READINESS, True, "Completes", message, NOW);
    insta::assert_snapshot!(draw(&summary(&entry, &[(&["checkout", "payments"], true)]), at(NOW)));
}

#[test]
fn a_steady_gateway_secret_whose_next_rotation_would_stop() {
    let entry = in_phase(Phase::Steady, &[OLD]);
    let message = "A CA rotation started now would not complete: Secret payments is not managed by cert-manager; renew it \
                   manually and include the new CA in ca.crt.";
    let entry = with(entry, READINESS, False, "Blocked", message, NOW);
    insta::assert_snapshot!(draw(&summary(&entry, &[(&["checkout", "payments"], true)]), at(NOW)));
}

#[test]
fn a_rotation_that_needs_no_person() {
    insta::assert_snapshot!(draw(&summary(&rotating(), &USERS), at(NOW)));
}

#[test]
fn a_new_ca_that_nothing_uses_yet() {
    let mut entry = in_phase(Phase::TrustExpanded, &[NEW, OLD]);
    entry.status.endpoints = Some(Endpoints { total: 4, current: 1, stale: 1, unreachable: 1 });
    let message = "1 of 4 gateways have earlier content of the managed Secret; status.waits names them.";
    let entry = with(entry, GATEWAYS, False, "EarlierContent", message, "2030-05-31T23:59:30Z");
    insta::assert_snapshot!(draw(&summary(&entry, &[(&[], false), (&["payments"], true)]), at(NOW)));
}

#[test]
fn a_rotation_that_waits_for_a_person() {
    let mut entry = rotating();
    entry.spec.clients.all_declared = false;
    entry.status.lagging[0].overdue = true;
    entry.status.waits[0] = Wait {
        step: StepName::ReissueClients,
        reason: "Secret payments is not managed by cert-manager; renew it manually and include the new CA in ca.crt"
            .to_owned(),
        until: None,
        needs_action: true,
    };
    let late = "Clients do not trust the CA of the new serving certificate yet: payments. Renew their certificates and restart them.";
    let entry = with(entry, LEAF, False, "Lagging", late, "2030-05-31T23:50:00Z");
    let overdue = "1 client still uses or trusts only an old CA: payments. Check that cert-manager has reissued its certificates.";
    let entry = with(entry, CLIENTS, False, "Lagging", overdue, "2030-05-31T23:59:00Z");
    let assumed = "No gateway is probed (probe.mode is Disabled in the RotationPolicy).";
    let entry = with(entry, GATEWAYS, Unknown, "Assumed", assumed, NOW);
    let mut summary = summary(&entry, &USERS);
    summary.change_windows = Some(WindowState { is_open: false, until: Some(at("2030-06-01T22:00:00Z")) });
    insta::assert_snapshot!(draw(&summary, at(NOW)));
}

#[test]
fn a_wait_that_needs_a_person_is_an_action_without_a_condition() {
    let mut entry = rotating();
    assert_eq!(summary(&entry, &USERS).actions, [""; 0]);
    entry.status.waits[1].needs_action = true;
    let summary = summary(&entry, &USERS);
    assert_eq!(summary.actions, ["Clients that may not trust the new CA yet: payments."]);
    let text = draw(&summary, at(NOW));
    let expected =
        "Act:             before 2030-06-11T23:59:00Z (in 11d): Clients that may not trust the new CA yet: payments.";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("to switch the serving certificate (SwitchServingCertificate): see Act"), "{text}");
}

#[test]
fn a_managed_secret_that_is_lost_during_a_rotation() {
    let entry = in_phase(Phase::Pending, &[NEW, OLD]);
    let entry = with(entry, READY, False, "SecretMissing", "Secret public-gateway does not exist.", NOW);
    let message = "Secret public-gateway-source does not exist. Until this is corrected, the previous CAs and certificates stay in use.";
    let entry = with(entry, SOURCES, False, "Unusable", message, NOW);
    insta::assert_snapshot!(draw(&summary(&entry, &USERS), at(NOW)));
}

#[test]
fn a_gateway_secret_without_an_agent() {
    let mut entry = in_phase(Phase::Pending, &[]);
    entry.status = Default::default();
    insta::assert_snapshot!(draw(&StatusSummary::of(&entry, at(NOW)), at(NOW)));
}

#[test]
fn gateways_that_stay_behind_need_a_person() {
    let act = |since: &str| {
        let entry = with(rotating(), GATEWAYS, False, "EarlierContent", "1 of 3 gateways have earlier content.", since);
        StatusSummary::of(&entry, at(NOW)).actions
    };
    assert_eq!(act("2030-05-31T23:59:30Z"), [""; 0]);
    assert_eq!(act("2030-05-31T23:58:59Z"), ["1 of 3 gateways have earlier content."]);
}

#[test]
fn says_what_is_waited_for_when_only_gateways_are_behind() {
    let waiting = |stale: u32, since: &str| {
        let mut entry = in_phase(Phase::TrustExpanded, &[NEW, OLD]);
        entry.status.endpoints = Some(Endpoints { total: 3, current: 1, stale, unreachable: 0 });
        let status = if stale > 0 { False } else { Unknown };
        let entry = with(entry, GATEWAYS, status, "EarlierContent", "Gateways have earlier content.", since);
        let text = draw(&summary(&entry, &USERS), at(NOW));
        text.lines().find_map(|line| Some(line.split_once("Waiting:")?.1.trim().to_owned()))
    };
    let (recent, long_ago) = ("2030-05-31T23:59:30Z", "2030-05-31T23:50:00Z");
    let expected = "for 1 gateway to load the new content of the managed Secret; if that is not done by 2030-06-01T00:00:30Z \
                    (in 30s), Act says what to do";
    assert_eq!(waiting(1, recent).as_deref(), Some(expected));
    let expected = "for 2 gateways to load the new content of the managed Secret: see Act";
    assert_eq!(waiting(2, long_ago).as_deref(), Some(expected));
    assert_eq!(waiting(0, recent).as_deref(), Some("for a probe of 2 gateways"));
}

#[test]
fn replaces_control_characters() {
    let hostile = "a\u{1b}[2J\nb";
    let mut summary = summary(&rotating(), &USERS);
    (summary.namespace, summary.name, summary.secret_name) = (hostile.into(), hostile.into(), hostile.into());
    summary.headline = hostile.into();
    summary.actions = vec![hostile.into()];
    summary.troubles = vec!["a\u{1b}[2J\nb!".into()];
    summary.waits[0].reason = "b\u{1b}a\u{1b}[2J\nb".into();
    summary.bundle[0].clients = vec![hostile.into()];
    summary.bundle[0].validity.subject = hostile.into();
    summary.served.as_mut().expect("a certificate").subject = hostile.into();
    summary.next_expiry.as_mut().expect("an expiry").what = hostile.into();
    let drawn = draw(&summary, at(NOW));
    assert!(drawn.chars().all(|c| c == '\n' || !c.is_control()), "{drawn:?}");
    assert_eq!(drawn.matches("a\u{fffd}[2J\u{fffd}b").count(), 11);
}

/// A TrustConsumer whose conditions are these.
fn consumer(conditions: &[(&str, ConditionStatus, &str, &str)]) -> ConsumerSummary {
    let spec = serde_json::json!({
        "workloads": [{"kind": "Deployment", "name": "envoy-ratelimit"}],
        "loads": [{"kind": "Secret", "name": "envoy-rate-limit", "keys": ["ca.crt", "tls.crt"]}],
    });
    let condition = |(type_, status, reason, message): &(&str, ConditionStatus, &str, &str)| {
        serde_json::json!({
            "type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": NOW,
        })
    };
    let status = match conditions {
        [] => serde_json::json!({}),
        _ => serde_json::json!({
            "conditions": conditions.iter().map(condition).collect::<Vec<_>>(), "firstExpiry": "2030-06-12T00:00:00Z",
        }),
    };
    let (spec, status) = (serde_json::from_value(spec), serde_json::from_value(status));
    let (spec, mut status): (_, crate::api::TrustConsumerStatus) = (spec.expect("a spec"), status.expect("a status"));
    status.pending_since = conditions
        .iter()
        .any(|(type_, _, reason, _)| *type_ == LOADED && *reason != "Loaded")
        .then(|| at("2030-05-31T20:00:00Z"));
    ConsumerSummary::of("envoy-gateway-system", "rate-limit", &spec, &status)
}

#[test]
fn a_trust_consumer_whose_workloads_have_loaded_the_content() {
    let gap = "A restart leaves no ready pod of deployment/envoy-ratelimit for a time: strategy Recreate.";
    let loaded = (LOADED, True, "Loaded", "deployment/envoy-ratelimit has loaded the content.");
    insta::assert_snapshot!(draw_consumer(&consumer(&[loaded, (AVAILABLE, False, "LastPod", gap)]), at(NOW)));
}

#[test]
fn a_trust_consumer_that_waits_for_a_rollout() {
    let message = "deployment/envoy-ratelimit was restarted (0 of 1 pods are updated). If its rollout does not progress, fix it or roll it back.";
    insta::assert_snapshot!(draw_consumer(&consumer(&[(LOADED, False, "Rolling", message)]), at(NOW)));
}

#[test]
fn a_trust_consumer_that_waits_for_a_person() {
    let message = "deployment/envoy-ratelimit has earlier content, and is paused. Resume it: kubectl rollout resume -n \
                   envoy-gateway-system deployment/envoy-ratelimit";
    let conditions = [(LOADED, False, "Paused", message), (RESTARTABLE, False, "Paused", message)];
    insta::assert_snapshot!(draw_consumer(&consumer(&conditions), at(NOW)));
    let expired = draw_consumer(&consumer(&conditions), at("2030-06-12T03:00:00Z"));
    assert!(expired.contains("First expiry:    2030-06-12T00:00:00Z (3h ago)"), "{expired}");
    assert!(!expired.contains("before 2030"), "{expired}");
}

#[test]
fn a_trust_consumer_without_an_agent() {
    insta::assert_snapshot!(draw_consumer(&consumer(&[]), at(NOW)));
}

#[test]
fn replaces_control_characters_of_a_trust_consumer() {
    let hostile = "a\u{1b}[2J\nb";
    let mut summary = consumer(&[(LOADED, False, "Rolling", "rolling")]);
    (summary.namespace, summary.name, summary.reason) = (hostile.into(), hostile.into(), Some(hostile.into()));
    summary.waits_for = Some(hostile.into());
    summary.workloads[0].name = hostile.into();
    summary.loads[0].name = hostile.into();
    let drawn = draw_consumer(&summary, at(NOW));
    assert!(drawn.chars().all(|c| c == '\n' || !c.is_control()), "{drawn:?}");
    assert_eq!(drawn.matches("a\u{fffd}[2J\u{fffd}b").count(), 6);
}

#[test]
fn a_client_that_is_cut_off_is_not_given_a_date() {
    let message = "1 client cannot connect to gateways any longer: payments.";
    let entry = with(in_phase(Phase::Converged, &[NEW, OLD]), CONNECT, False, "CutOff", message, NOW);
    let summary = StatusSummary::of(&entry, at(NOW));
    assert_eq!((summary.actions, summary.act_before), (vec![message.to_owned()], None));
}

#[test]
fn a_copy_of_another_ca_is_not_called_a_rotation() {
    let mut entry = in_phase(Phase::TrustExpanded, &[NEW, OLD]);
    let headline = |entry: &Entry| StatusSummary::of(entry, at(NOW)).headline;
    assert_eq!(headline(&entry), "Rotating: gateways are getting the new CA");
    entry.status.mode = Some(Mode::Copy);
    assert_eq!(
        headline(&entry),
        "The managed Secret is a copy of the source Secret, and certificates of another CA are in use"
    );
}

#[test]
fn a_serving_certificate_without_a_subject_is_shown_by_its_host() {
    let served = ca("CA").leaf_with("", |params| {
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::DnsName("shop.example.com".try_into().expect("a host name"))];
    });
    let mut entry = in_phase(Phase::Steady, &[NEW]);
    entry.status.leaves = Some(vec![Leaf {
        kind: LeafKind::Server,
        namespace: "istio-system".to_owned(),
        name: "public-gateway".to_owned(),
        subject: String::new(),
        not_after: at("2030-06-12T00:00:00Z"),
        pem: served.pem(),
        others: Vec::new(),
        same_names: false,
    }]);
    assert_eq!(
        StatusSummary::of(&entry, at(NOW)).served.map(|served| served.subject).as_deref(),
        Some("shop.example.com")
    );
}
