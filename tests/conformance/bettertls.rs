//! BetterTLS (github.com/Netflix/bettertls): which name constraints and paths a TLS client accepts.

use std::{collections::BTreeMap, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use trustspan::trust::Certificate;

use crate::{
    case::{Case, Role, Suite},
    testbed::exported,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Export {
    trust_root: String,
    suites: BTreeMap<String, ExportedSuite>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExportedSuite {
    test_cases: Vec<TestCase>,
}

#[derive(Deserialize)]
struct TestCase {
    id: usize,
    certificates: Vec<String>,
    hostname: String,
    expected: Expectation,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
enum Expectation {
    Accept,
    Reject,
}

/// The cases, with keys that are made now.
pub(crate) fn suite() -> Result<Suite> {
    let [dir] = exported("setup", &["bettertls"], ["TRUSTSPAN_BED_BETTERTLS"])?;
    let export = Command::new(Path::new(&dir).join("bettertls")).arg("export-tests").output().context("bettertls")?;
    ensure!(export.status.success(), "bettertls export-tests: {}", String::from_utf8_lossy(&export.stderr));
    let export: Export = serde_json::from_slice(&export.stdout).context("the output of bettertls export-tests")?;
    let ca = Certificate::parse(&STANDARD.decode(&export.trust_root)?)?.pem().into_bytes();
    let cases = export.suites.into_iter().flat_map(|(suite, exported)| {
        let ca = &ca;
        exported.test_cases.into_iter().map(move |case| {
            Ok(Case {
                id: format!("{suite}::{}", case.id),
                ca: ca.clone(),
                crl: None,
                chain: case.certificates.iter().map(|der| Ok(STANDARD.decode(der)?.into())).collect::<Result<_>>()?,
                key: None,
                role: Role::Server { hosts: vec![case.hostname] },
                at: None,
                is_valid: case.expected == Expectation::Accept,
            })
        })
    });
    Ok(Suite { cases: cases.collect::<Result<_>>()?, skipped: BTreeMap::new() })
}
