//! trust-manager, from its published module. Its validating webhook is not registered: the API server needs none to store Bundles.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::testbed::{Authority, Cluster, Kept, Process, SOON, User, documents, exported, free_port, wait_for};

/// Namespaces with this label get the Bundle.
const LABEL: &str = "neighbours.example.com/trust";
/// The ConfigMap that trustspan writes, and the source of the Bundle.
const TRUST: &str = "gateway-trust";

/// Both CAs reach the ConfigMaps of other namespaces before the old CA is dropped, and each object has one writer.
pub(crate) fn distributes_the_bundle_of_a_rotation(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        cluster.kubectl(["label", "namespace", ns, &format!("{LABEL}={ns}")]).ok()?;
        let kept = Kept::new(cluster, ns, "1s")?;
        let (old, new) = (Authority::new("root 1")?, Authority::new("root 2")?);
        kept.set("trustBundleTargets", &json!([{ "kind": "ConfigMap", "name": TRUST }]))?;
        kept.write_root(&old)?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        let _trust_manager = start(cluster, ns)?;
        cluster.kubectl(["apply", "-f", "-"]).stdin(bundle(ns).to_string()).ok()?;
        let holds = |authorities: &[&Authority]| -> Result<bool> {
            let Ok(copy) = cluster.get("configmap", ns, ns) else { return Ok(false) };
            let text = copy["data"]["ca.crt"].as_str().unwrap_or_default();
            let all = [&old, &new];
            Ok(all.iter().all(|ca| {
                let is_wanted = authorities.iter().any(|wanted| wanted.pem() == ca.pem());
                text.contains(ca.pem().replace("\r\n", "\n").trim()) == is_wanted
            }))
        };
        wait_for("trust-manager to distribute the first CA", SOON, || holds(&[&old]))?;
        kept.rotate_and_hold(&new, &old)?;
        wait_for("trust-manager to distribute both CAs", SOON, || holds(&[&new, &old]))?;
        kept.set_gateway_delay("1s")?;
        wait_for("trust-manager to distribute the new CA alone", SOON, || holds(&[&new]))?;
        kept.wait_phase("Steady")?;

        // Each key has one writer, and no write is repeated.
        let source = managers(cluster, ns, TRUST)?;
        ensure!(source == ["trustspan-agent"], "{TRUST}: expected trustspan alone, saw {source:?}");
        let copy = managers(cluster, ns, ns)?;
        ensure!(copy.len() == 1 && copy != source, "{ns}: expected trust-manager alone, saw {copy:?}");
        for name in [TRUST, ns] {
            let writes = cluster.requests(User::Agent)?.into_iter();
            let writes = writes.filter(|request| request.resource == "configmaps" && request.name == name);
            let writes = writes.filter(|request| request.verb != "get").count();
            let expected = if name == TRUST { 1..=3 } else { 0..=0 };
            ensure!(expected.contains(&writes), "{name}: expected {expected:?} writes of the agent, saw {writes}");
        }
        Ok(())
    })
}

/// A target of `spec.trustBundleTargets` that trust-manager writes already: trustspan reports that, and does not take
/// it over.
pub(crate) fn keeps_its_own_config_map(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        cluster.kubectl(["label", "namespace", ns, &format!("{LABEL}={ns}")]).ok()?;
        let others = Authority::new("another CA")?;
        let source = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": TRUST }, "data": { "ca.crt": others.pem() },
        });
        cluster.apply(ns, &source.to_string())?;
        let _trust_manager = start(cluster, ns)?;
        cluster.kubectl(["apply", "-f", "-"]).stdin(bundle(ns).to_string()).ok()?;
        wait_for("trust-manager to write its ConfigMap", SOON, || cluster.exists("configmap", ns, ns))?;
        let before = cluster.get("configmap", ns, ns)?;

        let kept = Kept::new(cluster, ns, "1s")?;
        kept.set("trustBundleTargets", &json!([{ "kind": "ConfigMap", "name": ns }]))?;
        kept.write_root(&Authority::new("root 1")?)?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        kept.wait_condition("Synced", "ForeignObject", &["ConfigMap", ns])?;
        let after = cluster.get("configmap", ns, ns)?;
        ensure!(after == before, "expected trust-manager's ConfigMap unchanged, saw {after}");
        Ok(())
    })
}

/// A Bundle that reads ConfigMap `gateway-trust`, and writes one of its own name.
fn bundle(ns: &str) -> Value {
    json!({
        "apiVersion": "trust.cert-manager.io/v1alpha1", "kind": "Bundle", "metadata": { "name": ns },
        "spec": {
            "sources": [{ "configMap": { "name": TRUST, "key": "ca.crt" } }],
            "target": { "configMap": { "key": "ca.crt" }, "namespaceSelector": { "matchLabels": { LABEL: ns } } },
        },
    })
}

/// The managers that own keys of a ConfigMap.
fn managers(cluster: &Cluster, ns: &str, name: &str) -> Result<Vec<String>> {
    let args = ["get", "configmap", name, "-o", "json", "--show-managed-fields"];
    let object: Value = serde_json::from_str(&cluster.kubectl(args).ns(ns).ok()?)?;
    let fields = object["metadata"]["managedFields"].as_array().context("managedFields")?;
    let of_data = fields.iter().filter(|field| !field["fieldsV1"]["f:data"].is_null());
    Ok(of_data.filter_map(|field| field["manager"].as_str().map(str::to_owned)).collect())
}

/// Starts trust-manager, with a namespace for its sources.
fn start(cluster: &Cluster, ns: &str) -> Result<Process> {
    let [folder] = exported("setup", &["trust-manager"], ["TRUSTSPAN_BED_TRUST_MANAGER"])?;
    let folder = Path::new(&folder);
    cluster.apply_crds(&documents(&folder.join("crds"))?)?;
    let certificates = cluster.temp_dir("trust-manager")?;
    let (certificate, key) = Authority::new("webhook")?.issue(&["localhost"])?;
    fs::write(certificates.join("tls.crt"), certificate)?;
    fs::write(certificates.join("tls.key"), key)?;
    let args = [
        format!("--kubeconfig={}", cluster.kubeconfig(User::Admin).display()),
        format!("--trust-namespace={ns}"),
        "--leader-elect=false".to_owned(),
        "--webhook-host=127.0.0.1".to_owned(),
        format!("--webhook-port={}", free_port()?),
        format!("--webhook-certificate-dir={}", certificates.display()),
        format!("--readiness-probe-port={}", free_port()?),
        format!("--metrics-port={}", free_port()?),
    ];
    cluster.spawn(&format!("trust-manager-{}", cluster.unique()), &folder.join("trust-manager"), args, &[])
}
