//! Nothing that names a Secret, a ConfigMap, a certificate, a CA or a file is passed over unnoticed: every such field of the CRDs of
//! Istio, the Gateway API, Envoy Gateway and cert-manager is handled, or listed with its reason, or left out by a rule.
//!
//! `TRUSTSPAN_WRITE=1 cargo test --test schemas` writes docs/what-names-certificates.md.

#![allow(clippy::unwrap_used)]

#[allow(dead_code)] // a part of it is used here
#[path = "../bed/assets.rs"]
mod assets;
mod by_hand;
mod crds;
mod handled;
mod listed;
mod page;
mod pattern;
mod rules;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::{Value, json};
use trustspan::api::Kind;

use crds::{Place, Schema};
use handled::Handling;
use listed::{GROUPS, Group};
use pattern::fits;
use rules::{EXCLUSIONS, Exclusion};

/// The schemas of the CRD versions that tests/bed pins.
static SCHEMAS: LazyLock<Vec<Schema>> = LazyLock::new(|| {
    let [dir] = assets::exported("setup", &["schemas"], ["TRUSTSPAN_BED_SCHEMAS"]).unwrap();
    crds::read(Path::new(&dir)).unwrap()
});

/// The lists and rules that classify a field. There must be exactly one.
struct Class {
    handled: Option<Handling>,
    /// Whether only some versions of the kind are handled.
    is_partial: bool,
    listed: Vec<&'static Group>,
    excluded: Vec<&'static Exclusion>,
}

impl Class {
    fn count(&self) -> usize {
        usize::from(self.handled.is_some()) + self.listed.len() + self.excluded.len()
    }
}

fn classified(schemas: &[Schema]) -> BTreeMap<Place, Class> {
    let class = |(place, field): (Place, crds::Field)| {
        let of = |version: &String| {
            handled::of(Kind { group: &place.group, version, kind: &place.kind }, &place.path, field.shape)
        };
        let handled: Vec<_> = field.versions.iter().map(of).collect();
        let is_partial = handled.iter().any(|one| one != &handled[0]);
        let fit = |patterns: &[&str]| patterns.iter().any(|pattern| fits(pattern, &place));
        let listed = GROUPS.iter().filter(|group| fit(group.fields)).collect();
        let excluded = EXCLUSIONS.iter().filter(|rule| fit(rule.fields)).collect();
        let class = Class { handled: handled[0], is_partial, listed, excluded };
        (place, class)
    };
    crds::fields(schemas).into_iter().map(class).collect()
}

#[test]
fn every_field_that_could_name_a_certificate_is_classified_once() {
    let classes = classified(&SCHEMAS);
    let count = |is: fn(&Class) -> bool| classes.values().filter(|class| is(class)).count();
    println!(
        "{} fields found: {} handled, {} listed, {} excluded by {} rules",
        classes.len(),
        count(|class| class.handled.is_some()),
        count(|class| !class.listed.is_empty()),
        count(|class| !class.excluded.is_empty()),
        EXCLUSIONS.len(),
    );
    assert!(classes.len() > 1_000, "the schemas are not all there");
    let mut wrong = String::new();
    for (place, class) in &classes {
        let groups = class.listed.iter().map(|group| group.names);
        let reasons: Vec<_> = groups.chain(class.excluded.iter().map(|rule| rule.reason)).collect();
        if class.is_partial {
            wrong += &format!("{place}: handled in some versions only\n");
        }
        if class.count() == 0 {
            wrong += &format!("{place}: handle it, list it in listed.rs, or exclude it in rules.rs, with the reason\n");
        } else if class.count() > 1 {
            wrong += &format!("{place}: handled {}, and {reasons:?}: keep one\n", class.handled.is_some());
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn every_pattern_fits_a_field() {
    let fields = crds::fields(&SCHEMAS);
    let patterns = GROUPS.iter().flat_map(|group| group.fields).chain(EXCLUSIONS.iter().flat_map(|rule| rule.fields));
    let idle: Vec<_> = patterns.filter(|pattern| !fields.keys().any(|place| fits(pattern, place))).collect();
    assert!(idle.is_empty(), "no field fits {idle:?}: take them out");
}

#[test]
fn kinds_of_kubernetes_itself_are_handled_as_the_page_says() {
    for field in by_hand::BUILT_IN {
        for kind in field.kinds {
            let kind = Kind { group: field.group, version: field.version, kind };
            let handled = handled::of(kind, field.path, crds::Shape::Name);
            assert_eq!(handled.is_some(), field.unhandled.is_none(), "{kind:?} {}", field.path);
        }
    }
}

/// Four fields that a future version could add.
fn added() -> [(&'static str, Value); 4] {
    let string = |description: &str| json!({"type": "string", "description": description});
    let reference = json!({"type": "object", "properties": {"kind": {"type": "string"}, "name": {"type": "string"}}});
    [
        ("fooRef", reference),
        ("barName", string("What is meant is up to you.")),
        ("upstream", string("Where to ask: https:// and a host.")),
        ("place", string("A file, by its absolute path.")),
    ]
}

/// Adds the fields to an object in a schema, given by its JSON Pointer and its path, and expects that none of them is
/// classified.
fn expect_unclassified(schema: &Schema, pointer: &str, path: &str) {
    let mut schema = schema.clone();
    let properties = schema.schema.pointer_mut(pointer).and_then(Value::as_object_mut);
    let properties = properties.unwrap_or_else(|| panic!("{} {pointer}", schema.kind));
    properties.extend(added().map(|(name, property)| (name.to_owned(), property)));
    let about = format!("{}/{} {}", schema.group, schema.kind, schema.version);
    let classes = classified(&[schema]);
    let found: Vec<_> =
        classes.into_iter().filter(|(_, class)| class.count() == 0).map(|(place, _)| place.path).collect();
    let mut expected = added().map(|(name, _)| format!("{path}.{name}"));
    expected.sort();
    assert_eq!(found, expected, "{about}");
}

#[test]
fn a_reference_a_name_a_url_or_a_file_that_is_added_to_any_kind_is_not_classified() {
    for schema in SCHEMAS.iter() {
        expect_unclassified(schema, "/properties/spec/properties", "spec");
    }
}

#[test]
fn what_is_added_beside_known_tls_settings_is_not_classified() {
    let deep = [
        ("networking.istio.io", "Gateway", "servers/items/properties/tls", "servers[].tls"),
        ("networking.istio.io", "Sidecar", "ingress/items/properties/tls", "ingress[].tls"),
        ("networking.istio.io", "DestinationRule", "trafficPolicy/properties/tls", "trafficPolicy.tls"),
        ("gateway.networking.k8s.io", "Gateway", "listeners/items/properties/tls", "listeners[].tls"),
        ("gateway.networking.k8s.io", "BackendTLSPolicy", "validation", "validation"),
        ("gateway.envoyproxy.io", "ClientTrafficPolicy", "tls/properties/clientValidation", "tls.clientValidation"),
        ("gateway.envoyproxy.io", "EnvoyProxy", "backendTLS", "backendTLS"),
        ("gateway.envoyproxy.io", "Backend", "tls", "tls"),
        ("cert-manager.io", "Certificate", "keystores/properties/jks", "keystores.jks"),
        ("cert-manager.io", "Issuer", "ca", "ca"),
        ("cert-manager.io", "ClusterIssuer", "vault", "vault"),
    ];
    for (group, kind, pointer, path) in deep {
        let schemas: Vec<_> = SCHEMAS.iter().filter(|schema| schema.group == group && schema.kind == kind).collect();
        assert!(!schemas.is_empty(), "{group}/{kind}");
        for schema in schemas {
            let pointer = format!("/properties/spec/properties/{pointer}/properties");
            expect_unclassified(schema, &pointer, &format!("spec.{path}"));
        }
    }
}

#[test]
fn a_known_field_of_another_shape_is_not_handled_by_accident() {
    let kind = |group, kind| Kind { group, version: "v1", kind };
    let istio = kind("networking.istio.io", "Gateway");
    let name = crds::Shape::Name;
    assert!(handled::of(istio, "spec.servers[].tls.credentialName", name).is_some());
    assert!(handled::of(istio, "spec.servers[].tls.caCrl", name).is_none());
    assert!(
        handled::of(
            kind("gateway.networking.k8s.io", "BackendTLSPolicy"),
            "spec.validation.caCertificateRefs[]",
            crds::Shape::Reference
        )
        .is_none()
    );
}

#[test]
fn the_committed_page_is_current() {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/what-names-certificates.md");
    let page = page::markdown(&classified(&SCHEMAS));
    if std::env::var_os("TRUSTSPAN_WRITE").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    let advice = "docs/what-names-certificates.md is stale: TRUSTSPAN_WRITE=1 cargo test --test schemas";
    let different = committed.lines().zip(page.lines()).find(|(committed, page)| committed != page);
    assert_eq!(different, None, "{advice}");
    assert!(committed == page, "{advice}");
}
