//! A release whose pods run.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use crate::{
    Bed,
    helm::{CHART, DEFAULT, Release},
    testbed::{Authority, NODE, SOON, wait_for, wait_for_value},
};

/// Of `helm install`: two pods of the webhook wait for the certificate, and the kubelet may try a mount again only after two minutes.
const TIMEOUT: &str = "--timeout=5m";
/// Of the `caBundle` fields: an agent waits for the Lease of an earlier one (15 s), and tries again after at most 30 s.
const CERTIFIED: Duration = Duration::from_secs(180);

/// Names of a release's objects start with it.
fn fullname(release: Release) -> String {
    match release.name {
        "trustspan" => release.name.to_owned(),
        name => format!("{name}-trustspan"),
    }
}

/// Runs a command of Helm on a release, and waits as `--wait` does.
pub(crate) fn helm(bed: &Bed, release: Release, args: &[&str], values: &Value) -> Result<()> {
    let started = Instant::now();
    let args = [args, &["--namespace", release.namespace, "--wait", TIMEOUT]].concat();
    bed.helm.ok(&bed.cluster, &args, values).with_context(|| pods(bed, release))?;
    println!("helm {} {}: {:.1?}", args[0], release.name, started.elapsed());
    Ok(())
}

/// The pods of a release, their Events, and what they wait for.
fn pods(bed: &Bed, release: Release) -> String {
    let commands: [&[&str]; 3] = [
        &["get", "pods", "-o", "wide"],
        &["get", "events", "--sort-by=.lastTimestamp"],
        &["get", "mutatingwebhookconfigurations,validatingwebhookconfigurations,secrets"],
    ];
    let mut text = String::new();
    for command in commands {
        let output = bed.cluster.kubectl(command).ns(release.namespace).run();
        let _ = writeln!(text, "--- kubectl {command:?}\n{}", output.map(|output| output.stdout).unwrap_or_default());
    }
    text
}

/// `tls.crt` of the Secret, once each `caBundle` is the Secret's CA. If the Secret was there before the release, pods are ready before an agent leads.
fn certificate(bed: &Bed, release: Release) -> Result<String> {
    let started = Instant::now();
    let certificate =
        wait_for_value("the certificate of the release", CERTIFIED, || certificate_now(bed, release).map(Some))?;
    println!("{} has its certificate after another {:.1?}", release.name, started.elapsed());
    Ok(certificate)
}

fn certificate_now(bed: &Bed, release: Release) -> Result<String> {
    let (cluster, name) = (&bed.cluster, fullname(release));
    let pods = cluster.list("pods", release.namespace, &format!("app.kubernetes.io/instance={}", release.name))?;
    for component in ["webhook", "agent"] {
        let is_ready = |pod: &&Value| {
            let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            pod["metadata"]["labels"]["app.kubernetes.io/component"] == component
                && pod["spec"]["nodeName"] == NODE
                && conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        let ready = pods.iter().filter(is_ready).count();
        ensure!(ready >= 1, "no pod of the {component} is ready");
    }
    let secret = cluster.get("secret", release.namespace, &format!("{name}-webhook-tls"))?;
    let writer = &secret["metadata"]["labels"]["app.kubernetes.io/managed-by"];
    ensure!(*writer == format!("{name}-agent"), "another writer than the agent: {writer}");
    for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        let stored = cluster.get(kind, "", &name)?;
        for webhook in stored["webhooks"].as_array().context("no webhooks")? {
            ensure!(webhook["clientConfig"]["caBundle"] == secret["data"]["ca.crt"], "{kind}: {}", webhook["name"]);
        }
    }
    Ok(secret["data"]["tls.crt"].as_str().context("no tls.crt")?.to_owned())
}

/// What the API server says when the webhook has judged a Secret in a guarded namespace.
const DENIED: &str = "admission webhook \"guarded.validate.trustspan.dev\" denied";

/// Writes a broken Secret, which the API server refuses only if the webhook answers.
fn write_broken(bed: &Bed, ns: &str) -> Result<String> {
    let broken = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "broken" }, "stringData": { "ca.crt": broken },
    });
    let run = bed.cluster.kubectl(["create", "--dry-run=server", "-f", "-"]).ns(ns).stdin(secret.to_string()).run()?;
    Ok(if run.success() { String::new() } else { run.stderr })
}

/// Waits until a broken Secret is refused: the API server uses a new configuration, and the endpoints of a Service, some time after they were written.
pub(crate) fn expect_judged(bed: &Bed, ns: &str) -> Result<()> {
    wait_for("a broken Secret to be refused", SOON, || Ok(write_broken(bed, ns)?.contains(DENIED)))?;
    let good = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "good" },
        "stringData": { "ca.crt": Authority::new("a good CA")?.pem() },
    });
    bed.cluster.kubectl(["create", "--dry-run=server", "-f", "-"]).ns(ns).stdin(good.to_string()).ok().map(drop)
}

/// Runs a command, during which a broken Secret is written again and again, and always refused.
fn while_judged(bed: &Bed, ns: &str, command: impl FnOnce() -> Result<()>) -> Result<()> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<usize> {
            let mut writes = 0;
            while !done.load(Ordering::Relaxed) {
                let refused = write_broken(bed, ns)?;
                ensure!(refused.contains(DENIED), "write {writes} was not refused by the webhook: {refused:?}");
                writes += 1;
            }
            Ok(writes)
        });
        let ran = command();
        done.store(true, Ordering::Relaxed);
        let writes = writer.join().map_err(|_| anyhow!("the writer panicked"))?;
        ran?;
        println!("{} writes of a broken Secret were refused meanwhile", writes?);
        Ok(())
    })
}

/// The namespace of a release, with the Pod Security Standard `restricted`.
pub(crate) fn create_namespace(bed: &Bed, release: Release) -> Result<()> {
    let labels = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
    let metadata = json!({ "name": release.namespace, "labels": labels });
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata });
    bed.cluster.kubectl(["create", "-f", "-"]).stdin(namespace.to_string()).ok().map(drop)
}

/// Uninstalls a release. Nothing is judged any more, and nothing waits for a webhook.
pub(crate) fn uninstall(bed: &Bed, release: Release, ns: &str) -> Result<()> {
    helm(bed, release, &["uninstall", release.name], &Value::Null)?;
    for kind in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let left = bed.cluster.kubectl(["get", kind, "-o", "name"]).ok()?;
        ensure!(left.is_empty(), "uninstalled, and these are there: {left}");
    }
    // The API server forgets them some time later.
    wait_for("writes without a webhook", SOON, || Ok(write_broken(bed, ns)?.is_empty()))?;
    // With any of these labels or annotations a write needs a webhook with failurePolicy Fail.
    let client = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "client", "labels": { "trustspan.dev/client": "true" } },
    });
    bed.cluster.kubectl(["create", "-f", "-"]).ns(ns).stdin(client.to_string()).ok()?;
    bed.cluster.kubectl(["delete", "secret", "client"]).ns(ns).ok()?;
    wait_for("the pods to end", SOON, || Ok(bed.cluster.list("pods", release.namespace, "")?.is_empty()))
}

pub(crate) fn lifecycle(bed: &Bed) -> Result<()> {
    let release = DEFAULT;
    bed.cluster.with_temp_ns(|ns| {
        create_namespace(bed, release)?;
        let values = json!({ "test": { "namespace": ns } });
        helm(bed, release, &["install", release.name, CHART], &values)?;
        let made = certificate(bed, release)?;
        expect_judged(bed, ns)?;

        let test = ["test", release.name, "--namespace", release.namespace, TIMEOUT];
        let tested = bed.helm.ok(&bed.cluster, &test, &Value::Null).with_context(|| pods(bed, release))?;
        ensure!(tested.contains("Succeeded"), "{tested}");

        // Each pod of the webhook and of the agent is replaced, and helm applies the configurations, which have no caBundle in the chart.
        let mut other = values.clone();
        for component in ["webhook", "agent"] {
            other[component] = json!({ "podAnnotations": { "example.com/revision": "2" } });
        }
        while_judged(bed, ns, || helm(bed, release, &["upgrade", release.name, CHART], &other))?;
        ensure!(certificate(bed, release)? == made, "the upgrade has replaced the certificate");
        expect_judged(bed, ns)?;

        while_judged(bed, ns, || helm(bed, release, &["rollback", release.name, "1"], &Value::Null))?;
        ensure!(certificate(bed, release)? == made, "the rollback has replaced the certificate");
        expect_judged(bed, ns)?;
        uninstall(bed, release, ns)?;

        // The Secret is not an object of the release. The next one uses it.
        helm(bed, release, &["install", release.name, CHART], &values)?;
        ensure!(certificate(bed, release)? == made, "the next release has not used the certificate");
        expect_judged(bed, ns)?;
        uninstall(bed, release, ns)
    })
}

pub(crate) fn other_names(bed: &Bed) -> Result<()> {
    let release = Release { name: "edge", namespace: "gateways" };
    bed.cluster.with_temp_ns(|ns| {
        create_namespace(bed, release)?;
        // The CRDs that another release has left belong to it.
        let args = ["install", release.name, CHART, "--take-ownership"];
        helm(bed, release, &args, &json!({ "caBundles": { "enabled": true } }))?;
        certificate(bed, release)?;
        expect_judged(bed, ns)?;
        wait_for("the caBundle of the webhooks for CA bundles", SOON, || {
            let configuration = bed.cluster.get("validatingwebhookconfiguration", "", "edge-trustspan-ca-bundles")?;
            Ok(configuration["webhooks"][0]["clientConfig"]["caBundle"].is_string())
        })?;
        uninstall(bed, release, ns)
    })
}
