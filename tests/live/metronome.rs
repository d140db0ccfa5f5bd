//! Whether the machine ran at all: its host may stall it, and it counts that time as idle.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle, sleep},
    time::{Duration, Instant},
};

use crate::shelf::lock;

/// Between two beats.
const BEAT: Duration = Duration::from_millis(10);

/// A thread that wants nothing but to wake up in time. What is late for it is late for everybody.
pub(crate) struct Metronome {
    beats: Arc<Mutex<Beats>>,
    thread: Option<JoinHandle<()>>,
}

struct Beats {
    last: Instant,
    /// From when a beat was due to when it came, of those that came more than a beat late.
    late: Vec<Range<Instant>>,
    are_over: bool,
}

impl Beats {
    /// What the next one is overdue by.
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
    /// Begins to beat.
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

    /// When the machine stalled.
    pub(crate) fn stalls(&self) -> Vec<Range<Instant>> {
        let beats = lock(&self.beats);
        beats.late.iter().cloned().chain(beats.overdue()).collect()
    }
}

impl Drop for Metronome {
    fn drop(&mut self) {
        lock(&self.beats).are_over = true;
        // It cannot panic.
        self.thread.take().map(JoinHandle::join);
    }
}
