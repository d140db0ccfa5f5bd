//! Over random histories: no connection fails, and each one ends Steady.

use std::panic::catch_unwind;

use super::cluster::Cluster;
use super::history::{ENDING, Event, HARMFUL, HARMLESS};
use crate::rotation::planner::rules::{Rule, without};
use crate::seed::Seed;

/// Number of histories of each kind; `TRUSTSPAN_CASES` sets another number, `TRUSTSPAN_CASE` selects one.
/// `TRUSTSPAN_SEED` repeats a run.
const CASES: u64 = 60;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The kinds of histories, and the events of one.
type Kind = (&'static str, fn(&mut Seed) -> Vec<Event>);

const HARMLESS_EVENTS: Kind = ("harmless", |seed| some(seed, &HARMLESS));
const ENDING_CA: Kind = ("ending", |seed| some(seed, &ENDING));
const HARMFUL_EVENTS: Kind = ("harmful", |seed| [some(seed, &HARMLESS), some(seed, &HARMFUL)].concat());
const LOST_POLICY: Kind = ("lost policy", |seed| with(seed, Event::LosePolicy, &HARMLESS));
const LOST_TARGET: Kind = ("lost target", |seed| with(seed, Event::LoseTarget, &HARMLESS));
const BROKEN_ISSUERS: Kind = ("ending with broken issuers", |seed| with(seed, Event::BreakIssuer, &ENDING));
const FROZEN_GATEWAY: Kind = ("ending with a frozen gateway", |seed| with(seed, Event::FreezeGateway, &ENDING));
const CLOSED_WINDOWS: Kind = ("ending with closed windows", |seed| with(seed, Event::Windows, &ENDING));
const SCALED_UP: Kind = ("scaled up", |seed| with(seed, Event::ScaleUp, &HARMLESS));
const REFUSED_STEPS: Kind = ("ending with refused steps", |seed| with(seed, Event::RefuseSteps, &ENDING));

/// Lives through one history.
///
/// # Panics
/// When a connection fails, or it does not end Steady.
fn live((kind, events): Kind, case: u64) {
    let mut seed = Seed::of_run(&format!("{kind} {case}"));
    let events = events(&mut seed);
    let mut cluster = Cluster::random(seed, kind.starts_with(ENDING_CA.0));
    cluster.live_through(&events);
    cluster.assert_steady();
}

fn each_history(kind: Kind) {
    let one = number("TRUSTSPAN_CASE");
    let (first, last) = one.map_or((0, number("TRUSTSPAN_CASES").unwrap_or(CASES)), |case| (case, case + 1));
    // The panic has printed what failed.
    let fails = |case: &u64| catch_unwind(|| live(kind, *case)).is_err();
    let failed: Vec<_> = (first..last).filter(fails).collect();
    let (count, kind) = (last - first, kind.0);
    assert!(failed.is_empty(), "{} of {count} {kind} histories failed: TRUSTSPAN_CASE={failed:?}", failed.len());
}

fn some(seed: &mut Seed, of: &[Event]) -> Vec<Event> {
    (0..seed.below(6)).map(|_| of[seed.below(of.len() as u64) as usize]).collect()
}

/// Some events, and one of them for certain.
fn with(seed: &mut Seed, event: Event, others: &[Event]) -> Vec<Event> {
    [vec![event; 2], some(seed, others)].concat()
}

/// Each rule that histories can show to be necessary, and the kind of history. Directed tests take the others back.
const NECESSARY: [(Rule, Kind); 14] = [
    (Rule::Pace, HARMLESS_EVENTS),
    (Rule::UnknownIsLagging, HARMLESS_EVENTS),
    (Rule::TheEndOverridesClients, BROKEN_ISSUERS),
    (Rule::TheEndOverridesGateways, FROZEN_GATEWAY),
    (Rule::TheEndOverridesPromotion, CLOSED_WINDOWS),
    (Rule::ChainsAreReissued, ENDING_CA),
    (Rule::DelaysOutliveTheirPolicy, LOST_POLICY),
    (Rule::TruststoresHideCas, HARMLESS_EVENTS),
    (Rule::ProbeUntilSteady, SCALED_UP),
    (Rule::SightingsOutliveTheirTarget, LOST_TARGET),
    (Rule::IndependentSteps, REFUSED_STEPS),
    (Rule::RefusalsNameTheirReason, HARMLESS_EVENTS),
    (Rule::RetiredClientsAreNotAwaited, HARMLESS_EVENTS),
    (Rule::DeletedNamespacesAreRemembered, HARMLESS_EVENTS),
];

/// Those that a few histories notice.
const NOTICED_EARLY: [Rule; 2] = [Rule::UnknownIsLagging, Rule::RefusalsNameTheirReason];

/// `TRUSTSPAN_TAKEN_BACK` is the number of histories within which each must be noticed. Without it only some are tried.
#[test]
fn histories_notice_each_rule_that_is_taken_back() {
    let most = number("TRUSTSPAN_TAKEN_BACK");
    let tried = NECESSARY.into_iter().filter(|(rule, _)| most.is_some() || NOTICED_EARLY.contains(rule));
    // The first few notice them with most seeds.
    let most = most.unwrap_or(500);
    let mut missed = Vec::new();
    for (rule, kind) in tried {
        let fails = |case: &u64| {
            let lives = || catch_unwind(|| live(kind, *case)).is_ok();
            !without(rule, lives) && lives()
        };
        match (0..most).find(fails) {
            Some(case) => println!("{rule:?} taken back: noticed in {} history {case}", kind.0),
            None => missed.push(rule),
        }
    }
    assert!(missed.is_empty(), "not noticed within {most} histories: {missed:?}");
}

#[test]
fn no_connection_fails_and_every_history_ends_steady() {
    each_history(HARMLESS_EVENTS);
}

#[test]
fn the_end_of_a_ca_fails_no_client_that_can_be_reissued() {
    each_history(ENDING_CA);
}

#[test]
fn ends_steady_after_harm() {
    each_history(HARMFUL_EVENTS);
}
