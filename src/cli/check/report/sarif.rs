//! SARIF 2.1.0 (<https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html>). Unreadable documents and values that are
//! not judged are notifications (section 3.58), since they are not results of a rule.

use std::io::{self, Write};
use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::{FindingLocation, JudgedObject, Printer, Totals, line};
use crate::admission::rules;
use crate::store::manifest::ManifestError;
use crate::text::printable;
use crate::trust::Severity;

pub(super) struct Sarif<W> {
    out: W,
    results: Vec<Value>,
    notifications: Vec<Value>,
}

impl<W> Sarif<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, results: Vec::new(), notifications: Vec::new() }
    }

    fn notify(&mut self, level: &str, text: &str, location: Option<&FindingLocation>) {
        let mut notification = json!({"level": level, "message": {"text": text}});
        if let Some(location) = location {
            notification["locations"] = json!([{"physicalLocation": physical(location)}]);
        }
        self.notifications.push(notification);
    }
}

impl<W: Write> Printer for Sarif<W> {
    fn judged(&mut self, judged: &JudgedObject) -> io::Result<()> {
        for finding in &judged.findings {
            let logical = json!({"fullyQualifiedName": printable(format!("{} {}", judged.title, finding.field).trim_end()), "kind": "object"});
            self.results.push(json!({
                "ruleId": finding.rule,
                "ruleIndex": rules().position(|rule| rule.id == finding.rule),
                "level": level(finding.severity),
                "message": {"text": line(judged, finding)},
                "locations": [{"physicalLocation": physical(&judged.source), "logicalLocations": [logical]}],
            }));
        }
        for why in &judged.not_judged {
            self.notify("note", &printable(&format!("not judged: {}: {why}", judged.title)), Some(&judged.source));
        }
        Ok(())
    }

    fn unreadable(&mut self, error: &ManifestError) -> io::Result<()> {
        let location = error.line().map(|line| FindingLocation { file: error.source_name().to_owned(), line });
        self.notify("error", &printable(&error.to_string()), location.as_ref());
        Ok(())
    }

    fn finish(&mut self, totals: &Totals) -> io::Result<()> {
        let rules: Vec<_> = rules()
            .map(|rule| {
                json!({
                    "id": rule.id,
                    "shortDescription": {"text": rule.summary},
                    "fullDescription": {"text": format!("{} Source: {}", rule.summary, rule.source)},
                    "help": {"text": rule.remedy},
                    "defaultConfiguration": {"level": level(rule.severity)},
                })
            })
            .collect();
        let log = json!({
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{
                "tool": {"driver": {"name": "trustspan", "semanticVersion": env!("CARGO_PKG_VERSION"), "rules": rules}},
                "invocations": [{
                    "executionSuccessful": totals.unreadable == 0,
                    "toolExecutionNotifications": self.notifications,
                }],
                "columnKind": "unicodeCodePoints",
                "results": self.results,
            }],
        });
        serde_json::to_writer_pretty(&mut self.out, &log)?;
        writeln!(self.out)?;
        self.out.flush()
    }
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Deny => "error",
        Severity::Warn => "warning",
    }
}

/// The characters that need no escape in the path of a URI (RFC 3986 section 3.3).
const PATH: AsciiSet = NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn physical(location: &FindingLocation) -> Value {
    let path = location.file.strip_prefix("./").unwrap_or(&location.file);
    let scheme = if Path::new(path).is_absolute() { "file://" } else { "" };
    let uri = format!("{scheme}{}", utf8_percent_encode(path, &PATH));
    json!({"artifactLocation": {"uri": uri}, "region": {"startLine": location.line}})
}
