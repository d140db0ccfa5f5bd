//! cert-manager 1.21: signs with the CA that its cache has, whether or not that CA outlives the leaf, and writes what the webhooks allow. The
//! behaviours, with their places in its source, are listed in `cert_manager.md`.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use super::cluster::{CA, Cluster, HOUR, ISSUER, SOURCE};
use super::history::SHORT_LIFETIME;
use crate::connectivity;
use crate::rotation::SecretSummary;
use crate::rotation::planner::{Issuance, Pending};
use crate::trust::Certificate;

/// The Secret for which a certificate is issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Whose {
    Source,
    Second,
    Client(usize),
}

/// How the issuer of a Certificate answers its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It signs within half an hour.
    SignsLate,
    /// `issuerRef` names the Issuer of this CA, whatever the Secret of the GatewaySecret's CA holds.
    SignsWith(Box<Certificate>),
    /// Every request is marked as failed.
    Fails,
    /// The Issuer does not exist, so requests stay pending.
    Never,
}

/// The issuance of one Certificate.
#[derive(Clone, Debug, Default)]
pub(super) struct Issuing {
    /// Since when condition Issuing is true.
    pub(super) since: Option<Timestamp>,
    /// `status.lastFailureTime`, and the failures in a row (`status.failedIssuanceAttempts`).
    pub(super) failed: Option<(Timestamp, u32)>,
    /// When the agent requested an issuance, since a CA changed last.
    requested: Vec<Timestamp>,
}

#[derive(Default)]
pub(super) struct Issuer {
    /// The contents of the Secrets with signing CAs, oldest first.
    history: Vec<(&'static str, Timestamp, Certificate)>,
    issuing: HashMap<Whose, Issuing>,
    answers: HashMap<Whose, Answer>,
    /// When the certificate in the source Secret was issued.
    source_signed: Option<Timestamp>,
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
        self.forget_requests();
    }

    /// What was requested before was for another CA, or another bundle.
    pub(super) fn forget_requests(&mut self) {
        self.issuer.issuing.values_mut().for_each(|issuing| issuing.requested.clear());
    }

    /// Decides how the issuer of a Certificate answers from now on.
    pub(super) fn answer(&mut self, whose: Whose, answer: Answer) {
        self.note(format!("the issuer of {whose:?}: {answer:?}"));
        self.issuer.answers.insert(whose, answer);
    }

    /// All issuers work from now on.
    pub(super) fn repair_issuers(&mut self) {
        let broken: Vec<_> = self.issuer.answers.drain().map(|(whose, _)| whose).collect();
        for whose in broken {
            if let Whose::Client(at) = whose {
                self.clients[at].is_late = true;
            }
            self.note(format!("the issuer of {whose:?} is repaired"));
            // A person renews what failed or is of the wrong CA: nothing else would request it before its renewal.
            if self.issuing(whose).since.is_none() {
                self.issue(whose);
            }
        }
    }

    /// Whether the issuer of a Certificate cannot give it a certificate of the current CA.
    pub(super) fn is_broken(&self, whose: Whose) -> bool {
        self.issuer.answers.contains_key(&whose)
    }

    pub(super) fn issuing(&mut self, whose: Whose) -> &mut Issuing {
        self.issuer.issuing.entry(whose).or_default()
    }

    /// The Certificate as the agent reads it.
    pub(super) fn issuance(&self, whose: Whose, name: &str, issued: Option<Timestamp>) -> Issuance {
        let issuing = self.issuer.issuing.get(&whose).cloned().unwrap_or_default();
        Issuance {
            name: name.to_owned(),
            issued,
            failed: issuing.failed.map(|(at, _)| at),
            failures: issuing.failed.map_or(0, |(_, times)| times),
            issuing: issuing.since,
            ..Issuance::default()
        }
    }

    /// A request of the agent: condition Issuing becomes true, whenever the last issuance failed.
    ///
    /// # Panics
    /// When it requests one certificate too often although no CA has changed.
    pub(super) fn request(&mut self, whose: Whose) {
        let now = self.now;
        let failed = self.issuing(whose).failed;
        let ends = match whose {
            Whose::Client(at) => self.clients[at].secret.facts.chain.first().map(|leaf| leaf.not_after),
            Whose::Source | Whose::Second => None,
        };
        let ends_soon = ends.is_some_and(|end| end < now + SignedDuration::from_hours(1));
        let requested = &mut self.issuing(whose).requested;
        requested.push(now);
        let within = |time: SignedDuration| requested.iter().filter(|at| now.duration_since(**at) < time).count();
        let (soon, recent) = (within(MINUTES_10), within(SignedDuration::from_hours(1)));
        // After a change the pause doubles: eight in the first hour. Before a deadline a quarter of the time that is left passes between two
        // requests, after it as much as is over, and at least two minutes: in no hour more than fifteen. The shorter pause counts.
        let most = if self.first_lifetime == SHORT_LIFETIME || ends_soon { 8 + 15 } else { 8 };
        let is_hasty = soon > 10 || failed.is_some_and(|(_, times)| times > 1) && recent > most;
        assert!(!is_hasty, "{}", self.log_text(&format!("{whose:?} was requested {soon} times in 10 minutes")));
        self.issue(whose);
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
        let now = self.now;
        if self.issuing(whose).since.is_none() {
            self.issuing(whose).since = Some(now);
            self.note(format!("{whose:?} is being issued"));
            self.poke();
            self.within(SignedDuration::from_secs(10), move |cluster| cluster.sign_request(whose));
        }
    }

    fn sign_request(&mut self, whose: Whose) {
        let again = |cluster: &mut Self, within| cluster.within(within, move |cluster| cluster.sign_request(whose));
        let mut signer = self.signer(whose);
        match self.issuer.answers.get(&whose).cloned() {
            _ if self.now < self.quiet_until => return again(self, SignedDuration::from_secs(30)),
            // Before the webhook knows a status it adds nothing to what cert-manager writes, and a renewal may lose the gateways' CA.
            _ if !self.is_adopted() => return again(self, SignedDuration::from_secs(30)),
            None => {}
            // Nothing protects a client from the wrong Issuer if its owner lets pass what gateways refuse.
            Some(Answer::SignsWith(ca)) if !self.holds_back && !self.is_trusted(&ca) => return self.fail(whose),
            Some(Answer::SignsWith(ca)) => signer = Some(*ca),
            Some(Answer::Never) => return again(self, SignedDuration::from_secs(30)),
            Some(Answer::Fails) => return self.fail(whose),
            Some(Answer::SignsLate) => {
                let waited = self.issuing(whose).since.map(|since| self.now.duration_since(since));
                if waited.is_some_and(|waited| waited < MINUTES_10) {
                    return again(self, MINUTES_10 * 2);
                }
            }
        }
        // cert-manager also signs with a CA that has expired.
        let Some(ca) = signer else { return again(self, SignedDuration::from_secs(30)) };
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
        let chain = self.chain_of(leaf, &ca);
        let (root, signed) = (self.root_of(&ca), self.now);
        self.within(SignedDuration::from_secs(5), move |cluster| cluster.store(whose, &root, chain, signed, 1));
    }

    /// Whether each replica of the webhook knows a status.
    fn is_adopted(&self) -> bool {
        let lag = self.delays.admission.duration();
        self.published.get(1).is_some_and(|(since, _)| *since + lag <= self.now)
    }

    /// Whether every gateway accepts certificates of a CA.
    fn is_trusted(&self, ca: &Certificate) -> bool {
        let root = self.root_of(ca);
        self.gateways.iter().flatten().all(|loaded| loaded.facts.anchors.contains(&root))
    }

    /// Marks the request as failed. If the renewal is due, cert-manager tries again after its backoff.
    fn fail(&mut self, whose: Whose) {
        let now = self.now;
        let issuing = self.issuing(whose);
        let times = issuing.failed.map_or(0, |(_, times)| times) + 1;
        (issuing.since, issuing.failed) = (None, Some((now, times)));
        self.note(format!("the request of {whose:?} failed"));
        let backoff = SignedDuration::from_hours(1i64 << (times - 1).min(5));
        self.at(now + backoff, move |cluster| {
            let is_same = cluster.issuing(whose).failed == Some((now, times));
            if is_same && cluster.is_renewal_due(whose) {
                cluster.issue(whose);
            }
        });
        self.poke();
    }

    /// Whether two thirds of a certificate's lifetime are over.
    fn is_renewal_due(&self, whose: Whose) -> bool {
        let leaf = match whose {
            Whose::Source => self.facts(SOURCE).and_then(|facts| facts.chain.first()),
            Whose::Client(at) => self.clients[at].secret.facts.chain.first(),
            Whose::Second => None,
        };
        leaf.is_some_and(|leaf| self.now >= leaf.not_before + leaf.not_after.duration_since(leaf.not_before) * 2 / 3)
    }

    /// Writes the Secret. After a denial it retries with the same certificate.
    fn store(&mut self, whose: Whose, ca: &Certificate, chain: Vec<Certificate>, signed: Timestamp, pause: i64) {
        let Whose::Client(at) = whose else {
            let requested = std::mem::take(&mut self.issuing(whose).requested);
            *self.issuing(whose) = Issuing { requested, ..Issuing::default() };
            self.issuer.source_signed = Some(signed);
            self.write(SOURCE, vec![ca.clone()], chain);
            self.renew_in_time(whose, self.issuer.source_lifetime);
            return;
        };
        if !self.clients[at].declared {
            // It was deleted, and cert-manager writes no Secret without a Certificate.
            *self.issuing(whose) = Issuing::default();
            return;
        }
        let published = self.webhook();
        let is_told = !published.client_bundle.is_empty();
        if self.holds_back && is_told && !connectivity::admits(&published.converged, &chain, self.now) {
            self.note(format!("the webhook holds {} back", self.named(&chain)));
            self.clients[at].pending = Some(Pending { chain: chain.clone(), at: signed });
            self.poke();
            let ca = ca.clone();
            self.at(self.now + SignedDuration::from_secs(pause), move |cluster| {
                cluster.store(whose, &ca, chain, signed, (pause * 2).min(60));
            });
            return;
        }
        let mut trust = vec![ca.clone()];
        let webhook = self.webhook();
        trust.extend(webhook.client_bundle.iter().filter(|bundled| *bundled != ca).cloned());
        if self.clients[at].hides_cas {
            // Admission writes the bundle after other CAs.
            let position = |ca: &Certificate| webhook.client_bundle.iter().position(|bundled| bundled == ca);
            trust.sort_by_key(|ca| position(ca));
        }
        let requested = std::mem::take(&mut self.issuing(whose).requested);
        *self.issuing(whose) = Issuing { requested, ..Issuing::default() };
        let client = &mut self.clients[at];
        (client.signed, client.lacks_request, client.pending) = (signed, false, None);
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
        let issuance = self.issuance(Whose::Source, "gateway", self.issuer.source_signed);
        self.entry.resolved.ca_secret_ref.is_some().then_some(issuance)
    }
}

const MINUTES_10: SignedDuration = SignedDuration::from_mins(10);

/// The default lifetime of serving certificates.
pub(super) const SOURCE_LIFETIME: u64 = 12 * HOUR;
