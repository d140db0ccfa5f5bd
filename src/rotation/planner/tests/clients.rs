//! The clients of the simulated cluster. Each uses its Secret as it was when it last read it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::cluster::{Cluster, Content, ISSUER};
use super::history::LAST_LIFETIME;
use super::issuer::Whose;
use crate::rotation::SecretSummary;
use crate::rotation::planner::{ClientState, Issuance, NamespaceState, Pending, Trust};

pub(super) struct Client {
    pub(super) name: String,
    pub(super) secret: Content,
    pub(super) loaded: Content,
    pub(super) loads_once: bool,
    /// Whether it is declared.
    pub(super) declared: bool,
    /// Whether no pod uses its Secret any more.
    pub(super) is_gone: bool,
    /// Whether its owner says so.
    pub(super) is_retired: bool,
    /// Whether cert-manager issues its certificate. Otherwise a person does, and the agent reads its Secret.
    pub(super) automatic: bool,
    /// Its CertificateRequest was deleted, so the agent cannot read its certificate.
    pub(super) lacks_request: bool,
    /// It is a Java client that reads `truststore.p12`, in which a CA hides earlier ones of its subject.
    pub(super) hides_cas: bool,
    /// A certificate that the webhook does not admit yet.
    pub(super) pending: Option<Pending>,
    /// Its issuer was repaired, or the agent may request its certificates again, and it has not loaded one since.
    pub(super) is_late: bool,
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
            self.within(self.delays.clients.duration(), move |cluster| cluster.load_client(at));
        }
        self.poke();
    }

    pub(super) fn load_client(&mut self, at: usize) {
        self.clients[at].loaded = self.clients[at].secret.clone();
        if self.clients[at].hides_cas {
            let facts = self.clients[at].secret.facts.as_ref().clone();
            let is_last =
                |at: usize| facts.anchors[at + 1..].iter().all(|later| later.subject != facts.anchors[at].subject);
            let found =
                (0..facts.anchors.len()).filter(|at| is_last(*at)).map(|at| facts.anchors[at].clone()).collect();
            self.clients[at].loaded = self.content(SecretSummary { anchors: found, ..facts });
        }
        let is_refused = self.agent.refused.as_ref() == Some(&self.clients[at].name);
        self.clients[at].is_late &= is_refused || self.is_broken(Whose::Client(at));
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
        let declared = self.clients.iter().enumerate().filter(|(_, client)| client.declared);
        declared.map(|(at, client)| client.seen(self.issuance(Whose::Client(at), &client.name, None))).collect()
    }

    /// Whether the agent can have a client follow a new CA: cert-manager issues its certificate, and it reads its Secret while it runs.
    pub(super) fn follows(&self, at: usize) -> bool {
        let client = &self.clients[at];
        client.declared
            && client.automatic
            && !client.loads_once
            && !client.hides_cas
            && !client.is_late
            && !self.is_broken(Whose::Client(at))
    }

    /// The owners of Java clients let them read `truststore.jks`, which has every CA.
    pub(super) fn replace_truststores(&mut self) {
        for at in 0..self.clients.len() {
            if std::mem::take(&mut self.clients[at].hides_cas) {
                self.note(format!("{} reads truststore.jks from now on", self.clients[at].name));
                self.load_client(at);
                self.poke();
            }
        }
    }

    /// The other namespaces of clients that are not found.
    pub(super) fn namespaces_seen(&self) -> BTreeMap<String, NamespaceState> {
        let missing = self.clients.iter().filter(|client| !client.declared);
        let seen = missing.filter_map(|client| {
            let (namespace, _) = client.name.split_once('/')?;
            let state = if client.is_gone { NamespaceState::Deleted } else { NamespaceState::Exists };
            Some((namespace.to_owned(), state))
        });
        seen.collect()
    }

    /// Deletes the namespace of a client, with its pod, and restores both from a backup.
    pub(super) fn delete_namespace(&mut self, length: SignedDuration) {
        let is_elsewhere = |client: &Client| client.name.contains('/') && client.declared;
        let Some(at) = self.clients.iter().position(is_elsewhere) else { return };
        self.clients[at].is_gone = true;
        self.delete_client(at, length);
        self.at(self.now + length, move |cluster| {
            let client = &mut cluster.clients[at];
            (client.is_gone, client.lacks_request) = (false, client.automatic);
            cluster.load_client(at);
        });
    }

    /// A workload starts whose certificate is valid for long, and which loads it once. After a while nothing uses it any more, and its owner
    /// says so.
    pub(super) fn start_preview(&mut self, length: SignedDuration) {
        let source = if self.entry.spec.issuer_secret_name.is_some() { ISSUER } else { self.client_source() };
        let ca = self.facts(source).and_then(|facts| facts.chain.first()).cloned();
        let published = self.webhook();
        let Some(ca) = ca.filter(|ca| published.converged.contains(&self.root_of(ca))) else { return };
        let at = self.clients.len();
        let name = format!("preview-{at}");
        self.note(format!("{name} is there, and loads its Secret once"));
        let leaf = self.sign(&ca, &name, LAST_LIFETIME);
        let (root, chain) = (self.root_of(&ca), self.chain_of(leaf, &ca));
        let others = published.client_bundle.iter().filter(|bundled| **bundled != root).cloned();
        let anchors = std::iter::once(root.clone()).chain(others).collect();
        let secret = self.content(SecretSummary { anchors, chain, ..SecretSummary::default() });
        self.clients.push(Client {
            loads_once: true,
            declared: true,
            automatic: true,
            ..Client::new(name, secret, self.now, LAST_LIFETIME)
        });
        self.poke();
        self.at(self.now + length, move |cluster| {
            cluster.note(format!("{} is retired", cluster.clients[at].name));
            (cluster.clients[at].is_gone, cluster.clients[at].is_retired) = (true, true);
            cluster.poke();
        });
    }

    /// Deletes a client for a while: its pod keeps what it has loaded. Then a backup is restored.
    pub(super) fn delete_client(&mut self, at: usize, length: SignedDuration) {
        if !self.clients[at].declared {
            return;
        }
        self.note(format!("{} is deleted", self.clients[at].name));
        self.clients[at].declared = false;
        self.clients[at].renewal = self.number();
        self.at(self.now + length, move |cluster| {
            cluster.note(format!("{} is restored", cluster.clients[at].name));
            cluster.clients[at].declared = true;
            let lifetime = cluster.clients[at].lifetime;
            match cluster.clients[at].automatic {
                true => cluster.renew_in_time(Whose::Client(at), lifetime / 8),
                false => cluster.renew_by_hand(at),
            }
            cluster.poke();
        });
    }
}

/// Whether a certificate has expired. For BoringSSL it has in its last second (`X509_cmp_time`).
pub(super) fn has_ended(content: &Content, now: Timestamp) -> bool {
    content.facts.chain.first().is_none_or(|leaf| now.as_second() >= leaf.not_after.as_second())
}

impl Client {
    /// A client that has loaded its Secret.
    pub(super) fn new(name: String, secret: Content, signed: Timestamp, lifetime: u64) -> Self {
        Self {
            name,
            loaded: secret.clone(),
            secret,
            loads_once: false,
            declared: false,
            is_gone: false,
            is_retired: false,
            automatic: false,
            lacks_request: false,
            hides_cas: false,
            pending: None,
            is_late: false,
            signed,
            lifetime,
            renewal: 0,
        }
    }

    /// The client as the agent reads it.
    fn seen(&self, issuance: Issuance) -> ClientState {
        let facts = &self.secret.facts;
        let leaf = facts.chain.first().filter(|_| self.automatic);
        let validity = leaf.map(|leaf| (leaf.not_before, leaf.not_after));
        // cert-manager's timestamps have whole seconds.
        let at = Timestamp::from_second(self.signed.as_second()).unwrap();
        let (chain, trust) = match (self.automatic, self.lacks_request) {
            (true, true) => (Vec::new(), Trust::Issued { ca: Vec::new(), at: Timestamp::MIN }),
            (true, false) => (facts.chain.clone(), Trust::Issued { ca: facts.anchors[..1].to_vec(), at }),
            (false, _) => (facts.chain.clone(), Trust::Read(facts.anchors.clone())),
        };
        let issued = (!self.lacks_request).then_some(at);
        ClientState {
            name: self.name.clone(),
            chain,
            trust,
            loads_once: self.loads_once,
            is_retired: self.is_retired,
            certificate: self.automatic.then_some(Issuance {
                issued,
                validity,
                renders_pkcs12: self.hides_cas,
                ..issuance
            }),
            pending: self.pending.clone().filter(|_| self.automatic),
        }
    }
}
