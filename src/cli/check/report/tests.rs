use std::io::{Read, Seek};

use serde_json::json;

use super::*;
use crate::trust::Severity;

fn judged() -> [JudgedObject; 4] {
    let finding = |rule, severity, field: &str, message: &str| Finding {
        rule,
        severity,
        field: field.to_owned(),
        message: message.to_owned(),
    };
    let object = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "istio-system"}});
    let new = |name, line, findings: Vec<Finding>| {
        let location = FindingLocation { file: "f.yaml".to_owned(), line };
        JudgedObject::object(&object(name), "default", location, findings, Vec::new())
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
        JudgedObject::file(
            "document",
            FindingLocation { file: "100%,a:b.yaml".to_owned(), line: 1 },
            vec![],
            vec!["a template".to_owned()],
        ),
    ]
}

fn printed(format: ReportFormat, judged: &[JudgedObject]) -> String {
    let mut file = tempfile::tempfile().expect("a file");
    let mut reporter = Reporter::new(format, file.try_clone().expect("a second handle"));
    judged.iter().try_for_each(|judged| reporter.judged(judged)).expect("a file");
    reporter.finish().expect("a file");
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("text");
    anstream::adapter::strip_str(&text).to_string()
}

#[test]
fn text_lists_findings_by_object() {
    insta::assert_snapshot!(printed(ReportFormat::Text, &judged()), @r"
    f.yaml:9  deny  Secret istio-system/gw
      ca-expired  data[ca.crt]  the certificate CN=a ended
      odd  -  an �[31m escape

    f.yaml:20  warn  Secret istio-system/old
      odd  data[x]  odd

    100%,a:b.yaml:1  not judged  document
      not judged: a template

    3 objects judged: 1 denied, 1 warned; 1 not judged
    ");
    assert_eq!(printed(ReportFormat::Text, &[]), "0 objects judged: 0 denied, 0 warned\n");
}

#[test]
fn json_is_an_array() {
    insta::assert_snapshot!(printed(ReportFormat::Json, &judged()[..2]), @r#"
    [
    {"object":{"apiVersion":"v1","kind":"Secret","namespace":"istio-system","name":"sound"},"source":"f.yaml:1","verdict":"allow","findings":[]},
    {"object":{"apiVersion":"v1","kind":"Secret","namespace":"istio-system","name":"gw"},"source":"f.yaml:9","verdict":"deny","findings":[{"rule":"ca-expired","severity":"deny","field":"data[ca.crt]","message":"the certificate CN=a ended"},{"rule":"odd","severity":"warn","field":"","message":"an \u001b[31m escape"}]}
    ]
    "#);
    assert_eq!(printed(ReportFormat::Json, &[]), "[]\n");
}

#[test]
fn github_commands_are_escaped() {
    insta::assert_snapshot!(printed(ReportFormat::Github, &judged()), @r"
    ::error file=f.yaml,line=9,title=ca-expired::Secret istio-system/gw data[ca.crt]: the certificate CN=a ended
    ::warning file=f.yaml,line=9,title=odd::Secret istio-system/gw: an �[31m escape
    ::warning file=f.yaml,line=20,title=odd::Secret istio-system/old data[x]: odd
    ::notice file=100%25%2Ca%3Ab.yaml,line=1,title=not judged::document: a template
    3 objects judged: 1 denied, 1 warned; 1 not judged
    ");
}

#[test]
fn junit_has_a_case_for_each_object() {
    insta::assert_snapshot!(printed(ReportFormat::Junit, &judged()), @r#"
    <?xml version="1.0" encoding="UTF-8"?>
    <testsuites name="trustspan check" tests="4" skipped="1" failures="1" errors="0">
        <testsuite name="f.yaml" tests="3" skipped="0" errors="0" failures="1">
            <testcase name="Secret istio-system/sound" classname="f.yaml:1"/>
            <testcase name="Secret istio-system/gw" classname="f.yaml:9">
                <failure message="ca-expired: Secret istio-system/gw data[ca.crt]: the certificate CN=a ended">ca-expired: Secret istio-system/gw data[ca.crt]: the certificate CN=a ended
    odd: Secret istio-system/gw: an �[31m escape</failure>
            </testcase>
            <testcase name="Secret istio-system/old" classname="f.yaml:20">
                <system-out>odd: Secret istio-system/old data[x]: odd</system-out>
            </testcase>
        </testsuite>
        <testsuite name="100%,a:b.yaml" tests="1" skipped="1" errors="0" failures="0">
            <testcase name="document" classname="100%,a:b.yaml:1">
                <skipped message="a template">a template</skipped>
            </testcase>
        </testsuite>
    </testsuites>
    "#);
}

#[test]
fn sarif_encodes_paths_as_uris() {
    let log: Value = serde_json::from_str(&printed(ReportFormat::Sarif, &judged())).expect("JSON");
    let run = &log["runs"][0];
    assert_eq!(run["results"].as_array().map(Vec::len), Some(3));
    let note = &run["invocations"][0]["toolExecutionNotifications"][0];
    let uri = &note["locations"][0]["physicalLocation"]["artifactLocation"]["uri"];
    assert_eq!((&note["level"], uri), (&json!("note"), &json!("100%25%2Ca%3Ab.yaml")));
    for result in run["results"].as_array().into_iter().flatten() {
        if let Some(index) = result["ruleIndex"].as_u64() {
            assert_eq!(run["tool"]["driver"]["rules"][index as usize]["id"], result["ruleId"]);
        }
    }
}
