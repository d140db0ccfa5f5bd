//! A search for reviews that take more memory or time: it changes a repeated unit at random, and keeps what is worse.

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::seed::Seed;
use crate::support::Server;
use crate::support::flood::{CALLER, Target, post, update};
use crate::{MIB, started};

/// Bytes of the unit's copies.
const SIZES: [usize; 4] = [300_000, MIB, 3 * MIB, 12 * MIB];
/// Where the copies are: kind, and the object around a list or map.
const PLACES: [(&str, &str); 10] = [
    ("Secret", r#"{"data":{"ca.crt":LIST}}"#),
    ("Secret", r#"{"data":MAP}"#),
    ("Secret", r#"{"stringData":MAP,"metadata":{"annotations":MAP}}"#),
    ("Secret", r#"{"metadata":{"labels":MAP,"ownerReferences":LIST,"managedFields":LIST}}"#),
    ("ConfigMap", r#"{"data":MAP,"binaryData":MAP}"#),
    ("networking.istio.io/Gateway", r#"{"spec":{"selector":{"istio":"ingressgateway"},"servers":LIST}}"#),
    ("apps/Deployment", r#"{"spec":{"template":{"spec":{"volumes":LIST,"containers":LIST}}}}"#),
    ("apps/Deployment", r#"{"spec":{"template":{"metadata":{"annotations":MAP},"spec":MAP}}}"#),
    (
        "trustspan.dev/GatewaySecret",
        r#"{"spec":{"clients":{"namespaces":LIST}},"status":{"leaves":LIST,"bundle":LIST}}"#,
    ),
    ("apiextensions.k8s.io/CustomResourceDefinition", r#"{"spec":{"versions":LIST,"conversion":MAP}}"#),
];
/// Pieces of a unit. All of them are complete values, so that each unit is JSON.
const VALUES: [&str; 18] = [
    "0",
    "\"\"",
    "\"a\"",
    "[]",
    "{}",
    "[0]",
    r#"{"":0}"#,
    r#"{"a":"","b":""}"#,
    "\"\\n\"",
    "\"LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==\"",
    r#"{"tls":{"credentialName":"gateway-root"}}"#,
    r#"{"name":"v","secret":{"secretName":"gateway-root"}}"#,
    r#"{"name":"a","env":[{"valueFrom":{"secretKeyRef":{"name":"gateway-root"}}}]}"#,
    r#"{"name":"a","volumeMounts":[{"name":"v","subPath":"ca.crt"}]}"#,
    r#"{"uid":"a","name":"n","kind":"k","apiVersion":"v"}"#,
    r#"{"name":"v","schema":{"openAPIV3Schema":{}}}"#,
    r#"{"pem":"-----BEGIN CERTIFICATE-----"}"#,
    "1e300",
];

/// A review: what is repeated, where, and how often.
#[derive(Clone, Debug)]
struct Candidate {
    place: usize,
    unit: String,
    size: usize,
    is_update: bool,
}

impl Candidate {
    fn random(seed: &mut Seed) -> Self {
        let mut pick = |count: usize| usize::try_from(seed.below(count as u64)).expect("small");
        let unit = VALUES[pick(VALUES.len())].to_owned();
        Self { place: pick(PLACES.len()), unit, size: SIZES[pick(SIZES.len())], is_update: pick(2) == 0 }
    }

    fn changed(&self, seed: &mut Seed) -> Self {
        let mut pick = |count: usize| usize::try_from(seed.below(count as u64)).expect("small");
        let (mut next, value) = (self.clone(), VALUES[pick(VALUES.len())]);
        match pick(8) {
            0 => next.place = pick(PLACES.len()),
            1 => next.size = SIZES[pick(SIZES.len())],
            2 => next.is_update = !next.is_update,
            3 => next.unit = format!("[{}]", next.unit),
            4 => next.unit = format!("[{},{value}]", next.unit),
            5 => next.unit = format!(r#"{{"a":{},"b":{value}}}"#, next.unit),
            6 => next.unit = format!(r#"{{"":{}}}"#, next.unit),
            _ => next.unit = value.to_owned(),
        }
        if next.unit.len() > 400 {
            next.unit = value.to_owned();
        }
        next
    }

    fn body(&self) -> String {
        let (kind, object) = PLACES[self.place];
        let places = object.matches("LIST").count() + object.matches("MAP").count();
        let count = self.size / places / (self.unit.len() + 8) / if self.is_update { 2 } else { 1 };
        let list = format!("[{}]", vec![self.unit.as_str(); count].join(","));
        let fields: Vec<_> = (0..count).map(|n| format!(r#""{n:x}":{}"#, self.unit)).collect();
        let object = object.replace("LIST", &list).replace("MAP", &format!("{{{}}}", fields.join(",")));
        update(kind, if self.is_update { &object } else { "null" }, &object)
    }
}

/// Searches for some time. False if a review takes more than its share of memory: 64 MiB, its body, and what the allocator keeps.
pub(crate) fn run(time: Duration) -> bool {
    let mut seed = Seed::of_run("hostile reviews");
    println!("search: TRUSTSPAN_SEED={}", Seed::number());
    let server = started();
    let mut worst = [(0.0, Candidate::random(&mut seed)), (0.0, Candidate::random(&mut seed))];
    let (mut count, mut most, mut longest) = (0, 0, Duration::ZERO);
    let start = Instant::now();
    while start.elapsed() < time {
        let goal = count % 2;
        let next = if count % 10 < 2 { Candidate::random(&mut seed) } else { worst[goal].1.changed(&mut seed) };
        let body = next.body();
        let (memory, took) = measured(&server, &body);
        let score = [memory as f64, took.as_secs_f64()][goal];
        count += 1;
        if score > worst[goal].0 {
            let unit: String = next.unit.chars().take(80).collect();
            println!(
                "search: {count:5}: {:4} MiB, {:4} ms for {:5} KiB: {} of {unit}, {}",
                memory / MIB,
                took.as_millis(),
                body.len() / 1024,
                PLACES[next.place].0,
                if next.is_update { "twice" } else { "once" }
            );
            worst[goal] = (score, next);
        }
        (most, longest) = (most.max(memory), longest.max(took));
    }
    println!("search: {count} reviews, at most {} MiB and {} ms", most / MIB, longest.as_millis());
    most < 128 * MIB
}

/// Posts a review to both webhooks: the most memory that the server took in addition to what it had, and the longest time.
fn measured(server: &Server, body: &str) -> (usize, Duration) {
    let runtime = Runtime::new().expect("a runtime");
    let target = Target::of(server);
    let (mut memory, mut longest) = (0, Duration::ZERO);
    for path in ["/mutate", "/validate-guarded"] {
        server.reset_peak();
        let before = server.memory("VmRSS");
        let took = runtime.block_on(async {
            let mut client = target.client(CALLER).await.expect("a connection");
            let start = Instant::now();
            let status = post(&mut client, path, body.as_bytes()).await.expect("an answer");
            assert!(matches!(status, 200 | 413), "status {status}");
            start.elapsed()
        });
        memory = memory.max(server.memory("VmHWM").saturating_sub(before));
        longest = longest.max(took);
    }
    (memory, longest)
}
