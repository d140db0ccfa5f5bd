//! What a Secret holds, as a proxy would load it, and whether that is sound. Pure: bytes and `now` in, findings out.

mod finding;
mod secret;

pub use finding::{Finding, Severity, Verdict};
pub use secret::{Secret, SecretError};

use jiff::Timestamp;

/// What the Secret is relied on for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duty {
    /// Gateways take their trust anchors from this Secret: it must hold a CA bundle.
    pub ca_required: bool,
}

/// Judges a Secret at an instant.
pub fn judge(_secret: &Secret, _duty: Duty, _now: Timestamp) -> Vec<Finding> {
    Vec::new()
}

/// Judges the change of a Secret: a finding that `old` already had only warns, since refusing the write would not mend it.
pub fn judge_update(_old: &Secret, new: &Secret, duty: Duty, now: Timestamp) -> Vec<Finding> {
    judge(new, duty, now)
}
