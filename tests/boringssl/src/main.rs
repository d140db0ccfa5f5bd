//! Differential test against BoringSSL in this process: the cases and the comparison of `tests/envoy`, without sockets.
//! The real Envoy has another revision of BoringSSL, and its verdict counts: `--replay` loads the same bytes into it.
//!
//! `TRUSTSPAN_SEED` repeats a run, `TRUSTSPAN_CASE` selects one case.

// This program uses only a part of the shared modules.
#![allow(dead_code)]

#[path = "../../envoy/advice.rs"]
mod advice;
#[path = "../../envoy/algorithms.rs"]
mod algorithms;
#[path = "../../envoy/case.rs"]
mod case;
#[path = "../../envoy/chains.rs"]
mod chains;
#[path = "../../envoy/changed.rs"]
mod changed;
#[path = "../../envoy/client.rs"]
mod client;
#[path = "../../envoy/constrained.rs"]
mod constrained;
#[path = "../../envoy/expect.rs"]
mod expect;
#[path = "../../envoy/generated.rs"]
mod generated;
mod judge;
#[path = "../../envoy/lists.rs"]
mod lists;
#[path = "../../envoy/mutate.rs"]
mod mutate;
#[path = "../../envoy/named.rs"]
mod named;
#[path = "../../envoy/named_bundles.rs"]
mod named_bundles;
#[path = "../../envoy/odd.rs"]
mod odd;
#[path = "../../envoy/pki.rs"]
mod pki;
#[path = "../../envoy/proxy.rs"]
mod proxy;
#[path = "../../envoy/run.rs"]
mod run;
mod signed;
mod table;
mod testbed;
#[path = "../../envoy/texts.rs"]
mod texts;
mod trial;

use std::{
    env,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use case::{Case, Snapshot};
use client::Outcome;
use jiff::Timestamp;
use judge::Judge;
use pki::Identity;
use proxy::{Content, Proxy, TRUST_SLOTS};
use table::Table;
use testbed::Seed;
use trial::{SORTS, Sort, gateway, trial};

/// The default number of cases.
const CASES: usize = 100_000;
/// One in this many agreements is replayed.
const SAMPLE: usize = 500;
/// Batches of disagreements and of agreements that are replayed.
const BATCHES: usize = 10;

/// Named cases with clients that the real Envoy refuses and this newer BoringSSL accepts: ML-DSA keys, and chains that
/// do not fit into session tickets.
const NEWER: [&str; 5] = ["algorithm-mldsa44", "algorithm-mldsa65", "algorithm-mldsa87", "long-chains", "long-subject"];

fn main() -> ExitCode {
    match start() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<bool> {
    let mut cases = CASES;
    let mut replays = false;
    for argument in env::args().skip(1) {
        match argument.as_str() {
            "--replay" => replays = true,
            number => {
                cases = number.parse().with_context(|| format!("{number}: expected a number of cases, or --replay"))?
            }
        }
    }
    let only = env::var("TRUSTSPAN_CASE").ok();
    let started = Instant::now();
    let gateway = gateway()?;
    let table = Mutex::new(Table::default());
    let next = AtomicUsize::new(0);
    let wanted = wanted(cases, only.as_deref())?;
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| work(&gateway, &wanted, &next, &table))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| bail!("a thread panicked")))
    })?;
    let mut table = table.into_inner().unwrap_or_else(PoisonError::into_inner);
    if only.as_deref().is_none_or(|only| !wanted.iter().any(|(_, number)| only.ends_with(&format!("-{number}")))) {
        let judge = Judge::new(&gateway)?;
        let is_wanted = |case: &Case| match &only {
            Some(only) => case.name == *only,
            None => !NEWER.contains(&case.name.as_str()),
        };
        for case in named::cases()?.into_iter().filter(is_wanted) {
            table.add("named", trial(&judge, case)?, true);
        }
    }
    ensure!(table.tried() > 0, "no case was run; TRUSTSPAN_CASE takes a name that a run prints");
    println!("{}", table.text());
    println!("{} cases on {threads} threads in {:.0?}, seed {}", table.tried(), started.elapsed(), Seed::number());
    if !replays {
        return Ok(table.agrees());
    }
    // The real Envoy decides: this newer BoringSSL rejects some certificates that it accepts.
    let are_all_replayed = table.are_all_replayed();
    Ok(replay(&gateway, table.replays())? == 0 && are_all_replayed)
}

/// The cases of a run, each as its kind and its number.
fn wanted(cases: usize, only: Option<&str>) -> Result<Vec<(Sort, usize)>> {
    if let Some(only) = only {
        let sort = SORTS.into_iter().filter_map(|sort| Some((sort, only.strip_prefix(sort.name)?.strip_prefix('-')?)));
        return Ok(sort.filter_map(|(sort, number)| Some((sort, number.parse().ok()?))).collect());
    }
    ensure!(cases > 0, "expected at least one case");
    // The kinds alternate, so that a run that is stopped has some cases of each kind.
    let count = |sort: Sort| cases * sort.percent / 100;
    let mut all: Vec<_> =
        SORTS.into_iter().flat_map(|sort| (0..count(sort)).map(move |number| (sort, number))).collect();
    all.sort_by_key(|(sort, number)| number * 100 / sort.percent);
    Ok(all)
}

fn work(gateway: &Identity, wanted: &[(Sort, usize)], next: &AtomicUsize, table: &Mutex<Table>) -> Result<()> {
    let judge = Judge::new(gateway)?;
    while let Some((sort, number)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
        let trial = (sort.try_one)(&judge, *number).with_context(|| format!("{}-{number}", sort.name))?;
        table.lock().unwrap_or_else(PoisonError::into_inner).add(sort.name, trial, number % SAMPLE == 0);
    }
    Ok(())
}

/// Loads cases into the real Envoy, with the same bytes, and prints where Envoy differs from trustspan and from
/// BoringSSL in this process. Returns the number of cases in which it differs from trustspan.
fn replay(gateway: &Identity, cases: Vec<(Case, Snapshot)>) -> Result<usize> {
    let trust = Content::Trust { ca: gateway.pem().into_bytes(), crl: None };
    let pair = Content::Pair { chain: gateway.pem().into_bytes(), key: gateway.key.pem().into_bytes() };
    let mut proxy = Proxy::start(trust, pair)?;
    let (mut disagree, mut differ) = (0, 0);
    for batch in cases.chunks(TRUST_SLOTS).take(2 * BATCHES) {
        let tried: Vec<_> = batch.iter().map(|(case, _)| case).collect();
        let envoys = run::attempt(&mut proxy, &tried)?;
        let now = Timestamp::now();
        for ((case, seen), envoy) in batch.iter().zip(&envoys) {
            let result = case.compare(envoy, now);
            if !result.disagreements.is_empty() {
                disagree += 1;
                println!("the real Envoy: {}", run::describe(case, &result)?);
            }
            let passed = |snapshot: &Snapshot| snapshot.outcomes.iter().map(Outcome::passed).collect::<Vec<_>>();
            if seen.update != envoy.update || passed(seen) != passed(envoy) {
                differ += 1;
                println!("{}: BoringSSL here says {}, the real Envoy {}", case.name, describe(seen), describe(envoy));
            }
        }
    }
    println!(
        "{} cases replayed on the real Envoy: it disagrees with trustspan on {disagree}, and with BoringSSL here on {differ}",
        cases.len().min(2 * BATCHES * TRUST_SLOTS)
    );
    Ok(disagree)
}

fn describe(snapshot: &Snapshot) -> String {
    let outcome = |outcome: &Outcome| match outcome {
        Outcome::Passed(_) => "accepted".to_owned(),
        Outcome::Refused(why) => format!("refused ({why})"),
    };
    let outcomes: Vec<_> = snapshot.outcomes.iter().map(outcome).collect();
    format!("{:?} with {}", snapshot.update, outcomes.join(", "))
}
