//! From the first bootstrap to the uninstallation.

use std::fs;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};
use trustspan::identity::kubeconfig;

use crate::{
    Bed,
    request_loop::{RequestLoop, block_on, client},
    scene::{Counts, ONE, Scene, install, start_approver, start_approver_at},
    testbed::{SOON, free_port, http_get, shipped, wait_for, wait_for_value},
};

/// One of two approvers leads. Both are ready, so that a rollout ends.
pub(crate) fn standby(bed: &Bed) -> Result<()> {
    install(&bed.main)?;
    let ports = [free_port()?, free_port()?];
    let _approvers = [start_approver_at(&bed.main, ports[0], &[])?, start_approver_at(&bed.main, ports[1], &[])?];
    ports
        .iter()
        .try_for_each(|port| wait_for("an approver to be ready", SOON, || Ok(http_get(*port, "/readyz")?.0 == 200)))
}

/// Bootstrap token, request, approval, kubeconfig, and requests with just the declared rights.
pub(crate) fn bootstraps(bed: &Bed) -> Result<()> {
    let scene = Scene::new(&bed.main, "bootstraps")?;
    let approver = start_approver(&bed.main, &[])?;
    scene.apply(&scene.object(&json!({}))?)?;
    let object = scene.wait_valid("False", "NoCertificate")?;
    let token = object["status"]["bootstrap"]["tokenId"].as_str().context("no token")?.to_owned();
    let secret = bed.main.get("secret", "kube-system", &format!("bootstrap-token-{token}"))?;
    ensure!(secret["type"] == "bootstrap.kubernetes.io/token", "saw {}", secret["type"]);

    let client_process = scene.start_own_client()?;
    let text = scene.new_kubeconfig("", SOON)?;
    let object = scene.wait_valid("True", "Issued")?;
    let requests = scene.requests()?;
    ensure!(requests.len() == 1, "expected one request, saw {}", requests.len());
    let condition = &requests[0]["status"]["conditions"][0];
    let expected = ("Approved", "AutoApproved");
    ensure!(
        (condition["type"].as_str(), condition["reason"].as_str()) == (Some(expected.0), Some(expected.1)),
        "{condition}"
    );
    ensure!(condition["message"].as_str().is_some_and(|text| text.contains("SubjectAccessReview")), "{condition}");
    ensure!(
        requests[0]["spec"]["username"] == format!("system:bootstrap:{token}"),
        "{}",
        requests[0]["spec"]["username"]
    );
    ensure!(object["metadata"]["finalizers"].is_null(), "finalizers: {}", object["metadata"]["finalizers"]);

    let namespace = scene.namespace().to_owned();
    block_on(async {
        let client = client(&text).await?;
        Api::<ConfigMap>::namespaced(client.clone(), &namespace).list(&ListParams::default()).await?;
        for (what, result) in [
            (
                "Secrets",
                Api::<Secret>::namespaced(client.clone(), &namespace).list(&ListParams::default()).await.map(drop),
            ),
            (
                "another namespace",
                Api::<ConfigMap>::namespaced(client.clone(), "kube-system")
                    .list(&ListParams::default())
                    .await
                    .map(drop),
            ),
            ("create", {
                let object = ConfigMap {
                    metadata: kube::api::ObjectMeta { name: Some("x".to_owned()), ..Default::default() },
                    ..Default::default()
                };
                Api::<ConfigMap>::namespaced(client, &namespace).create(&PostParams::default(), &object).await.map(drop)
            }),
        ] {
            let is_forbidden = matches!(&result, Err(kube::Error::Api(status)) if status.code == 403);
            ensure!(is_forbidden, "{what}: expected 403, saw {result:?}");
        }
        Ok(())
    })?;
    let work = RequestLoop::start(&scene.kubeconfig(), &namespace);
    wait_for("100 requests", SOON, || Ok(work.tally().succeeded >= 100))?;
    let tally = work.end("work")?;
    ensure!(tally.failed() == 0, "requests failed");

    let mode = fs::metadata(scene.kubeconfig())?.permissions();
    ensure!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777 == 0o600, "the kubeconfig is readable by others");
    ensure!(!scene.directory.join("pending.key").exists(), "the pending key is still there");
    let (token_text, key) = secrets_of(&scene, &text)?;
    for (name, log) in [("approver", approver.log()), ("client", client_process.log())] {
        ensure!(!log.contains(&token_text) && !log.contains(&key), "the log of the {name} holds a secret");
    }
    Ok(())
}

/// The token's secret, and a part of the key.
fn secrets_of(scene: &Scene<'_>, kubeconfig: &str) -> Result<(String, String)> {
    let config: Value = serde_json::from_str(&scene.bootstrap_kubeconfig()?)?;
    let token = config["users"][0]["user"]["token"].as_str().context("no token")?;
    let secret = token.split_once('.').context("not a token")?.1.to_owned();
    let config: Value = serde_json::from_str(kubeconfig)?;
    let key = config["users"][0]["user"]["client-key-data"].as_str().context("no key")?;
    Ok((secret, key[60..100].to_owned()))
}

/// The second form: key and kubeconfig in one Secret.
pub(crate) fn in_a_secret(bed: &Bed) -> Result<()> {
    let scene = Scene::new(&bed.main, "in-a-secret")?;
    let _approver = start_approver(&bed.main, &[])?;
    scene.apply(&scene.object(&json!({}))?)?;
    let namespace = scene.namespace();
    let to = format!("--to-secret={namespace}/payments-kubeconfig");
    let _client = scene.start_client(&bed.main, &format!("{namespace}/payments-bootstrap"), &[to])?;
    scene.wait_valid("True", "Issued")?;
    let data = wait_for_value("the kubeconfig in the Secret", SOON, || {
        let secret = bed.main.get("secret", namespace, "payments-kubeconfig")?;
        Ok(Some(secret["data"].clone()).filter(|data| data["kubeconfig"].is_string()))
    })?;
    ensure!(data["pending.key"].is_null(), "the pending key is still there");
    ensure!(Counts { tokens: 0, ..scene.counts()? } == ONE, "saw {:?}", scene.counts()?);
    Ok(())
}

/// No client uses the first tokens. The client that comes later waits for a new one.
pub(crate) fn expired_token(bed: &Bed) -> Result<()> {
    let scene = Scene::new(&bed.main, "expired-token")?;
    let short = start_approver(&bed.main, &["--token-lifetime=1s"])?;
    scene.apply(&scene.object(&json!({}))?)?;
    wait_for("the third token", SOON, || {
        let attempts = scene.stored()?["status"]["bootstrap"]["attempts"].as_i64();
        Ok(attempts.is_some_and(|attempts| attempts >= 3))
    })?;
    drop(short);
    // The last token may be of the last second, and a request by it would be a request too many.
    let expiration: Timestamp = serde_json::from_value(scene.stored()?["status"]["bootstrap"]["expiration"].clone())?;
    wait_for("the token to expire", SOON, || Ok(Timestamp::now() > expiration))?;
    let expired = scene.bootstrap_kubeconfig()?;
    let client_process = scene.start_own_client()?;
    wait_for("the client to be refused", SOON, || Ok(client_process.log().contains("Unauthorized")))?;
    ensure!(!scene.kubeconfig().exists(), "a kubeconfig by an expired token");
    let _approver = start_approver(&bed.main, &[])?;
    scene.new_kubeconfig("", SOON)?;
    ensure!(scene.bootstrap_kubeconfig()? != expired, "the bootstrap kubeconfig is the old one");
    scene.wait_valid("True", "Issued")?;
    let requests = scene.requests()?;
    ensure!(requests.len() == 1, "expected one request, saw {}", requests.len());
    Ok(())
}

/// Restored from a backup, in three ways. The client has a kubeconfig that works, and nothing is made again.
pub(crate) fn restored(bed: &Bed) -> Result<()> {
    let scene = Scene::new(&bed.main, "restored")?;
    let approver = start_approver(&bed.main, &[])?;
    let object = scene.object(&json!({}))?;
    scene.apply(&object)?;
    let client_process = scene.start_own_client()?;
    let text = scene.new_kubeconfig("", SOON)?;
    let backup = scene.wait_valid("True", "Issued")?;
    let bootstrap = scene.bootstrap_kubeconfig()?;
    drop(approver);

    let mut annotated = object.clone();
    annotated["metadata"]["annotations"] = backup["metadata"]["annotations"].clone();
    ensure!(annotated["metadata"]["annotations"]["trustspan.dev/client-certificate"].is_string(), "no record");
    // With the annotation; without it, while the request exists; and without both.
    for (what, restored, with_requests) in
        [("with the annotation", &annotated, false), ("by the request", &object, true), ("by nothing", &object, false)]
    {
        let delete = ["delete", "clientidentities", "payments", "--cascade=orphan"];
        bed.main.kubectl(delete).ns(scene.namespace()).ok()?;
        if !with_requests && what == "by nothing" {
            for request in scene.requests()? {
                let name = request["metadata"]["name"].as_str().context("no name")?;
                bed.main.kubectl(["delete", "csr", name]).ok()?;
            }
        }
        let requests = scene.requests()?.len();
        scene.apply(restored)?;
        ensure!(scene.stored()?["status"].is_null(), "there is a status");
        let approver = start_approver(&bed.main, &[])?;
        if what == "by nothing" {
            // A bootstrap kubeconfig is made, which the client reads and does not need.
            scene.wait_valid("False", "NoCertificate")?;
            wait_for("the client to read it", SOON, || {
                Ok(client_process.log().matches("bootstrap kubeconfig read").count() >= 2)
            })?;
            let renewed = scene.bootstrap_kubeconfig()?;
            let target = |text: &str| kubeconfig::parse(text).map(|(one, _)| one.server).map_err(anyhow::Error::msg);
            ensure!(target(&renewed)?.is_same(&target(&bootstrap)?), "another server");
        } else {
            scene.wait_valid("True", "Issued")?;
            ensure!(scene.bootstrap_kubeconfig()? == bootstrap, "{what}: another bootstrap kubeconfig");
        }
        let counts = scene.counts()?;
        println!("restored {what}: {counts:?}");
        let expected = Counts { requests, tokens: usize::from(what == "by nothing"), ..ONE };
        ensure!(counts == expected, "{what}: expected {expected:?}, saw {counts:?}");
        ensure!(fs::read_to_string(scene.kubeconfig())? == text, "{what}: another kubeconfig");
        drop(approver);
    }
    Ok(())
}

/// First the approver, then the CustomResourceDefinition. Nothing waits for a controller that is gone.
pub(crate) fn uninstalled(bed: &Bed) -> Result<()> {
    let cluster = bed.another()?;
    let scene = Scene::new(&cluster, "uninstalled")?;
    let approver = start_approver(&cluster, &[])?;
    scene.apply(&scene.object(&json!({}))?)?;
    let client_process = scene.start_own_client()?;
    scene.new_kubeconfig("", SOON)?;
    scene.wait_valid("True", "Issued")?;
    drop(client_process);
    drop(approver);

    let label = format!("trustspan.dev/client-identity-namespace={}", scene.namespace());
    let mut left = Vec::new();
    for (kind, namespace) in [
        ("clientidentities", scene.namespace()),
        ("secrets", scene.namespace()),
        ("roles", scene.namespace()),
        ("rolebindings", scene.namespace()),
        ("secrets", "kube-system"),
        ("clusterroles", "default"),
        ("clusterrolebindings", "default"),
    ] {
        let selector = if kind == "clientidentities" { "" } else { &label };
        left.extend(cluster.list(kind, namespace, selector)?);
    }
    left.extend(cluster.list("certificatesigningrequests", "default", "")?);
    let with_finalizers = left.iter().filter(|object| !object["metadata"]["finalizers"].is_null()).count();
    println!("uninstalled: {} objects, {with_finalizers} with finalizers", left.len());
    ensure!(with_finalizers == 0, "expected none");
    for request in cluster.list("certificatesigningrequests", "default", "")? {
        ensure!(is_removed_by_the_cleaner(&request), "kube-controller-manager would not remove {request}");
    }
    cluster.kubectl(["delete", "crd", "clientidentities.trustspan.dev", "--timeout=30s"]).ok()?;
    // The garbage collector removes what the identity owned.
    for kind in ["roles", "rolebindings", "secrets"] {
        wait_for(&format!("{kind} to be removed"), SOON, || {
            Ok(cluster.list(kind, scene.namespace(), &label)?.is_empty())
        })?;
    }
    cluster.kubectl(["delete", "namespace", scene.namespace(), "--timeout=60s"]).ok()?;

    // Installed again, the approver removes what had no owner.
    cluster.apply_crds(&shipped("crd.yaml")?)?;
    let _approver = start_approver(&cluster, &[])?;
    for (kind, namespace) in
        [("clusterroles", "default"), ("clusterrolebindings", "default"), ("secrets", "kube-system")]
    {
        wait_for(&format!("{kind} to be removed"), SOON, || Ok(cluster.list(kind, namespace, &label)?.is_empty()))?;
    }
    Ok(())
}

/// The conditions of kube-controller-manager's cleaner (`pkg/controller/certificates/cleaner`): every request that is pending, denied, failed, or
/// approved, with or without a certificate, is removed after a time. What remains are requests with other conditions only.
fn is_removed_by_the_cleaner(request: &Value) -> bool {
    let conditions = request["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let known = ["Approved", "Denied", "Failed"];
    conditions.is_empty()
        || conditions
            .iter()
            .any(|one| known.iter().any(|kind| one["type"] == *kind) && one["lastUpdateTime"].is_string())
}

/// An editor of Secrets names the bootstrap token of another program in the bootstrap kubeconfig, before a new one is made and before the
/// ClientIdentity is taken over without status.
pub(crate) fn foreign_token(bed: &Bed) -> Result<()> {
    let scene = Scene::new(&bed.main, "foreign-token")?;
    let _approver = start_approver(&bed.main, &[])?;
    let object = scene.object(&json!({}))?;
    scene.apply(&object)?;
    scene.wait_valid("False", "NoCertificate")?;
    let foreign = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": { "name": "bootstrap-token-f0re1g" },
        "stringData": { "token-id": "f0re1g", "token-secret": "0123456789abcdef" },
    });
    bed.main.apply("kube-system", &foreign.to_string())?;
    let name_foreign_token = || -> Result<String> {
        let mut kubeconfig: serde_json::Value = serde_json::from_str(&scene.bootstrap_kubeconfig()?)?;
        kubeconfig["users"][0]["user"]["token"] = "f0re1g.0123456789abcdef".into();
        let change = json!({ "stringData": { "kubeconfig": kubeconfig.to_string() } }).to_string();
        let patch = ["patch", "secret", "payments-bootstrap", "--type=merge", "-p", &change];
        bed.main.kubectl(patch).ns(scene.namespace()).ok()?;
        Ok(kubeconfig.to_string())
    };
    let request = || -> Result<()> {
        let at = format!("trustspan.dev/bootstrap-requested-at={}", Timestamp::now());
        bed.main.kubectl(["annotate", "clientidentity", "payments", &at]).ns(scene.namespace()).ok().map(drop)
    };
    let restore = || -> Result<()> {
        let delete = ["delete", "clientidentities", "payments", "--cascade=orphan"];
        bed.main.kubectl(delete).ns(scene.namespace()).ok()?;
        scene.apply(&object)
    };
    let ways: [(&str, &dyn Fn() -> Result<()>); 2] =
        [("at a request", &request), ("after a restore without status", &restore)];
    for (what, renew) in ways {
        let named = name_foreign_token()?;
        renew()?;
        wait_for(&format!("a new bootstrap kubeconfig {what}"), SOON, || Ok(scene.bootstrap_kubeconfig()? != named))?;
        scene.wait_valid("False", "NoCertificate")?;
        ensure!(bed.main.exists("secret", "kube-system", "bootstrap-token-f0re1g")?, "{what}: deleted a foreign token");
        wait_for(&format!("one token {what}"), SOON, || Ok(scene.counts()?.tokens == 1))?;
    }
    Ok(())
}
