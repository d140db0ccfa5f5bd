//! Random histories of three workloads in two namespaces: every restart is needed and allowed, and in the end all have loaded the content.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::scene::{minutes, start};
use crate::api::names::LOADED_HASH;
use crate::api::{Period, TrustConsumerSpec, TrustConsumerStatus};
use crate::consumer::{self, Absence, ConsumerState, Consumers, Content, ContentFault, blocker};
use crate::seed::Seed;
use crate::trust::fixtures::ca;

/// Number of histories; `TRUSTSPAN_CASES` sets another number, `TRUSTSPAN_CASE` selects one. `TRUSTSPAN_SEED` repeats a
/// run.
const CASES: u64 = 200;
const EVENTS: usize = 40;
const MAX_CONCURRENT: usize = 1;

/// A set of CAs, by number.
type Cas = Vec<usize>;

struct Workload {
    /// The workload as it is stored; `None` while it is deleted.
    stored: Option<Value>,
    /// What its pods have loaded, as far as it can be known: since it was first recorded, or since its last restart.
    loaded: Option<Cas>,
    restarted_at: Option<Timestamp>,
    /// Whether the status has the time of its last restart. Without that the interval is unknown.
    is_interval_known: bool,
}

struct Consumer {
    spec: TrustConsumerSpec,
    status: TrustConsumerStatus,
    /// The CAs of the Secret, in this order.
    cas: Cas,
    /// A number that differs with every edit of the Secret.
    edit: u64,
    workloads: Vec<Workload>,
}

struct History {
    seed: Seed,
    pems: Vec<String>,
    /// Parsed contents, cached because judging a bundle takes milliseconds.
    read: BTreeMap<String, Result<Content, ContentFault>>,
    consumers: BTreeMap<(String, String), Consumer>,
    now: Timestamp,
    next_uid: u64,
    restarts: u64,
}

fn sorted(cas: &Cas) -> Cas {
    let mut cas = cas.clone();
    cas.sort_unstable();
    cas
}

fn is_rolling(stored: &Value) -> bool {
    stored["status"]["observedGeneration"] != stored["metadata"]["generation"]
}

impl History {
    fn new(mut seed: Seed, pems: &[String]) -> Self {
        let mut history = Self {
            pems: pems.to_vec(),
            read: BTreeMap::new(),
            consumers: BTreeMap::new(),
            now: start(),
            next_uid: 0,
            restarts: 0,
            seed: Seed::of_run(&format!("history {}", seed.next())),
        };
        for (namespace, names) in [("a", vec!["app", "other"]), ("b", vec!["app"])] {
            let workloads: Vec<_> = names.iter().map(|name| json!({"kind": "Deployment", "name": name})).collect();
            let spec = json!({
                "workloads": workloads, "loads": [{"kind": "Secret", "name": "ca", "keys": ["ca.crt"]}],
            });
            let mut spec: TrustConsumerSpec = serde_json::from_value(spec).expect("a spec");
            spec.min_restart_interval = Period::from_secs([0, 300][history.seed.below(2) as usize]);
            let workloads = names.iter().map(|name| {
                let stored = Some(history.created(name));
                Workload { stored, loaded: None, restarted_at: None, is_interval_known: false }
            });
            let workloads = workloads.collect();
            let consumer = Consumer { spec, status: TrustConsumerStatus::default(), cas: vec![0], edit: 0, workloads };
            history.consumers.insert((namespace.to_owned(), "limits".to_owned()), consumer);
        }
        history
    }

    fn created(&mut self, name: &str) -> Value {
        self.next_uid += 1;
        let uid = self.next_uid.to_string();
        json!({
            "kind": "Deployment", "metadata": {"name": name, "uid": uid, "generation": 1},
            "spec": {"replicas": 1, "template": {}},
            "status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1},
        })
    }

    fn event(&mut self) {
        let keys: Vec<_> = self.consumers.keys().cloned().collect();
        let key = keys[self.seed.below(keys.len() as u64) as usize].clone();
        let (draw, pem) = (self.seed.next(), self.seed.below(self.pems.len() as u64) as usize);
        let Some(mut consumer) = self.consumers.remove(&key) else { return };
        let at = (draw % consumer.workloads.len() as u64) as usize;
        match self.seed.below(9) {
            0 | 1 => match consumer.cas.iter().position(|one| *one == pem) {
                Some(at) if consumer.cas.len() > 1 => drop(consumer.cas.remove(at)),
                Some(_) => consumer.cas = vec![(pem + 1) % self.pems.len()],
                None => consumer.cas.push(pem),
            },
            2 => consumer.cas.reverse(),
            3 => consumer.edit += 1,
            4 => {
                if let Some(stored) = &mut consumer.workloads[at].stored {
                    let paused = stored["spec"]["paused"] == true;
                    stored["spec"]["paused"] = json!(!paused);
                }
            }
            5 => {
                let name = consumer.spec.workloads[at].name.clone();
                let workload = &mut consumer.workloads[at];
                workload.stored = if workload.stored.is_some() { None } else { Some(self.created(&name)) };
                (workload.loaded, workload.restarted_at) = (None, None);
            }
            6 => self.now += minutes((draw % 4) as i64),
            7 if draw.is_multiple_of(4) => {
                consumer.status = TrustConsumerStatus::default();
                for workload in &mut consumer.workloads {
                    // Without the annotation, the content is recorded again.
                    let marked = workload.stored.as_ref().filter(|stored| annotation(stored).is_some());
                    workload.restarted_at = marked.filter(|stored| is_rolling(stored)).map(|_| self.now);
                    workload.is_interval_known = false;
                    workload.loaded = workload.loaded.take().filter(|_| marked.is_some());
                }
            }
            _ => complete(&mut consumer.workloads[at]),
        }
        self.consumers.insert(key, consumer);
    }

    fn observe(&mut self) -> Consumers {
        let mut consumers = Consumers::new();
        for (key, consumer) in &self.consumers {
            let layout = if consumer.edit.is_multiple_of(2) { "" } else { "# a comment\n" };
            let text: String = consumer.cas.iter().map(|ca| layout.to_owned() + &self.pems[*ca]).collect();
            let now = self.now;
            let content = self.read.entry(text.clone()).or_insert_with(|| {
                let secret = json!({"data": {"ca.crt": STANDARD.encode(&text)}});
                Content::read(&consumer.spec, &[Ok(Some(secret))], now)
            });
            let workloads = consumer.workloads.iter().map(|one| one.stored.clone().ok_or(Absence::Missing)).collect();
            let state = ConsumerState::observe(&consumer.spec, &consumer.status, content.clone(), workloads, now);
            consumers.insert(key.clone(), state);
        }
        consumers
    }

    /// Runs a reconcile of the agent. With `crash_in`, it ends before one of its writes with this probability.
    fn reconcile(&mut self, crash_in: Option<u64>) {
        for _ in 0..20 {
            let consumers = self.observe();
            for (key, state) in &consumers {
                let crashes = crash_in.is_some_and(|one_in| self.seed.below(one_in) == 0);
                let consumer = self.consumers.get_mut(key).expect("it is known");
                let blockers: Vec<_> = (0..state.workloads.len())
                    .map(|at| blocker(&consumers, (key, at), MAX_CONCURRENT, self.now))
                    .collect();
                let status = consumer::report((&key.0, None), &consumer.status, state, &blockers, self.now);
                if status == consumer.status {
                    continue;
                }
                if crashes {
                    return;
                }
                consumer.status = status;
                for (at, workload) in consumer.workloads.iter_mut().enumerate() {
                    let name = &consumer.spec.workloads[at];
                    let is_recorded = consumer.status.workloads.iter().any(|known| known.workload == *name);
                    if workload.loaded.is_none() && is_recorded && workload.stored.is_some() {
                        workload.loaded = Some(sorted(&consumer.cas));
                    }
                }
            }
            if crash_in.is_some_and(|one_in| self.seed.below(one_in) == 0) {
                return;
            }
            let Some((key, at)) = consumer::next(&consumers, MAX_CONCURRENT, self.now) else { return };
            let hash = consumers[key].hash.clone().expect("a hash");
            self.restart(&key.clone(), at, &hash);
            if crash_in.is_some_and(|one_in| self.seed.below(one_in) == 0) {
                return;
            }
        }
        panic!("the agent does not come to rest");
    }

    fn restart(&mut self, key: &(String, String), at: usize, hash: &str) {
        for (other, consumer) in &self.consumers {
            for (index, workload) in consumer.workloads.iter().enumerate() {
                let rolls = workload
                    .stored
                    .as_ref()
                    .is_some_and(|stored| is_rolling(stored) && stored["spec"]["paused"] != true);
                let age = workload.restarted_at.map(|at| self.now.duration_since(at));
                // The agent counts the time from when it has seen the restart, or later.
                let hangs = age.is_some_and(|age| age >= minutes(10));
                let is_itself = (other, index) == (key, at);
                let counts = rolls && annotation(workload.stored.as_ref().expect("it rolls")).is_some();
                assert!(
                    !counts || hangs && (is_itself || other.0 != key.0),
                    "another rollout is in progress: {other:?} {index}"
                );
            }
        }
        let consumer = self.consumers.get_mut(key).expect("it is known");
        let interval = consumer.spec.min_restart_interval.duration();
        let cas = sorted(&consumer.cas);
        let workload = &mut consumer.workloads[at];
        let stored = workload.stored.as_mut().expect("it exists");
        assert!(stored["spec"]["paused"] != true, "it is paused");
        assert_ne!(workload.loaded.as_ref(), Some(&cas), "it has loaded that");
        assert!(workload.loaded.is_some(), "nobody knows what it has loaded");
        let since = workload.restarted_at.filter(|_| workload.is_interval_known).map(|at| self.now.duration_since(at));
        assert!(since.is_none_or(|since| since >= interval), "restarted again after {since:?}");
        stored["spec"]["template"]["metadata"]["annotations"][LOADED_HASH] = hash.into();
        stored["metadata"]["generation"] = json!(stored["metadata"]["generation"].as_i64().unwrap_or_default() + 1);
        (workload.loaded, workload.restarted_at) = (Some(cas), Some(self.now));
        workload.is_interval_known = true;
        self.restarts += 1;
    }

    /// Resumes everything, completes every rollout, and lets time pass: all workloads must have loaded the content.
    fn finish(&mut self) {
        for _ in 0..12 {
            for consumer in self.consumers.values_mut() {
                for workload in &mut consumer.workloads {
                    workload.stored.as_mut().into_iter().for_each(|stored| stored["spec"]["paused"] = json!(false));
                    complete(workload);
                }
            }
            self.now += minutes(5);
            self.reconcile(None);
        }
        let restarts = self.restarts;
        self.reconcile(None);
        assert_eq!(self.restarts, restarts);
        for (key, consumer) in &self.consumers {
            for workload in consumer.workloads.iter().filter(|workload| workload.stored.is_some()) {
                assert_eq!(workload.loaded, Some(sorted(&consumer.cas)), "{key:?}: {:?}", consumer.status);
            }
        }
    }
}

fn annotation(stored: &Value) -> Option<&str> {
    stored["spec"]["template"]["metadata"]["annotations"][LOADED_HASH].as_str()
}

fn complete(workload: &mut Workload) {
    if let Some(stored) = workload.stored.as_mut().filter(|stored| stored["spec"]["paused"] != true) {
        stored["status"]["observedGeneration"] = stored["metadata"]["generation"].clone();
    }
}

#[test]
fn every_restart_is_needed_and_in_the_end_all_workloads_have_loaded_the_content() {
    let number = |variable: &str| std::env::var(variable).ok()?.parse::<u64>().ok();
    let one = number("TRUSTSPAN_CASE");
    let (first, last) = one.map_or((0, number("TRUSTSPAN_CASES").unwrap_or(CASES)), |case| (case, case + 1));
    let pems: Vec<_> = (0..4).map(|at| ca(&format!("ca {at}")).pem()).collect();
    let mut restarts = 0;
    let mut fails = |case: &u64| {
        let lived = catch_unwind(AssertUnwindSafe(|| {
            let mut history = History::new(Seed::of_run(&format!("consumers {case}")), &pems);
            for _ in 0..EVENTS {
                history.event();
                history.reconcile(Some(6));
            }
            history.finish();
            history.restarts
        }));
        // The panic has printed what failed.
        restarts += lived.as_ref().copied().unwrap_or_default();
        lived.is_err()
    };
    let failed: Vec<_> = (first..last).filter(|case| fails(case)).collect();
    println!("{restarts} restarts in {} histories", last - first);
    assert!(failed.is_empty(), "{} of {} histories failed: TRUSTSPAN_CASE={failed:?}", failed.len(), last - first);
    assert!(one.is_some() || restarts > last - first, "too few restarts to show anything: {restarts}");
}
