//! Seven signers of client certificates that rotate independently: the GatewaySecret's own, and six of `spec.additionalTrust`.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::agent::kept;
use crate::testbed::{Authority, Cluster, Kept, SOON, User, wait_for};

cases![seven_signers_make_one_write_for_each_rotation, a_deleted_signer_keeps_its_ca_while_a_client_uses_it];

pub(crate) fn kind(number: usize) -> &'static str {
    if number.is_multiple_of(2) { "ConfigMap" } else { "Secret" }
}

pub(crate) fn write_signer(kept: &Kept<'_>, number: usize, authority: &Authority) -> Result<()> {
    let field = if kind(number) == "Secret" { "stringData" } else { "data" };
    let object = json!({
        "apiVersion": "v1", "kind": kind(number), "metadata": { "name": format!("signer-{number}") },
        field: { "ca.crt": authority.pem() },
    });
    kept.cluster.apply(kept.ns, &object.to_string()).map(drop)
}

pub(crate) fn declare(kept: &Kept<'_>, signers: usize) -> Result<()> {
    let named = (0..signers).map(|number| json!({ "kind": kind(number), "name": format!("signer-{number}") }));
    kept.set("additionalTrust", &named.collect::<Value>())?;
    kept.agents.grant()
}

/// The number of times that the agent wrote the managed Secret.
pub(crate) fn writes(kept: &Kept<'_>) -> Result<usize> {
    let requests = kept.cluster.requests(User::Agent)?;
    let is_write = |verb: &str| ["create", "patch", "update"].contains(&verb);
    let of = requests.iter().filter(|request| {
        request.namespace == kept.ns
            && request.resource == "secrets"
            && request.name == "managed"
            && is_write(&request.verb)
    });
    Ok(of.count())
}

fn seven_signers_make_one_write_for_each_rotation(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        kept.set_client_delay("1h")?;
        let own = Authority::new("own")?;
        let mut signers: Vec<_> =
            (0..6).map(|number| Authority::new(&format!("signer {number}"))).collect::<Result<_>>()?;
        kept.write_root(&own)?;
        for (number, signer) in signers.iter().enumerate() {
            write_signer(kept, number, signer)?;
        }
        declare(kept, signers.len())?;
        let _agent = kept.agents.start("a")?;
        kept.wait_bundle(&std::iter::once(&own).chain(&signers).collect::<Vec<_>>())?;
        kept.wait_phase("Steady")?;
        let mut expected = writes(kept)?;
        // The bundle has the current CAs in the order of the spec, then the previous ones, those of the last rotation
        // first.
        let mut previous: Vec<Authority> = Vec::new();
        for number in [2, 5, 0, 2, 1] {
            let renewed = Authority::new(&format!("signer {number}, renewed {}", previous.len()))?;
            write_signer(kept, number, &renewed)?;
            previous.insert(0, std::mem::replace(&mut signers[number], renewed));
            let current = std::iter::once(&own).chain(&signers);
            kept.wait_bundle(&current.chain(&previous).collect::<Vec<_>>())?;
            expected += 1;
            ensure!(writes(kept)? == expected, "{} writes instead of {expected} after signer {number}", writes(kept)?);
        }
        // Another write of the same CA does not begin a rotation.
        write_signer(kept, 1, &signers[1])?;
        kept.cluster.kubectl(["annotate", "secret", "signer-1", "note=unrelated"]).ns(kept.ns).ok()?;
        // The last CA is as long in use by then as the new delay, so that no earlier one is dropped before it.
        wait_for("all gateways to use all CAs", SOON, || {
            let status = kept.status()?;
            let mut bundle = status["bundle"].as_array().context("a bundle")?.iter();
            Ok(bundle.all(|anchor| anchor["converged"] == true))
        })?;
        kept.set_client_delay("1s")?;
        kept.wait_bundle(&std::iter::once(&own).chain(&signers).collect::<Vec<_>>())?;
        kept.wait_phase("Steady")?;
        ensure!(writes(kept)? == expected + 1, "all previous CAs are dropped in one write");
        Ok(())
    })
}

fn a_deleted_signer_keeps_its_ca_while_a_client_uses_it(cluster: &Cluster) -> Result<()> {
    kept(cluster, |kept| {
        let (own, partner) = (Authority::new("own")?, Authority::new("partner")?);
        kept.write_root(&own)?;
        write_signer(kept, 0, &partner)?;
        kept.write_client_with("checkout", &partner, &[&own])?;
        kept.set("clients", &json!({ "allDeclared": true, "secretNames": ["checkout"] }))?;
        declare(kept, 1)?;
        let _agent = kept.agents.start("a")?;
        kept.wait_bundle(&[&own, &partner])?;
        kept.wait_phase("Steady")?;
        kept.cluster.kubectl(["delete", "configmap", "signer-0"]).ns(kept.ns).ok()?;
        wait_for("a wait that names the client", SOON, || {
            let waits = kept.status()?["waits"].to_string();
            Ok(waits.contains("ConfigMap signer-0 does not exist") && waits.contains("checkout"))
        })?;
        kept.wait_bundle(&[&own, &partner])?;
        kept.write_client_with("checkout", &own, &[&own])?;
        kept.wait_bundle(&[&own])
    })
}
