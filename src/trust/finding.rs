//! Findings of rules, and the verdict on an object.

use serde::Serialize;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The write is accepted with a warning.
    Warn,
    /// The write is rejected.
    Deny,
}

/// The most severe of an object's findings.
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

/// A problem that a rule found in an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable id of the rule, the same in denials, metrics, audit annotations and CLI output.
    pub rule: &'static str,
    /// Its severity.
    pub severity: Severity,
    /// The field, as users write it: `data[ca.crt]`, `spec.servers[0].tls.credentialName`.
    pub field: String,
    /// Lower case: what was found, what was expected, what to do. Never contains key bytes.
    pub message: String,
}

/// Characters of a warning: the API server recommends at most 120, and may cut longer ones.
const WARNING_MAX: usize = 120;

/// A number and a noun: `1 client`, `3 clients`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

impl Finding {
    /// The finding as an admission warning: rule id and message, cut between words to 120 characters.
    pub fn warning(&self) -> String {
        let text = format!("{}: {}", self.rule, self.message);
        if text.chars().count() <= WARNING_MAX {
            return text;
        }
        // One character less, for the ellipsis; a word that fills the line is cut.
        let room = text.char_indices().nth(WARNING_MAX - 1).map_or(text.len(), |(at, _)| at);
        let after_id = self.rule.len() + 1;
        // A blank right after the limit ends a word that just fits.
        let fits = if text[room..].starts_with(' ') { Some(room) } else { text[..room].rfind(' ') };
        let cut = fits.filter(|at| *at > after_id).unwrap_or(room);
        format!("{}…", text[..cut].trim_end_matches([' ', ',', ';', ':', '.']))
    }
}

impl Verdict {
    /// The verdict that follows from findings.
    pub fn of<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Self {
        findings.into_iter().map(|f| f.severity).max().map_or(Self::Allow, |worst| match worst {
            Severity::Warn => Self::Warn,
            Severity::Deny => Self::Deny,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(message: &str) -> String {
        let (rule, severity, field) = ("empty", Severity::Warn, String::new());
        Finding { rule, severity, field, message: message.to_owned() }.warning()
    }

    #[test]
    fn short_messages_are_not_cut() {
        assert_eq!(warning("ca.crt: none"), "empty: ca.crt: none");
        let full = "x".repeat(WARNING_MAX - "empty: ".len());
        assert_eq!(warning(&full), format!("empty: {full}"));
    }

    #[test]
    fn long_messages_are_cut_between_words() {
        for message in ["word ".repeat(40), "x".repeat(500), "ä".repeat(500), "äöü ".repeat(60), "x".repeat(114)] {
            let warning = warning(&message);
            assert!(warning.chars().count() <= WARNING_MAX && warning.ends_with('…'), "{warning}");
        }
        assert!(warning(&"word ".repeat(40)).ends_with(" word…"));
    }
}
