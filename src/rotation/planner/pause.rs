//! Why steps wait, and until when.

use jiff::Timestamp;

use crate::api::{StepName, Wait, WindowState};
use crate::registry::Entry;

/// Why disruptive steps wait.
#[derive(Clone, Debug)]
pub(in crate::rotation) struct Pause {
    /// When it ends without a person.
    pub(super) until: Option<Timestamp>,
    pub(in crate::rotation) reason: String,
    /// Whether a person has to act.
    pub(super) needs_action: bool,
}

impl Pause {
    /// A pause that ends only when a person acts, or at a deadline.
    pub(super) fn for_action(reason: impl Into<String>) -> Self {
        Self { until: None, reason: reason.into(), needs_action: true }
    }

    /// A pause that ends without a person, at `until` if that is known.
    pub(super) fn without_action(until: Option<Timestamp>, reason: impl Into<String>) -> Self {
        Self { until, reason: reason.into(), needs_action: false }
    }

    pub(super) fn wait(self, step: StepName) -> Wait {
        let Self { until, reason, needs_action } = self;
        Wait { step, reason, until, needs_action }
    }

    /// The pause by `spec.paused`, or by the policy's `changeWindows`, whose state is `windows`.
    pub(in crate::rotation) fn of(entry: &Entry, windows: WindowState) -> Option<Self> {
        if entry.spec.paused {
            return Some(Self::for_action("spec.paused is true. To continue, set it to false"));
        }
        let change_windows = &entry.policy.change_windows;
        if windows.is_open || change_windows.is_empty() {
            return None;
        }
        let reason = match (windows.until, change_windows.iter().find_map(|window| window.zone().err())) {
            (None, Some(unknown)) => format!("No change window of the RotationPolicy ever opens: {unknown}"),
            (None, None) => "No change window of the RotationPolicy ever opens. Correct changeWindows".to_owned(),
            (Some(_), _) => "No change window of the RotationPolicy is open".to_owned(),
        };
        Some(Self { until: windows.until, reason, needs_action: windows.until.is_none() })
    }
}

/// A command for a Certificate: `cmctl renew checkout -n apps`.
pub(super) fn command_for(command: &str, certificate: &str) -> String {
    match certificate.split_once('/') {
        Some((namespace, name)) => format!("{command} {name} -n {namespace}"),
        None => format!("{command} {certificate}"),
    }
}
