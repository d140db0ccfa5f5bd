//! Reviews, from their bytes to the bytes of the answer.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use trustspan::admission;
use trustspan::registry::Registry;
use trustspan::store::directory::entry;
use trustspan::trust::Severities;
use trustspan::webhook::{answer::answer, review::Review};

use super::{SIZE, certificates::texts, conclude, fill, trial};
use crate::pki::Identity;
use crate::pool::POOL;
use crate::review::claim;

/// The API server's question about a change of an object.
fn body(kind: Value, object: &Value, old: &Value) -> String {
    let operation = if old.is_null() { "CREATE" } else { "UPDATE" };
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": operation, "kind": kind, "userInfo": {"username": "jane"},
        "namespace": object["metadata"]["namespace"], "name": object["metadata"]["name"],
        "object": object, "oldObject": old,
    }})
    .to_string()
}

fn secret(data: &[(&str, &str)]) -> Value {
    let data: serde_json::Map<_, _> =
        data.iter().map(|(key, text)| ((*key).to_owned(), json!(STANDARD.encode(text)))).collect();
    let labels = json!({"trustspan.dev/managed": "true"});
    json!({"metadata": {"namespace": "istio-system", "name": "public-gateway", "labels": labels}, "data": data})
}

fn answered(body: &str, registry: &Registry) {
    let Ok(review) = Review::parse(body.as_bytes()) else { return };
    let request = review.request("agent");
    let now = jiff::Timestamp::now();
    let decision = admission::validate(&request, registry, &Severities::default(), now);
    answer(&review.uid, &decision).expect("an answer");
    answer(&review.uid, &admission::mutate(&request, registry, now)).expect("an answer");
}

fn registry(leaves: &[Identity]) -> Registry {
    Registry::new([entry(&claim(leaves), "default").expect("an entry")])
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn reviews_of_large_secrets() {
    // A hundred live leaves, which need nearly every CA.
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
            trials.push(trial(format!("{name}, {how}"), || answered(&body, &registry)));
        }
    }
    conclude("reviews of Secrets", trials);
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
            trials.push(trial(format!("{name}, {how}"), || answered(&body, &registry)));
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
        for old in [Value::Null, object.clone()] {
            let body = body(kind.clone(), &object, &old);
            trials.push(trial(name, || answered(&body, &registry)));
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
        trials.push(trial(name, || answered(&body, &registry)));
    }
    conclude("reviews of objects", trials);
}
