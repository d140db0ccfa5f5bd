//! `trustspan verify`, run as users run it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use serde_json::Value;

struct Pki {
    dir: tempfile::TempDir,
}

fn params(common_name: &str, until: i32) -> CertificateParams {
    let mut params = CertificateParams::new([common_name.to_owned()]).expect("names");
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = date_time_ymd(2026, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    params
}

/// A directory with `root.pem`, `other.pem`, `old-first.pem` (a root that expires in 2031, then its renewal) and
/// `leaf.pem` (valid until 2035).
fn pki() -> Pki {
    let dir = tempfile::tempdir().expect("a folder");
    let key = KeyPair::generate().expect("a key");
    let root = |until| {
        let mut params = params("root", until);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    };
    let (old, new) = (root(2031).self_signed(&key).expect("a CA"), root(2040).self_signed(&key).expect("a CA"));
    let mut other = params("other", 2040);
    other.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let other = other.self_signed(&KeyPair::generate().expect("a key")).expect("a CA");
    let issuer = Issuer::new(root(2040), key);
    let leaf = params("a.example", 2035).signed_by(&KeyPair::generate().expect("a key"), &issuer).expect("a leaf");
    for (name, text) in [
        ("root.pem", new.pem()),
        ("other.pem", other.pem()),
        ("old-first.pem", old.pem() + &new.pem()),
        ("leaf.pem", leaf.pem()),
        ("broken.pem", new.pem().replace("-----END", "----END")),
        ("prose.pem", "to whom it may concern\n".to_owned()),
    ] {
        fs::write(dir.path().join(name), text).expect("a file");
    }
    Pki { dir }
}

impl Pki {
    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn verify(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trustspan"));
        command.arg("verify").args(["--now", "2030-01-01T00:00:00Z"]).args(args).current_dir(self.path());
        command.output().expect("the binary")
    }

    fn said(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = self.verify(args);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[test]
fn accepted_refused_unreadable() {
    let pki = pki();
    let (code, out) = pki.said(&["--bundle", "root.pem", "--chain", "leaf.pem"]);
    assert_eq!(
        (code, out.as_str()),
        (Some(0), "leaf.pem: accepted until 2035-01-01T00:00:00Z: CN=a.example < CN=root\n")
    );
    let (code, out) = pki.said(&["--bundle", "other.pem", "--chain", "leaf.pem"]);
    assert_eq!(code, Some(1));
    assert!(out.starts_with("leaf.pem: refused: unknown-issuer: CN=a.example was issued by "), "{out}");
    for bundle in ["broken.pem", "missing.pem", "prose.pem"] {
        let (code, out) = pki.said(&["--bundle", bundle, "--chain", "leaf.pem"]);
        assert_eq!(code, Some(2), "{out}");
        assert!(out.contains("unreadable") && out.contains(bundle), "{out}");
    }
    let (code, out) = pki.said(&["--bundle", "root.pem", "--chain", "prose.pem"]);
    assert_eq!(
        (code, out.as_str()),
        (Some(2), "prose.pem: unreadable: chain prose.pem: no certificate in it; expected PEM\n")
    );
    assert_eq!(pki.said(&["--bundle", "root.pem"]).0, Some(2), "usage");
}

#[test]
fn servers_are_judged_by_their_hosts() {
    let pki = pki();
    let server =
        |host| pki.said(&["--bundle", "root.pem", "--chain", "leaf.pem", "--purpose", "server", "--host", host]).0;
    assert_eq!((server("a.example"), server("b.example")), (Some(0), Some(1)));
}

#[test]
fn json_reports_a_future_break() {
    let pki = pki();
    let (code, out) = pki.said(&["--bundle", "old-first.pem", "--chain", "leaf.pem", "--output", "json"]);
    let answer: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, &answer["verdict"]), (Some(0), &Value::from("accepted")));
    assert_eq!(answer["chain"], "leaf.pem");
    assert_eq!(answer["breaks"]["at"], "2031-01-01T00:00:00Z");
    assert_eq!(answer["breaks"]["reason"], "shadowed");
    let (code, out) =
        pki.said(&["--bundle", "old-first.pem", "--chain", "leaf.pem", "-o", "json", "--now", "2032-01-01T00:00:00Z"]);
    assert_eq!(code, Some(2), "--now twice is a usage error: {out}");
}

#[test]
fn a_list_is_answered_line_by_line() {
    let pki = pki();
    let list =
        "root.pem leaf.pem\n\nother.pem\tleaf.pem\nroot.pem leaf.pem server a.example\nroot.pem leaf.pem neither\n";
    fs::write(pki.path().join("list"), list).expect("a file");
    let (code, out) = pki.said(&["--list", "list", "--output", "json"]);
    let answers: Vec<_> = out.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")).collect();
    let values = |key: &str| answers.iter().map(|answer| answer[key].clone()).collect::<Vec<_>>();
    assert_eq!(values("verdict"), ["accepted", "refused", "accepted", "unreadable"]);
    assert_eq!(values("line"), [1, 3, 4, 5]);
    assert_eq!(code, Some(2));
    fs::write(pki.path().join("list"), "root.pem leaf.pem\nother.pem leaf.pem\n").expect("a file");
    let (code, out) = pki.said(&["--list", "list"]);
    assert_eq!((code, out.lines().count()), (Some(1), 2));
    assert!(out.starts_with("line 1: accepted"), "{out}");
    assert_eq!(pki.said(&["--list", "missing"]).0, Some(2));
}

#[test]
fn rejects_a_host_of_a_client() {
    let pki = pki();
    let args = ["--bundle", "root.pem", "--chain", "leaf.pem", "--host", "a.example", "--purpose", "client"];
    let (code, out) = pki.said(&args);
    assert!(code == Some(2) && out.contains("expected purpose server with a.example, or no host"), "{out}");
    fs::write(pki.path().join("list"), "root.pem leaf.pem client a.example\nroot.pem leaf.pem client\n")
        .expect("a file");
    let (code, out) = pki.said(&["--list", "list"]);
    assert!(code == Some(2) && out.contains("\nline 2: accepted"), "{out}");
}
