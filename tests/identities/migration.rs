//! Changes of the API server: another CA, and another control plane.

use std::fs;

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::json;
use trustspan::identity::kubeconfig;

use crate::{
    Bed,
    request_loop::RequestLoop,
    scene::{Counts, ONE, Scene, install, start_approver},
    testbed::{Authority, SOON, User, wait_for},
};

/// Fingerprints of the API server's CAs in a kubeconfig.
fn cas(text: &str) -> Result<Vec<String>> {
    let (kubeconfig, _) = kubeconfig::parse(text).map_err(anyhow::Error::msg)?;
    Ok(kubeconfig.server.cas.iter().map(|ca| ca.fingerprint.clone()).collect())
}

/// Old CA, both, the certificate of the new CA, then the new CA alone.
pub(crate) fn rolled_server_ca(bed: &Bed) -> Result<()> {
    let cluster = bed.another()?;
    let scene = Scene::new(&cluster, "rolled")?;
    let approver = start_approver(&cluster, &[])?;
    scene.apply(&scene.object(&json!({}))?)?;
    // The client reads its bootstrap kubeconfig from a file, which another program keeps: here a copy of the Secret.
    let bootstrap = cluster.temp_dir("bootstrap")?.join("kubeconfig");
    let deliver = || -> Result<()> { Ok(fs::write(&bootstrap, scene.bootstrap_kubeconfig()?)?) };
    scene.wait_valid("False", "NoCertificate")?;
    deliver()?;
    let _client = scene.start_client_with_file(&bootstrap)?;
    let first = scene.new_kubeconfig("", SOON)?;
    scene.wait_valid("True", "Issued")?;
    let work = RequestLoop::start(&scene.kubeconfig(), scene.namespace());

    let (_, old) = cluster.server()?;
    let authority = Authority::new("trustspan test bed, new CA")?;
    let new = authority.pem();
    cluster.publish_server_cas(&(old.clone() + &new))?;
    drop(approver);
    let approver = start_approver(&cluster, &[])?;
    scene.wait_valid("False", "ServerCAChanged")?;
    deliver()?;
    let second = scene.new_kubeconfig(&first, SOON)?;
    ensure!(cas(&second)?.len() == 2, "expected both CAs, saw {:?}", cas(&second)?);
    scene.wait_valid("True", "Issued")?;

    cluster.serve_certificate_of(&authority)?;
    cluster.publish_server_cas(&new)?;
    wait_for("the certificate of the new CA", SOON, || Ok(cluster.kubectl(["get", "--raw=/readyz"]).run()?.success()))?;
    drop(approver);
    let _approver = start_approver(&cluster, &[])?;
    scene.wait_valid("False", "ServerCAChanged")?;
    deliver()?;
    let third = scene.new_kubeconfig(&second, SOON)?;
    scene.wait_valid("True", "Issued")?;
    ensure!(cas(&third)? == cas(&new_only(&third, &new)?)?, "expected the new CA alone, saw {:?}", cas(&third)?);
    let tally = work.end("server CA rolled")?;
    ensure!(tally.failed() == 0, "requests failed while the server's CA was rolled");
    ensure!(scene.requests()?.len() == 3, "expected one request for each change, saw {}", scene.requests()?.len());
    Ok(())
}

/// A kubeconfig with only these CAs.
fn new_only(text: &str, pem: &str) -> Result<String> {
    let mut config: serde_json::Value = serde_json::from_str(text)?;
    config["clusters"][0]["cluster"]["certificate-authority-data"] = STANDARD.encode(pem).into();
    Ok(config.to_string())
}

/// Seed 001: the control plane moves. Another API server, with other CAs of server and clients, gets the restored object without status; the old one is
/// gone. The client reads its bootstrap kubeconfig from a third cluster.
pub(crate) fn moved(bed: &Bed) -> Result<()> {
    let (old, new, third) = (bed.another()?, bed.another()?, &bed.main);
    third.kubectl(["create", "namespace", "delivered"]).ok()?;
    let scene = Scene::new(&old, "moved")?;
    let kubeconfig_of_third = fs::read_to_string(third.kubeconfig(User::Admin))?;
    let place = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "third" },
        "data": { "kubeconfig": STANDARD.encode(kubeconfig_of_third) },
    });
    old.apply("moved", &place.to_string())?;
    let approver = start_approver(&old, &["--allow-local-delivery"])?;
    let delivery = json!({ "delivery": { "kubeconfigSecretName": "third", "namespace": "delivered", "secretName": "payments-bootstrap" } });
    scene.apply(&scene.object(&delivery)?)?;
    let _client = scene.start_client(third, "delivered/payments-bootstrap", &[scene.to()])?;
    let first = scene.new_kubeconfig("", SOON)?;
    let backup = scene.wait_valid("True", "Issued")?;
    let work = RequestLoop::start(&scene.kubeconfig(), scene.namespace());
    wait_for("requests to the old API server", SOON, || Ok(work.tally().succeeded >= 40))?;
    ensure!(work.tally().failed() == 0, "requests failed before the move");

    // The move: the old control plane ends, first its controllers. Nothing waits for them.
    drop(approver);
    install(&new)?;
    let restored = Scene { directory: scene.directory.clone(), ..Scene::new(&new, "moved")? };
    new.apply("moved", &place.to_string())?;
    let stopped = std::time::Instant::now();
    old.stop_api_server()?;
    let mut object = restored.object(&delivery)?;
    object["metadata"]["annotations"] = backup["metadata"]["annotations"].clone();
    restored.apply(&object)?;
    ensure!(restored.stored()?["status"].is_null(), "restored with a status");
    let _approver = start_approver(&new, &["--allow-local-delivery"])?;
    let second = restored.new_kubeconfig(&first, SOON)?;
    let switched = std::time::Instant::now();
    restored.wait_valid("True", "Issued")?;
    let before = work.tally().succeeded;
    wait_for("requests to the new API server", SOON, || Ok(work.tally().succeeded >= before + 40))?;
    let tally = work.end("moved control plane")?;
    let (begin, end) = tally.outage().context("the switch of the server must be visible")?;
    println!(
        "first error {:.1?} after the old API server stopped, last one {:.1?} after it; new kubeconfig {:.1?} after it",
        begin - stopped,
        end - stopped,
        switched - stopped
    );
    ensure!(
        begin >= stopped && end <= switched + std::time::Duration::from_secs(1),
        "errors that the switch did not cause"
    );
    let counts = restored.counts()?;
    println!("after the move: {counts:?}");
    ensure!(Counts { tokens: 0, ..counts } == ONE && counts.tokens <= 1, "expected {ONE:?}");
    let delivered = third.list("secrets", "delivered", "")?.len();
    ensure!(delivered == 1, "{delivered} bootstrap kubeconfigs were delivered");
    let (url, _) = new.server()?;
    ensure!(second.contains(&url), "the kubeconfig names another server");
    Ok(())
}

/// The other clusters of one tenant accept connections and never answer. Another tenant's delivery, of an identity that is created later, waits for none.
pub(crate) fn black_hole(bed: &Bed) -> Result<()> {
    let cluster = &bed.main;
    let hole = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let kubeconfig = fs::read_to_string(cluster.kubeconfig(User::Admin))?;
    let (url, _) = cluster.server()?;
    let silent = kubeconfig.replace(&url, &format!("https://{}", hole.local_addr()?));
    ensure!(silent != kubeconfig, "the kubeconfig does not name {url}");
    let delivery = json!({ "delivery": { "kubeconfigSecretName": "other", "namespace": "delivered-to", "secretName": "payments-bootstrap" } });
    let place = |scene: &Scene<'_>, kubeconfig: &str| {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "other" },
            "data": { "kubeconfig": STANDARD.encode(kubeconfig) },
        });
        cluster.apply(scene.namespace(), &secret.to_string()).map(drop)
    };
    cluster.kubectl(["create", "namespace", "delivered-to"]).ok()?;
    let tenant = Scene::new(cluster, "a-black-hole")?;
    place(&tenant, &silent)?;
    let mut objects = Vec::new();
    for number in 0..5 {
        let mut object = tenant.object(&delivery)?;
        object["metadata"]["name"] = format!("payments-{number}").into();
        objects.push(object);
    }
    objects.push(tenant.object(&delivery)?);
    objects.iter().try_for_each(|object| tenant.apply(object))?;
    let approver = start_approver(cluster, &["--allow-local-delivery"])?;
    tenant.wait_valid("False", "NoCertificate")?;
    let token = tenant.stored()?["status"]["bootstrap"]["tokenId"].clone();

    let other = Scene::new(cluster, "z-other-tenant")?;
    place(&other, &kubeconfig)?;
    other.apply(&other.object(&delivery)?)?;
    wait_for("the delivery of another tenant", SOON, || {
        cluster.exists("secret", "delivered-to", "payments-bootstrap")
    })?;
    wait_for("the delivery to be recorded", SOON, || Ok(other.stored()?["status"]["bootstrap"]["delivered"] == true))?;
    let first = cluster.get("clientidentities", tenant.namespace(), "payments-0")?;
    ensure!(first["status"]["bootstrap"]["delivered"] != true, "a black hole took a kubeconfig: {first}");
    wait_for("the end of an attempt", SOON, || {
        let first = cluster.get("clientidentities", tenant.namespace(), "payments")?;
        Ok(first["status"]["conditions"].to_string().contains("NotDelivered"))
    })?;
    ensure!(
        tenant.stored()?["status"]["bootstrap"]["tokenId"] == token,
        "an attempt to deliver has made another token"
    );
    drop(approver);

    // By default an address of loopback is not connected to.
    let _approver = start_approver(cluster, &[])?;
    wait_for("the address to be refused", SOON, || {
        let first = cluster.get("clientidentities", tenant.namespace(), "payments")?;
        Ok(first["status"]["conditions"].to_string().contains("loopback or link-local"))
    })
}
