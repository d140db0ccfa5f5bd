//! Runs a target with inputs from a seed.

use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use std::{env, fs};

use crate::draw::Draw;
use crate::pool::POOL;
use crate::testbed::RunSeed;

/// Runs one input. It panics when it finds an error.
pub(crate) type Case = fn(&mut Draw);

/// How long each target runs, unless `TRUSTSPAN_FUZZ_SECONDS` is set.
const SHORT: Duration = Duration::from_secs(6);
/// Length of an input in bytes: enough for a few hundred choices.
const INPUT: u64 = 400;

/// Runs `case` on inputs from the run's seed until the time has passed. `TRUSTSPAN_CASE` selects one of them.
pub(crate) fn seeded(target: &str, case: Case) {
    // The pool is generated first, so that the first case does not take longer.
    LazyLock::force(&POOL);
    if let Ok(only) = env::var("TRUSTSPAN_CASE") {
        if let Some(number) = only.strip_prefix(target).and_then(|rest| rest.strip_prefix('-')?.parse().ok()) {
            let before = cpu_time();
            let bytes = try_one(target, number, case);
            println!("{only}: {:.1?} for {bytes} bytes", cpu_time() - before);
        }
        return;
    }
    let (start, time) = (Instant::now(), budget());
    let (mut count, mut worst) = (0, (Duration::ZERO, 0, 0));
    while start.elapsed() < time {
        let before = cpu_time();
        let bytes = try_one(target, count, case);
        worst = worst.max((cpu_time() - before, count, bytes));
        count += 1;
    }
    let (longest, number, bytes) = worst;
    let what = format!("{longest:.1?} for {bytes} bytes ({target}-{number})");
    println!("{target}: {count} cases in {:.1?}, the longest {what}", start.elapsed());
}

/// How long a target runs.
pub(crate) fn budget() -> Duration {
    let Ok(text) = env::var("TRUSTSPAN_FUZZ_SECONDS") else { return SHORT };
    let seconds = text.parse().unwrap_or_else(|_| panic!("TRUSTSPAN_FUZZ_SECONDS={text}: expected a number"));
    Duration::from_secs(seconds)
}

/// The processor time that this thread has used, which does not depend on the load of the machine.
pub(crate) fn cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    Duration::from_nanos(stat.split(' ').next().and_then(|text| text.parse().ok()).expect("a number"))
}

/// Runs one case. Returns the number of bytes that were made of the input.
fn try_one(target: &str, number: u64, case: Case) -> usize {
    let mut seed = RunSeed::of_run(&format!("{target}-{number}"));
    let length = seed.below(INPUT);
    let input: Vec<_> = (0..length).map(|_| seed.below(256) as u8).collect();
    let mut draw = Draw::new(&input);
    if let Err(fault) = panic::catch_unwind(AssertUnwindSafe(|| case(&mut draw))) {
        let place = keep(&format!("{target}-{number}"), &input, draw.shown());
        let seed = RunSeed::number();
        eprintln!(
            "TRUSTSPAN_SEED={seed} TRUSTSPAN_CASE={target}-{number} repeats it; what it read: {}",
            place.display()
        );
        panic::resume_unwind(fault);
    }
    draw.shown().iter().map(|(_, bytes)| bytes.len()).sum()
}

/// Writes an input, and what was made of it, to files. Keys differ in each run, so the input alone may not repeat the
/// failure.
fn keep(name: &str, input: &[u8], shown: &[(String, Vec<u8>)]) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz").join(name);
    fs::create_dir_all(&place).expect("a directory");
    fs::write(place.join("input"), input).expect("a file");
    for (name, bytes) in shown {
        fs::write(place.join(name), bytes).expect("a file");
    }
    place
}
