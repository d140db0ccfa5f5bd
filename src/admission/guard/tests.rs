//! Random objects, on which the webhook and `check` must agree.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use base64::{Engine, engine::general_purpose::STANDARD};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::admission::{Context, Operation, check, validate};
use crate::api::names::CLIENT_LABEL;
use crate::json::json;
use crate::registry::Registry;
use crate::registry::tests::entry;
use crate::trust::fixtures::{block, ca, ca_between, ca_without_key_id, now};
use crate::trust::{Finding, Severities, Severity};

const CASES: u32 = 2_000;

/// Bundles, some of them invalid.
static BUNDLES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let (one, two) = (ca("one"), ca("two"));
    let garbage = block("CERTIFICATE", b"garbage");
    vec![
        one.pem(),
        one.pem() + &two.pem(),
        one.pem() + &one.pem(),
        one.pem() + &garbage,
        format!("\u{feff}{}{}", one.pem(), two.pem()),
        one.pem() + &one.key_pem(),
        one.leaf("shop.example.com").pem(),
        ca_between("old", 2020, 2025).pem(),
        ca_without_key_id("same").pem() + &ca_without_key_id("same").pem(),
        "prose".to_owned(),
        String::new(),
    ]
});

/// Chains with keys, some of them invalid.
static PAIRS: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let ca = ca("servers");
    let (leaf, other) = (ca.leaf("shop.example.com"), ca.leaf("shop.example.com"));
    let old = ca.leaf_between("shop.example.com", 2020, 2025);
    vec![
        (leaf.pem(), leaf.key_pem()),
        (leaf.pem(), other.key_pem()),
        (leaf.pem(), String::new()),
        (old.pem(), old.key_pem()),
        ("prose".to_owned(), leaf.key_pem()),
    ]
});

#[derive(Clone, Debug)]
struct Case {
    kind: &'static str,
    name: &'static str,
    type_: &'static str,
    label: Option<(&'static str, &'static str)>,
    bundle: Option<(&'static str, usize)>,
    pair: Option<(bool, usize)>,
    is_base64: bool,
    has_gateway_secret: bool,
    is_guarded: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let labels = vec![
        None,
        None,
        Some((GUARD, GUARD_ENABLED)),
        Some((GUARD, "on")),
        Some((MANAGED_LABEL, "true")),
        Some((CLIENT_LABEL, "gw")),
        Some(("team", "checkout")),
    ];
    let bundle = proptest::option::of((select(&["ca.crt", "cacert"][..]), 0..BUNDLES.len()));
    let what = (
        select(&["Secret", "Secret", "ConfigMap"][..]),
        select(&["root", "gw", "gw-cacert", "other", "kube-root-ca.crt"][..]),
        select(&["Opaque", "kubernetes.io/tls", "kubernetes.io/service-account-token"][..]),
        select(labels),
    );
    let content = (bundle, proptest::option::of((any::<bool>(), 0..PAIRS.len())), proptest::bool::weighted(0.95));
    (what, content, any::<bool>(), any::<bool>()).prop_map(
        |((kind, name, type_, label), (bundle, pair, is_base64), has_gateway_secret, is_guarded)| Case {
            kind,
            name,
            type_,
            label,
            bundle,
            pair,
            is_base64,
            has_gateway_secret,
            is_guarded,
        },
    )
}

impl Case {
    /// The object as the API server stores it.
    fn object(&self) -> Json<'static> {
        let is_secret = self.kind == "Secret";
        let encoded = |text: &str| match (is_secret, self.is_base64) {
            (false, _) => text.to_owned(),
            (true, true) => STANDARD.encode(text),
            (true, false) => "%%%".to_owned(),
        };
        let mut data = json!({"note": encoded("nothing of ours")});
        if let Some((key, bundle)) = self.bundle {
            data[key] = json!(encoded(&BUNDLES[bundle]));
        }
        if let Some((is_generic, pair)) = self.pair.filter(|_| is_secret) {
            let keys = if is_generic { ["cert", "key"] } else { ["tls.crt", "tls.key"] };
            let (chain, key) = &PAIRS[pair];
            data[keys[0]] = json!(encoded(chain));
            data[keys[1]] = json!(encoded(key));
        }
        let labels: BTreeMap<_, _> = self.label.iter().copied().collect();
        let mut object = json!({
            "apiVersion": "v1", "kind": self.kind, "data": data,
            "metadata": {"namespace": "mesh", "name": self.name, "labels": labels},
        });
        if is_secret {
            object["type"] = json!(self.type_);
        }
        object
    }

    /// Whether the selectors and conditions of manifests/base/webhooks.yaml match it. This is a second implementation,
    /// in the form of these conditions.
    fn is_sent(&self, object: &Json<'_>) -> bool {
        let has_label = self.label.is_some_and(|(key, _)| key.starts_with("trustspan.dev/"));
        let has = |keys: &[&str]| keys.iter().any(|key| object["data"].get(key).is_some());
        let has_certificates = match self.kind {
            "Secret" => {
                self.type_ != "kubernetes.io/service-account-token" && has(&["ca.crt", "tls.crt", "cacert", "cert"])
            }
            _ => self.name != "kube-root-ca.crt" && has(&["ca.crt", "cacert"]),
        };
        has_label || (self.is_guarded && has_certificates)
    }

    fn registry(&self) -> Registry {
        Registry::new(self.has_gateway_secret.then(|| entry("mesh", "root", "gw")))
    }
}

type Denials = BTreeSet<(&'static str, String)>;

fn denials(findings: &[Finding]) -> Denials {
    let denials = findings.iter().filter(|finding| finding.severity == Severity::Deny);
    denials.map(|finding| (finding.rule, finding.field.clone())).collect()
}

fn by_webhook(case: &Case, object: &Json<'_>) -> Denials {
    if !case.is_sent(object) {
        return Denials::new();
    }
    let request = Request { in_guarded_namespace: case.is_guarded, ..Request::create(object, "mesh") };
    denials(&validate(&request, &case.registry(), &Severities::default(), now()).findings)
}

fn by_check(case: &Case, object: &Json<'_>) -> (Denials, usize) {
    let unguarded = (!case.is_guarded).then(|| "mesh".to_owned()).into_iter().collect();
    let context = Context { registry: case.registry(), unguarded, ..Context::default() };
    let findings = check(object, "mesh", &context, now()).unwrap_or_default();
    (denials(&findings), findings.len())
}

/// A failure prints the smallest object that causes it (proptest).
#[test]
fn the_webhook_and_check_deny_the_same() {
    let (denied, warned) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let result = runner.run(&case(), |case| {
        let object = case.object();
        let (here, (there, findings)) = (by_webhook(&case, &object), by_check(&case, &object));
        prop_assert_eq!(&here, &there, "webhook and check on {}", object);
        denied.set(denied.get() + u32::from(!here.is_empty()));
        warned.set(warned.get() + u32::from(here.is_empty() && findings > 0));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    println!("{CASES} objects: {} denied by both, {} only warned of", denied.get(), warned.get());
    assert!(
        denied.get() > CASES / 5 && warned.get() > CASES / 10,
        "{denied:?} {warned:?}: too few cases were compared"
    );
}

/// The API server does not read them all.
#[test]
fn an_object_with_more_than_100_labels_or_annotations_is_sent() {
    for map in ["labels", "annotations"] {
        let is_sent = |count: usize| {
            let entries: BTreeMap<_, _> = (0..count).map(|number| (format!("note-{number}"), "")).collect();
            let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "notes", map: entries}});
            is_sent(&Request::create(&object, "mesh"))
        };
        assert_eq!((is_sent(100), is_sent(101)), (false, true), "{map}");
    }
}

/// A ServiceAccount token with a name from which gateways take CAs.
#[test]
fn what_decides_trust_is_judged_whatever_its_type_and_keys_are() {
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token", "metadata": {"name": "gw-cacert"},
        "stringData": {"ca.crt": "prose"},
    });
    let denied = |decides_trust| {
        let request = Request { decides_trust, in_guarded_namespace: true, ..Request::create(&object, "mesh") };
        let registry = Registry::new([entry("mesh", "root", "gw")]);
        denials(&validate(&request, &registry, &Severities::default(), now()).findings).len()
    };
    assert_eq!((denied(true), denied(false)), (1, 0));
}

#[test]
fn judges_the_removal_of_the_label() {
    let secret = |labels: Json<'static>, bundle: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "partners", "labels": labels}, "stringData": {"ca.crt": bundle}});
    let (old, new) = (secret(json!({GUARD: GUARD_ENABLED}), &BUNDLES[0]), secret(json!({}), "prose"));
    let request =
        |old| Request { operation: Operation::Update, old_object: Some(old), ..Request::create(&new, "mesh") };
    let denied = |old| denials(&validate(&request(old), &Registry::default(), &Severities::default(), now()).findings);
    assert_eq!(denied(&old).into_iter().map(|(rule, _)| rule).collect::<Vec<_>>(), ["empty"]);
    assert_eq!(denied(&new), Denials::new(), "neither version has the label");
}

#[test]
fn warns_about_a_gateway_secret_in_an_unguarded_namespace() {
    let object = |mode: &str| json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": {"name": "gw"}, "spec": {"sourceSecretName": "root", "mode": mode}});
    let (new, old) = (object("Copy"), object("Bundle"));
    let rules = |operation, old, in_guarded_namespace| {
        let request = Request { operation, in_guarded_namespace, old_object: old, ..Request::create(&new, "mesh") };
        let decision = validate(&request, &Registry::default(), &Severities::default(), now());
        decision.findings.into_iter().map(|finding| finding.rule).collect::<Vec<_>>()
    };
    assert_eq!(rules(Operation::Create, None, false), ["namespace-unguarded"]);
    assert_eq!(rules(Operation::Update, Some(&old), false), ["namespace-unguarded"]);
    assert_eq!(rules(Operation::Update, Some(&new), false), [""; 0], "nothing has changed");
    assert_eq!(rules(Operation::Create, None, true), [""; 0]);
}

#[test]
fn accepts_the_ca_of_an_issuer_and_an_account_key() {
    let authority = crate::trust::fixtures::ca_with("issuer", |params| {
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
    });
    let secret = |labels: Json<'static>, data: Json<'static>| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ca", "labels": labels}, "stringData": data});
    let ca =
        |labels: Json<'static>| secret(labels, json!({"tls.crt": authority.pem(), "tls.key": authority.key_pem()}));
    let account = secret(json!({}), json!({"tls.key": authority.key_pem()}));
    let denied = |object: &Json<'_>| {
        let request = Request { in_guarded_namespace: true, ..Request::create(object, "mesh") };
        denials(&validate(&request, &Registry::default(), &Severities::default(), now()).findings)
    };
    assert_eq!(denied(&ca(json!({}))), Denials::new(), "an issuer signs with it");
    assert_eq!(denied(&account), Denials::new(), "no gateway reads it");
    let (pem, key) = crate::trust::fixtures::self_signed(&rcgen::PKCS_ML_DSA_65);
    let too_new = secret(json!({}), json!({"ca.crt": pem, "tls.crt": pem, "tls.key": key}));
    assert_eq!(denied(&too_new), Denials::new(), "a rotation waits until all gateways verify with it");
    // Gateways load a managed Secret, even if this webhook replica does not know its GatewaySecret yet.
    assert_eq!(denied(&ca(json!({MANAGED_LABEL: "true"}))).len(), 1);
}
