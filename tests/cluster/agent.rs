//! The agent on the real API server, with exactly the rights that `trustspan rbac` prints.

use std::process::Command;

use anyhow::{Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::stage::expect;
use crate::testbed::{Agents, Authority, Cluster, Kept, Process, SOON, User, wait_for};

cases![
    a_new_ca_is_added_to_the_old_at_once,
    a_lost_managed_secret_is_rebuilt,
    a_foreign_secret_is_left_alone,
    a_missing_permission_is_reported_with_the_fix,
    of_two_agents_one_leads,
    the_clients_bundle_is_distributed,
    a_cluster_trust_bundle_holds_both_cas_before_the_leaf_changes,
    another_ones_cluster_trust_bundle_is_left_alone,
    a_cluster_trust_bundle_gets_only_cas_of_the_signers,
    a_gateway_that_the_webhook_missed_is_rewritten,
    a_client_that_does_not_follow_is_reported_once,
    what_is_kept_is_refused_to_others,
    what_init_proposes_is_kept,
    change_windows_that_cannot_be_are_refused,
    another_name_of_the_managed_secret_is_refused,
];

pub(crate) fn kept(cluster: &Cluster, test: impl FnOnce(&Kept<'_>) -> Result<()>) -> Result<()> {
    cluster.with_temp_ns(|ns| test(&Kept::new(cluster, ns, "1s")?))
}

fn a_new_ca_is_added_to_the_old_at_once(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (old, new) = (Authority::new("root 1")?, Authority::new("root 2")?);
        kept.write_root(&old)?;
        kept.agents.grant()?;
        let agent = kept.agents.start("a")?;
        kept.wait_bundle(&[&old])?;
        kept.wait_phase("Steady")?;
        kept.rotate_and_hold(&new, &old)?;
        kept.set_gateway_delay("1s")?;
        kept.wait_bundle(&[&new])?;
        kept.wait_phase("Steady")?;
        a_rotation_was_reported(kept, &agent)?;
        let managed = cluster.get("secret", kept.ns, "managed")?;
        let root = cluster.get("secret", kept.ns, "root")?;
        expect("the served chain", &managed["data"]["tls.crt"], root["data"]["tls.crt"].clone())
    })
}

fn a_rotation_was_reported(kept: &Kept<'_>, agent: &Process) -> Result<()> {
    kept.wait_event("Normal", "ManagedSecretWritten", "2 CAs, new: CN=root 2")?;
    kept.wait_event("Normal", "ServingCertificateSwitched", "Secret root")?;
    kept.wait_event("Normal", "OldCADropped", "CN=root 1")?;
    kept.wait_event("Normal", "PhaseChanged", "Steady, was ")?;
    let shown = kept.cluster.kubectl(["describe", "gatewaysecret", "gateway"]).ns(kept.ns).ok()?;
    ensure!(shown.contains("OldCADropped"), "kubectl describe shows no Event:\n{shown}");
    kept.wait_metric(agent, "gatewaysecret_phase", ",phase=\"Steady\"", |value| value == 1.0)?;
    kept.wait_metric(agent, "gatewaysecret_condition", ",type=\"Ready\"", |value| value == 1.0)?;
    kept.wait_metric(agent, "agent_writes_total", ",what=\"managed_secret\"", |writes| writes >= 3.0)?;
    for kind in ["leaf", "client_ca", "server_ca"] {
        let labels = format!(",kind=\"{kind}\"");
        kept.wait_metric(agent, "gatewaysecret_not_after_timestamp_seconds", &labels, |end| end > 0.0)?;
    }
    let metrics = Agents::metrics(agent)?;
    ensure!(metrics.contains("\ntrustspan_agent_leading 1\n"), "{metrics}");
    ensure!(metrics.contains("\ntrustspan_agent_events_lost_total 0\n"), "{metrics}");

    // The same certificates in another PEM layout cause no write and no Event.
    let version = || anyhow::Ok(kept.cluster.get("secret", kept.ns, "managed")?["metadata"]["resourceVersion"].take());
    let (before, reported) = (version()?, kept.events("ManagedSecretWritten")?);
    let root = kept.cluster.get("secret", kept.ns, "root")?;
    let bundle = String::from_utf8(STANDARD.decode(root["data"]["ca.crt"].as_str().unwrap_or_default())?)?;
    let patch = json!({ "stringData": { "ca.crt": format!("# the same\n{bundle}{bundle}") } }).to_string();
    kept.cluster.kubectl(["patch", "secret", "root", "--type=merge", "--patch", &patch]).ns(kept.ns).ok()?;
    let written = jiff::Timestamp::now().as_second() as f64;
    kept.wait_metric(agent, "agent_last_reconcile_timestamp_seconds", "", |at| at > written)?;
    expect("the managed Secret's version", &version()?, before)?;
    ensure!(kept.events("ManagedSecretWritten")? == reported, "an Event reports a change that is none");
    ensure!(kept.events("SourceUnusable")?.is_empty(), "comments and duplicates are no trouble");
    Ok(())
}

fn a_lost_managed_secret_is_rebuilt(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (old, new) = (Authority::new("root 1")?, Authority::new("root 2")?);
        kept.set_client_delay("1h")?;
        kept.write_root(&old)?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        kept.wait_bundle(&[&old])?;
        kept.write_root(&new)?;
        kept.wait_bundle(&[&new, &old])?;
        for _ in 0..2 {
            cluster.kubectl(["delete", "secret", "managed"]).ns(kept.ns).ok()?;
            kept.wait_bundle(&[&new, &old])?;
        }
        let tampered = json!({ "stringData": { "ca.crt": new.pem() } }).to_string();
        cluster.kubectl(["patch", "secret", "managed", "--type=merge", "--patch", &tampered]).ns(kept.ns).ok()?;
        kept.wait_bundle(&[&new, &old])?;
        // The managed Secret stays as it is, even without its source Secret.
        cluster.kubectl(["delete", "secret", "root"]).ns(kept.ns).ok()?;
        kept.wait_event("Warning", "SourceUnusable", "Secret root does not exist")?;
        kept.wait_bundle(&[&new, &old])?;
        kept.write_root(&new)?;
        kept.wait_event("Normal", "SourceUsable", "can be used")
    })
}

fn a_foreign_secret_is_left_alone(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (own, root) = (Authority::new("somebody's")?, Authority::new("root")?);
        let foreign = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "managed" }, "stringData": { "ca.crt": own.pem() },
        });
        cluster.apply(kept.ns, &foreign.to_string())?;
        kept.write_root(&root)?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        kept.wait_condition("Synced", "ForeignObject", &["trustspan.dev/adopt"])?;
        ensure!(kept.bundle()?.as_deref() == Some(own.pem().as_str()), "the Secret was changed");
        cluster.kubectl(["annotate", "secret", "managed", "trustspan.dev/adopt=true"]).ns(kept.ns).ok()?;
        kept.wait_condition("Synced", "Synced", &[])
    })
}

fn a_missing_permission_is_reported_with_the_fix(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        kept.write_root(&Authority::new("root")?)?;
        let agent = kept.agents.start_with("a", &cluster.kubeconfig(User::Agent), "1h")?;
        kept.wait_condition("Synced", "Forbidden", &["secrets", "trustspan rbac"])?;
        kept.wait_metric(&agent, "agent_failures_total", ",reason=\"Forbidden\"", |failures| failures >= 1.0)?;
        // Within seconds, although the resync interval is an hour.
        kept.agents.grant()?;
        kept.wait_condition("Synced", "Synced", &[])?;
        ensure!(Agents::metrics(&agent)?.contains("\ntrustspan_agent_events_lost_total 0\n"), "an Event was lost");
        let log = agent.log();
        ensure!(log.contains("waiting for permissions") && !log.contains("ERROR"), "{log}");
        Ok(())
    })
}

fn of_two_agents_one_leads(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (one, two) = (Authority::new("root 1")?, Authority::new("root 2")?);
        kept.write_root(&one)?;
        kept.agents.grant()?;
        let holder = || anyhow::Ok(cluster.get("lease", kept.ns, "trustspan-agent")?["spec"]["holderIdentity"].take());
        let first = kept.agents.start("first")?;
        kept.wait_bundle(&[&one])?;
        let mut second = kept.agents.start("second")?;
        ensure!(holder()? == "first");
        // The agent is killed, so another one leads only after the Lease has expired.
        drop(first);
        kept.rotate_and_hold(&two, &one)?;
        ensure!(holder()? == "second");
        // The agent is stopped with SIGTERM, and releases the Lease.
        ensure!(second.stop(SOON)? == 0, "{}", second.log());
        expect("the holder", &holder()?, Value::Null)
    })
}

fn the_clients_bundle_is_distributed(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (old, new) = (Authority::new("root 1")?, Authority::new("root 2")?);
        let places = json!([{ "kind": "ConfigMap", "name": "trust" }, { "kind": "Secret", "name": "trust", "key": "roots.pem" }]);
        kept.set("trustBundleTargets", &places)?;
        kept.write_root(&old)?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        let holds = |authorities: &[&Authority]| -> Result<bool> {
            let wanted: String = authorities.iter().map(|authority| authority.pem().replace("\r\n", "\n")).collect();
            let read = |kind: &str| cluster.get(kind, kept.ns, "trust");
            let (Ok(config_map), Ok(secret)) = (read("configmap"), read("secret")) else { return Ok(false) };
            let encoded = STANDARD.encode(&wanted);
            Ok(config_map["data"]["ca.crt"] == wanted.as_str() && secret["data"]["roots.pem"] == encoded.as_str())
        };
        wait_for("the first CA in both places", SOON, || holds(&[&old]))?;
        kept.set("paused", &json!(true))?;
        kept.write_root(&new)?;
        // A pause delays the switch of the serving certificate, and the removal of the old CA, but not the distribution
        // of the new CA.
        wait_for("both CAs in both places", SOON, || holds(&[&new, &old]))
    })
}

fn a_cluster_trust_bundle_holds_both_cas_before_the_leaf_changes(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (old, new) = (Authority::new("root 1")?, Authority::new("root 2")?);
        let name = format!("{}-roots", kept.ns);
        kept.set("trustBundleTargets", &json!([{ "kind": "ClusterTrustBundle", "name": name }]))?;
        kept.write_root(&old)?;
        kept.agents.grant_with(&[format!("--allow-cluster-trust-bundle={name}")])?;
        let _agent = kept.agents.start("a")?;
        let holds = |authorities: &[&Authority]| -> Result<bool> {
            let wanted: String = authorities.iter().map(|authority| authority.pem().replace("\r\n", "\n")).collect();
            let Ok(bundle) = cluster.get("clustertrustbundle", kept.ns, &name) else { return Ok(false) };
            Ok(bundle["spec"]["trustBundle"] == wanted.as_str())
        };
        wait_for("the first CA", SOON, || holds(&[&old]))?;
        kept.set("paused", &json!(true))?;
        kept.write_root(&new)?;
        // A pause delays the switch of the serving certificate, and the removal of the old CA, but not the distribution
        // of the new CA.
        wait_for("both CAs", SOON, || holds(&[&new, &old]))?;
        // The agent reverts what another user writes.
        let tampered = json!({ "spec": { "trustBundle": old.pem() } }).to_string();
        cluster.kubectl(["patch", "clustertrustbundle", &name, "--type=merge", "-p", &tampered]).ok()?;
        wait_for("both CAs again", SOON, || holds(&[&new, &old]))
    })
}

fn a_cluster_trust_bundle_gets_only_cas_of_the_signers(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let mut kept = Kept::new(cluster, ns, "1s")?;
        let (old, new) = (Authority::new("root 1")?, Authority::new("root 2")?);
        let name = format!("{ns}-roots");
        let targets =
            [json!({ "kind": "ClusterTrustBundle", "name": name }), json!({ "kind": "ConfigMap", "name": "trust" })];
        kept.set("trustBundleTargets", &json!(targets))?;
        kept.write_root(&old)?;
        kept.agents.grant_with(&[format!("--allow-cluster-trust-bundle={name}")])?;
        let signers = cluster.temp_dir("signers")?.join("ca.crt");
        std::fs::write(&signers, old.pem())?;
        kept.agents.more.push(format!("--signers={}", signers.display()));
        let _agent = kept.agents.start("a")?;
        let read = |authorities: &[&Authority]| -> Result<(bool, bool)> {
            let wanted: String = authorities.iter().map(|authority| authority.pem().replace("\r\n", "\n")).collect();
            let bundle = cluster.get("clustertrustbundle", ns, &name).unwrap_or_default();
            let config_map = cluster.get("configmap", ns, "trust").unwrap_or_default();
            Ok((bundle["spec"]["trustBundle"] == wanted.as_str(), config_map["data"]["ca.crt"] == wanted.as_str()))
        };
        wait_for("the first CA in both targets", SOON, || Ok(read(&[&old])? == (true, true)))?;
        kept.write_root(&new)?;
        kept.wait_condition("Synced", "NotGranted", &[&name, "CN=root 2"])?;
        ensure!(read(&[&new, &old])? == (false, true), "expected both CAs in the namespace only");
        ensure!(read(&[&old])?.0, "the ClusterTrustBundle has changed");
        let served = cluster.get("secret", ns, "managed")?["data"]["tls.crt"].clone();
        std::fs::write(&signers, old.pem() + &new.pem())?;
        wait_for("both CAs in the ClusterTrustBundle", SOON, || Ok(read(&[&new, &old])?.0))?;
        wait_for("the new serving certificate", SOON, || {
            Ok(cluster.get("secret", ns, "managed")?["data"]["tls.crt"] != served)
        })
    })
}

fn another_ones_cluster_trust_bundle_is_left_alone(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (old, others) = (Authority::new("root 1")?, Authority::new("another's")?);
        let name = format!("{}-roots", kept.ns);
        let bundle = json!({
            "apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle", "metadata": { "name": name },
            "spec": { "trustBundle": others.pem() },
        });
        cluster.kubectl(["create", "-f", "-"]).stdin(bundle.to_string()).ok()?;
        kept.set("trustBundleTargets", &json!([{ "kind": "ClusterTrustBundle", "name": name }]))?;
        kept.write_root(&old)?;
        kept.agents.grant_with(&[format!("--allow-cluster-trust-bundle={name}")])?;
        let _agent = kept.agents.start("a")?;
        kept.wait_condition("Synced", "ForeignObject", &["ClusterTrustBundle", "trustspan.dev/adopt"])?;
        let stored = cluster.get("clustertrustbundle", kept.ns, &name)?;
        expect("trustBundle", &stored["spec"]["trustBundle"], others.pem().as_str())
    })
}

fn a_gateway_that_the_webhook_missed_is_rewritten(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        kept.set("workloadLabels", &json!({ "istio": kept.ns }))?;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "gateway", "labels": { "istio": kept.ns } },
            "spec": { "containers": [{ "name": "proxy", "image": "proxy" }] },
        });
        cluster.apply(kept.ns, &pod.to_string())?;
        let server = json!({
            "port": { "number": 443, "name": "https", "protocol": "HTTPS" }, "hosts": ["shop.example.com"],
            "tls": { "mode": "MUTUAL", "credentialName": "root" },
        });
        let gateway = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": { "name": "public" },
            "spec": { "selector": { "istio": kept.ns }, "servers": [server] },
        });
        cluster.apply(kept.ns, &gateway.to_string())?;
        let (_server, _registration) = kept.judged()?;
        kept.write_root(&Authority::new("root")?)?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        wait_for("the Gateway to name the managed Secret", SOON, || {
            let gateway = cluster.get("gateways.networking.istio.io", kept.ns, "public")?;
            Ok(gateway["spec"]["servers"][0]["tls"]["credentialName"] == "managed")
        })?;
        // Another apply of the same manifest changes nothing and has no conflict.
        let again = cluster.kubectl(["apply", "-f", "-"]).ns(kept.ns).stdin(gateway.to_string()).ok()?;
        ensure!(again.contains("configured") || again.contains("unchanged"), "saw {again}");
        let stored = cluster.get("gateways.networking.istio.io", kept.ns, "public")?;
        expect("credentialName", &stored["spec"]["servers"][0]["tls"]["credentialName"], "managed")
    })
}

fn a_client_that_does_not_follow_is_reported_once(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (old, new) = (Authority::new("root 1")?, Authority::new("root 2")?);
        let (_server, _registration) = kept.judged()?;
        kept.write_client("shop", &old)?;
        kept.set("clients", &json!({ "allDeclared": true, "secretNames": ["shop"] }))?;
        kept.write_root(&old)?;
        kept.agents.grant()?;
        let agent = kept.agents.start("a")?;
        kept.wait_bundle(&[&old])?;
        kept.wait_phase("Steady")?;
        kept.write_root(&new)?;
        kept.wait_bundle(&[&new, &old])?;
        kept.wait_phase("Converged")?;
        // Gateways keep the old serving certificate, since the client trusts only the old CA. The condition and one
        // Event name the client.
        kept.wait_condition("ClientsCurrent", "Lagging", &["shop"])?;
        kept.wait_event("Warning", "ClientLagging", "client shop ")?;
        kept.wait_metric(&agent, "gatewaysecret_lagging_clients", "", |clients| clients == 1.0)?;
        let label = ",client=\"shop\"";
        kept.wait_metric(&agent, "gatewaysecret_client_lagging_since_timestamp_seconds", label, |since| since > 0.0)?;
        let reported = kept.events("ClientLagging")?;
        ensure!(reported.len() == 1 && reported[0]["related"]["name"] == "shop", "saw {reported:?}");
        Ok(())
    })
}

fn what_is_kept_is_refused_to_others(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (_server, _registration) = kept.judged()?;
        let root = Authority::new("root")?;
        kept.write_root(&root)?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        kept.wait_bundle(&[&root])?;
        kept.wait_phase("Steady")?;
        let patch = json!({ "data": { "note": "eA==" } }).to_string();
        for (kind, name) in [("secret", "managed"), ("configmap", "gateway.trustspan-journal")] {
            let refused =
                cluster.kubectl(["patch", kind, name, "--type=merge", "--patch", &patch]).ns(kept.ns).fails()?;
            ensure!(refused.contains("kept-by-agent"), "{kind}: saw {refused}");
            let refused = cluster.kubectl(["delete", kind, name]).ns(kept.ns).fails()?;
            ensure!(refused.contains("kept-by-agent"), "{kind}: saw {refused}");
            cluster.kubectl(["label", kind, name, "team=checkout"]).ns(kept.ns).ok()?;
        }
        // Without its GatewaySecret the object belongs to no one, and it stays.
        cluster.kubectl(["delete", "gatewaysecret", "gateway"]).ns(kept.ns).ok()?;
        ensure!(kept.bundle()?.is_some(), "the managed Secret is gone");
        wait_for("the Secret to be anybody's", SOON, || {
            Ok(cluster.kubectl(["delete", "secret", "managed"]).ns(kept.ns).run()?.success())
        })
    })
}

fn what_init_proposes_is_kept(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "gateway", "labels": { "istio": ns } },
            "spec": { "containers": [{ "name": "proxy", "image": "proxy" }] },
        });
        let server = json!({
            "port": { "number": 443, "name": "https", "protocol": "HTTPS" }, "hosts": ["shop.example.com"],
            "tls": { "mode": "MUTUAL", "credentialName": "root" },
        });
        let gateway = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": { "name": "public" },
            "spec": { "selector": { "istio": ns }, "servers": [server] },
        });
        let root = Authority::new("root")?;
        for object in [pod, gateway, Kept::root(&root)?] {
            cluster.apply(ns, &object.to_string())?;
        }
        let kubeconfig = cluster.kubeconfig(User::Admin);
        let init = || -> Result<String> {
            let mut command = Command::new(env!("CARGO_BIN_EXE_trustspan"));
            let printed = command.args(["init", "--namespace", ns, "--kubeconfig"]).arg(&kubeconfig).output()?;
            ensure!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
            Ok(String::from_utf8(printed.stdout)?)
        };
        let proposed = init()?;
        ensure!(
            proposed.contains("used by Istio Gateway") && proposed.contains("the clients are unknown"),
            "{proposed}"
        );
        ensure!(cluster.list("gatewaysecrets", ns, "")?.is_empty(), "init wrote something");
        cluster.apply(ns, &proposed)?;
        let _agent = Agents::new(cluster, ns)?.start("a")?;
        wait_for("the managed Secret", SOON, || {
            let bundle = cluster.get("secret", ns, "root-managed")?["data"]["ca.crt"].take();
            Ok(bundle == STANDARD.encode(root.pem().replace("\r\n", "\n")))
        })?;
        let again = init()?;
        ensure!(again.contains("root-managed names it already") && again.contains("Nothing to generate"), "{again}");
        Ok(())
    })
}

fn change_windows_that_cannot_be_are_refused(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (_server, _registration) = kept.judged()?;
        let set = |from: &str, zone: &str| {
            let windows = json!([{ "days": ["Sat"], "from": from, "to": "04:00", "timeZone": zone }]);
            let patch = json!({ "spec": { "changeWindows": windows } }).to_string();
            cluster.kubectl(["patch", "rotationpolicy", "default", "--type=merge", "--patch", &patch]).ns(kept.ns)
        };
        for (from, zone, expected) in [
            ("24:30", "Europe/Berlin", "spec.changeWindows[0].from"),
            ("22:00", "Europe Berlin", "spec.changeWindows[0].timeZone"),
            ("22:00", "Europe/Berlni", "no such time zone: Europe/Berlni"),
        ] {
            let refused = set(from, zone).fails()?;
            ensure!(refused.contains(expected), "expected {expected}, saw {refused}");
        }
        let mut object = cluster.get("rotationpolicy", kept.ns, "default")?;
        object["metadata"] = json!({ "name": "other" });
        object["spec"]["changeWindows"] = json!([{ "from": "22:00", "to": "04:00", "timeZone": "Europe/Berlni" }]);
        let refused = cluster.kubectl(["create", "-f", "-"]).ns(kept.ns).stdin(object.to_string()).fails()?;
        ensure!(refused.contains("no such time zone"), "saw {refused}");
        set("22:00", "Europe/Berlin").ok().map(drop)
    })
}

fn another_name_of_the_managed_secret_is_refused(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        kept.write_root(&Authority::new("root 1")?)?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        kept.wait_phase("Steady")?;
        {
            let (_server, _registration) = kept.judged()?;
            let patch = json!({ "spec": { "secretName": "other" } }).to_string();
            let change = ["patch", "gatewaysecret", "gateway", "--type=merge", "--patch", &patch];
            let refused = cluster.kubectl(change).ns(kept.ns).fails()?;
            ensure!(refused.contains("managed-renamed"), "saw {refused}");
        }
        // The webhook is not registered, so the spec can get another name, for which the agent has rights.
        kept.set("secretName", &json!("other"))?;
        kept.agents.grant()?;
        kept.wait_condition("Synced", "ManagedRenamed", &["until spec.secretName is managed again"])?;
        let made = cluster.kubectl(["get", "secret", "other", "--ignore-not-found", "-o=name"]).ns(kept.ns).ok()?;
        ensure!(made.is_empty(), "the agent made {made}");
        kept.set("secretName", &json!("managed"))?;
        kept.agents.grant()?;
        kept.wait_condition("Synced", "Synced", &[])
    })
}
