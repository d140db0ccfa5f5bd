//! Fuzzing: no input causes a panic, and every verdict is well formed.
//!
//! `TRUSTSPAN_FUZZ_SECONDS` sets how long each target runs, `TRUSTSPAN_SEED` repeats a run and `TRUSTSPAN_CASE` one of
//! its cases.
//!
//! A case is made from a few hundred bytes: they are either the input itself, or choices among certificates, objects
//! and changes. A seed repeats the choices; keys and signatures are new in each run.

mod chain;
mod draw;
mod hostile;
mod json;
mod manifest;
#[path = "../envoy/mutate.rs"]
mod mutate;
mod parsed;
mod pem;
#[allow(dead_code)] // Envoy's clients need more of it.
#[path = "../envoy/pki.rs"]
mod pki;
mod pool;
mod review;
mod run;
mod testbed;

/// The allocator of the trustspan binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

macro_rules! targets {
    ($($name:ident: $case:path,)*) => {$(
        #[test]
        fn $name() {
            run::seeded(stringify!($name), $case);
        }
    )*};
}

targets! {
    pem_texts: pem::case,
    chains: chain::case,
    reviews: review::case,
    manifests: manifest::case,
    parsed_objects: parsed::case,
}
