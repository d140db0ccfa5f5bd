//! JUnit XML, as Jenkins and GitLab read it: a test suite for each file, a test case for each object.

use std::io::{self, Write};

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::{FindingLocation, JudgedObject, Outcome, Printer, Totals, line};
use crate::store::manifest::ManifestError;
use crate::text::printable;

pub(super) struct Junit<W> {
    out: W,
    suites: Vec<TestSuite>,
}

impl<W> Junit<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, suites: Vec::new() }
    }

    fn add(&mut self, name: &str, location: &FindingLocation, mut status: TestCaseStatus, message: &str, text: &str) {
        if !message.is_empty() {
            status.set_message(message);
            status.set_description(text);
        }
        let mut case = TestCase::new(name, status);
        if message.is_empty() && !text.is_empty() {
            case.set_system_out(text);
        }
        // Names must be unique to compare runs. Two objects of one name differ in their lines.
        case.set_classname(location.to_string());
        match self.suites.last_mut() {
            Some(suite) if suite.name.as_str() == location.file => _ = suite.add_test_case(case),
            _ => {
                let mut suite = TestSuite::new(location.file.as_str());
                suite.add_test_case(case);
                self.suites.push(suite);
            }
        }
    }
}

impl<W: Write> Printer for Junit<W> {
    fn judged(&mut self, judged: &JudgedObject) -> io::Result<()> {
        let lines: Vec<_> =
            judged.findings.iter().map(|finding| format!("{}: {}", finding.rule, line(judged, finding))).collect();
        let why = judged.not_judged.join("\n");
        let (status, message) = match judged.verdict {
            Outcome::Deny => {
                (TestCaseStatus::non_success(NonSuccessKind::Failure), lines.first().map_or("", |l| l.as_str()))
            }
            Outcome::NotJudged => (TestCaseStatus::skipped(), why.as_str()),
            Outcome::Allow | Outcome::Warn => (TestCaseStatus::success(), ""),
        };
        let text = lines.iter().map(String::as_str).chain(judged.not_judged.iter().map(String::as_str));
        let text = text.collect::<Vec<_>>().join("\n");
        self.add(&judged.title, &judged.source, status, message, &text);
        Ok(())
    }

    fn unreadable(&mut self, error: &ManifestError) -> io::Result<()> {
        let location = FindingLocation { file: error.source_name().to_owned(), line: error.line().unwrap_or(1) };
        let message = printable(&error.to_string());
        let status = TestCaseStatus::non_success(NonSuccessKind::Error);
        self.add("readable document", &location, status, &message, &message);
        Ok(())
    }

    fn finish(&mut self, _totals: &Totals) -> io::Result<()> {
        let mut report = Report::new("trustspan check");
        report.add_test_suites(self.suites.drain(..));
        report.serialize(&mut self.out).map_err(io::Error::other)?;
        self.out.flush()
    }
}
