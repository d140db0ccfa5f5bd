//! Inputs of a mebibyte, the most that a Secret can hold, that are made to cost time. In release each must be answered
//! within 100 ms of processor time; a debug build takes many times that, and leaves them out.

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
/// No input may take longer.
const MOST: Duration = Duration::from_millis(100);

/// A unit, repeated to fill an input.
fn fill(unit: &str) -> String {
    unit.repeat(SIZE / unit.len())
}

/// What is made of a text, and how long it takes.
struct Trial {
    name: String,
    took: Duration,
}

/// The best of up to five: what the machine does besides is not the input's fault, unless it is far from the line.
/// `TRUSTSPAN_TRIAL` is a part of the names of those to run; the others take no time.
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

/// Prints what took longest, and fails when it took too long.
fn conclude(target: &str, mut trials: Vec<Trial>) {
    trials.sort_by_key(|trial| std::cmp::Reverse(trial.took));
    for Trial { name, took } in trials.iter().take(8) {
        println!("{target}: {took:8.1?} for {SIZE} bytes: {name}");
    }
    let slow: Vec<_> = trials.iter().filter(|trial| trial.took > MOST).map(|trial| trial.name.as_str()).collect();
    assert!(slow.is_empty(), "more than {MOST:?}: {slow:?}");
}
