//! The commands of the README and of docs do what these pages say.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// The `sh` blocks of a page, in order.
fn blocks(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

/// What the offline commands of each page in docs print: `sh` blocks whose every line starts trustspan with cargo. They need no cluster.
fn offline_output() -> BTreeMap<String, String> {
    let pages = ["docs", "docs/reference"].into_iter().flat_map(|dir| std::fs::read_dir(dir).unwrap());
    let pages = pages.map(|page| page.unwrap().path()).filter(|page| page.extension().is_some_and(|name| name == "md"));
    let output = pages.map(|page| {
        let blocks = blocks(&std::fs::read_to_string(&page).unwrap());
        let offline = blocks.iter().filter(|block| block.lines().all(|line| line.starts_with("cargo run -q -- ")));
        (page.display().to_string(), offline.map(|block| sh(block)).collect())
    });
    output.filter(|(_, output): &(String, String)| !output.is_empty()).collect()
}

/// Kills the server when the test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sh(script: &str) -> String {
    let script = script.replace("cargo run -q --", env!("CARGO_BIN_EXE_trustspan"));
    let output = Command::new("sh").args(["-ec", &script]).env("no_proxy", "*").output().unwrap();
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_first_command_serves_and_curl_gets_the_patch_and_the_denial() {
    let blocks = blocks(include_str!("../README.md"));
    let args = blocks[0].trim().strip_prefix("cargo run -- ").expect("the first command is cargo run");
    assert_eq!(blocks[1].trim(), "./test");

    // The commands as the page has them, but with other ports and another directory, since tests run at the same time.
    let certs = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_trustspan"))
        .args(args.split_whitespace())
        .args(["--port", "0", "--metrics-port", "0", "--cert-dir"])
        .arg(certs.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(child.stderr.take().unwrap());
    let _server = Server(child);
    let mut lines = log.lines().map(Result::unwrap);
    let port = lines.find_map(|line| {
        let (address, _) = line.split_once("listening on https://")?.1.split_once(": ")?;
        Some(address.rsplit_once(':')?.1.to_owned())
    });
    let port = port.expect("the server ended before it listened");
    // The output is read, because a full pipe would block the server.
    std::thread::spawn(move || lines.for_each(drop));

    let curl = |block: &str| {
        assert!(block.starts_with("curl "), "{block}");
        let block = block.replace(":8443", &format!(":{port}"));
        let answer = sh(&block.replace("certs/ca.crt", &certs.path().join("ca.crt").display().to_string()));
        serde_json::from_str::<Value>(&answer).unwrap()["response"].clone()
    };
    let allowed = curl(&blocks[2]);
    assert_eq!(allowed["allowed"], true);
    let patch = STANDARD.decode(allowed["patch"].as_str().unwrap()).unwrap();
    let patch: Value = serde_json::from_slice(&patch).unwrap();
    assert_eq!(patch[0]["value"], "public-gateway");

    let denied = curl(&blocks[3]);
    assert_eq!(denied["allowed"], false);
    assert!(denied["status"]["message"].as_str().unwrap().contains("unparsable"), "{denied}");
}

#[test]
fn the_offline_commands_of_docs_run_as_written() {
    let printed = offline_output();
    let expected = [
        ("docs/check.md", "\"verdict\":\"allow\""),
        ("docs/getting-started.md", "0 denied, 0 warned"),
        ("docs/getting-started.md", "+        credentialName: public-gateway"),
        ("docs/getting-started.md", "CN=Example gateway root,O=Example"),
        ("docs/issuers.md", "name: trustspan-agent-public-gateway"),
        ("docs/reference/api.md", "kind: CustomResourceDefinition"),
        ("docs/troubleshooting.md", "istio-system/public-gateway"),
    ];
    for (page, text) in expected {
        assert!(printed[page].contains(text), "{page}: {}", printed[page]);
    }
    let unexpected: Vec<_> = printed.keys().filter(|page| expected.iter().all(|(known, _)| known != page)).collect();
    assert!(unexpected.is_empty(), "say above what the commands of {unexpected:?} print");
    // A rewrite and its undo give back the text of the files.
    for file in ["gateway.yaml", "gatewaysecret.yaml", "workload.yaml"] {
        let text = std::fs::read_to_string(format!("manifests/example/{file}")).unwrap();
        assert!(printed["docs/getting-started.md"].contains(&text), "{file} did not come back unchanged");
    }
}

/// A link to a page that was moved or renamed, or to a heading that is gone, is an error.
#[test]
fn links_between_pages_lead_somewhere() {
    let pages = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(PathBuf::from).into_iter();
    let folders = ["docs", "docs/reference", "docs/adr"].into_iter().flat_map(|dir| std::fs::read_dir(dir).unwrap());
    let pages = pages.chain(folders.map(|page| page.unwrap().path()));
    let mut broken = Vec::new();
    for page in pages.filter(|page| page.extension().is_some_and(|name| name == "md")) {
        let text = std::fs::read_to_string(&page).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
        for target in targets.filter(|target| !target.starts_with("http") && !target.contains(char::is_whitespace)) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let linked = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            if !linked.exists() || !anchor.is_empty() && !anchors(&linked).iter().any(|one| one == anchor) {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let is_kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    headings
        .map(|heading| heading.to_lowercase().chars().filter(is_kept).collect::<String>().replace(' ', "-"))
        .collect()
}

/// The tour's phases on stderr, and what it shows of them on stdout.
#[test]
fn the_tour_completes_a_rotation() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("tour");
    let tour = || {
        let mut command = Command::new("docs/tour");
        command.arg(&dir).env("TRUSTSPAN", env!("CARGO_BIN_EXE_trustspan"));
        command.output().unwrap()
    };
    let output = tour();
    let (log, shown) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{log}\n{shown}");
    let mut phases: Vec<_> = log.lines().filter_map(|line| line.strip_prefix("mesh/gateway: ")).collect();
    phases.dedup();
    let wanted = ["Steady", "TrustExpanded", "Converged", "Steady"];
    let mut passed = phases.iter();
    assert!(wanted.iter().all(|phase| passed.any(|seen| seen == phase)), "{phases:?}");
    let position = |text: &str| shown.find(text).unwrap_or_else(|| panic!("{text}: not in {shown}"));
    assert!(
        position("CN=one")
            < position(
                "(SwitchServingCertificate): Not every client trusts the CA of the new serving certificate yet: payments"
            )
    );
    let (_, end) = shown.split_once("the old CA is dropped").unwrap();
    assert!(end.contains("CN=two") && !end.contains("CN=one") && end.contains("1 client: payments"), "{end}");

    let again = tour();
    assert_eq!(again.status.code(), Some(2), "a directory that is not empty is not used");
}

#[test]
fn the_tour_creates_nothing_without_its_programs() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("tour");
    let output = Command::new("docs/tour").arg(&dir).env("TRUSTSPAN", "/nonexistent/trustspan").output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{log}");
    assert!(log.contains("/nonexistent/trustspan: no such program"), "{log}");
    assert!(!dir.exists(), "nothing was created");
}

/// Ctrl-C goes to all processes of a terminal's foreground group, and a user may press it more than once.
#[test]
fn the_tour_that_is_interrupted_leaves_nothing_behind() {
    let places = tempfile::tempdir().unwrap();
    // A test run in the background ignores SIGINT, and a shell cannot reset an ignored signal.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", "docs/tour"]);
    command.env("TRUSTSPAN", env!("CARGO_BIN_EXE_trustspan")).env("TMPDIR", places.path());
    let mut tour = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut shown = BufReader::new(tour.stdout.take().unwrap()).lines();
    assert!(shown.any(|line| line.unwrap().contains("the issuer renews")), "the agent runs");
    assert_ne!(std::fs::read_dir(places.path()).unwrap().count(), 0, "keys are there");
    while tour.try_wait().unwrap().is_none() {
        Command::new("kill").args(["-INT", "--", &format!("-{}", tour.id())]).status().unwrap();
    }
    assert_eq!(tour.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read_dir(places.path()).unwrap().count(), 0, "nothing is left");
}
