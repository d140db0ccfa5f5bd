//! What trustspan's answers cost in comparison with work that has to be done anyway, and how that grows: ratios, which say about the same on
//! every machine. `cargo bench` prints them.

#[allow(dead_code)]
mod fixtures;

use std::hint::black_box;
use std::time::{Duration, Instant};

use fixtures::{Ca, cas, gateway, managed, mutated, pair, params, pem, registry, review, secret, update, validated};
use jiff::{SignedDuration, Timestamp};
use rcgen::KeyPair;
use serde_json::{Value, json};
use trustspan::admission;
use trustspan::registry::Registry;
use trustspan::store::manifest::{Chunk, Chunks};
use trustspan::trust::{bundle, chain};
use trustspan::webhook::{Limits, review::Review};

/// For each pair.
const TIME: Duration = Duration::from_millis(800);

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

fn json(text: &[u8]) {
    black_box(serde_json::from_slice::<Value>(text).expect("JSON"));
}

fn leaf(ca: &Ca) -> Vec<trustspan::trust::Certificate> {
    let key = KeyPair::generate().expect("a key");
    let pem = params("client").signed_by(&key, &ca.issuer).expect("a leaf").pem();
    bundle::read_chain(pem.as_bytes()).into_certificates()
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
            (object.pointer(), admission::mutate(&review.request("agent"), registry, Timestamp::now()).patch.parse())
        })
        .collect();
    assert!(patches.iter().all(|(_, patch)| !patch.0.is_empty()), "expected each Gateway to be renamed");
    black_box(document.edit(patches.iter().map(|(pointer, patch)| (pointer.as_str(), patch))).expect("an edit"));
}
