//! Forecasts a rotation: the planner runs over simulated time, with a temporary CA.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::condition_types::{READINESS, remove, set};
use super::journal::Journal;
use super::name_list::counted;
use super::observe::SecretSummary;
use super::planner::{
    self, CaConfigMap, ClientState, FurtherCertificate, Issuance, PairOf, Plan, Snapshot, SourceState, Step,
    SwitchBlocker, Trust, TrustCopy,
};
use super::readers::{SourceName, TlsReader, is_among};
use super::renewal::RenewalPolicy;
use crate::api::names::{CACERT_SUFFIX, managed_config_map_name};
use crate::api::{ConditionStatus, GatewaySecretStatus, Mode, Period, Phase, SourceKind, TrustAnchor, Wait};
use crate::registry::Entry;
use crate::trust::Certificate;

/// A rotation that waits for longer than this without a change has stopped: a person has to act.
const PATIENCE: SignedDuration = SignedDuration::from_hours(24);
/// Limit of plans in one simulation. A rotation takes a few dozen, so one that takes more does not end.
const PLANS: usize = 100;
/// Limit of clients in a simulation.
const SIMULATED: usize = 32;
/// The simulated time that a step takes.
const STEP: SignedDuration = SignedDuration::from_secs(1);

/// A temporary CA for a simulated rotation, and certificates that it signed. They are not stored.
#[derive(Clone, Debug)]
pub struct TrialCa {
    /// The CA.
    pub ca: Certificate,
    /// A serving certificate of this CA.
    pub serving: Certificate,
    /// A client certificate of this CA.
    pub client: Certificate,
}

/// The result of a simulated rotation.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// How long it took to complete, or to stop.
    pub takes: SignedDuration,
    /// Whether it completed.
    pub completes: bool,
    /// What it waits for. Empty when it completed.
    pub waits: Vec<Wait>,
    /// Which clients block the switch of the serving certificate.
    pub switch_blocker: Option<SwitchBlocker>,
}

/// Simulates a rotation that starts at `now`. Change windows and pauses are ignored: they delay a rotation, and do not stop it. Where
/// clients have a separate CA, both are simulated, and the one that stops or takes longer is returned.
pub fn forecast(seen: &Snapshot<'_>, journal: &Journal, trial: &TrialCa, now: Timestamp) -> Forecast {
    let run = |of_clients| Simulation::new(seen, journal, trial, of_clients, now).run();
    let mut server = run(false);
    // The temporary CA has another subject than the next one.
    if let Some(wait) = planner::successor_wait(seen) {
        server.completes = false;
        server.waits.insert(0, wait);
    }
    if seen.entry.spec.clients.ca_secret_ref.is_none() {
        return server;
    }
    let clients = run(true);
    let is_worse = (!clients.completes, clients.takes) > (!server.completes, server.takes);
    if is_worse { clients } else { server }
}

/// An object of which the agent writes a copy.
struct Copied {
    facts: Option<SecretSummary>,
    is_foreign: bool,
}

impl Copied {
    fn of(copy: TrustCopy<'_>) -> Self {
        let facts = if let TrustCopy::Managed(facts) = copy { Some(facts.clone()) } else { None };
        Self { facts, is_foreign: matches!(copy, TrustCopy::Foreign) }
    }

    fn seen(&self) -> TrustCopy<'_> {
        match &self.facts {
            _ if self.is_foreign => TrustCopy::Foreign,
            Some(facts) => TrustCopy::Managed(facts),
            None => TrustCopy::Absent,
        }
    }
}

struct Simulation<'s> {
    real: &'s Snapshot<'s>,
    trial: &'s TrialCa,
    entry: Entry,
    source: Option<SecretSummary>,
    ca: Option<SecretSummary>,
    client_ca: Option<SecretSummary>,
    issuer: Option<SecretSummary>,
    managed: Option<SecretSummary>,
    managed_sibling: Copied,
    config_maps: Vec<Copied>,
    clients: Vec<ClientState>,
    bundle_readers: Vec<ClientState>,
    presented_also: Vec<FurtherCertificate>,
    source_certificate: Option<Issuance>,
    sources: BTreeMap<SourceName, SourceState>,
    journal: Journal,
    now: Timestamp,
}

impl<'s> Simulation<'s> {
    /// The simulation at the instant at which a CA is replaced: that of the clients, or that of the serving
    /// certificate.
    fn new(real: &'s Snapshot<'s>, journal: &Journal, trial: &'s TrialCa, of_clients: bool, now: Timestamp) -> Self {
        let mut entry = real.entry.clone();
        entry.spec.paused = false;
        entry.policy.change_windows.clear();
        // Nothing is probed in a simulation: results of earlier probes would never change.
        entry.policy.probe.target = None;
        let mut clients = representatives(real.declared_clients(), &real.readers);
        for client in &mut clients {
            client.pending = None;
            client.certificate = client.certificate.take().map(idle);
        }
        let mut journal = journal.clone();
        let is_simulated = |name: &str| clients.iter().any(|client| client.name == name);
        let is_declared = |name: &str| real.declared_clients().any(|client| client.name == name);
        journal.clients.retain(|name, _| is_simulated(name) || !is_declared(name));
        let mut simulation = Self {
            real,
            trial,
            entry,
            source: real.source.cloned(),
            ca: real.ca.cloned(),
            client_ca: real.client_ca.cloned(),
            issuer: real.issuer.cloned(),
            managed: real.managed.cloned(),
            managed_sibling: Copied::of(real.managed_sibling),
            config_maps: real.config_maps.iter().map(|map| Copied::of(map.managed)).collect(),
            clients,
            bundle_readers: real.bundle_readers.clone(),
            presented_also: real.presented_also.iter().cloned().map(presented).collect(),
            source_certificate: real.source_certificate.clone().map(idle),
            sources: real.sources.clone(),
            journal,
            now,
        };
        let new = Some(simulation.signing());
        match () {
            () if of_clients => simulation.client_ca = new,
            () if real.entry.resolved.ca_secret_ref.is_some() => simulation.ca = new,
            () if real.source.is_some_and(|source| source.chain.first().is_some_and(|leaf| leaf.is_ca)) => {
                simulation.source = new
            }
            // The source Secret gets the new CA with its next certificate.
            () => simulation.source = Some(simulation.serving()),
        }
        simulation
    }

    fn signing(&self) -> SecretSummary {
        SecretSummary {
            anchors: vec![self.trial.ca.clone()],
            chain: vec![self.trial.ca.clone()],
            ..SecretSummary::default()
        }
    }

    fn serving(&self) -> SecretSummary {
        SecretSummary { chain: vec![self.trial.serving.clone()], ..self.signing() }
    }

    fn run(mut self) -> Forecast {
        let started = self.now;
        for _ in 0..PLANS {
            let before = (self.journal.clone(), self.entry.status.client_bundle.clone());
            let plan = self.plan();
            plan.steps.iter().for_each(|step| self.take(step, &plan));
            if !plan.steps.is_empty() || before != (self.journal.clone(), self.entry.status.client_bundle.clone()) {
                self.now += STEP;
                continue;
            }
            let completes = plan.phase == Phase::Steady && plan.cut_off.is_empty();
            // At the deadline, gateways switch the serving certificate even if clients do not trust the new one.
            let switch = plan.switch_blocker.as_ref().map(|blocker| blocker.switch);
            let helps =
                |wake: &Timestamp| wake.duration_since(self.now) <= PATIENCE && switch.is_none_or(|at| *wake < at);
            match plan.wake.filter(|wake| plan.phase != Phase::Steady && helps(wake)) {
                Some(wake) => self.now = wake,
                None => return self.end(started, completes, plan),
            }
        }
        let plan = self.plan();
        self.end(started, false, plan)
    }

    fn end(&self, started: Timestamp, completes: bool, plan: Plan) -> Forecast {
        let waits = if completes { Vec::new() } else { plan.waits };
        let switch_blocker = plan.switch_blocker.filter(|_| !completes);
        Forecast { takes: self.now.duration_since(started), completes, waits, switch_blocker }
    }

    /// Plans once, and lets webhooks and readers of bundles load the result.
    fn plan(&mut self) -> Plan {
        let plan = planner::plan(&self.seen(), &self.journal, self.now);
        self.journal = plan.journal.clone();
        self.entry.status.client_bundle = plan.client_bundle.iter().map(TrustAnchor::from).collect();
        for reader in &mut self.bundle_readers {
            reader.trust = Trust::Read(plan.client_bundle.clone());
        }
        plan
    }

    fn seen(&self) -> Snapshot<'_> {
        let maps = self.real.config_maps.iter().zip(&self.config_maps);
        Snapshot {
            entry: &self.entry,
            source: self.source.as_ref(),
            ca: self.ca.as_ref(),
            client_ca: self.client_ca.as_ref(),
            issuer: self.issuer.as_ref(),
            managed: self.managed.as_ref(),
            source_sibling: self.real.source_sibling,
            managed_sibling: self.managed_sibling.seen(),
            additional_trust: self.real.additional_trust.clone(),
            config_maps: maps
                .map(|(real, kept)| CaConfigMap { name: real.name.clone(), source: real.source, managed: kept.seen() })
                .collect(),
            clients: self.clients.clone(),
            bundle_readers: self.bundle_readers.clone(),
            // They get the new CA as well.
            other_gateway_secrets: Vec::new(),
            // The agent restarts the workloads of TrustConsumers, so they block nothing.
            trust_loaders: Vec::new(),
            unlisted_namespaces: self.real.unlisted_namespaces,
            namespaces: self.real.namespaces.clone(),
            source_certificate: self.source_certificate.clone(),
            canary: None,
            probe_result: None,
            unprobed: None,
            readers: self.real.readers.clone(),
            sources: self.sources.clone(),
            presented_also: self.presented_also.clone(),
        }
    }

    fn take(&mut self, step: &Step, plan: &Plan) {
        match step {
            Step::WriteManaged { trust, pair } => {
                let from = match pair {
                    PairOf::Managed => self.managed.as_ref(),
                    PairOf::Source => self.source.as_ref(),
                };
                let chain = from.map(|facts| facts.chain.clone()).unwrap_or_default();
                let written = SecretSummary { anchors: trust.clone(), chain, ..SecretSummary::default() };
                self.managed = Some(written.with_lists_of(planner::list_source(&self.seen())));
            }
            Step::WriteSibling { trust } => {
                write(&mut self.managed_sibling, trust, self.real.source_sibling);
                let name = format!("{}{CACERT_SUFFIX}", self.entry.managed_name());
                let source = SourceName::secret(&self.entry.namespace, name);
                self.sources.insert(source, SourceState::Holds(trust.clone()));
            }
            Step::WriteConfigMap { source, trust } => {
                for (real, kept) in self.real.config_maps.iter().zip(&mut self.config_maps) {
                    if real.name == *source {
                        write(kept, trust, real.source);
                    }
                }
                let name = managed_config_map_name(source);
                let source = SourceName { kind: SourceKind::ConfigMap, namespace: self.entry.namespace.clone(), name };
                self.sources.insert(source, SourceState::Holds(trust.clone()));
            }
            Step::CopySource => self.managed = self.source.clone(),
            Step::PromoteIssuer => {
                let own = self.entry.spec.clients.ca_secret_ref.is_some();
                self.issuer =
                    if own { self.client_ca.clone() } else { self.ca.clone().or_else(|| self.source.clone()) };
            }
            Step::Reissue { certificate } => self.reissue(certificate, plan),
        }
    }

    fn reissue(&mut self, certificate: &str, plan: &Plan) {
        if self.real.source_certificate.as_ref().is_some_and(|source| source.name == certificate) {
            self.source = Some(self.serving());
        }
        let is_it = |issuance: &Option<planner::Issuance>| issuance.as_ref().is_some_and(|one| one.name == certificate);
        for client in self.clients.iter_mut().filter(|client| is_it(&client.certificate)) {
            client.chain = vec![self.trial.client.clone()];
            client.trust = Trust::Read(plan.client_bundle.clone());
        }
        for also in self.presented_also.iter_mut().filter(|also| is_it(&also.certificate)) {
            also.chain = Some(vec![self.trial.serving.clone()]);
        }
    }
}

/// A Certificate that is not being issued.
fn idle(certificate: Issuance) -> Issuance {
    Issuance { issuing: None, renewal: without_date(certificate.renewal), ..certificate }
}

/// Renewal windows delay a rotation, as change windows do, and block it only if it is unknown until when.
fn without_date(renewal: RenewalPolicy) -> RenewalPolicy {
    if let RenewalPolicy::Windows(Some(_)) = renewal { RenewalPolicy::Anytime } else { renewal }
}

fn presented(also: FurtherCertificate) -> FurtherCertificate {
    FurtherCertificate { certificate: also.certificate.map(idle), ..also }
}

fn write(kept: &mut Copied, trust: &[Certificate], source: Option<&SecretSummary>) {
    let written = SecretSummary { anchors: trust.to_vec(), ..SecretSummary::default() };
    kept.facts = Some(written.with_lists_of(source));
}

/// One client for each group of clients that a rotation treats in the same way. Clients without a Certificate are not
/// grouped, since a person has to renew each.
fn representatives<'c>(clients: impl Iterator<Item = &'c ClientState>, readers: &[TlsReader]) -> Vec<ClientState> {
    let mut kinds = BTreeSet::new();
    let hashes = readers.iter().flat_map(TlsReader::hashes).collect();
    let is_named = |leaf: &Certificate| is_among(&hashes, leaf);
    let is_first = |client: &&ClientState| {
        let kind = match &client.certificate {
            Some(certificate) => format!("{:?} {:?}", without_date(certificate.renewal), certificate.blocked),
            None => client.name.clone(),
        };
        kinds.insert((
            client.certificate.is_some(),
            kind,
            client.loads_once,
            client.chain.first().is_some_and(is_named),
        ))
    };
    clients.filter(is_first).take(SIMULATED).cloned().collect()
}

/// Adds condition `RotationReady` to a status in phase Steady, and how long a rotation takes. The condition does not describe a rotation that has
/// started; the duration stays, so that it can be compared with what is left of the old CA.
pub fn report_readiness(entry: &Entry, forecast: Option<&Forecast>, status: &mut GatewaySecretStatus, now: Timestamp) {
    // In mode Copy the managed Secret gets the new certificates at once: there is nothing to forecast.
    let steady = status.phase == Some(Phase::Steady) && entry.spec.mode == Mode::Bundle;
    let Some(forecast) = forecast.filter(|_| steady) else {
        return remove(status, READINESS);
    };
    // Rounded, because each change of the status is a write.
    let minutes = forecast.takes.as_mins() + 1;
    status.rotation_duration = forecast.completes.then_some(Period::from_secs(60 * minutes));
    let said = match forecast.completes {
        true => {
            let takes = match usize::try_from(minutes).unwrap_or_default() {
                minutes @ ..=60 => counted(minutes, "minute"),
                minutes => counted((minutes - 1) / 60 + 1, "hour"),
            };
            let message = format!("A CA rotation started now would complete without manual steps in about {takes}.");
            (ConditionStatus::True, "Completes", message)
        }
        false => {
            let blocked = blocked(entry, &forecast.waits);
            let blocked = blocked.trim_end_matches('.');
            let then = forecast.switch_blocker.as_ref().map(consequence).unwrap_or_default();
            let message = format!("A CA rotation started now would not complete: {blocked}.{then}");
            (ConditionStatus::False, "Blocked", message)
        }
    };
    set(entry, status, READINESS, said, now);
}

/// What blocks the rotation: part of a sentence.
fn blocked(entry: &Entry, waits: &[Wait]) -> String {
    let mut reasons: Vec<_> = waits.iter().map(|wait| wait.reason.as_str()).collect();
    reasons.dedup();
    match reasons.is_empty() {
        true => {
            format!("if no cert-manager Certificate writes Secret {0}, renew Secret {0} manually", entry.source_name())
        }
        false => reasons.join("; "),
    }
}

/// What happens to clients that block the switch of the serving certificate: part of a sentence.
fn consequence(blocker: &SwitchBlocker) -> String {
    let SwitchBlocker { clients, end, switch } = blocker;
    let who = match clients {
        Some(names) => format!("clients that may not trust its CA ({names})"),
        None => "clients that trust only the old CA".to_owned(),
    };
    format!(
        " At {switch} gateways would switch to the new serving certificate (the current one expires at {end}), and {who} would fail to \
         connect."
    )
}

#[cfg(test)]
mod tests;
