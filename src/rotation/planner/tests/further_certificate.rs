//! A second Secret that gateways present. A client may get either certificate, so it has to verify both. Gateways
//! present its certificate as soon as it is issued.

use jiff::Timestamp;

use super::cluster::{Cluster, Content};
use super::issuer::{SOURCE_LIFETIME, Whose};
use crate::rotation::SecretSummary;
use crate::rotation::planner::FurtherCertificate;
use crate::trust::Certificate;

/// Name of the Secret, and of its Certificate.
pub(super) const SECOND: &str = "second";

/// The Secret, and the content that each gateway replica has loaded.
pub(super) struct Second {
    held: Content,
    loaded: Vec<Content>,
    signed: Timestamp,
    /// The CA that the agent had read when it requested the reissue.
    asked_of: Option<Certificate>,
}

impl Cluster {
    pub(super) fn present_second(&mut self, ca: &Certificate) {
        let held = self.second_of(ca);
        self.note(format!("Secret {SECOND} is presented, too: {}", self.named(&held.facts.chain)));
        self.second =
            Some(Second { loaded: vec![held.clone(); self.gateways.len()], held, signed: self.now, asked_of: None });
    }

    fn second_of(&mut self, ca: &Certificate) -> Content {
        let leaf = self.sign(ca, SECOND, SOURCE_LIFETIME);
        let chain = self.chain_of(leaf, ca);
        self.content(SecretSummary { chain, ..SecretSummary::default() })
    }

    /// Writes the Secret with a certificate of this CA. It is reissued only on request.
    pub(super) fn write_second(&mut self, ca: &Certificate) {
        let held = self.second_of(ca);
        self.note(format!("Secret {SECOND}: presents {}", self.named(&held.facts.chain)));
        let second = self.second.as_mut().unwrap();
        (second.held, second.signed) = (held, self.now);
        self.issuing(Whose::Second).since = None;
        for replica in 0..self.gateways.len() {
            self.within(self.delays.gateways.duration(), move |cluster| cluster.load_second(replica));
        }
        self.poke();
    }

    /// Requests its reissue, as the agent does, which has read this CA.
    pub(super) fn ask_for_second(&mut self, ca: Option<Certificate>) {
        self.second.as_mut().unwrap().asked_of = ca;
        self.request(Whose::Second);
    }

    /// Whether this CA was the current one when the agent decided to request the reissue.
    pub(super) fn second_is_signed_by(&self, ca: &Certificate) -> bool {
        self.second.as_ref().is_some_and(|second| second.asked_of.as_ref() == Some(ca))
    }

    /// A replica starts that presents it.
    pub(super) fn start_second(&mut self) {
        if let Some(second) = &mut self.second {
            second.loaded.push(second.held.clone());
        }
    }

    fn load_second(&mut self, replica: usize) {
        let second = self.second.as_mut().unwrap();
        second.loaded[replica] = second.held.clone();
        self.note(format!("gateway {replica} takes {SECOND} over"));
    }

    pub(super) fn presented_also(&self) -> Vec<FurtherCertificate> {
        let seen = self.second.iter().map(|second| FurtherCertificate {
            name: SECOND.to_owned(),
            chain: Some(second.held.facts.chain.clone()),
            certificate: Some(self.issuance(Whose::Second, SECOND, Some(second.signed))),
        });
        seen.collect()
    }

    /// The content that a replica presents in addition to the managed Secret's certificate.
    pub(super) fn second_at(&self, replica: usize) -> Option<Content> {
        self.second.as_ref().map(|second| second.loaded[replica].clone())
    }

    /// Whose certificate a cert-manager Certificate writes.
    pub(super) fn whose(&self, certificate: &str) -> Whose {
        match self.clients.iter().position(|client| client.name == certificate) {
            Some(at) => Whose::Client(at),
            None if certificate == SECOND => Whose::Second,
            None => Whose::Source,
        }
    }
}
