//! A case in BoringSSL and in trustspan, and whether the two agree.

use anyhow::{Context, Result, bail};
use jiff::{SignedDuration, Timestamp, civil};
use rustls::pki_types::CertificateDer;
use trustspan::trust::{Certificate, bundle, chain::Purpose};

use crate::{
    case::{self, Case, Effect, Snapshot, is_cautious},
    chains, changed,
    client::Outcome,
    constrained, expect,
    generated::{self, Side},
    judge::{self, Judge, Load},
    lists,
    pki::{Identity, Keys, Kind, Spec},
    proxy::{Content, Update},
    run, signed,
    testbed::Seed,
    texts,
};

/// A kind of case: the prefix of its names, and its share of all cases in percent.
#[derive(Clone, Copy)]
pub(crate) struct Sort {
    pub(crate) name: &'static str,
    pub(crate) percent: usize,
    pub(crate) try_one: fn(&Judge, usize) -> Result<Trial>,
}

pub(crate) const SORTS: [Sort; 9] = [
    Sort { name: "mutated", percent: 15, try_one: |judge, number| trial(judge, texts::case(number)?) },
    Sort { name: "lists", percent: 10, try_one: |judge, number| trial(judge, lists::case(number)?) },
    Sort { name: "pki", percent: 15, try_one: |judge, number| trial(judge, generated::case(number)?) },
    Sort { name: "dates", percent: 10, try_one: dated },
    Sort { name: "server", percent: 10, try_one: servers },
    Sort { name: "chain", percent: 15, try_one: |judge, number| trial(judge, chains::case(number)?) },
    Sort { name: "constrained", percent: 10, try_one: |judge, number| trial(judge, constrained::case(number)?) },
    Sort { name: "changed", percent: 10, try_one: |judge, number| trial(judge, changed::case(number)?) },
    Sort { name: "signed", percent: 5, try_one: |judge, number| trial(judge, signed::case(number)?) },
];

/// A case, and the result of the comparison.
#[derive(Default)]
pub(crate) struct Trial {
    pub(crate) name: String,
    /// `None` if this test cannot do what Envoy does.
    pub(crate) result: Option<case::Result>,
    pub(crate) disagreements: Vec<String>,
    /// A description of the case, if the verdicts differ.
    pub(crate) text: String,
    /// The case to replay. `None` if its time or side differs from that of the real Envoy.
    pub(crate) replay: Option<(Case, Snapshot)>,
}

/// The serving certificate of the gateway.
pub(crate) fn gateway() -> Result<Identity> {
    let mut keys = Keys::shuffled(&mut Seed::of_run("bench"));
    let root = Identity::root(Spec::ca("bench"), keys.of(Kind::P256)?)?;
    let spec = Spec { san: Some("gateway.example".to_owned()), ..Spec::leaf("gateway") };
    root.issue(spec, keys.of(Kind::P256)?)
}

/// Compares BoringSSL, as a gateway with the bundle of a case, and trustspan on the case's clients.
pub(crate) fn trial(judge: &Judge, case: Case) -> Result<Trial> {
    let now = Timestamp::now();
    let Some(seen) = snapshot(judge, &case, now)? else { return Ok(Trial { name: case.name, ..Trial::default() }) };
    let trial = compared(&case, &seen, now)?;
    Ok(Trial { replay: Some((case, seen)), ..trial })
}

fn compared(case: &Case, seen: &Snapshot, now: Timestamp) -> Result<Trial> {
    let mut result = case.compare(seen, now);
    let disagreements = result.disagreements.clone();
    let text = if disagreements.is_empty() { String::new() } else { run::describe(case, &result)? };
    result.disagreements.clear();
    Ok(Trial { name: case.name.clone(), result: Some(result), disagreements, text, replay: None })
}

fn snapshot(judge: &Judge, case: &Case, now: Timestamp) -> Result<Option<Snapshot>> {
    let Content::Trust { ca, crl } = &case.content else { return Ok(None) };
    let loaded = match judge.load(judge::Side::Gateway, ca, crl.as_deref())? {
        Load::Accepted(loaded) => loaded,
        Load::Rejected => return Ok(Some(Snapshot { update: Update::Rejected, outcomes: Vec::new() })),
        Load::Unknown => return Ok(None),
    };
    let outcomes = case.probes.iter().map(|probe| loaded.meet(&probe.identity, now).context(probe.label.clone()));
    Ok(Some(Snapshot { update: Update::Accepted, outcomes: outcomes.collect::<Result<_>>()? }))
}

/// Compares the verdicts at an instant near one at which certificates and lists begin or end.
fn dated(judge: &Judge, number: usize) -> Result<Trial> {
    let name = format!("dates-{number}");
    let mut case = generated::case_of(&name, Side::Clients)?;
    // The valid clients depend on the time.
    case.probes.iter_mut().for_each(|probe| probe.shows = None);
    let seed = &mut Seed::of_run(&format!("time of {name}"));
    let year = i16::from(Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).year());
    let year = year + [-5, -1, 1, 9][seed.below(4) as usize];
    let instant = civil::date(year, 1, 1).to_zoned(jiff::tz::TimeZone::UTC)?.timestamp();
    let now = instant.checked_add(SignedDuration::from_secs(seed.below(5) as i64 - 2))?;
    case.description += &format!("; at {now}");
    // A client that is not valid then is refused for itself.
    let is_valid = |leaf: &CertificateDer<'_>| Certificate::parse(leaf).is_ok_and(|leaf| leaf.is_valid_at(now));
    for probe in case.probes.iter_mut().filter(|probe| !probe.identity.cert.first().is_some_and(is_valid)) {
        probe.plain_of = None;
    }
    match snapshot(judge, &case, now)? {
        Some(seen) => compared(&case, &seen, now),
        None => Ok(Trial { name, ..Trial::default() }),
    }
}

/// Compares the verdicts of BoringSSL, as a client with the bundle of a case, on servers that present the chains of its
/// probes.
fn servers(judge: &Judge, number: usize) -> Result<Trial> {
    let case = generated::case_of(&format!("server-{number}"), Side::Servers)?;
    let Content::Trust { ca, crl } = &case.content else { bail!("{}: no bundle", case.name) };
    let mut trial = Trial { name: case.name.clone(), ..Trial::default() };
    let Load::Accepted(loaded) = judge.load(judge::Side::Client, ca, crl.as_deref())? else { return Ok(trial) };
    let (bundle, now) = (bundle::read(ca), Timestamp::now());
    let mut result = case::Result::new(Effect::Works);
    for server in &case.probes {
        let seen = loaded.meet(&server.identity, now)?;
        let said = expect::judged(&bundle, crl.as_deref(), server, Purpose::Server { hosts: &[] }, now);
        let said = said.with_context(|| format!("{}: nothing is said", case.name))?;
        result.clients.push((said.is_ok(), seen.passed()));
        match (said, seen) {
            (Ok(()), Outcome::Refused(why)) => {
                trial
                    .disagreements
                    .push(format!("server {}: trustspan accepts it, Envoy refuses it: {why}", server.label));
            }
            (Err(refused), Outcome::Passed(_)) if !is_cautious(&refused) => {
                let (label, id) = (&server.label, refused.id());
                trial.disagreements.push(format!("server {label}: trustspan says {id}: {refused}. Envoy accepts it"));
            }
            _ => {}
        }
    }
    if !trial.disagreements.is_empty() {
        result.disagreements.clone_from(&trial.disagreements);
        trial.text = run::describe(&case, &result)?;
        result.disagreements.clear();
    }
    trial.result = Some(result);
    Ok(trial)
}
