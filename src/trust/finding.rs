//! What a rule says of an object.

use serde::Serialize;

/// How much a finding weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The write goes through, with a warning.
    Warn,
    /// The write is refused.
    Deny,
}

/// The sum of an object's findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing found.
    Allow,
    /// Only warnings found.
    Warn,
    /// At least one finding denies.
    Deny,
}

/// One thing that a rule saw in an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable id of the rule, the same in denials, metrics, audit annotations and CLI output.
    pub rule: &'static str,
    /// Its weight.
    pub severity: Severity,
    /// The field, as users write it: `data[ca.crt]`, `spec.servers[0].tls.credentialName`.
    pub field: String,
    /// Lower case: what was seen, what was expected, what to do. Never holds key bytes.
    pub message: String,
}

impl Verdict {
    /// The verdict that findings add up to.
    pub fn of<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Self {
        findings.into_iter().map(|f| f.severity).max().map_or(Self::Allow, |worst| match worst {
            Severity::Warn => Self::Warn,
            Severity::Deny => Self::Deny,
        })
    }
}
