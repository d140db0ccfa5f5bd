//! `trustspan certgen` with a directory. openssl verifies the certificates.

use std::fs;
use std::path::Path;
use std::process::Command;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::{code, run, text, write};

const SECRETS: [&str; 3] = ["envoy-gateway", "envoy", "envoy-rate-limit"];

fn certgen(dir: &Path, more: &[&str]) -> (i32, String, String) {
    let dir = dir.display().to_string();
    let args = ["certgen", "--profile", "envoy-gateway", "-n", "eg", "--output-dir", &dir];
    let output = run(&[&args, more].concat(), "");
    (code(&output), text(&output.stdout), text(&output.stderr))
}

fn secret(dir: &Path, name: &str) -> Value {
    let text = fs::read_to_string(dir.join(format!("{name}.yaml"))).expect("a manifest");
    serde_saphyr::from_str(&text).expect("YAML")
}

fn data(dir: &Path, name: &str, key: &str) -> Vec<u8> {
    let secret = secret(dir, name);
    STANDARD.decode(secret["data"][key].as_str().expect("a value")).expect("base64")
}

/// The output of openssl about files with the keys of a Secret.
fn openssl(dir: &Path, name: &str, args: &[&str]) -> String {
    let files = tempfile::tempdir().expect("a directory");
    for key in ["tls.crt", "tls.key", "ca.crt"] {
        fs::write(files.path().join(key), data(dir, name, key)).expect("a file");
    }
    let output = Command::new("openssl").args(args).current_dir(files.path()).output().expect("openssl");
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn writes_the_secrets_of_envoy_gateway() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let (status, _, stderr) = certgen(dir, &[]);
    assert_eq!(status, 0, "{stderr}");
    let mut files: Vec<_> = fs::read_dir(dir).expect("files").map(|file| file.expect("a file").file_name()).collect();
    files.sort();
    assert_eq!(files, ["envoy-gateway.yaml", "envoy-oidc-hmac.yaml", "envoy-rate-limit.yaml", "envoy.yaml"]);
    for name in SECRETS {
        let stored = secret(dir, name);
        assert_eq!((&stored["type"], &stored["metadata"]["namespace"]), (&"kubernetes.io/tls".into(), &"eg".into()));
        assert_eq!(stored["metadata"]["labels"]["control-plane"], "envoy-gateway");
        assert_eq!(data(dir, name, "ca.crt"), data(dir, "envoy", "ca.crt"));
        for purpose in ["sslserver", "sslclient"] {
            let verified =
                openssl(dir, name, &["verify", "-x509_strict", "-purpose", purpose, "-CAfile", "ca.crt", "tls.crt"]);
            assert_eq!(verified, "tls.crt: OK\n", "{name}");
        }
        let shown = openssl(dir, name, &["x509", "-in", "tls.crt", "-noout", "-text"]);
        assert!(shown.contains("Public-Key: (2048 bit)") && shown.contains("rsaEncryption"), "{shown}");
        let names = shown.lines().find(|line| line.contains("DNS:")).expect("names").trim();
        let expected = match name {
            "envoy-gateway" => {
                "DNS:envoy-gateway, DNS:envoy-gateway.eg, DNS:envoy-gateway.eg.svc, DNS:envoy-gateway.eg.svc.cluster.local"
            }
            _ => "DNS:*.eg",
        };
        assert_eq!(names, expected);
        // One day less than five years.
        let nearly = (5 * 365 - 1) * 24 * 60 * 60;
        openssl(dir, name, &["x509", "-in", "tls.crt", "-noout", "-checkend", &nearly.to_string()]);
        let [of_key, of_certificate] =
            [&["pkey", "-in", "tls.key", "-pubout"][..], &["x509", "-in", "tls.crt", "-noout", "-pubkey"]]
                .map(|args| openssl(dir, name, args));
        assert_eq!(of_key, of_certificate);
    }
    assert_eq!(
        (data(dir, "envoy-oidc-hmac", "hmac-secret").len(), &secret(dir, "envoy-oidc-hmac")["type"]),
        (32, &"Opaque".into())
    );
}

#[test]
fn rotates_a_directory_and_keeps_one_old_ca() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    assert_eq!(certgen(dir, &[]).0, 0);
    let hmac = fs::read(dir.join("envoy-oidc-hmac.yaml")).expect("a file");
    let mut cas = vec![text(&data(dir, "envoy", "ca.crt"))];
    let (status, stdout, _) = certgen(dir, &[]);
    assert_eq!((status, stdout.as_str()), (0, "nothing to do: 4 Secrets exist\n"));
    for _ in 0..2 {
        let (status, stdout, stderr) = certgen(dir, &["--overwrite"]);
        assert_eq!(status, 0, "{stderr}");
        assert!(stdout.ends_with("the rotation is complete\n") && !stdout.contains("PRIVATE"), "{stdout}");
        let bundle = text(&data(dir, "envoy", "ca.crt"));
        let new = bundle.strip_suffix(cas.last().expect("a CA").as_str()).expect("the new CA, then the old one");
        assert_eq!(new.matches("BEGIN CERTIFICATE").count(), 1, "{bundle}");
        cas.push(new.to_owned());
        for name in SECRETS {
            assert_eq!(text(&data(dir, name, "ca.crt")), bundle);
            assert_eq!(openssl(dir, name, &["verify", "-CAfile", "ca.crt", "tls.crt"]), "tls.crt: OK\n");
        }
    }
    assert_eq!(fs::read(dir.join("envoy-oidc-hmac.yaml")).expect("a file"), hmac);
    assert!(!dir.join("envoy-gateway-certgen-pending.yaml").exists());
}

#[test]
fn keeps_as_many_old_cas_as_the_flag_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    assert_eq!(certgen(dir, &[]).0, 0);
    for cas in [2, 3, 3] {
        let (status, _, stderr) = certgen(dir, &["--overwrite", "--max-previous-cas", "2"]);
        assert_eq!(status, 0, "{stderr}");
        assert_eq!(text(&data(dir, "envoy", "ca.crt")).matches("BEGIN CERTIFICATE").count(), cas);
    }
    assert_eq!(certgen(dir, &["--overwrite", "--max-previous-cas", "0"]).0, 2);
}

#[test]
fn says_what_to_do_when_it_cannot_go_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    assert_eq!(certgen(dir, &[]).0, 0);
    fs::remove_file(dir.join("envoy.yaml")).expect("a file");
    let (status, _, stderr) = certgen(dir, &[]);
    assert!(status == 1 && stderr.contains("Secret envoy is missing") && stderr.contains("--overwrite"), "{stderr}");
    let key = data(dir, "envoy-gateway", "tls.key");
    let broken = format!("kind: Secret\ndata: [{}\n", STANDARD.encode(&key));
    write(dir, "envoy.yaml", &broken);
    let (status, _, stderr) = certgen(dir, &["--overwrite"]);
    assert!(status == 1 && stderr.contains("envoy.yaml: cannot read it"), "{stderr}");
    assert!(!stderr.contains(&STANDARD.encode(&key)[..40]), "no key in an error");

    let profile = write(dir, "profile", "name: a\nduration: 1h\nca: {commonName: a}\ncertificats: []\n");
    let output = run(&["certgen", "-f", &profile, "-n", "eg", "--output-dir", &dir.display().to_string()], "");
    assert!(code(&output) == 1 && text(&output.stderr).contains("certificats"), "{}", text(&output.stderr));
    for args in [&["certgen", "-n", "eg"][..], &["certgen", "--profile", "other", "-n", "eg"]] {
        assert_eq!(code(&run(args, "")), 2);
    }
}
