//! Readers that load their Secrets some time after each write: connections between them never fail in a staged rotation.

use std::collections::HashMap;

use super::*;
use crate::connectivity::{admits, verifies};

const DELAY: u64 = 180;

/// Random numbers that are the same in each run (Knuth, TAOCP vol. 2, MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from((self.0 >> 33) % end).unwrap()
    }
}

type Content = (Vec<Certificate>, Vec<Certificate>);

/// A process that loads a Secret.
struct Reader {
    secret: &'static str,
    loads_trust_once: bool,
    trust: Vec<Certificate>,
    chain: Vec<Certificate>,
    /// Later contents, each with the time at which it is loaded.
    later: Vec<(Timestamp, Content)>,
}

impl Reader {
    fn start(cluster: &Cluster, secret: &'static str) -> Self {
        let (trust, chain) = cluster.read(secret);
        Self { secret, loads_trust_once: secret == "limiter", trust, chain, later: Vec::new() }
    }

    fn load(&mut self, now: Timestamp) {
        // A reader never returns to earlier content.
        if let Some(at) = self.later.iter().rposition(|(at, _)| *at <= now) {
            let (_, (trust, chain)) = self.later.drain(..=at).next_back().unwrap();
            self.chain = chain;
            if !self.loads_trust_once {
                self.trust = trust;
            }
        }
    }
}

struct Traffic {
    cluster: Cluster,
    readers: Vec<Reader>,
    random: Random,
    /// Verdicts by fingerprint, cached because signatures are slow.
    verdicts: HashMap<Vec<String>, bool>,
    failures: usize,
    connections: usize,
}

impl Traffic {
    fn new(seed: u64) -> Self {
        let cluster = Cluster::installed();
        let readers = SECRETS.iter().map(|secret| Reader::start(&cluster, secret)).collect();
        Self { cluster, readers, random: Random(seed), verdicts: HashMap::new(), failures: 0, connections: 0 }
    }

    fn accepts(&mut self, reader: usize, peer: usize) -> bool {
        let (reader, peer, now) = (&self.readers[reader], &self.readers[peer], self.cluster.now);
        let key = reader.trust.iter().chain(&peer.chain).map(|one| one.fingerprint.clone()).collect();
        let verdict = || verifies(&reader.trust, &peer.chain, now) && admits(&reader.trust, &peer.chain, now);
        *self.verdicts.entry(key).or_insert_with(verdict)
    }

    fn pass(&mut self, seconds: i64) {
        self.cluster.pass(seconds);
        let now = self.cluster.now;
        self.readers.iter_mut().for_each(|reader| reader.load(now));
        for one in 0..self.readers.len() {
            for other in 0..self.readers.len() {
                if self.readers[one].secret != self.readers[other].secret {
                    self.connections += 1;
                    self.failures += usize::from(!self.accepts(one, other));
                }
            }
        }
    }

    fn rotate(&mut self, single_write: bool) {
        let mut options = Options { intent: Intent::Rotate, single_write };
        loop {
            let before = self.cluster.objects.clone();
            match self.cluster.step(options).unwrap() {
                Step::Done(_) => return,
                Step::Write(what) if what.starts_with("restart") => {
                    // The old pod is deleted when the new one is ready.
                    let started = Reader::start(&self.cluster, "limiter");
                    self.readers.push(started);
                    let seconds = self.random.below(5);
                    self.pass(seconds);
                }
                Step::Write(_) => {
                    let mut random = |secret: &str| {
                        let stored = |objects: &Objects| objects.get(ObjectKind::Secret, secret).cloned();
                        let is_changed = stored(&before) != stored(&self.cluster.objects);
                        is_changed.then(|| SignedDuration::from_secs(self.random.below(DELAY + 1)))
                    };
                    for reader in &mut self.readers {
                        if let Some(delay) = random(reader.secret) {
                            let last = reader.later.last().map_or(Timestamp::MIN, |(at, _)| *at);
                            reader.later.push(((self.cluster.now + delay).max(last), self.cluster.read(reader.secret)));
                        }
                    }
                    let seconds = self.random.below(5);
                    self.pass(seconds);
                }
                Step::WaitUntil(until) => {
                    let left = until.duration_since(self.cluster.now).as_secs();
                    self.pass(left.min(7));
                }
                Step::WaitForRollout => {
                    let seconds = self.random.below(30);
                    self.pass(seconds);
                    self.cluster.roll_out();
                    let newest = self.readers.iter().rposition(|reader| reader.secret == "limiter").unwrap();
                    let mut at = 0;
                    self.readers.retain(|reader| {
                        at += 1;
                        reader.secret != "limiter" || at == newest + 1
                    });
                }
            }
            options.intent = Intent::Resume;
        }
    }
}

#[test]
fn no_connection_fails_in_rotations_one_after_the_other() {
    for seed in 0..12 {
        let mut traffic = Traffic::new(seed);
        for rotation in 1..=3 {
            traffic.rotate(false);
            assert_eq!(traffic.failures, 0, "seed {seed}, rotation {rotation}");
        }
        assert!(traffic.connections > 300, "{}", traffic.connections);
    }
}

#[test]
fn connections_fail_when_all_is_written_at_once() {
    let failures = |seed| {
        let mut traffic = Traffic::new(seed);
        traffic.rotate(true);
        for _ in 0..20 {
            traffic.pass(5);
        }
        traffic.failures
    };
    assert!((0..12).all(|seed| failures(seed) > 0));
}

#[test]
fn connections_fail_when_the_delay_is_too_short() {
    let failures = |seed| {
        let mut traffic = Traffic::new(seed);
        traffic.cluster.profile.propagation_delay = "5s".parse().unwrap();
        traffic.rotate(false);
        traffic.rotate(false);
        traffic.failures
    };
    assert!((0..12).any(|seed| failures(seed) > 0));
}
