//! What trustspan's answers cost in comparison with work that has to be done anyway, and how that grows: ratios, which say about the same on
//! every machine. `cargo bench` prints them.

use std::hint::black_box;
use std::time::{Duration, Instant};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use trustspan::admission::{self, Decision, Request};
use trustspan::registry::Registry;
use trustspan::store::directory::entry;
use trustspan::store::manifest::{Chunk, Chunks};
use trustspan::trust::{Severities, bundle, chain};
use trustspan::webhook::{Limits, response::answer, review::Review};

/// For each pair.
const TIME: Duration = Duration::from_millis(800);
const NAMESPACE: &str = "istio-system";

fn main() {
    println!("{:>7}  {:>17}  what", "ratio", "9 of 10 within");
    let (one, many) = (registry(1), registry(1000));
    let gateway = review(&gateway(0, 20));
    let secret = review(&secret(&cas(2)));
    compare(
        "a review of a Gateway of 20 servers, mutated : its JSON read",
        || mutated(&gateway, &one),
        || json(&gateway),
    );
    compare("the same among 1,000 GatewaySecrets : with one", || mutated(&gateway, &many), || mutated(&gateway, &one));
    compare(
        "a review of a Secret of two CAs, validated : its JSON read",
        || validated(&secret, &one),
        || json(&secret),
    );

    let seven = cas(7);
    let pair = pair(&seven[0]);
    let update = update(&managed(&seven[1..], &pair), &managed(&seven, &pair));
    compare(
        "an update of a managed Secret to seven CAs, validated : its JSON read",
        || validated(&update, &one),
        || json(&update),
    );

    let hundreds = cas(200);
    let few = &hundreds[..20];
    let (small, large) = (review(&self::secret(few)), review(&self::secret(&hundreds)));
    compare("a Secret of 200 CAs validated : one of 20", || validated(&large, &one), || validated(&small, &one));
    let (leaf, few, hundreds) = (leaf(&few[0]), read(few), read(&hundreds));
    compare(
        "a client's chain verified among 200 CAs : among 20",
        || verified(&hundreds, &leaf),
        || verified(&few, &leaf),
    );

    let (list, long) = (manifest(100), manifest(1000));
    let yaml = || drop(black_box(serde_saphyr::from_str::<Value>(&list)));
    compare("a List of 100 Gateways read, with places : by serde-saphyr", || parsed(&list), yaml);
    compare("the same rewritten : read", || rewritten(&list, &one), || parsed(&list));
    compare("a List of 1,000 Gateways rewritten : one of 100", || rewritten(&long, &one), || rewritten(&list, &one));
}

/// Prints how many times as long the first takes, tried by turns.
fn compare(what: &str, first: impl Fn(), second: impl Fn()) {
    let took = |work: &dyn Fn()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    let (start, mut ratios) = (Instant::now(), Vec::new());
    while start.elapsed() < TIME || ratios.len() < 11 {
        let (second, first) = (took(&second), took(&first));
        ratios.push(first / second);
    }
    ratios.sort_by(f64::total_cmp);
    let at = |percent: usize| ratios[(ratios.len() - 1) * percent / 100];
    println!("{:7.2}  {:7.2} - {:7.2}  {what}", at(50), at(5), at(95));
}

fn registry(count: usize) -> Registry {
    let now = Timestamp::now();
    let claim = |number: usize| {
        let object = json!({
            "metadata": {"namespace": NAMESPACE, "name": format!("gateway-{number}")},
            "spec": {"sourceSecretName": format!("root-{number}")},
            "status": {"workloadNamespaces": [NAMESPACE], "conditions": [
                {"type": "Ready", "status": "True", "reason": "Sound", "message": "", "lastTransitionTime": now},
            ]},
        });
        entry(&object, NAMESPACE).expect("a GatewaySecret")
    };
    Registry::new((0..count).map(claim))
}

fn gateway(number: usize, servers: usize) -> Value {
    let server = |port: usize| {
        json!({
            "port": {"number": 1000 + port, "name": format!("https-{port}"), "protocol": "HTTPS"},
            "hosts": [format!("host-{port}.example")], "tls": {"mode": "MUTUAL", "credentialName": "root-0"},
        })
    };
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
        "metadata": {"namespace": NAMESPACE, "name": format!("public-{number}")},
        "spec": {"selector": {"istio": "ingressgateway"}, "servers": (0..servers).map(server).collect::<Vec<_>>()},
    })
}

fn secret(cas: &[Ca]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": NAMESPACE, "name": "gateway-0"},
        "data": {"cacert": STANDARD.encode(pem(cas))},
    })
}

/// A managed Secret with a serving pair.
fn managed(cas: &[Ca], (certificate, key): &(String, String)) -> Value {
    let encoded = |text: &str| STANDARD.encode(text);
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"namespace": NAMESPACE, "name": "gateway-0", "labels": {"trustspan.dev/managed": "true"}},
        "data": {"ca.crt": encoded(&pem(cas)), "tls.crt": encoded(certificate), "tls.key": encoded(key)},
    })
}

/// The API server's question about an update of a Secret.
fn update(old: &Value, new: &Value) -> Vec<u8> {
    let mut review: Value = serde_json::from_slice(&review(new)).expect("JSON");
    review["request"]["operation"] = "UPDATE".into();
    review["request"]["oldObject"] = old.clone();
    review.to_string().into_bytes()
}

/// The API server's question about an object that is made.
fn review(object: &Value) -> Vec<u8> {
    let (group, version) = object["apiVersion"].as_str().and_then(|text| text.split_once('/')).unwrap_or(("", "v1"));
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "CREATE", "kind": {"group": group, "version": version, "kind": object["kind"]},
        "namespace": NAMESPACE, "name": object["metadata"]["name"], "userInfo": {"username": "jane"}, "object": object,
    }})
    .to_string()
    .into_bytes()
}

fn json(text: &[u8]) {
    black_box(serde_json::from_slice::<Value>(text).expect("JSON"));
}

fn answered(body: &[u8], decide: impl FnOnce(&Request<'_>) -> Decision) {
    let review = Review::parse(body, Limits::default().review).expect("a review");
    let request = Request { in_guarded_namespace: true, ..review.request("agent") };
    black_box(answer(&review.uid, &decide(&request)).expect("an answer"));
}

fn mutated(body: &[u8], registry: &Registry) {
    answered(body, |request| admission::mutate(request, registry, Timestamp::now()));
}

fn validated(body: &[u8], registry: &Registry) {
    answered(body, |request| admission::validate(request, registry, &Severities::default(), Timestamp::now()));
}

struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new([]).expect("no names");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn cas(count: usize) -> Vec<Ca> {
    let ca = |number: usize| {
        let mut params = params(&format!("CA {number}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a CA").pem();
        Ca { issuer: Issuer::new(params, key), pem }
    };
    (0..count).map(ca).collect()
}

/// A serving certificate and its key, in PEM.
fn pair(ca: &Ca) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(["shop.example.com".to_owned()]).expect("a name");
    params.distinguished_name.push(DnType::CommonName, "gateway");
    (params.signed_by(&key, &ca.issuer).expect("a leaf").pem(), key.serialize_pem())
}

fn leaf(ca: &Ca) -> Vec<trustspan::trust::Certificate> {
    let key = KeyPair::generate().expect("a key");
    let pem = params("client").signed_by(&key, &ca.issuer).expect("a leaf").pem();
    bundle::read_chain(pem.as_bytes()).into_certificates()
}

fn pem(cas: &[Ca]) -> String {
    cas.iter().map(|ca| ca.pem.as_str()).collect()
}

fn read(cas: &[Ca]) -> Vec<trustspan::trust::Certificate> {
    bundle::read(pem(cas).as_bytes()).into_certificates()
}

fn verified(bundle: &[trustspan::trust::Certificate], leaf: &[trustspan::trust::Certificate]) {
    let later = Timestamp::now() + SignedDuration::from_mins(1);
    black_box(chain::verify(bundle, None, leaf, chain::Purpose::Client, later).expect("accepted"));
}

fn manifest(gateways: usize) -> String {
    let items: Vec<_> = (0..gateways).map(|number| gateway(number, 3)).collect();
    serde_saphyr::to_string(&json!({"apiVersion": "v1", "kind": "List", "items": items})).expect("YAML")
}

/// A new one each time: a chunk is parsed once.
fn chunk(text: &str) -> Chunk {
    Chunks::new("list.yaml".into(), text.as_bytes()).next().expect("a document").expect("a text")
}

fn parsed(text: &str) {
    black_box(chunk(text).parse().expect("YAML").expect("an object"));
}

fn rewritten(text: &str, registry: &Registry) {
    let chunk = chunk(text);
    let document = chunk.parse().expect("YAML").expect("an object");
    let patches: Vec<_> = document
        .objects()
        .map(|object| {
            let review = review(&object.value);
            let review = Review::parse(&review, Limits::default().review).expect("a review");
            (object.pointer(), admission::mutate(&review.request("agent"), registry, Timestamp::now()).patch)
        })
        .collect();
    assert!(patches.iter().all(|(_, patch)| !patch.0.is_empty()), "expected each Gateway to be renamed");
    black_box(document.edit(patches.iter().map(|(pointer, patch)| (pointer.as_str(), patch))).expect("an edit"));
}
