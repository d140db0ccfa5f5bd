//! Attacks on the webhook's port, while a caller on sixteen connections has to be answered; and a search for reviews that take more memory or time
//! for their bytes than the known ones.
//!
//! `TRUSTSPAN_CONTROL=FILE` attacks another trustspan binary. `TRUSTSPAN_HOSTILE_SECONDS` sets the time of each attack and
//! `TRUSTSPAN_SEARCH_SECONDS` that of the search; `TRUSTSPAN_SEED` repeats a search. An argument selects attacks by a part of their names.

#![allow(clippy::unwrap_used)] // a test may fail

mod search;
#[path = "../bed/seed.rs"]
mod seed;
#[path = "../support/mod.rs"]
mod support;

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use support::Server;
use support::flood::{ATTACKER, Attack, CALLER, abandons, attacked, filled, honest, keys, posts, slow, update};

const MIB: usize = 1 << 20;
/// What must hold during each attack.
const PEAK: usize = 256 * MIB;
const P99: Duration = Duration::from_millis(500);

/// A number from an environment variable.
fn seconds(name: &str, default: u64) -> Duration {
    let text = env::var(name).ok();
    Duration::from_secs(
        text.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: no number"))),
    )
}

/// Reviews that take much memory or time.
fn bodies() -> Vec<(&'static str, String)> {
    let names = |count: usize| {
        let server = r#"{"tls":{"credentialName":"gateway-root"}}"#;
        format!(
            r#"{{"spec":{{"selector":{{"istio":"ingressgateway"}},"servers":[{}]}}}}"#,
            vec![server; count].join(",")
        )
    };
    let text = |bytes: usize| format!(r#"{{"data":{{"ca.crt":"{}"}}}}"#, "A".repeat(bytes));
    let levels = format!("{}0{}", r#"{"":"#.repeat(100), "}".repeat(100)) + ",";
    vec![
        ("maps in a list", filled(r#"{"":0},"#, 18 * MIB)),
        ("maps with lists", filled(r#"{"":[0]},"#, 18 * MIB)),
        ("7 MiB of maps with lists", filled(r#"{"":[0]},"#, 7 * MIB - 1024)),
        ("maps as large as the limit allows", filled(r#"{"":0},"#, MIB)),
        ("maps in maps", filled(&levels, 18 * MIB)),
        ("numbers", filled("0,", 18 * MIB)),
        ("a Secret of 174,762 keys, twice", update("Secret", &keys(), &keys())),
        ("a text of 18 MiB", update("Secret", "null", &text(18 * MIB))),
        ("a text of 2 MiB, twice", update("Secret", &text(2 * MIB), &text(2 * MIB))),
        ("escapes", update("Secret", "null", &format!(r#"{{"data":{{"ca.crt":"\n{}"}}}}"#, "A".repeat(18 * MIB)))),
        ("references of a Gateway", update("networking.istio.io/Gateway", "null", &names(400_000))),
        ("as many references as the limit allows", update("networking.istio.io/Gateway", "null", &names(50_000))),
    ]
}

fn attacks() -> Vec<Attack> {
    let mut all = slow(1100);
    for (name, body) in bodies() {
        all.push(posts(format!("two posts: {name}"), 2, "/mutate", body.clone()));
        all.push(posts(format!("twenty posts: {name}"), 20, "/validate-guarded", body));
    }
    let large = filled(r#"{"":[0]},"#, 16 * MIB);
    all.push(abandons("posts without waiting", 20, "/mutate", large));
    all.push(abandons("small posts without waiting", 50, "/mutate", filled(r#"{"":[0]},"#, 100_000)));
    all.push(posts("small posts", 100, "/validate-guarded", filled(r#"{"":[0]},"#, 100_000)));
    all
}

fn main() -> ExitCode {
    let filter = env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let (time, honest) = (seconds("TRUSTSPAN_HOSTILE_SECONDS", 5), honest());
    let (mut passed, mut failed) = (0, 0);
    println!("{:60} {:>7} {:>7} {:>8} {:>8} {:>8} {:>9}", "attack", "good", "refused", "p50", "p99", "max", "peak RSS");
    for attack in attacks().iter().filter(|attack| attack.name.contains(&filter)) {
        for (how, from) in [("another address", ATTACKER), ("the same address", CALLER)] {
            let server = started();
            let seen = attacked(&server, attack, from, time, &honest);
            let holds = seen.refused.is_empty() && seen.percentile(99) < P99 && seen.peak < PEAK;
            if holds {
                passed += 1
            } else {
                failed += 1
            };
            println!(
                "{:60} {:>7} {:>7} {:>5} ms {:>5} ms {:>5} ms {:>5} MiB{}",
                format!("{}, {how}", attack.name),
                seen.answered.len(),
                seen.refused.len(),
                seen.percentile(50).as_millis(),
                seen.percentile(99).as_millis(),
                seen.percentile(100).as_millis(),
                seen.peak / MIB,
                seen.refused.first().map_or_else(String::new, |first| format!("  {first}")),
            );
        }
    }
    if "search".contains(&filter) {
        if search::run(seconds("TRUSTSPAN_SEARCH_SECONDS", 60)) {
            passed += 1
        } else {
            failed += 1
        };
    }
    println!("test result: {}. {passed} passed; {failed} failed; 0 ignored", if failed == 0 { "ok" } else { "FAILED" });
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A server with the GatewaySecret of the example.
fn started() -> Server {
    Server::start_with(&["manifests/example/gatewaysecret.yaml"], &[])
}
