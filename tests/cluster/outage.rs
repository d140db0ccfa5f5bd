//! The webhook is down: writes that must continue are accepted, writes that must not are rejected, and what the webhook
//! missed is reported.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::stage::{
    MANAGED, SOURCE, credential, declare, deployment, expect, istio, on_stage, on_stage_with, sound, trustspan, volume,
};
use crate::testbed::{Cluster, Patience, Registration, Scope, Server, Source, User};

cases![
    gateways_and_workloads_go_on,
    managed_secrets_are_refused_and_all_others_pass,
    a_hung_webhook_is_no_worse_than_a_dead_one,
    check_finds_what_slipped_by,
    alone the_system_is_never_blocked,
];

const ISTIO: &str = "gateways.v1.networking.istio.io";

fn managed() -> Result<Value> {
    Ok(sound(MANAGED, true)?.1)
}

fn gateways_and_workloads_go_on(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        stage.server.kill();
        stage.apply(&stage.istio("shop", SOURCE))?;
        expect("unchanged", credential(&stage.get(ISTIO, "shop")?), SOURCE)?;
        stage.apply(&deployment("app", SOURCE, &[]))?;
        stage.kubectl(["scale", "deployment", "app", "--replicas=2"]).ok()?;
        // The webhook runs again, and rewrites the next write. (Another apply of the same manifest sends no request.)
        stage.server.start_again()?;
        stage.kubectl(["annotate", ISTIO, "shop", "note=x"]).ok()?;
        expect("Gateway", credential(&stage.get(ISTIO, "shop")?), MANAGED)?;
        stage.kubectl(["rollout", "restart", "deployment", "app"]).ok()?;
        expect("Deployment", volume(&stage.get("deployment", "app")?), MANAGED)
    })
}

fn managed_secrets_are_refused_and_all_others_pass(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        stage.apply(&managed()?)?;
        let stored = stage.get("secret", MANAGED)?["data"].clone();
        stage.server.kill();
        let refused = stage.kubectl(["apply", "-f", "-"]).stdin(managed()?.to_string()).fails()?;
        ensure!(refused.contains("trust.validate.trustspan.dev"), "saw {refused}");
        ensure!(refused.contains("failed calling webhook"), "saw {refused}");
        ensure!(stage.kubectl(["delete", "secret", MANAGED]).fails()?.contains("trust.validate.trustspan.dev"));
        ensure!(stage.get("secret", MANAGED)?["data"] == stored, "the stored content has changed");

        stage.kubectl(["create", "secret", "generic", "password", "--from-literal=password=x"]).ok()?;
        stage.kubectl(["create", "secret", "generic", "ca", "--from-literal=ca.crt=x"]).ok()?;
        stage.kubectl(["create", "secret", "generic", SOURCE, "--from-literal=ca.crt=x"]).ok()?;
        stage.kubectl(["delete", "secret", SOURCE]).ok()?;
        // The agent computes the same verdicts itself, so a rotation continues.
        let note = json!({ "metadata": { "annotations": { "note": "x" } } }).to_string();
        let by_agent =
            ["patch", "secret", MANAGED, "--patch", &note, "--as", User::Agent.name(), "--as-group=system:masters"];
        cluster.kubectl(by_agent).ns(&stage.ns).ok()?;
        // Namespaces can still be deleted.
        cluster.kubectl(["delete", "namespace", &stage.ns, "--wait=false"]).ok()?;
        crate::testbed::wait_for("the namespace to be gone", crate::testbed::SOON, || {
            Ok(!cluster.exists("namespace", "", &stage.ns)?)
        })
    })
}

fn a_hung_webhook_is_no_worse_than_a_dead_one(cluster: &Cluster) -> Result<()> {
    on_stage_with(cluster, Patience::Shipped, |stage| {
        stage.server.pause()?;
        stage.apply(&stage.istio("shop", SOURCE))?;
        expect("unchanged", credential(&stage.get(ISTIO, "shop")?), SOURCE)?;
        let refused = stage.kubectl(["apply", "-f", "-"]).stdin(managed()?.to_string()).fails()?;
        ensure!(refused.contains("trust.validate.trustspan.dev"), "saw {refused}");
        stage.server.resume()
    })
}

fn check_finds_what_slipped_by(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        stage.server.kill();
        stage.apply(&stage.istio("slipped", SOURCE))?;
        stage.apply(&stage.istio("stranger", "other"))?;
        stage.kubectl(["create", "secret", "generic", SOURCE, "--from-literal=ca.crt=no PEM at all"]).ok()?;
        let kinds = format!("gatewaysecrets,{ISTIO},secrets");
        let stored = cluster.kubectl(["get", &kinds, "-o", "yaml"]).ns(&stage.ns).ok()?;
        let (code, judged) = trustspan(&["check", "--output", "json", "-f", "-"], &stored)?;
        let judged: Vec<Value> = serde_json::from_str(&judged)?;
        let found = |name: &str| -> Vec<&str> {
            let object = judged.iter().find(|judged| judged["object"]["name"] == name);
            let findings = object.and_then(|object| object["findings"].as_array()).into_iter().flatten();
            findings.filter_map(|finding| finding["rule"].as_str()).collect()
        };
        ensure!(found("slipped") == ["not-rewritten"], "saw {judged:?}");
        ensure!(found("stranger").is_empty(), "saw {judged:?}");
        ensure!(found(SOURCE) == ["empty"], "saw {judged:?}");
        ensure!(code == Some(1), "expected exit code 1, saw {code:?}");
        Ok(())
    })
}

/// Registers both webhooks for all requests, without a server.
fn the_system_is_never_blocked(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        declare(cluster, ns)?;
        let mut server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let registration = Registration::new(cluster, &server, &Scope::Everything, Patience::Shipped)?;
        server.kill();
        for excluded in ["kube-system", "trustspan-system"] {
            let secret = managed()?.to_string();
            cluster.kubectl(["apply", "-f", "-"]).ns(excluded).stdin(secret).ok()?;
            cluster.kubectl(["delete", "secret", MANAGED]).ns(excluded).ok()?;
        }
        cluster.apply(ns, &istio("shop", SOURCE, ns).to_string())?;
        cluster.kubectl(["create", "secret", "generic", "ca", "--from-literal=ca.crt=x"]).ns(ns).ok()?;
        let refused = cluster.kubectl(["apply", "-f", "-"]).ns(ns).stdin(managed()?.to_string()).fails()?;
        ensure!(refused.contains("trust.validate.trustspan.dev"), "saw {refused}");
        // Unregistered before other tests start.
        registration.unregister()
    })
}
