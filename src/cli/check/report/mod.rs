//! The output formats of `check`.

mod github;
mod json;
mod junit;
mod sarif;
mod text;

use std::fmt;
use std::io::{self, Write};

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::cli::inputs::{create, print_error, title};
use crate::json::Json;
use crate::store::manifest::ManifestError;
use crate::text::printable;
use crate::trust::{Finding, Verdict};

/// An output format.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(super) enum ReportFormat {
    /// Text for people.
    #[default]
    Text,
    /// JSON array with an element for each object.
    Json,
    /// SARIF 2.1.0, for code scanning services.
    Sarif,
    /// JUnit XML: a test suite for each file, a test case for each object.
    Junit,
    /// GitHub Actions workflow commands: annotations of the lines of a change.
    Github,
}

/// The result for one object, or for a document or file without an object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct JudgedObject {
    object: ObjectRef,
    #[serde(serialize_with = "file_and_line")]
    source: FindingLocation,
    verdict: Outcome,
    findings: Vec<Finding>,
    /// A sentence about each encrypted value or template, or why there is nothing to judge.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_judged: Vec<String>,
    #[serde(skip)]
    title: String,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectRef {
    api_version: String,
    kind: String,
    namespace: String,
    name: String,
}

/// The place where an object begins.
#[derive(Clone, Debug)]
pub(super) struct FindingLocation {
    /// Path from the command line, or `stdin`.
    pub(super) file: String,
    /// Line of the file, from 1.
    pub(super) line: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Outcome {
    Allow,
    Warn,
    Deny,
    NotJudged,
}

impl JudgedObject {
    /// An object with its findings. `not_judged` lists values that could not be judged. With such values and without findings, the
    /// object counts as not judged.
    pub(super) fn object(
        object: &Value,
        namespace: &str,
        source: FindingLocation,
        findings: Vec<Finding>,
        not_judged: Vec<String>,
    ) -> Self {
        let object = Json::from(object);
        let request = create(&object, namespace);
        let api_version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
        let (kind, namespace, name) = (request.kind.kind.into(), request.namespace.into(), request.name.into());
        let title = title(&request);
        let object = ObjectRef { api_version, kind, namespace, name };
        Self { object, source, verdict: Outcome::of(&findings, &not_judged), findings, not_judged, title }
    }

    /// A file of PEM text, or a document that is not an object.
    pub(super) fn file(kind: &str, source: FindingLocation, findings: Vec<Finding>, not_judged: Vec<String>) -> Self {
        let object = ObjectRef { kind: kind.to_owned(), ..ObjectRef::default() };
        let title = kind.to_owned();
        Self { object, source, verdict: Outcome::of(&findings, &not_judged), findings, not_judged, title }
    }
}

impl Outcome {
    fn of(findings: &[Finding], not_judged: &[String]) -> Self {
        match Verdict::of(findings) {
            Verdict::Allow if !not_judged.is_empty() => Self::NotJudged,
            Verdict::Allow => Self::Allow,
            Verdict::Warn => Self::Warn,
            Verdict::Deny => Self::Deny,
        }
    }
}

impl fmt::Display for FindingLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

fn file_and_line<S: Serializer>(location: &FindingLocation, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(location)
}

/// Number of objects by result.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    /// Objects that were allowed, warned about or denied.
    pub(super) judged: usize,
    /// Objects with at least one denial.
    pub(super) denied: usize,
    /// Objects with warnings only.
    pub(super) warned: usize,
    /// Objects and files that could not be judged.
    pub(super) not_judged: usize,
    /// Files and documents that could not be read.
    pub(super) unreadable: usize,
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let objects = if self.judged == 1 { "object" } else { "objects" };
        write!(f, "{} {objects} judged: {} denied, {} warned", self.judged, self.denied, self.warned)?;
        match self.not_judged {
            0 => Ok(()),
            count => write!(f, "; {count} not judged"),
        }
    }
}

/// Prints results in one format.
trait Printer {
    fn judged(&mut self, judged: &JudgedObject) -> io::Result<()>;

    /// Prints nothing by default: errors are on stderr already.
    fn unreadable(&mut self, _error: &ManifestError) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, totals: &Totals) -> io::Result<()>;
}

/// Counts and prints results.
pub(super) struct Reporter {
    printer: Box<dyn Printer>,
    totals: Totals,
}

impl Reporter {
    /// Prints to `out`.
    pub(super) fn new(format: ReportFormat, out: impl Write + 'static) -> Self {
        let printer: Box<dyn Printer> = match format {
            ReportFormat::Text => Box::new(text::TextPrinter { out }),
            ReportFormat::Json => Box::new(json::Json::new(out)),
            ReportFormat::Sarif => Box::new(sarif::Sarif::new(out)),
            ReportFormat::Junit => Box::new(junit::Junit::new(out)),
            ReportFormat::Github => Box::new(github::Github { out }),
        };
        Self { printer, totals: Totals::default() }
    }

    /// Reports a result.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub(super) fn judged(&mut self, judged: &JudgedObject) -> io::Result<()> {
        let count = match judged.verdict {
            Outcome::Allow => None,
            Outcome::Warn => Some(&mut self.totals.warned),
            Outcome::Deny => Some(&mut self.totals.denied),
            Outcome::NotJudged => Some(&mut self.totals.not_judged),
        };
        count.into_iter().for_each(|count| *count += 1);
        self.totals.judged += usize::from(judged.verdict != Outcome::NotJudged);
        self.printer.judged(judged)
    }

    /// Reports a file or document that cannot be read, on stderr too.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub(super) fn unreadable(&mut self, error: &ManifestError) -> io::Result<()> {
        print_error(error);
        self.totals.unreadable += 1;
        self.printer.unreadable(error)
    }

    /// Prints the totals.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub(super) fn finish(mut self) -> io::Result<Totals> {
        self.printer.finish(&self.totals)?;
        Ok(self.totals)
    }
}

/// A finding in one line.
fn line(judged: &JudgedObject, finding: &Finding) -> String {
    let field = if finding.field.is_empty() { String::new() } else { format!(" {}", finding.field) };
    printable(&format!("{}{field}: {}", judged.title, finding.message))
}

#[cfg(test)]
mod tests;
