//! A TrustConsumer with its Secret and its workload, as the API server would store them, and the agent's writes.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::api::names::LOADED_HASH;
use crate::api::{TrustConsumerSpec, TrustConsumerStatus};
use crate::consumer::{self, Absence, ConsumerState, Consumers, Content, ReadFailure, blocker};
use crate::rotation::StatusEvent;
use crate::trust::fixtures;

pub(super) fn start() -> Timestamp {
    fixtures::now()
}

pub(super) fn minutes(number: i64) -> SignedDuration {
    SignedDuration::from_mins(number)
}

pub(super) fn hours(number: i64) -> SignedDuration {
    SignedDuration::from_hours(number)
}

pub(super) struct Scene {
    pub(super) spec: TrustConsumerSpec,
    stored: TrustConsumerStatus,
    pub(super) secret: Value,
    pub(super) deployment: Value,
    pub(super) now: Timestamp,
    pub(super) restarted_at: Timestamp,
    /// If set, no object can be read, for this reason.
    pub(super) failure: Option<ReadFailure>,
    pub(super) events: Vec<StatusEvent>,
    restarts: usize,
}

impl Scene {
    /// A running Deployment that has loaded these CAs.
    pub(super) fn new(cas: &[&str]) -> Self {
        let spec = json!({
            "workloads": [{"kind": "Deployment", "name": "app"}],
            "loads": [{"kind": "Secret", "name": "ca", "keys": ["ca.crt"]}],
        });
        let mut scene = Self {
            spec: serde_json::from_value(spec).expect("a spec"),
            stored: TrustConsumerStatus::default(),
            secret: json!({"metadata": {"name": "ca"}}),
            deployment: json!({
                "kind": "Deployment", "metadata": {"name": "app", "uid": "1", "generation": 1, "resourceVersion": "1"},
                "spec": {"replicas": 1, "template": {"spec": {"containers": [{"readinessProbe": {}}]}}},
            }),
            now: start(),
            restarted_at: start(),
            failure: None,
            events: Vec::new(),
            restarts: 0,
        };
        scene.set_cas(cas);
        scene.complete();
        scene
    }

    pub(super) fn status(&self) -> &TrustConsumerStatus {
        &self.stored
    }

    pub(super) fn status_mut(&mut self) -> &mut TrustConsumerStatus {
        &mut self.stored
    }

    pub(super) fn restarts(&self) -> usize {
        self.restarts
    }

    pub(super) fn set_cas(&mut self, cas: &[&str]) {
        self.secret["data"]["ca.crt"] = STANDARD.encode(cas.concat()).into();
    }

    pub(super) fn pass(&mut self, time: SignedDuration) {
        self.now += time;
    }

    /// Completes the rollout as the Deployment controller does, unless it is paused.
    pub(super) fn complete(&mut self) {
        if !self.deployment.is_null() && self.deployment["spec"]["paused"] != true {
            let generation = self.deployment["metadata"]["generation"].clone();
            self.deployment["status"] = json!({
                "observedGeneration": generation, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1,
            });
        }
    }

    pub(super) fn observe(&self) -> ConsumerState {
        let stored = match &self.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(Some(self.secret.clone()).filter(|secret| !secret.is_null())),
        };
        let workload = match &self.failure {
            Some(failure) => Err(Absence::Unread(failure.clone())),
            None if self.deployment.is_null() => Err(Absence::Missing),
            None => Ok(self.deployment.clone()),
        };
        let content = Content::read(&self.spec, &[stored], self.now);
        ConsumerState::observe(&self.spec, &self.stored, content, vec![workload], self.now)
    }

    /// Runs a reconcile of the agent.
    pub(super) fn reconcile(&mut self) {
        loop {
            let key = ("edge".to_owned(), "limits".to_owned());
            let consumers = Consumers::from([(key.clone(), self.observe())]);
            let blockers = [blocker(&consumers, (&key, 0), 1, self.now)];
            let status = consumer::report((&key.0, Some(1)), &self.stored, &consumers[&key], &blockers, self.now);
            self.events.extend(consumer::events(&self.stored, &status));
            self.stored = status;
            if consumer::next(&consumers, 1, self.now).is_none() {
                return;
            }
            let hash = consumers[&key].hash.clone().expect("a hash");
            self.restart(&hash);
        }
    }

    fn restart(&mut self, hash: &str) {
        let (template, metadata) = ("/spec/template", "metadata");
        let template = self.deployment.pointer_mut(template).expect("a template");
        assert_ne!(template[metadata]["annotations"][LOADED_HASH], hash, "a restart that changes nothing");
        template[metadata]["annotations"][LOADED_HASH] = hash.into();
        let generation = self.deployment[metadata]["generation"].as_i64().unwrap_or_default() + 1;
        self.deployment[metadata]["generation"] = generation.into();
        (self.restarted_at, self.restarts) = (self.now, self.restarts + 1);
        // The controller keeps old pods until new ones are ready.
        self.deployment["status"]["updatedReplicas"] = json!(0);
    }

    /// Runs reconciles and rollouts until nothing changes.
    pub(super) fn settle(&mut self) {
        for _ in 0..4 {
            self.reconcile();
            self.complete();
        }
        let (before, restarts) = (self.stored.clone(), self.restarts);
        self.reconcile();
        assert_eq!((&self.stored, self.restarts), (&before, restarts), "not settled");
    }
}
