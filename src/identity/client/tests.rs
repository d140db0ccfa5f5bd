use std::collections::BTreeMap;

use super::*;

const INTERVAL: SignedDuration = SignedDuration::from_secs(60);
const LIFE: i64 = 3600;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn target(name: &str) -> Target {
    Target { endpoint: format!("https://{name}"), ca_hash: name.to_owned() }
}

fn certificate(key: &str, from: i64) -> ClientCertificate {
    ClientCertificate {
        key_hash: key.to_owned(),
        fingerprint: "80000000".to_owned(),
        not_before: at(from),
        not_after: at(from + LIFE),
    }
}

fn current() -> Current {
    Current { target: target("one"), certificate: certificate("key-1", 0) }
}

fn pending() -> PendingKey {
    PendingKey { key_hash: "key-2".to_owned(), created: at(0) }
}

/// A memory of a kubeconfig that was checked just before.
fn checked(acceptance: Acceptance, now: i64) -> Memory {
    let mut memory = Memory::default();
    memory.record_check(Some(acceptance), at(now), INTERVAL);
    memory
}

fn decided(
    current: Option<&Current>,
    pending: Option<&PendingKey>,
    bootstrap: Option<&Target>,
    memory: &Memory,
    now: i64,
) -> Step {
    decide(&View { current, pending, bootstrap, memory }, at(now))
}

#[test]
fn a_client_without_a_kubeconfig_bootstraps() {
    let (bootstrap, pending) = (target("one"), pending());
    let mut memory = Memory::default();
    assert_eq!(decided(None, None, None, &memory, 0), Step::Idle(None), "there is no bootstrap kubeconfig");
    assert_eq!(decided(None, None, Some(&bootstrap), &memory, 0), Step::CreateKey);
    assert_eq!(decided(None, Some(&pending), Some(&bootstrap), &memory, 0), Step::Request(Via::Bootstrap));
    memory.record_waiting(Via::Bootstrap, &bootstrap, at(0));
    assert_eq!(decided(None, Some(&pending), Some(&bootstrap), &memory, 0), Step::Idle(Some(at(1))));
    assert_eq!(decided(None, Some(&pending), Some(&bootstrap), &memory, 1), Step::Poll(Via::Bootstrap));
    memory.record_request(Via::Bootstrap, &bootstrap, Progress::Issued);
    assert_eq!(decided(None, Some(&pending), Some(&bootstrap), &memory, 1), Step::Install(Via::Bootstrap));
}

#[test]
fn a_kubeconfig_that_works_is_kept_whatever_the_token() {
    let (current, memory) = (current(), checked(Acceptance::Accepted, 0));
    for bootstrap in [None, Some(&target("one"))] {
        assert_eq!(decided(Some(&current), None, bootstrap, &memory, 1), Step::Idle(Some(at(60))));
    }
    assert_eq!(decided(Some(&current), Some(&pending()), None, &memory, 1), Step::Discard, "no request was sent");
    assert_eq!(decided(Some(&current), None, None, &memory, 60), Step::Check);
    assert_eq!(decided(Some(&current), None, None, &Memory::default(), 1), Step::Check, "after a start");
}

#[test]
fn bootstraps_again_when_refused_expired_or_moved() {
    let (current, same, moved) = (current(), target("one"), target("two"));
    let refused = checked(Acceptance::Refused, 0);
    assert_eq!(decided(Some(&current), None, Some(&same), &refused, 1), Step::CreateKey);
    assert_eq!(decided(Some(&current), None, None, &refused, 1), Step::Idle(Some(at(60))), "nothing to bootstrap with");
    let accepted = checked(Acceptance::Accepted, LIFE);
    assert_eq!(decided(Some(&current), None, Some(&same), &accepted, LIFE + 1), Step::CreateKey);
    let accepted = checked(Acceptance::Accepted, 0);
    assert_eq!(decided(Some(&current), None, Some(&moved), &accepted, 1), Step::CreateKey);
    let rolled = Target { ca_hash: "two".to_owned(), ..same };
    assert_eq!(decided(Some(&current), None, Some(&rolled), &accepted, 1), Step::CreateKey);
}

#[test]
fn an_api_server_that_does_not_answer_changes_nothing() {
    let (current, same) = (current(), target("one"));
    let mut memory = checked(Acceptance::Accepted, 0);
    memory.record_check(None, at(60), INTERVAL);
    assert_eq!(memory.acceptance(), Acceptance::Accepted);
    assert_eq!(decided(Some(&current), None, Some(&same), &memory, 61), Step::Idle(Some(at(120))));
}

#[test]
fn renews_at_70_to_90_percent_of_the_life() {
    let renewal = |fingerprint: &str| {
        let certificate = ClientCertificate { fingerprint: fingerprint.to_owned(), ..certificate("key-1", 0) };
        Current { certificate, ..current() }.renew_at().as_second()
    };
    assert_eq!(["00000000", "80000000", "ffffffff"].map(renewal), [LIFE * 7 / 10, LIFE * 8 / 10, LIFE * 9 / 10]);
    let (current, renew_at) = (current(), LIFE * 8 / 10);
    let memory = checked(Acceptance::Accepted, renew_at - 1);
    assert_eq!(decided(Some(&current), None, None, &memory, renew_at - 1), Step::Idle(Some(at(renew_at))));
    assert_eq!(
        decided(Some(&current), None, None, &memory, renew_at),
        Step::CreateKey,
        "it needs no bootstrap kubeconfig"
    );
    let key = PendingKey { created: at(renew_at), ..pending() };
    assert_eq!(decided(Some(&current), Some(&key), None, &memory, renew_at), Step::Request(Via::Renewal));
}

#[test]
fn a_key_is_not_used_again_when_its_request_may_have_been_removed() {
    let (bootstrap, pending, memory) = (target("one"), pending(), Memory::default());
    assert_eq!(decided(None, Some(&pending), Some(&bootstrap), &memory, 599), Step::Request(Via::Bootstrap));
    assert_eq!(decided(None, Some(&pending), Some(&bootstrap), &memory, 600), Step::Discard);
    let mut lost = Memory::default();
    lost.record_request(Via::Bootstrap, &bootstrap, Progress::Lost);
    assert_eq!(decided(None, Some(&pending), Some(&bootstrap), &lost, 1), Step::Discard);
    let installed = PendingKey { key_hash: "key-1".to_owned(), ..pending };
    assert_eq!(decided(Some(&current()), Some(&installed), None, &memory, 1), Step::Discard, "it has a certificate");
}

#[test]
fn failures_are_retried_after_growing_delays_until_the_bootstrap_kubeconfig_changes() {
    let bootstrap = target("one");
    let mut memory = Memory::default();
    for delay in [2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
        memory.record_failure(at(0));
        assert_eq!(decided(None, None, Some(&bootstrap), &memory, delay - 1), Step::Idle(Some(at(delay))));
        assert_eq!(decided(None, None, Some(&bootstrap), &memory, delay), Step::CreateKey);
    }
    memory.record_new_bootstrap();
    assert_eq!(decided(None, None, Some(&bootstrap), &memory, 0), Step::CreateKey);
}

#[test]
fn a_refused_new_kubeconfig_is_tried_again_and_then_discarded() {
    let (bootstrap, pending) = (target("one"), pending());
    let mut memory = Memory::default();
    memory.record_request(Via::Bootstrap, &bootstrap, Progress::Issued);
    for _ in 0..3 {
        memory.record_refusal(Via::Bootstrap, &bootstrap, at(0));
        assert_eq!(decided(None, Some(&pending), Some(&bootstrap), &memory, 100), Step::Install(Via::Bootstrap));
    }
    memory.record_refusal(Via::Bootstrap, &bootstrap, at(0));
    assert_eq!(decided(None, Some(&pending), Some(&bootstrap), &memory, 100), Step::Discard);
}

/// A random number generator (splitmix64): the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Decision {
    Pending,
    Issued,
    Denied,
}

/// One client and the API servers that it has had.
struct Simulation {
    random: Random,
    now: i64,
    /// The API server that answers, and whether it answers.
    server: Target,
    is_up: bool,
    /// Certificates of keys that were issued before this instant are refused: the client CA was changed.
    client_ca_since: i64,
    /// All requests that were ever created, by server and key, with their creation and decision.
    requests: BTreeMap<(String, String), (i64, Decision)>,
    created: BTreeMap<(String, String), u32>,
    bootstrap: Option<(Target, bool)>,
    current: Option<Current>,
    pending: Option<PendingKey>,
    memory: Memory,
    keys: u32,
    steps: BTreeMap<&'static str, u32>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        Self {
            random: Random(seed),
            now: 0,
            server: target("server-0"),
            is_up: true,
            client_ca_since: 0,
            requests: BTreeMap::new(),
            created: BTreeMap::new(),
            bootstrap: None,
            current: None,
            pending: None,
            memory: Memory::default(),
            keys: 0,
            steps: BTreeMap::new(),
        }
    }

    /// Whether a request with this server and CAs reaches the API server.
    fn reaches(&self, target: &Target) -> Option<bool> {
        (self.is_up && target.endpoint == self.server.endpoint).then(|| target.ca_hash == self.server.ca_hash)
    }

    fn accepts(&self, current: &Current) -> Option<Acceptance> {
        let is_trusted = self.reaches(&current.target)?;
        let certificate = &current.certificate;
        let is_valid =
            certificate.not_before.as_second() >= self.client_ca_since && certificate.not_after.as_second() >= self.now;
        Some(if is_trusted && is_valid { Acceptance::Accepted } else { Acceptance::Refused })
    }

    fn may_request(&self, via: Via) -> bool {
        match via {
            Via::Bootstrap => {
                self.bootstrap.as_ref().is_some_and(|(target, is_live)| *is_live && self.reaches(target) == Some(true))
            }
            Via::Renewal => self.current.as_ref().and_then(|one| self.accepts(one)) == Some(Acceptance::Accepted),
        }
    }

    fn target(&self, via: Via) -> Target {
        match via {
            Via::Bootstrap => self.bootstrap.as_ref().unwrap().0.clone(),
            Via::Renewal => self.current.as_ref().unwrap().target.clone(),
        }
    }

    /// What happens around the client.
    fn happen(&mut self) {
        match self.random.below(60) {
            0 => self.server.ca_hash = format!("ca-{}", self.now),
            1 => self.server = target(&format!("server-{}", self.now)),
            2 => self.client_ca_since = self.now,
            3..=5 => self.is_up = false,
            6 => self.bootstrap = self.bootstrap.take().map(|(target, _)| (target, false)),
            7..=11 => self.bootstrap = Some((self.server.clone(), true)),
            _ => self.is_up = true,
        }
        let now = self.now;
        for (created, decision) in self.requests.values_mut() {
            if *decision == Decision::Pending && self.random.chance(2) {
                *decision = if self.random.chance(8) { Decision::Denied } else { Decision::Issued };
                *created = now;
            }
        }
        // kube-controller-manager's cleaner.
        self.requests.retain(|_, (created, decision)| {
            now - *created < if *decision == Decision::Pending { 86_400 } else { 3600 }
        });
    }

    /// One step of the client. If it crashes, it loses its memory; a write that it was to make may be missing.
    fn step(&mut self) {
        let now = at(self.now);
        let bootstrap = self.bootstrap.as_ref().map(|(target, _)| target.clone());
        let view = View {
            current: self.current.as_ref(),
            pending: self.pending.as_ref(),
            bootstrap: bootstrap.as_ref(),
            memory: &self.memory,
        };
        let step = decide(&view, now);
        let crashes = self.random.chance(7);
        let name = match step {
            Step::Idle(until) => {
                let wake = until.map_or(self.now + 30, |until| until.as_second());
                assert!(wake > self.now || until.is_none(), "idle until the past");
                self.now = wake.min(self.now + 1 + i64::try_from(self.random.below(60)).unwrap());
                "idle"
            }
            Step::Check => {
                let acceptance = self.accepts(self.current.as_ref().unwrap());
                self.memory.record_check(acceptance, now, INTERVAL);
                "check"
            }
            Step::CreateKey => {
                self.keys += 1;
                self.pending = Some(PendingKey { key_hash: format!("key-{}", self.keys), created: now });
                "create key"
            }
            Step::Request(via) => {
                let (target, key) = (self.target(via), self.pending.as_ref().unwrap().key_hash.clone());
                if self.may_request(via) {
                    let place = (target.endpoint.clone(), key);
                    if !self.requests.contains_key(&place) {
                        *self.created.entry(place.clone()).or_default() += 1;
                        self.requests.insert(place, (self.now, Decision::Pending));
                    }
                    // The answer may be lost.
                    if self.random.chance(9) {
                        self.memory.record_failure(now);
                    } else {
                        self.memory.record_waiting(via, &target, now);
                    }
                } else {
                    self.memory.record_failure(now);
                }
                "request"
            }
            Step::Poll(via) => {
                let target = self.target(via);
                let place = (target.endpoint.clone(), self.pending.as_ref().unwrap().key_hash.clone());
                match self.requests.get(&place).map(|(_, decision)| *decision) {
                    _ if !self.may_request(via) => self.memory.record_failure(now),
                    Some(Decision::Pending) => self.memory.record_waiting(via, &target, now),
                    Some(Decision::Issued) => self.memory.record_request(via, &target, Progress::Issued),
                    Some(Decision::Denied) | None => {
                        self.memory.record_request(via, &target, Progress::Lost);
                        self.memory.record_failure(now);
                    }
                }
                "poll"
            }
            Step::Install(via) => {
                let (target, key) = (self.target(via), self.pending.as_ref().unwrap().key_hash.clone());
                let issued = self.requests.get(&(target.endpoint.clone(), key.clone())).map_or(self.now, |one| one.0);
                let new = Current { target: target.clone(), certificate: certificate(&key, issued) };
                match self.accepts(&new) {
                    Some(Acceptance::Accepted) => {
                        self.current = Some(new);
                        // The key is removed by another write.
                        if !crashes {
                            self.pending = None;
                            self.memory.record_installed(now, INTERVAL);
                        }
                    }
                    None => self.memory.record_failure(now),
                    _ => self.memory.record_refusal(via, &target, now),
                }
                "install"
            }
            Step::Discard => {
                self.pending = None;
                self.memory.record_discarded();
                "discard"
            }
        };
        *self.steps.entry(name).or_default() += 1;
        if crashes {
            self.memory = Memory::default();
        }
    }
}

/// Crashes, changed CAs, moved servers, denied requests and expired tokens in any order: the client never loses its kubeconfig, never makes a
/// second request for a key, and has a working kubeconfig once things stay as they are. `TRUSTSPAN_SEED` repeats a run.
#[test]
fn random_histories_end_with_a_kubeconfig_that_works() {
    let seed = std::env::var("TRUSTSPAN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("TRUSTSPAN_SEED={seed}");
    let mut installed = 0;
    for history in 0..200 {
        let mut simulation = Simulation::new(seed + history);
        let mut had_kubeconfig = false;
        for _ in 0..1000 {
            simulation.happen();
            simulation.step();
            assert!(simulation.current.is_some() || !had_kubeconfig, "history {history}: the kubeconfig is gone");
            had_kubeconfig |= simulation.current.is_some();
            let twice = simulation.created.iter().find(|(_, count)| **count > 1);
            assert!(twice.is_none(), "history {history}: two requests for one key: {twice:?}");
        }
        installed += simulation.steps.get("install").copied().unwrap_or_default();
        simulation.is_up = true;
        simulation.bootstrap = Some((simulation.server.clone(), true));
        simulation.memory.record_new_bootstrap();
        let mut steps = 0;
        while simulation.current.as_ref().and_then(|one| simulation.accepts(one)) != Some(Acceptance::Accepted) {
            for (_, decision) in simulation.requests.values_mut().filter(|(_, one)| *one == Decision::Pending) {
                *decision = Decision::Issued;
            }
            simulation.step();
            steps += 1;
            assert!(
                steps < 500,
                "history {history}: no kubeconfig that works after {steps} steps: {:?}",
                simulation.steps
            );
        }
    }
    assert!(installed > 1000, "{installed} installs");
}
