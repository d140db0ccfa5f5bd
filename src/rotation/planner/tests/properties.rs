//! Over random histories: no connection fails, and each one ends Steady.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::cluster::Cluster;
use super::history::{Event, HARMFUL, HARMLESS};
use crate::seed::Seed;

/// Number of histories of each kind; `TRUSTSPAN_CASES` sets another number, `TRUSTSPAN_CASE` selects one.
/// `TRUSTSPAN_SEED` repeats a run.
const CASES: u64 = 100;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn each_history(kind: &str, events: impl Fn(&mut Seed) -> Vec<Event>) {
    let one = number("TRUSTSPAN_CASE");
    let (first, last) = one.map_or((0, number("TRUSTSPAN_CASES").unwrap_or(CASES)), |case| (case, case + 1));
    let fails = |case: &u64| {
        let lived = catch_unwind(AssertUnwindSafe(|| {
            let mut seed = Seed::of_run(&format!("{kind} {case}"));
            let events = events(&mut seed);
            let mut cluster = Cluster::random(seed);
            cluster.live_through(&events);
            cluster.assert_steady();
        }));
        // The panic has printed what failed.
        lived.is_err()
    };
    let failed: Vec<_> = (first..last).filter(fails).collect();
    let count = last - first;
    assert!(failed.is_empty(), "{} of {count} {kind} histories failed: TRUSTSPAN_CASE={failed:?}", failed.len());
}

fn some(seed: &mut Seed, of: &[Event]) -> Vec<Event> {
    (0..seed.below(6)).map(|_| of[seed.below(of.len() as u64) as usize]).collect()
}

#[test]
fn no_connection_fails_and_every_history_ends_steady() {
    each_history("harmless", |seed| some(seed, &HARMLESS));
}

#[test]
fn ends_steady_after_harm() {
    each_history("harmful", |seed| [some(seed, &HARMLESS), some(seed, &HARMFUL)].concat());
}
