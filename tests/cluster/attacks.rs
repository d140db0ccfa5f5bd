//! Writes drawn from a grammar: editors of two tenants and the five ServiceAccounts of trustspan, each with a CA that it would like others to
//! trust, write all objects of the other tests in sequences that no test lists. An oracle asks afterwards, and all the time, whose CAs gateways,
//! clients, targets and a mirrored file trust, which tokens were made, and whether a rotation goes on.

mod grammar;
mod objects;
mod oracle;
mod recorder;
mod scene;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, stream};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Map, Value, json};

use crate::testbed::{Cluster, Seed};
use grammar::{Grammar, Verb, Write};
use objects::{Kind, Object, Tenants};
use oracle::{Oracle, Violation};
use recorder::Recorder;
use scene::Scene;

cases![alone writes_of_a_grammar_give_no_ca_and_no_token_and_stop_no_rotation];

/// Number of writes; `TRUSTSPAN_ATTACKS` sets another, such as 100000.
const WRITES: usize = 1500;
/// Writes between two rotations.
const BATCH: usize = 2500;
/// Chains in flight.
const AT_ONCE: usize = 64;
/// Between two questions of the oracle during writes.
const PAUSE: Duration = Duration::from_millis(400);
/// For the garbage collector, after an object was given an owner or deleted.
const COLLECTED: Duration = Duration::from_secs(1);
/// Writes of an object that a failure prints.
const PRINTED: usize = 16;
/// Versions that a failure prints.
const VERSIONS: usize = 60;

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Actor {
    EditorOfA,
    EditorOfB,
    Agent,
    Webhook,
    Approver,
    Certgen,
    Mirror,
}

impl Actor {
    const ALL: [Self; 7] =
        [Self::EditorOfA, Self::EditorOfB, Self::Agent, Self::Webhook, Self::Approver, Self::Certgen, Self::Mirror];

    /// The name of its CA, and the one by which `metadata.managedFields` says what it wrote.
    fn name(self) -> &'static str {
        match self {
            Self::EditorOfA => "evil-editor-of-a",
            Self::EditorOfB => "evil-editor-of-b",
            Self::Agent => "evil-agent",
            Self::Webhook => "evil-webhook",
            Self::Approver => "evil-approver",
            Self::Certgen => "evil-certgen",
            Self::Mirror => "evil-mirror",
        }
    }

    /// Its user and groups.
    fn user(self) -> (String, Vec<String>) {
        let (ns, name) = match self {
            Self::EditorOfA | Self::EditorOfB => {
                return (self.name().to_owned(), vec!["system:authenticated".to_owned()]);
            }
            Self::Agent => ("trustspan-system", "trustspan-agent"),
            Self::Webhook => ("trustspan-system", "trustspan-webhook"),
            Self::Approver => ("trustspan-system", "trustspan-approver"),
            Self::Certgen => ("envoy-gateway-system", "trustspan-certgen"),
            Self::Mirror => ("trustspan-node", "trustspan-mirror"),
        };
        let groups = ["system:authenticated".to_owned(), "system:serviceaccounts".to_owned()];
        let of_namespace = format!("system:serviceaccounts:{ns}");
        (format!("system:serviceaccount:{ns}:{name}"), groups.into_iter().chain([of_namespace]).collect())
    }
}

impl Tenants {
    fn all(&self) -> [&str; 3] {
        [&self.a, &self.b, &self.c]
    }
}

/// What the API server made of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Stored,
    /// By RBAC.
    Forbidden,
    /// By a webhook or a policy.
    Denied,
    /// Not an object, or not at this time.
    Invalid,
    /// A webhook gave no answer.
    Failed,
}

/// A write with its answer.
struct Record {
    write: Write,
    at: Instant,
    answer: Answer,
    text: String,
}

impl Record {
    fn print(&self) -> String {
        let Write { actor, verb, object, changes, .. } = &self.write;
        let changes: String = changes.iter().map(|change| change.operation().to_string()).collect();
        let short = |text: &str| text.chars().take(160).collect::<String>();
        format!(
            "  {} {verb:?} {object} {}: {:?} {}",
            actor.name(),
            short(&changes),
            self.answer,
            short(&self.text.replace('\n', " "))
        )
    }
}

/// The content of a write that sends a whole object.
fn whole(write: &Write, mut object: Value) -> Value {
    write.changes.iter().for_each(|change| change.make(&mut object));
    object
}

/// Sends a write.
async fn send(scene: &Scene<'_>, write: &Write) -> kube::Result<()> {
    let Write { actor, verb, object, template, changes } = write;
    let api = object.api(&scene.actors[actor]);
    let name = object.name.as_str();
    // Their webhooks have no template.
    let is_called = object.kind.is_called();
    let post = PostParams { field_manager: Some(actor.name().to_owned()), ..PostParams::default() };
    let patch = PatchParams { field_manager: Some(actor.name().to_owned()), ..PatchParams::default() };
    let json = || {
        // A field of a map that is missing is added with its map.
        let mut operations: Vec<Value> = changes.iter().map(|change| change.operation()).collect();
        for change in changes.iter().filter(|change| change.merges()) {
            let operation = change.operation();
            let path = operation["path"].as_str().unwrap_or_default();
            if let Some((parent, key)) = path.rsplit_once('/')
                && ["/metadata/annotations", "/metadata/labels"].contains(&parent)
            {
                let key = key.replace("~1", "/");
                operations.retain(|other| other["path"] != path);
                operations.push(json!({ "op": "add", "path": parent, "value": { key: operation["value"] } }));
            }
        }
        serde_json::from_value(operations.into()).map_err(kube::Error::SerdeError)
    };
    match verb {
        Verb::Create => drop(api.create(&post, &parsed(whole(write, template.clone()))?).await?),
        Verb::Replace => {
            let stored = object.get(&scene.admin).await.ok().flatten().unwrap_or_else(|| template.clone());
            let mut sent = whole(write, stored);
            if let Some(metadata) = sent["metadata"].as_object_mut() {
                metadata.remove("managedFields");
            }
            drop(api.replace(name, &post, &parsed(sent)?).await?);
        }
        Verb::Merge | Verb::Status if changes.iter().all(|change| change.merges()) => {
            let body = whole(write, json!({}));
            match verb {
                Verb::Status => drop(api.patch_status(name, &patch, &Patch::Merge(&body)).await?),
                _ => drop(api.patch(name, &patch, &Patch::Merge(&body)).await?),
            }
        }
        Verb::Apply if !is_called || changes.iter().all(|change| change.merges()) => {
            let patch = PatchParams::apply(actor.name()).force();
            drop(api.patch(name, &patch, &Patch::Apply(&whole(write, template.clone()))).await?);
        }
        Verb::Merge | Verb::Status | Verb::Json | Verb::Apply => {
            drop(api.patch(name, &patch, &Patch::Json::<()>(json()?)).await?);
        }
        Verb::Delete => drop(api.delete(name, &DeleteParams::default()).await?),
        Verb::DeleteCollection => drop(api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?),
    }
    Ok(())
}

fn parsed(object: Value) -> kube::Result<kube::api::DynamicObject> {
    serde_json::from_value(object).map_err(kube::Error::SerdeError)
}

fn answer(result: kube::Result<()>) -> Result<(Answer, String)> {
    let text = match result {
        Ok(()) => return Ok((Answer::Stored, String::new())),
        Err(kube::Error::Api(status)) => (status.code, status.message.clone()),
        Err(kube::Error::SerdeError(error)) => (400, error.to_string()),
        Err(error) => return Err(error.into()),
    };
    let (code, message) = text;
    let is_denied = message.contains("denied the request") || message.contains("ValidatingAdmissionPolicy");
    let answer = match code {
        _ if is_denied => Answer::Denied,
        403 => Answer::Forbidden,
        500 if message.contains("typed patch object") => Answer::Invalid,
        500..=599 => Answer::Failed,
        _ => Answer::Invalid,
    };
    Ok((answer, message))
}

/// Sends the writes of a chain one after the other, until the batch is over.
async fn run_chain(
    scene: &Scene<'_>,
    oracle: &Oracle,
    is_over: &AtomicBool,
    chain: Vec<Write>,
) -> Result<(Vec<Record>, Option<Violation>)> {
    let mut records = Vec::new();
    for write in chain {
        if is_over.load(SeqCst) {
            return Ok((records, None));
        }
        let (answer, text) = answer(send(scene, &write).await).with_context(|| format!("{write:?}"))?;
        let at = Instant::now();
        let owns = write.changes.iter().any(|change| change.operation()["path"] == "/metadata/ownerReferences");
        if answer == Answer::Stored && (owns || write.verb == Verb::Delete) {
            let begun = Instant::now();
            while begun.elapsed() < COLLECTED && write.object.get(&scene.admin).await?.is_some() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        records.push(Record { write, at, answer, text });
    }
    let mut violation = None;
    // A stolen token of the agent can have the calls of webhooks fail. What does that is put back, as the agent does it with `--serving-certificate`:
    // otherwise most writes would fail.
    let object = records.first().map(|record| record.write.object.clone()).context("no write")?;
    if object.kind.is_called() && records.iter().any(|record| record.answer == Answer::Stored) {
        violation = oracle.changed(&scene.admin, &object).await?;
        scene.restore_one(&object).await?;
    }
    Ok((records, violation))
}

/// Sends chains and asks the oracle meanwhile, until that finds something.
async fn flood(scene: &Scene<'_>, oracle: &Oracle, chains: Vec<Vec<Write>>) -> Result<(Vec<Record>, Vec<Violation>)> {
    let (is_over, is_sent) = (AtomicBool::new(false), AtomicBool::new(false));
    let good = scene.good();
    let write = async {
        let send = |chain| async {
            let ended = run_chain(scene, oracle, &is_over, chain).await;
            if !matches!(ended, Ok((_, None))) {
                is_over.store(true, SeqCst);
            }
            ended
        };
        let sent: Vec<_> = stream::iter(chains).map(send).buffer_unordered(AT_ONCE).collect().await;
        is_sent.store(true, SeqCst);
        sent.into_iter().collect::<Result<Vec<_>>>()
    };
    let ask = async {
        loop {
            // Read before the question, so that the last one comes after the last write.
            let is_last = is_sent.load(SeqCst);
            let violations = oracle.trust(&scene.admin, &good).await?;
            if is_last || !violations.is_empty() {
                is_over.store(true, SeqCst);
                return anyhow::Ok(violations);
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    let (sent, mut violations) = futures::try_join!(write, ask)?;
    let mut records = Vec::new();
    for (of_chain, violation) in sent {
        records.extend(of_chain);
        violations.extend(violation);
    }
    records.sort_by_key(|record| record.at);
    violations.extend(oracle.unchanged(&scene.admin).await?);
    Ok((records, violations))
}

/// The violations, with the writes of this batch that could have caused them.
fn describe(violations: &[Violation], records: &[Record], recorder: &Recorder) -> String {
    let mut text = String::new();
    for Violation { object, found } in violations.iter().take(5) {
        text += &format!("{object} {}\n", found.chars().take(1500).collect::<String>());
        let is_near = |write: &Write| {
            let other = &write.object;
            (&other.ns, other.kind) == (&object.ns, object.kind)
                && (write.verb == Verb::DeleteCollection
                    || other.name == "client"
                    || other.name.starts_with(&object.name)
                    || object.name.starts_with(&other.name))
        };
        let stored: Vec<_> =
            records.iter().filter(|record| record.answer == Answer::Stored && is_near(&record.write)).collect();
        let last = &stored[stored.len().saturating_sub(PRINTED)..];
        let now = Instant::now();
        for record in last {
            let before = now.duration_since(record.at).as_millis();
            text += &format!("  {before} ms before:{}\n", record.print());
        }
    }
    text += "versions that decided:\n";
    text + &recorder.print(VERSIONS)
}

fn writes_of_a_grammar_give_no_ca_and_no_token_and_stop_no_rotation(cluster: &Cluster) -> Result<()> {
    let count = match std::env::var("TRUSTSPAN_ATTACKS") {
        Ok(count) => count.parse()?,
        Err(_) => WRITES,
    };
    let run = |a: &str, b: &str, c: &str| {
        let mut scene = Scene::new(cluster, a, b, c)?;
        let evil: BTreeMap<_, _> = scene.evil.iter().map(|(actor, ca)| (*actor, ca.pem())).collect();
        let mut oracle = Oracle::new(scene.tenants.clone(), &evil, scene.mirrored.clone());
        let owners = owners(&scene)?;
        let recorder = Recorder::start(&scene.runtime, &scene.admin, b);
        let mut grammar = Grammar::new(scene.tenants.clone(), evil, scene.good(), owners);
        let (mut tally, mut messages) = (BTreeMap::<_, usize>::new(), BTreeSet::new());
        let (mut sent, mut took, begun) = (0, Duration::ZERO, Instant::now());
        let mut round = 0;
        while sent < count {
            round += 1;
            grammar.good = scene.good();
            let named = grammar.evil.iter().map(|(actor, pem)| (actor.name(), pem.as_str()));
            recorder.name_cas(named.chain(grammar.good.get(b).map(|pem| ("good", pem.as_str()))));
            let size = BATCH.min(count - sent);
            let mut chains = Vec::new();
            let mut drawn = 0;
            while drawn < size {
                let mut chain = grammar.chain();
                chain.truncate(size - drawn);
                drawn += chain.len();
                chains.push(chain);
            }
            scene.runtime.block_on(oracle.protect(&scene.admin))?;
            let started = Instant::now();
            let flooded = scene.runtime.block_on(flood(&scene, &oracle, chains));
            let (records, violations) = flooded.with_context(|| format!("after {sent} writes"))?;
            took += started.elapsed();
            sent += records.len();
            for record in &records {
                *tally.entry((record.write.actor, record.answer)).or_default() += 1;
                if record.answer == Answer::Failed {
                    messages.insert(record.text.chars().take(200).collect::<String>());
                }
            }
            let seed = Seed::number();
            if !violations.is_empty() {
                bail!(
                    "TRUSTSPAN_SEED={seed}, found after {sent} writes:\n{}",
                    describe(&violations, &records, &recorder)
                );
            }
            // What B's owner does about its own objects. Those of A stay as they are.
            let names = [b, c];
            scene.runtime.block_on(async {
                scene.restore_cluster().await?;
                scene.restore(&names).await
            })?;
            let rotated = scene.rotate(round);
            if let Err(error) = rotated {
                let of_others =
                    records.iter().filter(|record| record.answer == Answer::Stored && record.write.object.ns != b);
                let writes: Vec<_> = of_others.map(Record::print).collect();
                let last = writes[writes.len().saturating_sub(PRINTED)..].join("\n");
                bail!("TRUSTSPAN_SEED={seed}, within {sent} writes, a rotation of {b} waits: {error:#}\n{last}");
            }
            let violations = scene.runtime.block_on(oracle.trust(&scene.admin, &scene.good()))?;
            ensure!(violations.is_empty(), "TRUSTSPAN_SEED={seed}: {}", describe(&violations, &records, &recorder));
            scene.runtime.block_on(scene.restore(&[a]))?;
            scene.ensure_running()?;
        }
        println!(
            "{sent} writes of a grammar in {:.0?} ({:.0} in a second), {round} rotations, {:.0?} in all",
            took,
            sent as f64 / took.as_secs_f64(),
            begun.elapsed()
        );
        for actor in Actor::ALL {
            let of = |answer| tally.get(&(actor, answer)).copied().unwrap_or_default();
            println!(
                "  {}: {} stored, {} forbidden, {} denied, {} invalid, {} failed",
                actor.name(),
                of(Answer::Stored),
                of(Answer::Forbidden),
                of(Answer::Denied),
                of(Answer::Invalid),
                of(Answer::Failed)
            );
        }
        messages.iter().for_each(|message| println!("  failed: {message}"));
        Ok(())
    };
    let outcome = cluster.with_temp_ns(|a| cluster.with_temp_ns(|b| cluster.with_temp_ns(|c| run(a, b, c))));
    scene::remove_outside(cluster)?;
    outcome
}

/// An existing owner in each namespace of a tenant.
fn owners(scene: &Scene<'_>) -> Result<BTreeMap<String, Value>> {
    let mut owners = BTreeMap::new();
    for ns in scene.tenants.all() {
        let object = Object::new(Kind::ConfigMap, ns, "kube-root-ca.crt");
        let stored = scene.runtime.block_on(object.get(&scene.admin))?.context("no ConfigMap")?;
        let mut owner = Map::new();
        owner.insert("uid".to_owned(), stored["metadata"]["uid"].clone());
        for (field, value) in [("apiVersion", "v1"), ("kind", "ConfigMap"), ("name", "kube-root-ca.crt")] {
            owner.insert(field.to_owned(), json!(value));
        }
        owners.insert(ns.to_owned(), Value::Object(owner));
    }
    Ok(owners)
}
