//! The results of a run.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{
    BATCHES, TRUST_SLOTS,
    case::{Case, Snapshot},
    run,
    trial::Trial,
};

/// Limit of disagreements that are printed one by one.
const PRINTED: usize = 20;

#[derive(Default)]
struct Counts {
    cases: usize,
    /// The number of verdicts that were compared: one for each bundle and each client.
    verdicts: usize,
    disagree: usize,
    unknown: usize,
}

#[derive(Default)]
pub(crate) struct Table {
    sorts: BTreeMap<&'static str, Counts>,
    /// Each kind of disagreement, its number, and the first case.
    disagreements: BTreeMap<String, (usize, String)>,
    texts: Vec<String>,
    confusion: run::Table,
    replays: [Vec<(Case, Snapshot)>; 2],
}

impl Table {
    pub(crate) fn add(&mut self, sort: &'static str, trial: Trial, is_sample: bool) {
        let counts = self.sorts.entry(sort).or_default();
        counts.cases += 1;
        let Some(result) = &trial.result else {
            counts.unknown += 1;
            return;
        };
        counts.verdicts += 1 + result.clients.len();
        counts.disagree += usize::from(!trial.disagreements.is_empty());
        self.confusion.add(result);
        for what in &trial.disagreements {
            let seen = self.disagreements.entry(kind(what)).or_insert((0, trial.name.clone()));
            seen.0 += 1;
        }
        let disagrees = !trial.disagreements.is_empty();
        if disagrees && self.texts.len() < PRINTED {
            self.texts.push(trial.text);
        }
        let replays = &mut self.replays[usize::from(!disagrees)];
        if (disagrees || is_sample) && replays.len() < BATCHES * TRUST_SLOTS {
            replays.extend(trial.replay);
        }
    }

    pub(crate) fn tried(&self) -> usize {
        self.sorts.values().map(|counts| counts.cases).sum()
    }

    pub(crate) fn agrees(&self) -> bool {
        self.disagreements.is_empty()
    }

    /// Whether all disagreements are among the cases to replay.
    pub(crate) fn are_all_replayed(&self) -> bool {
        self.sorts.values().map(|counts| counts.disagree).sum::<usize>() == self.replays[0].len()
    }

    /// The cases to replay: all disagreements, and a sample of the agreements.
    pub(crate) fn replays(&mut self) -> Vec<(Case, Snapshot)> {
        std::mem::take(&mut self.replays).into_iter().flatten().collect()
    }

    pub(crate) fn text(&self) -> String {
        let mut text = self.confusion.text();
        let _ = writeln!(text, "\n{:12}{:>10}{:>10}{:>12}{:>12}", "", "cases", "verdicts", "disagree", "not judged");
        for (name, counts) in &self.sorts {
            let Counts { cases, verdicts, disagree, unknown } = counts;
            let _ = writeln!(text, "{name:12}{cases:10}{verdicts:10}{disagree:12}{unknown:12}");
        }
        for case in &self.texts {
            let _ = write!(text, "\n{case}");
        }
        if !self.disagreements.is_empty() {
            text += "\nall disagreements, with the first case of each\n";
        }
        for (what, (count, name)) in &self.disagreements {
            let _ = writeln!(text, "{count:8}  {what} ({name})");
        }
        text
    }
}

/// A disagreement as text, without the names that differ between cases.
fn kind(what: &str) -> String {
    let what = what.find("trustspan ").map_or(what, |at| &what[at..]);
    match what.strip_prefix("trustspan says ").and_then(|said| said.split(':').next()) {
        Some(id) => format!("trustspan says {id}, Envoy accepts it"),
        None => what.to_owned(),
    }
}
