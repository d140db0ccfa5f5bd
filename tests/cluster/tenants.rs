//! What a tenant can create in its namespace, in any number: it costs the agent and the API server a bounded amount, and other
//! namespaces nothing.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::stage::istio;
use crate::testbed::{Agents, Authority, Cluster, Kept, Process, Request, SOON, User, wait_for};
use crate::trust_consumer::consumer;
use crate::usage::{Memory, summary};

cases![
    alone tenant_objects_without_rights_open_no_watch_and_delay_no_rotation,
    tenant_objects_with_rights_have_a_limited_number_of_watches,
    tenant_trust_consumers_without_rights_open_no_watch,
    tenant_watches_begin_after_the_reads_and_cause_another,
    tenant_pod_that_istiod_gives_no_secret_stops_no_rename,
];

/// Number of GatewaySecrets; `TRUSTSPAN_TENANT_OBJECTS` sets another, such as 1000.
const OBJECTS: usize = 60;
/// Named clients of each.
const NAMES: usize = 20;
/// Objects in one request.
const AT_ONCE: usize = 50;
/// Questions about permissions during which requests are counted.
const QUESTIONS: usize = 100;
/// Rotations in each measurement, of which the fastest counts: others of this machine disturb any of them.
const ROTATIONS: usize = 3;
/// The most watches of a namespace: `src/agent/budget.rs`.
const WATCHES: usize = 384;
/// The highest memory of the agent, in KiB.
const MEMORY: u64 = 96 * 1024;
/// The most requests in a second.
const RATE: f64 = 20.0;

/// A GatewaySecret in phase Steady, and its agent, which reconciles a tenant's namespace, too.
fn steady<'c>(cluster: &'c Cluster, ns: &'c str, hostile: &str) -> Result<(Kept<'c>, Process)> {
    let mut kept = Kept::new(cluster, ns, "1s")?;
    kept.agents.more = vec!["--namespace".to_owned(), hostile.to_owned()];
    kept.write_root(&Authority::new("first")?)?;
    kept.agents.grant()?;
    let agent = kept.agents.start_with("a", &cluster.kubeconfig(User::Agent), "30s")?;
    kept.wait_phase("Steady")?;
    Ok((kept, agent))
}

fn tenant_objects_without_rights_open_no_watch_and_delay_no_rotation(cluster: &Cluster) -> Result<()> {
    let many = std::env::var("TRUSTSPAN_TENANT_OBJECTS").map_or(Ok(OBJECTS), |many| many.parse())?;
    let is_long = many > OBJECTS;
    let patience = SOON + Duration::from_millis(800) * u32::try_from(many)?;
    let test = |ns: &str, hostile: &str| {
        let (kept, agent) = steady(cluster, ns, hostile)?;
        let rotations = if is_long { ROTATIONS } else { 1 };
        let before = fastest_rotation(&kept, rotations)?;
        let (from, begun) = (cluster.requests(User::Agent)?.len(), Instant::now());
        for first in (0..many).step_by(AT_ONCE) {
            create(cluster, hostile, first..many.min(first + AT_ONCE))?;
        }
        let during = fastest_rotation(&kept, rotations)?;
        wait_for("each object to say which right is missing", patience, || {
            Ok(refused(&cluster.list("gatewaysecrets", hostile, "")?) == many)
        })?;
        let (reported, took) = (of_agent(cluster, from, &[ns, hostile])?, begun.elapsed());
        let (from, begun) = (cluster.requests(User::Agent)?.len(), Instant::now());
        wait_for("the agent to ask again", patience, || {
            Ok(questions(&cluster.requests(User::Agent)?[from..]) >= QUESTIONS)
        })?;
        let (asked, again) = (of_agent(cluster, from, &[ns, hostile])?, begun.elapsed());
        let after = fastest_rotation(&kept, rotations)?;
        let memory = Memory::of(agent.pid())?;
        println!(
            "{many} GatewaySecrets of a tenant, each with {NAMES} named clients; peak memory of the agent: {} KiB",
            memory.peak
        );
        println!("  until each was reported: {} requests in {took:.1?}: {}", reported.len(), summary(&reported));
        println!("  afterwards: {} requests in {again:.1?}: {}", asked.len(), summary(&asked));
        println!(
            "  a rotation in another namespace took {before:.1?} before, {during:.1?} meanwhile, {after:.1?} afterwards"
        );

        ensure!(memory.peak < MEMORY, "the agent has {} KiB", memory.peak);
        for (requests, took) in [(&reported, took), (&asked, again)] {
            let opened: Vec<_> = requests.iter().filter(|one| one.namespace == hostile && is_open(one)).collect();
            ensure!(opened.is_empty(), "expected neither a list nor a watch in {hostile}, saw {opened:?}");
            let rate = requests.len() as f64 / took.as_secs_f64();
            ensure!(rate < RATE, "{rate:.1} requests in a second: {}", summary(requests));
        }
        if is_long {
            let slowest = during.max(after);
            ensure!(slowest < before.mul_f64(1.5), "a rotation took {before:.1?}, and then {slowest:.1?}");
        }
        Ok(())
    };
    cluster.with_temp_ns(|ns| cluster.with_temp_ns(|hostile| test(ns, hostile)))
}

fn tenant_objects_with_rights_have_a_limited_number_of_watches(cluster: &Cluster) -> Result<()> {
    let many = std::env::var("TRUSTSPAN_TENANT_OBJECTS").map_or(Ok(OBJECTS), |many| many.parse())?;
    let test = |ns: &str, hostile: &str| {
        let (kept, agent) = steady(cluster, ns, hostile)?;
        let before = fastest_rotation(&kept, 1)?;
        let from = cluster.requests(User::Agent)?.len();
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "all" },
            "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }],
        });
        cluster.apply(hostile, &role.to_string())?;
        let user = format!("--user={}", User::Agent.name());
        cluster.kubectl(["create", "rolebinding", "all", "--role=all", &user]).ns(hostile).ok()?;
        for first in (0..many).step_by(AT_ONCE) {
            create(cluster, hostile, first..many.min(first + AT_ONCE))?;
        }
        let begun = Instant::now();
        wait_for("as many watches as the budget allows", SOON, || {
            Ok(watches(cluster, from, hostile)? > WATCHES - 2 * NAMES)
        })?;
        let during = fastest_rotation(&kept, 1)?;
        // Each was reconciled once, or the burst is spent.
        wait_for("requests without watches", SOON, || {
            Ok(of_agent(cluster, from, &[hostile])?.len() > 3 * WATCHES.min(many * NAMES))
        })?;
        let (opened, requests) = (watches(cluster, from, hostile)?, of_agent(cluster, from, &[hostile])?);
        let peak = Memory::of(agent.pid())?.peak;
        println!("{many} GatewaySecrets of a tenant that the agent may reconcile: {opened} watches, {peak} KiB");
        println!("  {} requests in {:.1?}: {}", requests.len(), begun.elapsed(), summary(&requests));
        println!("  a rotation in another namespace took {before:.1?} before, {during:.1?} meanwhile");
        ensure!(opened <= WATCHES, "{opened} watches");
        ensure!(peak < MEMORY, "the agent has {peak} KiB");
        Ok(())
    };
    cluster.with_temp_ns(|ns| cluster.with_temp_ns(|hostile| test(ns, hostile)))
}

/// The number of different watches that began in a namespace.
fn watches(cluster: &Cluster, from: usize, namespace: &str) -> Result<usize> {
    let requests = of_agent(cluster, from, &[namespace])?.into_iter();
    let watches = requests.filter(|one| one.namespace == namespace && one.verb == "watch");
    // Watches of a kind in the namespace have no name.
    let (named, of_kinds): (Vec<_>, Vec<_>) = watches.partition(|one| !one.name.is_empty());
    let named: BTreeSet<_> = named.into_iter().map(|one| (one.resource, one.name)).collect();
    Ok(named.len() + of_kinds.len())
}

fn create(cluster: &Cluster, namespace: &str, numbers: std::ops::Range<usize>) -> Result<()> {
    let object = |number: usize| {
        let clients: Vec<_> = (0..NAMES).map(|client| format!("client-{client}-of-{number}")).collect();
        json!({
            "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": { "name": format!("tenant-{number}") },
            "spec": {
                "sourceSecretName": format!("root-{number}"), "secretName": format!("managed-{number}"),
                // Other labels each: the pods of each would be a list of all namespaces.
                "workloadLabels": { "istio": format!("tenant-{number}") }, "clients": { "secretNames": clients },
            },
        })
    };
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": numbers.map(object).collect::<Vec<_>>() });
    cluster.kubectl(["create", "-f", "-"]).ns(namespace).stdin(list.to_string()).ok().map(drop)
}

/// The number of objects whose status says that a right is missing.
fn refused(objects: &[Value]) -> usize {
    let is_refused = |object: &&Value| {
        let conditions = object["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|one| one["type"] == "Synced" && one["reason"] == "Forbidden")
    };
    objects.iter().filter(is_refused).count()
}

/// The agent's requests in these namespaces, or in none.
fn of_agent(cluster: &Cluster, from: usize, namespaces: &[&str]) -> Result<Vec<Request>> {
    let mut requests = cluster.requests(User::Agent)?.split_off(from);
    requests.retain(|one| one.namespace.is_empty() || namespaces.contains(&&*one.namespace));
    Ok(requests)
}

fn questions(requests: &[Request]) -> usize {
    requests.iter().filter(|one| one.resource == "selfsubjectaccessreviews").count()
}

fn is_open(request: &Request) -> bool {
    matches!(&*request.verb, "list" | "watch")
}

/// The shortest time from a new CA in the source Secret until the managed Secret has no other.
fn fastest_rotation(kept: &Kept<'_>, rotations: usize) -> Result<Duration> {
    let mut fastest = Duration::MAX;
    for _ in 0..rotations {
        let new = Authority::new("next")?;
        kept.write_root(&new)?;
        let begun = Instant::now();
        kept.wait_bundle(&[&new])?;
        fastest = fastest.min(begun.elapsed());
        kept.wait_phase("Steady")?;
    }
    Ok(fastest)
}

fn tenant_trust_consumers_without_rights_open_no_watch(cluster: &Cluster) -> Result<()> {
    let test = |ns: &str, hostile: &str| {
        let loads: Vec<_> = (0..16)
            .map(|number| json!({ "kind": "Secret", "name": format!("load-{number}"), "keys": ["ca.crt"] }))
            .collect();
        let object = |number: usize| {
            let mut object = consumer(&loads);
            object["metadata"]["name"] = format!("tenant-{number}").into();
            object["spec"]["workloads"][0]["name"] = format!("app-{number}").into();
            object
        };
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": (0..OBJECTS).map(object).collect::<Vec<_>>() });
        cluster.kubectl(["create", "-f", "-"]).ns(hostile).stdin(list.to_string()).ok()?;
        let mut agents = Agents::new(cluster, ns)?;
        agents.more = vec!["--namespace".to_owned(), hostile.to_owned()];
        let from = cluster.requests(User::Agent)?.len();
        let _agent = agents.start("a")?;
        let asked = || -> Result<Vec<Request>> {
            let mut requests = cluster.requests(User::Agent)?.split_off(from);
            requests.retain(|one| one.namespace == hostile);
            Ok(requests)
        };
        let of = |requests: &[Request], resource: &str| requests.iter().filter(|one| one.resource == resource).count();
        wait_for("each to be reported and asked for again", SOON, || {
            let stored = cluster.list("trustconsumers", hostile, "")?;
            let is_reported = |object: &Value| object["status"]["conditions"].to_string().contains("Forbidden");
            Ok(stored.iter().all(is_reported) && of(&asked()?, "secrets") > 2 * OBJECTS)
        })?;
        let requests = asked()?;
        let opened: Vec<_> = requests.iter().filter(|one| is_open(one)).collect();
        ensure!(opened.is_empty(), "expected neither a list nor a watch in {hostile}, saw {opened:?}");
        ensure!(of(&requests, "deployments") == 0, "a workload was read in vain: {}", summary(&requests));
        let others = requests.iter().filter(|one| one.resource == "secrets" && one.name != "load-0").count();
        ensure!(others == 0, "further Secrets were read after a refusal: {}", summary(&requests));
        Ok(())
    };
    cluster.with_temp_ns(|ns| cluster.with_temp_ns(|hostile| test(ns, hostile)))
}

fn tenant_watches_begin_after_the_reads_and_cause_another(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let kept = Kept::new(cluster, ns, "1s")?;
        kept.write_root(&Authority::new("root")?)?;
        kept.agents.grant()?;
        {
            let _first = kept.agents.start("first")?;
            kept.wait_phase("Steady")?;
        }
        let from = cluster.requests(User::Agent)?.len();
        // The resync interval is longer than this test, and nothing changes.
        let _second = kept.agents.start_with("second", &cluster.kubeconfig(User::Agent), "1h")?;
        wait_for("a watch between two reads of the source Secret", SOON, || {
            let mut requests = cluster.requests(User::Agent)?.split_off(from);
            requests.retain(|one| one.namespace == ns && one.resource == "secrets" && one.name == "root");
            let verbs: Vec<_> = requests.iter().map(|one| one.verb.as_str()).collect();
            let opened = verbs.iter().position(|verb| *verb != "get");
            ensure!(opened != Some(0), "a watch began before the first read: {verbs:?}");
            Ok(opened.is_some_and(|opened| verbs[opened..].contains(&"get")))
        })
    })
}

fn tenant_pod_that_istiod_gives_no_secret_stops_no_rename(cluster: &Cluster) -> Result<()> {
    let test = |ns: &str, tenant: &str| {
        let kept = Kept::new(cluster, ns, "1s")?;
        kept.set("workloadLabels", &json!({ "istio": ns }))?;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "gateway", "labels": { "istio": ns } },
            "spec": { "containers": [{ "name": "proxy", "image": "proxy" }] },
        });
        cluster.apply(ns, &pod.to_string())?;
        cluster.kubectl(["create", "-f", "-"]).ns(tenant).user(User::Dev).stdin(pod.to_string()).ok()?;
        let (_server, _registration) = kept.judged()?;
        kept.write_root(&Authority::new("root")?)?;
        kept.agents.grant()?;
        let agent = kept.agents.start("a")?;
        let workloads_in = |namespaces: &[&str]| {
            let mut expected = namespaces.to_vec();
            expected.sort_unstable();
            wait_for(&format!("workloads in {expected:?}"), SOON, || {
                Ok(kept.status()?["workloadNamespaces"] == json!(expected))
            })
        };
        workloads_in(&[ns])?;
        kept.wait_phase("Steady")?;
        let names = |gateway: &str| -> Result<Value> {
            cluster.apply(ns, &istio(gateway, "root", ns).to_string())?;
            let mut stored = cluster.get("gateways.networking.istio.io", ns, gateway)?;
            Ok(stored["spec"]["servers"][0]["tls"]["credentialName"].take())
        };
        let is_renamed =
            |gateway: &str| {
                wait_for(&format!("Gateway {gateway} to name the managed Secret"), SOON, || {
                    Ok(names(gateway)? == "managed")
                })
            };
        is_renamed("one")?;
        ensure!(agent.log().contains("are not taken for gateways"), "the pod is not mentioned: {}", agent.log());

        // With this right, istiod gives the pod its own Secret, and a rename would take it away.
        let role = ["create", "role", "reader", "--verb=list", "--resource=secrets"];
        cluster.kubectl(role).ns(tenant).ok()?;
        let account = format!("--serviceaccount={tenant}:default");
        cluster.kubectl(["create", "rolebinding", "reader", "--role=reader", &account]).ns(tenant).ok()?;
        workloads_in(&[ns, tenant])?;
        wait_for("a Gateway that is not renamed", SOON, || {
            cluster.kubectl(["delete", "gateways.networking.istio.io", "two", "--ignore-not-found"]).ns(ns).ok()?;
            Ok(names("two")? == "root")
        })?;

        // The status forgets a namespace whose pods are not served any more.
        cluster.kubectl(["delete", "rolebinding", "reader"]).ns(tenant).ok()?;
        workloads_in(&[ns])?;
        is_renamed("two")
    };
    cluster.with_temp_ns(|ns| cluster.with_temp_ns(|tenant| test(ns, tenant)))
}
