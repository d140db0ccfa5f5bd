//! The test bed itself: checks what all other tests rely on.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::testbed::{Cluster, SOON, User, wait_for, wait_for_value};

cases![
    answers_as_the_release_under_test,
    stores_every_served_istio_gateway,
    stores_a_gateway_api_gateway_with_tls,
    drains_a_deleted_namespace,
    rolls_a_deployment_out_once,
    garbage_collects,
    keeps_users_apart,
    edits_with_an_editor,
];

fn answers_as_the_release_under_test(cluster: &Cluster) -> Result<()> {
    let version: Value = serde_json::from_str(&cluster.kubectl(["version", "-o", "json"]).ok()?)?;
    ensure!(version["serverVersion"]["major"] == "1", "saw {version}");
    // With KUBEBUILDER_ASSETS the binaries may be of another release.
    if std::env::var_os("KUBEBUILDER_ASSETS").is_none() {
        for side in ["clientVersion", "serverVersion"] {
            ensure!(version[side]["minor"] == "36", "expected 1.36, saw {version}");
        }
    }
    Ok(())
}

fn stores_every_served_istio_gateway(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        for version in ["v1", "v1beta1", "v1alpha3"] {
            let gateway = json!({
                "apiVersion": format!("networking.istio.io/{version}"), "kind": "Gateway",
                "metadata": { "name": version },
                "spec": {
                    "selector": { "istio": "ingressgateway" },
                    "servers": [{
                        "port": { "number": 443, "name": "https", "protocol": "HTTPS" },
                        "hosts": ["shop.example.com"],
                        "tls": { "mode": "MUTUAL", "credentialName": "shop" },
                    }],
                },
            });
            cluster.apply(ns, &gateway.to_string())?;
            let stored = cluster.get(&format!("gateways.{version}.networking.istio.io"), ns, version)?;
            ensure!(stored["apiVersion"] == gateway["apiVersion"], "saw {stored}");
            ensure!(stored["spec"] == gateway["spec"], "saw {stored}");
        }
        Ok(())
    })
}

fn stores_a_gateway_api_gateway_with_tls(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        for version in ["v1", "v1beta1"] {
            let secret = json!({ "group": "", "kind": "Secret", "name": "shop" });
            let gateway = json!({
                "apiVersion": format!("gateway.networking.k8s.io/{version}"), "kind": "Gateway",
                "metadata": { "name": version },
                "spec": {
                    "gatewayClassName": "istio",
                    "listeners": [{
                        "name": "https", "port": 443, "protocol": "HTTPS",
                        "tls": { "mode": "Terminate", "certificateRefs": [secret] },
                    }],
                    "tls": {
                        "frontend": { "default": { "validation": { "caCertificateRefs": [secret] } } },
                        "backend": { "clientCertificateRef": secret },
                    },
                },
            });
            cluster.apply(ns, &gateway.to_string())?;
            let stored = cluster.get(&format!("gateways.{version}.gateway.networking.k8s.io"), ns, version)?;
            for field in [
                "/spec/tls/frontend/default/validation/caCertificateRefs/0/name",
                "/spec/tls/backend/clientCertificateRef/name",
            ] {
                ensure!(stored.pointer(field) == Some(&"shop".into()), "{field}: expected shop, saw {stored}");
            }
        }
        Ok(())
    })
}

fn drains_a_deleted_namespace(cluster: &Cluster) -> Result<()> {
    let drained = cluster.with_temp_ns(|ns| {
        cluster.kubectl(["create", "configmap", "something"]).ns(ns).ok()?;
        Ok(ns.to_owned())
    })?;
    wait_for(&format!("namespace {drained} to be gone"), SOON, || Ok(!cluster.exists("namespace", "", &drained)?))
}

fn rolls_a_deployment_out_once(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        cluster.apply(ns, DEPLOYMENT)?;
        wait_for("the Deployment to be observed", SOON, || {
            let deployment = cluster.get("deployment", ns, "shop")?;
            let status = &deployment["status"];
            Ok(status["observedGeneration"] == 1 && status["unavailableReplicas"] == 2)
        })?;
        // A label outside of the pod template must not cause a rollout.
        cluster.kubectl(["label", "deployment", "shop", "team=checkout"]).ns(ns).ok()?;
        cluster.kubectl(["scale", "deployment", "shop", "--replicas=3"]).ns(ns).ok()?;
        wait_for("the scale to be observed", SOON, || {
            let deployment = cluster.get("deployment", ns, "shop")?;
            Ok(deployment["status"]["observedGeneration"] == 2 && deployment["status"]["unavailableReplicas"] == 3)
        })?;
        let sets = cluster.list("replicasets", ns, "app=shop")?;
        ensure!(sets.len() == 1, "expected one ReplicaSet, saw {}", sets.len());
        cluster.kubectl(["rollout", "restart", "deployment", "shop"]).ns(ns).ok()?;
        wait_for("a second ReplicaSet", SOON, || Ok(cluster.list("replicasets", ns, "app=shop")?.len() == 2))
    })
}

fn garbage_collects(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        cluster.apply(ns, DEPLOYMENT)?;
        wait_for("a ReplicaSet", SOON, || Ok(cluster.list("replicasets", ns, "")?.len() == 1))?;
        cluster.kubectl(["delete", "deployment", "shop", "--wait=false"]).ns(ns).ok()?;
        wait_for("the ReplicaSet to be collected", SOON, || Ok(cluster.list("replicasets", ns, "")?.is_empty()))
    })
}

fn keeps_users_apart(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        for user in [User::Admin, User::Dev, User::Agent, User::Webhook] {
            let seen = cluster.kubectl(["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]);
            let seen = seen.user(user).ok()?;
            ensure!(seen == user.name(), "expected {}, saw {seen}", user.name());
        }
        cluster.kubectl(["auth", "can-i", "patch", "gateways.networking.istio.io"]).ns(ns).user(User::Dev).ok()?;
        let denied = cluster.kubectl(["delete", "namespace", ns]).user(User::Dev).fails()?;
        ensure!(denied.contains("Forbidden"), "saw {denied}");
        Ok(())
    })
}

fn edits_with_an_editor(cluster: &Cluster) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        cluster.kubectl(["create", "configmap", "shop", "--from-literal=colour=red"]).ns(ns).ok()?;
        let edit = cluster.kubectl(["edit", "configmap", "shop"]).ns(ns);
        edit.env("KUBE_EDITOR", "sed -i 's/colour: red/colour: green/'").ok()?;
        let colour = wait_for_value("the edit", SOON, || {
            Ok(cluster.get("configmap", ns, "shop")?["data"]["colour"].as_str().map(str::to_owned))
        })?;
        ensure!(colour == "green", "saw {colour}");
        Ok(())
    })
}

const DEPLOYMENT: &str = r"
apiVersion: apps/v1
kind: Deployment
metadata: { name: shop }
spec:
  replicas: 2
  selector: { matchLabels: { app: shop } }
  template:
    metadata: { labels: { app: shop } }
    spec:
      containers:
      - { name: shop, image: shop.example.com/shop }
";
