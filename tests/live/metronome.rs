//! Measures whether the machine ran at all: its hypervisor may stop it, and that time counts as idle.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle, sleep},
    time::{Duration, Instant},
};

use crate::shelf::lock;

/// The interval between two wake-ups.
const BEAT: Duration = Duration::from_millis(10);

/// A thread that only wakes up periodically. If it wakes up late, the machine was stopped or overloaded.
pub(crate) struct Metronome {
    beats: Arc<Mutex<Beats>>,
    thread: Option<JoinHandle<()>>,
}

struct Beats {
    last: Instant,
    /// The intervals from when a wake-up was due to when it happened, if that was more than an interval late.
    late: Vec<Range<Instant>>,
    are_over: bool,
}

impl Beats {
    /// The interval since the next wake-up was due, if it is late.
    fn overdue(&self) -> Option<Range<Instant>> {
        let overdue = self.last + BEAT..Instant::now();
        (overdue.start + BEAT < overdue.end).then_some(overdue)
    }

    fn beat(&mut self) {
        self.late.extend(self.overdue());
        self.last = Instant::now();
    }
}

impl Metronome {
    /// Starts the thread.
    pub(crate) fn start() -> Self {
        let beats = Beats { last: Instant::now(), late: Vec::new(), are_over: false };
        let beats = Arc::new(Mutex::new(beats));
        let beating = Arc::clone(&beats);
        let thread = thread::spawn(move || {
            while !lock(&beating).are_over {
                sleep(BEAT);
                lock(&beating).beat();
            }
        });
        Self { beats, thread: Some(thread) }
    }

    /// The intervals in which the machine did not run.
    pub(crate) fn stalls(&self) -> Vec<Range<Instant>> {
        let beats = lock(&self.beats);
        beats.late.iter().cloned().chain(beats.overdue()).collect()
    }
}

impl Drop for Metronome {
    fn drop(&mut self) {
        lock(&self.beats).are_over = true;
        // The thread cannot panic, so its result is ignored.
        self.thread.take().map(JoinHandle::join);
    }
}
