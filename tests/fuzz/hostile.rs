//! Inputs of a mebibyte, the most that a Secret can hold, that are made to take long. In a release build each must be
//! judged within 100 ms of processor time. A debug build takes many times as long, and skips them.

use std::time::Duration;

use crate::run::cpu_time;

mod bundles;
mod certificates;
mod crafted;
mod gateway_secrets;
mod keys;
mod manifests;
mod names;
mod reviews;
mod structures;

/// Bytes of an input.
const SIZE: usize = 1 << 20;
/// The longest time that an input may take.
const MOST: Duration = Duration::from_millis(100);

/// A unit, repeated to fill an input.
fn fill(unit: &str) -> String {
    unit.repeat(SIZE / unit.len())
}

/// A measured input: its name, and the processor time of the verdict on it.
struct Trial {
    name: String,
    took: Duration,
}

/// Measures an input: the shortest of up to five times, since other processes can only add to it. `TRUSTSPAN_TRIAL`
/// selects trials by a part of their names; the others are skipped.
fn trial(name: impl Into<String>, mut answer: impl FnMut()) -> Trial {
    let name = name.into();
    if std::env::var("TRUSTSPAN_TRIAL").is_ok_and(|part| !name.contains(&part)) {
        return Trial { name, took: Duration::ZERO };
    }
    let mut took = Duration::MAX;
    for _ in 0..5 {
        let before = cpu_time();
        answer();
        took = took.min(cpu_time() - before);
        if took < MOST / 2 || took > MOST * 5 {
            break;
        }
    }
    if took > MOST {
        println!("{took:8.1?} {name}");
    }
    Trial { name, took }
}

/// Prints the slowest trials, and fails if one took too long.
fn conclude(target: &str, mut trials: Vec<Trial>) {
    trials.sort_by_key(|trial| std::cmp::Reverse(trial.took));
    for Trial { name, took } in trials.iter().take(8) {
        println!("{target}: {took:8.1?} for {SIZE} bytes: {name}");
    }
    let slow: Vec<_> = trials.iter().filter(|trial| trial.took > MOST).map(|trial| trial.name.as_str()).collect();
    assert!(slow.is_empty(), "more than {MOST:?}: {slow:?}");
}
