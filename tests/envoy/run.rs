//! Runs cases against Envoy, in batches: many secrets at once, then many clients at once.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use trustspan::trust::Verdict;

use crate::{
    case::{self, Case, Effect, Snapshot},
    client::visit,
    pki::block,
    proxy::{Content, PAIR_SLOTS, Proxy, TRUST_SLOTS, Update, pair_slot, trust_slot},
    testbed,
};

/// Concurrent clients. They spend most of the time waiting for Envoy.
const CLIENTS: usize = 4;
/// Limit of disagreements that are printed one by one.
const PRINTED: usize = 12;

/// The results of this run, for the table at its end.
#[derive(Default)]
pub(crate) struct Table {
    cases: BTreeMap<(Verdict, Effect), usize>,
    clients: BTreeMap<(bool, bool), usize>,
    unpredicted: usize,
    /// How often each rule denied a case that works in Envoy.
    stricter: BTreeMap<String, usize>,
    /// How often trustspan refused a client that Envoy accepts, by reason.
    cautious: BTreeMap<&'static str, usize>,
    /// The number of servers by two verdicts: whether trustspan accepts the server, and whether Envoy does.
    servers: BTreeMap<(bool, bool), usize>,
}

/// Runs all cases and adds them to the table. Fails if there are disagreements.
pub(crate) fn run(proxy: &mut Proxy, table: &mut Table, cases: &[Case]) -> Result<()> {
    let mut disagreements = Vec::new();
    let is_pair = |case: &&Case| matches!(case.content, Content::Pair { .. });
    let (pairs, trust): (Vec<_>, Vec<_>) = cases.iter().partition(is_pair);
    for batch in trust.chunks(TRUST_SLOTS).chain(pairs.chunks(PAIR_SLOTS)) {
        let seen = attempt(proxy, batch)?;
        let now = Timestamp::now();
        for (case, seen) in batch.iter().zip(&seen) {
            let result = case.compare(seen, now);
            table.add(&result);
            if !result.disagreements.is_empty() {
                disagreements.push(describe(case, &result)?);
            }
        }
    }
    if disagreements.is_empty() {
        return Ok(());
    }
    let printed = disagreements.iter().take(PRINTED).cloned().collect::<String>();
    bail!("{} of {} cases disagree\n{printed}", disagreements.len(), cases.len());
}

/// The result of each case of a batch in Envoy.
pub(crate) fn attempt(proxy: &mut Proxy, batch: &[&Case]) -> Result<Vec<Snapshot>> {
    let slot = |(number, case): (usize, &&Case)| match case.content {
        Content::Trust { .. } => trust_slot(number),
        Content::Pair { .. } => pair_slot(number),
    };
    let slots: Vec<_> = batch.iter().enumerate().map(slot).collect();
    let secrets: Vec<_> = slots.iter().cloned().zip(batch.iter().map(|case| case.content.clone())).collect();
    let updates = proxy.load(&secrets)?;
    let mut visits = Vec::new();
    for (at, case) in batch.iter().enumerate().filter(|(at, _)| updates[*at] == Update::Accepted) {
        match case.content {
            Content::Trust { .. } => visits.extend(case.probes.iter().map(|probe| (at, Some(&probe.identity)))),
            Content::Pair { .. } => visits.push((at, None)),
        }
    }
    let (next, results) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((at, identity)) = visits.get(number) else { return };
                    let outcome = visit(proxy.address(), &slots[*at], identity.cloned());
                    if let Ok(mut results) = results.lock() {
                        results.insert(number, outcome);
                    }
                }
            });
        }
    });
    let mut seen: Vec<_> = updates.into_iter().map(|update| Snapshot { update, outcomes: Vec::new() }).collect();
    for (number, outcome) in results.into_inner().unwrap_or_default() {
        let (at, _) = visits[number];
        seen[at].outcomes.push(outcome.with_context(|| batch[at].name.clone())?);
    }
    Ok(seen)
}

/// Describes the disagreement, and stores the bytes for a replay. They contain only test keys of this run.
pub(crate) fn describe(case: &Case, result: &case::Result) -> Result<String> {
    let dir = testbed::results();
    fs::create_dir_all(&dir)?;
    let mut text = format!("{}: {}\n", case.name, case.description);
    for disagreement in &result.disagreements {
        writeln!(text, "  {disagreement}")?;
    }
    let (effect, verdict) = (result.effect, result.verdict);
    writeln!(text, "  verdict {verdict:?} by {:?}, Envoy {effect}", result.rules)?;
    let files: Vec<(&str, &[u8])> = match &case.content {
        Content::Trust { ca, crl } => {
            [("ca.crt", ca.as_slice())].into_iter().chain(crl.as_deref().map(|crl| ("ca.crl", crl))).collect()
        }
        Content::Pair { chain, key } => vec![("tls.crt", chain), ("tls.key", key)],
    };
    for (key, bytes) in files {
        let file = dir.join(format!("{}-{key}", case.name));
        fs::write(&file, bytes)?;
        writeln!(text, "  {}", file.display())?;
    }
    for (number, probe) in case.probes.iter().enumerate() {
        let file = dir.join(format!("{}-client-{number}.pem", case.name));
        fs::write(&file, probe.identity.cert.iter().map(|der| block("CERTIFICATE", der)).collect::<String>())?;
        writeln!(text, "  {} is {}", file.display(), probe.label)?;
    }
    writeln!(text, "  again: {}", testbed::again(&case.name))?;
    Ok(text)
}

impl Table {
    pub(crate) fn add(&mut self, result: &case::Result) {
        *self.cases.entry((result.verdict, result.effect)).or_default() += 1;
        for client in &result.clients {
            *self.clients.entry(*client).or_default() += 1;
        }
        for id in &result.cautious {
            *self.cautious.entry(id).or_default() += 1;
        }
        self.unpredicted += result.unpredicted;
        if (result.verdict, result.effect) == (Verdict::Deny, Effect::Works) {
            *self.stricter.entry(result.rules.join(" + ")).or_default() += 1;
        }
    }

    pub(crate) fn add_server(&mut self, ours: bool, envoys: bool, cautious: Option<&'static str>) {
        *self.servers.entry((ours, envoys)).or_default() += 1;
        if let Some(id) = cautious {
            *self.cautious.entry(id).or_default() += 1;
        }
    }

    /// The number of secrets and servers that were tested.
    pub(crate) fn tried(&self) -> usize {
        self.secrets() + self.servers.values().sum::<usize>()
    }

    fn secrets(&self) -> usize {
        self.cases.values().sum()
    }

    /// The confusion table.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("\n{} secrets: what we say, what Envoy does\n{:8}", self.secrets(), "");
        let effects = [Effect::Works, Effect::Drops, Effect::RefusesAll, Effect::Rejects];
        for effect in effects {
            let _ = write!(text, "{effect:>15}");
        }
        for (verdict, name) in [(Verdict::Allow, "allow"), (Verdict::Warn, "warn"), (Verdict::Deny, "deny")] {
            let _ = write!(text, "\n{name:8}");
            for effect in effects {
                let _ = write!(text, "{:15}", self.cases.get(&(verdict, effect)).copied().unwrap_or_default());
            }
        }
        let clients = self.clients.values().sum::<usize>() + self.unpredicted;
        let _ = write!(text, "\n\n{clients} clients, {} of them not predicted", self.unpredicted);
        text += &passes(&self.clients);
        let _ = write!(text, "\n{} servers, with Envoy as the client", self.servers.values().sum::<usize>());
        text += &passes(&self.servers);
        if !self.stricter.is_empty() {
            text += "\ndenied though it works, by\n";
            for (rules, count) in &self.stricter {
                let _ = writeln!(text, "{count:8}  {rules}");
            }
        }
        if !self.cautious.is_empty() {
            text += "\nclients and servers refused though they pass, by\n";
            for (id, count) in &self.cautious {
                let _ = writeln!(text, "{count:8}  {id}");
            }
        }
        text
    }
}

/// The counts of clients or servers by both verdicts, as text.
fn passes(seen: &BTreeMap<(bool, bool), usize>) -> String {
    let count = |ours, envoys| seen.get(&(ours, envoys)).copied().unwrap_or_default();
    format!(
        "\n{:8}{:>15}{:>15}\npass    {:15}{:15}\nrefuse  {:15}{:15}\n",
        "",
        "passes",
        "refused",
        count(true, true),
        count(true, false),
        count(false, true),
        count(false, false),
    )
}
