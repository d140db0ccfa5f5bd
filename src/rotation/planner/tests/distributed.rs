//! Readers of an object of `spec.trustBundleTargets`. They present no certificate.

use jiff::SignedDuration;

use super::cluster::{Cluster, Content};
use crate::api::{TrustBundleTarget, TrustBundleTargetKind};
use crate::rotation::SecretSummary;
use crate::rotation::planner::{ClientState, LoadedTrust, Plan, Trust, TrustLoader};
use crate::trust::{Certificate, content_hash};

/// The object, and the CAs that its readers have loaded.
pub(super) struct Distributed {
    stored: Content,
    loaded: Content,
    /// The readers load it when they start, and a TrustConsumer restarts them.
    load_once: bool,
    /// The content that the TrustConsumer reports as loaded. `None` during a rollout.
    reported: Option<Content>,
    /// The number of the last restart.
    restart: u64,
}

/// The time until a restart, and the duration of the restart.
const RESTART: SignedDuration = SignedDuration::from_mins(20);

impl Cluster {
    /// Adds an object of `spec.trustBundleTargets`, whose readers trust this CA.
    pub(super) fn distribute_to_readers(&mut self, ca: &Certificate) {
        let kind =
            if self.chance(2) { TrustBundleTargetKind::ConfigMap } else { TrustBundleTargetKind::ClusterTrustBundle };
        let (name, key) = ("trust".to_owned(), "ca.crt".to_owned());
        self.entry.spec.trust_bundle_targets = vec![TrustBundleTarget { kind, namespace: None, name, key }];
        let load_once = kind == TrustBundleTargetKind::ConfigMap && self.chance(2);
        let how = if load_once { ", and load it when they start" } else { "" };
        self.note(format!("{} are there{how}", self.entry.spec.trust_bundle_targets[0].readers()));
        let stored = self.content(SecretSummary { anchors: vec![ca.clone()], ..SecretSummary::default() });
        let reported = Some(stored.clone());
        self.distributed = Some(Distributed { loaded: stored.clone(), stored, load_once, reported, restart: 0 });
    }

    /// Writes the object, as the agent does after its steps.
    pub(super) fn distribute(&mut self, plan: &Plan) {
        let bundle = &plan.client_bundle;
        let Some(stored) = self.distributed.as_ref().map(|distributed| &distributed.stored.facts.anchors) else {
            return;
        };
        if bundle.is_empty() || stored == bundle || plan.unordered.is_some() {
            return;
        }
        self.note(format!("distributed: {}", self.named(bundle)));
        let stored = self.content(SecretSummary { anchors: bundle.clone(), ..SecretSummary::default() });
        let distributed = self.distributed.as_mut().unwrap();
        distributed.stored = stored;
        if distributed.load_once {
            self.within(RESTART, Self::restart_readers);
        } else {
            self.within(self.delays.clients.duration(), |cluster| {
                let stored = cluster.distributed.as_ref().unwrap().stored.clone();
                cluster.loaded_by_readers(stored);
            });
        }
        self.poke();
    }

    fn restart_readers(&mut self) {
        let restart = self.number();
        let distributed = self.distributed.as_mut().unwrap();
        let stored = distributed.stored.clone();
        (distributed.restart, distributed.reported) = (restart, None);
        self.within(RESTART, move |cluster| {
            let distributed = cluster.distributed.as_mut().unwrap();
            // A later rollout replaces the pods of an earlier one.
            if distributed.restart == restart {
                distributed.reported = Some(stored.clone());
                cluster.loaded_by_readers(stored);
                cluster.poke();
            }
        });
        self.poke();
    }

    fn loaded_by_readers(&mut self, content: Content) {
        self.note(format!("readers of what is distributed trust {}", self.named(&content.facts.anchors)));
        self.distributed.as_mut().unwrap().loaded = content;
    }

    /// The TrustConsumer of the readers, if they load the object only at start.
    pub(super) fn trust_loaders(&self) -> Vec<TrustLoader> {
        let loader = |distributed: &Distributed| TrustLoader {
            name: "TrustConsumer apps/readers".to_owned(),
            object: LoadedTrust::Client(self.entry.spec.trust_bundle_targets[0].readers()),
            loaded: distributed.reported.as_ref().map(|content| content_hash(&content.facts.anchors)),
            reason: "The agent restarts its workloads".to_owned(),
            needs_action: false,
            is_read_by_others: false,
        };
        self.distributed.iter().filter(|distributed| distributed.load_once).map(loader).collect()
    }

    pub(super) fn bundle_readers(&self) -> Vec<ClientState> {
        let seen = self.distributed.iter().map(|distributed| ClientState {
            name: self.entry.spec.trust_bundle_targets[0].readers(),
            chain: Vec::new(),
            trust: Trust::Read(distributed.stored.facts.anchors.clone()),
            loads_once: false,
            is_retired: false,
            certificate: None,
            pending: None,
        });
        seen.collect()
    }

    /// The CAs that the readers trust now.
    pub(super) fn read_by_readers(&self) -> Option<Content> {
        self.distributed.as_ref().map(|distributed| distributed.loaded.clone())
    }
}
