//! Generated requests: the policies of `trustspan policies` decide as the webhook's function does.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use kube::{
    Client, Config,
    api::{DeleteParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use trustspan::admission::{Decision, Kind, Operation, Request, validate};
use trustspan::json::Json;
use trustspan::registry::{Entry, Registry};
use trustspan::store::directory::entry;
use trustspan::trust::Severities;

use crate::policies::{Policies, api};
use crate::testbed::{Cluster, Seed, User};

cases![policies_decide_as_the_webhook];

/// Number of requests; `TRUSTSPAN_POLICY_REQUESTS` sets another.
const REQUESTS: usize = 600;
/// Requests to the objects of one namespace.
const ROUND: usize = 200;

const OWNER: &str = "trustspan.dev/gateway-secret";
const MANAGED_LABEL: &str = "trustspan.dev/managed";
const GLASS: &str = "breakglass.trustspan.dev/kept-by-agent";
const FINALIZER: &str = "example.com/hold";
/// GatewaySecrets. The last one is being deleted.
const GATEWAYS: [&str; 4] = ["a", "b", "c", "d"];
/// Names of objects that no GatewaySecret has in its own name.
const NAMES: [&str; 8] =
    ["issuer", "trust", "partners", "partners.trustspan", "other", "managed", "managed-cacert", "before"];
/// ConfigMaps that objects have as owners. The garbage collector deletes an object whose owners do not exist.
const OWNERS: [&str; 2] = ["owner-1", "owner-2"];

/// Users of requests. All but the first two never need the right to override rules, and have it.
const USERS: [&str; 6] = [
    "dev",
    "admin",
    "system:serviceaccount:trustspan-system:trustspan-agent",
    "system:serviceaccount:kube-system:namespace-controller",
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:kube-controller-manager",
];

impl Seed {
    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// A client for each user. All but the developer are the administrator, who impersonates them.
async fn clients(cluster: &Cluster) -> Result<BTreeMap<&'static str, Client>> {
    let mut clients = BTreeMap::new();
    for user in USERS {
        let bed_user = if user == "dev" { User::Dev } else { User::Admin };
        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig(bed_user))?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        if bed_user == User::Admin {
            config.headers.push(("impersonate-user".parse()?, user.parse()?));
            config.headers.push(("impersonate-group".parse()?, "system:masters".parse()?));
        }
        clients.insert(user, Client::try_from(config)?);
    }
    Ok(clients)
}

/// A GatewaySecret: spec and status.
fn gateway_secret(seed: &mut Seed, ns: &str, name: &str) -> Value {
    let mut spec = json!({ "clients": {} });
    match seed.one_in(2) {
        true => spec["sourceSecretName"] = json!(format!("{name}-root")),
        false => spec["certificateRef"] = json!({ "name": "edge" }),
    }
    if seed.one_in(2) {
        spec["secretName"] = json!(*seed.pick(&["managed", "managed-cacert", "other"]));
    }
    if seed.one_in(2) {
        spec["issuerSecretName"] = json!("issuer");
    }
    let ca = |seed: &mut Seed| match seed.below(4) {
        0 => json!({ "name": "ca" }),
        1 => json!({ "name": "ca", "namespace": "elsewhere" }),
        2 => json!({ "name": "ca", "namespace": ns }),
        _ => Value::Null,
    };
    let put = |object: &mut Value, field: &str, value: Value| {
        if !value.is_null() {
            object[field] = value;
        }
    };
    let [own, of_clients, resolved] = [ca(seed), ca(seed), ca(seed)];
    put(&mut spec, "caSecretRef", own);
    put(&mut spec["clients"], "caSecretRef", of_clients);
    let targets = [
        json!({ "kind": "ConfigMap", "name": "trust" }),
        json!({ "kind": "Secret", "name": "trust" }),
        json!({ "kind": "ConfigMap", "name": "trust", "namespace": "elsewhere" }),
        json!({ "kind": "ClusterTrustBundle", "name": "trust" }),
    ];
    spec["trustBundleTargets"] = targets.into_iter().filter(|_| seed.one_in(2)).collect();
    if seed.one_in(2) {
        spec["clients"]["caConfigMapNames"] = json!(["partners"]);
    }
    let mut status = json!({ "resolved": { "sourceSecretName": format!("{name}-root") } });
    put(&mut status["resolved"], "caSecretRef", resolved);
    if !seed.one_in(4) {
        status["secretName"] = json!(*seed.pick(&["before", "managed", name]));
    }
    if !seed.one_in(4) {
        status["bundle"] = json!([{ "subject": "CN=ca", "fingerprint": "0", "notBefore": "2026-01-01T00:00:00Z",
            "notAfter": "2099-01-01T00:00:00Z", "pem": "" }]);
    }
    match *seed.pick(&["", "", "Deny", "Warn", "Off"]) {
        "" => {}
        level => status["severities"] = json!({ "kept-by-agent": level }),
    }
    json!({
        "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret",
        "metadata": { "name": name, "namespace": ns, "finalizers": [FINALIZER] }, "spec": spec, "status": status,
    })
}

/// A Secret or ConfigMap that the agent may or may not own.
fn object(seed: &mut Seed, kind: &str, name: &str, owners: &[Value]) -> Value {
    let mut metadata = json!({ "name": name, "annotations": {}, "labels": {} });
    match seed.below(8) {
        0 => {}
        1 => metadata["annotations"][OWNER] = json!("elsewhere/a"),
        // Names such as a.trustspan-journal begin with that of their GatewaySecret.
        _ => match GATEWAYS.iter().find(|gateway| name.split(['.', '-']).next() == Some(gateway)) {
            Some(gateway) => metadata["annotations"][OWNER] = json!(gateway),
            None => metadata["annotations"][OWNER] = json!(*seed.pick(&GATEWAYS)),
        },
    }
    if seed.one_in(2) {
        metadata["labels"][MANAGED_LABEL] = json!("true");
    }
    if seed.one_in(4) {
        metadata["annotations"][GLASS] = json!("stored");
    }
    if seed.one_in(3) {
        metadata["ownerReferences"] = json!([seed.pick(owners)]);
    }
    if seed.one_in(5) {
        metadata["finalizers"] = json!([FINALIZER]);
    }
    json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, "data": { "number": "MQ==" } })
}

/// Everything that is stored in a namespace.
struct Scene {
    gateways: Vec<Value>,
    objects: Vec<Value>,
    owners: Vec<Value>,
}

impl Scene {
    fn new(cluster: &Cluster, ns: &str, seed: &mut Seed) -> Result<Self> {
        let owner_map = |name: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name } });
        create(cluster, ns, OWNERS.map(owner_map).to_vec())?;
        let mut owners = Vec::new();
        for name in OWNERS {
            let uid = cluster.get("configmap", ns, name)?["metadata"]["uid"].take();
            owners.push(json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid }));
        }
        let gateways = GATEWAYS.map(|name| gateway_secret(seed, ns, name));
        create(cluster, ns, gateways.to_vec())?;
        for object in gateways {
            let name = object["metadata"]["name"].as_str().context("a name")?;
            let patch = json!({ "status": object["status"] }).to_string();
            let args = ["patch", "gatewaysecret", name, "--subresource=status", "--type=merge", "--patch", &patch];
            cluster.kubectl(args).ns(ns).ok()?;
        }
        cluster.kubectl(["delete", "gatewaysecret", "d", "--wait=false"]).ns(ns).ok()?;
        let mut objects = Vec::new();
        let of_gateways = GATEWAYS.iter().flat_map(|name| [(*name).to_owned(), format!("{name}-cacert")]);
        let journals = GATEWAYS.iter().map(|name| format!("{name}.trustspan-journal"));
        for name in of_gateways.chain(journals).chain(NAMES.map(str::to_owned)) {
            objects.extend(["Secret", "ConfigMap"].map(|kind| object(seed, kind, &name, &owners)));
        }
        create(cluster, ns, objects)?;
        for kind in ["secrets", "configmaps"] {
            let all = cluster.list(kind, ns, "")?;
            let with_finalizer = all.iter().filter(|object| object["metadata"]["finalizers"].is_array());
            let with_finalizer =
                with_finalizer.filter_map(|object| object["metadata"]["name"].as_str()).filter(|_| seed.one_in(2));
            let delete: Vec<_> =
                ["delete", kind, "--wait=false", "--ignore-not-found"].into_iter().chain(with_finalizer).collect();
            if delete.len() > 4 {
                cluster.kubectl(delete).ns(ns).ok()?;
            }
        }
        let gateways = cluster.list("gatewaysecrets", ns, "")?;
        ensure!(gateways.len() == GATEWAYS.len(), "saw {gateways:?}");
        let objects = [cluster.list("secrets", ns, "")?, cluster.list("configmaps", ns, "")?].concat();
        Ok(Self { gateways, objects, owners })
    }

    /// Removes all finalizers, so that the namespace can be deleted.
    fn free(&self, cluster: &Cluster, ns: &str) -> Result<()> {
        let free = json!({ "metadata": { "finalizers": null } }).to_string();
        let all = || self.gateways.iter().chain(&self.objects);
        for kind in ["GatewaySecret", "Secret", "ConfigMap"] {
            let of_kind = all().filter(|object| object["kind"] == kind && object["metadata"]["finalizers"].is_array());
            let names = of_kind.filter_map(|object| object["metadata"]["name"].as_str());
            let args: Vec<_> = ["patch", "--type=merge", "--patch", &free, kind].into_iter().chain(names).collect();
            cluster.kubectl(args).ns(ns).ok()?;
        }
        Ok(())
    }

    /// The GatewaySecrets as the webhook knows them. Their policies have the severities that the agent publishes.
    fn entries(&self, ns: &str) -> Result<Vec<Entry>> {
        let of = |object: &Value| -> Result<Entry> {
            let mut entry = entry(object, ns)?;
            entry.policy.severities = entry.status.severities.clone();
            Ok(entry)
        };
        self.gateways.iter().map(of).collect()
    }
}

fn create(cluster: &Cluster, ns: &str, objects: Vec<Value>) -> Result<()> {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    cluster.kubectl(["create", "-f", "-"]).ns(ns).stdin(list.to_string()).ok().map(drop)
}

/// One or two changes of a Secret or ConfigMap.
fn changed(seed: &mut Seed, old: &Value, owners: &[Value]) -> Value {
    let mut object = old.clone();
    for _ in 0..=seed.below(2) {
        let is_config_map = object["kind"] == "ConfigMap";
        let metadata = &mut object["metadata"];
        match seed.below(16) {
            0 | 1 => object["data"]["number"] = json!("Mg=="),
            2 if is_config_map => object["binaryData"] = json!({ "raw": "MQ==" }),
            2 => object["data"]["raw"] = json!("MQ=="),
            3 => object["immutable"] = json!(true),
            4 => metadata["annotations"][OWNER] = json!(*seed.pick(&GATEWAYS)),
            5 => metadata["annotations"] = json!({}),
            6 => metadata["labels"][MANAGED_LABEL] = json!(*seed.pick(&["true", "false"])),
            7 => metadata["labels"] = json!({ "team": "checkout" }),
            8 => metadata["annotations"]["note"] = json!("x"),
            9 => metadata["ownerReferences"] = json!(owners),
            10 => metadata["ownerReferences"] = json!([seed.pick(owners)]),
            11 => metadata["ownerReferences"] = json!([]),
            12 | 13 => {
                let reason = seed.pick(&["ticket 4711", "ticket 4712", "", " ", "\u{a0}\t", "\u{1}", "\u{1}x"]);
                metadata["annotations"][GLASS] = json!(*reason);
                object["data"]["number"] = json!("Mw==");
            }
            14 => {
                metadata["annotations"][GLASS] = json!("ticket 4713");
                for number in 0..100 {
                    metadata["annotations"][format!("note-{number}")] = json!("x");
                }
            }
            _ => metadata["finalizers"] = json!([]),
        }
    }
    object
}

/// A change of a GatewaySecret.
fn renamed(seed: &mut Seed, old: &Value) -> Value {
    let mut object = old.clone();
    match *seed.pick(&["", "managed", "before", "other", "managed-cacert"]) {
        "" => drop(object["spec"].as_object_mut().and_then(|spec| spec.remove("secretName"))),
        name => object["spec"]["secretName"] = json!(name),
    }
    if seed.one_in(3) {
        object["metadata"]["labels"]["team"] = json!("checkout");
    }
    object
}

/// The rules that reject a request, of those that policies have.
fn denials(decision: &Decision) -> Vec<&'static str> {
    let rules = decision.denials().map(|finding| finding.rule);
    rules.filter(|rule| ["kept-by-agent", "managed-renamed", "break-glass"].contains(rule)).collect()
}

/// What the policy should answer, by the function of the webhook; and why it passes although the agent owns the object, if it does.
fn expected(request: &Request<'_>, entries: &[Entry], now: Timestamp) -> (Option<&'static str>, Option<&'static str>) {
    let none = Severities::default();
    let decide = |request: &Request<'_>, entries: &[Entry]| {
        validate(request, &Registry::new(entries.iter().cloned()), &none, now)
    };
    let decision = decide(request, entries);
    let denied = denials(&decision);
    if request.kind.kind == "GatewaySecret" {
        return (denied.first().copied(), None);
    }
    let mut strict = entries.to_vec();
    strict.iter_mut().for_each(|entry| entry.policy.severities.clear());
    let by_developer = Request { username: "dev", by_agent: false, may_break_glass: false, ..request.clone() };
    let is_kept = |request: &Request<'_>| denials(&decide(request, &strict)).contains(&"kept-by-agent");
    let deletion = Request { operation: Operation::Delete, object: None, ..by_developer.clone() };
    if denied.contains(&"kept-by-agent") {
        return (Some("kept-by-agent"), None);
    }
    // The policy reads this annotation on objects that the agent owns; the webhook reads it on all objects.
    if denied.contains(&"break-glass") && is_kept(&deletion) && !is_exempt(request.username) {
        return (Some("break-glass"), None);
    }
    let why = match is_kept(&by_developer) {
        false => None,
        true if is_exempt(request.username) => Some("user"),
        true if decision.overrides.iter().any(|applied| applied.rule == "kept-by-agent") => Some("break-glass"),
        true => Some("severity"),
    };
    (None, why)
}

fn is_exempt(user: &str) -> bool {
    USERS[2..].contains(&user)
}

/// Whether the API server knows that the user may override rules, as its match conditions decide it.
fn may_break_glass(user: &str, subject: &Value) -> bool {
    let annotations = subject["metadata"]["annotations"].as_object();
    user != "dev"
        && annotations.is_some_and(|all| all.len() <= 100 && all.keys().any(|key| key.starts_with("breakglass.")))
}

fn policies_decide_as_the_webhook(cluster: &Cluster) -> Result<()> {
    let count: usize = match std::env::var("TRUSTSPAN_POLICY_REQUESTS") {
        Ok(count) => count.parse()?,
        Err(_) => REQUESTS,
    };
    let mut seed = Seed::of_run("policy requests");
    let runtime = Runtime::new()?;
    let clients = runtime.block_on(clients(cluster))?;
    let mut tally: BTreeMap<&str, usize> = BTreeMap::new();
    for _ in 0..count.div_ceil(ROUND) {
        cluster.with_temp_ns(|ns| {
            let scene = Scene::new(cluster, ns, &mut seed)?;
            let policies = Policies::new(cluster, &[ns])?;
            policies.wait_in_use(ns)?;
            let entries = scene.entries(ns)?;
            for _ in 0..ROUND {
                let answer = compare(&mut seed, &scene, &entries, ns, &runtime, &clients)?;
                *tally.entry(answer).or_default() += 1;
            }
            policies.ensure_evaluated()?;
            scene.free(cluster, ns)
        })?;
    }
    println!("{tally:?}");
    for answer in [
        "kept-by-agent",
        "managed-renamed",
        "break-glass",
        "passes: user",
        "passes: break-glass",
        "passes: severity",
        "passes",
    ] {
        ensure!(tally.contains_key(answer), "no request was answered with {answer:?}: {tally:?}");
    }
    Ok(())
}

/// Sends a generated request as a dry run, and fails unless the policies answer as the webhook. Returns the answer.
fn compare(
    seed: &mut Seed,
    scene: &Scene,
    entries: &[Entry],
    ns: &str,
    runtime: &Runtime,
    clients: &BTreeMap<&'static str, Client>,
) -> Result<&'static str> {
    let exempt = *seed.pick(&USERS[2..]);
    let user = *seed.pick(&["dev", "dev", "dev", "admin", "admin", exempt]);
    let is_rename = seed.one_in(5);
    let mut old = seed.pick(if is_rename { &scene.gateways } else { &scene.objects });
    // Most objects are not the agent's, so others are tried first.
    for _ in 0..6 {
        let stored = Json::from(old);
        let deletion = Request {
            operation: Operation::Delete,
            object: None,
            old_object: Some(&stored),
            ..Request::create(&stored, ns)
        };
        if is_rename || expected(&deletion, entries, Timestamp::now()).0.is_some() {
            break;
        }
        old = seed.pick(&scene.objects);
    }
    let old = old.clone();
    let new = match is_rename {
        true => Some(renamed(seed, &old)),
        false => (!seed.one_in(4)).then(|| changed(seed, &old, &scene.owners)),
    };
    let (kind, name) = (old["kind"].as_str().context("a kind")?, old["metadata"]["name"].as_str().context("a name")?);
    let (json, old_json) = (new.as_ref().map(Json::from), Json::from(&old));
    let request = Request {
        operation: if new.is_some() { Operation::Update } else { Operation::Delete },
        kind: Kind::of(&old_json),
        username: user,
        by_agent: user == User::Agent.name(),
        may_break_glass: may_break_glass(user, new.as_ref().unwrap_or(&old)),
        object: json.as_ref(),
        old_object: Some(&old_json),
        ..Request::create(&old_json, ns)
    };
    let (denied, why) = expected(&request, entries, Timestamp::now());
    let api = api(&clients[user], ns, kind);
    let result = runtime.block_on(async {
        match &new {
            Some(new) => {
                let dry = PostParams { dry_run: true, ..PostParams::default() };
                api.replace(name, &dry, &serde_json::from_value(new.clone())?).await?;
            }
            None => drop(api.delete(name, &DeleteParams { dry_run: true, ..DeleteParams::default() }).await?),
        }
        anyhow::Ok(())
    });
    let answered = match &result {
        Ok(()) => None,
        Err(error) => {
            let text = error.to_string();
            let Some((_, message)) = text.split_once("denied request: ") else {
                // The API server's own validation comes first.
                return Ok("refused by the API server");
            };
            // The policy of manifests/base limits the agent's account, whatever the object decides.
            if text.contains("ValidatingAdmissionPolicy 'trustspan-agent' ") {
                return Ok("refused by the policy of the agent");
            }
            Some(message.split(':').next().unwrap_or_default().to_owned())
        }
    };
    ensure!(
        answered.as_deref() == denied,
        "user {user}: the webhook says {denied:?}, the policies {answered:?} ({result:?})\nold: {old}\nnew: {new:?}\nGatewaySecrets: {:?}",
        scene.gateways
    );
    Ok(match (denied, why) {
        (Some(rule), _) => rule,
        (None, Some("user")) => "passes: user",
        (None, Some("break-glass")) => "passes: break-glass",
        (None, Some(_)) => "passes: severity",
        (None, None) => "passes",
    })
}
