#![allow(clippy::unwrap_used)]

use super::*;
use crate::registry::tests::entry;
use crate::rotation::planner::Issuance;
use crate::rotation::readers::ReaderTrust;
use crate::trust::fixtures::{Authority, ca, now, parsed};

fn trial() -> TrialCa {
    let authority = ca("trial");
    let leaf = |name: &str| parsed(authority.leaf_with(name, keyed).der());
    TrialCa { ca: parsed(authority.der()), serving: leaf("serving"), client: leaf("client") }
}

fn keyed(params: &mut rcgen::CertificateParams) {
    params.use_authority_key_identifier_extension = true;
}

fn source(authority: &Authority) -> SecretSummary {
    let ca = parsed(authority.der());
    SecretSummary { anchors: vec![ca.clone()], chain: vec![ca], ..SecretSummary::default() }
}

fn pair(authority: &Authority) -> SecretSummary {
    let leaf = parsed(authority.leaf_with("gateway", keyed).der());
    SecretSummary { chain: vec![leaf], ..source(authority) }
}

fn client(authority: &Authority, name: &str, is_issued: bool) -> ClientState {
    let certificate = is_issued.then(|| Issuance { name: name.to_owned(), ..Issuance::default() });
    let SecretSummary { chain, anchors, .. } = pair(authority);
    ClientState {
        name: name.to_owned(),
        chain,
        trust: Trust::Read(anchors),
        loads_once: false,
        is_retired: false,
        certificate,
        pending: None,
    }
}

/// What is forecast for a GatewaySecret in phase Steady, and the condition's message.
fn forecast_of(change: impl FnOnce(&mut Entry, &mut Vec<ClientState>)) -> (Forecast, String) {
    forecast_with(&ca("old"), |_| {}, change, |_| Vec::new())
}

/// The same with a change of the source Secret, and with readers that may depend on the clients.
fn forecast_with(
    old: &Authority,
    change_source: impl FnOnce(&mut SecretSummary),
    change: impl FnOnce(&mut Entry, &mut Vec<ClientState>),
    readers: impl FnOnce(&[ClientState]) -> Vec<TlsReader>,
) -> (Forecast, String) {
    let mut entry = Entry { status: GatewaySecretStatus::default(), ..entry("mesh", "root", "gw") };
    entry.resolved.ca_secret_ref = Some("ca".into());
    entry.spec.clients.all_declared = true;
    let mut clients = vec![client(old, "payments", true)];
    change(&mut entry, &mut clients);
    let (ca, mut source) = (source(old), pair(old));
    change_source(&mut source);
    let with_ca = entry.resolved.ca_secret_ref.is_some();
    let is_here = entry.ca_namespaces().is_empty();
    let issuer = entry.spec.issuer_secret_name.as_ref().filter(|_| is_here).map(|_| &ca);
    let seen = Snapshot {
        entry: &entry,
        source: Some(&source),
        ca: with_ca.then_some(&ca),
        client_ca: None,
        issuer,
        managed: Some(&source),
        source_sibling: None,
        managed_sibling: TrustCopy::Absent,
        additional_trust: Vec::new(),
        config_maps: Vec::new(),
        readers: readers(&clients),
        clients,
        other_gateway_secrets: Vec::new(),
        bundle_readers: Vec::new(),
        trust_loaders: Vec::new(),
        unlisted_namespaces: &[],
        namespaces: Default::default(),
        source_certificate: Some(Issuance { name: "gateway".to_owned(), ..Issuance::default() }),
        canary: None,
        probe_result: None,
        unprobed: None,
        sources: Default::default(),
        presented_also: Vec::new(),
    };
    let journal = planner::plan(&seen, &Journal::default(), now()).journal;
    let later = now() + SignedDuration::from_hours(6);
    let settled = planner::plan(&seen, &journal, later);
    let found = forecast(&seen, &settled.journal, &trial(), later);
    let mut status = GatewaySecretStatus { phase: Some(Phase::Steady), ..GatewaySecretStatus::default() };
    report_readiness(&entry, Some(&found), &mut status, later);
    let message = status.condition(READINESS).unwrap().message.clone();
    (found, message)
}

#[test]
fn a_rotation_of_declared_clients_completes() {
    for staged in [Some("issuer".to_owned()), None] {
        let (forecast, message) = forecast_of(|entry, _| entry.spec.issuer_secret_name = staged);
        assert!(forecast.completes, "{message}");
        assert!(forecast.takes > SignedDuration::from_mins(1) && forecast.takes < PATIENCE, "{message}");
        assert!(message.contains("would complete without manual steps in about"), "{message}");
    }
    // Without a Secret of the CA, the new CA reaches the source Secret when its Certificate is reissued.
    let (forecast, message) = forecast_of(|entry, _| entry.resolved.ca_secret_ref = None);
    assert!(forecast.completes, "{message}");
}

#[test]
fn it_stops_where_revocation_lists_do_not_cover_the_new_ca() {
    for has_ca in [true, false] {
        let old = ca("old");
        let text = old.crl_pem(2029, 2031, &[]);
        let lists = crate::trust::bundle::read(text.as_bytes()).crls;
        let (forecast, message) = forecast_with(
            &old,
            |source| (source.lists, source.revocation) = (lists, Some("lists".to_owned())),
            |entry, _| {
                if !has_ca {
                    entry.resolved.ca_secret_ref = None;
                }
            },
            |_| Vec::new(),
        );
        assert!(!forecast.completes, "{message}");
        assert!(message.contains("Add its list to ca.crl of Secret root"), "{message}");
    }
}

#[test]
fn it_stops_for_java_clients_that_would_not_find_the_new_ca() {
    let (forecast, message) = forecast_of(|_, clients| {
        let java = |name: &str| {
            let certificate = Issuance { name: name.to_owned(), renders_pkcs12: true, ..Issuance::default() };
            ClientState { name: name.to_owned(), certificate: Some(certificate), ..clients[0].clone() }
        };
        let java = [java("checkout"), java("orders")];
        clients.extend(java);
    });
    assert!(!forecast.completes);
    for part in ["truststore.p12 of checkout, orders ", "the subject CN=old", "spec.keystores.jks"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn it_stops_for_clients_that_are_not_declared() {
    let (forecast, message) = forecast_of(|entry, clients| {
        entry.spec.clients.all_declared = false;
        clients.clear();
    });
    assert!(!forecast.completes && forecast.switch_blocker.is_some());
    assert!(
        message.contains("spec.clients.allDeclared")
            && message.contains("clients that trust only the old CA would fail"),
        "{message}"
    );
}

#[test]
fn it_stops_for_a_client_that_is_renewed_by_hand() {
    let (forecast, message) = forecast_of(|_, clients| clients.push(client(&ca("old"), "by-hand", false)));
    assert!(!forecast.completes && message.contains("by-hand"), "{message}");
}

#[test]
fn a_pause_and_closed_windows_are_left_out() {
    let (forecast, message) = forecast_of(|entry, _| entry.spec.paused = true);
    assert!(forecast.completes, "{message}");
}

#[test]
fn one_client_stands_for_all_of_its_kind() {
    let old = ca("old");
    let mut clients: Vec<_> = (0..50).map(|number| client(&old, &format!("client-{number}"), true)).collect();
    clients.extend(["by-hand", "by-hand-2"].map(|name| client(&old, name, false)));
    let names: Vec<_> = representatives(clients.iter(), &[]).into_iter().map(|client| client.name).collect();
    assert_eq!(names, ["client-0", "by-hand", "by-hand-2"]);
}

#[test]
fn a_rotation_that_has_started_has_no_forecast() {
    let gateway = entry("mesh", "root", "gw");
    let done = Forecast { takes: STEP, completes: true, waits: Vec::new(), switch_blocker: None };
    let mut status = GatewaySecretStatus { phase: Some(Phase::Steady), ..GatewaySecretStatus::default() };
    report_readiness(&gateway, Some(&done), &mut status, now());
    assert!(status.condition(READINESS).is_some());
    status.phase = Some(Phase::Converged);
    report_readiness(&gateway, Some(&done), &mut status, now());
    assert!(status.condition(READINESS).is_none());
    assert_eq!(status.rotation_duration, Some(Period::from_secs(60)), "that of its start");
}

#[test]
fn an_issue_in_progress_and_renewal_windows_change_nothing() {
    let (forecast, message) = forecast_of(|_, clients| {
        let certificate = clients[0].certificate.as_mut().unwrap();
        certificate.issuing = Some(now());
        certificate.renewal = RenewalPolicy::Windows(Some(now() + STEP * 100_000));
        clients[0].pending = Some(planner::Pending { chain: pair(&ca("other")).chain, at: now() });
    });
    assert!(forecast.completes, "{message}");
    let (forecast, message) =
        forecast_of(|_, clients| clients[0].certificate.as_mut().unwrap().renewal = RenewalPolicy::Disabled);
    assert!(!forecast.completes && message.contains("spec.renewal.policy is Disabled"), "{message}");
}

#[test]
fn it_names_the_server_that_accepts_a_client_only_by_its_hash() {
    let two = |_: &mut Entry, clients: &mut Vec<ClientState>| {
        clients.insert(0, ClientState { chain: Vec::new(), ..client(&ca("old"), "checkout", true) });
        clients[0].trust = clients[1].trust.clone();
    };
    let by_hash = |clients: &[ClientState]| {
        let pins = vec![clients[1].chain[0].fingerprint.clone()];
        let trust = ReaderTrust::NotVerified;
        vec![TlsReader { pins, ..TlsReader::of("Gateway mesh/shop", "verifyCertificateHash", trust) }]
    };
    let (forecast, message) = forecast_with(&ca("old"), |_| {}, two, by_hash);
    assert!(!forecast.completes, "{message}");
    let said = "Gateway mesh/shop (verifyCertificateHash) accepts payments only by the hash";
    assert!(message.contains(said) && message.contains("by subjectAltNames"), "{message}");
    assert!(forecast_of(two).0.completes, "without the hash");
}

#[test]
fn it_stops_where_the_issuers_secret_in_another_namespace_does_not_exist() {
    let (forecast, message) = forecast_of(|entry, _| {
        let namespace = Some("cert-manager".to_owned());
        entry.resolved.ca_secret_ref = Some(crate::api::SecretRef { namespace, name: "ca".to_owned() });
        entry.spec.issuer_secret_name = Some("issuer".to_owned());
    });
    assert!(!forecast.completes, "{message}");
    assert!(message.contains("Create it empty, with the annotation trustspan.dev/adopt: mesh/gw"), "{message}");
}
