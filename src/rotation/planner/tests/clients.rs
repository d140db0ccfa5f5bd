//! The clients of the simulated cluster. Each uses its Secret as it was when it last read it.

use jiff::{SignedDuration, Timestamp};

use super::cluster::{Cluster, Content};
use crate::rotation::SecretSummary;
use crate::rotation::planner::{ClientState, Issuance, Trust};

pub(super) struct Client {
    pub(super) name: String,
    pub(super) secret: Content,
    pub(super) loaded: Content,
    pub(super) loads_once: bool,
    /// Whether it is declared.
    pub(super) declared: bool,
    /// Whether cert-manager issues its certificate. Otherwise a person does, and the agent reads its Secret.
    pub(super) automatic: bool,
    pub(super) issuing: bool,
    pub(super) signed: Timestamp,
    /// Lifetime of its certificates in seconds.
    pub(super) lifetime: u64,
    /// The number of the next renewal: earlier ones are ignored.
    pub(super) renewal: u64,
}

impl Cluster {
    pub(super) fn write_client(&mut self, at: usize, facts: SecretSummary) {
        let text = format!("{} with {}", self.named(&facts.anchors), self.named(&facts.chain));
        self.note(format!("Secret {}: {text}", self.clients[at].name));
        self.clients[at].secret = self.content(facts);
        if !self.clients[at].loads_once || has_ended(&self.clients[at].loaded, self.now) {
            self.within(self.entry.policy.propagation_delays.clients.duration(), move |cluster| {
                cluster.load_client(at)
            });
        }
        self.poke();
    }

    pub(super) fn load_client(&mut self, at: usize) {
        self.clients[at].loaded = self.clients[at].secret.clone();
        self.note(format!(
            "{} loads its Secret: {}",
            self.clients[at].name,
            self.named(&self.clients[at].loaded.facts.chain)
        ));
        self.restart_in_time(at);
    }

    /// Restarts a client that loads its Secret only at start, before its certificate expires.
    pub(super) fn restart_in_time(&mut self, at: usize) {
        let end = self.clients[at].loaded.facts.chain[0].not_after;
        if self.clients[at].loads_once && end > self.now {
            let early = self.delay(SignedDuration::from_secs(60));
            self.at(end - early, move |cluster| {
                let client = &cluster.clients[at];
                if client.loaded.facts.chain[0].not_after == end && client.secret.id != client.loaded.id {
                    cluster.load_client(at);
                }
            });
        }
    }

    pub(super) fn clients_seen(&self) -> Vec<ClientState> {
        let declared = self.clients.iter().filter(|client| client.declared);
        declared.map(Client::seen).collect()
    }
}

/// Whether a certificate has expired. For BoringSSL it has in its last second (`X509_cmp_time`).
pub(super) fn has_ended(content: &Content, now: Timestamp) -> bool {
    content.facts.chain.first().is_none_or(|leaf| now.as_second() >= leaf.not_after.as_second())
}

impl Client {
    fn seen(&self) -> ClientState {
        let facts = &self.secret.facts;
        let issuance = Issuance { name: self.name.clone(), is_issuing: self.issuing, ..Issuance::default() };
        ClientState {
            name: self.name.clone(),
            chain: facts.chain.clone(),
            trust: if self.automatic {
                // cert-manager's timestamps have whole seconds.
                let at = Timestamp::from_second(self.signed.as_second()).unwrap();
                Trust::Issued { ca: facts.anchors[..1].to_vec(), at }
            } else {
                Trust::Read(facts.anchors.clone())
            },
            loads_once: self.loads_once,
            certificate: self.automatic.then_some(issuance),
            pending: None,
        }
    }
}
