//! Clients whose label names a GatewaySecret that does not exist: the write causes a warning.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::secrets::put;
use crate::stage::{MANAGED, Stage, on_stage, sound};
use crate::testbed::{Cluster, SOON, User, wait_for};

cases![warns_about_a_client_of_no_gateway_secret, alone warns_about_a_certificate_of_such_a_client];

const RULE: &str = "no-such-gatewaysecret";

/// A minimal CRD of cert-manager's Certificate.
const CRD: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: certificates.cert-manager.io }
spec:
  group: cert-manager.io
  names: { kind: Certificate, listKind: CertificateList, plural: certificates, singular: certificate }
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: { spec: { type: object, x-kubernetes-preserve-unknown-fields: true } }
";

/// Writes a client of the stage's GatewaySecret, and one whose label is mistyped.
fn warns_about_the_second_only(stage: &Stage<'_>, client: impl Fn(&str) -> Value) -> Result<()> {
    let said = |named: &str| -> Result<String> {
        let output = put(stage, &client(named)).user(User::Admin).run()?;
        ensure!(output.success(), "saw {output:?}");
        Ok(output.stderr)
    };
    let (known, unknown) = (said(MANAGED)?, said("gatway")?);
    ensure!(!known.contains(RULE), "saw {known}");
    ensure!(unknown.contains(RULE) && unknown.contains("no GatewaySecret gatway here"), "saw {unknown}");
    Ok(())
}

fn warns_about_a_client_of_no_gateway_secret(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let secret = sound("storefront", false)?.1;
        warns_about_the_second_only(stage, |named| {
            let mut secret = secret.clone();
            secret["metadata"]["labels"] = json!({ "trustspan.dev/client": named });
            secret
        })
    })
}

fn warns_about_a_certificate_of_such_a_client(cluster: &Cluster) -> Result<()> {
    cluster.apply_crds(CRD)?;
    // The CRD is established before every API server process serves it.
    let list = ["get", "certificates.cert-manager.io", "--all-namespaces"];
    wait_for("Certificates to be served", SOON, || Ok(cluster.kubectl(list).run()?.success()))?;
    let result = on_stage(cluster, |stage| {
        put(stage, &certificate("plain", &json!({ "labels": { "team": "checkout" } }))).user(User::Admin).ok()?;
        let is_sent = || Ok::<_, anyhow::Error>(stage.server.metrics()?.contains("kind=\"Certificate\""));
        ensure!(!is_sent()?, "a Certificate that asks for nothing was sent");
        warns_about_the_second_only(stage, |named| {
            certificate("storefront", &json!({ "labels": { "trustspan.dev/client": named } }))
        })?;
        ensure!(is_sent()?, "saw {}", stage.server.metrics()?);
        Ok(())
    });
    cluster.kubectl(["delete", "crd", "certificates.cert-manager.io"]).ok()?;
    result
}

fn certificate(name: &str, template: &Value) -> Value {
    json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": { "name": name },
        "spec": { "secretName": name, "issuerRef": { "name": "ca" }, "secretTemplate": template },
    })
}
