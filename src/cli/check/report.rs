//! What `check` prints: blocks of text for people, or one JSON array, object by object as they are judged.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use serde_json::Value;

use crate::cli::inputs::{create, title};
use crate::cli::printable::printable;
use crate::trust::{Finding, Verdict};

/// One object and what was found in it: an element of the JSON array.
#[derive(Debug, Serialize)]
pub(super) struct Judged {
    object: ObjectRef,
    source: String,
    verdict: Verdict,
    findings: Vec<Finding>,
    #[serde(skip)]
    title: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectRef {
    api_version: String,
    kind: String,
    namespace: String,
    name: String,
}

impl Judged {
    pub(super) fn new(
        object: &Value,
        namespace: &str,
        source: String,
        verdict: Verdict,
        findings: Vec<Finding>,
    ) -> Self {
        let request = create(object, namespace);
        let api_version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
        let (kind, namespace, name) = (request.kind.kind.into(), request.namespace.into(), request.name.into());
        let title = title(&request);
        Self { object: ObjectRef { api_version, kind, namespace, name }, source, verdict, findings, title }
    }
}

/// Prints as objects come, and counts.
pub(super) struct Reporter<W> {
    out: W,
    json: bool,
    judged: usize,
    denied: usize,
    warned: usize,
}

const DENY: Style = AnsiColor::Red.on_default().bold();
const WARN: Style = AnsiColor::Yellow.on_default().bold();
const FAINT: Style = Style::new().dimmed();

impl<W: Write> Reporter<W> {
    pub(super) fn text(out: W) -> Self {
        Self { out, json: false, judged: 0, denied: 0, warned: 0 }
    }

    pub(super) fn json(out: W) -> Self {
        Self { json: true, ..Self::text(out) }
    }

    pub(super) fn judged(&mut self, judged: &Judged) -> io::Result<()> {
        self.judged += 1;
        self.denied += usize::from(judged.verdict == Verdict::Deny);
        self.warned += usize::from(judged.verdict == Verdict::Warn);
        if self.json {
            self.out.write_all(if self.judged == 1 { b"[\n" } else { b",\n" })?;
            return Ok(serde_json::to_writer(&mut self.out, judged)?);
        }
        let (style, verdict) = match judged.verdict {
            Verdict::Allow => return Ok(()),
            Verdict::Warn => (WARN, "warn"),
            Verdict::Deny => (DENY, "deny"),
        };
        writeln!(self.out, "{}  {style}{verdict}{style:#}  {}", printable(&judged.source), printable(&judged.title))?;
        for finding in &judged.findings {
            let field = if finding.field.is_empty() { "-" } else { &finding.field };
            let (rule, message) = (finding.rule, printable(&finding.message));
            writeln!(self.out, "  {rule}  {FAINT}{}{FAINT:#}  {message}", printable(field))?;
        }
        writeln!(self.out)
    }

    /// Prints the end; returns whether something was denied.
    pub(super) fn finish(&mut self) -> io::Result<bool> {
        if self.json {
            self.out.write_all(if self.judged == 0 { b"[]\n" } else { b"\n]\n" })?;
        } else {
            let objects = if self.judged == 1 { "object" } else { "objects" };
            writeln!(self.out, "{} {objects} judged: {} denied, {} warned", self.judged, self.denied, self.warned)?;
        }
        self.out.flush()?;
        Ok(self.denied > 0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::trust::Severity;

    fn judged() -> [Judged; 3] {
        let finding = |rule, severity, field: &str, message: &str| Finding {
            rule,
            severity,
            field: field.to_owned(),
            message: message.to_owned(),
        };
        let object = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "istio-system"}});
        let new = |name, line, findings: Vec<Finding>| {
            Judged::new(&object(name), "default", format!("f.yaml:{line}"), Verdict::of(&findings), findings)
        };
        [
            new("sound", 1, vec![]),
            new(
                "gw",
                9,
                vec![
                    finding("ca-expired", Severity::Deny, "data[ca.crt]", "the certificate CN=a ended"),
                    finding("odd", Severity::Warn, "", "an \u{1b}[31m escape"),
                ],
            ),
            new("old", 20, vec![finding("odd", Severity::Warn, "data[x]", "odd")]),
        ]
    }

    fn printed(mut reporter: Reporter<Vec<u8>>, judged: &[Judged]) -> String {
        judged.iter().try_for_each(|j| reporter.judged(j)).expect("memory");
        reporter.finish().expect("memory");
        anstream::adapter::strip_str(&String::from_utf8_lossy(&reporter.out)).to_string()
    }

    #[test]
    fn text_for_people() {
        insta::assert_snapshot!(printed(Reporter::text(Vec::new()), &judged()), @r"
        f.yaml:9  deny  Secret istio-system/gw
          ca-expired  data[ca.crt]  the certificate CN=a ended
          odd  -  an �[31m escape

        f.yaml:20  warn  Secret istio-system/old
          odd  data[x]  odd

        3 objects judged: 1 denied, 1 warned
        ");
        assert_eq!(printed(Reporter::text(Vec::new()), &[]), "0 objects judged: 0 denied, 0 warned\n");
    }

    #[test]
    fn json_is_one_array() {
        insta::assert_snapshot!(printed(Reporter::json(Vec::new()), &judged()[..2]), @r#"
        [
        {"object":{"apiVersion":"v1","kind":"Secret","namespace":"istio-system","name":"sound"},"source":"f.yaml:1","verdict":"allow","findings":[]},
        {"object":{"apiVersion":"v1","kind":"Secret","namespace":"istio-system","name":"gw"},"source":"f.yaml:9","verdict":"deny","findings":[{"rule":"ca-expired","severity":"deny","field":"data[ca.crt]","message":"the certificate CN=a ended"},{"rule":"odd","severity":"warn","field":"","message":"an \u001b[31m escape"}]}
        ]
        "#);
        assert_eq!(printed(Reporter::json(Vec::new()), &[]), "[]\n");
    }
}
