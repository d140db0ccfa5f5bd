//! Readers of an object of `spec.trustBundleTargets`, which present no certificate.

use super::cluster::{Cluster, Content};
use crate::api::{TrustBundleTarget, TrustBundleTargetKind};
use crate::rotation::SecretSummary;
use crate::rotation::planner::{ClientState, Plan, Trust};
use crate::trust::Certificate;

/// The object, and what its readers have of it.
pub(super) struct Distributed {
    held: Content,
    loaded: Content,
}

impl Cluster {
    /// The readers of the trust bundle target now trust this CA.
    pub(super) fn distribute_to_readers(&mut self, ca: &Certificate) {
        let kind =
            if self.chance(2) { TrustBundleTargetKind::ConfigMap } else { TrustBundleTargetKind::ClusterTrustBundle };
        let (name, key) = ("trust".to_owned(), "ca.crt".to_owned());
        self.entry.spec.trust_bundle_targets = vec![TrustBundleTarget { kind, namespace: None, name, key }];
        self.note(format!("{} are there", self.entry.spec.trust_bundle_targets[0].readers()));
        let held = self.content(SecretSummary { anchors: vec![ca.clone()], ..SecretSummary::default() });
        self.distributed = Some(Distributed { loaded: held.clone(), held });
    }

    /// The agent writes it after its steps.
    pub(super) fn distribute(&mut self, plan: &Plan) {
        let bundle = &plan.client_bundle;
        let Some(held) = self.distributed.as_ref().map(|distributed| &distributed.held.facts.anchors) else { return };
        if bundle.is_empty() || held == bundle || plan.unordered.is_some() {
            return;
        }
        self.note(format!("distributed: {}", self.named(bundle)));
        let held = self.content(SecretSummary { anchors: bundle.clone(), ..SecretSummary::default() });
        self.distributed.as_mut().unwrap().held = held;
        self.within(self.entry.policy.propagation_delays.clients.duration(), |cluster| {
            let distributed = cluster.distributed.as_mut().unwrap();
            distributed.loaded = distributed.held.clone();
            let loaded = distributed.loaded.clone();
            cluster.note(format!("readers of what is distributed trust {}", cluster.named(&loaded.facts.anchors)));
        });
        self.poke();
    }

    pub(super) fn bundle_readers(&self) -> Vec<ClientState> {
        let seen = self.distributed.iter().map(|distributed| ClientState {
            name: self.entry.spec.trust_bundle_targets[0].readers(),
            chain: Vec::new(),
            trust: Trust::Read(distributed.held.facts.anchors.clone()),
            loads_once: false,
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
