//! Concurrent writes that would replace the CAs of gateways, in every form that a developer can send: none is stored, whether the webhook
//! runs or not, and no other write depends on it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use trustspan::store::cluster::connect;

use crate::stage::{MANAGED, SOURCE};
use crate::stolen_tokens::missing_owner;
use crate::testbed::{
    Agents, Authority, Cluster, Patience, Registration, SOON, Scope, Seed, Server, Source, User, wait_for,
};

cases![alone none_is_stored, writes_pass_in_a_namespace_with_many_gateway_secrets, conditions_read_no_map_of_a_developers_size];

/// Number of writes in a flood; `TRUSTSPAN_EVIL_WRITES` sets another, such as 1000.
const WRITES: usize = 60;
/// Writes in flight. The API server takes 200 mutating requests at a time.
const AT_ONCE: usize = 160;
/// Characters of the padding of a large object: the API server takes 1 MiB in a Secret.
const LARGE: usize = 900 * 1024;
/// The finalizer of objects that wait for their deletion.
const FINALIZER: &str = "example.com/hold";
/// Number of GatewaySecrets; `TRUSTSPAN_GATEWAY_SECRETS` sets another, such as 1000.
const GATEWAY_SECRETS: usize = 100;
/// Fields, and the number of their entries. All annotations together may have 256 KiB.
const MAPS: [(&str, usize); 5] =
    [("annotations", 1_000), ("annotations", LARGE_MAP), ("labels", 1_000), ("labels", LARGE_MAP), ("data", LARGE_MAP)];
const LARGE_MAP: usize = 40_000;
/// A metric of the API server.
const CONDITION_ERRORS: &str = "apiserver_admission_match_condition_evaluation_errors_total{";
/// Unrelated writes in one measurement.
const UNRELATED: usize = 100;

/// What an evil write is aimed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Live,
    /// It is being deleted, and its finalizer keeps it.
    Dying,
}

/// Objects that decide which clients the gateways of three GatewaySecrets accept.
const TARGETS: [(&str, &str, State); 12] = [
    ("Secret", "gateway", State::Live),
    ("Secret", "gateway-cacert", State::Absent),
    ("Secret", "second-cacert", State::Live),
    ("Secret", "third", State::Dying),
    ("Secret", "third-cacert", State::Dying),
    ("Secret", "partners", State::Live),
    ("Secret", "partners-cacert", State::Absent),
    ("Secret", "partners-deleted", State::Absent),
    ("ConfigMap", "partners-deleted", State::Absent),
    ("Secret", "partners-dying", State::Dying),
    ("ConfigMap", "partners", State::Live),
    ("ConfigMap", "partners-dying", State::Dying),
];

/// Ways to send a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Create,
    Replace,
    MergePatch,
    JsonPatch,
    Apply,
    /// Adds an owner that does not exist, and changes nothing else: the garbage collector deletes the object then.
    Own,
    Delete,
}

/// What the author of a write may choose, so that its object is taken for another.
const DISGUISES: [&str; 9] =
    ["none", "labels", "annotations", "finalizers", "type", "large", "owner", "generateName", "deletionTimestamp"];

struct EvilWrite {
    kind: &'static str,
    name: &'static str,
    verb: Verb,
    disguise: &'static str,
}

/// Every target with every verb that it allows and every disguise, in an order of the run's seed.
fn evil_writes(count: usize) -> Vec<EvilWrite> {
    let verbs = |state: State| match state {
        State::Absent => &[Verb::Create, Verb::Apply][..],
        State::Live => &[Verb::Replace, Verb::MergePatch, Verb::JsonPatch, Verb::Apply, Verb::Own, Verb::Delete],
        State::Dying => &[Verb::Replace, Verb::MergePatch, Verb::JsonPatch, Verb::Apply],
    };
    let all =
        TARGETS.iter().flat_map(|(kind, name, state)| verbs(*state).iter().map(move |verb| (*kind, *name, *verb)));
    let all = all.flat_map(|(kind, name, verb)| DISGUISES.map(|disguise| EvilWrite { kind, name, verb, disguise }));
    let mut seed = Seed::of_run("evil writes");
    let mut all: Vec<_> = all.map(|write| (seed.next(), write)).collect();
    all.sort_by_key(|(order, _)| *order);
    let all: Vec<_> = all.into_iter().map(|(_, write)| write).collect();
    let again = all.iter().cycle().take(count);
    again.map(|EvilWrite { kind, name, verb, disguise }| EvilWrite { kind, name, verb: *verb, disguise }).collect()
}

impl EvilWrite {
    /// An object with only the CA of another party, as the author sends it.
    fn object(&self, evil: &Authority) -> Value {
        let is_secret = self.kind == "Secret";
        let text = |text: &str| if is_secret { STANDARD.encode(text) } else { text.to_owned() };
        let mut object = json!({
            "apiVersion": "v1", "kind": self.kind, "metadata": { "name": self.name }, "data": { "ca.crt": text(&evil.pem()) },
        });
        let metadata = &mut object["metadata"];
        match self.disguise {
            "labels" => {
                metadata["labels"] = json!({ "trustspan.dev/managed": "false", "trustspan.dev/guard": "disabled" })
            }
            "annotations" => {
                let many = (0..200).map(|number| (format!("note-{number}"), json!("x")));
                metadata["annotations"] = Value::Object(many.collect());
            }
            "finalizers" => metadata["finalizers"] = json!([FINALIZER, "example.com/another"]),
            "owner" => metadata["ownerReferences"] = json!([missing_owner()]),
            "generateName" => metadata["generateName"] = json!("partner-"),
            "deletionTimestamp" => metadata["deletionTimestamp"] = json!("2030-01-01T00:00:00Z"),
            "type" if is_secret => {
                object["type"] = json!("kubernetes.io/service-account-token");
                object["metadata"]["annotations"] = json!({ "kubernetes.io/service-account.name": "default" });
            }
            "large" => object["data"]["padding"] = json!(text(&"x".repeat(LARGE * 3 / 4))),
            _ => {}
        }
        object
    }

    /// Sends it. An error is the expected result.
    async fn send(&self, client: &Client, ns: &str, evil: &Authority) -> Result<()> {
        let api = api(client, ns, self.kind);
        let object = self.object(evil);
        let (name, params) = (self.name, PatchParams::default());
        match self.verb {
            Verb::Create => drop(api.create(&PostParams::default(), &serde_json::from_value(object)?).await?),
            Verb::Replace => drop(api.replace(name, &PostParams::default(), &serde_json::from_value(object)?).await?),
            Verb::MergePatch => drop(api.patch(name, &params, &Patch::Merge(&object)).await?),
            Verb::JsonPatch => {
                let put = [("data", &object["data"]), ("metadata/labels", &object["metadata"]["labels"])];
                let put = put.iter().filter(|(_, value)| !value.is_null());
                let put = put.map(|(path, value)| json!({ "op": "add", "path": format!("/{path}"), "value": value }));
                let patch = serde_json::from_value(put.collect())?;
                drop(api.patch(name, &params, &Patch::Json::<()>(patch)).await?);
            }
            Verb::Apply => drop(api.patch(name, &PatchParams::apply("evil").force(), &Patch::Apply(&object)).await?),
            Verb::Own => {
                let metadata = json!({ "metadata": { "ownerReferences": [missing_owner()] } });
                drop(api.patch(name, &params, &Patch::Merge(&metadata)).await?);
            }
            Verb::Delete => drop(api.delete(name, &DeleteParams::default()).await?),
        }
        Ok(())
    }
}

fn api(client: &Client, ns: &str, kind: &str) -> Api<DynamicObject> {
    let resource =
        if kind == "Secret" { ApiResource::erase::<Secret>(&()) } else { ApiResource::erase::<ConfigMap>(&()) };
    Api::namespaced_with(client.clone(), ns, &resource)
}

/// A namespace without label with three GatewaySecrets, their clients, and every target in its state.
struct Scene<'c> {
    cluster: &'c Cluster,
    ns: &'c str,
    good: Authority,
    evil: Authority,
}

impl Scene<'_> {
    fn prepare(&self) -> Result<()> {
        let Self { cluster, ns, good, .. } = self;
        cluster.kubectl(["label", "namespace", ns, "trustspan.dev/guard-"]).ok()?;
        for name in [MANAGED, "second", "third"] {
            let mut object = crate::stage::gateway_secret(ns);
            object["metadata"]["name"] = json!(name);
            object["spec"]["sourceSecretName"] = json!(format!("{SOURCE}-{name}"));
            cluster.apply(ns, &object.to_string())?;
            let status = json!({ "status": self.status(name)? }).to_string();
            let args = ["patch", "gatewaysecret", name, "--subresource=status", "--type=merge", "--patch", &status];
            cluster.kubectl(args).ns(ns).ok()?;
        }
        for (kind, name, state) in TARGETS.iter().filter(|(_, _, state)| *state != State::Absent) {
            let text = if *kind == "Secret" { STANDARD.encode(good.pem()) } else { good.pem() };
            let finalizers = if *state == State::Dying { json!([FINALIZER]) } else { json!([]) };
            let metadata = json!({ "name": name, "finalizers": finalizers });
            let object = json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, "data": { "ca.crt": text } });
            cluster.kubectl(["create", "-f", "-"]).ns(ns).stdin(object.to_string()).ok()?;
            if *state == State::Dying {
                cluster.kubectl(["delete", kind, name, "--wait=false"]).ns(ns).ok()?;
            }
        }
        Agents::new(cluster, ns)?.grant()
    }

    /// The status of a GatewaySecret with one client in use.
    fn status(&self, name: &str) -> Result<Value> {
        let Self { ns, good, .. } = self;
        let mut status = crate::stage::status(ns, &[]);
        status["secretName"] = json!(name);
        status["resolved"] = json!({ "sourceSecretName": format!("{SOURCE}-{name}") });
        // The sibling of the second one accepts the client, its managed Secret does not: the sibling must stay.
        let managed = if name == "second" { &self.evil } else { good };
        status["bundle"] = json!([{ "subject": "CN=good", "fingerprint": "0", "notBefore": "2026-01-01T00:00:00Z",
            "notAfter": "2099-01-01T00:00:00Z", "pem": managed.pem() }]);
        status["leaves"] = json!([{ "kind": "Client", "namespace": ns, "name": "shop", "subject": "CN=shop",
            "notAfter": "2099-01-01T00:00:00Z", "pem": good.issue_client("shop")?.0 }]);
        let source = |(kind, name): (&str, &str)| {
            json!({ "kind": kind, "namespace": ns, "name": name, "usedBy": "Gateway apps/public spec.servers[0]",
                "acceptsClients": name != "partners-cacert" })
        };
        let is_source = |(_, name, _): &&(&str, &str, State)| name.starts_with("partners");
        let sources = TARGETS.iter().filter(is_source).map(|(kind, name, _)| source((kind, name)));
        status["trustSources"] = sources.collect();
        Ok(status)
    }

    /// Sends evil writes concurrently, and fails if the API server stored one.
    fn flood(&self, runtime: &Runtime, client: &Client, count: usize) -> Result<()> {
        let writes = evil_writes(count);
        let send = |write: EvilWrite| async move {
            let result = write.send(client, self.ns, &self.evil).await;
            result.map(|()| format!("{:?} of {} {} with {}", write.verb, write.kind, write.name, write.disguise))
        };
        let begun = Instant::now();
        let results: Vec<_> =
            runtime.block_on(stream::iter(writes).map(send).buffer_unordered(AT_ONCE).collect::<Vec<_>>());
        let stored: Vec<_> = results.iter().filter_map(|result| result.as_ref().ok()).collect();
        println!("{count} evil writes in {:.1?}: {} stored", begun.elapsed(), stored.len());
        ensure!(stored.is_empty(), "stored: {stored:?}");
        for (kind, name, state) in TARGETS {
            if state == State::Absent {
                ensure!(!self.cluster.exists(kind, self.ns, name)?, "{kind} {name} exists");
                continue;
            }
            let object = self.cluster.get(kind, self.ns, name)?;
            let good = if kind == "Secret" { STANDARD.encode(self.good.pem()) } else { self.good.pem() };
            ensure!(object["data"] == json!({ "ca.crt": good }), "{kind} {name} has changed: {}", object["data"]);
        }
        Ok(())
    }
}

fn none_is_stored(cluster: &Cluster) -> Result<()> {
    let count = match std::env::var("TRUSTSPAN_EVIL_WRITES") {
        Ok(count) => count.parse()?,
        Err(_) => WRITES,
    };
    let run = |ns: &str, other: &str| {
        let scene = Scene { cluster, ns, good: Authority::new("good")?, evil: Authority::new("evil")? };
        scene.prepare()?;
        let (runtime, other_runtime) = (Runtime::new()?, Runtime::new()?);
        let client = runtime.block_on(connect(Some(&cluster.kubeconfig(User::Dev))))?;
        let mut server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let scope = Scope::Namespaces(vec![ns.to_owned()]);
        let _registration = Registration::new(cluster, &server, &scope, Patience::Shipped)?;
        scene.flood(&runtime, &client, count)?;
        let whole = format!("/api/v1/namespaces/{ns}/secrets");
        let refused = cluster.kubectl(["delete", "--raw", &whole]).user(User::Dev).fails()?;
        ensure!(refused.contains("denied the request"), "deletecollection: saw {refused}");

        server.kill();
        scene.flood(&runtime, &client, count)?;
        let unrelated = count.max(UNRELATED);
        let elsewhere = other_runtime.block_on(time_of_writes(&client, other, unrelated))?;
        let without_webhook = runtime.block_on(time_of_writes(&client, ns, unrelated))?;
        println!(
            "{unrelated} unrelated writes with all replicas killed: {:.2} of the time in a namespace without webhooks",
            without_webhook.as_secs_f64() / elsewhere.as_secs_f64()
        );
        cluster.kubectl(["annotate", "configmap", "kube-root-ca.crt", "note=x"]).ns(ns).user(User::Dev).ok()?;
        let free = json!({ "metadata": { "finalizers": null } }).to_string();
        for (kind, name, _) in TARGETS.iter().filter(|(_, _, state)| *state == State::Dying) {
            cluster.kubectl(["patch", kind, name, "--patch", &free]).ns(ns).user(User::Dev).ok()?;
            ensure!(!cluster.exists(kind, ns, name)?, "{kind} {name} is still there");
        }
        cluster.kubectl(["delete", "namespace", ns, "--wait=false"]).ok()?;
        wait_for("the namespace to be gone", SOON, || Ok(!cluster.exists("namespace", "", ns)?))
    };
    cluster.with_temp_ns(|ns| cluster.with_temp_ns(|other| run(ns, other)))
}

/// The time that creates of Secrets and ConfigMaps take which decide nothing.
async fn time_of_writes(client: &Client, ns: &str, count: usize) -> Result<Duration> {
    let write = |number: usize| async move {
        let kind = if number.is_multiple_of(2) { "Secret" } else { "ConfigMap" };
        let object =
            json!({ "apiVersion": "v1", "kind": kind, "metadata": { "generateName": "unrelated-" }, "data": {} });
        api(client, ns, kind).create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        anyhow::Ok(())
    };
    // The first ones open connections.
    for number in 0..4 {
        write(number).await?;
    }
    let begun = Instant::now();
    for number in 0..count {
        write(number).await.with_context(|| format!("unrelated write {number}"))?;
    }
    Ok(begun.elapsed())
}

fn writes_pass_in_a_namespace_with_many_gateway_secrets(cluster: &Cluster) -> Result<()> {
    let count = match std::env::var("TRUSTSPAN_GATEWAY_SECRETS") {
        Ok(count) => count.parse()?,
        Err(_) => GATEWAY_SECRETS,
    };
    cluster.with_temp_ns(|ns| {
        let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let scope = Scope::Namespaces(vec![ns.to_owned()]);
        let _registration = Registration::new(cluster, &server, &scope, Patience::Shipped)?;
        let runtime = Runtime::new()?;
        let client = runtime.block_on(connect(Some(&cluster.kubeconfig(User::Dev))))?;
        let alone = runtime.block_on(time_of_writes(&client, ns, UNRELATED))?;
        let gateway_secret = |number: usize| {
            let mut object = crate::stage::gateway_secret(ns);
            object["metadata"]["name"] = json!(format!("gateway-{number}"));
            object["spec"]["sourceSecretName"] = json!(format!("root-{number}"));
            object
        };
        let list =
            json!({ "apiVersion": "v1", "kind": "List", "items": (0..count).map(gateway_secret).collect::<Vec<_>>() });
        cluster.kubectl(["create", "-f", "-"]).ns(ns).stdin(list.to_string()).ok()?;
        Agents::new(cluster, ns)?.grant()?;
        let last = format!("secret/gateway-{}-cacert", count - 1);
        wait_for("the last Role to be in use", SOON, || {
            let can = cluster.kubectl(["auth", "can-i", "guard", &last, "--as", User::Agent.name()]);
            Ok(can.ns(ns).run()?.success())
        })?;
        let with_roles = runtime.block_on(time_of_writes(&client, ns, UNRELATED))?;
        println!(
            "{count} GatewaySecrets in one namespace: {:.2} ms for an unrelated write, {:.2} ms without one",
            with_roles.as_secs_f64() * 1e3 / UNRELATED as f64,
            alone.as_secs_f64() * 1e3 / UNRELATED as f64
        );
        Ok(())
    })
}

/// The API server neither gives up a condition for its cost, after which it would skip the webhook, nor spends more on a map of a
/// developer's choosing than on any object of that size.
fn conditions_read_no_map_of_a_developers_size(cluster: &Cluster) -> Result<()> {
    let run = |ns: &str, other: &str| {
        let mut server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let scope = Scope::Namespaces(vec![ns.to_owned()]);
        let _registration = Registration::new(cluster, &server, &scope, Patience::Longest)?;
        // Only the conditions are measured, so the object is sent to no server.
        server.kill();
        let runtime = Runtime::new()?;
        let client = runtime.block_on(connect(Some(&cluster.kubeconfig(User::Dev))))?;
        for (field, count) in MAPS {
            let map: serde_json::Map<_, _> = (0..count).map(|number| (format!("{number:x}"), json!(""))).collect();
            let mut object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "large" } });
            match field {
                "data" => object["data"] = Value::Object(map),
                field => object["metadata"][field] = Value::Object(map),
            }
            let object: DynamicObject = serde_json::from_value(object)?;
            let dry = PostParams { dry_run: true, ..PostParams::default() };
            let time = |ns: &str| -> Result<Duration> {
                let begun = Instant::now();
                runtime.block_on(api(&client, ns, "Secret").create(&dry, &object))?;
                Ok(begun.elapsed())
            };
            let fastest =
                |ns: &str| (0..3).map(|_| time(ns)).collect::<Result<Vec<_>>>().map(|all| all.into_iter().min());
            let (here, there) = (fastest(ns)?.context("a time")?, fastest(other)?.context("a time")?);
            let ratio = here.as_secs_f64() / there.as_secs_f64();
            println!("{count} {field}: {here:.1?} with the webhooks, {there:.1?} without them: {ratio:.1} times");
            // Conditions that read every entry took 36 times as long, and those that read none up to 3 times: each webhook converts the object.
            ensure!(count < LARGE_MAP || ratio < 10.0, "{count} {field}: {ratio:.1} times");
        }
        let metrics = cluster.kubectl(["get", "--raw", "/metrics"]).ok()?;
        // Other tests end deletions while their conditions are evaluated.
        let is_of_create = |line: &&str| line.contains("trustspan.dev") && line.contains("operation=\"CREATE\"");
        let errors = metrics.lines().filter(|line| line.starts_with(CONDITION_ERRORS));
        let errors: Vec<_> = errors.filter(is_of_create).collect();
        ensure!(errors.is_empty(), "conditions failed: {errors:?}");
        Ok(())
    };
    cluster.with_temp_ns(|ns| cluster.with_temp_ns(|other| run(ns, other)))
}
