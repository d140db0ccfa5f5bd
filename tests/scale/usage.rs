//! The memory of a process, and the requests of a user.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result};

use crate::testbed::{Cluster, Request, SOON, User, wait_for};

/// The number of consecutive resyncs without a write after which no rotation is in progress.
const QUIET: usize = 3;

/// Memory of a process, in KiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Resident memory now: `VmRSS` of `/proc/PID/status` (proc_pid_status(5)).
    pub(crate) resident: u64,
    /// The highest resident memory: `VmHWM`.
    pub(crate) peak: u64,
}

impl Memory {
    /// Reads the memory of a process.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
            number.with_context(|| format!("/proc/{pid}/status: no {name} in kB"))
        };
        Ok(Self { resident: field("VmRSS")?, peak: field("VmHWM")? })
    }
}

/// The number of requests of each kind: `12 get secrets, 2 watch secrets`.
pub(crate) fn summary<'r>(requests: impl IntoIterator<Item = &'r Request>) -> String {
    let mut counts = BTreeMap::new();
    for request in requests {
        *counts.entry((&request.resource, &request.verb)).or_insert(0) += 1;
    }
    let lines: Vec<_> = counts.iter().map(|((resource, verb), count)| format!("{count} {verb} {resource}")).collect();
    lines.join(", ")
}

/// Whether a request changes nothing. Renewing the Lease counts as no change.
pub(crate) fn is_idle(request: &Request) -> bool {
    matches!(&*request.verb, "get" | "list" | "watch") || request.resource == "leases"
}

/// The number of resyncs. Each reads the source Secret once.
pub(crate) fn resyncs(requests: &[Request]) -> usize {
    let is_resync =
        |request: &&Request| request.verb == "get" && request.resource == "secrets" && request.name == "root";
    requests.iter().filter(is_resync).count()
}

/// Waits until the agent has resynced `count` times since its first `from` requests.
pub(crate) fn wait_resyncs(cluster: &Cluster, from: usize, count: usize) -> Result<()> {
    wait_for("the agent to resync", SOON, || {
        Ok(resyncs(cluster.requests(User::Agent)?.get(from..).unwrap_or_default()) >= count)
    })
}

/// Waits until the agent resyncs several times and writes nothing.
pub(crate) fn wait_quiet(cluster: &Cluster) -> Result<()> {
    wait_for("nothing to be written any more", SOON, || {
        let from = cluster.requests(User::Agent)?.len();
        wait_resyncs(cluster, from, QUIET)?;
        Ok(cluster.requests(User::Agent)?.iter().skip(from).all(is_idle))
    })
}
