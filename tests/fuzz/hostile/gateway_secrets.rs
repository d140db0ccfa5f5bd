//! GatewaySecrets of a mebibyte, and writes of Secrets whose GatewaySecret has a status of a mebibyte.

use serde_json::{Value, json};
use trustspan::registry::Registry;
use trustspan::store::directory::entry;
use trustspan::trust::{Certificate, bundle};

use super::crafted::{Crafted, name};
use super::{
    SIZE, Trial,
    certificates::many,
    conclude,
    reviews::{body, both, secret},
};
use crate::pki::{Identity, Spec, element};
use crate::pool::POOL;
use crate::review::claim;

fn secrets() -> Value {
    json!({"group": "", "version": "v1", "kind": "Secret"})
}

fn registry(object: &Value) -> Registry {
    Registry::new([entry(object, "default").expect("an entry")])
}

fn anchor(certificate: &Certificate) -> Value {
    json!({"subject": certificate.subject, "fingerprint": certificate.fingerprint, "notBefore": certificate.not_before,
        "notAfter": certificate.not_after, "pem": certificate.pem()})
}

/// As many clients of a CA as a status can list.
fn crowd(ca: &Identity) -> Vec<Identity> {
    let leaf = |serial| ca.issue(Spec { serial, ..Spec::leaf(format!("client {serial}")) }, POOL.leaves[6].key.clone());
    (0..SIZE as u64 / 700).map(|serial| leaf(serial).expect("a leaf")).collect()
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn statuses() {
    let ca = &POOL.cas[8];
    let object = claim(&crowd(ca));
    let mut trials = clients_below_long_keys(ca, &object);
    trials.extend(changes_of_specs(ca, &object));
    let few = |from: usize| -> Value {
        let one = |n: usize| {
            json!({"subject": "", "fingerprint": format!("{n:064x}"), "notBefore": "2020-01-01T00:00:00Z",
                "notAfter": "2049-01-01T00:00:00Z"})
        };
        (from..from + 3_000).map(one).collect()
    };
    let mut object = claim(&[]);
    (object["status"]["bundle"], object["status"]["clientTrust"]) = (few(0), few(10_000));
    let leaf = &POOL.leaves[6];
    object["status"]["leaves"] = json!([{"kind": "Server", "namespace": "istio-system", "name": "a", "pem": leaf.pem(),
        "subject": "", "notAfter": "2099-01-01T00:00:00Z"}]);
    let small = secret(&[("ca.crt", &ca.pem())]);
    trials.extend(both("anchors, and what clients trust", &body(secrets(), &small, &Value::Null), &registry(&object)));
    conclude("statuses", trials);
}

/// A ring of CAs above the clients, from which an update removes one with a long key.
fn clients_below_long_keys(ca: &Identity, object: &Value) -> Vec<Trial> {
    let read = Certificate::parse(&ca.der).expect("a CA");
    let key = element(0x30, &[element(0x30, &element(6, &[0x2a])), element(3, &vec![0; 300_000])].concat());
    let issuer = Crafted { key: read.public_key, subject: name("c"), ..Crafted::ca("above", "c", 0) };
    let above = Crafted { key, ..Crafted::ca("c", "above", 0) };
    let old = secret(&[("ca.crt", &(issuer.pem() + &above.pem()))]);
    let new = secret(&[("ca.crt", &POOL.cas[10].pem())]);
    let registry = registry(object);
    let mut trials = Vec::new();
    trials.extend(both("clients below a ring with a long key", &body(secrets(), &new, &old), &registry));
    let strangers: String =
        (0..4_000).map(|n| Crafted::ca("c", "c", n).with(35, &element(0x30, &element(0x80, b"x"))).pem()).collect();
    let old = secret(&[("ca.crt", &(ca.pem() + &strangers))]);
    let new = secret(&[("ca.crt", &strangers)]);
    trials.extend(both("clients of one of many namesakes", &body(secrets(), &new, &old), &registry));
    trials.extend(both("clients of one of many namesakes, back", &body(secrets(), &old, &new), &registry));
    trials
}

/// Changes of a GatewaySecret that remove CAs which many clients use.
fn changes_of_specs(ca: &Identity, object: &Value) -> Vec<Trial> {
    let kind = json!({"group": "trustspan.dev", "version": "v1alpha1", "kind": "GatewaySecret"});
    let mut object = object.clone();
    let own = Certificate::parse(&ca.der).expect("a CA");
    let others: Vec<_> = many(&POOL.cas[6], false)
        .split_inclusive("-----END CERTIFICATE-----\n")
        .take(700)
        .flat_map(|text| bundle::read(text.as_bytes()).into_certificates())
        .collect();
    let mut trials = Vec::new();
    for (label, bundle) in [
        ("a few CAs", vec![anchor(&own), anchor(&Certificate::parse(&POOL.cas[10].der).expect("a CA"))]),
        ("hundreds of CAs", std::iter::once(&own).chain(&others).map(anchor).collect()),
    ] {
        object["status"]["bundle"] = json!(bundle);
        let registry = registry(&object);
        let changed = |spec: &str, value: Value| {
            let mut changed = object.clone();
            changed["spec"][spec] = value;
            changed
        };
        let distrusted = changed("distrustedCAs", json!([own.fingerprint]));
        let thousands: Value = (0..15_000).map(|n| json!(format!("{n:064x}"))).collect();
        for (what, new) in [
            ("copied", changed("mode", json!("Copy"))),
            ("distrusted", distrusted),
            ("distrusted by the thousand", changed("distrustedCAs", thousands)),
        ] {
            trials.extend(both(&format!("clients of {label}, {what}"), &body(kind.clone(), &new, &object), &registry));
        }
    }
    let windows = |from: usize| -> Value {
        let one = |n: usize| json!({"from": "00:00", "to": "01:00", "timeZone": format!("x{n:05}")});
        (from..from + 20_000).map(one).collect()
    };
    let [new, old] = [10_000, 50_000].map(|from| {
        json!({
            "apiVersion": "trustspan.dev/v1alpha1", "kind": "RotationPolicy",
            "metadata": {"namespace": "istio-system", "name": "default"}, "spec": {"changeWindows": windows(from)},
        })
    });
    let kind = json!({"group": "trustspan.dev", "version": "v1alpha1", "kind": "RotationPolicy"});
    trials.extend(both("windows of no time zone", &body(kind, &new, &old), &registry(&object)));
    trials
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn workloads_with_items() {
    let mut object = claim(&[]);
    object["spec"]["clients"]["caSecretRef"] = json!({"name": "clients"});
    let registry = registry(&object);
    let kind = json!({"group": "apps", "version": "v1", "kind": "Deployment"});
    let pod = |items: usize, mounts: usize, volumes: usize| {
        let items: Value = (0..items).map(|n| json!({"key": format!("{n}"), "path": "a"})).collect();
        let secret = json!({"secretName": "public-gateway", "items": items});
        let volumes: Value = (0..volumes).map(|_| json!({"name": "v", "secret": secret})).collect();
        let mounts: Value = (0..mounts).map(|_| json!({"name": "v"})).collect();
        json!({"metadata": {"namespace": "istio-system", "name": "a"},
            "spec": {"template": {"spec": {"containers": [{"volumeMounts": mounts}], "volumes": volumes}}}})
    };
    let mut trials = Vec::new();
    for (items, mounts, volumes) in [(12_000, 9_000, 1), (100, 9_000, 60), (12_000, 1, 1), (10, 100, 100)] {
        let label = format!("{items} items in {volumes} volume(s), mounted {mounts} times");
        trials.extend(both(&label, &body(kind.clone(), &pod(items, mounts, volumes), &Value::Null), &registry));
    }
    conclude("workloads with items", trials);
}
