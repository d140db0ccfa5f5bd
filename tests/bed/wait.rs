//! Waiting for a condition: short, growing pauses up to a deadline, never a fixed sleep.

use std::{
    collections::BTreeSet,
    net::TcpListener,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};

/// Waits until `condition` is true. An error of `condition` counts as "not yet" and is told when time is up.
pub(crate) fn wait_for(what: &str, limit: Duration, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_for_value(what, limit, || Ok(condition()?.then_some(())))
}

/// Waits until `condition` yields a value, and returns it.
pub(crate) fn wait_for_value<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_millis(10);
    loop {
        let last = match condition() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if Instant::now() >= deadline {
            let late = format!("waited {limit:?} for {what}");
            return Err(match last {
                Some(error) => error.context(late),
                None => anyhow!(late),
            });
        }
        thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(250));
    }
}

/// A TCP port on loopback that was free a moment ago and that this process has not handed out before.
pub(crate) fn free_port() -> Result<u16> {
    static HANDED_OUT: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = TcpListener::bind("127.0.0.1:0").context("binding a port on loopback")?.local_addr()?.port();
        if HANDED_OUT.lock().map_err(|_| anyhow!("a thread panicked while taking a port"))?.insert(port) {
            return Ok(port);
        }
    }
}
