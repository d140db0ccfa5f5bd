//! Whether there was traffic at every moment: a second without it proves nothing of that second.

use std::fs;

use anyhow::{Result, ensure};

/// What is asked of every run: so many new handshakes a second, in each second.
const RATE: u32 = 100;
/// A machine with less of its time to spare is busy, or taken away by its host: what it could not do in that second is no fault of the traffic's.
const SPARE: f64 = 0.1;
/// Of a run's seconds so many may be short of handshakes on a busy machine. With more of them the run proves too little.
const SHORT: f64 = 1.0 / 3.0;

/// The handshakes of each second.
#[derive(Clone, Default)]
pub(crate) struct Load {
    seconds: Vec<Second>,
    last: Option<Cpu>,
}

/// A second of a run.
#[derive(Clone, Copy, Default)]
struct Second {
    handshakes: u32,
    /// The share of its time that the machine did not use; none where that is not known.
    spare: Option<f64>,
}

/// The machine's time since it started, in ticks.
#[derive(Clone, Copy)]
struct Cpu {
    all: u64,
    idle: u64,
}

impl Load {
    /// A handshake ended in this second.
    pub(crate) fn count(&mut self, second: usize) {
        if self.seconds.len() <= second {
            let (now, before) = (Cpu::read(), self.last);
            let spare = now.zip(before).map(|(now, before)| now.spare_since(before));
            // All seconds since the last look share what it sees.
            let unseen = self.seconds.len().saturating_sub(1);
            self.seconds.resize(second + 1, Second::default());
            self.seconds[unseen..second].iter_mut().for_each(|one| one.spare = spare);
            self.last = now;
        }
        self.seconds[second].handshakes += 1;
    }

    /// All handshakes.
    pub(crate) fn handshakes(&self) -> u32 {
        self.seconds.iter().map(|second| second.handshakes).sum()
    }

    /// Handshakes in the slowest whole second.
    pub(crate) fn slowest(&self) -> u32 {
        self.whole().iter().map(|second| second.handshakes).min().unwrap_or_default()
    }

    /// How many whole seconds had too few.
    pub(crate) fn short(&self) -> usize {
        self.whole().iter().filter(|second| second.is_short()).count()
    }

    /// # Errors
    /// When there were too few handshakes in a second in which the machine had time for more, or in too many seconds.
    pub(crate) fn judge(&self) -> Result<()> {
        for (at, second) in self.whole().iter().enumerate().filter(|(_, second)| second.is_short()) {
            let spare = second.spare.unwrap_or(1.0);
            ensure!(
                spare < SPARE,
                "{} handshakes in second {at}, when the machine had {:.0} % of its time to spare: expected at least {RATE}; \
                 find what held them up",
                second.handshakes,
                spare * 100.0,
            );
        }
        let (short, whole) = (self.short(), self.whole().len());
        let busy = "the machine is too busy for this run to prove anything; run it again on a quiet one";
        let mean = self.whole().iter().map(|second| second.handshakes).sum::<u32>() as usize / whole.max(1);
        ensure!(mean >= RATE as usize, "{mean} handshakes a second: expected at least {RATE}; {busy}");
        ensure!(
            short as f64 <= whole as f64 * SHORT,
            "fewer than {RATE} handshakes in {short} of {whole} seconds; {busy}",
        );
        Ok(())
    }

    /// The last second is not over.
    fn whole(&self) -> &[Second] {
        &self.seconds[..self.seconds.len().saturating_sub(1)]
    }
}

impl Second {
    fn is_short(&self) -> bool {
        self.handshakes < RATE
    }
}

impl Cpu {
    /// The first line of /proc/stat (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal; what follows is counted in
    /// the first two.
    fn read() -> Option<Self> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let ticks: Vec<u64> = text.lines().next()?.split_whitespace().skip(1).flat_map(str::parse).take(8).collect();
        Some(Self { all: ticks.iter().sum(), idle: ticks.get(3)? + ticks.get(4)? })
    }

    fn spare_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.idle.saturating_sub(before.idle) as f64 / all as f64
    }
}
