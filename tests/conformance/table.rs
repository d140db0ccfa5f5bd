//! The numbers of a suite.

use std::{collections::BTreeMap, fmt};

use crate::{case::ACCEPTED, list::EnvoyVerdict};

/// Numbers of cases.
#[derive(Default)]
pub(crate) struct Table {
    /// By what the suite expects, and by whether trustspan accepts the chain.
    suite: BTreeMap<(bool, bool), usize>,
    /// By what Envoy does, and for chains that trustspan refuses and Envoy accepts by the reason.
    envoy: BTreeMap<String, usize>,
}

impl Table {
    pub(crate) fn add(&mut self, is_valid: bool, verdict: &str, envoy: EnvoyVerdict) {
        *self.suite.entry((is_valid, verdict == ACCEPTED)).or_default() += 1;
        let what = match envoy {
            EnvoyVerdict::Agrees => "Envoy agrees".to_owned(),
            EnvoyVerdict::Accepts => format!("Envoy accepts, trustspan refuses: {verdict}"),
            EnvoyVerdict::Refuses => "Envoy refuses, trustspan accepts".to_owned(),
            EnvoyVerdict::Unknown => "Envoy cannot be asked: the verdict is of another date".to_owned(),
        };
        *self.envoy.entry(what).or_default() += 1;
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |is_valid, is_accepted| self.suite.get(&(is_valid, is_accepted)).copied().unwrap_or_default();
        for (what, count) in [
            ("cases", self.suite.values().sum()),
            ("accepted, as expected", count(true, true)),
            ("refused, as expected", count(false, false)),
            ("refused, stricter than the suite", count(true, false)),
            ("accepted, laxer than the suite", count(false, true)),
        ] {
            writeln!(f, "{count:>8}  {what}")?;
        }
        self.envoy.iter().try_for_each(|(what, count)| writeln!(f, "{count:>8}  {what}"))
    }
}
