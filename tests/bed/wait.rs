//! Waiting for a condition: short, growing pauses up to a deadline, never a fixed sleep.

use std::{
    net::TcpListener,
    ops::Range,
    process,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};

/// Waits until `condition` is true. An error of `condition` counts as "not yet" and is reported after the timeout.
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

/// Below the ports that Linux gives to those who ask for none (`ip_local_port_range` begins at 32768): else any connection that is made
/// between the choice of a port and its use could take it.
const PORTS: Range<u16> = 20_000..32_000;

/// A TCP port on loopback that was free a moment ago and that this process has not handed out before, or thousands of ports ago.
pub(crate) fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test runs side by side begin in different places.
    let first = process::id().wrapping_mul(997);
    for _ in PORTS {
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS.len() as u32;
        let port = PORTS.start + number as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port of {PORTS:?} is free on loopback")
}
