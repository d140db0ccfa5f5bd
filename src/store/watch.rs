//! Watches with backoff.

use std::time::Duration;

use futures::{Stream, TryStreamExt, future};
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};

/// Longest delay between two attempts, and so the longest time until an event is seen after a failure.
const MAX_DELAY: Duration = Duration::from_secs(30);

/// The events of a watch, which is retried with exponential backoff of up to half a minute while it fails.
///
/// [`Event::Init`] is dropped. kube emits it before it sends a request, so it would reset the backoff before each failure. A list that
/// ends with an error must be discarded: the next one starts from its beginning.
pub fn with_backoff<T>(
    events: impl Stream<Item = watcher::Result<Event<T>>>,
) -> impl Stream<Item = watcher::Result<Event<T>>> {
    events.try_filter(|event| future::ready(!matches!(event, Event::Init))).backoff(backoff())
}

/// Exponential delays with jitter, of up to half a minute.
pub(super) fn backoff() -> impl Backoff {
    CappedBackoff(DefaultBackoff::default())
}

/// kube's default backoff with a maximum. Its jitter would otherwise extend the delay to up to a minute.
struct CappedBackoff(DefaultBackoff);

impl Iterator for CappedBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|delay| delay.min(MAX_DELAY))
    }
}

impl Backoff for CappedBackoff {
    fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::{StreamExt, stream};
    use tokio::time::{Instant, timeout};

    use super::*;

    /// kube's events of a watch that fails until an instant.
    fn failing(end: Instant, mut on_attempt: impl FnMut()) -> impl Stream<Item = watcher::Result<Event<()>>> {
        let attempts = stream::repeat_with(move || {
            on_attempt();
            let listed = Instant::now() >= end;
            [Ok(Event::Init), if listed { Ok(Event::InitDone) } else { Err(watcher::Error::NoResourceVersion) }]
        });
        attempts.flat_map(stream::iter)
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_watch_is_not_retried_in_a_tight_loop() {
        let (limit, mut attempts) = (Duration::from_secs(300), 0);
        let events = with_backoff(failing(Instant::now() + limit * 2, || attempts += 1));
        let _ = timeout(limit, events.for_each(|_| future::ready(()))).await;
        assert!((5..40).contains(&attempts), "{attempts} attempts in five minutes");
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_seen_half_a_minute_after_the_last_failure_at_most() {
        let end = Instant::now() + Duration::from_secs(600);
        let mut events = pin!(with_backoff(failing(end, || ())).skip_while(|event| future::ready(event.is_err())));
        assert!(matches!(events.next().await, Some(Ok(Event::InitDone))));
        assert!(end.elapsed() <= MAX_DELAY + Duration::from_millis(1), "{:?} later", end.elapsed());
    }
}
