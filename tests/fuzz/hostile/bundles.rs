//! CA bundles outside of the Secrets of gateways: kubeconfigs, ConfigMaps, and objects that configure calls of the API
//! server.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Value, json};
use trustspan::admission::{Request, validate};
use trustspan::registry::Registry;
use trustspan::trust::Severities;
use trustspan::webhook::{Limits, response::answer, review::Review};

use super::crafted::Crafted;
use super::{
    SIZE, Trial,
    certificates::{many, texts},
    conclude, fill,
    reviews::{body, secret},
    trial,
};
use crate::draw::Draw;
use crate::pki::{Keys, Kind, block};
use crate::pool::POOL;

fn judged(label: &str, kind: &Value, object: &Value, old: &Value) -> Trial {
    let (body, registry) = (body(kind.clone(), object, old), Registry::default());
    trial(label, || {
        let review = Review::parse(body.as_bytes(), Limits::default().review).expect("a review");
        let request = Request { in_guarded_namespace: true, ..review.request("agent") };
        let decision = validate(&request, &registry, &Severities::default(), Timestamp::now());
        answer(review.uid(), &decision).expect("an answer");
    })
}

/// A CREATE of an object, and an UPDATE that replaces one that is as expensive.
fn written(label: &str, kind: &Value, object: &Value, other: &Value) -> [Trial; 2] {
    [("new", &Value::Null), ("instead of its like", other)]
        .map(|(how, old)| judged(&format!("{label}, {how}"), kind, object, old))
}

fn kind(group: &str, kind: &str) -> Value {
    json!({"group": group, "version": "v1", "kind": kind})
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn bundles_of_objects() {
    let mut trials = Vec::new();
    let crd = |text: &str| {
        let config = json!({"caBundle": STANDARD.encode(text)});
        json!({"metadata": {"name": "a"}, "spec": {"conversion": {"webhook": {"clientConfig": config}}}})
    };
    let crds = kind("apiextensions.k8s.io", "CustomResourceDefinition");
    for (name, text) in texts() {
        trials.extend(written(&format!("{name}, in a CRD"), &crds, &crd(&text), &crd(&format!("# other\n{text}"))));
    }
    let webhooks = |count: usize, text: &dyn Fn(usize) -> String, annotations: &Value| {
        let one = |n| json!({"name": format!("{n}"), "clientConfig": {"caBundle": text(n)}});
        json!({"metadata": {"name": "a", "annotations": annotations}, "webhooks": (0..count).map(one).collect::<Value>()})
    };
    let configurations = kind("admissionregistration.k8s.io", "ValidatingWebhookConfiguration");
    let none = json!({});
    let tiny = |n: usize| STANDARD.encode(n.to_string());
    let other = |n: usize| STANDARD.encode(format!("-{n}"));
    let count = SIZE / 60;
    let [new, old] = [&tiny as &dyn Fn(usize) -> String, &other].map(|text| webhooks(count, text, &none));
    trials.extend(written("webhooks with a word in the place of a bundle", &configurations, &new, &old));
    let annotations: Value = (0..20_000).map(|n| (format!("k{n}"), json!(""))).collect();
    let blank = webhooks(SIZE / 80, &|_| "IA==".to_owned(), &annotations);
    trials.extend(written("webhooks with blanks, and annotations", &configurations, &blank, &old));
    let ca = |n: usize| STANDARD.encode(Crafted::ca("a", "a", n).pem());
    let [new, old] = [0, 1 << 20].map(|from| webhooks(SIZE / 320, &|n| ca(from + n), &none));
    trials.extend(written("webhooks with a CA", &configurations, &new, &old));
    conclude("bundles of objects", trials);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn kubeconfigs() {
    let secrets = kind("", "Secret");
    let config = |text: String| secret(&[("value", &text)]);
    let mut trials = Vec::new();
    let clusters = |count: usize, text: &dyn Fn(usize) -> String, name: &dyn Fn(usize) -> String| {
        let one = |n| format!("- {{name: {}, cluster: {{certificate-authority-data: {}}}}}\n", name(n), text(n));
        format!("clusters:\n{}", (0..count).map(one).collect::<String>())
    };
    let (same, own) = (|_: usize| "a".to_owned(), |n: usize| format!("a{n}"));
    let tiny = |from: usize| move |n: usize| STANDARD.encode((from + n).to_string());
    for (label, name) in [("of one name", &same as &dyn Fn(usize) -> String), ("of names of their own", &own)] {
        let [new, old] = [1, 100_000].map(|from| config(clusters(2_400, &tiny(from), name)));
        trials.extend(written(&format!("clusters {label} with a word in the place of a bundle"), &secrets, &new, &old));
        let cas = STANDARD.encode(&many(&POOL.cas[8], false)[..SIZE / 2]);
        let long = config(clusters(1, &|_| cas.clone(), name));
        trials.push(judged(&format!("clusters {label} instead of a long one"), &secrets, &new, &long));
    }
    let users = |count: usize, key: &str| {
        let one = |n: usize| {
            let chain = STANDARD.encode(n.to_string());
            format!("- {{name: a{n}, user: {{client-certificate-data: {chain}, client-key-data: {key}}}}}\n")
        };
        format!("users:\n{}", (0..count).map(one).collect::<String>())
    };
    let mut keys = Keys::shuffled(&mut Draw::new(&[]));
    for kind in [Kind::P256, Kind::P384, Kind::P521, Kind::Rsa2048, Kind::Ed25519] {
        let key = keys.of(kind).expect("a key");
        let (label, traditional) = key.traditional().expect("a key");
        for (how, pem) in [("", key.pem()), (", traditional", block(label, &traditional))] {
            let key = STANDARD.encode(pem);
            let text = users(2_000.min(SIZE / (key.len() + 90)), &key);
            let other = config(format!("# other\n{text}"));
            trials.extend(written(&format!("users with a key of {kind:?}{how}"), &secrets, &config(text), &other));
        }
    }
    let long = "a".repeat(SIZE / 2);
    for (label, text) in [
        ("aliases of a long text", format!("clusters:\n- &a {long}\n{}", "- *a\n".repeat(15_000))),
        ("aliases of a long bundle", {
            let one = "- {name: a, cluster: {certificate-authority-data: *a}}\n";
            format!("a: &a {long}\nclusters:\n{}", one.repeat(1_500))
        }),
        (
            "aliases of a long name",
            format!(
                "a: &a {long}\nclusters:\n{}",
                "- {name: *a, cluster: {certificate-authority-data: YQ==}}\n".repeat(1_500)
            ),
        ),
        (
            "merges",
            format!(
                "a: &a {{{}}}\nclusters:\n{}",
                (0..2_000).map(|n| format!("k{n}: v, ")).collect::<String>(),
                "- {<<: *a}\n".repeat(3_000)
            ),
        ),
        ("flow lists", fill("[")),
        ("block lists", fill("- ")),
        ("escapes", format!("clusters: [\"{}\"]", fill("\\u00e9"))),
        ("a folded text", format!("clusters:\n- >\n{}", fill("  a\n\n"))),
        ("comments", fill("# a\n")),
        ("keys of one map", (0..9_000).map(|n| format!("k{n}: v\n")).collect()),
        ("a plain text on many lines", format!("clusters:\n- a\n{}", fill("  a\n"))),
        ("tags", format!("clusters: [{}]", fill("!a a, "))),
        ("anchors", format!("clusters: [{}]", (0..SIZE / 12).map(|n| format!("&a{n} a, ")).collect::<String>())),
        ("documents", fill("---\n")),
    ] {
        let other = config(format!("# other\n{text}"));
        trials.extend(written(label, &secrets, &config(text), &other));
    }
    conclude("kubeconfigs", trials);
}
