//! `trustspan uninstall` on directories of manifests.

use std::fs;

use super::{code, text, trustspan};

const WEBHOOKS: &str = "\
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: trustspan}
webhooks: [{name: gateways.mutate.trustspan.dev}]
";
const MANAGED: &str = "\
---
apiVersion: trustspan.dev/v1alpha1
kind: GatewaySecret
metadata: {name: public, namespace: shop}
spec: {sourceSecretName: root}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: by-hand, namespace: shop}
spec: {selector: {istio: gateway}, servers: [{tls: {mode: MUTUAL, credentialName: shop/public}}]}
";

/// The output for these manifests, and the exit code.
fn uninstall(manifests: &str) -> (String, i32) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("objects.yaml"), manifests).expect("a file");
    let path = dir.path().display().to_string();
    let output = trustspan(&["uninstall", "--dry-run", "-f", &path]).output().expect("the binary");
    (text(&output.stdout), code(&output))
}

#[test]
fn webhook_configurations_are_part_of_the_installation() {
    let (script, code) = uninstall(WEBHOOKS);
    assert!(script.contains("kubectl delete mutatingwebhookconfigurations trustspan\n"), "{script}");
    assert_eq!(code, 0, "{script}");
    let (script, code) = uninstall(&format!("{WEBHOOKS}{MANAGED}"));
    assert!(script.contains("- Gateway shop/by-hand: "), "{script}");
    assert_eq!(code, 1, "{script}");
}
