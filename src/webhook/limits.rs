//! Limits for callers: any caller that reaches the port may be hostile. The limits on the cost of a parsed review are
//! in `src/trust/limits.rs`.

use std::fmt;
use std::fs;
use std::time::Duration;

/// Time until a listener is asked again after it could not accept a connection.
pub(super) const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Time for a TLS handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the head of a request, from its first byte.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the body of a request. The webhook configurations give up after at most 5 s.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a client to read a part of a response.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
/// Time without a request: longer than the 90 s after which the API server closes its idle connections.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Bytes of the head of a request. hyper would keep up to 400 KiB of each connection.
pub(super) const HEAD_LIMIT: usize = 16 * 1024;
/// Bytes of a review. An UPDATE carries two objects, each of at most the 1.5 MiB that etcd stores, and Go's JSON encoder writes `<`, `>`
/// and `&` in six bytes. A review that is rejected for its size would be stored without a verdict (`failurePolicy: Ignore`).
pub const BODY_LIMIT: usize = 20 * 1024 * 1024;
/// Bytes of the largest body that waits in the queue of small reviews.
pub(super) const SMALL_BODY: usize = 128 * 1024;
/// Bytes of the largest body that is judged where it was read, without a queue. The costliest of this size take a few milliseconds.
pub(super) const CHEAP_BODY: usize = 16 * 1024;
/// A connection whose reviews take longer than this waits in a queue, and one without reviews. So an attacker has one costly review of
/// [`CHEAP_BODY`] for each handshake and a few cheap reviews, which cost as much.
pub(super) const CHEAP: Duration = Duration::from_micros(500);
/// A connection whose reviews take longer than this waits in the queue of large ones.
pub(super) const COSTLY: Duration = Duration::from_millis(100);
/// Open connections of a port without admission requests.
pub(super) const METRICS_CONNECTIONS: usize = 64;

/// Characters of a warning. The API server cuts at 256, and some clients show 120.
pub(super) const WARNING_LENGTH: usize = 120;
/// Number of warnings in a response: five of 120 characters stay under the 4 KiB that the API server passes on.
pub(super) const WARNINGS: usize = 5;
/// Number of findings in a denial.
pub(super) const DENIALS: usize = 10;

const MIB: usize = 1 << 20;
/// The memory of the container in the manifests.
const MEMORY: usize = 512 * MIB;

/// The limits that depend on the memory of the process.
///
/// Together they stay under half of it: two reviews at once, bodies, and 64 KiB for each connection, which is the most that rustls keeps of a
/// handshake. The rest is for GatewaySecrets, and for what allocators keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The memory that the others are computed from, in bytes.
    pub memory: usize,
    /// Bytes of memory for one review once it is parsed.
    pub review: usize,
    /// Bytes of all bodies.
    pub bodies: usize,
    /// Open connections.
    pub connections: usize,
}

impl Default for Limits {
    /// The limits of a container with at least as much memory as in the manifests: no review of an object that the API server stores needs more.
    fn default() -> Self {
        Self::of(MEMORY)
    }
}

impl Limits {
    /// The limits for the memory limit of this process's container, or [`Limits::default`] if it has none.
    pub fn of_container() -> Self {
        container_memory().map(Self::of).unwrap_or_default()
    }

    /// The limits for a container with this much memory, in bytes. More than [`Limits::default`] has changes nothing.
    pub fn of(memory: usize) -> Self {
        let memory = memory.min(MEMORY);
        Self {
            memory,
            review: memory / 8,
            // At least one body of the largest size, and a quarter for small ones.
            bodies: (memory / 16).max(BODY_LIMIT * 4 / 3),
            connections: (memory / (MIB / 2)).max(64),
        }
    }

    /// Bytes of all bodies while a body that is not small grows: the rest is for small ones.
    pub(super) fn large_bodies(&self) -> usize {
        self.bodies - self.bodies / 4
    }

    /// Connections without a complete request, such as those in a TLS handshake.
    pub(super) fn unfinished(&self) -> usize {
        self.connections / 2
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memory, review, bodies, connections } = self;
        let mib = |bytes: &usize| bytes / MIB;
        write!(
            f,
            "limits for {} MiB of memory: {} MiB for a review, {} MiB for bodies, {connections} connections",
            mib(memory),
            mib(review),
            mib(bodies)
        )
    }
}

/// The memory limit of this process's container in bytes: of cgroup version 2, or of version 1.
fn container_memory() -> Option<usize> {
    let files = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    // Without a limit, version 2 has the text `max`, and version 1 a number larger than any memory.
    files.into_iter().find_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_take_at_most_half_of_the_memory() {
        for memory in [256 * MIB, 384 * MIB, 512 * MIB] {
            let limits = Limits::of(memory);
            let all = 2 * limits.review + limits.bodies + limits.connections * 64 * 1024;
            assert!(all <= memory / 2, "{limits}");
            assert!(limits.large_bodies() >= BODY_LIMIT, "{limits}");
        }
        assert_eq!(Limits::of(usize::MAX), Limits::default());
        assert_eq!(
            Limits::default().to_string(),
            "limits for 512 MiB of memory: 64 MiB for a review, 32 MiB for bodies, 1024 connections"
        );
    }
}
