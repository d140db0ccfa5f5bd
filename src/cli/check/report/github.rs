//! Workflow commands of GitHub Actions
//! (<https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands>).

use std::io::{self, Write};

use super::{FindingLocation, JudgedObject, Printer, Totals, line};
use crate::store::manifest::ManifestError;
use crate::text::printable;
use crate::trust::Severity;

pub(super) struct Github<W> {
    pub(super) out: W,
}

impl<W: Write> Github<W> {
    fn annotate(
        &mut self,
        level: &str,
        location: Option<&FindingLocation>,
        title: &str,
        message: &str,
    ) -> io::Result<()> {
        // An annotation without a file belongs to the whole run.
        let location = location.filter(|location| location.file != "stdin");
        let location = location
            .map_or(String::new(), |FindingLocation { file, line }| format!("file={},line={line},", property(file)));
        writeln!(self.out, "::{level} {location}title={}::{}", property(title), data(message))
    }
}

impl<W: Write> Printer for Github<W> {
    fn judged(&mut self, judged: &JudgedObject) -> io::Result<()> {
        for finding in &judged.findings {
            let level = match finding.severity {
                Severity::Deny => "error",
                Severity::Warn => "warning",
            };
            self.annotate(level, Some(&judged.source), finding.rule, &line(judged, finding))?;
        }
        for why in &judged.not_judged {
            self.annotate("notice", Some(&judged.source), "not judged", &format!("{}: {why}", judged.title))?;
        }
        Ok(())
    }

    fn unreadable(&mut self, error: &ManifestError) -> io::Result<()> {
        let location = error.line().map(|line| FindingLocation { file: error.source_name().to_owned(), line });
        self.annotate("error", location.as_ref(), "unreadable", &printable(&error.to_string()))
    }

    fn finish(&mut self, totals: &Totals) -> io::Result<()> {
        writeln!(self.out, "{totals}")?;
        self.out.flush()
    }
}

/// Escapes the text of a command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes the value of a property.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
