#![allow(clippy::unwrap_used)]

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, SanType};

use super::*;
use crate::api::GatewayUse;
use crate::api::Level;
use crate::api::TrustAnchor;
use crate::api::names::{CLIENT_LABEL, GUARD, GUARD_ENABLED, MANAGED_LABEL};
use crate::json::{Json, json};
use crate::registry::tests::entry;
use crate::registry::{Entry, Registry};
use crate::rotation::{Inventory, Outlook};
use crate::trust::Severities;
use crate::trust::fixtures::{Authority, Leaf, ca, now, parsed};

const SECRET: Kind<'static> = Kind { group: "", version: "v1", kind: "Secret" };

/// The valid managed Secret `mesh/gw`.
fn secret(ca: &Authority, leaf: &Leaf) -> Json<'static> {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"namespace": "mesh", "name": "gw", "labels": {MANAGED_LABEL: "true"}},
        "stringData": {"ca.crt": ca.pem(), "tls.crt": leaf.pem(), "tls.key": leaf.key_pem()},
    })
}

fn sound() -> Json<'static> {
    let ca = ca("root");
    secret(&ca, &ca.leaf("shop.example.com"))
}

fn with(mut object: Json<'static>, pointer: &str, value: Json<'static>) -> Json<'static> {
    *pointer[1..].split('/').fold(&mut object, |object, key| &mut object[key.replace("~1", "/").as_str()]) = value;
    object
}

fn used() -> Entry {
    let gateway = GatewayUse { group: String::new(), namespace: "apps".into(), name: "public".into(), hosts: vec![] };
    let mut entry = entry("mesh", "root", "gw");
    entry.status.gateways = Some(vec![gateway]);
    entry
}

fn request<'a>(operation: Operation, object: Option<&'a Json<'a>>, old_object: Option<&'a Json<'a>>) -> Request<'a> {
    Request { operation, ..Request::fixture(SECRET, object, old_object) }
}

/// The ids of rules that deny, and of rules that warn.
fn verdict(request: &Request<'_>, entry: Entry) -> (Vec<&'static str>, Vec<&'static str>) {
    let decision = validate(request, &Registry::new([entry]), &Severities::default(), now());
    assert!(decision.patch.is_empty());
    let (deny, warn): (Vec<_>, Vec<_>) = decision.findings.iter().partition(|f| f.severity == Severity::Deny);
    (deny.iter().map(|f| f.rule).collect(), warn.iter().map(|f| f.rule).collect())
}

fn create(object: &Json<'_>) -> (Vec<&'static str>, Vec<&'static str>) {
    verdict(&request(Operation::Create, Some(object), None), used())
}

#[test]
fn accepts_a_sound_managed_secret() {
    assert_eq!(create(&sound()), (vec![], vec![]));
}

#[test]
fn rejects_a_managed_secret_that_breaks_trust() {
    let garbage = format!("{}-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n", ca("root").pem());
    for (key, value, rule) in [
        ("ca.crt", json!(garbage), "unparsable"),
        ("ca.crt", json!(""), "empty"),
        ("ca.crt", json!(ca("a").leaf("b").pem()), "not-a-ca"),
        ("tls.key", json!(ca("a").leaf("b").key_pem()), "key-mismatch"),
    ] {
        let object = with(sound(), &format!("/stringData/{key}"), value);
        assert_eq!(create(&object).0, [rule], "{key}");
    }
    let bad_base64 = with(sound(), "/data", json!({"ca.crt": "%%%"}));
    assert_eq!(create(&bad_base64).0, ["unreadable"]);
}

#[test]
fn rejects_the_removal_of_the_ca() {
    let old = sound();
    let mut new = old.clone();
    new["stringData"].as_object_mut().unwrap().remove("ca.crt");
    assert_eq!(verdict(&request(Operation::Update, Some(&new), Some(&old)), used()).0, ["empty"]);
}

#[test]
fn rejects_an_update_that_empties_the_source_or_the_managed_secret() {
    for name in ["root", "gw"] {
        let old = with(sound(), "/metadata/name", json!(name));
        let bundle = json!({"ca.crt": old["stringData"]["ca.crt"].clone()});
        let without_pair = with(old.clone(), "/stringData", bundle);
        let denied = |new: &Json<'static>| verdict(&request(Operation::Update, Some(new), Some(&old)), used()).0;
        assert_eq!(denied(&without_pair), ["taken-away"], "{name}");
        assert!(denied(&with(old.clone(), "/stringData", json!({}))).contains(&"taken-away"), "{name}");
    }
}

#[test]
fn the_deletion_of_a_guarded_secret_warns_of_what_it_takes_away() {
    let old = with(with(sound(), "/metadata/name", json!("other")), "/metadata/labels", json!({}));
    let deletion = |in_guarded_namespace| {
        let request = Request { in_guarded_namespace, ..request(Operation::Delete, None, Some(&old)) };
        verdict(&request, used())
    };
    assert_eq!(deletion(true), (vec![], vec!["taken-away", "taken-away"]));
    assert_eq!(deletion(false), (vec![], vec![]));
}

#[test]
fn accepts_a_source_secret_that_never_had_a_ca() {
    let mut object = with(sound(), "/metadata/name", json!("root"));
    let old = with(object.clone(), "/data", json!({"ca.crt": "eA=="}));
    object["stringData"].as_object_mut().unwrap().remove("ca.crt");
    assert_eq!(create(&object), (vec![], vec![]));
    assert_eq!(verdict(&request(Operation::Update, Some(&object), Some(&object)), used()).0, [""; 0]);
    assert_eq!(verdict(&request(Operation::Update, Some(&object), Some(&old)), used()).0, ["taken-away"]);
}

#[test]
fn accepts_a_missing_ca_if_a_sibling_has_it() {
    let mut object = sound();
    object["stringData"].as_object_mut().unwrap().remove("ca.crt");
    let mut entry = used();
    entry.status.cacert_sibling = Some(crate::api::CacertSibling { name: "root-cacert".into(), missing: vec![] });
    assert_eq!(verdict(&request(Operation::Create, Some(&object), None), entry).0, [""; 0]);
}

#[test]
fn only_warns_about_what_the_stored_object_has() {
    let old = with(sound(), "/stringData/ca.crt", json!("prose"));
    let relabelled = with(old.clone(), "/metadata/annotations", json!({"note": "x"}));
    let (deny, warn) = verdict(&request(Operation::Update, Some(&relabelled), Some(&old)), used());
    assert_eq!((deny.len(), warn.is_empty()), (0, false));
}

#[test]
fn does_not_judge_unguarded_secrets() {
    let mut object = with(sound(), "/stringData/ca.crt", json!("prose"));
    let create = |object: &Json<'_>, in_guarded_namespace| {
        verdict(&Request { in_guarded_namespace, ..request(Operation::Create, Some(object), None) }, used())
    };
    for name in ["other", "root"] {
        object["metadata"] = json!({"namespace": "mesh", "name": name});
        assert_eq!(create(&object, false), (vec![], vec![]), "{name}");
        assert_eq!(create(&object, true).0, ["empty"], "{name}");
    }
    // The label is sufficient: this replica may not know the GatewaySecret yet.
    for labels in [json!({MANAGED_LABEL: "true"}), json!({GUARD: GUARD_ENABLED})] {
        object["metadata"]["labels"] = labels;
        assert_eq!(create(&object, false).0, ["empty"], "{object}");
    }
}

#[test]
fn warns_about_a_managed_secret_without_its_label() {
    let object = with(sound(), "/metadata/labels", json!({}));
    assert_eq!(create(&object), (vec![], vec!["managed-unlabelled"]));
}

fn severities(list: &[(&str, Level)]) -> std::collections::BTreeMap<String, Level> {
    list.iter().map(|(rule, level)| ((*rule).to_owned(), *level)).collect()
}

#[test]
fn severities_of_a_gateway_secret_override_those_of_the_cluster() {
    let object = with(sound(), "/stringData/ca.crt", json!(ca("a").leaf("b").pem()));
    let request = request(Operation::Create, Some(&object), None);
    let cluster = Severities::default().under(&severities(&[("not-a-ca", Level::Warn)]));
    let verdict = |near: &[(&str, Level)], cluster: &Severities| {
        let mut entry = used();
        entry.policy.severities = severities(near);
        validate(&request, &Registry::new([entry]), cluster, now()).verdict()
    };
    assert_eq!(verdict(&[], &Severities::default()), Verdict::Deny);
    assert_eq!(verdict(&[], &cluster), Verdict::Warn);
    assert_eq!(verdict(&[("not-a-ca", Level::Off)], &cluster), Verdict::Allow);
    assert_eq!(verdict(&[("not-a-ca", Level::Deny)], &cluster), Verdict::Deny);
    assert_eq!(verdict(&[("empty", Level::Off)], &cluster), Verdict::Warn, "the severity of another rule");
}

#[test]
fn severities_change_neither_fixed_rules_nor_other_secrets() {
    let off = severities(&[("managed-in-use", Level::Off), ("not-a-ca", Level::Off), ("unreadable", Level::Off)]);
    let entry = || {
        let mut entry = used();
        entry.policy.severities = off.clone();
        entry
    };
    let old = sound();
    assert_eq!(verdict(&request(Operation::Delete, None, Some(&old)), entry()).0, ["managed-in-use"]);
    let bad_base64 = with(sound(), "/data", json!({"ca.crt": "%%%"}));
    assert_eq!(verdict(&request(Operation::Create, Some(&bad_base64), None), entry()).0, ["unreadable"]);
    let mut other = with(sound(), "/stringData/ca.crt", json!(ca("a").leaf("b").pem()));
    other["metadata"]["name"] = json!("other");
    assert_eq!(verdict(&request(Operation::Create, Some(&other), None), entry()).0, ["not-a-ca"]);
}

#[test]
fn check_applies_the_same_severities() {
    let leaf = with(sound(), "/stringData/ca.crt", json!(ca("a").leaf("b").pem()));
    let mut entry = used();
    let mut context = Context { registry: Registry::new([entry.clone()]), ..Context::default() };
    assert_eq!(checked(&leaf, &context), Some(vec![("not-a-ca", Severity::Deny)]));
    context.severities =
        Severities::default().under(&severities(&[("not-a-ca", Level::Off), ("name-conflict", Level::Deny)]));
    assert_eq!(checked(&leaf, &context), Some(vec![]));
    entry.policy.severities =
        severities(&[("not-a-ca", Level::Warn), ("expird", Level::Off), ("unreadable", Level::Warn)]);
    context.registry = Registry::new([entry.clone()]);
    assert_eq!(checked(&leaf, &context), Some(vec![("not-a-ca", Severity::Warn)]));

    let object = json!({
        "apiVersion": "trustspan.dev/v1alpha1", "kind": "RotationPolicy",
        "metadata": {"namespace": "mesh", "name": "default"}, "spec": entry.policy,
    });
    let ignored = ("severity-ignored", Severity::Warn);
    assert_eq!(checked(&object, &context), Some(vec![ignored, ignored]), "expird is no rule, unreadable is fixed");
}

fn overriding(object: &Json<'static>, rule: &str, reason: &str) -> Json<'static> {
    with(object.clone(), "/metadata/annotations", json!({format!("breakglass.trustspan.dev/{rule}"): reason}))
}

fn decided(may_break_glass: bool, object: &Json<'_>, old: Option<&Json<'_>>) -> Decision {
    let operation = if old.is_some() { Operation::Update } else { Operation::Create };
    let request = Request { may_break_glass, ..request(operation, Some(object), old) };
    validate(&request, &Registry::new([used()]), &Severities::default(), now())
}

#[test]
fn break_glass_overrides_the_named_rule_with_its_reason() {
    let unsound = with(sound(), "/stringData/ca.crt", json!(ca("a").leaf("b").pem()));
    let decision = decided(true, &overriding(&unsound, "not-a-ca", "ticket 7\u{1b}"), None);
    assert_eq!(decision.verdict(), Verdict::Warn);
    assert!(decision.findings[0].message.starts_with("break-glass (ticket 7): ca.crt line 1"), "{decision:?}");
    assert_eq!(decision.overrides, [Override { rule: "not-a-ca", reason: "ticket 7".to_owned() }]);
    for (rule, reason, note) in
        [("empty", "x", ""), ("not-a-ca", " ", "needs a reason"), ("expird", "x", "no such rule"), ("", "x", "no such")]
    {
        let decision = decided(true, &overriding(&unsound, rule, reason), None);
        assert_eq!(decision.verdict(), Verdict::Deny, "{rule}: {reason}");
        assert!(decision.overrides.is_empty() && decision.notes.concat().contains(note), "{decision:?}");
    }
}

#[test]
fn check_previews_break_glass() {
    let unsound = with(sound(), "/stringData/ca.crt", json!(ca("a").leaf("b").pem()));
    let annotated = overriding(&unsound, "not-a-ca", "ticket 7");
    let judged = |object: &Json<'_>, may_break_glass| {
        let context = Context { registry: Registry::new([used()]), may_break_glass, ..Context::default() };
        let finding = check(object, "default", &context, now()).unwrap().remove(0);
        (finding.severity, finding.message)
    };
    let (severity, message) = judged(&annotated, false);
    assert_eq!(severity, Severity::Deny);
    assert!(message.ends_with("for users with the right breakglass: see --break-glass"), "{message}");
    let (severity, message) = judged(&annotated, true);
    assert_eq!(severity, Severity::Warn);
    assert!(message.starts_with("break-glass (ticket 7): "), "{message}");
    for other in [unsound.clone(), overriding(&unsound, "empty", "x"), overriding(&unsound, "not-a-ca", " ")] {
        let (severity, message) = judged(&other, true);
        assert!(severity == Severity::Deny && !message.contains("break"), "{message}");
    }
}

#[test]
fn rejects_break_glass_annotations_without_the_right() {
    let unsound = with(sound(), "/stringData/ca.crt", json!(ca("a").leaf("b").pem()));
    let rules = |decision: Decision| decision.denials().map(|finding| finding.rule).collect::<Vec<_>>();
    let annotated = overriding(&unsound, "not-a-ca", "x");
    assert_eq!(rules(decided(false, &annotated, None)), ["not-a-ca", "break-glass"]);
    // An annotation of a user with the right stays, and does not apply to other users.
    let sound = overriding(&sound(), "not-a-ca", "x");
    assert_eq!(rules(decided(false, &annotated, Some(&sound))), ["not-a-ca"]);
    assert_eq!(rules(decided(false, &sound, Some(&sound))), [""; 0]);
    assert_eq!(rules(decided(false, &overriding(&sound, "not-a-ca", "y"), Some(&sound))), ["break-glass"]);
    // Annotations are judged on any Secret, since it could become a managed one.
    let mut other = overriding(&sound, "break-glass", "x");
    other["metadata"]["name"] = json!("other");
    assert_eq!(rules(decided(false, &other, None)), ["break-glass"]);
}

#[test]
fn break_glass_overrides_managed_in_use_but_not_unreadable() {
    let old = overriding(&sound(), "managed-in-use", "the namespace is moved");
    let delete = |may_break_glass| {
        let request = Request { may_break_glass, ..request(Operation::Delete, None, Some(&old)) };
        validate(&request, &Registry::new([used()]), &Severities::default(), now()).verdict()
    };
    assert_eq!((delete(true), delete(false)), (Verdict::Warn, Verdict::Deny));
    let unreadable = overriding(&with(sound(), "/data", json!({"ca.crt": "%%%"})), "unreadable", "x");
    assert_eq!(decided(true, &unreadable, None).verdict(), Verdict::Deny);
}

#[test]
fn an_object_that_is_being_deleted_loses_its_finalizers_unjudged_but_keeps_its_content() {
    let deleted = |text: &str, finalizers: Json<'static>| {
        let metadata = json!({
            "name": "gw-cacert", "labels": {MANAGED_LABEL: "true"}, "finalizers": finalizers,
            "deletionTimestamp": "2030-01-01T00:00:00Z",
        });
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"ca.crt": STANDARD.encode(text)}})
    };
    let update = |old: &Json<'_>, new: &Json<'_>| verdict(&request(Operation::Update, Some(new), Some(old)), used());
    let (good, finalizers) = (ca("root").pem(), json!(["example.com/hold"]));
    let unsound = deleted("prose", finalizers.clone());
    assert_eq!(update(&unsound, &deleted("prose", json!([]))), (vec![], vec![]));
    assert_eq!(update(&deleted(&good, finalizers.clone()), &unsound).0, ["empty"]);
    let relabelled = with(unsound.clone(), "/metadata/labels", json!({}));
    assert_eq!(update(&unsound, &relabelled), (vec![], vec!["empty"]), "a fault that was stored only warns");
}

/// `kubectl delete --raw` of all Secrets of a namespace: the API server names none of them.
#[test]
fn rejects_a_deletecollection_that_includes_a_managed_secret_in_use() {
    let old = sound();
    let delete = Request { name: "", ..request(Operation::Delete, None, Some(&old)) };
    assert_eq!(verdict(&delete, used()).0, ["managed-in-use"]);
}

/// Server-side apply creates such objects, and gateways load them.
#[test]
fn rejects_a_new_object_with_a_deletion_timestamp() {
    let for_deletion =
        |object: Json<'static>| with(object, "/metadata/deletionTimestamp", json!("2030-01-01T00:00:00Z"));
    let unsound = for_deletion(with(sound(), "/stringData/ca.crt", json!("prose")));
    assert_eq!(create(&unsound).0, ["empty", "managed-in-use"]);
    // Otherwise later writes to it would not be judged.
    let decision = decided(false, &for_deletion(sound()), None);
    let denials = decision.denials().map(|finding| (finding.rule, finding.field.as_str())).collect::<Vec<_>>();
    assert_eq!(denials, [("managed-in-use", "metadata.deletionTimestamp")]);
    let root = with(unsound, "/metadata/name", json!("root"));
    assert_eq!(create(&root).0, ["empty"]);
    let annotated = overriding(&for_deletion(with(sound(), "/metadata/name", json!("other"))), "empty", "x");
    assert_eq!(decided(false, &annotated, None).denials().map(|f| f.rule).collect::<Vec<_>>(), ["break-glass"]);
}

#[test]
fn rejects_the_deletion_of_a_managed_secret_in_use() {
    let old = sound();
    let delete = request(Operation::Delete, None, Some(&old));
    assert_eq!(verdict(&delete, used()).0, ["managed-in-use"]);
    let mut unobserved = used();
    unobserved.status.gateways = None;
    assert_eq!(verdict(&delete, unobserved).0, ["managed-in-use"]);
    let mut unused = used();
    unused.status.gateways = Some(vec![]);
    assert_eq!(verdict(&delete, unused).0, [""; 0]);
    for username in ["namespace-controller", "generic-garbage-collector"] {
        let username = format!("system:serviceaccount:kube-system:{username}");
        assert_eq!(verdict(&Request { username: &username, ..delete.clone() }, used()).0, [""; 0], "{username}");
    }
}

#[test]
fn judges_only_secrets_and_rewrites_only_gateways_and_workloads() {
    let object = with(sound(), "/stringData/ca.crt", json!("prose"));
    let registry = Registry::new([used()]);
    for kind in [Kind { version: "v2", ..SECRET }, Kind { group: "x", ..SECRET }, Kind { kind: "ConfigMap", ..SECRET }]
    {
        let request = Request { kind, ..request(Operation::Create, Some(&object), None) };
        assert!(validate(&request, &registry, &Severities::default(), now()).findings.is_empty());
        assert!(mutate(&request, &registry, now()).patch.is_empty());
    }
}

#[test]
fn warns_of_a_restart_that_leaves_no_ready_pod() {
    let kind = Kind { group: "apps", version: "v1", kind: "Deployment" };
    let workload = |annotation: &str, strategy: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "apps", "name": "limits"},
            "spec": {
                "replicas": 2, "strategy": {"type": strategy},
                "template": {"metadata": {"annotations": {annotation: "1"}}, "spec": {"containers": []}},
            },
        })
    };
    let notes = |object: &Json<'_>, by_agent| {
        let request = Request { by_agent, ..Request::fixture(kind, Some(object), None) };
        mutate(&request, &Registry::default(), now()).notes
    };
    for annotation in ["trustspan.dev/loaded-hash", "trustspan.dev/certgen-hash"] {
        let [note] = notes(&workload(annotation, "Recreate"), false).try_into().unwrap();
        assert!(
            note.starts_with("a restart leaves no ready pod: its strategy Recreate") && note.len() <= 120,
            "{note}"
        );
        assert_eq!(notes(&workload(annotation, "RollingUpdate"), false), [""; 0]);
        assert_eq!(notes(&workload(annotation, "Recreate"), true), [""; 0], "people do not read the agent's warnings");
    }
    assert_eq!(notes(&workload("other", "Recreate"), false), [""; 0], "nothing restarts it");
}

fn gateway(secret: &str) -> Json<'static> {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
        "metadata": {"namespace": "apps", "name": "public"},
        "spec": {"selector": {"istio": "ingressgateway"}, "servers": [{"tls": {"credentialName": secret}}]},
    })
}

fn context(objects: &[Json<'static>]) -> Context {
    let mut bare = entry("mesh", "root", "gw");
    bare.status = Default::default();
    let mut inventory = Inventory::new([bare]);
    objects.iter().for_each(|object| inventory.take(&object.into(), "default", now()));
    Context::new(inventory, Outlook::Whole, now())
}

fn checked(object: &Json<'_>, context: &Context) -> Option<Vec<(&'static str, Severity)>> {
    let findings = check(object, "default", context, now())?;
    Some(findings.iter().map(|finding| (finding.rule, finding.severity)).collect())
}

#[test]
fn a_gateway_secret_is_ready_with_the_inventory_of_its_secret() {
    let context = context(&[sound(), gateway("root")]);
    let entry = &context.registry.entries()[0];
    assert!(entry.status.is_ready(), "{:?}", entry.status.conditions);
    assert_eq!(entry.status.bundle.len(), 1);
    assert_eq!(entry.status.hashes.keys().collect::<Vec<_>>(), ["ca.crt", "tls.crt"]);
    assert_eq!(entry.status.gateways.as_ref().unwrap()[0].name, "public");
    assert_eq!(entry.status.workload_namespaces.as_deref(), Some(&["mesh".to_owned()][..]));
}

#[test]
fn finds_stored_objects_that_the_webhook_missed() {
    let context = context(&[sound()]);
    assert_eq!(checked(&gateway("root"), &context), Some(vec![]), "a manifest is rewritten when it is applied");
    let stored = with(gateway("root"), "/metadata/uid", json!("6e7d"));
    assert_eq!(checked(&stored, &context), Some(vec![("not-rewritten", Severity::Warn)]));
    let stored = with(gateway("gw"), "/metadata/uid", json!("6e7d"));
    assert_eq!(checked(&stored, &context), Some(vec![]));
}

#[test]
fn reports_a_blocked_rewrite() {
    assert_eq!(checked(&gateway("root"), &context(&[])), Some(vec![("rewrite-held", Severity::Warn)]));
}

#[test]
fn only_warns_about_a_secret_in_an_unguarded_namespace_of_the_input() {
    let mut object = with(sound(), "/stringData/ca.crt", json!("prose"));
    object["metadata"] = json!({"namespace": "mesh", "name": "other"});
    let namespace = |labels: Json<'static>| {
        let metadata = json!({"name": "mesh", "labels": labels});
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    };
    let severities = |context: &Context| checked(&object, context).unwrap().into_iter().map(|(_, s)| s).max();
    assert_eq!(severities(&Context::default()), Some(Severity::Deny));
    assert_eq!(severities(&context(&[gateway("root")])), Some(Severity::Deny), "the input has other objects");
    assert_eq!(severities(&context(&[namespace(json!({GUARD: GUARD_ENABLED}))])), Some(Severity::Deny));
    assert_eq!(severities(&context(&[namespace(json!({"team": "mesh"}))])), Some(Severity::Warn));
}

/// Without a GatewaySecret.
#[test]
fn judges_a_secret_for_the_gateways_of_the_input_that_name_it() {
    let root = ca("root");
    let tls = |mode: &str| json!({"mode": mode, "credentialName": "shop"});
    let gateway = |tls: Json<'static>, host: &str| {
        let servers = json!([{"hosts": [host], "tls": tls}]);
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"namespace": "mesh", "name": "public"},
            "spec": {"selector": {"istio": "ingressgateway"}, "servers": servers},
        })
    };
    let secret = |leaf: &Leaf, name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "mesh", "name": name},
            "stringData": {"tls.crt": leaf.pem(), "tls.key": leaf.key_pem()},
        })
    };
    let with = |object: &Json<'static>, others: &[Json<'static>]| {
        let mut inventory = Inventory::new(Vec::<Entry>::new());
        others.iter().for_each(|object| inventory.take(&object.into(), "default", now()));
        checked(object, &Context::new(inventory, Outlook::Whole, now())).unwrap()
    };
    let found = |leaf: &Leaf, others: &[Json<'static>]| with(&secret(leaf, "shop"), others);
    let shop = root.leaf("shop.example.com");
    let of = |mode: &str| gateway(tls(mode), "shop.example.com");
    assert_eq!(found(&shop, &[of("SIMPLE")]), []);
    assert_eq!(found(&shop, &[of("MUTUAL")]), [("empty", Severity::Deny)]);
    assert_eq!(found(&shop, &[of("MUTUAL"), secret(&shop, "shop-cacert")]), [], "istiod takes the CAs from that one");
    let bare = |name: &str, data: Json<'static>| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "mesh", "name": name}, "stringData": data});
    let denied = [("empty", Severity::Deny)];
    let sibling = secret(&shop, "shop-cacert");
    assert_eq!(with(&sibling, &[of("MUTUAL"), sibling.clone()]), denied, "that one has no CA either");
    let partners = json!({"mode": "MUTUAL", "credentialName": "shop", "caCertCredentialName": "partners-cacert"});
    let partners = gateway(partners, "shop.example.com");
    let cas = |data| bare("partners-cacert", data);
    assert_eq!(with(&cas(json!({"note": "x"})), &[partners.clone(), cas(json!({}))]), denied);
    assert_eq!(with(&cas(json!({"ca.crt": root.pem()})), &[partners, cas(json!({}))]), []);
    let no_pair = with(&bare("shop", json!({"ca.crt": root.pem()})), &[of("SIMPLE")]);
    assert_eq!(no_pair, [("pair-incomplete", Severity::Deny)]);
    let two = json!({"mode": "SIMPLE", "credentialNames": ["shop", "other"]});
    assert_eq!(found(&shop, &[gateway(two, "pay.example.com")]), [], "the other one may cover the host");
    let elsewhere = json!({"mode": "MUTUAL", "credentialName": "shop", "caCertCredentialName": "configmap://apps/cas"});
    assert_eq!(found(&shop, &[gateway(elsewhere, "shop.example.com")]), []);
    assert_eq!(found(&shop, &[gateway(tls("SIMPLE"), "pay.example.com")]), [("hosts-not-covered", Severity::Warn)]);
    let of_client = |params: &mut CertificateParams| {
        params.subject_alt_names = vec![SanType::DnsName("shop.example.com".try_into().unwrap())];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    };
    let client = root.leaf_with("shop.example.com", of_client);
    assert_eq!(found(&client, &[]), [], "a client's, as far as is known");
    assert_eq!(found(&client, &[of("SIMPLE")]), [("refused-by-clients", Severity::Warn)]);
    let listener =
        json!({"hostname": "pay.example.com", "tls": {"mode": "Terminate", "certificateRefs": [{"name": "shop"}]}});
    let by_name = |namespace: &str| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"namespace": namespace, "name": "public"}, "spec": {"listeners": [listener.clone()]},
        })
    };
    assert_eq!(found(&shop, &[by_name("mesh")]), [("hosts-not-covered", Severity::Warn)]);
    assert_eq!(found(&shop, &[by_name("apps")]), [], "it names a Secret of its own namespace");
}

#[test]
fn does_not_judge_a_secret_without_gateway_keys() {
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "password"}, "stringData": {"password": "x"},
    });
    assert_eq!(checked(&object, &Context::default()), None);
    assert_eq!(checked(&json!({"apiVersion": "v1", "kind": "ConfigMap"}), &Context::default()), None);
}

#[test]
fn finds_conflicts_between_gateway_secrets() {
    let object = |name: &str, root: &str| {
        json!({
            "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret",
            "metadata": {"namespace": "mesh", "name": name}, "spec": {"sourceSecretName": root},
        })
    };
    let mut newer = entry("mesh", "root", "newer");
    newer.created = Some(Timestamp::MAX);
    let registry = Registry::new([entry("mesh", "root", "gw"), newer, entry("mesh", "same", "same")]);
    let context = Context { registry, ..Context::default() };
    assert_eq!(checked(&object("gw", "root"), &context), Some(vec![]));
    assert_eq!(checked(&object("newer", "root"), &context), Some(vec![("name-conflict", Severity::Warn)]));
    assert_eq!(checked(&object("same", "same"), &context), Some(vec![("invalid-resource", Severity::Deny)]));
    let no_spec = json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret"});
    assert_eq!(checked(&no_spec, &context), Some(vec![("invalid-resource", Severity::Deny)]));
}

/// cert-manager's writes of one issuance: the new certificate, and the keystores that it renders from what is then stored.
#[test]
fn truststores_of_a_client_get_the_cas_that_its_bundle_gets() {
    let (old, new) = (ca("old"), ca("new"));
    let mut entry = entry("mesh", "root", "gw");
    entry.status.client_bundle = [&new, &old].map(|ca| TrustAnchor::from(&parsed(ca.der()))).to_vec();
    let registry = Registry::new([entry]);
    // A truststore is represented by the names of its CAs.
    let written = |ca_crt: &str, issuer: &Authority, truststore: &str| {
        let leaf = issuer.leaf("payments");
        let text = |text: &str| json!(STANDARD.encode(text));
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "namespace": "mesh", "name": "payments", "labels": {CLIENT_LABEL: "gw"},
                "annotations": {"cert-manager.io/ip-sans": ""},
            },
            "data": {
                "ca.crt": text(ca_crt), "tls.crt": text(&leaf.pem()), "tls.key": text(&leaf.key_pem()),
                "truststore.p12": text(truststore), "keystore.p12": text("key"),
            },
        })
    };
    let admitted = |object: &Json<'_>, old: &Json<'_>| {
        let mut stored = serde_json::Value::from(object);
        let patch = mutate(&request(Operation::Update, Some(object), Some(old)), &registry, now()).patch;
        json_patch::patch(&mut stored, &patch.parse()).unwrap();
        let written = Json::from(stored.clone());
        let decision =
            validate(&request(Operation::Update, Some(&written), Some(old)), &registry, &Severities::default(), now());
        assert_eq!(decision.denials().collect::<Vec<_>>(), [] as [&Finding; 0]);
        let text =
            |key: &str| String::from_utf8(STANDARD.decode(stored["data"][key].as_str().unwrap()).unwrap()).unwrap();
        (patch.is_empty(), text("ca.crt"), text("truststore.p12"), written)
    };
    let stored = written(&old.pem(), &old, "old");
    let (_, ca_crt, truststore, stored) = admitted(&written(&new.pem(), &new, "new"), &stored);
    assert_eq!(truststore, "old", "what the client verifies gateways with, until it is rendered again");
    // cert-manager repeats a write if it has not seen the result yet.
    let (_, _, truststore, stored) = admitted(&written(&new.pem(), &new, "new"), &stored);
    assert_eq!(truststore, "old");
    let (is_unchanged, ..) = admitted(&written(&ca_crt, &new, "new, old"), &stored);
    assert!(is_unchanged, "what cert-manager renders from the whole bundle is not changed");
}

#[test]
fn no_old_ca_is_carried_into_a_write_of_the_agent() {
    let (old, new) = (ca("old"), ca("new"));
    let annotated = |ca: &Authority| {
        let annotations = json!({"trustspan.dev/carry-over": "true"});
        with(secret(ca, &ca.leaf("shop.example.com")), "/metadata/annotations", annotations)
    };
    let (old, new) = (annotated(&old), annotated(&new));
    let is_patched = |by_agent| {
        let request = Request { by_agent, ..request(Operation::Update, Some(&new), Some(&old)) };
        !mutate(&request, &Registry::new([used()]), now()).patch.is_empty()
    };
    assert!(is_patched(false));
    assert!(!is_patched(true), "the agent has left it out");
}
