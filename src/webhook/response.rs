//! A decision as the API server reads it: an `admission.k8s.io/v1` AdmissionReview with a response.

use std::collections::BTreeMap;

use base64::Engine;
use serde::Serialize;

use super::limits::{DENIALS, WARNING_LENGTH, WARNINGS};
use super::review::{API_VERSION, KIND};
use crate::admission::Decision;
use crate::text::printable;
use crate::trust::{BASE64, Finding, Severity, Verdict};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewResponse<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    audit_annotations: BTreeMap<&'static str, String>,
}

/// kubectl prints `Error from server (<reason>): … denied the request: <message>`.
#[derive(Serialize)]
struct Status {
    status: &'static str,
    code: u16,
    reason: &'static str,
    message: String,
}

/// The body of the response to the review with this uid.
///
/// # Errors
/// If the response cannot be written as JSON.
pub fn answer(uid: &str, decision: &Decision) -> Result<String, serde_json::Error> {
    let allowed = decision.verdict() != Verdict::Deny;
    let mut body = serde_json::to_string(&ReviewResponse {
        api_version: API_VERSION,
        kind: KIND,
        response: Response {
            uid,
            allowed,
            status: (!allowed).then(|| Status {
                status: "Failure",
                code: 403,
                reason: "Forbidden",
                message: denial(decision),
            }),
            warnings: warnings(decision),
            audit_annotations: audit(decision),
        },
    })?;
    if allowed && !decision.patch.is_empty() {
        let patch = decision.patch.as_str();
        // Base64 has no character to escape, so it is written to its place without copies.
        body.truncate(body.len() - "}}".len());
        body.reserve(patch.len() / 3 * 4 + 64);
        body += r#","patchType":"JSONPatch","patch":""#;
        BASE64.encode_string(patch, &mut body);
        body += r#""}}"#;
    }
    Ok(body)
}

/// One finding continues the line of kubectl; several are on a line each below it.
fn denial(decision: &Decision) -> String {
    let mut lines: Vec<_> = decision.denials().map(line).collect();
    if let [only] = lines.as_slice() {
        return only.clone();
    }
    let (all, left_out) = (lines.len(), lines.len().saturating_sub(DENIALS));
    lines.truncate(DENIALS);
    if left_out > 0 {
        lines.push(format!("and {left_out} more"));
    }
    format!("{all} findings:\n  {}", lines.join("\n  "))
}

fn warnings(decision: &Decision) -> Vec<String> {
    let findings = decision.findings.iter().filter(|f| f.severity == Severity::Warn).map(line);
    let mut all: Vec<_> =
        findings.chain(decision.notes.iter().map(|n| printable(n))).map(|w| clip(&w, WARNING_LENGTH)).collect();
    if all.len() > WARNINGS {
        let left_out = all.len() - (WARNINGS - 1);
        all.truncate(WARNINGS - 1);
        all.push(format!("and {left_out} more warnings: see `trustspan check`"));
    }
    all
}

/// The audit annotations. The API server prefixes each key with the name of the webhook.
fn audit(decision: &Decision) -> BTreeMap<&'static str, String> {
    let overrides: Vec<_> =
        decision.overrides.iter().map(|applied| format!("{}: {}", applied.rule, applied.reason)).collect();
    let overridden = (!overrides.is_empty()).then(|| ("break-glass", printable(&overrides.join("; "))));
    [("denied-by", Severity::Deny), ("warned-by", Severity::Warn)]
        .into_iter()
        .filter_map(|(key, severity)| {
            let mut rules: Vec<_> =
                decision.findings.iter().filter(|f| f.severity == severity).map(|f| f.rule).collect();
            rules.sort_unstable();
            rules.dedup();
            (!rules.is_empty()).then(|| (key, rules.join(",")))
        })
        .chain(overridden)
        .collect()
}

/// Printable, since names come from the object: the API server drops a warning with a control character, and a denial is shown in a terminal.
fn line(finding: &Finding) -> String {
    let Finding { rule, field, message, .. } = finding;
    printable(&if field.is_empty() { format!("{rule}: {message}") } else { format!("{rule}: {field}: {message}") })
}

/// At most `limit` characters, cut between words.
fn clip(text: &str, limit: usize) -> String {
    let Some((end, _)) = text.char_indices().nth(limit) else { return text.to_owned() };
    let head = &text[..end];
    let room = head.char_indices().next_back().map_or(0, |(last, _)| last);
    let cut = match head[..room].rfind(' ') {
        // A space in the first half of the line would leave it half empty, so the word is cut instead.
        Some(space) if space >= room / 2 => space,
        _ => room,
    };
    format!("{}…", head[..cut].trim_end_matches([' ', ',', ':', ';']))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::rewrite::PatchText;

    fn finding(rule: &'static str, severity: Severity, field: &str, message: &str) -> Finding {
        Finding { rule, severity, field: field.to_owned(), message: message.to_owned() }
    }

    fn answered(decision: &Decision) -> Value {
        serde_json::from_str(&answer("u-1", decision).unwrap()).unwrap()
    }

    #[test]
    fn allows_without_findings() {
        assert_eq!(
            answered(&Decision::default()),
            json!({"apiVersion": API_VERSION, "kind": KIND, "response": {"uid": "u-1", "allowed": true}})
        );
    }

    #[test]
    fn a_patch_is_base64() {
        let patch = json!([{"op": "add", "path": "/spec/x", "value": "y"}]);
        let decision = Decision { patch: PatchText::add("/spec/x", "y"), ..Decision::default() };
        let answer = answered(&decision);
        assert_eq!(answer["response"]["patchType"], "JSONPatch");
        let sent = BASE64.decode(answer["response"]["patch"].as_str().unwrap()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&sent).unwrap(), patch);
    }

    #[test]
    fn a_denial_lists_its_findings_and_has_no_patch() {
        let mut decision = Decision { patch: PatchText::add("/a", ""), ..Decision::default() };
        decision.findings.push(finding("no-ca", Severity::Deny, "data[ca.crt]", "no CA\x1b[31m; put one there"));
        decision.findings.push(finding("near-expiry", Severity::Warn, "", "soon over"));
        let one = answered(&decision);
        assert_eq!(one["response"]["allowed"], false);
        assert!(one["response"].get("patch").is_none());
        assert_eq!(
            one["response"]["status"],
            json!({"status": "Failure", "code": 403, "reason": "Forbidden",
                "message": "no-ca: data[ca.crt]: no CA\u{fffd}[31m; put one there"})
        );
        assert_eq!(one["response"]["warnings"], json!(["near-expiry: soon over"]));
        assert_eq!(one["response"]["auditAnnotations"], json!({"denied-by": "no-ca", "warned-by": "near-expiry"}));

        for _ in 0..11 {
            decision.findings.push(finding("b", Severity::Deny, "f", "m"));
        }
        let many = answered(&decision);
        let message = many["response"]["status"]["message"].as_str().unwrap();
        assert!(message.starts_with("12 findings:\n  no-ca: data[ca.crt]"), "{message}");
        assert!(message.ends_with("\n  b: f: m\n  and 2 more"), "{message}");
        assert_eq!(many["response"]["auditAnnotations"]["denied-by"], "b,no-ca");
    }

    #[test]
    fn overrides_are_in_the_audit_log() {
        let applied = |rule, reason: &str| crate::admission::Override { rule, reason: reason.to_owned() };
        let overrides = vec![applied("expired", "ticket 7"), applied("empty", "ticket 8")];
        let answer = answered(&Decision { overrides, ..Decision::default() });
        assert_eq!(
            answer["response"]["auditAnnotations"],
            json!({"break-glass": "expired: ticket 7; empty: ticket 8"})
        );
    }

    #[test]
    fn limits_number_and_length_of_warnings() {
        let decision = Decision {
            findings: (0..40).map(|_| finding("r", Severity::Warn, "spec", &"wörter ".repeat(80))).collect(),
            notes: vec!["a note\nof two lines".to_owned()],
            ..Decision::default()
        };
        let answer = answered(&decision);
        let warnings = answer["response"]["warnings"].as_array().unwrap();
        assert_eq!(warnings.len(), WARNINGS);
        assert!(warnings.iter().all(|w| w.as_str().unwrap().chars().count() <= WARNING_LENGTH));
        assert_eq!(warnings[4], "and 37 more warnings: see `trustspan check`");
    }

    #[test]
    fn cuts_between_words() {
        assert_eq!(clip("short", 5), "short");
        assert_eq!(clip("two words", 9), "two words");
        assert_eq!(clip("two words here", 10), "two words…");
        assert_eq!(clip("ääääääää", 4), "äää…");
        assert_eq!(clip("", 4), "");
    }
}
