//! Each kustomization of `manifests` that a user applies, and the chart with cert-manager. `manifests/policies` is applied next to a GatewaySecret, in
//! `documented`. Not applied: `manifests/monitoring`, whose CRDs are those of the Prometheus operator (`./test monitoring` checks the content).

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{
    Bed, REGISTRY,
    documented::block,
    helm::{CHART, DEFAULT},
    release::{self, expect_judged},
    shell::Shell,
    testbed::{Authority, CertManager, NODE, SOON, wait_for},
};

/// Applies a directory of `manifests`, with the images of a registry.
fn apply(shell: &Shell, directory: &str) -> Result<()> {
    let image = |name: &str| json!({ "name": name, "newName": format!("{REGISTRY}/{name}") });
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [format!("../../manifests/{directory}")],
        "images": [image("trustspan"), image("trustspan-node")],
    });
    let overlay = overlay(directory);
    fs::create_dir_all(shell.folder.join(&overlay))?;
    shell.write(&format!("{overlay}/kustomization.yaml"), &kustomization.to_string())?;
    shell.run(&format!("kubectl apply -k {overlay}")).map(drop)
}

/// Deletes what [`apply`] has applied, and waits until it is gone.
fn delete(shell: &Shell, directory: &str) -> Result<()> {
    shell.run(&format!("kubectl delete -k {} --ignore-not-found", overlay(directory))).map(drop)
}

fn overlay(directory: &str) -> String {
    format!("overlays/{}", directory.replace('/', "-"))
}

/// Waits until all pods of the Deployments in a namespace are ready.
fn rolled_out(shell: &Shell, kind: &str, ns: &str) -> Result<()> {
    shell.run(&format!("kubectl rollout status {kind} -n {ns} --timeout=3m")).map(drop)
}

/// Deletes the webhook configurations before their pods, as docs/leaving.md does.
fn delete_configurations(shell: &Shell) -> Result<()> {
    let leaving = block("leaving.md", "## Where Gateways were rewritten", "kubectl delete")?;
    let delete = leaving.lines().find(|line| line.starts_with("kubectl delete")).context("no command")?;
    shell.run(delete).map(drop)
}

/// Waits until the API server asks the webhook about CA bundles in other places: it refuses a kubeconfig without a CA.
fn expect_ca_bundles_judged(bed: &Bed, ns: &str) -> Result<()> {
    let authority = json!({ "certificate-authority-data": "bm8gUEVNIGF0IGFsbA==", "server": "https://127.0.0.1" });
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "clusters": [{ "name": "prod", "cluster": authority }],
    });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "prod" },
        "stringData": { "kubeconfig": kubeconfig.to_string() },
    });
    wait_for("a kubeconfig without a CA to be refused", SOON, || {
        let create = bed.cluster.kubectl(["create", "--dry-run=server", "-f", "-"]).ns(ns).stdin(secret.to_string());
        Ok(create.run()?.stderr.contains("admission webhook \"kubeconfigs.validate.trustspan.dev\" denied"))
    })
}

pub(crate) fn base(bed: &Bed) -> Result<()> {
    let shell = Shell::new(bed)?;
    bed.cluster.with_temp_ns(|ns| {
        apply(&shell, "base")?;
        rolled_out(&shell, "deployment", "trustspan-system")?;
        expect_judged(bed, ns)?;
        apply(&shell, "ca-bundles")?;
        expect_ca_bundles_judged(bed, ns)?;
        approver(bed, &shell)?;
        certgen(bed, &shell)?;
        mirror(bed, &shell)?;
        delete(&shell, "ca-bundles")?;
        delete_configurations(&shell)?;
        delete(&shell, "base")
    })
}

/// `manifests/approver`, as docs/client-identities.md does, on top of the base.
fn approver(bed: &Bed, shell: &Shell) -> Result<()> {
    apply(shell, "approver")?;
    rolled_out(shell, "deployment", "trustspan-system")?;
    let shop = block("client-identities.md", "## Set up", "kind: ClientIdentity\n")?;
    let set_up = block("client-identities.md", "## Set up", "create rolebinding")?;
    let (_, binding) = set_up.split_once("kubectl apply -k manifests/approver\n").context("no kubectl apply -k")?;
    shell.run("kubectl create namespace shop")?;
    shell.run(binding)?;
    // What the page's clients may do, the approver may do.
    let account = "--serviceaccount=trustspan-system:trustspan-approver";
    shell.run(&format!("kubectl -n shop create rolebinding clients --clusterrole=view {account}"))?;
    bed.cluster.apply("shop", &shop)?;
    wait_for("the bootstrap kubeconfig", SOON, || bed.cluster.exists("secret", "shop", "firewall-bootstrap"))?;
    shell.run("kubectl delete namespace shop --wait=false")?;
    delete(shell, "approver")
}

/// `manifests/certgen`, as docs/certgen.md does.
fn certgen(bed: &Bed, shell: &Shell) -> Result<()> {
    let ns = "envoy-gateway-system";
    shell.run(&format!("kubectl create namespace {ns}"))?;
    apply(shell, "certgen")?;
    shell.run(&format!("kubectl wait job/trustspan-certgen -n {ns} --for=condition=Complete --timeout=3m"))?;
    for secret in ["envoy-gateway", "envoy", "envoy-rate-limit", "envoy-oidc-hmac"] {
        ensure!(bed.cluster.exists("secret", ns, secret)?, "the Job has not created Secret {secret}");
    }
    // A rotation takes minutes. Its first stage shows that the pod of the CronJob has its rights.
    shell.run(&block("certgen.md", "## Rotate", "kubectl create job")?)?;
    wait_for("a rotation to begin", SOON, || bed.cluster.exists("secret", ns, "envoy-gateway-certgen-pending"))?;
    delete(shell, "certgen")?;
    shell.run(&format!("kubectl delete namespace {ns} --wait=false")).map(drop)
}

/// `manifests/node`, as docs/mirror.md does: the file on the node gets the content of the source.
fn mirror(bed: &Bed, shell: &Shell) -> Result<()> {
    let ns = "istio-ingress";
    let ca = Authority::new("clients")?.pem();
    let source = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "ingress-gateway" }, "stringData": { "ca.crt": ca },
    });
    shell.run(&format!("kubectl create namespace {ns}"))?;
    bed.cluster.apply(ns, &source.to_string())?;
    shell.run(&format!("kubectl label node {NODE} node-role.kubernetes.io/control-plane="))?;
    apply(shell, "node")?;
    let signers = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "trustspan-mirror-signers" }, "data": { "ca.crt": ca },
    });
    bed.cluster.apply("trustspan-node", &signers.to_string())?;
    rolled_out(shell, "daemonset", "trustspan-node")?;
    let file = bed.node.file("/etc/kubernetes/pki/clients/ca.crt");
    ensure!(fs::read_to_string(&file)? == ca, "{} is not the content of the Secret", file.display());
    let files = bed.cluster.list("mirroredfiles", ns, "")?;
    let [mirrored] = &files[..] else { anyhow::bail!("expected one MirroredFile, saw {files:?}") };
    ensure!(mirrored["spec"]["node"] == NODE, "{mirrored}");
    delete(shell, "node")?;
    shell.run(&format!("kubectl delete namespace {ns} --wait=false")).map(drop)
}

pub(crate) fn cert_manager(bed: &Bed) -> Result<()> {
    let shell = Shell::new(bed)?;
    let cert_manager = CertManager::start(&bed.cluster)?;
    let _cainjector = cert_manager.start_cainjector(&bed.cluster)?;
    bed.cluster.with_temp_ns(|ns| {
        apply(&shell, "cert-manager")?;
        rolled_out(&shell, "deployment", "trustspan-system")?;
        expect_judged(bed, ns)?;
        expect_issued(bed)?;
        apply(&shell, "cert-manager/ca-bundles")?;
        expect_ca_bundles_judged(bed, ns)?;
        delete(&shell, "cert-manager/ca-bundles")?;
        delete_configurations(&shell)?;
        delete(&shell, "cert-manager")?;

        release::create_namespace(bed, DEFAULT)?;
        let values = json!({ "servingCertificate": { "mode": "certManager" }, "test": { "namespace": ns } });
        release::helm(bed, DEFAULT, &["install", DEFAULT.name, CHART], &values)?;
        expect_judged(bed, ns)?;
        expect_issued(bed)?;
        let test = ["test", DEFAULT.name, "--namespace", DEFAULT.namespace];
        bed.helm.ok(&bed.cluster, &test, &Value::Null)?;
        release::uninstall(bed, DEFAULT, ns)
    })
}

/// Whether cert-manager has written the webhook's certificate.
fn expect_issued(bed: &Bed) -> Result<()> {
    let secret = bed.cluster.get("secret", DEFAULT.namespace, "trustspan-webhook-tls")?;
    let certificate = &secret["metadata"]["annotations"]["cert-manager.io/certificate-name"];
    ensure!(*certificate == "trustspan-webhook", "another writer than cert-manager: {}", secret["metadata"]);
    Ok(())
}
