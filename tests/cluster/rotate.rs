//! `trustspan rotate --wait`. The test is cert-manager.

use std::path::Path;

use anyhow::{Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::agent::kept;
use crate::testbed::{Authority, Cluster, Kept, SOON, User, wait_for};

cases![alone rotate_waits_for_the_rotation_to_the_ca_that_it_requested];

const KINDS: [(&str, &str); 2] = [("Certificate", "certificates"), ("CertificateRequest", "certificaterequests")];

/// A minimal CRD of a kind of cert-manager.
fn crd((kind, plural): (&str, &str)) -> Value {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let version = json!({
        "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema }, "subresources": { "status": {} },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.cert-manager.io") },
        "spec": {
            "group": "cert-manager.io", "scope": "Namespaced", "versions": [version],
            "names": { "kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": kind.to_lowercase() },
        },
    })
}

fn rotate_waits_for_the_rotation_to_the_ca_that_it_requested(cluster: &Cluster) -> Result<()> {
    let crds = KINDS.map(|kind| crd(kind).to_string());
    cluster.apply_crds(&crds.join("\n---\n"))?;
    for (_, plural) in KINDS {
        let list = ["get", &format!("{plural}.cert-manager.io"), "--all-namespaces"];
        wait_for("cert-manager's kinds to be served", SOON, || Ok(cluster.kubectl(list).run()?.success()))?;
    }
    let result = kept(cluster, rotation);
    for (_, plural) in KINDS {
        cluster.kubectl(["delete", "crd", &format!("{plural}.cert-manager.io")]).ok()?;
    }
    result
}

fn rotation(kept: &Kept<'_>) -> Result<()> {
    let (old, new) = (Authority::new("old")?, Authority::new("new")?);
    kept.write_root(&old)?;
    let spec = json!({ "secretName": "root", "issuerRef": { "name": "ca" } });
    create(kept, "Certificate", &json!({ "name": "root" }), &spec, &json!({ "revision": 1 }))?;
    kept.agents.grant()?;
    let _agent = kept.agents.start("a")?;
    kept.wait_bundle(&[&old])?;
    kept.wait_phase("Steady")?;

    let kubeconfig = kept.cluster.kubeconfig(User::Admin).display().to_string();
    let rotate = |name: &str, timeout: &str| {
        let args = ["rotate", "gateway", "-n", kept.ns, "--kubeconfig", &kubeconfig, "--wait", "--timeout", timeout];
        kept.cluster.spawn(name, Path::new(env!("CARGO_BIN_EXE_trustspan")), args, &[])
    };
    let mut unissued = rotate("unissued", "1s")?;
    let code = unissued.wait(SOON)?;
    ensure!(code == 1 && unissued.log().contains("has not been issued"), "{code}: {}", unissued.log());

    kept.set_gateway_delay("1h")?;
    set_status(kept, "certificate", "root", &json!({ "conditions": [] }))?;
    let mut waiting = rotate("rotate", "10m")?;
    wait_for("a requested reissue", SOON, || {
        let certificate = kept.cluster.get("certificate", kept.ns, "root")?;
        Ok(certificate["status"]["conditions"][0]["type"] == "Issuing")
    })?;
    let annotations =
        json!({ "cert-manager.io/certificate-name": "root", "cert-manager.io/certificate-revision": "2" });
    let condition =
        json!({ "type": "Ready", "status": "True", "lastTransitionTime": jiff::Timestamp::now().to_string() });
    let status = json!({ "conditions": [condition], "ca": STANDARD.encode(new.pem()) });
    create(kept, "CertificateRequest", &json!({ "name": "root-2", "annotations": annotations }), &json!({}), &status)?;
    kept.write_root(&new)?;
    set_status(kept, "certificate", "root", &json!({ "revision": 2, "conditions": [] }))?;

    kept.wait_phase("TrustExpanded")?;
    ensure!(kept.status()?["clientBundleData"].is_null(), "two CAs are published as one");
    ensure!(waiting.exited()?.is_none(), "it did not wait: {}", waiting.log());
    kept.set_gateway_delay("1s")?;
    let code = waiting.wait(SOON)?;
    ensure!(code == 0, "{code}: {}", waiting.log());
    let status = kept.status()?;
    ensure!(status["phase"] == "Steady", "saw {status}");
    ensure!(
        kept.bundle()?.is_some_and(|bundle| bundle == new.pem().replace("\r\n", "\n")),
        "the old CA is still trusted"
    );
    // What the policy client-bundle compares.
    let data = STANDARD.encode(new.pem().replace("\r\n", "\n"));
    ensure!(status["clientBundleData"] == data, "saw {status}");
    ensure!(waiting.log().contains(&format!("{}/gateway: Steady", kept.ns)), "{}", waiting.log());
    Ok(())
}

fn create(kept: &Kept<'_>, kind: &str, metadata: &Value, spec: &Value, status: &Value) -> Result<()> {
    let object = json!({ "apiVersion": "cert-manager.io/v1", "kind": kind, "metadata": metadata, "spec": spec });
    kept.cluster.apply(kept.ns, &object.to_string())?;
    let name = metadata["name"].as_str().unwrap_or_default();
    set_status(kept, kind, name, status)
}

fn set_status(kept: &Kept<'_>, kind: &str, name: &str, status: &Value) -> Result<()> {
    let patch = json!({ "status": status }).to_string();
    let args = ["patch", kind, name, "--subresource=status", "--type=merge", "--patch", &patch];
    kept.cluster.kubectl(args).ns(kept.ns).ok().map(drop)
}
