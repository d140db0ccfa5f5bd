//! Attempts that follow each other ever more slowly.

use std::time::Duration;

use tokio::time::Instant;

/// Delay after the first failure, doubled after each further one; and before the next try of a round.
pub(super) const FIRST_DELAY: Duration = Duration::from_secs(2);
/// The longest such delay.
const MAX_DELAY: Duration = Duration::from_secs(300);

/// Failed attempts at one thing.
#[derive(Default)]
pub(super) struct Attempts {
    failures: u32,
    pub(super) retry_at: Option<Instant>,
}

impl Attempts {
    pub(super) fn is_due(&self) -> bool {
        self.retry_at.is_none_or(|at| at <= Instant::now())
    }

    pub(super) fn record_failure(&mut self) {
        let delay = FIRST_DELAY.saturating_mul(1 << self.failures.min(8)).min(MAX_DELAY);
        self.failures += 1;
        self.retry_at = Some(Instant::now() + delay);
    }
}
