//! The environment of most tests: a namespace with a Ready GatewaySecret, a webhook server, and both webhooks registered for
//! that namespace.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::testbed::{Authority, Cluster, Patience, Registration, SOON, Scope, Server, Source, User, wait_for};

/// The name of the source Secret on every stage.
pub(crate) const SOURCE: &str = "gateway-root";
/// The managed Secret's name.
pub(crate) const MANAGED: &str = "gateway";
/// The rotation hash annotation.
pub(crate) const HASH: &str = "trustspan.dev/rotation-hash";
/// The label of gateway workloads, made unique by the namespace, since Istio selects them cluster-wide.
pub(crate) const GATEWAY_LABEL: &str = "istio";

/// A namespace with trustspan's webhooks.
pub(crate) struct Stage<'c> {
    pub(crate) cluster: &'c Cluster,
    pub(crate) ns: String,
    pub(crate) server: Server<'c>,
    // Unregistered when the stage is dropped.
    _registration: Registration<'c>,
}

/// Runs `test` on a new stage.
#[track_caller]
pub(crate) fn on_stage(cluster: &Cluster, test: impl FnOnce(&mut Stage<'_>) -> Result<()>) -> Result<()> {
    on_stage_with(cluster, Patience::Longest, test)
}

/// The same with a webhook timeout that the test chooses.
#[track_caller]
pub(crate) fn on_stage_with(
    cluster: &Cluster,
    patience: Patience,
    test: impl FnOnce(&mut Stage<'_>) -> Result<()>,
) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        declare(cluster, ns)?;
        let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let registration = Registration::new(cluster, &server, &Scope::Namespaces(vec![ns.to_owned()]), patience)?;
        test(&mut Stage { cluster, ns: ns.to_owned(), server, _registration: registration })
    })
}

/// Creates a GatewaySecret with a Ready status: `ca.crt` at revision 3, `tls.crt` at revision 5.
pub(crate) fn declare(cluster: &Cluster, ns: &str) -> Result<()> {
    cluster.apply(ns, &gateway_secret(ns).to_string())?;
    set_status(cluster, ns, &status(ns, &[("ca.crt", 3), ("tls.crt", 5)]))
}

pub(crate) fn gateway_secret(ns: &str) -> Value {
    json!({
        "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret",
        "metadata": { "name": MANAGED },
        "spec": { "sourceSecretName": SOURCE, "workloadLabels": { GATEWAY_LABEL: ns } },
    })
}

pub(crate) fn status(ns: &str, hashes: &[(&str, u64)]) -> Value {
    let hashes: serde_json::Map<_, _> = hashes
        .iter()
        .map(|(key, revision)| {
            ((*key).to_owned(), json!({ "sha256": format!("{revision:064x}"), "revision": revision }))
        })
        .collect();
    json!({
        "phase": "Steady",
        "secretName": MANAGED,
        "resolved": { "sourceSecretName": SOURCE },
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "Sound", "message": "made by the test",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
        "hashes": hashes,
        "workloadNamespaces": [ns],
        "gateways": [{ "group": "networking.istio.io", "namespace": ns, "name": "shop" }],
    })
}

pub(crate) fn set_status(cluster: &Cluster, ns: &str, status: &Value) -> Result<()> {
    let patch = json!({ "status": status }).to_string();
    let args = ["patch", "gatewaysecret", MANAGED, "--subresource=status", "--type=merge", "--patch", &patch];
    cluster.kubectl(args).ns(ns).ok().map(drop)
}

impl Stage<'_> {
    /// `kubectl apply`, as a developer.
    pub(crate) fn apply(&self, object: &Value) -> Result<String> {
        self.kubectl(["apply", "-f", "-"]).stdin(object.to_string()).ok()
    }

    /// kubectl in the stage's namespace, as a developer.
    pub(crate) fn kubectl<const N: usize>(&self, args: [&str; N]) -> crate::testbed::Kubectl {
        self.cluster.kubectl(args).ns(&self.ns).user(User::Dev)
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.cluster.get(kind, &self.ns, name)
    }

    /// Changes the status, and waits until the webhook has received it and would write rotation hashes for it.
    pub(crate) fn set_hashes(&self, hashes: &[(&str, u64)]) -> Result<()> {
        set_status(self.cluster, &self.ns, &status(&self.ns, hashes))?;
        let revision: u64 = hashes.iter().map(|(_, revision)| revision).sum();
        // The server is asked directly, since another registered server may not have received the status.
        let mut object = deployment("probe", SOURCE, &[]);
        object["metadata"]["namespace"] = json!(self.ns);
        let kind = json!({ "group": "apps", "version": "v1", "kind": "Deployment" });
        let request = json!({
            "uid": "probe", "kind": kind, "name": "probe", "namespace": self.ns, "operation": "CREATE",
            "userInfo": {}, "object": object,
        });
        let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request });
        wait_for("the webhook to hear of the new status", SOON, || {
            let answer: Value = serde_json::from_str(&self.server.post("/mutate", &review.to_string())?)?;
            let patch = answer["response"]["patch"].as_str().unwrap_or_default();
            let patch = String::from_utf8(STANDARD.decode(patch)?)?;
            Ok(patch.contains(&format!("\"{revision}-")))
        })
    }

    /// An Istio Gateway that names `secret`, for the stage's workloads.
    pub(crate) fn istio(&self, name: &str, secret: &str) -> Value {
        istio(name, secret, &self.ns)
    }

    /// The names of a Deployment's ReplicaSets, after its controller has observed the newest generation.
    pub(crate) fn replica_sets(&self, name: &str) -> Result<Vec<String>> {
        wait_for("the Deployment to be observed", SOON, || {
            let stored = self.get("deployment", name)?;
            Ok(stored["status"]["observedGeneration"] == stored["metadata"]["generation"])
        })?;
        let sets = self.cluster.list("replicasets", &self.ns, &format!("app={name}"))?;
        sets.iter().map(|set| set["metadata"]["name"].as_str().map(str::to_owned).context("a name")).collect()
    }

    /// The parts of an object that `kubectl apply` of the same manifest must not change.
    pub(crate) fn version(&self, kind: &str, name: &str) -> Result<(Value, Value)> {
        let stored = self.get(kind, name)?;
        Ok((stored["metadata"]["resourceVersion"].clone(), stored["metadata"]["generation"].clone()))
    }
}

pub(crate) fn istio(name: &str, secret: &str, label: &str) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
        "metadata": { "name": name },
        "spec": {
            "selector": { GATEWAY_LABEL: label },
            "servers": [{
                "port": { "number": 443, "name": "https", "protocol": "HTTPS" },
                "hosts": ["shop.example.com"],
                "tls": { "mode": "MUTUAL", "credentialName": secret },
            }],
        },
    })
}

/// A Deployment that mounts these keys of `secret`, or all keys if none is listed.
pub(crate) fn deployment(name: &str, secret: &str, keys: &[&str]) -> Value {
    let mounts: Vec<_> = match keys {
        [] => vec![json!({ "name": "certs", "mountPath": "/certs" })],
        keys => {
            keys.iter().map(|key| json!({ "name": "certs", "mountPath": format!("/{key}"), "subPath": key })).collect()
        }
    };
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": name },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": {
                    "containers": [{ "name": "app", "image": "app:1", "volumeMounts": mounts }],
                    "volumes": [{ "name": "certs", "secret": { "secretName": secret } }],
                },
            },
        },
    })
}

/// The Secret that an Istio Gateway's first server names.
pub(crate) fn credential(gateway: &Value) -> &Value {
    &gateway["spec"]["servers"][0]["tls"]["credentialName"]
}

/// The Secret that a Deployment's first volume names.
pub(crate) fn volume(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"]
}

/// The rotation hash of a workload.
pub(crate) fn hash(workload: &Value) -> Option<&str> {
    workload["spec"]["template"]["metadata"]["annotations"][HASH].as_str()
}

/// A valid Secret, and its CA. `labelled`: whether it has the label of managed Secrets.
pub(crate) fn sound(name: &str, labelled: bool) -> Result<(Authority, Value)> {
    let authority = Authority::new("root of the test")?;
    let (certificate, key) = authority.issue(&["shop.example.com"])?;
    let labels = if labelled { json!({ "trustspan.dev/managed": "true" }) } else { json!({}) };
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": { "name": name, "labels": labels },
        "stringData": { "ca.crt": authority.pem(), "tls.crt": certificate, "tls.key": key },
    });
    Ok((authority, secret))
}

/// Runs an offline subcommand with `input` on stdin: its exit code and its output.
pub(crate) fn trustspan(args: &[&str], input: &str) -> Result<(Option<i32>, String)> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_trustspan"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting trustspan")?;
    child.stdin.take().context("stdin")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    Ok((output.status.code(), String::from_utf8(output.stdout)?))
}

/// Fails unless a field has the expected value. `what` names it in the error.
pub(crate) fn expect(what: &str, seen: &Value, expected: impl Into<Value>) -> Result<()> {
    let expected = expected.into();
    ensure!(*seen == expected, "{what}: expected {expected}, saw {seen}");
    Ok(())
}
