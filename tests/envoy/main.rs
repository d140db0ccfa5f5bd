//! Differential test against the real Envoy: Secrets are loaded into it, clients connect, and the results are compared with trustspan's
//! verdicts on the same bytes. Cases are generated from a seed.
//!
//! `TRUSTSPAN_SEED` repeats a run, `TRUSTSPAN_CASES` sets the number of generated cases, `TRUSTSPAN_CASE` selects one case.
//! A seed repeats the mutations and certificates; keys and signatures are new in each run.

mod advice;
mod algorithms;
mod case;
mod chains;
mod changed;
mod client;
mod constrained;
mod expect;
mod generated;
mod lists;
mod mutate;
mod named;
mod named_bundles;
mod odd;
mod pairs;
mod pki;
mod proxy;
mod run;
mod servers;
mod testbed;
mod texts;
mod upstream;

use std::{
    env,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use case::Case;
use libtest_mimic::{Arguments, Trial};
use pki::{Identity, Keys, Kind, Spec};
use proxy::{Content, Proxy};
use run::Table;
use testbed::Seed;

/// The default number of generated cases.
const CASES: usize = 2_400;

/// A trial: its name, the beginning of its cases' names, its share of the generated cases in percent, and the function that generates a
/// case.
type Make = fn(usize) -> Result<Case>;
const GENERATED: &[(&str, &str, usize, Make)] = &[
    ("mutated_pem", "mutated-", 30, texts::case),
    ("revocation_lists", "lists-", 15, lists::case),
    ("generated_pki", "pki-", 25, generated::case),
    ("serving_pairs", "pair-", 15, pairs::case),
    ("long_chains", "chain-", 5, chains::case),
    ("name_constraints", "constrained-", 5, constrained::case),
    ("changed_elements", "changed-", 5, changed::case),
];

/// The additional share of cases with servers, in percent.
const SERVERS: usize = 5;

/// The Envoy of this run, and the results so far.
struct Bench {
    proxy: Proxy,
    table: Table,
}

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    // All trials use the gateways of one Envoy, in batches, so they do not run at the same time.
    args.test_threads = Some(1);
    testbed::run_trials(
        &args,
        || start().map(Mutex::new),
        trials,
        |bench| {
            let bench = bench.lock().unwrap_or_else(PoisonError::into_inner);
            println!("{}", bench.table.text());
            // A mistyped case name must not count as success.
            let none = "no case was run; TRUSTSPAN_CASE takes a name that a run prints: mutated-7, lists-7, pki-7, pair-7, chain-7, constrained-7, changed-7, server-7";
            ensure!(bench.table.tried() > 0, none);
            Ok(())
        },
    )
}

fn start() -> Result<Bench> {
    let (major, minor) = testbed::envoy_version()?;
    case::set_judge(trustspan::trust::Proxy::envoy(major, minor));
    let mut keys = Keys::shuffled(&mut Seed::of_run("bench"));
    let root = Identity::root(Spec::ca("bench"), keys.of(Kind::P256)?)?;
    let spec = Spec { san: Some("gateway.example".to_owned()), ..Spec::leaf("gateway") };
    let server = root.issue(spec, keys.of(Kind::P256)?)?;
    let trust = Content::Trust { ca: root.pem().into_bytes(), crl: None };
    let pair = Content::Pair { chain: server.pem().into_bytes(), key: server.key.pem().into_bytes() };
    Ok(Bench { proxy: Proxy::start(trust, pair)?, table: Table::default() })
}

fn trials(bench: Option<&Arc<Mutex<Bench>>>) -> Vec<Trial> {
    let trial = |name: &str, make: Box<dyn FnOnce() -> Result<Vec<Case>> + Send>| {
        let bench = bench.cloned();
        let title = name.to_owned();
        Trial::test(name, move || {
            let bench = bench.ok_or("no Envoy")?;
            let mut bench = bench.lock().unwrap_or_else(PoisonError::into_inner);
            let Bench { proxy, table } = &mut *bench;
            attempt(&title, proxy, table, make).map_err(|error| format!("{error:#}").into())
        })
    };
    let named = trial("named_regressions", Box::new(named::cases));
    let generated = GENERATED.iter().map(|(name, start, percent, make)| {
        trial(name, Box::new(move || numbers(start, *percent)?.into_iter().map(make).collect()))
    });
    [named].into_iter().chain(generated).chain([servers(bench)]).collect()
}

/// The trial of servers. Each of its cases has about six.
fn servers(bench: Option<&Arc<Mutex<Bench>>>) -> Trial {
    let bench = bench.cloned();
    Trial::test("server_chains", move || {
        let bench = bench.ok_or("no Envoy")?;
        let mut bench = bench.lock().unwrap_or_else(PoisonError::into_inner);
        let only = env::var("TRUSTSPAN_CASE").ok();
        let tried = count().and_then(|count| servers::run(count * SERVERS / 100, only.as_deref(), &mut bench.table));
        tried.map_err(|error| format!("{error:#}").into())
    })
}

fn attempt(
    title: &str,
    proxy: &mut Proxy,
    table: &mut Table,
    make: Box<dyn FnOnce() -> Result<Vec<Case>> + Send>,
) -> Result<()> {
    let started = Instant::now();
    let mut cases = make()?;
    let made = started.elapsed();
    if let Ok(only) = env::var("TRUSTSPAN_CASE") {
        cases.retain(|case| case.name == only);
    }
    let result = run::run(proxy, table, &cases);
    eprintln!("{title}: {} cases, made in {made:.1?}, tried in {:.1?}", cases.len(), started.elapsed() - made);
    result
}

/// The numbers of a trial's cases: its share of all cases, or the selected case.
fn numbers(start: &str, percent: usize) -> Result<Vec<usize>> {
    Ok(match env::var("TRUSTSPAN_CASE") {
        Ok(only) => only.strip_prefix(start).and_then(|number| number.parse().ok()).into_iter().collect(),
        Err(_) => (0..count()? * percent / 100).collect(),
    })
}

/// The number of cases to generate.
fn count() -> Result<usize> {
    let Ok(text) = env::var("TRUSTSPAN_CASES") else { return Ok(CASES) };
    let count = text.parse().with_context(|| format!("TRUSTSPAN_CASES={text}: expected a number"))?;
    ensure!(count > 0, "TRUSTSPAN_CASES=0: expected at least one");
    Ok(count)
}
