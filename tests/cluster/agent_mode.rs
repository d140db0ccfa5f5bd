//! Switches `spec.mode` to `Copy` and back in every phase: the managed Secret keeps its name, its content is that of
//! the mode, and a warning counts the clients that the switch cuts off.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::agent::kept;
use crate::stage::expect;
use crate::testbed::{Authority, Cluster, Kept, SOON, wait_for};

cases![
    the_mode_there_and_back_at_steady,
    the_mode_there_and_back_at_trust_expanded,
    the_mode_there_and_back_at_converged,
    the_mode_there_and_back_at_clients_migrated,
    the_mode_there_and_back_at_leaf_switched,
];

/// A rotation from one CA to another, with an agent and two clients that are renewed manually.
struct Rotation<'k> {
    kept: &'k Kept<'k>,
    old: Authority,
    new: Authority,
}

fn rotation(cluster: &Cluster, test: impl FnOnce(&Rotation<'_>) -> Result<()>) -> Result<()> {
    kept(cluster, |kept| {
        let rotation = Rotation { kept, old: Authority::new("root 1")?, new: Authority::new("root 2")? };
        let (_server, _registration) = kept.judged()?;
        for client in ["shop", "storefront"] {
            kept.write_client(client, &rotation.old)?;
        }
        kept.set("clients", &json!({ "allDeclared": true, "secretNames": ["shop", "storefront"] }))?;
        kept.write_root(&rotation.old)?;
        kept.agents.grant()?;
        let _agent = kept.agents.start("a")?;
        kept.wait_bundle(&[&rotation.old])?;
        kept.wait_phase("Steady")?;
        test(&rotation)
    })
}

impl Rotation<'_> {
    /// Begins the rotation, and waits until clients block it.
    fn converge(&self) -> Result<()> {
        self.kept.write_root(&self.new)?;
        self.kept.wait_bundle(&[&self.new, &self.old])?;
        self.kept.wait_phase("Converged")
    }

    /// Waits until one client blocks the switch: both present new certificates, but `shop` trusts only the old CA.
    fn migrate(&self) -> Result<()> {
        self.converge()?;
        self.kept.write_client_with("storefront", &self.new, &[&self.new, &self.old])?;
        self.kept.write_generic_client("shop", &self.new, &[&self.old])?;
        self.kept.wait_bundle(&[&self.new])?;
        self.kept.wait_phase("ClientsMigrated")
    }

    fn secret(&self, name: &str) -> Result<Value> {
        self.kept.cluster.get("secret", self.kept.ns, name)
    }

    /// Sets `spec.mode`; returns the warnings.
    fn switch(&self, mode: &str, more: &[&str]) -> Result<String> {
        let patch = json!({ "spec": { "mode": mode } }).to_string();
        let args = ["patch", "gatewaysecret", "gateway", "--type=merge", "--patch", &patch];
        let kubectl = self.kept.cluster.kubectl(args.iter().chain(more).copied()).ns(self.kept.ns);
        let output = kubectl.run()?;
        ensure!(output.success(), "mode {mode}: {}", output.stderr);
        Ok(output.stderr)
    }

    /// Switches to `Copy` and back. Expects these clients to be cut off, and this bundle before and after.
    fn there_and_back(&self, phase: &str, cut_off: &[&str], trust: &[&Authority]) -> Result<()> {
        let kept = self.kept;
        expect("the phase", &kept.status()?["phase"], phase)?;
        let (before, root) = (self.secret("managed")?, self.secret("root")?);
        let clients = if cut_off.len() == 1 { "client" } else { "clients" };
        let warning = format!("spec.mode: Copy cuts off {} {clients} at once: {}", cut_off.len(), cut_off.join(", "));
        let is_reported =
            |said: &str| if cut_off.is_empty() { !said.contains("cuts off") } else { said.contains(&warning) };
        let mut said = String::new();
        let dry = wait_for("the webhook to know what the agent knows", SOON, || {
            said = self.switch("Copy", &["--dry-run=server"])?;
            Ok(is_reported(&said))
        });
        ensure!(dry.is_ok(), "expected {cut_off:?} cut off, saw {said}");
        expect("what a dry run changes", &self.secret("managed")?, before.clone())?;

        let said = self.switch("Copy", &[])?;
        ensure!(is_reported(&said), "expected {cut_off:?} cut off, saw {said}");
        wait_for("a plain copy of the root", SOON, || Ok(self.secret("managed")?["data"] == root["data"]))?;
        wait_for("the mode in the status", SOON, || Ok(kept.status()?["mode"] == "Copy"))?;

        let said = self.switch("Bundle", &[])?;
        ensure!(!said.contains("cuts off"), "on the way back: {said}");
        wait_for("the mode in the status", SOON, || Ok(kept.status()?["mode"] == "Bundle"))?;
        kept.wait_bundle(trust)?;
        let after = self.secret("managed")?;
        // A gateway that has served the new certificate keeps it.
        expect("the leaf", &after["data"]["tls.crt"], root["data"]["tls.crt"].clone())?;
        expect("the Secret", &after["metadata"]["uid"], before["metadata"]["uid"].clone())?;
        expect("spec.secretName", &kept.status()?["secretName"], "managed")
    }
}

fn the_mode_there_and_back_at_steady(cluster: &Cluster) -> Result<()> {
    rotation(cluster, |rotation| rotation.there_and_back("Steady", &[], &[&rotation.old]))
}

fn the_mode_there_and_back_at_trust_expanded(cluster: &Cluster) -> Result<()> {
    rotation(cluster, |rotation| {
        let (kept, old, new) = (rotation.kept, &rotation.old, &rotation.new);
        // As far as the agent knows, gateways do not have the new CA.
        kept.set_gateway_delay("1h")?;
        kept.write_root(new)?;
        kept.wait_bundle(&[new, old])?;
        kept.wait_phase("TrustExpanded")?;
        rotation.there_and_back("TrustExpanded", &["shop", "storefront"], &[new, old])
    })
}

fn the_mode_there_and_back_at_converged(cluster: &Cluster) -> Result<()> {
    rotation(cluster, |rotation| {
        rotation.converge()?;
        rotation.there_and_back("Converged", &["shop", "storefront"], &[&rotation.new, &rotation.old])
    })
}

fn the_mode_there_and_back_at_clients_migrated(cluster: &Cluster) -> Result<()> {
    rotation(cluster, |rotation| {
        rotation.migrate()?;
        rotation.there_and_back("ClientsMigrated", &["shop"], &[&rotation.new])
    })
}

fn the_mode_there_and_back_at_leaf_switched(cluster: &Cluster) -> Result<()> {
    rotation(cluster, |rotation| {
        let (kept, old, new) = (rotation.kept, &rotation.old, &rotation.new);
        rotation.migrate()?;
        // As far as the agent knows, some gateway still serves the old certificate, so clients keep its CA.
        kept.set_gateway_delay("1h")?;
        kept.write_generic_client("shop", new, &[new, old])?;
        kept.wait_phase("ServingCertificateSwitched")?;
        rotation.there_and_back("ServingCertificateSwitched", &[], &[new])
    })
}
