//! Restarts of many Deployments in several namespaces, and of one whose content changes often, counted by the
//! ReplicaSets of the real Deployment controller. There is no node: the test acts as the kubelet and reports that pods
//! are ready.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::stage::deployment;
use crate::testbed::{Agents, Authority, Cluster, SOON, wait_for};

cases![trust_consumer_limits_rollouts_over_all_namespaces, trust_consumer_takes_rapid_changes_together];

/// Number of Deployments; `TRUSTSPAN_CONSUMER_DEPLOYMENTS` sets another number.
const DEPLOYMENTS: usize = 20;
/// The most Deployments of one namespace.
const PER_NAMESPACE: usize = 50;
/// The number of workloads of one TrustConsumer.
const PER_CONSUMER: usize = 10;
/// The value of `--max-concurrent-restarts`.
const AT_ONCE: usize = 3;

/// A Deployment, by namespace and name.
type Key = (String, String);

fn write_ca(cluster: &Cluster, ns: &str, name: &str) -> Result<()> {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "ca" },
        "stringData": { "ca.crt": Authority::new(name)?.pem() },
    });
    cluster.apply(ns, &secret.to_string()).map(drop)
}

fn consumer(name: &str, deployments: &[String]) -> Value {
    let workloads: Vec<_> = deployments.iter().map(|name| json!({ "kind": "Deployment", "name": name })).collect();
    json!({
        "apiVersion": "trustspan.dev/v1alpha1", "kind": "TrustConsumer", "metadata": { "name": name },
        "spec": { "workloads": workloads, "loads": [{ "kind": "Secret", "name": "ca", "keys": ["ca.crt"] }] },
    })
}

/// The ReplicaSets of each Deployment.
fn replica_sets(cluster: &Cluster, namespaces: &[String]) -> Result<BTreeMap<Key, Vec<Value>>> {
    let mut sets = BTreeMap::<Key, Vec<Value>>::new();
    for ns in namespaces {
        for set in cluster.list("replicasets", ns, "")? {
            let owner = set["metadata"]["ownerReferences"][0]["name"].as_str().context("an owner")?;
            sets.entry((ns.clone(), owner.to_owned())).or_default().push(set);
        }
    }
    Ok(sets)
}

/// Whether exactly one ReplicaSet has a pod, and that pod is available.
fn is_complete(sets: &[Value]) -> bool {
    let mut used = sets.iter().filter(|set| set["spec"]["replicas"] != 0 || set["status"]["replicas"] != 0);
    used.next().is_some_and(|set| set["status"]["availableReplicas"] == 1) && used.next().is_none()
}

/// Acts as the kubelet: reports that the pods of these Deployments are ready.
fn bring_up(cluster: &Cluster, deployments: &BTreeSet<Key>) -> Result<()> {
    let now = jiff::Timestamp::now().to_string();
    let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": now });
    let up = json!({ "status": { "phase": "Running", "conditions": [ready] } }).to_string();
    for ns in deployments.iter().map(|(ns, _)| ns).collect::<BTreeSet<_>>() {
        let is_wanted = |pod: &&Value| {
            let app = pod["metadata"]["labels"]["app"].as_str().unwrap_or_default();
            pod["status"]["phase"] != "Running" && deployments.contains(&(ns.clone(), app.to_owned()))
        };
        let pods = cluster.list("pods", ns, "")?;
        let names: Vec<_> = pods.iter().filter(is_wanted).filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
        if names.is_empty() {
            continue;
        }
        let mut args = vec!["patch", "pod"];
        args.extend(names);
        args.extend(["--subresource=status", "--type=merge", "--patch", &up]);
        // The pod may be deleted already.
        cluster.kubectl(args).ns(ns).run()?;
    }
    Ok(())
}

fn with_namespaces(
    cluster: &Cluster,
    count: usize,
    namespaces: &mut Vec<String>,
    test: &dyn Fn(&[String]) -> Result<()>,
) -> Result<()> {
    if namespaces.len() == count {
        return test(namespaces);
    }
    cluster.with_temp_ns(|ns| {
        namespaces.push(ns.to_owned());
        with_namespaces(cluster, count, namespaces, test)
    })
}

fn trust_consumer_limits_rollouts_over_all_namespaces(cluster: &Cluster) -> Result<()> {
    let all = std::env::var("TRUSTSPAN_CONSUMER_DEPLOYMENTS").map_or(Ok(DEPLOYMENTS), |number| number.parse())?;
    let count = all.div_ceil(PER_NAMESPACE).max(2);
    with_namespaces(cluster, count, &mut Vec::new(), &|namespaces| limits_rollouts(cluster, namespaces, all))
}

fn limits_rollouts(cluster: &Cluster, namespaces: &[String], all: usize) -> Result<()> {
    let mut wanted = BTreeSet::new();
    for (at, ns) in namespaces.iter().enumerate() {
        let names: Vec<_> = (at..all).step_by(namespaces.len()).map(|number| format!("app-{number:03}")).collect();
        write_ca(cluster, ns, "ca 1")?;
        let deployments = names.iter().map(|name| deployment(name, "ca", &[]));
        let consumers = names.chunks(PER_CONSUMER).enumerate().map(|(at, some)| consumer(&format!("group-{at}"), some));
        let items: Vec<_> = deployments.chain(consumers).collect();
        cluster.apply(ns, &json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string())?;
        wanted.extend(names.into_iter().map(|name| (ns.clone(), name)));
    }
    let complete = || -> Result<usize> {
        Ok(replica_sets(cluster, namespaces)?.values().filter(|sets| is_complete(sets)).count())
    };
    wait_for("all pods", SOON, || {
        bring_up(cluster, &wanted)?;
        Ok(complete()? == all)
    })?;

    let mut agents = namespaces.iter().map(|ns| Agents::new(cluster, ns)).collect::<Result<Vec<_>>>()?;
    agents.iter().try_for_each(Agents::grant)?;
    let agents = &mut agents[0];
    agents.more = namespaces[1..].iter().map(|ns| format!("--namespace={ns}")).collect();
    agents.more.push(format!("--max-concurrent-restarts={AT_ONCE}"));
    let _agent = agents.start("fleet")?;
    let loaded = || -> Result<bool> {
        for ns in namespaces {
            for object in cluster.list("trustconsumers", ns, "")? {
                let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
                let mut said = conditions.filter(|one| one["type"] == "Loaded");
                if said.next().is_none_or(|one| one["status"] != "True") {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    };
    wait_for("the first content to be recorded", SOON, loaded)?;
    ensure!(complete()? == all, "restarted on creation");

    for ns in namespaces {
        write_ca(cluster, ns, "ca 2")?;
    }
    // A rollout completes only after the test has made its pods ready, which it does only for rollouts that it has
    // counted. So it counts all of them.
    let mut restarted = BTreeSet::new();
    while restarted.len() < all {
        let mut rolling = BTreeSet::new();
        // The first ones wait for each other, so that all that may roll at a time do.
        let expected = if restarted.is_empty() { AT_ONCE.min(all) } else { 1 };
        let what = format!("{expected} rollouts after {} of {all}", restarted.len());
        wait_for(&what, SOON, || {
            let sets = replica_sets(cluster, namespaces)?.into_iter();
            rolling = sets.filter(|(_, sets)| !is_complete(sets)).map(|(key, _)| key).collect();
            Ok(rolling.len() >= expected)
        })?;
        ensure!(rolling.len() <= AT_ONCE, "{} rollouts at a time: {rolling:?}", rolling.len());
        bring_up(cluster, &rolling)?;
        restarted.extend(rolling);
    }
    wait_for("all workloads to have loaded the content", SOON, || {
        bring_up(cluster, &wanted)?;
        loaded()
    })?;
    let sets = replica_sets(cluster, namespaces)?;
    let total: usize = sets.values().map(Vec::len).sum();
    println!(
        "{all} Deployments in {} namespaces, {total} ReplicaSets, at most {AT_ONCE} rollouts at a time",
        namespaces.len()
    );
    ensure!(sets.values().all(|sets| sets.len() == 2), "expected two ReplicaSets of each Deployment, saw {total}");
    Ok(())
}

fn trust_consumer_takes_rapid_changes_together(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let namespaces = [ns.to_owned()];
        let app = BTreeSet::from([(ns.to_owned(), "app".to_owned())]);
        let agents = Agents::new(cluster, ns)?;
        let count = || -> Result<usize> { Ok(cluster.list("replicasets", ns, "")?.len()) };
        let come_up = || {
            wait_for("the rollout to be complete", SOON, || {
                bring_up(cluster, &app)?;
                Ok(replica_sets(cluster, &namespaces)?.values().all(|sets| is_complete(sets)))
            })
        };
        let wait_loaded = |reason: &str| {
            wait_for(&format!("condition Loaded to say {reason}"), SOON, || {
                let stored = cluster.get("trustconsumer", ns, "limits")?;
                let mut conditions = stored["status"]["conditions"].as_array().into_iter().flatten();
                Ok(conditions.any(|one| one["type"] == "Loaded" && one["reason"] == reason))
            })
        };
        write_ca(cluster, ns, "ca 0")?;
        cluster.apply(ns, &deployment("app", "ca", &[]).to_string())?;
        let mut limits = consumer("limits", &["app".to_owned()]);
        limits["spec"]["minRestartInterval"] = json!("1h");
        cluster.apply(ns, &limits.to_string())?;
        agents.grant()?;
        wait_for("the Deployment's controller", SOON, || Ok(count()? == 1))?;
        come_up()?;
        let _agent = agents.start("a")?;
        wait_loaded("Loaded")?;

        write_ca(cluster, ns, "ca 1")?;
        wait_for("the first restart", SOON, || Ok(count()? == 2))?;
        come_up()?;
        for change in 2..=4 {
            write_ca(cluster, ns, &format!("ca {change}"))?;
        }
        wait_loaded("Waiting")?;
        ensure!(count()? == 2, "restarted within the interval");
        // A shorter interval stands in for an hour that has passed.
        let patch = json!({ "spec": { "minRestartInterval": "1s" } }).to_string();
        cluster.kubectl(["patch", "trustconsumer", "limits", "--type=merge", "--patch", &patch]).ns(ns).ok()?;
        wait_for("the second restart", SOON, || Ok(count()? > 2))?;
        come_up()?;
        wait_loaded("Loaded")?;
        ensure!(count()? == 3, "expected 3 ReplicaSets after 4 changes, saw {}", count()?);
        Ok(())
    })
}
