//! Gateways with real kubectl: however they are written, the stored object names the managed Secret.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::stage::{MANAGED, SOURCE, Stage, credential, expect, on_stage, set_status, status};
use crate::testbed::{Cluster, SOON, wait_for};

cases![
    rewrites_every_istio_version,
    rewrites_every_gateway_api_version,
    a_second_apply_changes_nothing,
    a_second_server_side_apply_changes_nothing,
    a_dry_run_shows_the_rewrite_and_stores_nothing,
    replace_patch_and_edit_end_up_rewritten,
    generate_name_ends_up_rewritten,
    a_delete_and_a_finalizer_go_through,
    a_gateway_in_deletion_is_judged_for_its_changes,
    passes_unchanged_with_a_warning_while_not_ready,
    an_object_that_opts_out_passes_unchanged,
    a_gateway_for_unobserved_workloads_passes_unchanged,
];

pub(crate) const ISTIO: &str = "gateways.v1.networking.istio.io";

fn rewrites_every_istio_version(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        for version in ["v1", "v1beta1", "v1alpha3"] {
            let mut gateway = stage.istio(version, SOURCE);
            gateway["apiVersion"] = json!(format!("networking.istio.io/{version}"));
            stage.apply(&gateway)?;
            expect(version, credential(&stage.get(ISTIO, version)?), MANAGED)?;
        }
        let mut many = stage.istio("many", SOURCE);
        many["spec"]["servers"][0]["tls"] = json!({ "mode": "MUTUAL", "credentialNames": [SOURCE, "other"], "caCertCredentialName": format!("{SOURCE}-cacert") });
        stage.apply(&many)?;
        let tls = &stage.get(ISTIO, "many")?["spec"]["servers"][0]["tls"];
        expect("credentialNames", &tls["credentialNames"], json!([MANAGED, "other"]))?;
        expect("caCertCredentialName", &tls["caCertCredentialName"], format!("{MANAGED}-cacert"))?;
        // With a name that lacks the suffix `-cacert`, istiod sends no CA.
        many["spec"]["servers"][0]["tls"]["caCertCredentialName"] = json!(SOURCE);
        let denied = stage.apply(&many).expect_err("a denial").to_string();
        ensure!(denied.contains("admits-everybody"), "{denied}");
        Ok(())
    })
}

fn rewrites_every_gateway_api_version(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        for version in ["v1", "v1beta1"] {
            let reference = json!({ "group": "", "kind": "Secret", "name": SOURCE });
            let gateway = json!({
                "apiVersion": format!("gateway.networking.k8s.io/{version}"), "kind": "Gateway",
                "metadata": { "name": version },
                "spec": {
                    "gatewayClassName": "istio",
                    "listeners": [{
                        "name": "https", "port": 443, "protocol": "HTTPS",
                        "tls": { "mode": "Terminate", "certificateRefs": [reference] },
                    }],
                    "tls": {
                        "frontend": {
                            "default": { "validation": { "caCertificateRefs": [reference] } },
                            "perPort": [{ "port": 443, "tls": { "validation": { "caCertificateRefs": [reference] } } }],
                        },
                        "backend": { "clientCertificateRef": reference },
                    },
                },
            });
            stage.apply(&gateway)?;
            let stored = stage.get(&format!("gateways.{version}.gateway.networking.k8s.io"), version)?;
            for field in [
                "/spec/listeners/0/tls/certificateRefs/0/name",
                "/spec/tls/frontend/default/validation/caCertificateRefs/0/name",
                "/spec/tls/frontend/perPort/0/tls/validation/caCertificateRefs/0/name",
                "/spec/tls/backend/clientCertificateRef/name",
            ] {
                expect(field, stored.pointer(field).unwrap_or(&Value::Null), MANAGED)?;
            }
        }
        Ok(())
    })
}

fn a_second_apply_changes_nothing(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let gateway = stage.istio("shop", SOURCE);
        stage.apply(&gateway)?;
        let before = stage.version(ISTIO, "shop")?;
        stage.apply(&gateway)?;
        ensure!(stage.version(ISTIO, "shop")? == before, "the second apply changed {before:?}");
        stage.kubectl(["diff", "-f", "-"]).stdin(gateway.to_string()).ok().map(drop)
    })
}

fn a_second_server_side_apply_changes_nothing(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let gateway = stage.istio("shop", SOURCE).to_string();
        let apply = ["apply", "--server-side", "-f", "-"];
        stage.kubectl(apply).stdin(gateway.clone()).ok()?;
        expect("stored", credential(&stage.get(ISTIO, "shop")?), MANAGED)?;
        let before = stage.version(ISTIO, "shop")?;
        stage.kubectl(apply).stdin(gateway.clone()).ok()?;
        ensure!(stage.version(ISTIO, "shop")? == before, "the second apply changed {before:?}");
        stage.kubectl(["diff", "--server-side", "-f", "-"]).stdin(gateway).ok().map(drop)
    })
}

fn a_dry_run_shows_the_rewrite_and_stores_nothing(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let gateway = stage.istio("shop", SOURCE).to_string();
        let dry_run = ["apply", "--dry-run=server", "-o", "json", "-f", "-"];
        let shown: Value = serde_json::from_str(&stage.kubectl(dry_run).stdin(gateway.clone()).ok()?)?;
        expect("shown", credential(&shown), MANAGED)?;
        ensure!(!cluster.exists(ISTIO, &stage.ns, "shop")?, "a dry run stored the Gateway");
        stage.kubectl(["apply", "-f", "-"]).stdin(gateway.clone()).ok()?;
        let before = stage.version(ISTIO, "shop")?;
        stage.kubectl(dry_run).stdin(gateway).ok()?;
        ensure!(stage.version(ISTIO, "shop")? == before, "a dry run changed the Gateway");
        Ok(())
    })
}

fn replace_patch_and_edit_end_up_rewritten(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let stored = |what: &str| expect(what, credential(&stage.get(ISTIO, "shop")?), MANAGED);
        stage.kubectl(["create", "-f", "-"]).stdin(stage.istio("shop", "other").to_string()).ok()?;
        expect("a stranger's Secret", credential(&stage.get(ISTIO, "shop")?), "other")?;

        stage.kubectl(["replace", "-f", "-"]).stdin(stage.istio("shop", SOURCE).to_string()).ok()?;
        stored("replace")?;

        let back = json!([{ "op": "replace", "path": "/spec/servers/0/tls/credentialName", "value": SOURCE }]);
        stage.kubectl(["patch", ISTIO, "shop", "--type=json", "--patch", &back.to_string()]).ok()?;
        stored("patch")?;

        // The host shows that the edit was stored.
        let editor = format!("sed -i -e 's/{MANAGED}$/{SOURCE}/' -e 's/shop.example.com/edited.example.com/'");
        stage.kubectl(["edit", ISTIO, "shop"]).env("KUBE_EDITOR", editor).ok()?;
        expect("host", &stage.get(ISTIO, "shop")?["spec"]["servers"][0]["hosts"], json!(["edited.example.com"]))?;
        stored("edit")
    })
}

fn generate_name_ends_up_rewritten(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let mut gateway = stage.istio("", SOURCE);
        gateway["metadata"] = json!({ "generateName": "shop-" });
        stage.kubectl(["create", "-f", "-"]).stdin(gateway.to_string()).ok()?;
        let stored = cluster.list(ISTIO, &stage.ns, "")?;
        ensure!(stored.len() == 1, "expected one Gateway, saw {}", stored.len());
        expect("stored", credential(&stored[0]), MANAGED)
    })
}

/// Gateway `shop`, kept by a finalizer while it is being deleted.
fn in_deletion(stage: &Stage<'_>) -> Result<Value> {
    let mut gateway = stage.istio("shop", SOURCE);
    gateway["metadata"]["finalizers"] = json!(["example.com/hold"]);
    stage.apply(&gateway)?;
    stage.kubectl(["delete", ISTIO, "shop", "--wait=false"]).ok()?;
    ensure!(stage.get(ISTIO, "shop")?["metadata"]["deletionTimestamp"].is_string(), "not being deleted");
    Ok(gateway)
}

fn a_delete_and_a_finalizer_go_through(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        in_deletion(stage)?;
        let free = json!({ "metadata": { "finalizers": null } }).to_string();
        stage.kubectl(["patch", ISTIO, "shop", "--type=merge", "--patch", &free]).ok()?;
        wait_for("the Gateway to be gone", SOON, || Ok(!cluster.exists(ISTIO, &stage.ns, "shop")?))
    })
}

/// istiod serves it until its finalizers are gone.
fn a_gateway_in_deletion_is_judged_for_its_changes(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let gateway = in_deletion(stage)?;
        let patch =
            |patch: Value| stage.kubectl(["patch", ISTIO, "shop", "--type=merge", "--patch", &patch.to_string()]);
        let mut servers = gateway["spec"]["servers"].clone();
        servers[0]["tls"]["caCertCredentialName"] = json!(SOURCE);
        let denied = patch(json!({ "spec": { "servers": servers } })).fails()?;
        ensure!(denied.contains("admits-everybody"), "{denied}");
        patch(json!({ "metadata": { "finalizers": null } })).ok()?;
        wait_for("the Gateway to be gone", SOON, || Ok(!cluster.exists(ISTIO, &stage.ns, "shop")?))
    })
}

fn passes_unchanged_with_a_warning_while_not_ready(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let mut unready = status(&stage.ns, &[]);
        unready["conditions"][0]["status"] = json!("False");
        unready["conditions"][0]["reason"] = json!("SecretMissing");
        set_status(cluster, &stage.ns, &unready)?;
        let gateway = stage.istio("shop", SOURCE).to_string();
        wait_for("a warning", SOON, || {
            let output = stage.kubectl(["apply", "--dry-run=server", "-f", "-"]).stdin(gateway.clone()).run()?;
            Ok(output.success() && output.stderr.contains("not Ready (SecretMissing)"))
        })?;
        stage.kubectl(["apply", "-f", "-"]).stdin(gateway).ok()?;
        let stored = stage.get(ISTIO, "shop")?;
        expect("stored", credential(&stored), SOURCE)?;
        ensure!(stored["metadata"]["annotations"]["trustspan.dev/undo"].is_null(), "changed: {stored}");
        Ok(())
    })
}

fn an_object_that_opts_out_passes_unchanged(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let mut gateway = stage.istio("shop", SOURCE);
        gateway["metadata"]["annotations"] = json!({ "trustspan.dev/rewrite": "disabled" });
        stage.apply(&gateway)?;
        expect("stored", credential(&stage.get(ISTIO, "shop")?), SOURCE)
    })
}

fn a_gateway_for_unobserved_workloads_passes_unchanged(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let mut elsewhere = status(&stage.ns, &[]);
        elsewhere["workloadNamespaces"] = json!([stage.ns, "another-team"]);
        set_status(cluster, &stage.ns, &elsewhere)?;
        let gateway = stage.istio("shop", SOURCE).to_string();
        wait_for("a warning", SOON, || {
            let output = stage.kubectl(["apply", "--dry-run=server", "-f", "-"]).stdin(gateway.clone()).run()?;
            ensure!(!output.stderr.contains("another-team"), "names a namespace of others: {}", output.stderr);
            Ok(output.success() && output.stderr.contains("has no GatewaySecret for Secret gateway-root"))
        })?;
        stage.kubectl(["apply", "-f", "-"]).stdin(gateway).ok()?;
        expect("stored", credential(&stage.get(ISTIO, "shop")?), SOURCE)
    })
}
