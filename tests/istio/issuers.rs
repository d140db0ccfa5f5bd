//! Rotations with issuers that sign with a new CA before gateways trust it: admission rejects these certificates until
//! they do.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};

use crate::{
    issuer::{Certificates, ROOT, SERVER},
    objects,
    run::{condition, finish, renew_clients},
    shelf::lock,
    testbed::{Authority, Cluster, SOON, wait_for_value},
    world::{CERTIFICATES, Layout, World},
};

/// The Secret of the intermediate CA.
pub(crate) const INTERMEDIATE: &str = "intermediate-ca";
/// API group of the external issuer. cert-manager leaves its requests to whatever serves it.
const GROUP: &str = "issuers.example.com";

/// A GatewaySecret that names the Certificate only: the source Secret and the CA are derived.
pub(crate) fn by_certificate(ns: &str) -> Value {
    let mut gateway_secret = objects::gateway_secret(ns);
    let spec = &mut gateway_secret["spec"];
    let (managed, labels, clients) = (spec["secretName"].take(), spec["workloadLabels"].take(), spec["clients"].take());
    *spec = json!({
        "certificateRef": { "name": SERVER }, "secretName": managed, "workloadLabels": labels, "clients": clients,
    });
    gateway_secret
}

/// A CA Issuer that refers to the CA's own Secret, so it signs with a new CA at once.
pub(crate) fn not_staged(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    cluster.apply(ns, &Certificates { issuer: ROOT, ..CERTIFICATES }.manifests(hosts))?;
    Ok(Layout::in_one_namespace(ns, by_certificate(ns)))
}

/// A GatewaySecret with only the required fields, and clients that are not declared.
pub(crate) fn minimal(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    let manifests = Certificates { issuer: ROOT, ..CERTIFICATES }.manifests(hosts);
    cluster.apply(ns, &manifests.replace("trustspan.dev/client: gateway", "app: client"))?;
    let mut gateway_secret = by_certificate(ns);
    gateway_secret["spec"]["clients"] = json!({});
    Ok(Layout::in_one_namespace(ns, gateway_secret))
}

/// Compares the rotation with the forecast in the status before it.
pub(crate) fn as_forecast(world: &mut World<'_>) -> Result<()> {
    let said = wait_for_value("the forecast of condition RotationReady", SOON, || {
        let status = world.operator.status()?;
        let ready = condition(&status, "RotationReady").filter(|ready| ready["status"] == "False");
        let said = ready.and_then(|ready| ready["message"].as_str());
        Ok(said.filter(|said| said.contains("spec.clients.allDeclared")).map(str::to_owned))
    })?;
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    let output = world.cluster.kubectl(apply).ns(&world.ns).stdin(world.layout.gateway_secret.to_string()).run()?;
    let warned = format!("Warning: {}", trustspan::api::Clients::INCOMPLETE);
    ensure!(output.stderr.contains(&warned), "expected {warned:?}, saw {}", output.stderr);

    world.step("CA rotated")?;
    world.operator.reissue(&[ROOT])?;
    world.operator.reissue(&[SERVER])?;
    let until = wait_for_value("the serving certificate to be kept", SOON, || {
        let status = world.operator.status()?;
        let waits = status["waits"].as_array().into_iter().flatten();
        let mut kept = waits.filter(|wait| wait["step"] == "SwitchServingCertificate");
        Ok(kept.find_map(|wait| wait["until"].as_str().map(str::to_owned)))
    })?;
    ensure!(
        said.contains(&format!("At {until} gateways would switch")),
        "expected {until} in what status said before: {said}"
    );
    world.wait_handshakes(500)
}

/// A CA with two tiers: the intermediate CA signs leaves, and clients and gateways trust the root.
pub(crate) fn intermediate(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    intermediate_for(CERTIFICATES, "1080h", cluster, ns, hosts)
}

/// The same with these certificates, and another lifetime of the intermediate CA.
pub(crate) fn intermediate_for(
    certificates: Certificates,
    life: &str,
    cluster: &Cluster,
    ns: &str,
    hosts: &str,
) -> Result<Layout> {
    cluster.apply(ns, &certificates.manifests(hosts))?;
    let issuer = json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": { "name": "root" },
        "spec": { "ca": { "secretName": ROOT } },
    });
    let certificate = json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": { "name": INTERMEDIATE },
        "spec": {
            "secretName": INTERMEDIATE, "commonName": "second tier", "isCA": true, "duration": life,
            "privateKey": { "algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always" },
            "issuerRef": { "name": "root", "kind": "Issuer" },
        },
    });
    cluster.apply(ns, &issuer.to_string())?;
    cluster.apply(ns, &certificate.to_string())?;
    let mut gateway_secret = objects::gateway_secret(ns);
    gateway_secret["spec"]["caSecretRef"] = json!({ "name": INTERMEDIATE });
    Ok(Layout::with_clients_of(certificates, ns, gateway_secret))
}

/// A stand-in for Vault or a cloud provider's private CA: it signs requests, and its key is in no Secret.
pub(crate) fn external(cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    external_for(CERTIFICATES, cluster, ns, hosts)
}

/// The same with these certificates.
pub(crate) fn external_for(certificates: Certificates, cluster: &Cluster, ns: &str, hosts: &str) -> Result<Layout> {
    let all: Vec<Value> = serde_saphyr::from_multiple(&certificates.manifests(hosts))?;
    let of_issuer = |object: &&Value| object["spec"]["issuerRef"]["name"] == "ca";
    for certificate in all.iter().filter(of_issuer) {
        let mut certificate = certificate.clone();
        certificate["spec"]["issuerRef"] = json!({ "name": "external", "kind": "Issuer", "group": GROUP });
        cluster.apply(ns, &certificate.to_string())?;
    }
    let external = Some(Arc::new(External::new()?));
    Ok(Layout { external, ..Layout::with_clients_of(certificates, ns, by_certificate(ns)) })
}

/// The CA changes, and clients renew at once. Their new certificates are rejected until gateways trust the CA.
pub(crate) fn clients_first(world: &mut World<'_>) -> Result<()> {
    world.step("CA rotated")?;
    world.rotate_ca()?;
    renewed_at_once(world)
}

/// Checks that clients renew, that admission rejects the certificates, and that they are delivered once gateways trust
/// the CA.
fn renewed_at_once(world: &World<'_>) -> Result<()> {
    let before = world.refusals()?;
    renew_clients(world)?;
    ensure!(world.refusals()? > before, "expected admission to refuse what gateways do not trust yet, saw no refusal");
    finish(world)
}

/// The root changes. The intermediate is reissued manually, since cert-manager does not do that.
pub(crate) fn root_then_intermediate(world: &mut World<'_>) -> Result<()> {
    world.step("root rotated")?;
    world.rotate_ca()?;
    world.step("CA rotated")?;
    world.operator.reissue(&[INTERMEDIATE])?;
    finish(world)
}

/// The issuer changes its CA unannounced; the certificates of clients that renew are the first of the new CA.
pub(crate) fn unannounced(world: &mut World<'_>) -> Result<()> {
    let before = world.newest_ca()?;
    world.step("CA rotated")?;
    world.layout.external.as_ref().context("an external issuer")?.rotate()?;
    ensure!(before != world.newest_ca()?, "expected another CA");
    renewed_at_once(world)
}

/// An issuer that keeps its key in memory.
pub(crate) struct External {
    authority: Mutex<Authority>,
    /// Certificates whose requests it refuses.
    refused: Mutex<BTreeSet<String>>,
}

impl External {
    fn new() -> Result<Self> {
        Ok(Self { authority: Mutex::new(Authority::new("external")?), refused: Mutex::default() })
    }

    /// Its CA, in PEM.
    pub(crate) fn ca(&self) -> String {
        lock(&self.authority).pem()
    }

    /// From now on it refuses the requests of a Certificate.
    pub(crate) fn refuse(&self, certificate: &str) {
        lock(&self.refused).insert(certificate.to_owned());
    }

    /// It signs the requests of all Certificates again.
    pub(crate) fn accept_all(&self) {
        lock(&self.refused).clear();
    }

    pub(crate) fn rotate(&self) -> Result<()> {
        *lock(&self.authority) = Authority::new("external 2")?;
        Ok(())
    }

    /// Signs all requests, and never returns.
    pub(crate) async fn run(self: Arc<Self>, client: Client, ns: String) {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("cert-manager.io", "v1", "CertificateRequest"));
        let requests: Api<DynamicObject> = Api::namespaced_with(client, &ns, &kind);
        let events = watcher::watcher(requests.clone(), watcher::Config::default()).default_backoff().applied_objects();
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            // The watch reconnects by itself.
            let Ok(request) = event else { continue };
            let status = &request.data["status"];
            let is_approved = condition(status, "Approved").is_some_and(|approved| approved["status"] == "True");
            let is_open = is_approved && condition(status, "Ready").is_none();
            if request.data["spec"]["issuerRef"]["group"] != GROUP || !is_open {
                continue;
            }
            let failed = |error| {
                let conditions = with_ready(&request, "False", "Failed", &format!("{error:#}"));
                json!({ "conditions": conditions, "failureTime": now() })
            };
            let status = self.sign(&request).unwrap_or_else(failed);
            let patch = Patch::Merge(json!({ "status": status }));
            if let Err(error) = requests.patch_status(&request.name_any(), &PatchParams::default(), &patch).await {
                eprintln!("external issuer: {error}");
            }
        }
    }

    fn sign(&self, request: &DynamicObject) -> Result<Value> {
        use base64::{Engine, engine::general_purpose::STANDARD};
        let certificate = request.annotations().get("cert-manager.io/certificate-name");
        ensure!(!certificate.is_some_and(|name| lock(&self.refused).contains(name)), "refused");
        let csr = STANDARD.decode(request.data["spec"]["request"].as_str().context("spec.request")?)?;
        let authority = lock(&self.authority);
        let certificate = authority.sign(std::str::from_utf8(&csr)?)?;
        let conditions = with_ready(request, "True", "Issued", "signed");
        Ok(json!({
            "certificate": STANDARD.encode(certificate), "ca": STANDARD.encode(authority.pem()), "conditions": conditions,
        }))
    }
}

/// The conditions of a request, and one more that says whether it is Ready.
fn with_ready(request: &DynamicObject, status: &str, reason: &str, message: &str) -> Vec<Value> {
    let mut conditions = request.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let at = now();
    conditions.push(
        json!({ "type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": at }),
    );
    conditions
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%FT%TZ").to_string()
}
