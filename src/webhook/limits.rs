//! Limits for callers: any caller that reaches the port may be hostile. The limits on the cost of a parsed review are
//! in `src/trust/limits.rs`.

use std::time::Duration;

/// Number of open connections; further ones are closed immediately.
pub(super) const CONNECTIONS: usize = 1024;
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

/// Bytes of a review. An UPDATE carries two objects, each of at most the 1.5 MiB that etcd stores, and Go's JSON encoder writes `<`, `>`
/// and `&` in six bytes. A review that is rejected for its size would be stored without a verdict (`failurePolicy: Ignore`).
pub const BODY_LIMIT: usize = 20 * 1024 * 1024;
/// Number of requests in flight; further ones are rejected.
pub(super) const REQUESTS: usize = 128;
/// Memory for the bodies in flight, in blocks of [`BODY_BLOCK`] bytes: 64 MiB. A body takes blocks as its bytes arrive, so that announcing a
/// long one takes nothing from other requests.
pub(super) const BODY_BLOCKS: usize = 1024;
/// Bytes of a block.
pub(super) const BODY_BLOCK: usize = 64 * 1024;
/// Number of reviews that are parsed and judged at the same time: a hostile one of 20 MiB takes more than 300 MiB once
/// parsed.
pub(super) const REVIEWS: usize = 2;

/// Characters of a warning. The API server cuts at 256, and some clients show 120.
pub(super) const WARNING_LENGTH: usize = 120;
/// Number of warnings in a response: five of 120 characters stay under the 4 KiB that the API server passes on.
pub(super) const WARNINGS: usize = 5;
/// Number of findings in a denial.
pub(super) const DENIALS: usize = 10;
