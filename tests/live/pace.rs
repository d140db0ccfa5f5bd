//! Production delays, scaled down by a factor that each run prints.

use std::{env, time::Duration};

use anyhow::{Context, Result, ensure};

use crate::testbed::Seed;

/// One second of a run represents this many seconds in production.
const FACTOR: u32 = 90;

/// The longest time until a process has loaded a changed Secret: the kubelet's sync period of 60 s, its cache, and the
/// process's interval of reading files (Kubernetes docs, "Mounted Secrets are updated automatically").
pub(crate) const KUBELET: Duration = Duration::from_secs(90);
/// Interval at which a job polls for changes.
pub(crate) const POLL: Duration = Duration::from_secs(120);
/// The time after which a script switches the serving certificate. It is long enough for every client that is not late.
pub(crate) const TIMER: Duration = Duration::from_secs(240);

/// The scale of this run.
#[derive(Clone, Copy)]
pub(crate) struct Pace(u32);

impl Pace {
    /// `TRUSTSPAN_LIVE_FACTOR` sets another factor; 1 means production delays.
    pub(crate) fn of_run() -> Result<Self> {
        let Ok(text) = env::var("TRUSTSPAN_LIVE_FACTOR") else { return Ok(Self(FACTOR)) };
        let factor = text.parse().with_context(|| format!("TRUSTSPAN_LIVE_FACTOR={text}: expected a number"))?;
        ensure!(factor > 0, "TRUSTSPAN_LIVE_FACTOR=0: expected at least 1");
        Ok(Self(factor))
    }

    pub(crate) fn factor(self) -> u32 {
        self.0
    }

    /// A production delay in this run.
    pub(crate) fn scaled(self, real: Duration) -> Duration {
        real / self.0
    }

    /// A random delay of at most `real` in production, drawn from `seed`.
    pub(crate) fn delay(self, real: Duration, seed: &mut Seed) -> Duration {
        let most = u64::try_from(self.scaled(real).as_micros()).unwrap_or(u64::MAX - 1);
        Duration::from_micros(seed.below(most + 1))
    }
}
