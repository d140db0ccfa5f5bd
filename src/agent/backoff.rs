//! How long to rest after a look that failed, and what may end such a rest early. Whatever the cause, a look that goes on failing
//! must not keep the API server busy.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::reconcile_trigger::Known;
use crate::registry::Entry;

/// The first rest of a [`Backoff`].
const FIRST: Duration = Duration::from_secs(2);

/// Looks that failed one after the other.
#[derive(Debug, Default)]
pub(super) struct Retry {
    last: Option<Duration>,
}

impl Retry {
    /// The rest after one more failure: twice the last one, at least `first`, and `most` at the longest.
    pub(super) fn rest(&mut self, first: Duration, most: Duration) -> Duration {
        let rest = self.last.map_or(first, |last| first.max(last.saturating_mul(2))).min(most);
        self.last = Some(rest);
        rest
    }
}

/// When something that failed is tried again, beside looks that go on meanwhile.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    retry: Retry,
    due: Option<Instant>,
}

impl Backoff {
    /// Whether nothing failed since the last success.
    pub(super) fn is_first(&self) -> bool {
        self.due.is_none()
    }

    /// It failed: the next try follows after a rest, `most` at the longest.
    pub(super) fn failed(&mut self, now: Instant, most: Duration) {
        self.due = Some(now + self.retry.rest(FIRST, most));
    }

    /// How long the next try has to wait; `None` when it is due.
    pub(super) fn rest(&self, now: Instant) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(now)).filter(|rest| !rest.is_zero())
    }
}

/// Until a GatewaySecret changes; after a look at it that failed, until it asks for something else.
///
/// # Errors
/// When nobody tells of it any more.
pub(super) async fn changed(
    known: &mut watch::Receiver<Known>,
    failed: Option<&Entry>,
) -> Result<(), watch::error::RecvError> {
    loop {
        known.changed().await?;
        let now = &known.borrow_and_update().entry;
        if failed.is_none_or(|failed| !asks_the_same(failed, now)) {
            return Ok(());
        }
    }
}

/// Whether a GatewaySecret asks for the same as before: only its status differs, which a look that fails writes itself.
fn asks_the_same(before: &Entry, now: &Entry) -> bool {
    // The API server counts the generation up with each change of the spec (Kubernetes, "API Conventions": Metadata).
    before.uid == now.uid && before.generation == now.generation && before.being_deleted == now.being_deleted
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::api::Phase;
    use crate::registry::tests::entry;

    const MOST: Duration = Duration::from_secs(30);

    #[test]
    fn a_rest_doubles_up_to_the_longest() {
        let mut retry = Retry::default();
        let rests: Vec<_> = (0..7).map(|_| retry.rest(FIRST, MOST).as_secs()).collect();
        assert_eq!(rests, [2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(Retry::default().rest(FIRST, MOST), FIRST, "after a look that did not fail");
        assert_eq!(Retry::default().rest(FIRST, Duration::from_secs(1)), Duration::from_secs(1));
    }

    #[test]
    fn a_failure_that_is_soon_over_does_not_shorten_the_rest_of_another() {
        let soon = Duration::from_millis(20);
        let mut retry = Retry::default();
        let rests = [soon, soon, FIRST, soon].map(|first| retry.rest(first, MOST).as_millis());
        assert_eq!(rests, [20, 40, 2000, 4000]);
    }

    #[test]
    fn a_write_that_fails_is_due_again_after_ever_longer_rests() {
        let (start, mut backoff) = (Instant::now(), Backoff::default());
        assert!(backoff.is_first() && backoff.rest(start).is_none());
        for seconds in [2, 4, 8] {
            let rest = Duration::from_secs(seconds);
            backoff.failed(start, MOST);
            assert_eq!(backoff.rest(start), Some(rest));
            assert_eq!((backoff.rest(start + rest), backoff.is_first()), (None, false));
        }
    }

    #[test]
    fn accepts_a_new_spec_and_rejects_a_new_status_as_a_reason_to_look_again() {
        let before = Entry { generation: Some(1), ..entry("mesh", "root", "gw") };
        let mut told = before.clone();
        told.status.phase = Some(Phase::Converged);
        let ends_a_rest = |failed: bool, now: &Entry| {
            let known = |entry: &Entry| Known { entry: entry.clone(), is_held_off: false };
            let (sender, mut receiver) = watch::channel(known(&before));
            sender.send_replace(known(now));
            changed(&mut receiver, failed.then_some(&before)).now_or_never().is_some()
        };
        assert!(ends_a_rest(false, &told), "nothing failed");
        assert!(!ends_a_rest(true, &told));
        assert!(ends_a_rest(true, &Entry { generation: Some(2), ..before.clone() }));
        assert!(ends_a_rest(true, &Entry { uid: Some("another".to_owned()), ..before.clone() }));
        assert!(ends_a_rest(true, &Entry { being_deleted: true, ..before.clone() }));
    }
}
