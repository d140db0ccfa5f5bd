//! Watches that go on for good.

use std::time::Duration;

use futures::{Stream, TryStreamExt, future};
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};

/// The longest rest between two tries: so long what has come may wait to be seen.
const MOST: Duration = Duration::from_secs(30);

/// The events of a watch, which is tried again at growing intervals, of up to half a minute, while it fails.
///
/// [`Event::Init`] is left out: it is said before the API server was asked, each time when that then fails, and would make tries
/// follow each other as if there had been no failure. What was listed before an error counts no more after it.
pub fn with_backoff<T>(
    events: impl Stream<Item = watcher::Result<Event<T>>>,
) -> impl Stream<Item = watcher::Result<Event<T>>> {
    events.try_filter(|event| future::ready(!matches!(event, Event::Init))).backoff(Rests(DefaultBackoff::default()))
}

/// kube's rests, which chance makes up to a minute long.
struct Rests(DefaultBackoff);

impl Iterator for Rests {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|rest| rest.min(MOST))
    }
}

impl Backoff for Rests {
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

    /// A watch that fails for so long: what kube says of it.
    fn failing(end: Instant, mut each: impl FnMut()) -> impl Stream<Item = watcher::Result<Event<()>>> {
        let tries = stream::repeat_with(move || {
            each();
            let listed = Instant::now() >= end;
            [Ok(Event::Init), if listed { Ok(Event::InitDone) } else { Err(watcher::Error::NoResourceVersion) }]
        });
        tries.flat_map(stream::iter)
    }

    #[tokio::test(start_paused = true)]
    async fn rejects_to_try_again_and_again_at_once() {
        let (minutes, mut tries) = (Duration::from_secs(300), 0);
        let events = with_backoff(failing(Instant::now() + minutes * 2, || tries += 1));
        let _ = timeout(minutes, events.for_each(|_| future::ready(()))).await;
        assert!((5..40).contains(&tries), "{tries} tries in five minutes");
    }

    #[tokio::test(start_paused = true)]
    async fn accepts_what_comes_at_last_half_a_minute_later_at_most() {
        let end = Instant::now() + Duration::from_secs(600);
        let mut events = pin!(with_backoff(failing(end, || ())).skip_while(|event| future::ready(event.is_err())));
        assert!(matches!(events.next().await, Some(Ok(Event::InitDone))));
        assert!(end.elapsed() <= MOST + Duration::from_millis(1), "{:?} later", end.elapsed());
    }
}
