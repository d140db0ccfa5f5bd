//! `trustspan init` on directories of manifests.

use std::fs;

use super::{code, run, text, trustspan};

const GATEWAY: &str = "\
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: public, namespace: shop}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {hosts: [shop.example.com], port: {number: 443, name: https, protocol: HTTPS}, tls: {mode: MUTUAL, credentialName: gw-root}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: gateway, namespace: istio-system}
spec: {template: {metadata: {labels: {istio: ingressgateway}}}}
---
apiVersion: v1
kind: Service
metadata: {name: gateway, namespace: istio-system}
spec: {selector: {istio: ingressgateway}, ports: [{name: https, port: 443}]}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: gateway, namespace: istio-system}
spec: {secretName: gw-root, issuerRef: {name: mesh}}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: mesh, namespace: istio-system}
spec: {ca: {secretName: mesh-ca}}
";

/// What `init` prints for these manifests, its exit code, and what it says on stderr.
fn init(manifests: &str, more: &[&str]) -> (String, i32, String) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("objects.yaml"), manifests).expect("a file");
    let path = dir.path().display().to_string();
    let output = trustspan(&[&["init", "--manifests", &path], more].concat()).output().expect("the binary");
    let names: Vec<_> = fs::read_dir(dir.path()).expect("a directory").collect();
    assert_eq!(names.len(), 1, "init wrote something");
    (text(&output.stdout), code(&output), text(&output.stderr))
}

#[test]
fn proposes_what_rbac_and_check_take() {
    let (proposed, code, _) = init(GATEWAY, &[]);
    assert_eq!(code, 0);
    for line in [
        "# First, so that no bad Secret is stored there:",
        "# - kubectl label namespace istio-system trustspan.dev/guard=enabled",
        "# For Secret istio-system/gw-root:",
        "# - written by Certificate gateway of Issuer mesh, whose CA is in Secret mesh-ca",
        "# - Secret gw-root is not among the manifests: its content is unknown",
        "  certificateRef:",
        "    name: gateway",
        "  name: gw-root",
    ] {
        assert!(proposed.lines().any(|seen| seen == line), "{line:?} not in:\n{proposed}");
    }
    assert!(proposed.contains("probes all pods behind Service gateway"), "{proposed}");
    // The rights that are needed once the Certificate writes another Secret, as a comment says.
    let adopted = GATEWAY.replace("secretName: gw-root,", "secretName: gw-root-source,");
    let roles = text(&run(&["rbac", "-"], &format!("{adopted}---\n{proposed}")).stdout);
    assert!(!roles.is_empty() && proposed.ends_with(&roles), "expected the rights\n{roles}\nsaw\n{proposed}");
    assert!(text(&run(&["check", "-"], &proposed).stdout).contains("0 denied"));
    // Once it is there, it is not proposed again.
    let (again, code, _) = init(&format!("{GATEWAY}---\n{proposed}"), &[]);
    assert!(code == 0 && again.contains("GatewaySecret gw-root names it already"), "{again}");
    assert!(again.contains("# There is nothing to propose.") && !again.contains("---"), "{again}");
}

#[test]
fn proposes_a_new_name_where_the_certificate_cannot_be_changed() {
    let (proposed, code, _) = init(GATEWAY, &["--rewrite"]);
    assert!(code == 0 && proposed.contains("  certificateRef:\n    name: gateway\n"), "{proposed}");
    assert!(proposed.contains("  name: gw-root-managed\n") && !proposed.contains("adopt"), "{proposed}");
}

#[test]
fn proposes_for_the_namespace_that_is_asked_for() {
    assert!(init(GATEWAY, &["--namespace", "istio-system"]).0.contains("kind: GatewaySecret"));
    assert!(!init(GATEWAY, &["--namespace", "shop"]).0.contains("kind: GatewaySecret"));
}

#[test]
fn rejects_input_that_it_cannot_read() {
    let refused = |manifests: &str, why: &str| {
        let (stdout, code, stderr) = init(manifests, &[]);
        assert_eq!((stdout.as_str(), code), ("", 2), "{stderr}");
        assert!(stderr.contains(why), "{why:?} not in {stderr}");
    };
    refused("kind: [unfinished\n", "objects.yaml:");
    refused("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {ca.crt: '!'}\n", "data[ca.crt]: not base64");
    let half =
        "apiVersion: trustspan.dev/v1alpha1\nkind: GatewaySecret\nmetadata: {name: gw}\nspec: {sourceSecretName: 7}\n";
    refused(half, "invalid type: integer");
    let missing = trustspan(&["init", "--manifests", "/does/not/exist"]).output().expect("the binary");
    assert_eq!(code(&missing), 2);
    assert!(text(&missing.stderr).contains("/does/not/exist"), "{}", text(&missing.stderr));
}

#[test]
fn a_name_with_line_ends_stays_in_its_comment() {
    let hostile = GATEWAY.replace("{name: public,", "{name: \"public\\nkind: Hostile\",");
    let (proposed, _, _) = init(&hostile, &[]);
    assert!(proposed.contains("kind: Hostile") && !proposed.contains("\nkind: Hostile"), "{proposed}");
}
