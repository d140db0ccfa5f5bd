//! A random generator whose seed is printed, so that a failed run can be repeated.

use std::{
    hash::{BuildHasher, RandomState},
    sync::OnceLock,
};

const USUAL: u64 = 1;

/// A splitmix64 generator (Steele, Lea, Flood 2014).
pub(crate) struct Seed(u64);

impl Seed {
    /// The seed of the run. By default it is the same in each run, so that a failure is due to a change.
    /// `TRUSTSPAN_SEED=random` draws another one, to find failures that no run has had yet; a number repeats the run
    /// with that seed.
    pub(crate) fn number() -> u64 {
        static SEED: OnceLock<u64> = OnceLock::new();
        *SEED.get_or_init(|| {
            let seed = match std::env::var("TRUSTSPAN_SEED").as_deref() {
                Err(_) => USUAL,
                Ok("random") => RandomState::new().hash_one("seed"),
                Ok(number) => number.parse().expect("TRUSTSPAN_SEED: expected a number below 2^64, or random"),
            };
            eprintln!("TRUSTSPAN_SEED={seed}");
            seed
        })
    }

    /// A generator from the run's seed and `purpose`, so that tests do not depend on each other's draws.
    pub(crate) fn of_run(purpose: &str) -> Self {
        let seed = Self::number();
        // FNV-1a, because the standard hasher is not the same in each run.
        let salt = purpose
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self(seed ^ salt)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound` (which is not zero).
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
