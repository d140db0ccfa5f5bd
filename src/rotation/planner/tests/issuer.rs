//! cert-manager: signs with the CA that its cache has, and writes what the webhooks allow.

use jiff::{SignedDuration, Timestamp};

use super::cluster::{CA, Cluster, HOUR, ISSUER, SOURCE};
use crate::connectivity;
use crate::rotation::SecretSummary;
use crate::rotation::planner::Issuance;
use crate::trust::Certificate;

/// The Secret for which a certificate is issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Source,
    Second,
    Client(usize),
}

#[derive(Default)]
pub(super) struct Issuer {
    /// The contents of the Secrets with signing CAs, oldest first.
    history: Vec<(&'static str, Timestamp, Certificate)>,
    /// Whether the source Secret's certificate is being issued.
    pub(super) source_issuing: bool,
    pub(super) source_lifetime: u64,
    /// The number of the next renewal of the source Secret's certificate: earlier ones are ignored.
    source_renewal: u64,
}

/// The longest delay of its informers.
const INFORMER: SignedDuration = SignedDuration::from_secs(5);

impl Cluster {
    pub(super) fn issuer_changed(&mut self, name: &'static str) {
        let Some(ca) = self.facts(name).filter(|facts| facts.denials.is_empty()).and_then(|facts| facts.chain.first())
        else {
            return;
        };
        self.issuer.history.push((name, self.now, ca.clone()));
    }

    /// The CA with which it signs now, as its informer knows it.
    fn signer(&mut self, whose: Whose) -> Option<Certificate> {
        let kept = self.entry.spec.issuer_secret_name.is_some();
        let source = match whose {
            Whose::Second if kept && self.entry.spec.clients.ca_secret_ref.is_none() => ISSUER,
            Whose::Source | Whose::Second => CA,
            Whose::Client(_) if kept => ISSUER,
            Whose::Client(_) => self.client_source(),
        };
        let known = self.now - self.delay(INFORMER);
        let mut of_source = self.issuer.history.iter().rev().filter(|(name, ..)| *name == source);
        of_source.find(|(_, since, _)| *since <= known).map(|(.., ca)| ca.clone())
    }

    pub(super) fn issue(&mut self, whose: Whose) {
        let issuing = self.issuing(whose);
        if !*issuing {
            *issuing = true;
            self.note(format!("{whose:?} is being issued"));
            self.poke();
            self.within(SignedDuration::from_secs(10), move |cluster| cluster.sign_request(whose));
        }
    }

    pub(super) fn issuing(&mut self, whose: Whose) -> &mut bool {
        match whose {
            Whose::Source => &mut self.issuer.source_issuing,
            Whose::Second => &mut self.second.as_mut().unwrap().is_issuing,
            Whose::Client(at) => &mut self.clients[at].issuing,
        }
    }

    fn sign_request(&mut self, whose: Whose) {
        let Some(ca) = self.signer(whose).filter(|ca| ca.is_valid_at(self.now)) else {
            self.within(SignedDuration::from_secs(30), move |cluster| cluster.sign_request(whose));
            return;
        };
        let (name, lifetime) = match whose {
            Whose::Second => {
                // If the Issuer refers to the CA itself, and the CA was replaced during the issuance, clients do not
                // trust the new certificate yet.
                self.claims &= self.second_is_signed_by(&ca);
                self.within(SignedDuration::from_secs(5), move |cluster| cluster.write_second(&ca));
                return;
            }
            Whose::Source => ("gateway".to_owned(), self.issuer.source_lifetime),
            Whose::Client(at) => (self.clients[at].name.clone(), self.clients[at].lifetime),
        };
        let leaf = self.sign(&ca, &name, lifetime);
        let signed = self.now;
        self.within(SignedDuration::from_secs(5), move |cluster| cluster.store(whose, &ca, leaf, signed, 1));
    }

    /// Writes the Secret. After a denial it retries with the same certificate.
    fn store(&mut self, whose: Whose, ca: &Certificate, leaf: Certificate, signed: Timestamp, pause: i64) {
        let chain = vec![leaf];
        let Whose::Client(at) = whose else {
            self.issuer.source_issuing = false;
            self.write(SOURCE, vec![ca.clone()], chain);
            self.renew_in_time(whose, self.issuer.source_lifetime);
            return;
        };
        let published = self.webhook();
        let is_told = !published.client_bundle.is_empty();
        if self.holds_back && is_told && !connectivity::admits(&published.converged, &chain, self.now) {
            self.note(format!("the webhook holds {} back", self.named(&chain)));
            let ca = ca.clone();
            self.at(self.now + SignedDuration::from_secs(pause), move |cluster| {
                let [leaf] = <[Certificate; 1]>::try_from(chain).unwrap();
                cluster.store(whose, &ca, leaf, signed, (pause * 2).min(60));
            });
            return;
        }
        let mut trust = vec![ca.clone()];
        trust.extend(self.webhook().client_bundle.iter().filter(|bundled| *bundled != ca).cloned());
        self.clients[at].issuing = false;
        self.clients[at].signed = signed;
        self.write_client(at, SecretSummary { anchors: trust, chain, ..SecretSummary::default() });
        self.renew_in_time(whose, self.clients[at].lifetime);
    }

    /// Schedules the renewal of a certificate, after two thirds of its lifetime.
    pub(super) fn renew_in_time(&mut self, whose: Whose, lifetime: u64) {
        let wait = lifetime * 2 / 3 + self.seed.below(lifetime / 10);
        let serial = self.number();
        match whose {
            Whose::Source => self.issuer.source_renewal = serial,
            Whose::Second => unreachable!("nobody renews it"),
            Whose::Client(at) => self.clients[at].renewal = serial,
        }
        self.at(self.now + SignedDuration::from_secs(wait.cast_signed()), move |cluster| {
            let is_newest = match whose {
                Whose::Source => cluster.issuer.source_renewal == serial,
                Whose::Second => false,
                Whose::Client(at) => cluster.clients[at].renewal == serial,
            };
            if is_newest {
                cluster.issue(whose);
            }
        });
    }

    pub(super) fn source_certificate(&self) -> Option<Issuance> {
        let issuance =
            Issuance { name: "gateway".to_owned(), is_issuing: self.issuer.source_issuing, ..Issuance::default() };
        self.entry.resolved.ca_secret_ref.is_some().then_some(issuance)
    }
}

/// The default lifetime of serving certificates.
pub(super) const SOURCE_LIFETIME: u64 = 12 * HOUR;
