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

/// The output of `init` for these manifests, its exit code, and its error output.
fn init(manifests: &str, more: &[&str]) -> (String, i32, String) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("objects.yaml"), manifests).expect("a file");
    let path = dir.path().display().to_string();
    let output = trustspan(&[&["init", "-f", &path], more].concat()).output().expect("the binary");
    let names: Vec<_> = fs::read_dir(dir.path()).expect("a directory").collect();
    assert_eq!(names.len(), 1, "init wrote something");
    (text(&output.stdout), code(&output), text(&output.stderr))
}

#[test]
fn generates_manifests_that_rbac_and_check_accept() {
    let (generated, code, _) = init(GATEWAY, &[]);
    assert_eq!(code, 0);
    for line in [
        "# Run first, so that no invalid Secret is stored there:",
        "# - kubectl label namespace istio-system trustspan.dev/guard=enabled",
        "# For Secret istio-system/gw-root:",
        "# - written by Certificate gateway of Issuer mesh, whose CA is in Secret mesh-ca",
        "# - Secret gw-root is not among the manifests: its content is unknown",
        "  certificateRef:",
        "    name: gateway",
        "  name: gw-root",
    ] {
        assert!(generated.lines().any(|printed| printed == line), "{line:?} not in:\n{generated}");
    }
    assert!(generated.contains("probes all pods behind Service gateway"), "{generated}");
    // A comment in the output asks the user to rename the Secret of the Certificate. The RBAC objects have that name.
    let adopted = GATEWAY.replace("secretName: gw-root,", "secretName: gw-root-source,");
    let roles = text(&run(&["rbac", "-f", "-"], &format!("{adopted}---\n{generated}")).stdout);
    // Before the GatewaySecret, so that the agent may read its Secrets when it sees it.
    let (before, after) = generated.split_once(&roles).unwrap_or_default();
    assert!(
        !roles.is_empty() && !before.contains("kind: GatewaySecret") && after.contains("kind: GatewaySecret"),
        "expected the RBAC objects\n{roles}\nsaw\n{generated}"
    );
    assert!(text(&run(&["check", "-f", "-"], &generated).stdout).contains("0 denied"));
    // A GatewaySecret that exists is not generated again.
    let (again, code, _) = init(&format!("{GATEWAY}---\n{generated}"), &[]);
    assert!(code == 0 && again.contains("GatewaySecret gw-root names it already"), "{again}");
    assert!(again.contains("# Nothing to generate.") && !again.contains("---"), "{again}");
}

#[test]
fn generates_a_new_name_if_the_certificate_cannot_be_changed() {
    let (generated, code, _) = init(GATEWAY, &["--rewrite"]);
    assert!(code == 0 && generated.contains("  certificateRef:\n    name: gateway\n"), "{generated}");
    assert!(generated.contains("  name: gw-root-managed\n") && !generated.contains("adopt"), "{generated}");
}

#[test]
fn generates_gateway_secrets_of_one_namespace() {
    assert!(init(GATEWAY, &["--namespace", "istio-system"]).0.contains("kind: GatewaySecret"));
    assert!(!init(GATEWAY, &["--namespace", "shop"]).0.contains("kind: GatewaySecret"));
}

#[test]
fn rejects_unreadable_input() {
    let assert_rejected = |manifests: &str, why: &str| {
        let (stdout, code, stderr) = init(manifests, &[]);
        assert_eq!((stdout.as_str(), code), ("", 2), "{stderr}");
        assert!(stderr.contains(why), "{why:?} not in {stderr}");
    };
    assert_rejected("kind: [unfinished\n", "objects.yaml:");
    assert_rejected(
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {ca.crt: '!'}\n",
        "data[ca.crt]: not base64",
    );
    let half =
        "apiVersion: trustspan.dev/v1alpha1\nkind: GatewaySecret\nmetadata: {name: gw}\nspec: {sourceSecretName: 7}\n";
    assert_rejected(half, "invalid type: integer");
    let missing = trustspan(&["init", "-f", "/does/not/exist"]).output().expect("the binary");
    assert_eq!(code(&missing), 2);
    assert!(text(&missing.stderr).contains("/does/not/exist"), "{}", text(&missing.stderr));
}

#[test]
fn line_break_in_a_name_stays_in_the_comment() {
    let hostile = GATEWAY.replace("{name: public,", "{name: \"public\\nkind: Hostile\",");
    let (generated, _, _) = init(&hostile, &[]);
    assert!(generated.contains("kind: Hostile") && !generated.contains("\nkind: Hostile"), "{generated}");
}
