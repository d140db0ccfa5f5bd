//! ConfigMaps that the agent copies from those of `spec.clients.caConfigMapNames`, and Gateways of the Gateway API that
//! name them.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::agent::kept;
use crate::stage::expect;
use crate::testbed::{Authority, Cluster, Kept, Patience, Registration, SOON, Scope, Server, Source, User, wait_for};

cases![
    what_is_kept_has_our_cas_as_the_managed_secret_and_others_as_they_are,
    a_gateway_names_what_is_kept_and_undo_takes_it_back,
    a_gateway_elsewhere_names_what_is_kept_once_that_is_granted,
    a_config_map_of_somebody_else_is_left_alone,
];

const KIND: &str = "gateways.v1.gateway.networking.k8s.io";
const PARTNERS: &str = "partners";
const KEPT: &str = "partners.trustspan";

fn write_source(kept: &Kept<'_>, authorities: &[&Authority]) -> Result<()> {
    write(kept, PARTNERS, authorities)
}

fn write(kept: &Kept<'_>, name: &str, authorities: &[&Authority]) -> Result<()> {
    let bundle: String = authorities.iter().map(|authority| authority.pem()).collect();
    let data = json!({ "ca.crt": bundle });
    let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data });
    kept.cluster.apply(kept.ns, &object.to_string()).map(drop)
}

/// Waits until the copy contains exactly these CAs, in this order.
fn wait_kept(kept: &Kept<'_>, authorities: &[&Authority]) -> Result<()> {
    let wanted: String = authorities.iter().map(|authority| authority.pem().replace("\r\n", "\n")).collect();
    wait_for(&format!("ConfigMap {KEPT} to hold CAs: {}", authorities.len()), SOON, || {
        let exists = kept.cluster.exists("configmap", kept.ns, KEPT)?;
        Ok(exists && kept.cluster.get("configmap", kept.ns, KEPT)?["data"]["ca.crt"] == wanted.as_str())
    })
}

/// Adds ConfigMap `partners` to the spec, and grants the agent the rights on it.
fn declare(kept: &Kept<'_>) -> Result<()> {
    kept.set("clients", &json!({ "caConfigMapNames": [PARTNERS] }))?;
    kept.agents.grant()
}

fn what_is_kept_has_our_cas_as_the_managed_secret_and_others_as_they_are(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (old, new) = (Authority::new("root 1")?, Authority::new("root 2")?);
        let (partner, another) = (Authority::new("partner")?, Authority::new("another partner")?);
        kept.set_client_delay("1h")?;
        kept.write_root(&old)?;
        write_source(kept, &[&partner, &old])?;
        declare(kept)?;
        let _agent = kept.agents.start("a")?;
        wait_kept(kept, &[&partner, &old])?;
        kept.write_root(&new)?;
        kept.wait_bundle(&[&new, &old])?;
        wait_kept(kept, &[&partner, &new, &old])?;
        // The agent restores the copy when another user deletes or changes it, and copies CAs that the owner adds to
        // the source.
        cluster.kubectl(["delete", "configmap", KEPT]).ns(kept.ns).ok()?;
        wait_kept(kept, &[&partner, &new, &old])?;
        write(kept, KEPT, &[&another])?;
        wait_kept(kept, &[&partner, &new, &old])?;
        write_source(kept, &[&another, &partner, &old])?;
        wait_kept(kept, &[&another, &partner, &new, &old])?;
        cluster.kubectl(["delete", "configmap", PARTNERS]).ns(kept.ns).ok()?;
        kept.set_client_delay("1s")?;
        wait_kept(kept, &[&another, &partner, &new])?;
        kept.wait_bundle(&[&new])
    })
}

/// A Gateway that verifies clients by the CAs in the ConfigMap.
fn gateway(kept: &Kept<'_>) -> Value {
    let reference = |kind: &str, name: &str| json!({ "group": "", "kind": kind, "namespace": kept.ns, "name": name });
    let validation = json!({ "validation": { "caCertificateRefs": [reference("ConfigMap", PARTNERS)] } });
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": { "name": "shop" },
        "spec": {
            "gatewayClassName": "istio",
            "tls": { "frontend": { "default": validation, "perPort": [{ "port": 8443, "tls": validation }] } },
            "listeners": [{
                "name": "https", "port": 443, "protocol": "HTTPS",
                "tls": { "mode": "Terminate", "certificateRefs": [reference("Secret", "root")] },
            }],
        },
    })
}

/// The names in a Gateway: a listener's certificate, and the CAs for all ports and for one port.
fn named(gateway: &Value) -> [&str; 3] {
    let spec = &gateway["spec"];
    let frontend = &spec["tls"]["frontend"];
    [
        &spec["listeners"][0]["tls"]["certificateRefs"][0]["name"],
        &frontend["default"]["validation"]["caCertificateRefs"][0]["name"],
        &frontend["perPort"][0]["tls"]["validation"]["caCertificateRefs"][0]["name"],
    ]
    .map(|name| name.as_str().unwrap_or_default())
}

const AS_WRITTEN: [&str; 3] = ["root", PARTNERS, PARTNERS];
const REWRITTEN: [&str; 3] = ["managed", KEPT, KEPT];

/// A GatewaySecret in phase Steady, with a copy of a ConfigMap.
fn steady(kept: &Kept<'_>) -> Result<crate::testbed::Process> {
    let (root, partner) = (Authority::new("root")?, Authority::new("partner")?);
    kept.write_root(&root)?;
    write_source(kept, &[&partner, &root])?;
    declare(kept)?;
    let agent = kept.agents.start("a")?;
    kept.wait_phase("Steady")?;
    wait_for("the ConfigMap to be listed", SOON, || Ok(kept.status()?["managedConfigMaps"][0]["name"] == KEPT))?;
    Ok(agent)
}

fn a_gateway_names_what_is_kept_and_undo_takes_it_back(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let _agent = steady(kept)?;
        let (_server, _registration) = kept.judged()?;
        let gateway = gateway(kept).to_string();
        let apply = |args: &[&str]| {
            let args = [&["apply", "-f", "-"], args].concat();
            cluster.kubectl(args).ns(kept.ns).stdin(gateway.clone()).ok()
        };
        let dry_run = ["--dry-run=server", "-o", "json"];
        wait_for("the webhook to hear of the ConfigMap", SOON, || {
            Ok(named(&serde_json::from_str(&apply(&dry_run)?)?) == REWRITTEN)
        })?;
        ensure!(!cluster.exists(KIND, kept.ns, "shop")?, "a dry run stored the Gateway");
        apply(&[])?;
        let stored = cluster.get(KIND, kept.ns, "shop")?;
        expect("stored", &json!(named(&stored)), json!(REWRITTEN))?;
        apply(&[])?;
        let again = cluster.get(KIND, kept.ns, "shop")?;
        expect("a second apply", &again["metadata"]["generation"], stored["metadata"]["generation"].clone())?;

        let undone = undo(&stored)?;
        expect("undone", &json!(named(&undone)), json!(AS_WRITTEN))?;
        ensure!(undone["metadata"]["annotations"]["trustspan.dev/undo"].is_null(), "the record stays");

        // Its listeners are added to those of the Gateway, and use the Gateway's CAs.
        let listeners = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ListenerSet", "metadata": { "name": "more" },
            "spec": { "parentRef": { "name": "shop" }, "listeners": [{
                "name": "more", "port": 443, "protocol": "HTTPS", "hostname": "more.example.com",
                "tls": { "mode": "Terminate", "certificateRefs": [{ "name": "root" }] },
            }] },
        });
        cluster.apply(kept.ns, &listeners.to_string())?;
        let stored = cluster.get("listenersets.gateway.networking.k8s.io", kept.ns, "more")?;
        expect("certificateRefs", &stored["spec"]["listeners"][0]["tls"]["certificateRefs"][0]["name"], "managed")?;
        wait_for("the agent to list what is kept as a source of trust", SOON, || {
            let status = kept.status()?;
            let sources = status["trustSources"].as_array().context("status.trustSources")?;
            Ok(sources.iter().any(|source| source["kind"] == "ConfigMap" && source["name"] == KEPT))
        })
    })
}

fn undo(stored: &Value) -> Result<Value> {
    let mut trustspan = Command::new(env!("CARGO_BIN_EXE_trustspan"));
    let mut child =
        trustspan.args(["rewrite", "--undo", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    serde_json::to_writer(child.stdin.take().context("stdin")?, stored)?;
    Ok(serde_json::from_slice(&child.wait_with_output()?.stdout)?)
}

fn a_gateway_elsewhere_names_what_is_kept_once_that_is_granted(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        cluster.with_temp_ns(|apps| {
            let _agent = steady(kept)?;
            let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
            let scope = Scope::Namespaces(vec![kept.ns.to_owned(), apps.to_owned()]);
            let _registration = Registration::new(cluster, &server, &scope, Patience::Longest)?;
            let grant = |config_maps: &[&str]| {
                let of = |kind: &str, name: &&str| json!({ "group": "", "kind": kind, "name": name });
                let secrets = ["root", "managed"].iter().map(|name| of("Secret", name));
                let to: Vec<_> = secrets.chain(config_maps.iter().map(|name| of("ConfigMap", name))).collect();
                let from = json!({ "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": apps });
                let object = json!({
                    "apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant",
                    "metadata": { "name": "apps" }, "spec": { "from": [from], "to": to },
                });
                cluster.apply(kept.ns, &object.to_string()).map(drop)
            };
            grant(&[PARTNERS])?;
            wait_for("the missing grant to be seen", SOON, || {
                Ok(kept.status()?["managedConfigMaps"][0]["ungrantedNamespaces"] == json!([apps]))
            })?;
            let gateway = gateway(kept).to_string();
            wait_for("the webhook to hear of it, and to say so", SOON, || {
                let apply = ["apply", "--dry-run=server", "-f", "-"];
                let said = cluster.kubectl(apply).ns(apps).stdin(gateway.clone()).run()?;
                let said = format!("{}{}", said.stdout, said.stderr);
                ensure!(said.contains("ReferenceGrant") && said.contains("use ConfigMap"), "saw {said}");
                Ok(true)
            })?;
            cluster.apply(apps, &gateway)?;
            let stored = cluster.get(KIND, apps, "shop")?;
            expect("without a grant", &json!(named(&stored)), json!(["managed", PARTNERS, PARTNERS]))?;
            // The Gateway is not applied again: the agent requests its rewrite.
            grant(&[PARTNERS, KEPT])?;
            wait_for("the agent to have it written once more", SOON, || {
                Ok(named(&cluster.get(KIND, apps, "shop")?) == REWRITTEN)
            })
        })
    })
}

fn a_config_map_of_somebody_else_is_left_alone(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (root, another) = (Authority::new("root")?, Authority::new("another")?);
        kept.write_root(&root)?;
        write_source(kept, &[&root])?;
        write(kept, KEPT, &[&another])?;
        declare(kept)?;
        let _agent = kept.agents.start("a")?;
        wait_for("the wait to say so", SOON, || {
            let status = kept.status()?;
            let waits = status["waits"].as_array().context("status.waits")?;
            let says = |wait: &Value| {
                wait["reason"].as_str().is_some_and(|reason| reason.contains("was not created by the agent"))
            };
            Ok(waits.iter().any(says))
        })?;
        ensure!(kept.status()?["managedConfigMaps"].is_null(), "it is listed as kept");
        wait_kept(kept, &[&another])?;
        let adopt = ["annotate", "configmap", KEPT, "trustspan.dev/adopt=true"];
        cluster.kubectl(adopt).ns(kept.ns).ok()?;
        wait_kept(kept, &[&root])
    })
}
