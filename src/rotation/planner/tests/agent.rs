//! The simulated agent: reads, plans, and writes one object after the other, unless it is killed or another replica takes over.

use std::rc::Rc;

use jiff::{SignedDuration, Timestamp};

use super::cluster::{CA, CLIENT_CA, Cluster, Content, ISSUER, MANAGED, Published, SOURCE};
use super::foreign_sources::Read;
use super::issuer::Whose;
use super::scene::observation;
use super::waits;
use crate::api::{Mode, Phase, WindowState};
use crate::registry::Entry;
use crate::rotation::journal::Journal;
use crate::rotation::planner;
use crate::rotation::planner::deadlines::switch_margin;
use crate::rotation::planner::rules::{Rule, applies};
use crate::rotation::planner::{
    ClientState, FurtherCertificate, Issuance, NamespaceState, PairOf, Plan, ProbeResult, Snapshot, Step, TrustLoader,
};
use crate::rotation::{observe, report};
use crate::trust::Certificate;

#[derive(Default)]
pub(super) struct Agent {
    /// A reconcile is in progress or due.
    busy: bool,
    /// Something has changed since the last reconcile began.
    again: bool,
    /// The agent does not run at all.
    pub(super) down: bool,
    /// The agent is killed at times, or another replica takes over.
    pub(super) falters: bool,
    /// The number of the last requested wake-up: earlier ones are ignored.
    alarm: u64,
    /// The difference of its clock from the cluster's clock.
    pub(super) clock: SignedDuration,
    /// The Certificate that the API server refuses to have reissued.
    pub(super) refused: Option<String>,
    /// The last plan.
    pub(super) last: Option<Rc<Plan>>,
}

/// What a reconcile has read.
pub(super) struct Reading {
    entry: Entry,
    secrets: std::collections::BTreeMap<&'static str, Content>,
    clients: Vec<ClientState>,
    namespaces: std::collections::BTreeMap<String, NamespaceState>,
    bundle_readers: Vec<ClientState>,
    trust_loaders: Vec<TrustLoader>,
    presented_also: Vec<FurtherCertificate>,
    source_certificate: Option<Issuance>,
    journal: (u64, Journal),
    probe_result: Option<ProbeResult>,
    foreign: Read,
}

impl Reading {
    pub(super) fn seen(&self) -> Snapshot<'_> {
        let facts = |name: &str| self.secrets.get(name).map(|content| content.facts.as_ref());
        Snapshot {
            entry: &self.entry,
            source: facts(SOURCE),
            ca: facts(CA),
            client_ca: facts(CLIENT_CA),
            issuer: facts(ISSUER),
            managed: facts(MANAGED),
            bundle_readers: self.bundle_readers.clone(),
            other_gateway_secrets: Vec::new(),
            clients: self.clients.clone(),
            trust_loaders: self.trust_loaders.clone(),
            unlisted_namespaces: &[],
            namespaces: self.namespaces.clone(),
            source_certificate: self.source_certificate.clone(),
            canary: None,
            probe_result: self.probe_result.clone(),
            unprobed: self.entry.policy.probe.target.is_none().then(|| "no Service selects the gateways".to_owned()),
            readers: self.foreign.readers.clone(),
            sources: self.foreign.sources.clone(),
            presented_also: self.presented_also.clone(),
            source_sibling: None,
            managed_sibling: crate::rotation::planner::TrustCopy::Absent,
            additional_trust: Vec::new(),
            config_maps: self.foreign.config_maps(),
        }
    }

    fn id(&self, name: &str) -> Option<u64> {
        self.secrets.get(name).map(|content| content.id)
    }
}

const MOMENT: SignedDuration = SignedDuration::from_secs(1);

impl Cluster {
    /// Called when an object changes that the agent watches.
    pub(super) fn poke(&mut self) {
        if self.agent.busy {
            self.agent.again = true;
        } else if !self.agent.down {
            self.agent.busy = true;
            self.within(MOMENT, Self::reconcile);
        }
    }

    pub(super) fn read(&mut self) -> Reading {
        let mut entry = self.entry.clone();
        // A target that cannot be derived any more is none.
        entry.policy.probe.target = entry.policy.probe.target.filter(|_| !self.prober.is_lost);
        Reading {
            entry,
            secrets: self.secrets.clone(),
            clients: self.clients_seen(),
            namespaces: self.namespaces_seen(),
            bundle_readers: self.bundle_readers(),
            trust_loaders: self.trust_loaders(),
            presented_also: self.presented_also(),
            source_certificate: self.source_certificate(),
            journal: self.journal.clone(),
            probe_result: self.probe_result(),
            foreign: self.read_foreign(),
        }
    }

    fn reconcile(&mut self) {
        self.agent.again = false;
        let reading = self.read();
        self.within(MOMENT, move |cluster| cluster.decide(reading));
    }

    fn decide(&mut self, reading: Reading) {
        let now = self.now + self.agent.clock;
        let plan = planner::plan(&reading.seen(), &reading.journal.1, now);
        waits::compare(&plan.waits);
        self.judge(&reading, &plan, now);
        self.agent.last = Some(Rc::new(plan.clone()));
        let actions = 2 + plan.steps.len();
        let falters = self.agent.falters && self.chance(8);
        let stops = if falters { self.seed.below(actions as u64) as usize } else { usize::MAX };
        self.act(Rc::new((reading, plan)), 0, stops);
    }

    /// Checks properties that every plan must have.
    fn judge(&mut self, reading: &Reading, plan: &Plan, now: Timestamp) {
        if self.agent.last.as_ref().is_none_or(|last| last.phase != plan.phase) {
            self.note(format!("phase {:?}", plan.phase));
        }
        let fail = |cluster: &Self, what: &str| {
            panic!("{}", cluster.log_text(&format!("{what}: {}", cluster.described(plan))))
        };
        if plan.wake.is_some_and(|wake| wake <= now) {
            fail(self, "the wake-up is over");
        }
        let next_end = plan.waits.iter().filter_map(|wait| wait.until).filter(|until| *until > now).min();
        if next_end.is_some_and(|end| plan.wake.is_none_or(|wake| wake > end)) {
            fail(self, "nothing wakes at the end of a wait");
        }
        if let Some(client) = self.breaks_a_pin(reading, plan, now) {
            fail(self, &format!("{client} is re-issued, whom a server lets in by the hash of its certificate"));
        }
        if let Some(step) = self.breaks_a_pause(reading, plan, now) {
            fail(self, &format!("{step:?} in a pause"));
        }
        if !self.chance(8) {
            return;
        }
        let again = planner::plan(&reading.seen(), &plan.journal, now);
        if (&again.journal, &again.steps, again.phase) != (&plan.journal, &plan.steps, plan.phase) {
            fail(self, &format!("asked again, the answer is another: {}, not", self.described(&again)));
        }
        // The stored journal has one certificate for all equivalent ones, and must lead to the same plan.
        let stored = Journal::from_text(&plan.journal.to_text()).unwrap();
        let by_stored = planner::plan(&reading.seen(), &stored, now);
        if (&stored, &by_stored.journal, &by_stored.steps) != (&plan.journal, &again.journal, &again.steps) {
            fail(self, &format!("by the stored journal the answer is another: {}", self.described(&by_stored)));
        }
    }

    /// A client that is reissued although a server accepts only its present certificate, and no CA is about to expire.
    fn breaks_a_pin<'p>(&self, reading: &Reading, plan: &'p Plan, now: Timestamp) -> Option<&'p str> {
        let asked = plan.steps.iter().filter_map(|step| match step {
            Step::Reissue { certificate } if !a_ca_ends(reading, now) => Some(certificate.as_str()),
            _ => None,
        });
        let is_pinned = |name: &&str| {
            let leaf =
                reading.clients.iter().find(|client| client.name == *name).and_then(|client| client.chain.first());
            leaf.is_some_and(|leaf| self.pins.contains(&leaf.fingerprint))
        };
        asked.into_iter().find(is_pinned)
    }

    /// A disruptive step during a pause, although the serving certificate's deadline is far in the future.
    fn breaks_a_pause<'p>(&self, reading: &Reading, plan: &'p Plan, now: Timestamp) -> Option<&'p Step> {
        let (spec, policy) = (&reading.entry.spec, &reading.entry.policy);
        let windows = &policy.change_windows;
        let is_open = windows.is_empty() || WindowState::of(windows, now).is_open;
        if is_open && !spec.paused {
            return None;
        }
        let served = reading.secrets.get(MANAGED).filter(|managed| managed.facts.denials.is_empty());
        let end = served.and_then(|managed| self.end_of(&managed.facts.chain));
        let is_held = end.is_some_and(|end| now < end - switch_margin(&policy.propagation_delays));
        // The end of an old CA overrides any pause, early enough for all steps that depend on it.
        let ends = |ca: &Certificate| ends(reading, ca, now);
        let issuer_ends = reading.secrets.get(ISSUER).is_none_or(|issuer| issuer.facts.chain.first().is_some_and(ends));
        plan.steps.iter().find(|step| match step {
            Step::Reissue { .. } => !a_ca_ends(reading, now),
            Step::PromoteIssuer => !issuer_ends,
            Step::CopySource | Step::WriteManaged { pair: PairOf::Source, .. } => is_held,
            Step::WriteManaged { pair: PairOf::Managed, .. }
            | Step::WriteSibling { .. }
            | Step::WriteConfigMap { .. } => false,
        })
    }

    /// When a chain ends, or the CA that issued it.
    pub(super) fn end_of(&self, chain: &[Certificate]) -> Option<Timestamp> {
        let signer = chain.last().and_then(|last| self.signer_of(last));
        chain.iter().chain(signer).map(|certificate| certificate.not_after).min()
    }

    /// A plan as text.
    pub(super) fn described(&self, plan: &Plan) -> String {
        let journal = &plan.journal;
        let mut text = format!("{:?} until {:?}\n", plan.phase, plan.wake);
        for step in &plan.steps {
            text += &match step {
                Step::WriteManaged { trust, pair } => {
                    format!("  step: write {} with pair {pair:?}\n", self.named(trust))
                }
                other => format!("  step: {other:?}\n"),
            };
        }
        for wait in &plan.waits {
            text += &format!("  wait: {:?} until {:?}: {}\n", wait.step, wait.until, wait.reason);
        }
        for (what, list) in [("client", &journal.client_issuers), ("server", &journal.server_issuers)] {
            for ca in list {
                let name = self.named(std::slice::from_ref(&ca.certificate));
                text += &format!("  {what} CA {name} current {} retired {:?}\n", ca.current, ca.retired);
            }
        }
        let clients = journal.clients.iter().map(|(name, client)| (name.as_str(), &client.versions));
        for (name, versions) in clients.chain([("gateways", &journal.gateways), ("status", &journal.client_bundles)]) {
            for held in versions {
                let (trust, chain) = (self.named(&held.trust), self.named(&held.chain));
                text += &format!("  {name}: {trust} with {chain} from {} to {:?}\n", held.since, held.replaced);
            }
        }
        text + &format!("  offered: {}", self.named(&journal.offered))
    }

    fn act(&mut self, pass: Rc<(Reading, Plan)>, action: usize, stops: usize) {
        if action == stops {
            self.stop(pass, action);
            return;
        }
        let (reading, plan) = &*pass;
        let done = match action {
            0 => self.store_journal(reading, plan),
            _ => match plan.steps.get(action - 1) {
                Some(step) => self.take(reading, step),
                None => {
                    self.distribute(plan);
                    self.publish(reading, plan);
                    self.rest(plan);
                    return;
                }
            },
        };
        if done {
            self.within(SignedDuration::from_millis(300), move |cluster| cluster.act(pass, action + 1, stops));
        } else {
            // Conflict: reconcile again.
            if action > 0 {
                self.publish(reading, plan);
            }
            self.within(MOMENT, Self::reconcile);
        }
    }

    /// Kills the agent, or stops it until another replica leads.
    fn stop(&mut self, pass: Rc<(Reading, Plan)>, action: usize) {
        if self.chance(2) {
            self.note(format!("agent killed before action {action}"));
        } else {
            self.note(format!("agent stopped before action {action}"));
            self.within(SignedDuration::from_secs(15), move |cluster| {
                cluster.note("the former leader goes on");
                if cluster.store_journal(&pass.0, &pass.1) {
                    for step in &pass.1.steps {
                        cluster.take(&pass.0, step);
                    }
                }
            });
        }
        self.within(SignedDuration::from_secs(40), Self::reconcile);
    }

    /// Whether it is known what clients that load once have loaded. After the journal was lost it is not, until they
    /// restart.
    fn knows_what_is_loaded(&self) -> bool {
        self.clients.iter().filter(|client| !client.is_gone).all(|client| {
            let known = self.journal.1.clients.get(&client.name).map(|known| known.versions.as_slice());
            known.unwrap_or_default().iter().any(|version| version.chain == client.loaded.facts.chain)
        })
    }

    fn rest(&mut self, plan: &Plan) {
        let distrusted = |source| {
            let held = self.facts(source).and_then(|facts| facts.chain.first());
            let is_distrusted = |ca: &Certificate| self.entry.spec.distrusted_cas.contains(&ca.fingerprint);
            held.is_none_or(|held| is_distrusted(held) || is_distrusted(&self.root_of(held)))
        };
        let is_sound = !self.agent.again
            && self.entry.spec.mode == Mode::Bundle
            && !distrusted(self.server_source())
            && !distrusted(self.client_source());
        // Clients are meant to reject a gateway with a distrusted CA, so that is not a failure.
        let managed = self.secrets.get(MANAGED).map(|content| content.id);
        let is_taken_over = self.gateways.iter().all(|loaded| loaded.as_ref().map(|content| content.id) == managed);
        let is_sound = is_sound && (self.entry.spec.distrusted_cas.is_empty() || is_taken_over);
        let is_calm = plan.phase == Phase::Steady && plan.steps.is_empty();
        if is_calm && !self.claims && is_sound && self.knows_what_is_loaded() && self.failure().is_none() {
            self.claims = true;
        }
        self.agent.busy = false;
        if self.agent.again || !plan.steps.is_empty() {
            self.poke();
        } else if let Some(wake) = plan.wake.into_iter().chain(self.next_glance()).min() {
            let alarm = self.number();
            self.agent.alarm = alarm;
            self.at(wake - self.agent.clock, move |cluster| {
                if cluster.agent.alarm == alarm {
                    cluster.poke();
                }
            });
        }
    }

    fn store_journal(&mut self, reading: &Reading, plan: &Plan) -> bool {
        if reading.journal.0 != self.journal.0 {
            return false;
        }
        if plan.journal != reading.journal.1 {
            self.journal = (self.number(), plan.journal.clone());
        }
        true
    }

    /// Stores the status, with the clients' bundle for webhooks.
    fn publish(&mut self, reading: &Reading, plan: &Plan) {
        let seen = reading.seen();
        let observation = observation(&reading.entry, seen.source, seen.managed);
        let now = self.now + self.agent.clock;
        self.entry.status = report(&reading.entry, plan, observe(&observation, now), now);
        let last = &self.published.last().unwrap().1;
        let changed = last.client_bundle != plan.client_bundle;
        if changed || last.converged != plan.converged {
            let (bundle, converged) = (self.named(&plan.client_bundle), self.named(&plan.converged));
            self.note(format!("status: clients are to trust {bundle}; converged: {converged}"));
            let published = Published { client_bundle: plan.client_bundle.clone(), converged: plan.converged.clone() };
            self.published.push((self.now, Rc::new(published)));
            self.agent.again |= changed;
            if changed {
                self.forget_requests();
            }
        }
    }

    /// Takes a step, unless the object to write has changed since it was read.
    fn take(&mut self, reading: &Reading, step: &Step) -> bool {
        let writes = match step {
            Step::WriteManaged { .. } | Step::CopySource => Some(MANAGED),
            Step::WriteSibling { .. } | Step::WriteConfigMap { .. } => None,
            Step::PromoteIssuer => Some(ISSUER),
            Step::Reissue { .. } => None,
        };
        if writes.is_some_and(|name| reading.id(name) != self.secrets.get(name).map(|content| content.id)) {
            return false;
        }
        match step {
            Step::WriteManaged { trust, pair } => {
                let from = if *pair == PairOf::Source { SOURCE } else { MANAGED };
                let chain = reading.secrets[from].facts.chain.clone();
                self.note_deadline(&chain);
                self.write(MANAGED, trust.clone(), chain);
            }
            Step::CopySource => {
                let source = reading.secrets[SOURCE].facts.clone();
                self.write(MANAGED, source.anchors.clone(), source.chain.clone());
            }
            Step::PromoteIssuer => {
                let source = reading.secrets[self.client_source()].facts.clone();
                self.write(ISSUER, source.anchors.clone(), source.chain.clone());
            }
            Step::WriteSibling { .. } => {}
            Step::WriteConfigMap { trust, .. } => self.write_kept(trust),
            // Steps are independent writes: a refused one does not stop the others.
            Step::Reissue { certificate } if self.agent.refused.as_ref() == Some(certificate) => {
                return applies(Rule::IndependentSteps);
            }
            Step::Reissue { certificate } => match self.whose(certificate) {
                Whose::Second => {
                    let ca = reading.secrets.get(CA).and_then(|content| content.facts.chain.first());
                    self.ask_for_second(ca.cloned());
                }
                whose => self.request(whose),
            },
        }
        true
    }

    /// Records that gateways switched at the deadline, shortly before the serving certificate expired: they serve the
    /// next certificate, and later ones of its CA, even to clients that do not trust it.
    fn note_deadline(&mut self, chain: &[crate::trust::Certificate]) {
        let Some(served) = self.facts(MANAGED).and_then(|facts| facts.chain.first()) else { return };
        let Some(end) = self.facts(MANAGED).and_then(|facts| self.end_of(&facts.chain)) else { return };
        let end = end - switch_margin(&self.entry.policy.propagation_delays);
        let Some(leaf) = chain.first().filter(|leaf| *leaf != served) else { return };
        let follows = self.forced.get(&served.fingerprint).is_some_and(Option::is_none)
            && leaf.authority_key_id == served.authority_key_id;
        let is_forced = follows || self.now + self.agent.clock >= end;
        let spared = (!is_forced && self.forced.contains_key(&served.fingerprint)).then(|| served.clone());
        if is_forced || spared.is_some() {
            self.forced.insert(leaf.fingerprint.clone(), spared);
        }
    }
}

/// Whether a CA is about to expire: within twice the time that all steps take.
fn ends(reading: &Reading, ca: &Certificate, now: Timestamp) -> bool {
    let delays = &reading.entry.policy.propagation_delays;
    let hops = [delays.gateways, delays.admission, delays.clients].map(|hop| hop.duration());
    now >= ca.not_after - hops.into_iter().sum::<SignedDuration>() * 2
}

fn a_ca_ends(reading: &Reading, now: Timestamp) -> bool {
    let (_, journal) = &reading.journal;
    let mut issuers = journal.client_issuers.iter().chain(&journal.server_issuers);
    let clients = journal.clients.values().flat_map(|client| &client.versions);
    let versions = clients.chain(&journal.gateways).chain(journal.presented_also.values().flatten());
    let mut intermediates = versions.flat_map(|version| version.chain.iter().skip(1));
    issuers.any(|authority| ends(reading, &authority.certificate, now))
        || intermediates.any(|ca| ends(reading, ca, now))
}
