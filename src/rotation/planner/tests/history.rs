//! Random clusters with random events.

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::json;

use super::clients::Client;
use super::cluster::{CA, CLIENT_CA, Cluster, HOUR, ISSUER, MANAGED, MINUTE, SOURCE, fault};
use super::issuer::{Answer, SOURCE_LIFETIME, Whose};
use crate::api::{ChangeWindow, GatewaySecretStatus, Mode, Period};
use crate::registry::Entry;
use crate::registry::tests::entry;
use crate::rotation::SecretSummary;
use crate::seed::Seed;

/// Something that happens in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Rotate,
    RenewCa,
    Burst,
    RestoreCa,
    RotateServerCa,
    RenewClient,
    RenewRoot,
    RestartGateway,
    DeleteManaged,
    TamperWithManaged,
    BreakSource,
    DeleteRoot,
    DeleteIssuer,
    Pause,
    Windows,
    Copy,
    AgentDown,
    ClockBack,
    Distrust,
    LoseJournal,
    HideSources,
    DeleteForeign,
    BreakIssuer,
    LoseRequest,
    DeleteClient,
    DeleteNamespace,
    RetireClient,
    LosePolicy,
    RefuseSteps,
    LoseTarget,
    ScaleUp,
    FreezeGateway,
}

/// Events after which no connection may fail.
pub(super) const HARMLESS: [Event; 28] = [
    Event::Rotate,
    Event::Rotate,
    Event::Rotate,
    Event::RenewCa,
    Event::Burst,
    Event::RestoreCa,
    Event::RotateServerCa,
    Event::RenewClient,
    Event::RenewRoot,
    Event::RestartGateway,
    Event::BreakSource,
    Event::Pause,
    Event::Windows,
    Event::AgentDown,
    Event::ClockBack,
    Event::LoseJournal,
    Event::HideSources,
    Event::DeleteForeign,
    Event::BreakIssuer,
    Event::BreakIssuer,
    Event::LoseRequest,
    Event::DeleteClient,
    Event::DeleteNamespace,
    Event::RetireClient,
    Event::LosePolicy,
    Event::RefuseSteps,
    Event::LoseTarget,
    Event::ScaleUp,
];

/// Events while the first CA ends, after which no connection of a client may fail that the agent can have reissued in time.
pub(super) const ENDING: [Event; 10] = [
    Event::FreezeGateway,
    Event::BreakIssuer,
    Event::BreakIssuer,
    Event::LoseRequest,
    Event::DeleteClient,
    Event::RefuseSteps,
    Event::RenewClient,
    Event::RestartGateway,
    Event::Pause,
    Event::Windows,
];

/// Events after which only recovery is required.
pub(super) const HARMFUL: [Event; 6] = [
    Event::DeleteManaged,
    Event::TamperWithManaged,
    Event::DeleteRoot,
    Event::DeleteIssuer,
    Event::Copy,
    Event::Distrust,
];

pub(super) fn seconds(seconds: u64) -> SignedDuration {
    SignedDuration::from_secs(seconds.cast_signed())
}

/// Lifetimes of CAs in seconds: of those that are replaced, and of the last one.
const CA_LIFETIME: u64 = 10 * HOUR;
pub(super) const LAST_LIFETIME: u64 = 100 * HOUR;
/// The lifetime of a first CA that ends during a history, and the latest time of the rotation before.
pub(super) const SHORT_LIFETIME: u64 = 100 * MINUTE;
const IN_TIME: u64 = 50 * MINUTE;

/// Random change windows: ten or thirty minutes of every second hour.
fn windows(seed: &mut Seed) -> Vec<ChangeWindow> {
    let (odd, from) = (seed.below(2), seed.below(30));
    let to = from + [10, 30][seed.below(2) as usize];
    let zone = ["UTC", "Asia/Kolkata", "America/New_York"][seed.below(3) as usize];
    let window =
        |hour| json!({ "from": format!("{hour:02}:{from:02}"), "to": format!("{hour:02}:{to:02}"), "timeZone": zone });
    (0..12).map(|half| ChangeWindow::deserialize(window(2 * half + odd)).unwrap()).collect()
}

/// The time that the owner of a server takes to remove a certificate hash, when a rotation waits for that.
const PIN_REMOVED: SignedDuration = SignedDuration::from_secs((5 * MINUTE).cast_signed());
/// The time that the owner of a Java client takes to replace its truststore, when a rotation waits for that.
const TRUSTSTORE_REPLACED: SignedDuration = SignedDuration::from_secs((20 * MINUTE).cast_signed());

impl Cluster {
    /// A cluster with one CA, in a random layout, and clients that can connect. `is_ending`: that CA ends during the history.
    pub(super) fn random(mut seed: Seed, is_ending: bool) -> Self {
        let mut entry = Entry { status: GatewaySecretStatus::default(), ..entry("mesh", SOURCE, MANAGED) };
        let (spec, policy) = (&mut entry.spec, &mut entry.policy);
        let shape = seed.below(5);
        // A CA that is its own serving certificate, or a separate CA that signs it.
        entry.resolved.ca_secret_ref = (shape > 0).then(|| CA.into());
        spec.clients.ca_secret_ref = (shape == 3).then(|| CLIENT_CA.into());
        spec.issuer_secret_name = (seed.below(2) == 0).then(|| ISSUER.to_owned());
        spec.clients.all_declared = seed.below(4) > 0;
        policy.max_certificate_lifetime = (seed.below(2) == 0).then(|| Period::from_secs(2 * 3600));
        policy.objects = 1;
        policy.change_windows = if seed.below(4) == 0 { windows(&mut seed) } else { Vec::new() };
        if seed.below(4) == 0 && !is_ending {
            // Longer than the defaults, which apply while the policy does not exist.
            let delays = &mut policy.propagation_delays;
            (delays.gateways, delays.clients, delays.admission) =
                (Period::from_secs(180), Period::from_secs(900), Period::from_secs(30));
        }
        let mut cluster = Self::new(seed, entry);
        cluster.is_tiered = shape == 4;
        cluster.first_lifetime = if is_ending { SHORT_LIFETIME } else { CA_LIFETIME };
        cluster.agent.falters = cluster.chance(2);
        // If the agent writes the Issuer's Secret, the Issuer signs nothing that admission would reject.
        cluster.holds_back = cluster.entry.spec.issuer_secret_name.is_none() || cluster.chance(2);
        cluster.watch();
        cluster.gateways = vec![None; 1 + cluster.seed.below(2) as usize];
        // A short lifetime ends while clients that load once still use a certificate.
        cluster.issuer.source_lifetime = if cluster.chance(3) { 2 * HOUR } else { SOURCE_LIFETIME };
        let spec = serde_json::to_string(&(&cluster.entry.spec, &cluster.entry.policy)).unwrap();
        let held_back = if cluster.holds_back { "holds back" } else { "lets pass" };
        cluster.note(format!("the webhook {held_back} what gateways may refuse; {spec}"));
        cluster.install();
        cluster
    }

    fn install(&mut self) {
        let ca = self.make_signer(self.first_lifetime);
        self.write_signer(self.server_source(), &ca);
        let client_ca = if self.entry.spec.clients.ca_secret_ref.is_some() {
            let own = self.make_signer(self.first_lifetime);
            self.write_signer(CLIENT_CA, &own);
            own
        } else {
            ca.clone()
        };
        if self.entry.resolved.ca_secret_ref.is_some() {
            let leaf = self.sign(&ca, "gateway", self.issuer.source_lifetime);
            self.write(SOURCE, vec![self.root_of(&ca)], self.chain_of(leaf, &ca));
            self.renew_in_time(Whose::Source, self.issuer.source_lifetime);
        }
        if self.entry.spec.issuer_secret_name.is_some() {
            self.write_signer(ISSUER, &client_ca);
        }
        for at in 0..1 + self.seed.below(2) as usize {
            self.add_client(at, &ca, &client_ca);
        }
        if self.chance(3) {
            self.distribute_to_readers(&ca);
        }
        if self.entry.resolved.ca_secret_ref.is_some() && self.chance(4) {
            self.present_second(&ca);
        }
        if self.chance(4) {
            self.pins = vec![self.clients[0].secret.facts.chain[0].fingerprint.clone()];
            self.note("a server lets the first client in by the hash of its certificate");
        }
        if !self.chance(4) {
            let served = self.facts(SOURCE).unwrap().chain.clone();
            self.write(MANAGED, vec![self.root_of(&client_ca)], served);
            (0..self.gateways.len()).for_each(|replica| self.load_gateway(replica, "starts"));
        }
        // Otherwise clients that renew by themselves get the new CA before the owners of objects add it.
        if self.entry.spec.issuer_secret_name.is_some() && self.first_lifetime == CA_LIFETIME && !self.is_tiered {
            self.add_foreign();
        }
        self.poke();
    }

    fn add_client(&mut self, at: usize, ca: &crate::trust::Certificate, client_ca: &crate::trust::Certificate) {
        let declared = self.entry.spec.clients.all_declared || self.chance(2);
        let automatic = declared && !self.chance(4);
        let loads_once = declared && self.chance(3);
        let name = match declared {
            true if self.chance(4) => format!("shop-{at}/client"),
            true => format!("client-{at}"),
            false => format!("stranger-{at}"),
        };
        // Undeclared clients' certificates do not outlive `maxCertificateLifetime`.
        let lifetime = if loads_once || !declared { HOUR } else { 3 * HOUR };
        self.note(format!("{name} is there{}", if loads_once { ", and loads its Secret once" } else { "" }));
        let leaf = self.sign(client_ca, &name, lifetime);
        let chain = self.chain_of(leaf, client_ca);
        let (ca, client_ca) = (self.root_of(ca), self.root_of(client_ca));
        let trust = if ca == client_ca || !automatic { vec![ca] } else { vec![client_ca, ca] };
        let secret = self.content(SecretSummary { anchors: trust, chain, ..SecretSummary::default() });
        let lacks_request = automatic && self.chance(8);
        let hides_cas = automatic && secret.facts.anchors.len() == 1 && self.chance(4);
        if hides_cas {
            self.note(format!("{name} reads truststore.p12"));
        }
        self.clients.push(Client {
            loads_once,
            declared,
            automatic,
            lacks_request,
            hides_cas,
            ..Client::new(name, secret, self.now, lifetime)
        });
        self.restart_in_time(at);
        if automatic {
            self.renew_in_time(Whose::Client(at), lifetime);
        } else if declared {
            self.renew_by_hand(at);
        }
    }

    /// Renews the client manually at times, with the bundle in the status.
    pub(super) fn renew_by_hand(&mut self, at: usize) {
        self.within(seconds(self.clients[at].lifetime / 2), move |cluster| {
            let source = match cluster.entry.spec.issuer_secret_name {
                Some(_) => ISSUER,
                None => cluster.client_source(),
            };
            let ca = cluster.facts(source).and_then(|facts| facts.chain.first()).cloned();
            let published = cluster.webhook();
            let is_declared = cluster.clients[at].declared;
            if let Some(ca) = ca.filter(|ca| is_declared && published.converged.contains(&cluster.root_of(ca))) {
                let name = cluster.clients[at].name.clone();
                let leaf = cluster.sign(&ca, &name, cluster.clients[at].lifetime);
                let (root, chain) = (cluster.root_of(&ca), cluster.chain_of(leaf, &ca));
                let mut trust = vec![root.clone()];
                trust.extend(published.client_bundle.iter().filter(|bundled| **bundled != root).cloned());
                cluster.write_client(at, SecretSummary { anchors: trust, chain, ..SecretSummary::default() });
            }
            cluster.renew_by_hand(at);
        });
    }

    pub(super) fn happen(&mut self, event: Event) {
        self.note(format!("== {event:?}"));
        // A CA that is replaced before the agent has read it stays unknown.
        if HARMFUL.contains(&event) || self.journal.0 == 0 {
            self.claims = false;
        }
        let length = seconds(1 + self.seed.below(20 * MINUTE));
        match event {
            Event::Rotate => self.rotate(CA_LIFETIME),
            Event::RenewCa => self.renew(),
            Event::Burst => {
                for _ in 0..2 + self.seed.below(3) {
                    self.within(seconds(2 * MINUTE), |cluster| cluster.rotate(CA_LIFETIME));
                }
            }
            Event::RestoreCa => self.restore_ca(),
            Event::RotateServerCa => self.rotate_in(self.server_source(), CA_LIFETIME),
            Event::RenewClient => self.renew_client(),
            Event::RenewRoot => {
                if self.entry.resolved.ca_secret_ref.is_some() {
                    self.issue(Whose::Source);
                }
            }
            Event::RestartGateway => {
                let replica = self.seed.below(self.gateways.len() as u64) as usize;
                self.load_gateway(replica, "starts");
                self.restart_foreign(replica);
            }
            Event::DeleteManaged => self.delete(MANAGED),
            Event::TamperWithManaged => {
                let stranger = self.make_ca(CA_LIFETIME);
                let chain = self.facts(MANAGED).map(|facts| facts.chain.clone()).unwrap_or_default();
                self.write(MANAGED, vec![stranger], chain);
            }
            Event::BreakSource => self.break_for_a_while(self.client_source(), length),
            Event::DeleteRoot => {
                if let Some(source) = self.facts(SOURCE).cloned() {
                    self.delete(SOURCE);
                    self.within(length, move |cluster| {
                        if cluster.facts(SOURCE).is_none() {
                            cluster.write_facts(SOURCE, source);
                        }
                    });
                }
            }
            Event::DeleteIssuer => self.delete(ISSUER),
            Event::Pause => self.for_a_while(length, |cluster, paused| cluster.entry.spec.paused = paused),
            Event::Windows => {
                let former = self.entry.policy.change_windows.clone();
                let windows = windows(&mut self.seed);
                self.for_a_while(length, move |cluster, on| {
                    cluster.entry.policy.change_windows = if on { windows.clone() } else { former.clone() };
                });
            }
            Event::Copy => self.for_a_while(length, |cluster, copy| {
                cluster.entry.spec.mode = if copy { Mode::Copy } else { Mode::Bundle };
                cluster.claims = false;
            }),
            Event::AgentDown => self.for_a_while(length, |cluster, down| cluster.agent.down = down),
            Event::ClockBack => {
                let back = -seconds(1 + self.seed.below(HOUR));
                self.for_a_while(length, move |cluster, on| {
                    let clock = if on { back } else { SignedDuration::ZERO };
                    // Timestamps of a slower clock appear to be far in the past.
                    cluster.claims &= clock <= cluster.agent.clock;
                    cluster.agent.clock = clock;
                });
            }
            Event::Distrust => {
                let previous = self.made[self.seed.below(self.made.len() as u64) as usize].fingerprint.clone();
                self.entry.spec.distrusted_cas.push(previous);
            }
            Event::HideSources => self.for_a_while(length, |cluster, hidden| cluster.foreign.hidden = hidden),
            Event::DeleteForeign => self.delete_foreign(length),
            Event::BreakIssuer => self.break_issuer(length),
            Event::LoseRequest => {
                let at = self.any_client();
                self.clients[at].lacks_request = self.clients[at].automatic;
                if self.chance(2) {
                    // Backups restore neither requests nor the journal.
                    self.journal = (self.number(), Default::default());
                }
                self.rotate_within(length);
            }
            Event::DeleteClient => {
                let at = self.any_client();
                self.delete_client(at, length);
            }
            Event::DeleteNamespace => {
                self.rotate_within(length);
                self.delete_namespace(length * 2);
            }
            Event::RetireClient => self.start_preview(length),
            Event::LosePolicy => {
                let delays = self.delays.clone();
                let second = seconds(1 + self.seed.below(5));
                self.rotate_within(seconds(MINUTE));
                self.within(seconds(10 * MINUTE), move |cluster| {
                    cluster.for_a_while(second, move |cluster, is_lost| {
                        let policy = &mut cluster.entry.policy;
                        (policy.propagation_delays, policy.objects) =
                            if is_lost { Default::default() } else { (delays.clone(), 1) };
                    });
                });
            }
            Event::RefuseSteps => {
                let at = self.any_client();
                let name = self.clients[at].name.clone();
                // Beyond the end of the CA.
                let is_lasting = self.first_lifetime == SHORT_LIFETIME && self.chance(2);
                let length = if is_lasting { seconds(SHORT_LIFETIME) } else { length };
                self.for_a_while(length, move |cluster, is_refused| {
                    cluster.agent.refused = is_refused.then(|| name.clone());
                    cluster.clients[at].is_late |= is_lasting;
                });
            }
            Event::LoseTarget => {
                self.rotate_within(seconds(1));
                let later = self.now + seconds(10 + self.seed.below(MINUTE));
                self.at(later, move |cluster| {
                    // Gateways that were never seen are assumed to follow.
                    if cluster.journal.1.gateways.iter().any(|version| !version.seen.is_empty()) {
                        cluster.for_a_while(length, |cluster, is_lost| cluster.prober.is_lost = is_lost);
                    }
                });
            }
            Event::ScaleUp => self.scale_up(length),
            Event::FreezeGateway => {
                let replica = self.gateways.len() - 1;
                if replica > 0 && self.prober.frozen.is_none() {
                    self.prober.frozen = Some(replica);
                    // Until after the end of the CA.
                    self.at(self.now + seconds(SHORT_LIFETIME), move |cluster| {
                        cluster.prober.frozen = None;
                        cluster.load_gateway(replica, "takes over");
                    });
                }
            }
            Event::LoseJournal => self.journal = (self.number(), Default::default()),
        }
        self.poke();
    }

    fn for_a_while(&mut self, length: SignedDuration, switch: impl Fn(&mut Self, bool) + 'static) {
        switch(self, true);
        self.at(self.now + length, move |cluster| {
            switch(cluster, false);
            cluster.note("== that is over");
            cluster.poke();
        });
    }

    fn rotate(&mut self, lifetime: u64) {
        self.rotate_in(self.client_source(), lifetime);
    }

    fn any_client(&mut self) -> usize {
        self.seed.below(self.clients.len() as u64) as usize
    }

    /// An issuer stops working for a while. While a CA ends it is repaired only afterwards.
    fn break_issuer(&mut self, length: SignedDuration) {
        let is_ending = self.first_lifetime == SHORT_LIFETIME;
        let whose = match self.any_client() {
            at if self.clients[at].automatic && (is_ending || !self.chance(3)) => Whose::Client(at),
            _ if is_ending || self.entry.resolved.ca_secret_ref.is_none() => return,
            _ => Whose::Source,
        };
        let source = match whose {
            Whose::Client(_) if self.entry.spec.issuer_secret_name.is_some() => ISSUER,
            Whose::Client(_) => self.client_source(),
            _ => CA,
        };
        let current = self.facts(source).and_then(|facts| facts.chain.first()).cloned();
        let answer = match (self.seed.below(4), current) {
            (0, Some(current)) => Answer::SignsWith(Box::new(current)),
            (1, _) => Answer::Fails,
            (2, _) => Answer::Never,
            _ => Answer::SignsLate,
        };
        self.answer(whose, answer);
        if !is_ending {
            self.rotate_within(length);
            self.at(self.now + length, Self::repair_issuers);
        }
    }

    fn rotate_within(&mut self, time: SignedDuration) {
        if self.first_lifetime != SHORT_LIFETIME {
            self.within(time, |cluster| cluster.rotate(CA_LIFETIME));
        }
    }

    /// A pod starts behind a control plane that sends no updates: it has the content that gateways had before, and takes the newest over
    /// late. In a pause, so that no step and no renewal is in progress that its appearance could not stop.
    fn scale_up(&mut self, length: SignedDuration) {
        if !self.prober.hangs || self.gateways.len() > 2 {
            return;
        }
        // Until every gateway has certainly taken the new CA over.
        let converged = self.delays.gateways.duration() * 11;
        self.for_a_while(converged + length, |cluster, paused| cluster.entry.spec.paused = paused);
        self.rotate_within(seconds(1));
        self.at(self.now + converged - seconds(MINUTE), |cluster| {
            cluster.quiet_until = cluster.now + seconds(2 * MINUTE);
        });
        self.at(self.now + converged, move |cluster| {
            let Some(earlier) = cluster.earlier.clone() else { return };
            let is_served = |client: &Client| [client.loaded.clone(), client.secret.clone()];
            let contents: Vec<_> = cluster.clients.iter().flat_map(is_served).collect();
            let is_early = contents.iter().all(|content| cluster.works(content, &earlier));
            let is_idle = (0..cluster.clients.len()).all(|at| cluster.issuing(Whose::Client(at)).since.is_none());
            if !is_early || !is_idle || cluster.journal.0 == 0 {
                return;
            }
            let replica = cluster.gateways.len();
            cluster.note(format!("gateway {replica} starts with what others had before"));
            cluster.gateways.push(Some(earlier));
            cluster.start_foreign(replica);
            cluster.start_second();
            cluster.within(length * 3, move |cluster| cluster.load_gateway(replica, "takes over"));
            cluster.poke();
        });
    }

    fn renew_client(&mut self) {
        let at = self.any_client();
        if self.clients[at].automatic && self.clients[at].declared | self.clients[at].name.starts_with("stranger") {
            self.issue(Whose::Client(at));
        }
    }

    fn rotate_in(&mut self, source: &'static str, lifetime: u64) {
        let ca = self.make_signer(lifetime);
        self.write_signer(source, &ca);
        // A client may be renewed before every gateway has the new CA.
        self.within(self.entry.policy.propagation_delays.gateways.duration(), Self::renew_client);
        // A hash that is not removed before the serving certificate expires cuts its client off, as condition
        // ClientsCurrent reports.
        self.within(PIN_REMOVED, |cluster| cluster.pins.clear());
        self.at(self.now + TRUSTSTORE_REPLACED, Self::replace_truststores);
    }

    fn renew(&mut self) {
        // If the CA itself is the serving certificate, no bundle verifies it and another CA with the same subject.
        if self.entry.resolved.ca_secret_ref.is_some()
            && let Some(held) = self.facts(self.client_source()).and_then(|facts| facts.chain.first()).cloned()
        {
            // The intermediate is replaced under the same root.
            let renewed = match self.is_tiered {
                true => self.make_intermediate(&self.root_of(&held), CA_LIFETIME),
                false => self.renew_ca(&held, CA_LIFETIME),
            };
            self.write_signer(self.client_source(), &renewed);
        }
    }

    /// Restores a previous CA in the source Secret.
    fn restore_ca(&mut self) {
        let former = self.made[self.seed.below(self.made.len() as u64) as usize].clone();
        let is_ours = !self.foreign.is_strangers(&former);
        let is_lasting = former.not_after > self.now + seconds(6 * HOUR) && self.is_signer(&former);
        if is_ours && is_lasting && !self.entry.spec.distrusted_cas.contains(&former.fingerprint) {
            self.write_signer(self.client_source(), &former);
        }
    }

    fn break_for_a_while(&mut self, source: &'static str, length: SignedDuration) {
        let Some(sound) = self.facts(source).filter(|facts| facts.denials.is_empty()).cloned() else { return };
        self.write_facts(source, SecretSummary { denials: fault(), ..SecretSummary::default() });
        self.within(length, move |cluster| {
            if cluster.facts(source).is_none_or(|facts| !facts.denials.is_empty()) {
                cluster.write_facts(source, sound);
            }
        });
    }

    /// Runs the events within two hours, then a last rotation with as much time as every step may take. Before the
    /// first managed Secret exists, gateways serve the source Secret.
    pub(super) fn live_through(&mut self, events: &[Event]) {
        while self.facts(MANAGED).is_none() {
            self.run_until(self.now + seconds(1));
        }
        let start = self.now;
        // What comes later is over before the CA ends, or finds it replaced.
        let last_event = if self.first_lifetime == SHORT_LIFETIME { IN_TIME } else { 2 * HOUR };
        for event in events.iter().copied() {
            let when = start + seconds(self.seed.below(last_event));
            self.at(when, move |cluster| cluster.happen(event));
        }
        if self.first_lifetime == SHORT_LIFETIME {
            let only_intermediate = self.is_tiered && self.chance(2);
            for source in [self.server_source(), self.client_source()] {
                let when = start + seconds(self.seed.below(IN_TIME));
                match only_intermediate {
                    true => self.at(when, Self::renew),
                    false => self.at(when, move |cluster| cluster.rotate_in(source, CA_LIFETIME)),
                }
            }
        }
        let last = start + seconds(2 * HOUR + 30 * MINUTE);
        self.at(last, |cluster| {
            cluster.note("== the last rotation");
            cluster.pins.clear();
            cluster.replace_truststores();
            cluster.agent.falters = false;
            cluster.repair_issuers();
            for source in [cluster.server_source(), cluster.client_source()] {
                cluster.rotate_in(source, LAST_LIFETIME);
            }
        });
        let needed = if self.entry.spec.clients.all_declared { 5 * HOUR } else { 12 * HOUR };
        // Each step may have to wait for a change window.
        let needed = if self.entry.policy.change_windows.is_empty() { needed } else { needed + 9 * HOUR };
        // The end must not be in the second in which a window opens.
        let needed = needed + 6 * MINUTE;
        self.run_until(last + seconds(needed));
        // A renewal of the serving certificate may have become due in this second, in a change window that has just
        // opened.
        let end = self.now + seconds(MINUTE);
        while self.now < end && !self.plan().steps.is_empty() {
            self.run_until(self.now + seconds(1));
        }
    }

    fn plan(&mut self) -> crate::rotation::planner::Plan {
        let reading = self.read();
        crate::rotation::planner::plan(&reading.seen(), &self.journal.1, self.now)
    }

    /// # Panics
    /// When the rotation is not complete, or an object does not have the expected content.
    pub(super) fn assert_steady(&mut self) {
        let plan = self.plan();
        let phase = plan.phase;
        let fail = |what: &str| format!("{what}: {}", self.described(&plan));
        assert_eq!(phase, crate::api::Phase::Steady, "{}", self.log_text(&fail("no end")));
        assert!(plan.steps.is_empty(), "{}", self.log_text(&fail("steps are left")));
        let source = self.facts(self.client_source()).unwrap().anchors.clone();
        let held = self.facts(MANAGED).unwrap().anchors.clone();
        // A previous CA may stay for clients that are not declared.
        let held = if self.entry.spec.clients.all_declared { held.as_slice() } else { &held[..source.len()] };
        assert_eq!(self.named(held), self.named(&source), "{}", self.log_text("another bundle"));
        assert_eq!(self.failure(), None, "{}", self.log_text("what was steady"));
    }
}
