//! The table of runs, and what each must show.

use std::{
    env, fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{
    gateways::Sources,
    issuer::{Certificates, MANAGED, PROMOTED, ROOT, SERVER},
    journal::Tally,
    kept, naive,
    pace::Pace,
    sound,
    testbed::Cluster,
    world::{Shape, World},
};

/// Failures that are told one by one; the rest stands in a file.
const TOLD: usize = 5;
/// What is asked of every run: so many new handshakes a second.
const RATE: f64 = 100.0;

/// A rotation, or whatever is done to the world.
type Script = fn(&mut World<'_>) -> Result<()>;

/// A run under traffic.
pub(crate) struct Run {
    pub(crate) name: &'static str,
    shape: Shape,
    script: Script,
    /// Whether gateways refuse clients.
    by_gateways: Seen,
    /// Whether clients refuse gateways.
    by_clients: Seen,
    /// Only clients that load once may fail.
    load_once_only: bool,
}

/// Refusals that must be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    None,
    Some,
    Any,
}

impl Seen {
    fn fits(self, count: usize) -> bool {
        match self {
            Self::None => count == 0,
            Self::Some => count > 0,
            Self::Any => true,
        }
    }
}

/// Nothing renews by itself in such a run.
const LONG: Duration = Duration::from_secs(3600);
/// Leaves that are renewed, and end, within a run. A busy machine has ten seconds to renew them: there are few of these.
const SHORT: Duration = Duration::from_secs(15);
/// Longer than it takes clients to follow.
const MIDDLING: Duration = Duration::from_secs(45);

const HELD_BACK: Shape = Shape {
    certificates: Certificates { issuer: PROMOTED, life: LONG, server_life: LONG, load_once_life: LONG, load_once: 3 },
    sources: Sources { pair: MANAGED, ca: MANAGED },
    by_agent: false,
};
/// The agent carries it through, while clients renew at moments of their own.
const KEPT: Shape = Shape {
    certificates: Certificates { life: MIDDLING, load_once_life: MIDDLING, ..HELD_BACK.certificates },
    by_agent: true,
    ..HELD_BACK
};
const NOT_HELD_BACK: Certificates = Certificates { issuer: ROOT, ..HELD_BACK.certificates };

const fn clean(name: &'static str, shape: Shape, script: Script) -> Run {
    Run { name, shape, script, by_gateways: Seen::None, by_clients: Seen::None, load_once_only: false }
}

/// All runs.
pub(crate) const RUNS: &[Run] = &[
    clean("accepts_renewals_under_one_ca", RENEWING, sound::renewals),
    clean("accepts_a_rotation_by_a_patient_hand", HELD_BACK, sound::by_hand),
    clean("accepts_a_rotation_by_the_agent", KEPT, kept::rotation),
    clean("accepts_agents_that_are_killed", KEPT, kept::killed),
    clean("accepts_rotations_in_a_burst", KEPT, kept::burst),
    clean("accepts_a_world_that_breaks", KEPT, kept::broken),
    clean("accepts_an_outage_of_the_webhooks", KEPT, kept::unjudged),
    Run {
        by_gateways: Seen::Some,
        by_clients: Seen::Some,
        ..clean("rejects_the_root_used_directly", DIRECT, naive::root_used_directly)
    },
    Run {
        by_clients: Seen::Some,
        load_once_only: true,
        ..clean("rejects_a_timed_leaf_switch", HELD_BACK, naive::timed_leaf_switch)
    },
    Run {
        by_clients: Seen::Some,
        ..clean("rejects_bundle_and_leaf_in_one_write", HELD_BACK, naive::bundle_and_leaf_in_one_write)
    },
    Run {
        by_gateways: Seen::Any,
        by_clients: Seen::Some,
        ..clean("rejects_no_settle_time", HELD_BACK, naive::no_settle_time)
    },
    Run { by_clients: Seen::Some, ..clean("rejects_ca_crt_as_it_comes", HELD_BACK, naive::ca_crt_as_it_comes) },
    Run {
        by_gateways: Seen::Some,
        by_clients: Seen::Any,
        ..clean("rejects_an_issuer_not_held_back", AHEAD, naive::issuer_not_held_back)
    },
];

const RENEWING: Shape = Shape {
    certificates: Certificates { life: MIDDLING, server_life: MIDDLING, load_once_life: SHORT, ..NOT_HELD_BACK },
    ..DIRECT
};
const DIRECT: Shape = Shape { certificates: NOT_HELD_BACK, sources: Sources { pair: SERVER, ca: ROOT }, ..HELD_BACK };
const AHEAD: Shape = Shape { certificates: NOT_HELD_BACK, ..HELD_BACK };

/// The head of the table.
pub(crate) fn head() -> Result<String> {
    let scale = format!("1 s stands for {} s", Pace::of_run()?.factor());
    Ok(format!("{scale:40} {:>6} {}", "rounds", Tally::head()))
}

impl Run {
    /// Performs it in a namespace of its own; also returns its line of the table, once there was traffic.
    pub(crate) fn perform(&self, cluster: &Cluster) -> (Option<String>, Result<()>) {
        let mut line = None;
        let result = cluster.with_temp_ns(|ns| {
            let (pace, rounds) = (Pace::of_run()?, self.rounds()?);
            let started = Instant::now();
            let mut world = World::new(cluster, ns, self.shape, pace)?;
            eprintln!("{}: set up in {:.1?}", self.name, started.elapsed());
            let played = (0..rounds).try_for_each(|_| (self.script)(&mut world));
            let finished = world.finish();
            let (tally, failures) = (world.around.journal.tally(), world.around.journal.failures());
            line = Some(format!("{:40} {rounds:6} {tally}", self.name));
            self.tell(&failures)?;
            played?;
            finished?;
            self.judge(&tally)
        });
        (line, result)
    }

    /// Writes all failures to a file, and tells the first few.
    fn tell(&self, failures: &[String]) -> Result<()> {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("live");
        fs::create_dir_all(&dir)?;
        let file = dir.join(format!("{}.log", self.name));
        fs::write(&file, failures.join("\n")).with_context(|| file.display().to_string())?;
        for failure in failures.iter().take(TOLD) {
            eprintln!("{failure}");
        }
        if failures.len() > TOLD {
            eprintln!("and {} more in {}", failures.len() - TOLD, file.display());
        }
        Ok(())
    }

    fn judge(&self, tally: &Tally) -> Result<()> {
        for (who, count, expected) in
            [("gateways", tally.by_gateways, self.by_gateways), ("clients", tally.by_clients, self.by_clients)]
        {
            ensure!(expected.fits(count), "refused by {who}: expected {expected:?}, saw {count}");
        }
        ensure!(tally.broken == 0, "{} connections broke: expected none", tally.broken);
        ensure!(!self.load_once_only || tally.load_once_only, "a client failed that does not load once");
        ensure!(tally.rate() >= RATE, "{:.0} handshakes a second: expected at least {RATE}", tally.rate());
        Ok(())
    }

    /// `TRUSTSPAN_LIVE_ROUNDS`, or one. What cannot work shows it in the first round.
    fn rounds(&self) -> Result<u32> {
        let is_clean = (self.by_gateways, self.by_clients) == (Seen::None, Seen::None);
        match env::var("TRUSTSPAN_LIVE_ROUNDS") {
            Ok(text) if is_clean => {
                text.parse().with_context(|| format!("TRUSTSPAN_LIVE_ROUNDS={text}: expected a number"))
            }
            _ => Ok(1),
        }
    }
}
