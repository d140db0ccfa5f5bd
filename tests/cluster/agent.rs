//! The agent on the real API server, with no more rights than `trustspan rbac` prints.

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::stage::expect;
use crate::testbed::{Agents, Authority, Cluster, SOON, wait_for};

cases![
    a_new_ca_stands_beside_the_old_at_once,
    a_lost_managed_secret_is_rebuilt,
    a_foreign_secret_is_left_alone,
    a_missing_right_is_told_with_what_mends_it,
    of_two_agents_one_leads,
];

/// A namespace whose GatewaySecret an agent keeps.
struct Kept<'c> {
    cluster: &'c Cluster,
    ns: &'c str,
    agents: Agents<'c>,
}

impl<'c> Kept<'c> {
    fn new(cluster: &'c Cluster, ns: &'c str) -> Result<Self> {
        let kept = Self { cluster, ns, agents: Agents::new(cluster, ns)? };
        let spec = json!({
            "rootSecretName": "root", "secretName": "managed", "clients": { "complete": true },
            "settle": { "gateways": "1s", "clients": "1s", "admission": "1s" },
        });
        let object = json!({
            "apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "metadata": { "name": "gateway" }, "spec": spec,
        });
        cluster.apply(ns, &object.to_string())?;
        Ok(kept)
    }

    /// The root as an issuer writes it: a leaf with its CA.
    fn write_root(&self, authority: &Authority) -> Result<()> {
        let (certificate, key) = authority.issue(&["shop.example.com"])?;
        let root = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": { "name": "root" },
            "stringData": { "ca.crt": authority.pem(), "tls.crt": certificate, "tls.key": key },
        });
        self.cluster.apply(self.ns, &root.to_string()).map(drop)
    }

    /// Waits until the managed Secret trusts exactly these, in this order.
    fn wait_bundle(&self, authorities: &[&Authority]) -> Result<()> {
        let wanted: String = authorities.iter().map(|authority| authority.pem().replace("\r\n", "\n")).collect();
        wait_for(&format!("a managed Secret with {} CA(s)", authorities.len()), SOON, || {
            Ok(self.bundle()?.is_some_and(|bundle| bundle == wanted))
        })
    }

    fn bundle(&self) -> Result<Option<String>> {
        let path = "-o=jsonpath={.data.ca\\.crt}";
        let out = self.cluster.kubectl(["get", "secret", "managed", "--ignore-not-found", path]).ns(self.ns).ok()?;
        let text = String::from_utf8(STANDARD.decode(out.trim())?)?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    fn status(&self) -> Result<Value> {
        Ok(self.cluster.get("gatewaysecret", self.ns, "gateway")?["status"].take())
    }

    fn wait_phase(&self, phase: &str) -> Result<()> {
        wait_for(&format!("phase {phase}"), SOON, || Ok(self.status()?["phase"] == phase))
    }

    /// Waits for a condition to say a word; returns its message.
    fn wait_condition(&self, type_: &str, reason: &str) -> Result<String> {
        let mut message = None;
        wait_for(&format!("condition {type_} to say {reason}"), SOON, || {
            let status = self.status()?;
            let mut conditions = status["conditions"].as_array().into_iter().flatten();
            let said = conditions.find(|condition| condition["type"] == type_ && condition["reason"] == reason);
            message = said.and_then(|condition| condition["message"].as_str()).map(str::to_owned);
            Ok(message.is_some())
        })?;
        message.context("a message")
    }
}

fn kept(cluster: &Cluster, test: impl FnOnce(&Kept<'_>) -> Result<()>) -> Result<()> {
    cluster.with_temp_ns(|ns| test(&Kept::new(cluster, ns)?))
}

fn a_new_ca_stands_beside_the_old_at_once(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (old, new) = (Authority::new("root 1")?, Authority::new("root 2")?);
        kept.write_root(&old)?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        kept.wait_bundle(&[&old])?;
        kept.wait_phase("Steady")?;
        kept.write_root(&new)?;
        kept.wait_bundle(&[&new, &old])?;
        kept.wait_bundle(&[&new])?;
        kept.wait_phase("Steady")?;
        let managed = cluster.get("secret", kept.ns, "managed")?;
        let root = cluster.get("secret", kept.ns, "root")?;
        expect("the served chain", &managed["data"]["tls.crt"], root["data"]["tls.crt"].clone())
    })
}

fn a_lost_managed_secret_is_rebuilt(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (old, new) = (Authority::new("root 1")?, Authority::new("root 2")?);
        let spec = json!({ "spec": { "settle": { "clients": "1h" } } }).to_string();
        cluster.kubectl(["patch", "gatewaysecret", "gateway", "--type=merge", "--patch", &spec]).ns(kept.ns).ok()?;
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
        kept.wait_bundle(&[&new, &old])
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
        let message = kept.wait_condition("Synced", "ForeignSecret")?;
        ensure!(message.contains("trustspan.dev/adopt"), "saw {message}");
        ensure!(kept.bundle()?.as_deref() == Some(own.pem().as_str()), "the Secret was changed");
        cluster.kubectl(["annotate", "secret", "managed", "trustspan.dev/adopt=true"]).ns(kept.ns).ok()?;
        kept.wait_condition("Synced", "Synced").map(drop)
    })
}

fn a_missing_right_is_told_with_what_mends_it(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        kept.write_root(&Authority::new("root")?)?;
        let _agent = kept.agents.start("a")?;
        let message = kept.wait_condition("Synced", "Forbidden")?;
        ensure!(message.contains("secrets") && message.contains("trustspan rbac"), "saw {message}");
        kept.agents.grant()?;
        kept.wait_condition("Synced", "Synced").map(drop)
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
        // SIGKILL: the Lease has to run out.
        drop(first);
        kept.write_root(&two)?;
        kept.wait_bundle(&[&two, &one])?;
        ensure!(holder()? == "second");
        // SIGTERM: it is let go.
        ensure!(second.stop(SOON)? == 0, "{}", second.log());
        expect("the holder", &holder()?, Value::Null)
    })
}
