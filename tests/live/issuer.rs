//! The objects of cert-manager in a run, and requests as users and tools make them.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use k8s_openapi::{
    ByteString,
    api::{coordination::v1::Lease, core::v1},
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use trustspan::trust::{Certificate, bundle};

use crate::testbed::{SOON, Seed, wait_for};

/// Name of the CA's Certificate and Secret.
pub(crate) const ROOT: &str = "root-ca";
/// Name of the gateways' Certificate and Secret.
pub(crate) const SERVER: &str = "gateway-server";
/// The Secret with which a staged issuer signs: a copy of [`ROOT`] that is updated only when gateways trust the CA.
pub(crate) const PROMOTED: &str = "issuer-ca";
/// The Secret that gateways use, if it is not the one that cert-manager writes.
pub(crate) const MANAGED: &str = "gateway-managed";
/// The client certificate with which the agent probes gateways. Its Issuer refers to the CA's own Secret, so that a
/// certificate of a new CA is issued before gateways trust that.
pub(crate) const CANARY: &str = r"
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: { name: canary }
spec: { ca: { secretName: root-ca } }
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: { name: canary }
spec:
  secretName: canary
  commonName: canary
  usages: [digital signature, client auth]
  privateKey: { algorithm: ECDSA, size: 256, rotationPolicy: Always }
  issuerRef: { name: canary, kind: Issuer }
";

/// The settings of certificates that differ between runs.
#[derive(Clone, Copy)]
pub(crate) struct Certificates {
    /// The CA issuer's Secret.
    pub(crate) issuer: &'static str,
    /// The longest lifetime of certificates of clients that reload. Each client gets a random shorter one, so that they
    /// renew at different times. cert-manager renews a certificate after a third of its lifetime.
    pub(crate) life: Duration,
    /// Lifetime of the serving certificate.
    pub(crate) server_life: Duration,
    /// Key usages of the serving certificate.
    pub(crate) server_usages: &'static str,
    /// Lifetime of the certificates of clients that load once.
    pub(crate) load_once_life: Duration,
    /// The number of clients.
    pub(crate) clients: usize,
    /// The number of clients that read their Secret only at start.
    pub(crate) load_once: usize,
}

impl Certificates {
    /// Name of each client, and whether it loads once.
    pub(crate) fn clients(self) -> Vec<(String, bool)> {
        (0..self.clients).map(|number| (format!("client-{number:02}"), number < self.load_once)).collect()
    }

    /// Issuers and Certificates. `hosts` are the hosts of the serving certificate, separated by commas. cert-manager
    /// accepts durations of seconds only without its webhook.
    pub(crate) fn manifests(self, hosts: &str) -> String {
        let issuer = self.issuer;
        let mut yaml = format!(
            r"
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {{ name: self-signed }}
spec: {{ selfSigned: {{}} }}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {{ name: ca }}
spec: {{ ca: {{ secretName: {issuer} }} }}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {{ name: {ROOT} }}
spec:
  secretName: {ROOT}
  commonName: gateway clients
  isCA: true
  duration: 2160h
  privateKey: {{ algorithm: ECDSA, size: 256, rotationPolicy: Always }}
  issuerRef: {{ name: self-signed, kind: Issuer }}
"
        );
        let leaf = |name: &str, life: Duration, usages: &str, template: &str| {
            let (life, left) = (life.as_secs(), life.as_secs() * 2 / 3);
            format!(
                r"---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {{ name: {name} }}
spec:
  secretName: {name}
  commonName: {name}
  dnsNames: [{hosts}]
  duration: {life}s
  renewBefore: {left}s
  usages: [digital signature, {usages}]
  privateKey: {{ algorithm: ECDSA, size: 256, rotationPolicy: Always }}
  issuerRef: {{ name: ca, kind: Issuer }}
  secretTemplate: {template}
"
            )
        };
        // Shorter than the longest lifetime by at most a quarter, at random.
        let drawn = (self.life.as_secs() / 4).max(1);
        yaml += &leaf(SERVER, self.server_life, self.server_usages, "{}");
        for (name, load_once) in self.clients() {
            let own_life = || self.life - Duration::from_secs(Seed::of_run(&format!("life of {name}")).below(drawn));
            let (reload, life) = if load_once { ("never", self.load_once_life) } else { ("always", own_life()) };
            let labels = "labels: { trustspan.dev/client: gateway }";
            let annotations = format!("annotations: {{ trustspan.dev/reload: {reload} }}");
            let _ = write!(yaml, "{}", leaf(&name, life, "client auth", &format!("{{ {labels}, {annotations} }}")));
        }
        yaml
    }
}

/// A Secret's values.
pub(crate) type Data = BTreeMap<String, ByteString>;

/// Requests that users and tools with the necessary rights make in a namespace.
pub(crate) struct Operator {
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) secrets: Api<v1::Secret>,
    certificates: Api<DynamicObject>,
    gateway_secrets: Api<DynamicObject>,
    leases: Api<Lease>,
}

impl Operator {
    pub(crate) fn new(runtime: tokio::runtime::Handle, client: Client, ns: &str) -> Self {
        let objects = |group: &str, version: &str, kind: &str| {
            let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            Api::namespaced_with(client.clone(), ns, &kind)
        };
        Self {
            runtime,
            secrets: Api::namespaced(client.clone(), ns),
            certificates: objects("cert-manager.io", "v1", "Certificate"),
            gateway_secrets: objects("trustspan.dev", "v1alpha1", "GatewaySecret"),
            leases: Api::namespaced(client.clone(), ns),
        }
    }

    /// The values of a Secret.
    pub(crate) fn read(&self, name: &str) -> Result<Data> {
        let secret = self.runtime.block_on(self.secrets.get(name)).with_context(|| format!("reading {name}"))?;
        secret.data.with_context(|| format!("{name}: no data"))
    }

    /// `status` of the GatewaySecret.
    pub(crate) fn status(&self) -> Result<Value> {
        let mut found = self.runtime.block_on(self.gateway_secrets.get("gateway"))?;
        Ok(found.data["status"].take())
    }

    /// The name of the agent that holds the Lease.
    pub(crate) fn leader(&self) -> Result<String> {
        let lease = self.runtime.block_on(self.leases.get("trustspan-agent"))?;
        lease.spec.and_then(|spec| spec.holder_identity).context("no holder in the Lease")
    }

    /// resourceVersion of each Secret.
    pub(crate) fn versions(&self) -> Result<BTreeMap<String, String>> {
        let list = self.runtime.block_on(self.secrets.list_metadata(&ListParams::default()))?;
        let version = |metadata: kube::core::ObjectMeta| Some((metadata.name?, metadata.resource_version?));
        Ok(list.items.into_iter().filter_map(|item| version(item.metadata)).collect())
    }

    /// Writes these keys of several Secrets at the same time. Other keys stay.
    pub(crate) fn write(&self, secrets: &[(&str, Data)]) -> Result<()> {
        let params = PatchParams::apply("by-hand").force();
        let write = |(name, data): &(&str, Data)| {
            let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "data": data });
            let (name, params) = ((*name).to_owned(), params.clone());
            async move { self.secrets.patch(&name, &params, &Patch::Apply(secret)).await }
        };
        self.runtime.block_on(try_join_all(secrets.iter().map(write))).context("writing Secrets")?;
        Ok(())
    }

    /// Deletes a Secret.
    pub(crate) fn delete(&self, name: &str) -> Result<()> {
        self.runtime
            .block_on(self.secrets.delete(name, &DeleteParams::default()))
            .with_context(|| format!("deleting {name}"))?;
        Ok(())
    }

    /// Requests new issuances of Certificates at the same time, and waits until all are issued.
    pub(crate) fn reissue(&self, names: &[&str]) -> Result<()> {
        let before = self.revisions(names)?;
        let now = jiff::Timestamp::now();
        let condition = json!({
            "type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "rotated",
            "lastTransitionTime": now.round(jiff::Unit::Second)?.to_string(),
        });
        let issuing = json!({
            "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "status": { "conditions": [condition] },
        });
        let params = PatchParams::apply("rotation").force();
        let trigger = |name: &&str| {
            let (name, params, issuing) = ((*name).to_owned(), params.clone(), issuing.clone());
            async move { self.certificates.patch_status(&name, &params, &Patch::Apply(issuing)).await }
        };
        self.runtime.block_on(try_join_all(names.iter().map(trigger))).context("triggering an issue")?;
        wait_for(&format!("a new revision of {names:?}"), SOON, || {
            Ok(self.revisions(names)?.iter().zip(&before).all(|(now, before)| now > before))
        })
    }

    /// Has Certificates reissued by this CA. An issuer may use its last CA for a moment, so the first Certificate is
    /// reissued until it has the new one.
    pub(crate) fn reissue_under(&self, ca: &Data, names: &[&str]) -> Result<()> {
        let signer = certificate(ca)?.subject_key_id;
        let (first, others) = names.split_at(1);
        for names in [first, others] {
            wait_for(&format!("{names:?} to be signed by the new CA"), SOON, || {
                self.reissue(names)?;
                let signed = |name: &&str| Ok(certificate(&self.read(name)?)?.authority_key_id == signer);
                names.iter().map(signed).try_fold(true, |all, one: Result<bool>| Ok(all && one?))
            })?;
        }
        Ok(())
    }

    /// Sets `spec.renewal` of a Certificate, or removes it if null.
    pub(crate) fn renewal(&self, name: &str, renewal: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "renewal": renewal } }));
        let patched = self.runtime.block_on(self.certificates.patch(name, &PatchParams::default(), &patch));
        patched.map(drop).with_context(|| format!("spec.renewal of {name}"))
    }

    /// `status.revision` of each Certificate, which counts issuances.
    pub(crate) fn revisions(&self, names: &[&str]) -> Result<Vec<u64>> {
        let get = |name: &&str| {
            let name = (*name).to_owned();
            async move { self.certificates.get(&name).await }
        };
        let found = self.runtime.block_on(try_join_all(names.iter().map(get)))?;
        Ok(found.iter().map(|found| found.data["status"]["revision"].as_u64().unwrap_or_default()).collect())
    }
}

/// The leaf or CA in a Secret.
fn certificate(data: &Data) -> Result<Certificate> {
    let pem = &data.get("tls.crt").context("no tls.crt")?.0;
    bundle::read_chain(pem).into_certificates().into_iter().next().context("no certificate in tls.crt")
}
