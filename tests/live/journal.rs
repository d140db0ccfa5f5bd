//! Records the traffic of a run: which handshakes failed, and at which step of the rotation.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
    fs::File,
    io::{self, Write as _},
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{load::Load, metronome::Metronome, shelf::lock};

/// In the name of a step, after the name of a gateway: connections to it that break are counted apart.
pub(crate) const DOWN: &str = "is down";

/// The side that ended a handshake.
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
    /// The side that caused an error. In TLS 1.3 a client learns of the gateway's verdict only when it reads the
    /// response (RFC 8446, section 4.4.2.4: as an alert).
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
    pub(crate) host: String,
    /// The certificates and the error, for messages.
    pub(crate) story: String,
}

/// The record of a run.
pub(crate) struct Journal {
    started: Instant,
    /// Each failure is written to this file at once, so that a run that hangs or is killed has reported it.
    log: File,
    metronome: Metronome,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The steps, each with the time at which it began.
    steps: Vec<(Duration, String)>,
    load: Load,
    failures: Vec<Failed>,
}

/// A failure and its time.
struct Failed {
    began: Duration,
    ended: Duration,
    failure: Failure,
}

impl Journal {
    /// Starts a record now.
    pub(crate) fn new(log: File) -> Self {
        Self { started: Instant::now(), log, metronome: Metronome::start(), state: Mutex::default() }
    }

    /// Records a step of the rotation.
    pub(crate) fn step(&self, step: &str) {
        let at = self.started.elapsed();
        let steps = &mut self.state().steps;
        if steps.last().is_none_or(|(_, last)| last != step) {
            steps.push((at, step.to_owned()));
        }
    }

    /// Records a handshake with its request that began at `began` and has ended.
    pub(crate) fn ended(&self, began: Instant, failure: Option<Failure>) {
        let mut state = self.state();
        // The time is taken with the lock held, so that seconds are recorded in order.
        let ended = self.started.elapsed();
        state.load.count(usize::try_from(ended.as_secs()).unwrap_or(usize::MAX));
        if let Some(failure) = failure {
            let began = began.saturating_duration_since(self.started);
            let failed = Failed { began, ended, failure };
            if let Err(error) = writeln!(&self.log, "{}", state.line(&failed)) {
                eprintln!("{}: not in its file: {error}", state.line(&failed));
            }
            state.failures.push(failed);
        }
    }

    /// How many handshakes have been tried.
    pub(crate) fn handshakes(&self) -> u32 {
        self.state().load.handshakes()
    }

    /// The number of handshakes that have failed since an instant, and the time until the last of them.
    pub(crate) fn failed_since(&self, since: Instant) -> (usize, Duration) {
        let since = since.saturating_duration_since(self.started);
        let state = self.state();
        let times: Vec<_> = state.failures.iter().filter_map(|failed| failed.ended.checked_sub(since)).collect();
        (times.len(), times.iter().max().copied().unwrap_or_default())
    }

    /// The sums of the record.
    pub(crate) fn tally(&self) -> AgentMetrics {
        let elapsed = self.started.elapsed();
        let state = self.state();
        let mut load = state.load.clone();
        let since = |at: Instant| at.saturating_duration_since(self.started);
        let stalls: Vec<_> =
            self.metronome.stalls().into_iter().map(|stall| since(stall.start)..since(stall.end)).collect();
        load.stalled(&stalls);
        let mut hosts = BTreeMap::new();
        for failed in &state.failures {
            *hosts.entry(failed.failure.host.clone()).or_default() += 1;
        }
        let is_down = |failed: &&Failed| {
            let gateway = failed.failure.story.split_once(" at ").and_then(|(_, served)| served.split(' ').next());
            failed.failure.side == Side::Neither
                && gateway.is_some_and(|name| state.during(failed).contains(&format!("{name} {DOWN}")))
        };
        let while_down = state.failures.iter().filter(is_down).count();
        let refused = |side| state.failures.iter().filter(|failed| failed.failure.side == side).count();
        AgentMetrics {
            load,
            elapsed,
            by_gateways: refused(Side::Gateway),
            by_clients: refused(Side::Client),
            broken: refused(Side::Neither) - while_down,
            while_down,
            load_once_only: state.failures.iter().all(|failed| failed.failure.load_once),
            steps: state.failures.iter().map(|failed| state.during(failed)).collect(),
            hosts,
        }
    }

    /// A line for each failure.
    pub(crate) fn failures(&self) -> Vec<String> {
        let state = self.state();
        state.failures.iter().map(|failed| state.line(failed)).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// A failure as a line of text.
    fn line(&self, failed: &Failed) -> String {
        let Failure { side, client, host, story, .. } = &failed.failure;
        let (at, steps) = (failed.ended.as_secs_f64(), self.during(failed));
        format!("{at:7.3} s, at \"{steps}\", {side}: {client} for {host} with {story}")
    }

    /// The steps during which a handshake was in progress.
    fn during(&self, failed: &Failed) -> String {
        let ends = self.steps.iter().skip(1).map(|(at, _)| *at).chain([Duration::MAX]);
        let steps = self.steps.iter().zip(ends);
        let met = steps.filter(|((began, _), end)| *began <= failed.ended && failed.began <= *end);
        met.map(|((_, step), _)| step.as_str()).collect::<Vec<_>>().join(" → ")
    }
}

/// The sums of a run.
pub(crate) struct AgentMetrics {
    load: Load,
    elapsed: Duration,
    pub(crate) by_gateways: usize,
    pub(crate) by_clients: usize,
    pub(crate) broken: usize,
    /// The number that broke while a killed gateway was down.
    pub(crate) while_down: usize,
    /// Whether only clients that load once have failed.
    pub(crate) load_once_only: bool,
    /// The steps during which handshakes failed.
    pub(crate) steps: BTreeSet<String>,
    /// The number of failed handshakes, by host.
    #[allow(dead_code, reason = "the live runs ask for one host only")]
    pub(crate) hosts: BTreeMap<String, usize>,
}

impl AgentMetrics {
    /// A line for each second with too little traffic.
    pub(crate) fn short_seconds(&self) -> Vec<String> {
        self.load.summary()
    }

    /// # Errors
    /// When there was too little traffic.
    pub(crate) fn judge_load(&self) -> Result<()> {
        self.load.judge()
    }

    /// The head of the table; [`Display`](fmt::Display) writes its lines.
    pub(crate) fn head() -> String {
        let mut head = format!("{:>10} {:>6} {:>8} {:>6}", "handshakes", "per s", "slowest", "<100/s");
        let _ = write!(head, " {:>12} {:>12} {:>6}  failing at", "by gateways", "by clients", "broken");
        head
    }
}

impl fmt::Display for AgentMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { load, elapsed, by_gateways, by_clients, broken, steps, .. } = self;
        let steps = steps.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let (handshakes, slowest, short) = (load.handshakes(), load.slowest(), load.short());
        let rate = f64::from(handshakes) / elapsed.as_secs_f64();
        write!(
            f,
            "{handshakes:10} {rate:6.0} {slowest:8} {short:6} {by_gateways:12} {by_clients:12} {broken:6}  {steps}"
        )
    }
}
