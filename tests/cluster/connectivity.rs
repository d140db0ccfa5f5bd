//! Connectivity on the real API server: writes that would cut off certificates in use, according to the status, are
//! rejected.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::secrets::with;
use crate::stage::{MANAGED, Stage, on_stage, set_status, sound, status};
use crate::testbed::{Authority, Cluster, Kubectl, SOON, wait_for};

cases![
    a_ca_that_live_clients_need_stays,
    a_sibling_holds_the_ca_that_live_clients_need,
    a_client_leaf_waits_for_its_ca,
];

fn put(stage: &Stage<'_>, secret: &Value, more: &[&str]) -> Kubectl {
    let args = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    more.iter().fold(stage.kubectl(args), |kubectl, arg| kubectl.arg(arg)).stdin(secret.to_string())
}

fn a_ca_that_live_clients_need_stays(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let (new, secret) = sound(MANAGED, true)?;
        let old = Authority::new("old root")?;
        put(stage, &with(&secret, "ca.crt", &format!("{}{}", new.pem(), old.pem())), &[]).ok()?;
        let leaf = |name: &str, pem: &str| {
            json!({ "kind": "Client", "namespace": stage.ns, "name": name, "subject": format!("CN={name}"),
                "notAfter": "2099-01-01T00:00:00Z", "pem": pem })
        };
        let mut in_use = status(&stage.ns, &[]);
        in_use["leaves"] =
            json!([leaf("storefront", &new.issue_client("storefront")?.0), leaf("shop", &old.issue_client("shop")?.0)]);
        set_status(cluster, &stage.ns, &in_use)?;
        let without = with(&secret, "ca.crt", &new.pem());
        let dry = ["--dry-run=server"];
        wait_for("the webhook to hear of the leaf", SOON, || Ok(!put(stage, &without, &dry).run()?.success()))?;
        let (asked, refused) = (put(stage, &without, &dry).fails()?, put(stage, &without, &[]).fails()?);
        ensure!(refused.contains("connectivity: data[ca.crt]") && refused.contains("1 active client"), "saw {refused}");
        ensure!(refused.contains("(shop)") && asked == refused, "dry run: {asked}\napply: {refused}");
        stage.kubectl(["label", "secret", MANAGED, "team=checkout"]).ok()?;
        // After the client was renewed, the old CA can be removed.
        in_use["leaves"] =
            json!([leaf("storefront", &new.issue_client("storefront")?.0), leaf("shop", &new.issue_client("shop")?.0)]);
        set_status(cluster, &stage.ns, &in_use)?;
        wait_for("the webhook to let the old CA go", SOON, || Ok(put(stage, &without, &[]).run()?.success()))
    })
}

/// Istio takes CAs from a `-cacert` sibling as soon as it exists.
fn a_sibling_holds_the_ca_that_live_clients_need(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let (held, other) = (Authority::new("old root")?, Authority::new("new root")?);
        let mut in_use = status(&stage.ns, &[]);
        in_use["bundle"] = json!([{ "subject": "CN=old root", "fingerprint": "0", "notBefore": "2026-01-01T00:00:00Z",
            "notAfter": "2099-01-01T00:00:00Z", "pem": held.pem() }]);
        in_use["leaves"] = json!([{ "kind": "Client", "namespace": stage.ns, "name": "shop", "subject": "CN=shop",
            "notAfter": "2099-01-01T00:00:00Z", "pem": held.issue_client("shop")?.0 }]);
        set_status(cluster, &stage.ns, &in_use)?;
        let sibling = |cas: String| {
            json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": format!("{MANAGED}-cacert") },
                "stringData": { "cacert": cas } })
        };
        let alone = sibling(other.pem());
        let dry = ["--dry-run=server"];
        wait_for("the webhook to hear of the leaf", SOON, || Ok(!put(stage, &alone, &dry).run()?.success()))?;
        let refused = put(stage, &alone, &[]).fails()?;
        ensure!(refused.contains("connectivity: data[cacert]") && refused.contains("(shop)"), "saw {refused}");
        put(stage, &sibling(other.pem() + &held.pem()), &[]).ok().map(drop)
    })
}

fn a_client_leaf_waits_for_its_ca(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let (old, new) = (Authority::new("old root")?, Authority::new("new root")?);
        let anchor = |authority: &Authority| {
            json!({ "subject": "CN=root", "fingerprint": "0", "notBefore": "2026-01-01T00:00:00Z",
                "notAfter": "2099-01-01T00:00:00Z", "pem": authority.pem() })
        };
        let mut held = status(&stage.ns, &[]);
        held["bundle"] = json!([anchor(&old)]);
        set_status(cluster, &stage.ns, &held)?;
        let client = |authority: &Authority| -> Result<Value> {
            let (certificate, key) = authority.issue_client("shop")?;
            Ok(json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": { "name": "shop", "labels": { "trustspan.dev/client": MANAGED } },
                "stringData": { "ca.crt": old.pem(), "tls.crt": certificate, "tls.key": key },
            }))
        };
        let renewed = client(&new)?;
        let dry = ["--dry-run=server"];
        wait_for("the webhook to hear of the bundle", SOON, || Ok(!put(stage, &renewed, &dry).run()?.success()))?;
        put(stage, &client(&old)?, &[]).ok()?;
        let refused = put(stage, &renewed, &[]).fails()?;
        ensure!(refused.contains("connectivity: data[tls.crt]") && refused.contains("retry"), "saw {refused}");
        held["bundle"] = json!([anchor(&old), anchor(&new)]);
        set_status(cluster, &stage.ns, &held)?;
        wait_for("the renewal to pass", SOON, || Ok(put(stage, &renewed, &[]).run()?.success()))
    })
}
