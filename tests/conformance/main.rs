//! Conformance lists: the public suites BetterTLS and x509-limbo, judged by trustspan and by the real Envoy. Run by `./test conformance`.
//!
//! A suite says which chains are valid, mostly by RFC 5280 and the rules of the Web PKI. trustspan says which chains Envoy accepts, so
//! their verdicts differ. `bettertls.txt` and `limbo.txt` have each difference with its reason: one that is not listed fails the run,
//! and so does a listed one that is gone. trustspan never accepts what Envoy refuses.
//!
//! `TRUSTSPAN_LIMBO` names a checkout of x509-limbo; without it only BetterTLS is judged.

mod bettertls;
mod case;
#[allow(dead_code, reason = "the comparison with generated Secrets uses more of it")]
#[path = "../envoy/client.rs"]
mod client;
mod limbo;
mod list;
mod replay;
mod table;
mod testbed;
#[path = "../envoy/upstream.rs"]
mod upstream;

use std::{env, path::PathBuf, process::ExitCode};

use anyhow::{Result, ensure};
use case::{ACCEPTED, Case, Suite};
use jiff::Timestamp;
use libtest_mimic::{Arguments, Trial};
use list::{Divergence, EnvoyVerdict};
use table::Table;

/// Where the suite is, and its revision that the list was made for.
const LIMBO: &str =
    "git clone https://github.com/C2SP/x509-limbo, check out 8a2e6f4, and set TRUSTSPAN_LIMBO to its folder";

/// Verdicts that do not hold at another date.
const DATES: &[&str] = &["expired", "not-yet-valid", "crl-outdated"];

/// Reasons for which trustspan may refuse a chain that Envoy accepts: `docs/envoy-differences.md` says why.
const CAUTIOUS: &[&str] = &["policy", "signature-algorithm", "host", "leaf-key"];

fn main() -> ExitCode {
    // One suite at a time, since tables are printed and Envoy uses both processors.
    let args = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let trial = |name: &str, run: Box<dyn FnOnce() -> Result<()> + Send>| {
        Trial::test(name, move || run().map_err(|error| format!("{error:#}").into()))
    };
    let bettertls = || check("BetterTLS", &bettertls::suite()?, include_str!("bettertls.txt"));
    let mut trials = vec![
        trial("a_list_lacks_nothing_and_has_nothing_else", Box::new(list::finds_differences)),
        trial("verdicts_on_bettertls_differ_only_as_listed", Box::new(bettertls)),
    ];
    match env::var_os("TRUSTSPAN_LIMBO").map(PathBuf::from) {
        Some(checkout) => {
            let limbo = move || check("x509-limbo", &limbo::suite(&checkout)?, include_str!("limbo.txt"));
            trials.push(trial("verdicts_on_limbo_differ_only_as_listed", Box::new(limbo)));
        }
        None => println!("x509-limbo is not judged: {LIMBO}"),
    }
    libtest_mimic::run(&args, trials).exit_code()
}

/// Judges a suite, prints the table, and fails with the verdicts that should not be.
fn check(title: &str, suite: &Suite, list: &str) -> Result<()> {
    let refusals = replay::refusals(&suite.cases)?;
    let (mut table, now) = (Table::default(), Timestamp::now());
    let (mut divergences, mut faults) = (Vec::new(), Vec::new());
    for (case, refusal) in suite.cases.iter().zip(&refusals) {
        let (verdict, envoy) = verdicts(case, refusal.is_none(), now);
        table.add(case.is_valid, verdict, envoy);
        match (envoy, refusal) {
            (EnvoyVerdict::Refuses, Some(why)) => {
                faults.push(format!("{}: accepted, but Envoy refuses it: {why}", case.id))
            }
            (EnvoyVerdict::Accepts, _) if !CAUTIOUS.contains(&verdict) => {
                faults.push(format!("{}: {verdict}, but Envoy accepts it", case.id));
            }
            _ => {}
        }
        if case.is_valid != (verdict == ACCEPTED) {
            divergences.push(Divergence { id: &case.id, verdict, envoy });
        }
    }
    println!("\n{title}\n{table}");
    for (reason, count) in &suite.skipped {
        println!("{count:>8}  skipped: {reason}");
    }
    faults.extend(list::differences(list, &divergences)?);
    ensure!(faults.is_empty(), "{title}:\n{}", faults.join("\n"));
    Ok(())
}

/// trustspan's verdict, and what Envoy does, which can only be asked now.
fn verdicts(case: &Case, is_accepted: bool, now: Timestamp) -> (&'static str, EnvoyVerdict) {
    let current = case.verdict(now);
    let envoy = match (current == ACCEPTED, is_accepted) {
        (true, false) => EnvoyVerdict::Refuses,
        (false, true) => EnvoyVerdict::Accepts,
        _ => EnvoyVerdict::Agrees,
    };
    let Some(at) = case.at else { return (current, envoy) };
    let verdict = case.verdict(at);
    let is_same = verdict == current && !DATES.contains(&verdict);
    (verdict, if envoy == EnvoyVerdict::Agrees && !is_same { EnvoyVerdict::Unknown } else { envoy })
}
