//! The webhook with `--client-ca-file`: only an API server whose AdmissionConfiguration has a certificate for it gets a verdict.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use axum::http::Request;
use base64::{Engine, engine::general_purpose::STANDARD};
use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use crate::testbed::{Authority, Cluster, SOON, Server, Source, User, wait_for};

cases![only_an_api_server_with_a_client_certificate_gets_a_verdict];

/// Common name of the certificate that the API server shows.
const NAME: &str = "kube-apiserver-webhooks";

/// A Secret that is always rejected.
fn secret() -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ca"}, "stringData": {"ca.crt": "no PEM at all"}})
}

fn configuration(server: &Server<'_>, namespace: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": format!("client-auth-{namespace}")},
        "webhooks": [{
            "name": "client-auth.trustspan.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["CREATE"]}],
            "clientConfig": {"url": server.url("/validate-guarded"), "caBundle": STANDARD.encode(server.ca_bundle())},
        }],
    })
}

/// A kubeconfig with a client certificate of a CA, in JSON. Users of an AdmissionConfiguration have the names of webhooks' hosts.
fn kubeconfig(user: &str, name: &str, ca: &Authority, cluster: &Value) -> Result<Value> {
    let (certificate, key) = ca.issue_client(name)?;
    let (certificate, key) = (STANDARD.encode(certificate), STANDARD.encode(key));
    Ok(json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bed",
        "clusters": [{"name": "bed", "cluster": cluster}],
        "users": [{"name": user, "user": {"client-certificate-data": certificate, "client-key-data": key}}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": user}}],
    }))
}

/// Writes the AdmissionConfiguration of docs/operations.md.
fn admission_configuration(dir: &Path, kubeconfig: &Value) -> Result<String> {
    let file = dir.join("webhooks.kubeconfig");
    fs::write(&file, kubeconfig.to_string())?;
    let plugin = |name: &str| {
        json!({"name": name, "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": file}})
    };
    let plugins = ["MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"].map(plugin);
    let configuration =
        json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins});
    let path = dir.join("admission.yaml");
    fs::write(&path, configuration.to_string())?;
    Ok(format!("--admission-control-config-file={}", path.display()))
}

fn only_an_api_server_with_a_client_certificate_gets_a_verdict(cluster: &Cluster) -> Result<()> {
    let dir = cluster.temp_dir("client-auth")?;
    let (webhook_clients, api_clients) = (Authority::new("clients of webhooks")?, Authority::new("clients")?);
    let (webhook_ca, api_ca) = (dir.join("webhook-clients.crt"), dir.join("clients.crt"));
    fs::write(&webhook_ca, webhook_clients.pem())?;
    fs::write(&api_ca, api_clients.pem())?;
    let flags = ["--client-ca-file", &webhook_ca.display().to_string(), "--client-name", NAME, "--drain-delay=0s"];
    let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &flags)?;

    let user = format!("127.0.0.1:{}", server.port());
    let shown = kubeconfig(&user, NAME, &webhook_clients, &json!({"server": "https://127.0.0.1"}))?;
    let flag = admission_configuration(&dir, &shown)?;
    let (api_server, port) = cluster.second_api_server(&api_ca, &[flag])?;
    let bed = json!({"server": format!("https://127.0.0.1:{port}"),
        "certificate-authority-data": STANDARD.encode(cluster.bed_ca()?)});
    let admin = kubeconfig("bed", "admin", &api_clients, &bed)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let client = runtime.block_on(async {
        let (kubeconfig, options) = (Kubeconfig::from_yaml(&admin.to_string())?, KubeConfigOptions::default());
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        anyhow::Ok(Client::try_from(config)?)
    })?;
    let create = |path: &str, object: &Value| -> Result<(), kube::Error> {
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(object.to_string().into_bytes()).expect("a request");
        runtime.block_on(client.request::<Value>(request)).map(drop)
    };
    wait_for("the second API server to take a webhook", SOON, || {
        let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        match create(path, &configuration(&server, "default")) {
            Ok(()) => Ok(true),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(true),
            Err(error) => Err(error.into()),
        }
    })
    .with_context(|| api_server.log_tail(20))?;
    wait_for("a verdict through the second API server", SOON, || {
        match create("/api/v1/namespaces/default/secrets?dryRun=All", &secret()) {
            // The API server learns of the webhook through a watch.
            Ok(()) => Ok(false),
            Err(error) => {
                ensure!(error.to_string().contains("denied the request: "), "saw {error}");
                Ok(true)
            }
        }
    })
    .with_context(|| api_server.log_tail(20))?;

    // The first API server shows no certificate.
    cluster.with_temp_ns(|ns| {
        let configuration = configuration(&server, ns);
        cluster.kubectl(["create", "-f", "-"]).stdin(configuration.to_string()).ok()?;
        let refused = wait_for("a call of the webhook", SOON, || {
            let output =
                cluster.kubectl(["create", "--dry-run=server", "-f", "-"]).ns(ns).stdin(secret().to_string()).run()?;
            if output.success() {
                return Ok(false);
            }
            ensure!(output.stderr.contains("failed calling webhook"), "{}", output.stderr);
            ensure!(output.stderr.contains("tls: certificate required"), "{}", output.stderr);
            Ok(true)
        });
        let name = configuration["metadata"]["name"].as_str().context("a name")?;
        cluster.kubectl(["delete", "validatingwebhookconfiguration", name]).ok()?;
        refused
    })
}
