//! The table of runs, and what each must show.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{
    chaos,
    gateways::Sources,
    issuer::{Certificates, MANAGED, PROMOTED, ROOT, SERVER},
    journal::AgentMetrics,
    kept, naive,
    pace::Pace,
    sound, tampered,
    testbed::{Cluster, Istiod},
    upgrade, watched,
    world::{Shape, World},
};

/// Limit of failures that are printed; a file has all.
const PRINTED: usize = 5;

/// A rotation, or a disturbance.
type Script = fn(&mut World<'_>) -> Result<()>;

/// A run under traffic.
pub(crate) struct Run {
    pub(crate) name: &'static str,
    shape: Shape,
    script: Script,
    /// The number of clients that gateways must refuse.
    by_gateways: Snapshot,
    /// The number of gateways that clients must refuse.
    by_clients: Snapshot,
    /// Whether only clients that load once may fail.
    load_once_only: bool,
    /// Failures are allowed only during steps with this in their names.
    only_at: &'static str,
    /// The run makes one in this many of the requested rounds.
    one_in: u32,
}

/// An expected number of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Snapshot {
    None,
    Some,
    Any,
}

impl Snapshot {
    fn fits(self, count: usize) -> bool {
        match self {
            Self::None => count == 0,
            Self::Some => count > 0,
            Self::Any => true,
        }
    }
}

/// The number of clients in a run.
const CLIENTS: usize = 20;
/// Longer than a run, so that no certificate is renewed by time.
const LONG: Duration = Duration::from_secs(3600);
/// Certificates that are renewed and expire during a run. A busy machine has ten seconds to renew them, so there are
/// only a few.
const SHORT: Duration = Duration::from_secs(15);
/// Longer than clients need to load a change.
const MIDDLING: Duration = Duration::from_secs(45);
/// Longer than the API server and cert-manager need to recover on a busy machine.
const LASTING: Duration = Duration::from_secs(90);
/// Twice the time that such a renewal can take: clients renew when half of their lifetime is left.
const CHAOTIC: Duration = Duration::from_secs(200);
/// Clients that load once delay the end of a rotation by this long.
const LOADED_ONCE: Duration = Duration::from_secs(24);

const STAGED: Shape = Shape {
    certificates: Certificates {
        issuer: PROMOTED,
        life: LONG,
        server_life: LONG,
        server_usages: "server auth",
        load_once_life: LONG,
        clients: CLIENTS,
        load_once: 3,
    },
    sources: Sources { pair: MANAGED, ca: MANAGED },
    by_agent: false,
};
/// The agent rotates while clients renew at various times.
const KEPT: Shape = Shape {
    certificates: Certificates { life: MIDDLING, load_once_life: LOADED_ONCE, ..STAGED.certificates },
    by_agent: true,
    ..STAGED
};
/// The same without renewals by time, and without clients that load once.
const UNTOUCHED: Shape =
    Shape { certificates: Certificates { load_once: 0, ..STAGED.certificates }, by_agent: true, ..STAGED };
/// cert-manager retries after up to twice the length of an outage, so certificates must be valid for longer.
const OUTAGE: Shape =
    Shape { certificates: Certificates { life: LASTING, load_once_life: MIDDLING, ..KEPT.certificates }, ..KEPT };
/// Faults follow each other for 25 s. cert-manager retries after 5, 10, 20 and 40 s, so a renewal can take that much longer. No client loads once:
/// its certificate would have to last as long, and delay the end of each rotation by that.
const CHAOS: Shape = Shape { certificates: Certificates { life: CHAOTIC, ..UNTOUCHED.certificates }, ..UNTOUCHED };
const UNSTAGED: Certificates = Certificates { issuer: ROOT, ..STAGED.certificates };

const fn clean(name: &'static str, shape: Shape, script: Script) -> Run {
    let (by_gateways, by_clients) = (Snapshot::None, Snapshot::None);
    Run { name, shape, script, by_gateways, by_clients, load_once_only: false, only_at: "", one_in: 4 }
}

/// A run with the full number of rounds.
const fn often(name: &'static str, script: Script) -> Run {
    Run { one_in: 1, ..clean(name, KEPT, script) }
}

/// The run of `./test upgrade`, which has an older version.
pub(crate) const UPGRADE: Run = Run { one_in: 1, ..clean("accepts_upgrades_in_a_rotation", KEPT, upgrade::rotation) };

/// All other runs.
pub(crate) const RUNS: &[Run] = &[
    clean("accepts_renewals_under_one_ca", RENEWING, sound::renewals),
    clean("accepts_a_rotation_by_a_patient_hand", STAGED, sound::by_hand),
    often("accepts_a_rotation_by_the_agent", kept::rotation),
    clean("accepts_a_rotation_that_is_watched", KEPT, watched::rotation),
    often("accepts_agents_that_are_killed", kept::killed),
    often("accepts_leaders_that_stall", kept::failover),
    clean("accepts_rotations_in_a_burst", KEPT, kept::burst),
    clean("waits_for_the_renewal_policies_of_certificates", UNTOUCHED, kept::renewal_policies),
    clean("accepts_a_world_that_breaks", OUTAGE, kept::broken),
    clean("accepts_an_outage_of_the_webhooks", OUTAGE, kept::unjudged),
    Run { one_in: 1, ..clean("accepts_chaos", CHAOS, chaos::rotation) },
    Run {
        by_gateways: Snapshot::Some,
        by_clients: Snapshot::Any,
        only_at: tampered::STEP,
        ..clean("repairs_tampering_past_admission", KEPT, tampered::repaired)
    },
    Run {
        by_gateways: Snapshot::Some,
        by_clients: Snapshot::Some,
        ..clean("rejects_the_root_used_directly", DIRECT, naive::root_used_directly)
    },
    Run {
        by_clients: Snapshot::Some,
        load_once_only: true,
        ..clean("rejects_a_timed_leaf_switch", STAGED, naive::timed_leaf_switch)
    },
    Run {
        by_clients: Snapshot::Some,
        ..clean("rejects_bundle_and_leaf_in_one_write", STAGED, naive::bundle_and_leaf_in_one_write)
    },
    Run {
        by_gateways: Snapshot::Any,
        by_clients: Snapshot::Some,
        ..clean("rejects_no_propagation_delay", STAGED, naive::no_propagation_delay)
    },
    Run { by_clients: Snapshot::Some, ..clean("rejects_ca_crt_as_it_comes", STAGED, naive::ca_crt_as_it_comes) },
    Run {
        by_gateways: Snapshot::Some,
        by_clients: Snapshot::Any,
        ..clean("rejects_an_unstaged_issuer", AHEAD, naive::unstaged_issuer)
    },
];

const RENEWING: Shape = Shape {
    certificates: Certificates { life: MIDDLING, server_life: MIDDLING, load_once_life: SHORT, ..UNSTAGED },
    ..DIRECT
};
const DIRECT: Shape = Shape { certificates: UNSTAGED, sources: Sources { pair: SERVER, ca: ROOT }, ..STAGED };
const AHEAD: Shape = Shape { certificates: UNSTAGED, ..STAGED };

/// The head of the table of results.
pub(crate) fn head() -> Result<String> {
    let scale = format!("1 s represents {} s", Pace::of_run()?.factor());
    Ok(format!("{scale:40} {:>6} {}", "rounds", AgentMetrics::head()))
}

impl Run {
    /// Runs in a new namespace. Also returns the lines of the table, if there was traffic.
    pub(crate) fn perform(&self, cluster: &Cluster, istiod: &Istiod) -> (Vec<String>, Result<()>) {
        let mut lines = Vec::new();
        let result = cluster.with_temp_ns(|ns| {
            let (pace, rounds) = (Pace::of_run()?, self.rounds()?);
            let started = Instant::now();
            let log = self.log()?;
            let file = File::create(&log).with_context(|| log.display().to_string())?;
            let mut world = World::new(cluster, istiod, ns, self.shape, pace, file)?;
            eprintln!("{}: set up in {:.1?}", self.name, started.elapsed());
            let played = (1..=rounds).try_for_each(|round| self.play(round, rounds, &mut world));
            let finished = world.finish();
            let (tally, failures) = (world.around.journal.tally(), world.around.journal.failures());
            lines.push(format!("{:40} {rounds:6} {tally}", self.name));
            if tally.while_down > 0 {
                lines.push(format!("  {} connections broke while a killed gateway was down", tally.while_down));
            }
            lines.append(&mut world.notes);
            print_failures(&failures, &log);
            tally.short_seconds().iter().for_each(|second| eprintln!("{}: {second}", self.name));
            played?;
            finished?;
            self.judge(&tally)
        });
        (lines, result)
    }

    fn play(&self, round: u32, rounds: u32, world: &mut World<'_>) -> Result<()> {
        let started = Instant::now();
        (self.script)(world)?;
        let (failed, _) = world.around.journal.failed_since(started);
        let took = started.elapsed();
        eprintln!("{}: round {round} of {rounds} in {took:.1?}, {failed} failed", self.name);
        Ok(())
    }

    /// The file that holds all failures.
    fn log(&self) -> Result<PathBuf> {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("live");
        fs::create_dir_all(&dir)?;
        Ok(dir.join(format!("{}.log", self.name)))
    }

    fn judge(&self, tally: &AgentMetrics) -> Result<()> {
        for (who, count, expected) in
            [("gateways", tally.by_gateways, self.by_gateways), ("clients", tally.by_clients, self.by_clients)]
        {
            ensure!(expected.fits(count), "refused by {who}: expected {expected:?}, saw {count}");
        }
        ensure!(tally.broken == 0, "{} connections broke: expected none", tally.broken);
        ensure!(!self.load_once_only || tally.load_once_only, "a client failed that does not load once");
        let elsewhere = tally.steps.iter().find(|steps| !steps.contains(self.only_at));
        ensure!(elsewhere.is_none(), "failed at {elsewhere:?}: expected failures at \"{}\" alone", self.only_at);
        tally.judge_load()
    }

    /// The number of rounds: `TRUSTSPAN_LIVE_ROUNDS`, or one. Rotations that must fail do so in the first round.
    fn rounds(&self) -> Result<u32> {
        let is_clean = (self.by_gateways, self.by_clients) == (Snapshot::None, Snapshot::None);
        match env::var("TRUSTSPAN_LIVE_ROUNDS") {
            Ok(text) if is_clean => {
                let asked: u32 =
                    text.parse().with_context(|| format!("TRUSTSPAN_LIVE_ROUNDS={text}: expected a number"))?;
                Ok(asked.div_ceil(self.one_in))
            }
            _ => Ok(1),
        }
    }
}

/// Prints the first few failures.
fn print_failures(failures: &[String], log: &Path) {
    for failure in failures.iter().take(PRINTED) {
        eprintln!("{failure}");
    }
    if failures.len() > PRINTED {
        eprintln!("and {} more in {}", failures.len() - PRINTED, log.display());
    }
}
