//! What happened to the traffic of a run, and at which step of the rotation.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
    io,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use crate::shelf::lock;

/// Who ended a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The gateway refused the client's certificate.
    Gateway,
    /// The client did not trust the gateway's certificate.
    Client,
    /// Anything else, such as a connection that broke.
    Neither,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gateway => "refused by the gateway",
            Self::Client => "refused by the client",
            Self::Neither => "broken",
        })
    }
}

impl Side {
    /// Whose verdict an error is. In TLS 1.3 the gateway's reaches the client only when it reads the answer (RFC 8446,
    /// section 4.4.2.4: as an alert).
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(rustls::Error::AlertReceived(_)) => Self::Gateway,
            Some(rustls::Error::InvalidCertificate(_)) => Self::Client,
            _ => Self::Neither,
        }
    }
}

/// A handshake or request that failed.
pub(crate) struct Failure {
    pub(crate) side: Side,
    pub(crate) client: String,
    pub(crate) load_once: bool,
    /// Certificates and error, for people.
    pub(crate) story: String,
}

/// The record of a run.
pub(crate) struct Journal {
    started: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    step: String,
    /// Handshakes tried in each second.
    seconds: Vec<u32>,
    failures: Vec<(Duration, String, Failure)>,
}

impl Journal {
    /// Begins now.
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), state: Mutex::default() }
    }

    /// The rotation takes a step.
    pub(crate) fn step(&self, step: &str) {
        self.state().step = step.to_owned();
    }

    /// A handshake with its request ended.
    pub(crate) fn ended(&self, failure: Option<Failure>) {
        let at = self.started.elapsed();
        let second = usize::try_from(at.as_secs()).unwrap_or(usize::MAX);
        let mut state = self.state();
        if state.seconds.len() <= second {
            state.seconds.resize(second + 1, 0);
        }
        state.seconds[second] += 1;
        if let Some(failure) = failure {
            let step = state.step.clone();
            state.failures.push((at, step, failure));
        }
    }

    /// How many handshakes have been tried.
    pub(crate) fn handshakes(&self) -> u32 {
        self.state().seconds.iter().sum()
    }

    /// The sum of it.
    pub(crate) fn tally(&self) -> Tally {
        let elapsed = self.started.elapsed();
        let state = self.state();
        let refused = |side| state.failures.iter().filter(|(.., failure)| failure.side == side).count();
        let steps: BTreeSet<_> = state.failures.iter().map(|(_, step, _)| step.clone()).collect();
        // The last second is not over.
        let whole = state.seconds.len().saturating_sub(1);
        Tally {
            handshakes: state.seconds.iter().sum(),
            elapsed,
            slowest: state.seconds[..whole].iter().copied().min().unwrap_or_default(),
            by_gateways: refused(Side::Gateway),
            by_clients: refused(Side::Client),
            broken: refused(Side::Neither),
            load_once_only: state.failures.iter().all(|(.., failure)| failure.load_once),
            steps,
        }
    }

    /// A line for each failure.
    pub(crate) fn failures(&self) -> Vec<String> {
        let line = |(at, step, failure): &(Duration, String, Failure)| {
            let Failure { side, client, story, .. } = failure;
            format!("{:7.3} s, at \"{step}\", {side}: {client} with {story}", at.as_secs_f64())
        };
        self.state().failures.iter().map(line).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// The sum of a run.
pub(crate) struct Tally {
    pub(crate) handshakes: u32,
    elapsed: Duration,
    /// Handshakes in the slowest whole second.
    slowest: u32,
    pub(crate) by_gateways: usize,
    pub(crate) by_clients: usize,
    pub(crate) broken: usize,
    /// No client that reloads has failed.
    pub(crate) load_once_only: bool,
    /// At which steps there were failures.
    steps: BTreeSet<String>,
}

impl Tally {
    /// Handshakes per second.
    pub(crate) fn rate(&self) -> f64 {
        f64::from(self.handshakes) / self.elapsed.as_secs_f64()
    }

    /// The head of the table that [`Display`](fmt::Display) gives lines of.
    pub(crate) fn head() -> String {
        let mut head = format!("{:>10} {:>6} {:>8}", "handshakes", "per s", "slowest");
        let _ = write!(head, " {:>12} {:>12} {:>6}  failing at", "by gateways", "by clients", "broken");
        head
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { handshakes, slowest, by_gateways, by_clients, broken, steps, .. } = self;
        let steps = steps.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let rate = self.rate();
        write!(f, "{handshakes:10} {rate:6.0} {slowest:8} {by_gateways:12} {by_clients:12} {broken:6}  {steps}")
    }
}
