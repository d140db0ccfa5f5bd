#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::api::{ConditionStatus, GatewaySecretStatus, Phase, READY};
use crate::registry::tests::entry;
use crate::registry::{Entry, Registry};
use crate::trust::fixtures::{Authority, ca, now};

fn secret(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "mesh", "name": name}, "stringData": data})
}

fn managed(cas: &[&Authority]) -> Value {
    let leaf = cas[0].leaf("shop.example.com");
    let bundle: String = cas.iter().map(|ca| ca.pem()).collect();
    secret("gw", json!({"ca.crt": bundle, "tls.crt": leaf.pem(), "tls.key": leaf.key_pem()}))
}

fn bare() -> Entry {
    Entry { status: GatewaySecretStatus::default(), ..entry("mesh", "root", "gw") }
}

/// The registry after the objects were observed for these GatewaySecrets.
fn observed_at(entries: Vec<impl Into<Arc<Entry>>>, objects: &[Value], now: Timestamp) -> Registry {
    let mut inventory = Inventory::new(entries);
    objects.iter().for_each(|object| inventory.take(object, "default", now));
    inventory.into_registry(Outlook::Whole, now)
}

fn status(objects: &[Value]) -> GatewaySecretStatus {
    observed_at(vec![bare()], objects, now()).entries()[0].status.clone()
}

fn ready(status: &GatewaySecretStatus) -> (ConditionStatus, &str) {
    let condition = status.condition(READY).unwrap();
    (condition.status, &condition.reason)
}

#[test]
fn ready_says_what_is_missing() {
    assert_eq!(ready(&status(&[])), (ConditionStatus::False, "SecretMissing"));
    let authority = ca("root");
    assert_eq!(ready(&status(&[managed(&[&authority])])), (ConditionStatus::True, "Sound"));
    let unsound = secret("gw", json!({"ca.crt": "prose"}));
    assert_eq!(ready(&status(&[unsound])), (ConditionStatus::False, "Unsound"));
    let leaf = authority.leaf("shop.example.com");
    let no_ca = secret("gw", json!({"tls.crt": leaf.pem(), "tls.key": leaf.key_pem()}));
    assert_eq!(ready(&status(&[no_ca])), (ConditionStatus::False, "NoTrustAnchor"));
    let shadow = secret("gw-cacert", json!({"cacert": ca("other").pem()}));
    assert_eq!(ready(&status(&[managed(&[&authority]), shadow])), (ConditionStatus::False, "Shadowed"));
}

#[test]
fn the_phase_compares_the_bundle_with_the_source_secret() {
    let (old, new) = (ca("old"), ca("new"));
    let source = secret("root", json!({"ca.crt": new.pem()}));
    assert_eq!(status(&[]).phase, Some(Phase::Pending));
    assert_eq!(status(&[source.clone(), managed(&[&new])]).phase, Some(Phase::Steady));
    assert_eq!(status(&[source, managed(&[&new, &old])]).phase, Some(Phase::TrustExpanded));
}

#[test]
fn a_sibling_that_the_managed_secret_covers_blocks_nothing() {
    let (one, two) = (ca("one"), ca("two"));
    let sibling = secret("root-cacert", json!({"cacert": two.pem()}));
    let seen = status(&[managed(&[&one]), sibling.clone()]).cacert_sibling.unwrap();
    assert_eq!((seen.name.as_str(), seen.missing.len()), ("root-cacert", 1));
    assert_eq!(status(&[managed(&[&one, &two]), sibling]).cacert_sibling.unwrap().missing.len(), 0);
}

#[test]
fn revisions_grow_with_content_only() {
    let (one, two) = (ca("one"), ca("two"));
    let later = now() + jiff::SignedDuration::from_hours(1);
    let first = observed_at(vec![bare()], &[managed(&[&one, &two])], now());
    let again = |registry: &Registry, objects: &[Value], at| observed_at(registry.entries().to_vec(), objects, at);
    let revision = |registry: &Registry| registry.entries()[0].status.hashes["ca.crt"].revision;

    // Another order of the same CAs is no change.
    let reordered = again(&first, &[managed(&[&two, &one])], later);
    assert_eq!(revision(&reordered), revision(&first));
    let changed = again(&first, &[managed(&[&two])], later);
    assert!(revision(&changed) > revision(&first));
    // A clock that has jumped back does not make a revision smaller.
    let back = again(&changed, &[managed(&[&one])], now() - jiff::SignedDuration::from_hours(9));
    assert_eq!(revision(&back), revision(&changed) + 1);
    // A Secret that was missing for a while keeps its revision.
    let lost = again(&changed, &[], later);
    assert_eq!(revision(&lost), revision(&changed));
}

#[test]
fn observing_twice_changes_nothing() {
    let objects = [managed(&[&ca("root")])];
    let once = observed_at(vec![bare()], &objects, now());
    let later = now() + jiff::SignedDuration::from_hours(1);
    let twice = observed_at(once.entries().to_vec(), &objects, later);
    assert_eq!(once.entries()[0].status, twice.entries()[0].status);
}

#[test]
fn keeps_a_manual_status_while_the_secret_is_not_among_the_objects() {
    let by_hand = entry("mesh", "root", "gw");
    let registry = observed_at(vec![by_hand.clone()], &[], now());
    assert_eq!(registry.entries()[0].status, by_hand.status);
}

#[test]
fn workloads_and_grants_are_observed() {
    let pod = |namespace: &str, label: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": namespace, "name": "x"},
            "spec": {"template": {"metadata": {"labels": {"istio": label}}}},
        })
    };
    let grant = json!({
        "apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant", "metadata": {"namespace": "mesh"},
        "spec": {
            "from": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "apps"}],
            "to": [{"group": "", "kind": "Secret", "name": "root"}],
        },
    });
    let objects = [pod("a", "ingressgateway"), pod("b", "ingressgateway"), pod("c", "egressgateway"), grant.clone()];
    let seen = status(&objects);
    assert_eq!(seen.workload_namespaces, Some(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(seen.ungranted_namespaces, Some(vec!["apps".to_owned()]));
    let mut open = grant.clone();
    open["spec"]["to"] = json!([{"group": "", "kind": "Secret"}]);
    assert_eq!(status(&[grant, open]).ungranted_namespaces, Some(vec![]));
}

#[test]
fn config_maps_that_are_kept_are_observed_with_who_may_not_name_them() {
    let mut entry = bare();
    entry.spec.clients.ca_config_map_names = vec!["partners".to_owned(), "early".to_owned(), "taken".to_owned()];
    let config_map = |name: &str, owner: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"ca.crt": ca("root").pem()},
            "metadata": {"namespace": "mesh", "name": name, "annotations": {"trustspan.dev/gateway-secret": owner}},
        })
    };
    let grant = |name: Option<&str>, from: &str| {
        let mut to = json!({"group": "", "kind": "ConfigMap"});
        name.into_iter().for_each(|name| to["name"] = name.into());
        let from = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": from});
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant", "metadata": {"namespace": "mesh"},
            "spec": {"from": [from], "to": [to]},
        })
    };
    let mut inventory = Inventory::new([entry]);
    for object in [
        managed(&[&ca("root")]),
        config_map("partners.trustspan", "gw"),
        config_map("taken.trustspan", "another"),
        grant(Some("partners"), "apps"),
        grant(None, "open"),
    ] {
        inventory.take(&object, "default", now());
    }
    let registry = inventory.into_registry(Outlook::Whole, now());
    let seen = &registry.entries()[0].status.managed_config_maps;
    let only = |kept: &crate::api::ManagedConfigMap| {
        (kept.source.clone(), kept.name.clone(), kept.ungranted_namespaces.clone())
    };
    let expected = ("partners".to_owned(), "partners.trustspan".to_owned(), vec!["apps".to_owned()]);
    assert_eq!(seen.iter().map(only).collect::<Vec<_>>(), [expected]);
}

#[test]
fn a_part_of_a_cluster_shows_no_absence() {
    let mut inventory = Inventory::new([bare()]);
    inventory.take(&managed(&[&ca("root")]), "default", now());
    let registry = inventory.into_registry(Outlook::Part, now());
    let seen = &registry.entries()[0].status;
    assert_eq!(ready(seen), (ConditionStatus::True, "Sound"));
    assert_eq!((&seen.workload_namespaces, &seen.gateways, &seen.ungranted_namespaces), (&None, &None, &None));
}

#[test]
fn rejects_readiness_of_a_managed_secret_that_is_gone() {
    let (old, new) = (ca("old"), ca("new"));
    let sound = status(&[managed(&[&new, &old])]);
    assert!(sound.is_ready());
    let seen = |outlook| {
        let mut inventory = Inventory::new([Entry { status: sound.clone(), ..bare() }]);
        inventory.take(&secret("other", json!({})), "default", now());
        inventory.into_registry(outlook, now()).entries()[0].status.clone()
    };
    let gone = seen(Outlook::Secrets);
    assert_eq!((ready(&gone), gone.phase), ((ConditionStatus::False, "SecretMissing"), Some(Phase::Pending)));
    // Gateways keep the content of the deleted Secret, and revisions keep growing.
    assert_eq!((&gone.bundle, &gone.hashes), (&sound.bundle, &sound.hashes));
    assert_eq!(seen(Outlook::Part), sound, "where not all Secrets are seen, absence says nothing");
}

#[test]
fn a_spec_that_cannot_be_read_is_reported_after_successful_writes() {
    assert_eq!(synced(&bare()).0, ConditionStatus::True);
    let (value, reason, message) = synced(&Entry { unread: Some("a bad duration".to_owned()), ..bare() });
    assert_eq!((value, reason), (ConditionStatus::False, "Unreadable"));
    assert!(message.contains("a bad duration"), "{message}");
}

#[test]
fn severities_of_the_cluster_apply_to_readiness() {
    // A bundle that contains only a leaf is denied by default.
    let leaf = ca("root").leaf("shop.example.com");
    let secret = |bundle: String| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "mesh", "name": "gw"},
            "stringData": {"ca.crt": bundle, "tls.crt": leaf.pem(), "tls.key": leaf.key_pem()},
        })
    };
    let seen = |level| {
        let severities = [("not-a-ca".to_owned(), level)].into_iter().collect();
        let mut inventory = Inventory::new([bare()]).with_severities(severities);
        inventory.take(&secret(leaf.pem()), "default", now());
        ready(&inventory.into_registry(Outlook::Whole, now()).entries()[0].status).0
    };
    assert_eq!(seen(crate::api::Level::Deny), ConditionStatus::False);
    assert_eq!(seen(crate::api::Level::Warn), ConditionStatus::True);
}

#[test]
fn the_status_has_the_severities_that_policies_of_the_api_server_need() {
    let mut entry = bare();
    let severities = ["expired", "kept-by-agent"].map(|rule| (rule.to_owned(), crate::api::Level::Warn));
    entry.policy.severities = severities.into();
    let registry = observed_at(vec![entry], &[managed(&[&ca("root")])], now());
    let published: Vec<_> = registry.entries()[0].status.severities.iter().collect();
    assert_eq!(published, [(&"kept-by-agent".to_owned(), &crate::api::Level::Warn)]);
}

#[test]
fn the_younger_claimant_reports_the_conflict() {
    let mut younger = bare();
    younger.name = "other".to_owned();
    younger.created = Some(now());
    younger.spec.secret_name = Some("gw".to_owned());
    let registry = observed_at(vec![younger, bare()], &[managed(&[&ca("root")])], now());
    let loser = registry.entries().iter().find(|entry| entry.name == "other").unwrap();
    assert_eq!(ready(&loser.status), (ConditionStatus::False, "NameConflict"));
}

#[test]
fn hosts_are_those_of_the_servers_that_use_the_secret() {
    let server =
        |secret: &str, host: &str| json!({"hosts": [host], "tls": {"mode": "MUTUAL", "credentialName": secret}});
    let gateway = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"namespace": "mesh", "name": "g"},
        "spec": {"selector": {"istio": "ingressgateway"}, "servers": [
            server("root", "a.example"), server("gw", "*.b.example"), server("other", "c.example"), {"hosts": ["d.example"]},
        ]},
    });
    let gateways = status(&[managed(&[&ca("one")]), gateway]).gateways.unwrap();
    assert_eq!(gateways.iter().map(|gateway| &gateway.hosts[..]).collect::<Vec<_>>(), [["*.b.example", "a.example"]]);
}
