//! Admission reviews, measured from the bytes of the request to the bytes of the response.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Value, json};
use trustspan::admission::{self, Decision, Request};
use trustspan::registry::Registry;
use trustspan::store::directory::entry;
use trustspan::trust::Severities;
use trustspan::webhook::{Limits, response::answer, review::Review};

use super::{
    SIZE, Trial,
    certificates::{many, texts},
    conclude, fill, trial,
};
use crate::pki::{Dates, Identity, Spec};
use crate::pool::POOL;
use crate::review::claim;

/// The review of an UPDATE.
pub(super) fn body(kind: Value, object: &Value, old: &Value) -> String {
    let operation = if old.is_null() { "CREATE" } else { "UPDATE" };
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": operation, "kind": kind, "userInfo": {"username": "jane"},
        "namespace": object["metadata"]["namespace"], "name": object["metadata"]["name"],
        "object": object, "oldObject": old,
    }})
    .to_string()
}

pub(super) fn secret(data: &[(&str, &str)]) -> Value {
    let data: serde_json::Map<_, _> =
        data.iter().map(|(key, text)| ((*key).to_owned(), json!(STANDARD.encode(text)))).collect();
    let labels = json!({"trustspan.dev/managed": "true"});
    json!({"metadata": {"namespace": "istio-system", "name": "public-gateway", "labels": labels}, "data": data})
}

/// Trials of both webhooks, each of which parses the review and responds.
pub(super) fn both(name: &str, body: &str, registry: &Registry) -> [Trial; 2] {
    let validated = || judged(body, |request, now| admission::validate(request, registry, &Severities::default(), now));
    let mutated = || judged(body, |request, now| admission::mutate(request, registry, now));
    [trial(format!("{name}, validated"), validated), trial(format!("{name}, mutated"), mutated)]
}

/// Parses a body, decides, and writes the response.
fn judged(body: &str, decide: impl FnOnce(&Request<'_>, Timestamp) -> Decision) {
    let Ok(review) = Review::parse(body.as_bytes(), Limits::default().review) else { return };
    let request = Request { in_guarded_namespace: true, ..review.request("agent") };
    let decision = decide(&request, Timestamp::now());
    answer(review.uid(), &decision).expect("an answer");
}

fn registry(leaves: &[Identity]) -> Registry {
    Registry::new([entry(&claim(leaves), "default").expect("an entry")])
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn reviews_of_large_secrets() {
    // A hundred certificates in use, which together need nearly every CA.
    let leaves: Vec<_> = POOL.leaves.iter().cycle().take(100).cloned().collect();
    let registry = registry(&leaves);
    let (kind, mut trials) = (json!({"group": "", "version": "v1", "kind": "Secret"}), Vec::new());
    let all: String = POOL.cas.iter().map(Identity::pem).collect();
    let (leaf, key) = (POOL.leaves[6].pem(), POOL.leaves[6].key.pem());
    let sound = secret(&[("ca.crt", &all), ("tls.crt", &leaf), ("tls.key", &key)]);
    for (name, text) in texts() {
        let half = &text[..text.floor_char_boundary(text.len() / 2)];
        for (how, new, old) in [
            ("a new bundle", secret(&[("ca.crt", &text)]), Value::Null),
            ("a new chain", secret(&[("tls.crt", &text), ("tls.key", &text)]), Value::Null),
            ("instead of a sound bundle", secret(&[("ca.crt", &text)]), sound.clone()),
            ("mended", sound.clone(), secret(&[("ca.crt", &text), ("tls.crt", &leaf), ("tls.key", &key)])),
            (
                "behind sound CAs, once more",
                secret(&[("ca.crt", &format!("{all}{half}\n"))]),
                secret(&[("ca.crt", &format!("{all}{half}"))]),
            ),
        ] {
            let body = body(kind.clone(), &new, &old);
            trials.extend(both(&format!("{name}, {how}"), &body, &registry));
        }
    }
    let carried = |mut secret: Value| {
        secret["metadata"]["name"] = json!("other");
        secret["metadata"]["annotations"] = json!({"trustspan.dev/carry-over": "1000"});
        secret
    };
    let client = |mut secret: Value| {
        secret["metadata"]["name"] = json!("client");
        secret["metadata"]["labels"] = json!({"trustspan.dev/client": "public-gateway"});
        secret
    };
    let (crowd, others) = (many(&POOL.cas[8], true), many(&POOL.cas[11], false));
    let [crowd, others] =
        [crowd, others].map(|text| secret(&[("ca.crt", &text), ("tls.crt", &leaf), ("tls.key", &key)]));
    let lists = lists(&POOL.cas[8]);
    let half = |text: String| text[..text.len() / 2].rsplit_once("-----BEGIN").map(|(half, _)| half.to_owned());
    let listed = secret(&[("ca.crt", &half(many(&POOL.cas[8], true)).expect("CAs")), ("ca.crl", &lists)]);
    let long_list = POOL.cas[8].crl(Dates::Valid, &(0..SIZE as u64 / 40).collect::<Vec<_>>()).expect("a list");
    let long_list = secret(&[("ca.crt", &POOL.cas[8].pem()), ("ca.crl", &long_list)]);
    for (name, new, old) in [
        ("carried over", carried(crowd.clone()), carried(others.clone())),
        ("a declared client", client(crowd.clone()), client(others.clone())),
        ("namesakes instead of others", crowd.clone(), others.clone()),
        ("others instead of namesakes", others, crowd),
        ("hundreds of CAs and lists of one name", listed.clone(), sound.clone()),
        ("hundreds of CAs and lists of one name, mended", sound.clone(), listed),
        ("a list of thousands", long_list, sound.clone()),
    ] {
        let body = body(kind.clone(), &new, &old);
        trials.extend(both(name, &body, &registry));
    }
    // As many certificates in use as a GatewaySecret can list, all of the CA that the update removes.
    let ca = &POOL.cas[8];
    let leaf = |serial| ca.issue(Spec { serial, ..Spec::leaf(format!("client {serial}")) }, POOL.leaves[6].key.clone());
    let crowd: Vec<_> = (0..SIZE as u64 / 700).map(|serial| leaf(serial).expect("a leaf")).collect();
    let crowded = self::registry(&crowd);
    let without: String =
        POOL.cas.iter().filter(|other| other.spec.subject != ca.spec.subject).map(Identity::pem).collect();
    for (name, text) in
        [("the CA of a thousand clients goes", without), ("the only CA of a thousand clients stays", ca.pem())]
    {
        let body = body(kind.clone(), &secret(&[("ca.crt", &text)]), &sound);
        trials.extend(both(name, &body, &crowded));
    }
    conclude("reviews of Secrets", trials);
}

/// Half as many revocation lists of one CA as fit, all of them different.
fn lists(ca: &Identity) -> String {
    let list = |serial| ca.crl(Dates::Valid, &[serial]).expect("a list");
    (0..SIZE as u64 / 2 / list(0).len() as u64).map(list).collect()
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn reviews_of_large_objects() {
    let registry = registry(&POOL.leaves);
    let kind = |group: &str, kind: &str| json!({"group": group, "version": "v1", "kind": kind});
    let metadata = json!({"namespace": "istio-system", "name": "public-gateway"});
    let count = |bytes: usize| SIZE / bytes;
    let keys =
        |bytes: usize, value: &str| -> Value { (0..count(bytes)).map(|n| (format!("k{n}"), json!(value))).collect() };
    let server = json!({"tls": {"credentialName": "gateway-root"}});
    let mut labels = keys(32, "v");
    labels["istio"] = json!("ingressgateway");
    let labelled = json!({"selector": labels, "servers": vec![server.clone(); count(80)]});
    let gateway = json!({"selector": {"istio": "ingressgateway"}, "servers": vec![server; count(40)]});
    let listener = json!({"tls": {"certificateRefs": [{"name": "gateway-root"}]}});
    let volume = json!({"name": "v", "secret": {"secretName": "gateway-root"}});
    let mount = json!({"name": "v", "subPath": "ca.crt"});
    let variable = json!({"valueFrom": {"secretKeyRef": {"name": "gateway-root", "key": "ca.crt"}}});
    let pod = |containers: Value, volumes: Value| {
        let spec = json!({"containers": containers, "volumes": volumes});
        json!({"template": {"spec": spec}})
    };
    let objects = [
        ("servers", kind("networking.istio.io", "Gateway"), gateway),
        ("servers for many labels", kind("networking.istio.io", "Gateway"), labelled),
        ("listeners", kind("gateway.networking.k8s.io", "Gateway"), json!({"listeners": vec![listener; count(55)]})),
        ("volumes", kind("apps", "Deployment"), pod(json!([]), json!(vec![volume.clone(); count(60)]))),
        (
            "mounts",
            kind("apps", "Deployment"),
            pod(json!([{"volumeMounts": vec![mount.clone(); count(70)]}]), json!(vec![volume.clone(); count(120)])),
        ),
        (
            "containers",
            kind("apps", "DaemonSet"),
            pod(json!(vec![json!({"volumeMounts": [mount]}); count(60)]), json!([volume])),
        ),
        ("variables", kind("apps", "StatefulSet"), pod(json!([{"env": vec![variable; count(80)]}]), json!([]))),
        ("selector labels", kind("networking.istio.io", "Gateway"), json!({"selector": keys(16, "v"), "servers": []})),
    ];
    let mut trials = Vec::new();
    for (name, kind, spec) in objects {
        let object = json!({"metadata": metadata, "spec": spec});
        for (how, old) in [
            ("new", Value::Null),
            ("changed", json!({"metadata": metadata, "spec": {"template": {}}})),
            ("as it was", object.clone()),
        ] {
            let body = body(kind.clone(), &object, &old);
            trials.extend(both(&format!("{name}, {how}"), &body, &registry));
        }
    }
    let record = |text: String| {
        let annotations = json!({"trustspan.dev/undo": text});
        json!({"metadata": {"namespace": "shop", "name": "g", "annotations": annotations}, "spec": {"servers": []}})
    };
    let pair =
        r#"{"op":"test","path":"/spec/servers/0","value":"a"},{"op":"replace","path":"/spec/servers/0","value":"b"},"#;
    let filled = |parent: &str, field: &str, value: Value| {
        let mut object = secret(&[]);
        object.pointer_mut(parent).expect("a parent")[field] = value;
        object
    };
    for (name, kind, object) in [
        ("annotations", kind("", "Secret"), filled("/metadata", "annotations", keys(16, "v"))),
        (
            "break-glass annotations",
            kind("", "Secret"),
            filled(
                "/metadata",
                "annotations",
                (0..count(40)).map(|n| (format!("breakglass.trustspan.dev/r{n}"), json!("x"))).collect(),
            ),
        ),
        ("labels", kind("", "Secret"), filled("/metadata", "labels", keys(16, "v"))),
        ("keys", kind("", "Secret"), filled("", "data", keys(14, ""))),
        ("values that are no base64", kind("", "Secret"), filled("", "data", keys(16, "?"))),
        ("one long annotation", kind("", "Secret"), filled("/metadata", "annotations", json!({"a": fill("\\")}))),
        (
            "a long record",
            kind("networking.istio.io", "Gateway"),
            record(format!("[{}]", fill(pair).trim_end_matches(','))),
        ),
        ("a record that is none", kind("networking.istio.io", "Gateway"), record(fill("["))),
        ("a list", kind("", "Secret"), filled("", "data", json!(vec![0; count(2)]))),
    ] {
        for (how, old) in [("new", Value::Null), ("as it was", object.clone())] {
            let body = body(kind.clone(), &object, &old);
            trials.extend(both(&format!("{name}, {how}"), &body, &registry));
        }
    }
    for (name, text) in [
        ("deep lists", fill("[")),
        ("deep maps", fill(r#"{"a":"#)),
        ("escapes", format!("\"{}\"", fill("\\u00e9"))),
        ("numbers", format!("[{}1]", fill("1e300,"))),
        ("digits", fill("1")),
        ("empty maps", format!("[{}1]", fill("{},"))),
        ("one key, again and again", format!("{{{}\"a\":1}}", fill("\"a\":1,"))),
    ] {
        let body = body(kind("", "Secret"), &json!("OBJECT"), &Value::Null).replace("\"OBJECT\"", &text);
        trials.extend(both(name, &body, &registry));
    }
    conclude("reviews of objects", trials);
}
