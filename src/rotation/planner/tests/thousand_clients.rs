//! A thousand declared clients: what is stored about them fits, and each one counts.

use jiff::SignedDuration;
use proptest::prelude::*;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, GeneralSubtree, NameConstraints, SanType};
use serde_json::{Value, json};

use super::scene::{HOUR, Scene, observation, source};
use crate::admission::{Kind, Request, validate};
use crate::api::names::MANAGED_LABEL;
use crate::api::{Leaf, LeafKind, TrustAnchor};
use crate::connectivity;
use crate::json::Json;
use crate::registry::{Entry, Registry};
use crate::rotation::active_certificates::client_leaves;
use crate::rotation::journal::Journal;
use crate::rotation::planner::{ClientState, Issuance, Trust};
use crate::rotation::{fit, observe, report};
use crate::trust::fixtures::{Authority, ca, ca_with, now, parsed};
use crate::trust::{Certificate, Severities, Severity};

const CLIENTS: usize = 1_000;

fn client(number: usize, authority: &Authority, trust: &[&Authority]) -> ClientState {
    let name = format!("client-certificate-of-team-{number:04}");
    let leaf = authority.leaf_with(&name, |params| {
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let host = format!("{name}.apps.svc.cluster.local");
        params.subject_alt_names = vec![SanType::DnsName(host.try_into().unwrap())];
    });
    ClientState {
        chain: vec![parsed(leaf.der())],
        trust: Trust::Read(trust.iter().map(|ca| parsed(ca.der())).collect()),
        loads_once: false,
        is_retired: false,
        certificate: Some(Issuance { name: name.clone(), ..Issuance::default() }),
        pending: None,
        name,
    }
}

/// A scene during a rotation: all clients except the last have a new certificate, and an old one that may be in use.
fn in_mid_rotation(old: &Authority, new: &Authority) -> (Scene, super::super::Plan) {
    let mut scene = Scene::steady(old);
    scene.journal.clients.clear();
    let former: Vec<_> = (0..CLIENTS).map(|number| client(number, old, &[old])).collect();
    for _ in 0..2 {
        scene.journal = scene.plan_with(former.clone()).journal;
        scene.now += HOUR;
    }
    scene.ca = source(new);
    for _ in 0..3 {
        let plan = scene.plan_with(former.clone());
        scene.journal = plan.journal.clone();
        scene.take(&plan);
        scene.entry.status.client_bundle = plan.client_bundle.iter().map(TrustAnchor::from).collect();
        scene.now += SignedDuration::from_secs(1);
    }
    let mut renewed: Vec<_> = (0..CLIENTS - 1).map(|number| client(number, new, &[new, old])).collect();
    renewed.push(former[CLIENTS - 1].clone());
    let plan = scene.plan_with(renewed);
    (scene, plan)
}

fn managed(authority: &Authority, pair: &crate::trust::fixtures::Leaf, bundle: &[&Authority]) -> Value {
    let bundle: String = bundle.iter().map(|ca| ca.pem()).collect();
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"namespace": "mesh", "name": "gw", "labels": {MANAGED_LABEL: "true"}},
        "stringData": {"ca.crt": bundle, "tls.crt": pair.pem() + &authority.pem(), "tls.key": pair.key_pem()},
    })
}

#[test]
fn a_thousand_clients_fit_and_the_last_one_is_not_cut_off() {
    let (old, new) = (ca("old"), ca("new"));
    let (scene, plan) = in_mid_rotation(&old, &new);
    let versions: usize = plan.journal.clients.values().map(|client| client.versions.len()).sum();
    assert_eq!((plan.journal.clients.len(), versions), (CLIENTS, 2 * CLIENTS - 1));
    let text = plan.journal.to_text();
    println!("journal of {versions} contents: {} bytes", text.len());
    assert!(text.len() * 5 / 2 < 1 << 20, "a ConfigMap has space for 2,500: {}", text.len());
    let read = Journal::from_text(&text).unwrap();
    assert_eq!(read, plan.journal);

    let seen = observe(&observation(&scene.entry, Some(&scene.source), scene.managed.as_ref()), scene.now);
    let mut status = report(&scene.entry, &plan, seen, scene.now);
    fit(&scene.entry, &mut status, scene.now);
    let whole = serde_json::to_string(&status).unwrap().len();
    let leaves = serde_json::to_string(&status.leaves).unwrap().len();
    println!("status: {whole} bytes, leaves {leaves}, in {} groups", status.leaves.as_ref().unwrap().len());
    assert!(whole < 1 << 20 && whole - leaves < 256 << 10, "{whole} {leaves}");
    assert_eq!(status.unlisted_clients, None);
    assert_eq!(status.lagging_count, Some(0), "clients are not asked yet");

    let pair = old.leaf("shop.example.com");
    let (before, after) = (managed(&old, &pair, &[&new, &old]), managed(&old, &pair, &[&new]));
    let entry = Entry { status, ..scene.entry.clone() };
    let found = denied(entry, &before, &after);
    let live = format!("{CLIENTS} active client certificates (client-certificate-of-team-0000");
    assert!(found.iter().any(|message| message.contains(&live)), "old leaves may be in use: {found:?}");
}

#[test]
fn of_a_thousand_clients_the_only_one_of_the_old_ca_is_not_cut_off() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = Scene::steady(&new);
    scene.journal.clients.clear();
    let mut clients: Vec<_> = (0..CLIENTS - 1).map(|number| client(number, &new, &[&new, &old])).collect();
    clients.push(client(CLIENTS - 1, &old, &[&new, &old]));
    let plan = scene.plan_with(clients);
    let mut status = report(&scene.entry, &plan, scene.entry.status.clone(), scene.now);
    fit(&scene.entry, &mut status, scene.now);
    let pair = new.leaf("shop.example.com");
    let entry = Entry { status, ..scene.entry.clone() };
    let (both, one) = (managed(&new, &pair, &[&new, &old]), managed(&new, &pair, &[&new]));
    let found = denied(entry.clone(), &both, &one);
    let words = "removes every CA of 1 active client certificate (client-certificate-of-team-0999)";
    assert!(found.iter().any(|message| message.contains(words)), "{found:?}");
    let other = managed(&new, &pair, &[&new, &old, &ca("other")]);
    assert_eq!(denied(entry.clone(), &other, &both), [""; 0], "nobody needs the other CA");
    // Clients that do not fit into the status may need any CA.
    let mut unlisted = entry;
    unlisted.status.unlisted_clients = Some(7);
    let found = denied(unlisted.clone(), &other, &both);
    assert!(
        found.iter().any(|message| message.contains("certificates of 7 declared clients are not in status")),
        "{found:?}"
    );
    assert_eq!(denied(unlisted, &both, &other), [""; 0], "a CA may come");
}

/// The messages with which an update of the managed Secret is denied.
fn denied(entry: Entry, old: &Value, new: &Value) -> Vec<String> {
    let [new, old] = [new, old].map(Json::from);
    let request = Request::fixture(Kind { group: "", version: "v1", kind: "Secret" }, Some(&new), Some(&old));
    let found = validate(&request, &Registry::new([entry]), &Severities::default(), now()).findings;
    let denied =
        found.into_iter().filter(|finding| finding.severity == Severity::Deny && finding.rule == "connectivity");
    denied.map(|finding| finding.message).collect()
}

fn limited(params: &mut CertificateParams) {
    let permitted_subtrees = vec![GeneralSubtree::DnsName("example.com".to_owned())];
    params.name_constraints = Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// If one certificate represents many clients, no client that would be cut off is missed. A failure prints its seed
    /// (proptest).
    #[test]
    fn grouped_leaves_get_the_verdicts_of_each(
        before in proptest::sample::subsequence((0..7_usize).collect::<Vec<_>>(), 1..7).prop_shuffle(),
        after in proptest::sample::subsequence((0..7_usize).collect::<Vec<_>>(), 1..7).prop_shuffle(),
    ) {
        let (one, two) = (ca("one"), ca("two"));
        let sub = one.intermediate("sub", |_| {});
        let cas = [
            one.renewed(2028, 2050), one.changed(limited), ca_with("two", limited), ca("one"),
            two.intermediate("one", |_| {}), one, two,
        ];
        let signers = [&cas[5], &cas[6], &cas[3], &sub];
        let hosts = ["a.example.com", "b.example.com", "c.example.org", "d.example.org"];
        let mut clients = Vec::new();
        for (number, signer) in signers.iter().enumerate() {
            for (host, end) in hosts.iter().zip([2031, 2031, 2032, 2033]) {
                let leaf = signer.leaf_with(host, |params| {
                    params.not_after = rcgen::date_time_ymd(end, 1, 1);
                    params.subject_alt_names = vec![SanType::DnsName((*host).try_into().unwrap())];
                    params.use_authority_key_identifier_extension = host.starts_with('b') || host.starts_with('d');
                });
                let mut chain = vec![parsed(leaf.der())];
                chain.extend((number == 3).then(|| parsed(sub.der())));
                clients.push((format!("{number}-{host}"), chain));
            }
        }
        let bundle = |which: &[usize]| which.iter().map(|at| parsed(cas[*at].der())).collect::<Vec<Certificate>>();
        let (before, after) = (bundle(&before), bundle(&after));
        let entry = crate::registry::tests::entry("mesh", "root", "gw");
        let chains = || clients.iter().map(|(name, chain)| (name.as_str(), chain.as_slice()));
        let grouped = client_leaves(&entry, chains(), &before, now());
        let each: Vec<_> = chains().flat_map(|one| client_leaves(&entry, [one], &before, now())).collect();
        prop_assert_eq!(grouped.iter().map(Leaf::count).sum::<usize>(), clients.len());
        prop_assert!(each.iter().all(|leaf| leaf.kind == LeafKind::Client && leaf.others.is_empty()));
        let lost = |leaves: Vec<Leaf>| {
            let status = crate::api::GatewaySecretStatus { leaves: Some(leaves), ..Default::default() };
            let cut = connectivity::cut_off(before.iter(), after.iter(), &status, now());
            let mut names: Vec<_> = cut.lost.iter().flat_map(|leaf| leaf.names()).map(str::to_owned).collect();
            names.sort();
            (names, cut.is_certain())
        };
        let ((grouped, is_certain), (each, _)) = (lost(grouped), lost(each));
        prop_assert!(each.iter().all(|name| grouped.contains(name)), "{each:?} {grouped:?}");
        prop_assert!(!is_certain || grouped == each, "{each:?} {grouped:?}");
    }
}
