//! Waits for a condition, with short and growing pauses up to a deadline instead of a fixed sleep.

use std::{
    net::TcpListener,
    ops::Range,
    process,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};

/// Waits until `condition` is true. An error of `condition` counts as false, and is reported if the wait times out.
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

/// Below the ephemeral ports of Linux (`ip_local_port_range` begins at 32768). Otherwise an outgoing connection could
/// take the port before the test binds it.
const PORTS: Range<u16> = 20_000..32_000;

/// A TCP port on loopback that is free now, and that this process has not returned recently.
pub(crate) fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test runs on the same machine start at different ports.
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
