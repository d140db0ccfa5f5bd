//! The README's commands do what it says.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// The `sh` blocks of the README, in order.
fn blocks() -> Vec<String> {
    let readme = include_str!("../README.md");
    let blocks = readme.split("```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

/// Ends the server with the test.
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
    let blocks = blocks();
    let args = blocks[0].trim().strip_prefix("cargo run -- ").expect("the first command is cargo run");
    assert_eq!(blocks[1].trim(), "./test");

    // As written, but for ports and a folder of its own: other tests run beside this one.
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
    // Read on, or the pipe fills up.
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
fn the_offline_commands_run_as_written() {
    let block = &blocks()[4];
    let printed = sh(block);
    assert!(printed.contains("0 denied, 0 warned"), "{printed}");
    assert!(printed.contains("+        credentialName: public-gateway"), "{printed}");
    // The last line rewrites and takes it back: what the files say, all in one stream.
    let files = ["gateway.yaml", "gatewaysecret.yaml", "workload.yaml"];
    for file in files {
        let text = std::fs::read_to_string(format!("manifests/example/{file}")).unwrap();
        assert!(printed.contains(&text), "{file} did not come back as it was:\n{printed}");
    }
}

/// The tour's phases on stderr, and what it shows of them on stdout.
#[test]
fn the_tour_carries_a_rotation_through() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("tour");
    let tour = || {
        let mut command = Command::new("docs/tour");
        command.arg(&dir).env("TRUSTSPAN", env!("CARGO_BIN_EXE_trustspan"));
        command.output().unwrap()
    };
    let output = tour();
    let (told, shown) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{told}\n{shown}");
    let mut phases: Vec<_> = told.lines().filter_map(|line| line.strip_prefix("mesh/gateway: ")).collect();
    phases.dedup();
    let wanted = ["Steady", "TrustExpanded", "Converged", "Steady"];
    let mut passed = phases.iter();
    assert!(wanted.iter().all(|phase| passed.any(|seen| seen == phase)), "{phases:?}");
    let place = |text: &str| shown.find(text).unwrap_or_else(|| panic!("{text}: not in {shown}"));
    assert!(
        place("CN=one") < place("(SwitchServingCertificate): clients that may not trust the new leaf's CA yet: till")
    );
    let (_, end) = shown.split_once("the old CA goes").unwrap();
    assert!(end.contains("CN=two") && !end.contains("CN=one") && end.contains("1 client: till"), "{end}");

    let again = tour();
    assert_eq!(again.status.code(), Some(2), "a directory that is not empty is left alone");
}

#[test]
fn the_tour_makes_nothing_without_its_programs() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("tour");
    let output = Command::new("docs/tour").arg(&dir).env("TRUSTSPAN", "/nonexistent/trustspan").output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("/nonexistent/trustspan: no such program"), "{told}");
    assert!(!dir.exists(), "nothing was made");
}

/// Ctrl-C goes to all processes of a terminal's foreground group, and people press it more than once.
#[test]
fn the_tour_that_is_interrupted_leaves_nothing_behind() {
    let places = tempfile::tempdir().unwrap();
    // Whoever runs the tests in the background has them ignore Ctrl-C, and no shell below can take that back.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", "docs/tour"]);
    command.env("TRUSTSPAN", env!("CARGO_BIN_EXE_trustspan")).env("TMPDIR", places.path());
    let mut tour = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut shown = BufReader::new(tour.stdout.take().unwrap()).lines();
    assert!(shown.any(|line| line.unwrap().contains("the issuer rotates")), "the agent runs");
    assert_ne!(std::fs::read_dir(places.path()).unwrap().count(), 0, "keys are there");
    while tour.try_wait().unwrap().is_none() {
        Command::new("kill").args(["-INT", "--", &format!("-{}", tour.id())]).status().unwrap();
    }
    assert_eq!(tour.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read_dir(places.path()).unwrap().count(), 0, "nothing is left");
}
