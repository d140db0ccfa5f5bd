//! Checks that there were enough handshakes in every second of a run: a second without traffic proves nothing.

use std::{
    fs,
    ops::Range,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

/// Required number of new handshakes in each second.
const RATE: u32 = 100;
/// The least idle share of a machine that is not busy. In a second with less, too few handshakes are not an error of
/// the test.
const SPARE: f64 = 0.1;
/// The largest share of a run's seconds that may have too few handshakes because the machine was busy. With more, the
/// run proves too little.
const SHORT: f64 = 1.0 / 3.0;

/// Units of /proc/stat in a second, for each processor (USER_HZ; proc(5), time(7)).
const TICKS: f64 = 100.0;

/// The handshakes of each second.
#[derive(Clone, Default)]
pub(crate) struct Load {
    seconds: Vec<Second>,
    last: Option<Sample>,
}

/// The traffic and the load of the machine in one second.
#[derive(Clone, Copy, Default)]
struct Second {
    handshakes: u32,
    /// The share of the second in which the machine did not run at all.
    still: f64,
    /// `None` if it could not be read.
    machine: Option<Shares>,
}

/// Shares of the machine's time.
#[derive(Clone, Copy)]
struct Shares {
    /// Idle time.
    spare: f64,
    /// Time in which processes waited for a disk.
    disk: f64,
    /// Time that the hypervisor took (steal).
    taken: f64,
}

/// The state of the machine at an instant.
#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    cpu: Cpu,
}

/// The machine's time since it started, in ticks of all processors.
#[derive(Clone, Copy)]
struct Cpu {
    processors: f64,
    idle: u64,
    disk: u64,
    busy: u64,
}

impl Load {
    /// Counts a handshake that ended in this second.
    pub(crate) fn count(&mut self, second: usize) {
        if self.seconds.len() <= second {
            let (now, before) = (Cpu::read().map(|cpu| Sample { at: Instant::now(), cpu }), self.last);
            let machine = now.zip(before).map(|(now, before)| now.since(before));
            // All seconds since the last sample get its values.
            let unseen = self.seconds.len().saturating_sub(1);
            self.seconds.resize(second + 1, Second::default());
            self.seconds[unseen..second].iter_mut().for_each(|one| one.machine = machine);
            self.last = now;
        }
        self.seconds[second].handshakes += 1;
    }

    /// Records stalls of the machine, counted from the beginning of the run.
    pub(crate) fn stalled(&mut self, stalls: &[Range<Duration>]) {
        for (at, second) in self.seconds.iter_mut().enumerate() {
            let (from, to) = (Duration::from_secs(at as u64), Duration::from_secs(at as u64 + 1));
            let within = stalls.iter().map(|stall| stall.end.min(to).saturating_sub(stall.start.max(from)));
            second.still = within.sum::<Duration>().as_secs_f64();
        }
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

    /// A line for each complete second with too few handshakes.
    pub(crate) fn summary(&self) -> Vec<String> {
        let short = self.whole().iter().enumerate().filter(|(_, second)| second.is_short());
        short.map(|(at, second)| second.summary(at)).collect()
    }

    /// # Errors
    /// When there were too few handshakes in a second in which the machine was not busy, or in too many seconds.
    pub(crate) fn judge(&self) -> Result<()> {
        for (at, second) in self.whole().iter().enumerate().filter(|(_, second)| second.is_short_of_its_time()) {
            let is_busy = second.machine.is_some_and(|machine| machine.spare + machine.disk < SPARE);
            ensure!(is_busy, "{}: expected at least {RATE}; find what delayed them", second.summary(at));
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

    /// The complete seconds: the last one is still in progress.
    fn whole(&self) -> &[Second] {
        &self.seconds[..self.seconds.len().saturating_sub(1)]
    }
}

impl Second {
    fn is_short(&self) -> bool {
        self.handshakes < RATE
    }

    /// Whether a second has fewer handshakes than required for the time in which the machine ran. Seconds in which it
    /// hardly ran count as sufficient.
    fn is_short_of_its_time(&self) -> bool {
        let ran = 1.0 - self.still;
        ran > SPARE && f64::from(self.handshakes) < f64::from(RATE) * ran
    }

    fn summary(&self, at: usize) -> String {
        let machine = self.machine.map_or("nothing".to_owned(), |Shares { spare, disk, taken }| {
            let [spare, disk, taken] = [spare, disk, taken].map(|share| share * 100.0);
            format!("{spare:.0} % to spare, {disk:.0} % waiting for disks, {taken:.0} % taken by its host")
        });
        let (handshakes, still) = (self.handshakes, self.still * 100.0);
        format!(
            "{handshakes} handshakes in second {at}; the machine stalled for {still:.0} % of it, and counts {machine}"
        )
    }
}

impl Cpu {
    /// The fields of /proc/stat (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal. The further fields
    /// are included in the first two.
    fn read() -> Option<Self> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let mut lines = text.lines();
        let ticks: Vec<u64> = lines.next()?.split_whitespace().skip(1).flat_map(str::parse).take(7).collect();
        let processors = lines.take_while(|line| line.starts_with("cpu")).count() as f64;
        let (idle, disk) = (*ticks.get(3)?, *ticks.get(4)?);
        Some(Self { processors, idle, disk, busy: ticks.iter().sum::<u64>() - idle - disk })
    }
}

impl Sample {
    fn since(self, before: Self) -> Shares {
        let seconds = (self.at - before.at).as_secs_f64().max(f64::EPSILON);
        let all = (seconds * TICKS * self.cpu.processors).max(1.0);
        let share = |of: fn(Cpu) -> u64| of(self.cpu).saturating_sub(of(before.cpu)) as f64 / all;
        let [spare, disk, busy] = [share(|cpu| cpu.idle), share(|cpu| cpu.disk), share(|cpu| cpu.busy)];
        Shares { spare, disk, taken: (1.0 - spare - disk - busy).max(0.0) }
    }
}
