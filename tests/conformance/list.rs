//! The lists of divergences: cases in which trustspan's verdict is not what the suite expects, each with its reason.
//!
//! A line is `id | cases | verdict | Envoy | reason`. An id that ends with `*` is of as many cases as the line says. The verdict is
//! `accepted`, or the id of the reason why `trustspan verify` refuses the chain. What Envoy does is in [`EnvoyVerdict`].

use std::fmt;

use anyhow::{Context, Result, bail, ensure};

/// What Envoy does with a chain, compared with trustspan's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnvoyVerdict {
    /// The same.
    Agrees,
    /// It accepts what trustspan refuses.
    Accepts,
    /// It refuses what trustspan accepts.
    Refuses,
    /// It cannot be asked: the case is of another date, at which the verdict is another one.
    Unknown,
}

impl fmt::Display for EnvoyVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agrees => "agrees",
            Self::Accepts => "accepts",
            Self::Refuses => "refuses",
            Self::Unknown => "unknown",
        })
    }
}

/// A case whose verdict is not what the suite expects.
pub(crate) struct Divergence<'a> {
    pub(crate) id: &'a str,
    pub(crate) verdict: &'static str,
    pub(crate) envoy: EnvoyVerdict,
}

struct Line<'a> {
    id: &'a str,
    cases: usize,
    verdict: &'a str,
    envoy: &'a str,
}

impl<'a> Line<'a> {
    fn read(text: &'a str) -> Result<Self> {
        let fields: Vec<_> = text.splitn(5, " | ").map(str::trim).collect();
        let [id, cases, verdict, envoy, reason] = fields[..] else {
            bail!("expected id | cases | verdict | Envoy | reason");
        };
        ensure!(!["", "…"].contains(&reason), "expected a reason");
        Ok(Self { id, cases: cases.parse().context("the number of cases")?, verdict, envoy })
    }

    fn is_of(&self, divergence: &Divergence<'_>) -> bool {
        let has_id = match self.id.strip_suffix('*') {
            Some(start) => divergence.id.starts_with(start),
            None => divergence.id == self.id,
        };
        has_id && self.verdict == divergence.verdict && self.envoy == divergence.envoy.to_string()
    }
}

/// How divergences differ from a list.
pub(crate) fn differences(list: &str, divergences: &[Divergence<'_>]) -> Result<Vec<String>> {
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let lines: Vec<_> = lines.map(|line| Line::read(line).with_context(|| line.to_owned())).collect::<Result<_>>()?;
    let mut seen = vec![0; lines.len()];
    let mut differences = Vec::new();
    for divergence in divergences {
        match lines.iter().position(|line| line.is_of(divergence)) {
            Some(at) => seen[at] += 1,
            None => {
                let Divergence { id, verdict, envoy } = divergence;
                differences.push(format!("not listed: {id} | 1 | {verdict} | {envoy} | …"));
            }
        }
    }
    for (line, seen) in lines.iter().zip(seen).filter(|(line, seen)| line.cases != *seen) {
        let Line { id, cases, verdict, envoy } = line;
        differences.push(format!("listed {cases}, seen {seen}: {id} | {verdict} | {envoy}"));
    }
    Ok(differences)
}

/// The comparison finds what a list lacks, and what it should not have.
pub(crate) fn finds_differences() -> Result<()> {
    let of = |id, verdict| Divergence { id, verdict, envoy: EnvoyVerdict::Agrees };
    let all = [of("a::1", "expired"), of("a::2", "expired"), of("b", "accepted")];
    let list = "# comment\n\na::* | 2 | expired | agrees | why\nb | 1 | accepted | agrees | why";
    ensure!(differences(list, &all)?.is_empty());
    ensure!(differences(list, &all[1..])? == ["listed 2, seen 1: a::* | expired | agrees"]);
    for (from, to) in [("b |", "c |"), ("accepted", "expired"), ("accepted | agrees", "accepted | accepts")] {
        let changed = differences(&list.replace(from, to), &all)?;
        ensure!(changed.len() == 2 && changed[0] == "not listed: b | 1 | accepted | agrees | …", "{changed:?}");
    }
    ensure!(differences("b | 1 | accepted | agrees |", &all).is_err(), "each line has a reason");
    Ok(())
}
