//! Coverage-guided fuzzing: libFuzzer changes inputs that reach new code. The cases are those of `tests/fuzz` and of
//! `tests/boringssl`, which make their choices from the bytes of an input.
//!
//! `TRUSTSPAN_TARGET` selects a target; the arguments are those of libFuzzer. `tests/guided/run` runs all targets.

#![no_main]
// This program uses only a part of the shared modules.
#![allow(dead_code)]

#[path = "../../envoy/case.rs"]
mod case;
#[path = "../../fuzz/chain.rs"]
mod chain;
#[path = "../../envoy/chains.rs"]
mod chains;
#[path = "../../envoy/changed.rs"]
mod changed;
#[path = "../../envoy/client.rs"]
mod client;
#[path = "../../envoy/constrained.rs"]
mod constrained;
#[path = "../../fuzz/draw.rs"]
mod draw;
#[path = "../../envoy/expect.rs"]
mod expect;
#[path = "../../envoy/generated.rs"]
mod generated;
#[path = "../../fuzz/json.rs"]
mod json;
#[path = "../../boringssl/src/judge.rs"]
mod judge;
#[path = "../../envoy/lists.rs"]
mod lists;
#[path = "../../fuzz/manifest.rs"]
mod manifest;
#[path = "../../envoy/mutate.rs"]
mod mutate;
#[path = "../../envoy/odd.rs"]
mod odd;
#[path = "../../fuzz/parsed.rs"]
mod parsed;
#[path = "../../fuzz/pem.rs"]
mod pem;
#[path = "../../envoy/pki.rs"]
mod pki;
#[path = "../../fuzz/pool.rs"]
mod pool;
#[path = "../../envoy/proxy.rs"]
mod proxy;
#[path = "../../fuzz/review.rs"]
mod review;
#[path = "../../envoy/run.rs"]
mod run;
#[path = "../../boringssl/src/signed.rs"]
mod signed;
mod testbed;
#[path = "../../envoy/texts.rs"]
mod texts;
#[path = "../../boringssl/src/trial.rs"]
mod trial;
mod verdicts;

use std::{
    env, fs,
    panic::{self, AssertUnwindSafe},
    path::Path,
    process,
    sync::LazyLock,
};

use draw::Draw;
use libfuzzer_sys::fuzz_target;
use pool::POOL;

/// The allocator of the trustspan binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs one input. It panics when it finds an error.
type Case = fn(&mut Draw);

const TARGETS: [(&str, Case); 6] = [
    ("pem", pem::case),
    ("chain", chain::case),
    ("review", review::case),
    ("manifest", manifest::case),
    ("json", parsed::case),
    ("boringssl", verdicts::case),
];

static TARGET: LazyLock<(&str, Case)> = LazyLock::new(|| {
    let name = env::var("TRUSTSPAN_TARGET").unwrap_or_default();
    let target = TARGETS.into_iter().find(|(target, _)| *target == name);
    target.unwrap_or_else(|| panic!("TRUSTSPAN_TARGET={name}: expected one of {:?}", TARGETS.map(|(name, _)| name)))
});

fuzz_target!(
    init: {
        LazyLock::force(&TARGET);
        // What libFuzzer's first input would generate otherwise.
        LazyLock::force(&POOL);
        verdicts::prepare();
        // libfuzzer-sys has set a hook that ends the process before this program can write what the case read.
        drop(panic::take_hook());
    },
    |bytes: &[u8]| try_one(bytes)
);

fn try_one(bytes: &[u8]) {
    let (name, case) = *TARGET;
    testbed::set_input(bytes);
    let mut draw = Draw::new(bytes);
    if panic::catch_unwind(AssertUnwindSafe(|| case(&mut draw))).is_err() {
        let place = Path::new(testbed::ROOT).join("target/guided").join(name);
        fs::create_dir_all(&place).expect("a directory");
        for (name, bytes) in draw.shown() {
            fs::write(place.join(name), bytes).expect("a file");
        }
        eprintln!("what it read is in {}; keys are new in each run", place.display());
        // libFuzzer writes the input.
        process::abort();
    }
}
