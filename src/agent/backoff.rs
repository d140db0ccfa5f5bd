//! Delays after failed reconciles and failed status writes, and which changes end such a delay early.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::reconcile_trigger::ReconcileInput;
use crate::registry::Entry;

/// First delay of a [`Backoff`].
const FIRST_DELAY: Duration = Duration::from_secs(2);

/// Exponential delays of consecutive failures.
#[derive(Debug, Default)]
pub(super) struct Retry {
    last: Option<Duration>,
}

impl Retry {
    /// The delay after another failure: twice the previous one, between `min` and `max`.
    pub(super) fn next_delay(&mut self, min: Duration, max: Duration) -> Duration {
        let delay = self.last.map_or(min, |last| min.max(last.saturating_mul(2))).min(max);
        self.last = Some(delay);
        delay
    }
}

/// The time at which a failed write may be retried. Reconciles before that skip the write.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    retry: Retry,
    due: Option<Instant>,
}

impl Backoff {
    /// Whether the last attempt succeeded.
    pub(super) fn is_reset(&self) -> bool {
        self.due.is_none()
    }

    /// Schedules the next attempt after a failure.
    pub(super) fn record_failure(&mut self, now: Instant, max: Duration) {
        self.due = Some(now + self.retry.next_delay(FIRST_DELAY, max));
    }

    /// Time until the next attempt; `None` when it is due.
    pub(super) fn remaining(&self, now: Instant) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(now)).filter(|delay| !delay.is_zero())
    }
}

/// Waits for a change of a GatewaySecret. After a failed reconcile its status does not count, since that reconcile writes it.
///
/// # Errors
/// When the GatewaySecret is not reconciled any more.
pub(super) async fn wait_for_change(
    input: &mut watch::Receiver<ReconcileInput>,
    failed: Option<&Entry>,
) -> Result<(), watch::error::RecvError> {
    loop {
        input.changed().await?;
        let now = &input.borrow_and_update().entry;
        if failed.is_none_or(|failed| !is_status_change(failed, now)) {
            return Ok(());
        }
    }
}

/// Whether at most the status differs.
fn is_status_change(before: &Entry, now: &Entry) -> bool {
    // The API server increments the generation with each change of the spec (Kubernetes, "API Conventions": Metadata).
    before.uid == now.uid && before.generation == now.generation && before.being_deleted == now.being_deleted
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt;

    use super::*;
    use crate::api::Phase;
    use crate::registry::tests::entry;

    const MAX: Duration = Duration::from_secs(30);

    #[test]
    fn delays_double_up_to_the_maximum() {
        let mut retry = Retry::default();
        let delays: Vec<_> = (0..7).map(|_| retry.next_delay(FIRST_DELAY, MAX).as_secs()).collect();
        assert_eq!(delays, [2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(Retry::default().next_delay(FIRST_DELAY, MAX), FIRST_DELAY, "after a success");
        assert_eq!(Retry::default().next_delay(FIRST_DELAY, Duration::from_secs(1)), Duration::from_secs(1));
    }

    #[test]
    fn a_conflict_does_not_shorten_the_delay_of_other_failures() {
        let soon = Duration::from_millis(20);
        let mut retry = Retry::default();
        let delays = [soon, soon, FIRST_DELAY, soon].map(|first| retry.next_delay(first, MAX).as_millis());
        assert_eq!(delays, [20, 40, 2000, 4000]);
    }

    #[test]
    fn a_failed_write_is_retried_after_growing_delays() {
        let (start, mut backoff) = (Instant::now(), Backoff::default());
        assert!(backoff.is_reset() && backoff.remaining(start).is_none());
        for seconds in [2, 4, 8] {
            let delay = Duration::from_secs(seconds);
            backoff.record_failure(start, MAX);
            assert_eq!(backoff.remaining(start), Some(delay));
            assert_eq!((backoff.remaining(start + delay), backoff.is_reset()), (None, false));
        }
    }

    #[test]
    fn a_new_spec_ends_a_delay_and_a_new_status_does_not() {
        let before = Entry { generation: Some(1), ..entry("mesh", "root", "gw") };
        let mut reported = before.clone();
        reported.status.phase = Some(Phase::Converged);
        let ends_a_delay = |failed: bool, now: &Entry| {
            let input = |entry: &Entry| ReconcileInput { entry: Arc::new(entry.clone()), has_conflict: false };
            let (sender, mut receiver) = watch::channel(input(&before));
            sender.send_replace(input(now));
            wait_for_change(&mut receiver, failed.then_some(&before)).now_or_never().is_some()
        };
        assert!(ends_a_delay(false, &reported), "nothing failed");
        assert!(!ends_a_delay(true, &reported));
        assert!(ends_a_delay(true, &Entry { generation: Some(2), ..before.clone() }));
        assert!(ends_a_delay(true, &Entry { uid: Some("another".to_owned()), ..before.clone() }));
        assert!(ends_a_delay(true, &Entry { being_deleted: true, ..before.clone() }));
    }
}
