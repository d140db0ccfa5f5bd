//! Rules that hold while no replica of the webhook runs: the API server evaluates the output of `trustspan policies`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use trustspan::api::GatewaySecret;
use trustspan::store::cluster::connect;

use crate::agent::kept;
use crate::stage::{MANAGED, trustspan};
use crate::testbed::{Authority, Cluster, Patience, Registration, SOON, Scope, Seed, Server, Source, User, wait_for};

cases![
    the_manifests_apply_by_kustomize,
    hostile_writes_are_rejected_while_no_replica_runs,
    a_severity_of_a_rotation_policy_reaches_the_policies
];

/// Number of hostile writes, and of unrelated ones; `TRUSTSPAN_HOSTILE_WRITES` sets another, such as 1000.
const WRITES: usize = 100;
/// Writes in flight.
const AT_ONCE: usize = 40;
/// A metric of the API server. A policy that allows a request is counted only if an expression failed.
const EVALUATIONS: &str = "apiserver_validating_admission_policy_check_total{";

/// The policies, bound to some namespaces so that other tests are not affected. Dropping the value deletes them.
pub(crate) struct Policies<'c> {
    cluster: &'c Cluster,
    /// Resource and name.
    objects: Vec<(String, String)>,
    suffix: String,
}

impl<'c> Policies<'c> {
    pub(crate) fn new(cluster: &'c Cluster, namespaces: &[&str]) -> Result<Self> {
        let (_, yaml) = trustspan(&["policies"], "")?;
        let suffix = format!("-{}", cluster.unique());
        let mut policies = Self { cluster, objects: Vec::new(), suffix: suffix.clone() };
        let mut manifests = String::new();
        // Last to first: the API server learns of policies and of bindings in the order of their creation, so that when the first
        // policy is in use (see `wait_in_use`), all are.
        for mut object in serde_saphyr::from_multiple::<Value>(&yaml)?.into_iter().rev() {
            let kind = object["kind"].as_str().context("a kind")?.to_lowercase();
            let name = object["metadata"]["name"].as_str().context("a name")?.to_owned() + &suffix;
            object["metadata"]["name"] = json!(name);
            if let Some(policy) = object["spec"]["policyName"].as_str() {
                object["spec"]["policyName"] = json!(policy.to_owned() + &suffix);
                object["spec"]["matchResources"] = json!({ "namespaceSelector": { "matchExpressions": [
                    { "key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces },
                ] } });
            }
            manifests += &format!("---\n{object}\n");
            policies.objects.push((kind, name));
        }
        ensure!(policies.objects.len() == 6, "expected three policies and their bindings, saw {yaml}");
        cluster.kubectl(["create", "-f", "-"]).stdin(manifests).ok()?;
        Ok(policies)
    }

    /// Creates a GatewaySecret `last` with a journal, and waits until the journal is protected: the API server has then received all
    /// earlier changes of GatewaySecrets.
    pub(crate) fn wait_in_use(&self, ns: &str) -> Result<()> {
        let journal = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": "last.trustspan-journal", "annotations": { "trustspan.dev/gateway-secret": "last" } } });
        self.cluster.apply(ns, &journal.to_string())?;
        let mut last = crate::stage::gateway_secret(ns);
        last["metadata"]["name"] = json!("last");
        last["spec"]["sourceSecretName"] = json!("last-root");
        self.cluster.apply(ns, &last.to_string())?;
        wait_for("the policies to be in use", SOON, || {
            let delete = ["delete", "configmap", "last.trustspan-journal", "--dry-run=server"];
            let output = self.cluster.kubectl(delete).ns(ns).user(User::Dev).run()?;
            Ok(!output.success() && output.stderr.contains(&self.suffix))
        })
    }

    /// Fails if an expression could not be evaluated.
    pub(crate) fn ensure_evaluated(&self) -> Result<()> {
        let metrics = self.cluster.kubectl(["get", "--raw", "/metrics"]).ok()?;
        let of_these = |line: &&str| line.starts_with(EVALUATIONS) && line.contains(&format!("{}\"", self.suffix));
        let lines: Vec<_> = metrics.lines().filter(of_these).collect();
        ensure!(!lines.is_empty(), "no evaluation of a policy was counted");
        let is_failure = |line: &&&str| !line.contains("error_type=\"invalid_error\"");
        let failures: Vec<_> = lines.iter().filter(is_failure).collect();
        ensure!(failures.is_empty(), "expressions failed: {failures:?}");
        Ok(())
    }
}

impl Drop for Policies<'_> {
    fn drop(&mut self) {
        for (resource, name) in &self.objects {
            if let Err(error) = self.cluster.kubectl(["delete", resource, name, "--ignore-not-found"]).ok() {
                eprintln!("deleting policies: {error:#}");
            }
        }
    }
}

/// An object that the agent writes: kind, name, and whether it has the label by which the API server sends it with failurePolicy Fail.
const OWNED: [(&str, &str, bool); 8] = [
    ("Secret", MANAGED, true),
    ("Secret", "gateway-cacert", true),
    ("Secret", "issuer", true),
    ("Secret", "before", true),
    ("Secret", "trust", false),
    ("ConfigMap", "trust", false),
    ("ConfigMap", "gateway.trustspan-journal", true),
    ("ConfigMap", "partners.trustspan", true),
];

/// Ways to write an object that the agent owns, or a GatewaySecret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Merge,
    Json,
    Replace,
    Apply,
    Large,
    Delete,
    OtherOwnerName,
    NoOwnerName,
    Label,
    Owner,
    ManyOwners,
    BreakGlass,
    Rename,
}

const WAYS: [Way; 12] = [
    Way::Merge,
    Way::Json,
    Way::Replace,
    Way::Apply,
    Way::Large,
    Way::Delete,
    Way::OtherOwnerName,
    Way::NoOwnerName,
    Way::Label,
    Way::Owner,
    Way::ManyOwners,
    Way::BreakGlass,
];

#[derive(Clone, Copy, Debug)]
struct HostileWrite {
    kind: &'static str,
    name: &'static str,
    is_labelled: bool,
    way: Way,
}

/// Every object in every way, and renames of the managed Secret, in an order of the run's seed.
fn hostile_writes(count: usize) -> Vec<HostileWrite> {
    let of_object = |(kind, name, is_labelled)| WAYS.map(|way| HostileWrite { kind, name, is_labelled, way });
    let rename = HostileWrite { kind: "GatewaySecret", name: MANAGED, is_labelled: false, way: Way::Rename };
    let mut seed = Seed::of_run("hostile writes");
    let all = OWNED.into_iter().flat_map(of_object).chain([rename; 8]);
    let mut all: Vec<_> = all.map(|write| (seed.next(), write)).collect();
    all.sort_by_key(|(order, _)| *order);
    all.into_iter().map(|(_, write)| write).cycle().take(count).collect()
}

pub(crate) fn api(client: &Client, ns: &str, kind: &str) -> Api<DynamicObject> {
    let resource = match kind {
        "Secret" => ApiResource::erase::<Secret>(&()),
        "ConfigMap" => ApiResource::erase::<ConfigMap>(&()),
        _ => ApiResource::erase::<GatewaySecret>(&()),
    };
    Api::namespaced_with(client.clone(), ns, &resource)
}

impl HostileWrite {
    /// Sends it. An error is the expected result.
    async fn send(self, client: &Client, ns: &str) -> Result<()> {
        let (api, name) = (api(client, ns, self.kind), self.name);
        let annotations = |value: Value| json!({ "metadata": { "annotations": value } });
        let owners = |count: usize| {
            let owner = |number: usize| {
                json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "missing",
                "uid": format!("00000000-0000-0000-0000-{number:012}") })
            };
            json!({ "metadata": { "ownerReferences": (0..count).map(owner).collect::<Vec<_>>() } })
        };
        let label = if self.is_labelled { Value::Null } else { json!("true") };
        let merge = match self.way {
            Way::Merge => json!({ "data": { "ca.crt": "eA==" } }),
            Way::Large => json!({ "data": { "ca.crt": "eA==".repeat(200 * 1024) } }),
            Way::OtherOwnerName => annotations(json!({ "trustspan.dev/gateway-secret": "other" })),
            Way::NoOwnerName => annotations(json!({ "trustspan.dev/gateway-secret": null })),
            Way::Label => json!({ "metadata": { "labels": { "trustspan.dev/managed": label } } }),
            Way::Owner => owners(1),
            Way::ManyOwners => owners(2_000),
            Way::BreakGlass => annotations(json!({ "breakglass.trustspan.dev/kept-by-agent": "ticket 4711" })),
            Way::Rename => json!({ "spec": { "secretName": "other" } }),
            Way::Json | Way::Replace | Way::Apply | Way::Delete => Value::Null,
        };
        let object = json!({ "apiVersion": "v1", "kind": self.kind, "metadata": { "name": name }, "data": { "ca.crt": "eA==" } });
        let params = PatchParams::default();
        match self.way {
            Way::Delete => drop(api.delete(name, &DeleteParams::default()).await?),
            Way::Replace => drop(api.replace(name, &PostParams::default(), &serde_json::from_value(object)?).await?),
            Way::Apply => drop(api.patch(name, &PatchParams::apply("hostile").force(), &Patch::Apply(&object)).await?),
            Way::Json => {
                let patch = json!([{ "op": "replace", "path": "/data", "value": {} }]);
                drop(api.patch(name, &params, &Patch::Json::<()>(serde_json::from_value(patch)?)).await?);
            }
            _ => drop(api.patch(name, &params, &Patch::Merge(&merge)).await?),
        }
        Ok(())
    }
}

/// GatewaySecrets `gateway` and `renamed`, whose managed Secret has an earlier name; everything that the agent writes for them; and unrelated
/// objects.
fn prepare(cluster: &Cluster, ns: &str, ca: &Authority) -> Result<()> {
    let clients = json!({ "caConfigMapNames": ["partners"] });
    let targets = json!([{ "kind": "ConfigMap", "name": "trust" }, { "kind": "Secret", "name": "trust" }]);
    let specs = [
        (MANAGED, MANAGED, json!({ "issuerSecretName": "issuer", "clients": clients, "trustBundleTargets": targets })),
        ("renamed", "before", json!({ "secretName": "after" })),
    ];
    for (name, stored, spec) in specs {
        let mut object = crate::stage::gateway_secret(ns);
        object["metadata"]["name"] = json!(name);
        object["spec"]["sourceSecretName"] = json!(format!("{name}-root"));
        json_patch::merge(&mut object["spec"], &spec);
        cluster.apply(ns, &object.to_string())?;
        let mut status = crate::stage::status(ns, &[]);
        status["secretName"] = json!(stored);
        status["bundle"] = json!([{ "subject": "CN=ca", "fingerprint": "0", "notBefore": "2026-01-01T00:00:00Z",
            "notAfter": "2099-01-01T00:00:00Z", "pem": ca.pem() }]);
        let patch = json!({ "status": status }).to_string();
        let args = ["patch", "gatewaysecret", name, "--subresource=status", "--type=merge", "--patch", &patch];
        cluster.kubectl(args).ns(ns).ok()?;
    }
    for (kind, name, is_labelled) in OWNED {
        let labels = if is_labelled { json!({ "trustspan.dev/managed": "true" }) } else { json!({}) };
        let owner = if name == "before" { "renamed" } else { MANAGED };
        let metadata =
            json!({ "name": name, "labels": labels, "annotations": { "trustspan.dev/gateway-secret": owner } });
        create(cluster, ns, kind, &metadata)?;
    }
    for kind in ["Secret", "ConfigMap"] {
        create(cluster, ns, kind, &json!({ "name": "unrelated" }))?;
    }
    Ok(())
}

fn create(cluster: &Cluster, ns: &str, kind: &str, metadata: &Value) -> Result<()> {
    let object = json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, "data": { "ca.crt": "YQ==" } });
    cluster.kubectl(["create", "-f", "-"]).ns(ns).stdin(object.to_string()).ok().map(drop)
}

/// The versions of the objects that the agent owns.
fn versions(cluster: &Cluster, ns: &str) -> Result<Vec<Value>> {
    let version =
        |(kind, name, _): (&str, &str, bool)| Ok(cluster.get(kind, ns, name)?["metadata"]["resourceVersion"].take());
    OWNED.into_iter().map(version).collect()
}

/// Sends a write of an object that the agent does not own. Returns the time that it took.
async fn unrelated_write(client: &Client, ns: &str, number: usize) -> Result<Duration> {
    let data = json!({ "data": { "number": format!("{number:04}") } }); // Four digits are base64, too.
    let (kind, name, patch) = match number % 3 {
        0 => ("Secret", "unrelated", data),
        1 => ("ConfigMap", "unrelated", data),
        _ => ("GatewaySecret", MANAGED, json!({ "spec": { "paused": number.is_multiple_of(2) } })),
    };
    let begun = Instant::now();
    let write = api(client, ns, kind).patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    write.with_context(|| format!("unrelated write {number} of {kind} {name}"))?;
    Ok(begun.elapsed())
}

fn median_ms(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

fn the_manifests_apply_by_kustomize(cluster: &Cluster) -> Result<()> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/policies");
    let applied = cluster.kubectl(["apply", "--dry-run=server", "-k", folder]).ok()?;
    ensure!(applied.lines().count() == 6, "saw {applied}");
    Ok(())
}

fn hostile_writes_are_rejected_while_no_replica_runs(cluster: &Cluster) -> Result<()> {
    let count = match std::env::var("TRUSTSPAN_HOSTILE_WRITES") {
        Ok(count) => count.parse()?,
        Err(_) => WRITES,
    };
    let run = |ns: &str, without: &str| {
        let ca = Authority::new("ca")?;
        prepare(cluster, ns, &ca)?;
        prepare(cluster, without, &ca)?;
        let mut server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let scope = Scope::Namespaces(vec![ns.to_owned(), without.to_owned()]);
        let _registration = Registration::new(cluster, &server, &scope, Patience::Shipped)?;
        server.kill();
        let policies = Policies::new(cluster, &[ns])?;
        policies.wait_in_use(ns)?;

        let (runtime, before) = (Runtime::new()?, versions(cluster, ns)?);
        let client = runtime.block_on(connect(Some(&cluster.kubeconfig(User::Dev))))?;
        let send = |write: HostileWrite| {
            let client = &client;
            async move { (write, write.send(client, ns).await) }
        };
        let sent = stream::iter(hostile_writes(count)).map(send).buffer_unordered(AT_ONCE).collect::<Vec<_>>();
        let results = runtime.block_on(sent);
        let rejected = results.iter().filter_map(|(_, result)| result.as_ref().err());
        let by_policies = rejected.filter(|error| error.to_string().contains("ValidatingAdmissionPolicy")).count();
        let stored: Vec<_> = results.iter().filter(|(_, result)| result.is_ok()).map(|(write, _)| write).collect();
        println!("{count} hostile writes with no replica: {} stored, {by_policies} rejected by a policy", stored.len());
        ensure!(stored.is_empty(), "stored: {stored:?}");
        ensure!(versions(cluster, ns)? == before, "an object of the agent has changed");
        let whole = format!("/api/v1/namespaces/{ns}/configmaps");
        let refused = cluster.kubectl(["delete", "--raw", &whole]).user(User::Dev).fails()?;
        ensure!(refused.contains("kept-by-agent"), "deletecollection: saw {refused}");
        ensure!(versions(cluster, ns)? == before, "an object of the agent has changed");
        // It deleted the objects of others until it was refused.
        if !cluster.exists("configmap", ns, "unrelated")? {
            create(cluster, ns, "ConfigMap", &json!({ "name": "unrelated" }))?;
        }

        // Pairs, so that both are measured at the same load of the machine.
        let (mut with_policies, mut without_policies) = (Vec::new(), Vec::new());
        for number in 0..count {
            with_policies.push(runtime.block_on(unrelated_write(&client, ns, number))?);
            without_policies.push(runtime.block_on(unrelated_write(&client, without, number))?);
        }
        println!(
            "{count} unrelated writes with no replica, none rejected: median {:.2} ms with the policies, {:.2} ms without",
            median_ms(with_policies),
            median_ms(without_policies)
        );
        // What others may change of an object of the agent.
        for kind in ["secret", "configmap"] {
            cluster.kubectl(["label", kind, "trust", "team=checkout"]).ns(ns).user(User::Dev).ok()?;
        }
        policies.ensure_evaluated()?;
        cluster.kubectl(["delete", "namespace", ns, "--wait=false"]).ok()?;
        wait_for("the namespace to be gone", SOON, || Ok(!cluster.exists("namespace", "", ns)?))
    };
    cluster.with_temp_ns(|ns| cluster.with_temp_ns(|without| run(ns, without)))
}

fn a_severity_of_a_rotation_policy_reaches_the_policies(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let policies = Policies::new(cluster, &[kept.ns])?;
        let root = Authority::new("root")?;
        kept.write_root(&root)?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        // The agent's writes pass.
        kept.wait_bundle(&[&root])?;
        kept.wait_phase("Steady")?;
        policies.wait_in_use(kept.ns)?;
        let delete = || {
            let delete = ["delete", "configmap", "gateway.trustspan-journal", "--dry-run=server"];
            cluster.kubectl(delete).ns(kept.ns).user(User::Dev).run()
        };
        let refused = delete()?.stderr;
        ensure!(refused.contains("kept-by-agent"), "saw {refused}");
        for (level, passes) in [("Warn", true), ("Deny", false), ("Off", true)] {
            kept.set_policy("severities", &json!({ "kept-by-agent": level }))?;
            wait_for(&format!("severity {level} to reach the policies"), SOON, || Ok(delete()?.success() == passes))?;
        }
        Ok(())
    })
}
