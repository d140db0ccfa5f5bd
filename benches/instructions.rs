//! Answers one review N times, for `./bench --instructions`, which counts the instructions of one answer with callgrind: `instructions CASE N`.

#[allow(dead_code)]
mod fixtures;

use std::env;

use fixtures::{cas, deployment, gateway, managed, mutated, pair, registry, review, unmanaged, update, validated};

/// That of the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let arguments: Vec<_> = env::args().collect();
    let [_, case, count, ..] = arguments.as_slice() else { return println!("usage: instructions CASE N") };
    let registry = registry(100);
    let seven = cas(7);
    let pair = pair(&seven[0]);
    let secret = |count: usize| managed(&seven[..count], &pair);
    let (is_mutated, body) = match case.as_str() {
        "mutate-gateway" => (true, review(&gateway(0, 4))),
        "mutate-deployment" => (true, review(&deployment(10))),
        "validate-unmanaged" => (false, review(&unmanaged())),
        "validate-1-ca" => (false, review(&secret(1))),
        "validate-7-cas" => (false, review(&secret(7))),
        "validate-update" => (false, update(&secret(6), &secret(7))),
        other => return println!("no such case: {other}"),
    };
    let answered = if is_mutated { mutated } else { validated };
    // What is done once is not counted.
    for _ in 0..10 {
        answered(&body, &registry);
    }
    counted(count.parse().unwrap_or(1), || answered(&body, &registry));
}

/// callgrind counts while this function runs. The certificates, which are made before it, take more or fewer instructions each time.
#[inline(never)]
fn counted(count: usize, answer: impl Fn()) {
    for _ in 0..count {
        answer();
    }
}
