//! The simulated cluster: its objects, its clock, and its scheduled events.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, date_time_ymd};

use super::agent::Agent;
use super::clients::Client;
use super::distributed::Distributed;
use super::foreign_sources::Foreign;
use super::further_certificate::Second;
use super::issuer::Issuer;
use super::prober::Prober;
use crate::api::PropagationDelays;
use crate::registry::Entry;
use crate::rotation::SecretSummary;
use crate::rotation::journal::Journal;
use crate::seed::Seed;
use crate::trust::fixtures::{Authority, ca_with, now, parsed};
use crate::trust::{Certificate, Finding};

pub(super) const SOURCE: &str = "root";
pub(super) const CA: &str = "ca";
pub(super) const CLIENT_CA: &str = "client-ca";
pub(super) const ISSUER: &str = "issuer";
pub(super) const MANAGED: &str = "gw";

/// Seconds of a minute and an hour.
pub(super) const MINUTE: u64 = 60;
pub(super) const HOUR: u64 = 60 * MINUTE;

/// The content of a Secret. Each write gets another number.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub(super) id: u64,
    pub(super) facts: Rc<SecretSummary>,
}

/// The part of the status that webhooks use.
#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    pub(super) client_bundle: Vec<Certificate>,
    pub(super) converged: Vec<Certificate>,
}

type Happening = Box<dyn FnOnce(&mut Cluster)>;

pub(super) struct Cluster {
    pub(super) seed: Seed,
    pub(super) now: Timestamp,
    queue: BTreeMap<(Timestamp, u64), Happening>,
    count: u64,
    pub(super) log: Vec<String>,
    names: HashMap<String, String>,
    authorities: HashMap<String, Rc<Authority>>,
    /// The root of each intermediate CA.
    roots: HashMap<String, Certificate>,
    /// The real propagation delays, whatever the policy says.
    pub(super) delays: PropagationDelays,
    /// Whether an intermediate CA signs.
    pub(super) is_tiered: bool,
    /// All CAs, oldest first.
    pub(super) made: Vec<Certificate>,
    /// The GatewaySecret, with the status that is stored.
    pub(super) entry: Entry,
    pub(super) secrets: BTreeMap<&'static str, Content>,
    pub(super) journal: (u64, Journal),
    /// The statuses that webhooks may know, each with its time, oldest first.
    pub(super) published: Vec<(Timestamp, Rc<Published>)>,
    pub(super) agent: Agent,
    pub(super) issuer: Issuer,
    /// Whether the webhook rejects client certificates that some gateway would not accept.
    pub(super) holds_back: bool,
    pub(super) clients: Vec<Client>,
    /// The content that each gateway replica has loaded.
    pub(super) gateways: Vec<Option<Content>>,
    /// The content of the managed Secret before its last write.
    pub(super) earlier: Option<Content>,
    /// No certificate is issued before this instant.
    pub(super) quiet_until: Timestamp,
    /// The lifetime of the first CA in seconds.
    pub(super) first_lifetime: u64,
    /// Verdicts on pairs of contents, each with the time until which it is valid.
    pub(super) verdicts: HashMap<(u64, u64), (bool, Timestamp)>,
    /// Whether every connection must succeed: no event has happened whose effect the agent cannot prevent.
    pub(super) claims: bool,
    /// How gateways are probed.
    pub(super) prober: Prober,
    /// Servers that take their clients' CAs from other objects.
    pub(super) foreign: Foreign,
    /// An object of `spec.trustBundleTargets`.
    pub(super) distributed: Option<Distributed>,
    /// A Secret that gateways present in addition to the managed Secret.
    pub(super) second: Option<Second>,
    /// Hashes of the client certificates that a server accepts.
    pub(super) pins: Vec<String>,
    /// Certificates to which gateways switched at a deadline. For one of another CA, the certificate that clients
    /// rejected before.
    pub(super) forced: HashMap<String, Option<Certificate>>,
}

impl Cluster {
    pub(super) fn new(seed: Seed, entry: Entry) -> Self {
        Self {
            seed,
            now: now(),
            queue: BTreeMap::new(),
            count: 0,
            log: Vec::new(),
            names: HashMap::new(),
            authorities: HashMap::new(),
            roots: HashMap::new(),
            delays: entry.policy.propagation_delays.clone(),
            is_tiered: false,
            made: Vec::new(),
            entry,
            secrets: BTreeMap::new(),
            journal: (0, Journal::default()),
            published: vec![(Timestamp::UNIX_EPOCH, Rc::default())],
            agent: Agent::default(),
            issuer: Issuer::default(),
            holds_back: true,
            clients: Vec::new(),
            gateways: Vec::new(),
            earlier: None,
            quiet_until: now(),
            first_lifetime: 0,
            verdicts: HashMap::new(),
            claims: true,
            prober: Prober::default(),
            foreign: Foreign::default(),
            distributed: None,
            second: None,
            pins: Vec::new(),
            forced: HashMap::new(),
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    pub(super) fn note(&mut self, text: impl AsRef<str>) {
        let since = self.now.duration_since(now()).as_millis();
        self.log.push(format!("{:>9}.{:03} {}", since / 1000, since % 1000, text.as_ref()));
    }

    /// Certificates, by the names that the log uses.
    pub(super) fn named(&self, certificates: &[Certificate]) -> String {
        let name = |certificate: &Certificate| self.names.get(&certificate.fingerprint).map_or("?", String::as_str);
        certificates.iter().map(name).collect::<Vec<_>>().join("+")
    }

    /// Schedules an event. If its time has passed, it happens now.
    pub(super) fn at(&mut self, when: Timestamp, what: impl FnOnce(&mut Self) + 'static) {
        let key = (when.max(self.now), self.number());
        self.queue.insert(key, Box::new(what));
    }

    /// Schedules an event at a random time less than `within` from now.
    pub(super) fn within(&mut self, within: SignedDuration, what: impl FnOnce(&mut Self) + 'static) {
        let when = self.now + self.delay(within);
        self.at(when, what);
    }

    /// A random delay below a bound, often close to zero or to the bound.
    pub(super) fn delay(&mut self, bound: SignedDuration) -> SignedDuration {
        let most = u64::try_from(bound.as_millis()).unwrap().saturating_sub(1).max(1);
        let millis = match self.seed.below(4) {
            0 => self.seed.below(most.min(100)),
            1 => most - self.seed.below(most.min(100)),
            _ => self.seed.below(most),
        };
        SignedDuration::from_millis(millis.cast_signed())
    }

    pub(super) fn chance(&mut self, one_in: u64) -> bool {
        self.seed.below(one_in) == 0
    }

    /// Runs the events up to an instant, and tries all connections after each event.
    pub(super) fn run_until(&mut self, end: Timestamp) {
        let mut events = 0;
        while let Some(next) = self.queue.first_entry() {
            let when = next.key().0;
            if when > end {
                break;
            }
            let what = next.remove();
            self.now = when;
            what(self);
            self.try_connections();
            events += 1;
            assert!(events < 50_000, "{}", self.log_text("no end of events"));
        }
        self.now = end;
        self.try_connections();
    }

    /// The log of a run and `what` failed, for the message of an assertion.
    pub(super) fn log_text(&self, what: &str) -> String {
        let skipped = self.log.len().saturating_sub(150);
        format!("… {skipped} lines\n{}\n{what}", self.log[skipped..].join("\n"))
    }

    /// A CA that was issued a minute ago and is valid for this many seconds.
    pub(super) fn make_ca(&mut self, seconds: u64) -> Certificate {
        let dates = self.dates(seconds);
        // cert-manager's root CAs keep their subject. A root that is its own serving certificate does not say which key
        // signed it: if its successor had the same subject, no order of a bundle would work before and after the
        // change.
        let is_served = self.entry.resolved.ca_secret_ref.is_none();
        let name = if is_served { format!("root {}", self.made.len()) } else { "root".to_owned() };
        let authority = ca_with(&name, |params| {
            // A CA that is its own serving certificate also signs handshakes.
            params.key_usages.push(rcgen::KeyUsagePurpose::DigitalSignature);
            dates(params);
        });
        self.keep(authority, format!("CA{}", self.made.len() + 1))
    }

    /// An intermediate CA of a root, valid for this many seconds.
    pub(super) fn make_intermediate(&mut self, root: &Certificate, seconds: u64) -> Certificate {
        let dates = self.dates(seconds);
        let intermediate = self.authorities[&root.fingerprint].intermediate("tier", |params| {
            params.use_authority_key_identifier_extension = true;
            dates(params);
        });
        let name = format!("I{}({})", self.made.len() + 1, self.named(std::slice::from_ref(root)));
        let certificate = self.keep(intermediate, name);
        self.roots.insert(certificate.fingerprint.clone(), root.clone());
        certificate
    }

    /// A new CA that signs: with [`Self::is_tiered`] the intermediate of a new root.
    pub(super) fn make_signer(&mut self, seconds: u64) -> Certificate {
        if !self.is_tiered {
            return self.make_ca(seconds);
        }
        let root = self.make_ca(seconds * 10);
        self.make_intermediate(&root, seconds)
    }

    /// The root of a CA, which is trusted.
    pub(super) fn root_of(&self, ca: &Certificate) -> Certificate {
        self.roots.get(&ca.fingerprint).unwrap_or(ca).clone()
    }

    /// Whether a CA can sign: with [`Self::is_tiered`] no root does.
    pub(super) fn is_signer(&self, ca: &Certificate) -> bool {
        self.roots.contains_key(&ca.fingerprint) == self.is_tiered
    }

    /// Writes a Secret with a CA that signs.
    pub(super) fn write_signer(&mut self, name: &'static str, ca: &Certificate) {
        self.write(name, vec![self.root_of(ca)], vec![ca.clone()]);
    }

    /// The chain of a leaf that a CA signed.
    pub(super) fn chain_of(&self, leaf: Certificate, ca: &Certificate) -> Vec<Certificate> {
        let above = self.roots.contains_key(&ca.fingerprint).then(|| ca.clone());
        std::iter::once(leaf).chain(above).collect()
    }

    /// The CA that signed a certificate.
    pub(super) fn signer_of(&self, certificate: &Certificate) -> Option<&Certificate> {
        self.made.iter().find(|ca| ca.subject_key_id.is_some() && ca.subject_key_id == certificate.authority_key_id)
    }

    /// A renewal of a CA with the same key.
    pub(super) fn renew_ca(&mut self, certificate: &Certificate, seconds: u64) -> Certificate {
        let dates = self.dates(seconds);
        let renewed = self.authorities[&certificate.fingerprint].changed(dates);
        let name = format!("{}'", self.named(std::slice::from_ref(certificate)));
        self.keep(renewed, name)
    }

    fn keep(&mut self, authority: Authority, name: String) -> Certificate {
        let certificate = parsed(authority.der());
        self.names.insert(certificate.fingerprint.clone(), name);
        self.authorities.insert(certificate.fingerprint.clone(), Rc::new(authority));
        self.made.push(certificate.clone());
        certificate
    }

    /// A certificate of a CA, valid for this many seconds, even if that is longer than the CA: cert-manager's CA issuer does not shorten it.
    pub(super) fn sign(&mut self, ca: &Certificate, name: &str, seconds: u64) -> Certificate {
        let dates = self.dates(seconds);
        let leaf = self.authorities[&ca.fingerprint].leaf_with(name, |params| {
            params.use_authority_key_identifier_extension = true;
            dates(params);
        });
        let leaf = parsed(leaf.der());
        let number = self.number();
        let named = format!("{name}#{number}/{}", self.named(std::slice::from_ref(ca)));
        self.names.insert(leaf.fingerprint.clone(), named);
        leaf
    }

    fn dates(&self, seconds: u64) -> impl FnOnce(&mut CertificateParams) + use<> {
        let from = self.now.as_second() - 60;
        let to = self.now.as_second() + seconds.cast_signed();
        let date =
            |second: i64| date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(u64::try_from(second).unwrap());
        move |params| {
            params.not_before = date(from);
            params.not_after = date(to);
        }
    }

    /// Writes a Secret.
    pub(super) fn write(&mut self, name: &'static str, trust: Vec<Certificate>, chain: Vec<Certificate>) {
        self.write_facts(name, SecretSummary { anchors: trust, chain, ..SecretSummary::default() });
    }

    pub(super) fn write_facts(&mut self, name: &'static str, facts: SecretSummary) {
        let (trust, chain) = (self.named(&facts.anchors), self.named(&facts.chain));
        let broken = if facts.denials.is_empty() { "" } else { ", broken" };
        self.note(format!("Secret {name}: trusts {trust}, presents {chain}{broken}"));
        let content = self.content(facts);
        let before = self.secrets.insert(name, content);
        if name == MANAGED {
            self.earlier = before.filter(|before| before.facts.denials.is_empty());
            self.push_to_gateways();
        }
        self.issuer_changed(name);
        if name == self.client_source() {
            self.tell_owners();
        }
        self.poke();
    }

    pub(super) fn content(&mut self, facts: SecretSummary) -> Content {
        Content { id: self.number(), facts: Rc::new(facts) }
    }

    pub(super) fn delete(&mut self, name: &'static str) {
        self.note(format!("Secret {name} is deleted"));
        self.secrets.remove(name);
        self.poke();
    }

    pub(super) fn facts(&self, name: &str) -> Option<&SecretSummary> {
        self.secrets.get(name).map(|content| content.facts.as_ref())
    }

    /// The status that one replica of the webhook knows now.
    pub(super) fn webhook(&mut self) -> Rc<Published> {
        let lag = self.delay(self.delays.admission.duration());
        let known = self.now - lag;
        self.published.iter().rev().find(|(since, _)| *since <= known).unwrap().1.clone()
    }

    /// The Secret with the CA that signs client certificates.
    pub(super) fn client_source(&self) -> &'static str {
        if self.entry.spec.clients.ca_secret_ref.is_some() { CLIENT_CA } else { self.server_source() }
    }

    /// The Secret with the CA that signs the serving certificate.
    pub(super) fn server_source(&self) -> &'static str {
        if self.entry.resolved.ca_secret_ref.is_some() { CA } else { SOURCE }
    }

    fn push_to_gateways(&mut self) {
        for replica in 0..self.gateways.len() {
            let patience = if self.prober.hangs && self.chance(4) { 10 } else { 1 };
            self.within(self.delays.gateways.duration() * patience, move |cluster| {
                cluster.load_gateway(replica, "takes over")
            });
        }
    }

    pub(super) fn load_gateway(&mut self, replica: usize, how: &str) {
        if self.prober.frozen == Some(replica) {
            return;
        }
        self.gateways[replica] = self.secrets.get(MANAGED).filter(|content| content.facts.denials.is_empty()).cloned();
        let loaded = self.gateways[replica].clone();
        let text = loaded.map_or("nothing".to_owned(), |loaded| {
            format!("{} with {}", self.named(&loaded.facts.anchors), self.named(&loaded.facts.chain))
        });
        self.note(format!("gateway {replica} {how}: {text}"));
    }
}

/// A finding that makes a Secret unusable.
pub(super) fn fault() -> Vec<Finding> {
    use crate::trust::fixtures::{denials, secret};
    denials(&secret(&[("ca.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")]))
}
