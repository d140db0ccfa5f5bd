//! `trustspan rules`.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

use super::Failure;
use super::inputs::unless_closed;
use crate::admission::{RuleInfo, rules};
use crate::trust::Severity;

/// List the rules that findings refer to.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Output format: text, a JSON array, or docs/rules.md.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: RulesFormat,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum RulesFormat {
    #[default]
    Text,
    Json,
    Markdown,
}

/// Runs the subcommand.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let page = match args.output {
        RulesFormat::Text => Ok(text()),
        RulesFormat::Json => json(),
        RulesFormat::Markdown => Ok(markdown()),
    };
    unless_closed(page.and_then(|page| {
        io::stdout().lock().write_all(page.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }))
}

fn severity(rule: &RuleInfo) -> &'static str {
    match rule.severity {
        Severity::Deny => "deny",
        Severity::Warn => "warn",
    }
}

fn text() -> String {
    let width = rules().map(|rule| rule.id.len()).max().unwrap_or_default();
    rules().fold(String::new(), |mut page, rule| {
        let (id, severity, indent) = (rule.id, severity(&rule), width + 8);
        // Writing to a String does not fail.
        let _ = writeln!(page, "{id:width$}  {severity}  {}\n{:indent$}{}", rule.summary, "", rule.remedy);
        page
    })
}

fn json() -> Result<String, Failure> {
    let all: Vec<_> = rules().collect();
    Ok(serde_json::to_string_pretty(&all).map_err(io::Error::from)? + "\n")
}

/// The page docs/rules.md.
pub fn markdown() -> String {
    let mut page = "<!-- Generated: cargo run -- rules --output markdown > docs/rules.md -->\n# Rules\n\n".to_owned();
    page += "The findings of the validating webhook and `trustspan check`. Ids are stable: denials, warnings, metrics and audit \
             annotations name them.\n\nThe severity of a rule can be changed: for the cluster with `--severity RULE=deny|warn|off` of \
             `serve`, `check`, `observe` and `rewrite`, for the Secrets of GatewaySecrets with `severities` of a RotationPolicy (`Deny`, \
             `Warn`, `Off`), which wins. A rule that is set to deny denies with all of its findings, except those that the stored object \
             already had. Some severities are fixed: `unreadable` and `invalid-resource` report objects that the API server rejects, and \
             the way around `managed-in-use` and `managed-renamed` is to delete the GatewaySecret. Everyone who may edit a RotationPolicy \
             controls the severities in its namespace.\n\nA Secret is judged now and at every future date in it (the 64 earliest). A \
             finding that time alone will cause is a warning with its date: an order of CAs that fails once one of them has expired, two \
             CAs with one subject that both become valid, a gap without a valid CA. It is reported however far ahead, since it can be prevented \
             then. An edit that would cost a client today is named with its time or its condition. The end of a certificate is reported when its renewal is due: a CA or leaf by `expiring`, a revocation list \
             by `crl-expired`. A bundle that is valid for ten years has no finding.\n\nLines count in the decoded value, \
             from 1: `kubectl get secret NAME -o jsonpath='{.data.ca\\.crt}' | base64 -d`. \"Remove line 12\" means the certificate that begins \
             there, from BEGIN to END.\n\nIn an emergency the annotation \
             `breakglass.trustspan.dev/<rule>: <reason>` on a Secret turns a denial into a warning, for requesters with a separate \
             permission, and in `check --break-glass` ([how](adr/0006-break-glass-is-a-path.md)).\n\n| rule | default | finding \
             |\n|---|---|---|\n";
    for rule in rules() {
        let _ = writeln!(page, "| [`{id}`](#{id}) | {} | {} |", severity(&rule), escaped(rule.summary), id = rule.id);
    }
    for rule in rules() {
        let RuleInfo { id, summary, source, example, remedy, .. } = rule;
        let fixed = if rule.is_fixed() { ", fixed" } else { "" };
        let _ = writeln!(page, "\n## {id}\n\n- **Finds** ({}{fixed}): {}.", severity(&rule), escaped(summary));
        let _ = writeln!(page, "- **Why:** {}.", escaped(source));
        let _ = writeln!(page, "- **Example:** `{example}`");
        let _ = writeln!(page, "- **Remedy:** {}.", escaped(remedy));
    }
    page
}

/// A placeholder such as `<name>` would be read as HTML.
fn escaped(text: &str) -> String {
    text.replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_page_is_current() {
        let committed = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/rules.md"));
        assert_eq!(
            committed,
            super::markdown(),
            "docs/rules.md is stale: cargo run -- rules --output markdown > docs/rules.md"
        );
    }

    #[test]
    fn every_format_has_every_rule() {
        let json: Vec<serde_json::Value> = serde_json::from_str(&super::json().expect("JSON")).expect("JSON");
        assert_eq!(json.len(), crate::admission::rules().count());
        for (rule, element) in crate::admission::rules().zip(&json) {
            assert_eq!(element["id"], rule.id);
            assert!(["deny", "warn"].contains(&element["severity"].as_str().unwrap_or_default()), "{element}");
            assert!(super::text().contains(&format!("{}  ", rule.id)), "{}", rule.id);
        }
    }
}
