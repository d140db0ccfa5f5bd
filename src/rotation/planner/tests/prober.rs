//! The agent's probes of the simulated gateways.

use jiff::{SignedDuration, Timestamp};

use super::cluster::Cluster;
use super::history::SHORT_LIFETIME;
use crate::api::ProbeTarget;
use crate::connectivity;
use crate::rotation::planner::{Answer, Endpoint, ProbeResult, Shown};
use crate::trust::Certificate;

/// The settings of probes.
#[derive(Default)]
pub(super) struct Prober {
    /// Whether gateways sometimes load a write only long after the propagation delay. In such a run every probe
    /// succeeds, since the planner could not know it otherwise.
    pub(super) hangs: bool,
    /// Whether the server that is probed limits clients by name, and the canary has another one.
    limits_names: bool,
    /// The gateway that takes nothing over, if there is one.
    pub(super) frozen: Option<usize>,
    /// Whether no Service can be found to probe.
    pub(super) is_lost: bool,
    /// The canary, and the CA that signed it.
    canary: Option<(Certificate, Certificate)>,
}

const PACE: SignedDuration = SignedDuration::from_secs(2);
const CALM_PACE: SignedDuration = SignedDuration::from_secs(30);
const LIFETIME: u64 = 100 * 3600;

impl Cluster {
    /// Chooses at random whether and how the agent probes.
    pub(super) fn watch(&mut self) {
        let way = self.seed.below(4);
        // While a CA ends, a gateway that takes its successor over too late cannot be helped.
        self.prober.hangs = way == 3 && self.first_lifetime != SHORT_LIFETIME;
        let canary = self.prober.hangs || self.chance(2);
        self.prober.limits_names = !self.prober.hangs && self.chance(4);
        self.entry.policy.probe.target = (way > 1).then(|| ProbeTarget {
            service_name: "gateway".to_owned(),
            port_name: "https".to_owned(),
            host: "shop.example.com".to_owned(),
            client_secret_name: canary.then(|| "canary".to_owned()),
        });
    }

    /// The result of a probe. `None` if no gateway can have an earlier content.
    pub(super) fn probe_result(&mut self) -> Option<ProbeResult> {
        self.next_glance()?;
        let canary = self.canary();
        let endpoints = (0..self.gateways.len()).map(|replica| self.endpoint(replica, &canary)).collect();
        Some(ProbeResult { canary, endpoints })
    }

    /// When to probe again, if gateways may have an earlier content.
    pub(super) fn next_glance(&self) -> Option<Timestamp> {
        self.entry.policy.probe.target.as_ref().filter(|_| !self.prober.is_lost)?;
        let pace = if self.journal.1.is_converged() { CALM_PACE } else { PACE };
        self.journal.1.is_converging().then_some(self.now + self.agent.clock + pace)
    }

    /// A client certificate of the newest CA.
    fn canary(&mut self) -> Vec<Certificate> {
        if self.entry.canary_name().is_none() {
            return Vec::new();
        }
        let source = self.facts(self.client_source()).filter(|facts| facts.denials.is_empty());
        let ca = source.and_then(|facts| facts.chain.first()).cloned();
        let is_former = |ca: &Certificate| self.prober.canary.as_ref().is_none_or(|(of, _)| of != ca);
        if let Some(ca) = ca.filter(is_former) {
            let leaf = self.sign(&ca, "canary", LIFETIME);
            self.prober.canary = Some((ca, leaf));
        }
        let canary = self.prober.canary.clone();
        canary.map(|(ca, leaf)| self.chain_of(leaf, &ca)).unwrap_or_default()
    }

    fn endpoint(&mut self, replica: usize, canary: &[Certificate]) -> Endpoint {
        let fails = |cluster: &mut Self| !cluster.prober.hangs && cluster.chance(8);
        let at = self.now + self.agent.clock;
        let address = format!("gateway {replica}");
        let loaded = self.gateways[replica].clone();
        let Some(loaded) = loaded.filter(|loaded| !loaded.facts.chain.is_empty() && !fails(self)) else {
            return Endpoint { address, pod: None, at, shown: Err("connection refused".to_owned()) };
        };
        let answers = !canary.is_empty() && !fails(self);
        let canary = answers.then(|| match connectivity::admits(&loaded.facts.anchors, canary, self.now) {
            true if self.prober.limits_names => Answer::Refused,
            true => Answer::Accepted,
            false => Answer::Untrusted,
        });
        Endpoint {
            address,
            pod: None,
            at,
            shown: Ok(Shown { leaf: loaded.facts.chain[0].fingerprint.clone(), canary }),
        }
    }
}
