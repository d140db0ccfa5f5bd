//! Derives the source Secret and the CA's Secret from the cert-manager Certificate that a GatewaySecret names.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Entry;
use crate::api::names::ISSUER_ANNOTATIONS;
use crate::api::{Kind, Resolved, SecretRef};

/// cert-manager's cluster resource namespace, unless its flag `--cluster-resource-namespace` names another one.
pub const CLUSTER_RESOURCE_NAMESPACE: &str = "cert-manager";

const CERT_MANAGER: &str = "cert-manager.io";

/// Certificates and issuers of cert-manager, as needed to resolve GatewaySecrets.
#[derive(Clone, Debug, Default)]
pub struct CertManagerObjects {
    /// By namespace and name.
    certificates: BTreeMap<(String, String), CertificateFields>,
    /// The name of the CA's Secret of each issuer; none for an issuer of another type.
    issuers: BTreeMap<IssuerKey, Option<String>>,
}

/// The fields of a Certificate that are used here.
#[derive(Clone, Debug)]
struct CertificateFields {
    secret_name: String,
    issuer: IssuerKey,
    is_ca: bool,
    owner: Option<String>,
}

/// How to have a Certificate write another Secret. cert-manager restores the fields of Certificates that it makes for other objects
/// (`pkg/controller/certificate-shim/sync.go`, `certNeedsUpdate`). Without the annotation it does not, and the Certificate stays.
pub(crate) fn rename_secret(owner: Option<&str>, secret: &str) -> String {
    let Some(owner) = owner else { return format!("Set spec.secretName of the Certificate to {secret}") };
    let [issuer, cluster_issuer] = ISSUER_ANNOTATIONS;
    format!(
        "cert-manager makes this Certificate for {owner} and restores its fields: remove the annotation {issuer} or {cluster_issuer} there, \
         then set spec.secretName of the Certificate to {secret}"
    )
}

/// The Gateway, ListenerSet or Ingress for which cert-manager makes a Certificate.
pub(crate) fn owner_of_certificate(metadata: &Value) -> Option<String> {
    let owner = metadata["ownerReferences"].as_array()?.iter().find(|owner| owner["controller"] == true)?;
    let (kind, name) = (owner["kind"].as_str()?, owner["name"].as_str()?);
    ["Gateway", "ListenerSet", "Ingress"].contains(&kind).then(|| format!("{kind} {name}"))
}

/// The target of an `issuerRef`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IssuerKey {
    /// `Issuer`, `ClusterIssuer`, or the kind of an external issuer.
    pub kind: String,
    /// API group.
    pub group: String,
    /// Namespace of an Issuer.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
}

/// Why the Secrets cannot be derived.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolutionError {
    /// The Certificate does not exist.
    #[error(
        "Certificate {namespace}/{name} (spec.certificateRef) was not found. Create it, or set spec.sourceSecretName"
    )]
    NoCertificate {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The Certificate writes the managed Secret.
    #[error(
        "Certificate {certificate} writes Secret {secret}, which is the managed Secret. {}",
        rename_secret(owner.as_deref(), "another name")
    )]
    WritesManaged {
        /// Its name.
        certificate: String,
        /// Name of the Secret.
        secret: String,
        /// The Gateway, ListenerSet or Ingress for which cert-manager makes the Certificate.
        owner: Option<String>,
    },
    /// The derived CA's Secret is written by the agent.
    #[error(
        "Secret {secret} of {issuer} is also spec.issuerSecretName, which the agent writes. Set spec.caSecretRef to the Secret of the CA"
    )]
    NoCa {
        /// Name of the Secret.
        secret: String,
        /// Kind and name of the issuer.
        issuer: String,
    },
}

impl IssuerKey {
    /// The issuer of an `issuerRef` in a namespace, with the defaults of cert-manager's API.
    fn of(reference: &Value, namespace: &str) -> Self {
        let field = |name: &str, default: &str| reference[name].as_str().unwrap_or(default).to_owned();
        let kind = field("kind", "Issuer");
        let namespace = (kind == "Issuer").then(|| namespace.to_owned());
        Self { kind, group: field("group", CERT_MANAGER), namespace, name: field("name", "") }
    }

    /// Whether it is a kind of cert-manager itself, not of an external issuer.
    pub fn is_of_cert_manager(&self) -> bool {
        self.group == CERT_MANAGER && ["Issuer", "ClusterIssuer"].contains(&self.kind.as_str())
    }
}

impl CertManagerObjects {
    /// Adds an object if it is a Certificate or an issuer. `namespace` is that of objects without one.
    pub fn take(&mut self, object: &Value, namespace: &str) {
        let Kind { group: CERT_MANAGER, kind, .. } = Kind::of_value(object) else { return };
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        let namespace = metadata["namespace"].as_str().unwrap_or(namespace);
        let name = metadata["name"].as_str().unwrap_or_default().to_owned();
        match kind {
            "Certificate" => {
                let fields = CertificateFields {
                    secret_name: spec["secretName"].as_str().unwrap_or_default().to_owned(),
                    issuer: IssuerKey::of(&spec["issuerRef"], namespace),
                    is_ca: spec["isCA"] == true,
                    owner: owner_of_certificate(metadata),
                };
                self.certificates.insert((namespace.to_owned(), name), fields);
            }
            "Issuer" | "ClusterIssuer" => {
                let reference = serde_json::json!({ "kind": kind, "name": name });
                let ca = spec["ca"]["secretName"].as_str().map(str::to_owned);
                self.issuers.insert(IssuerKey::of(&reference, namespace), ca);
            }
            _ => {}
        }
    }

    /// The issuer of the Certificate that a GatewaySecret names. `None` if that Certificate was not added.
    pub fn issuer(&self, entry: &Entry) -> Option<&IssuerKey> {
        self.certificate(entry).map(|certificate| &certificate.issuer)
    }

    fn certificate(&self, entry: &Entry) -> Option<&CertificateFields> {
        let reference = entry.spec.certificate_ref.as_ref()?;
        self.certificates.get(&(entry.namespace.clone(), reference.name.clone()))
    }

    /// The Secrets of a GatewaySecret. While its Certificate is missing, the last result stays.
    ///
    /// # Errors
    /// When its Certificate was never found, or a derived Secret is one that the agent writes.
    pub fn resolve(&self, entry: &Entry) -> Result<Resolved, ResolutionError> {
        let Some(reference) = &entry.spec.certificate_ref else { return Ok(entry.spec.resolved(None)) };
        let Some(certificate) = self.certificate(entry) else {
            let missing =
                || ResolutionError::NoCertificate { namespace: entry.namespace.clone(), name: reference.name.clone() };
            return Some(entry.resolved.clone()).filter(|last| !last.source_secret_name.is_empty()).ok_or_else(missing);
        };
        if certificate.secret_name == entry.managed_name() {
            let (name, secret, owner) =
                (reference.name.clone(), certificate.secret_name.clone(), certificate.owner.clone());
            return Err(ResolutionError::WritesManaged { certificate: name, secret, owner });
        }
        let issuer = &certificate.issuer;
        let title = format!("{} {}", issuer.kind, issuer.name);
        let ca = self.issuers.get(issuer).cloned().flatten().filter(|_| !certificate.is_ca);
        // A ClusterIssuer's Secrets are in the cluster resource namespace.
        let namespace = (issuer.kind == "ClusterIssuer").then(|| {
            entry.policy.cluster_resource_namespace.as_deref().unwrap_or(CLUSTER_RESOURCE_NAMESPACE).to_owned()
        });
        let namespace = namespace.filter(|namespace| *namespace != entry.namespace);
        let derived = ca.map(|name| SecretRef { namespace, name });
        let ca_secret_ref = match (&entry.spec.ca_secret_ref, derived) {
            (Some(named), _) => Some(named.clone()),
            (None, Some(derived)) if entry.spec.issuer_secret_name.as_ref() == Some(&derived.name) => {
                return Err(ResolutionError::NoCa { secret: derived.name, issuer: title });
            }
            (None, derived) => derived,
        };
        let certificate_title = format!("Certificate {}", reference.name);
        Ok(Resolved {
            source_secret_name: certificate.secret_name.clone(),
            ca_secret_ref,
            derived_from: vec![certificate_title, title],
        })
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::api::GatewaySecretSpec;

    fn object(kind: &str, name: &str, spec: Value) -> Value {
        json!({"apiVersion": "cert-manager.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
    }

    fn entry(spec: Value) -> Entry {
        Entry::unstored("mesh".to_owned(), "gateway".to_owned(), GatewaySecretSpec::deserialize(spec).unwrap())
    }

    fn objects(issuer: &Value, certificate: Value) -> CertManagerObjects {
        let mut objects = CertManagerObjects::default();
        objects.take(issuer, "mesh");
        objects.take(&object("Certificate", "edge", certificate), "mesh");
        objects
    }

    fn resolved(issuer: &Value, certificate: Value, spec: Value) -> Result<Resolved, ResolutionError> {
        objects(issuer, certificate).resolve(&entry(spec))
    }

    fn ca(namespace: Option<&str>, name: &str) -> Option<SecretRef> {
        Some(SecretRef { namespace: namespace.map(str::to_owned), name: name.to_owned() })
    }

    #[test]
    fn a_certificate_names_the_source_and_the_ca() {
        let issuer = object("Issuer", "mesh-ca", json!({"ca": {"secretName": "mesh-root"}}));
        let certificate = json!({"secretName": "edge-tls", "issuerRef": {"name": "mesh-ca"}});
        let found = resolved(&issuer, certificate, json!({"certificateRef": {"name": "edge"}})).unwrap();
        assert_eq!((found.source_secret_name.as_str(), found.ca_secret_ref), ("edge-tls", ca(None, "mesh-root")));
        assert_eq!(found.derived_from, ["Certificate edge", "Issuer mesh-ca"]);
    }

    #[test]
    fn the_ca_of_a_cluster_issuer_is_in_the_cluster_resource_namespace() {
        let issuer = object("ClusterIssuer", "mesh-ca", json!({"ca": {"secretName": "mesh-root"}}));
        let certificate = json!({"secretName": "edge-tls", "issuerRef": {"name": "mesh-ca", "kind": "ClusterIssuer"}});
        let issuance = objects(&issuer, certificate);
        let mut entry = entry(json!({"certificateRef": {"name": "edge"}}));
        assert_eq!(issuance.resolve(&entry).unwrap().ca_secret_ref, ca(Some("cert-manager"), "mesh-root"));
        entry.policy.cluster_resource_namespace = Some("pki".to_owned());
        assert_eq!(issuance.resolve(&entry).unwrap().ca_secret_ref, ca(Some("pki"), "mesh-root"));
    }

    #[test]
    fn an_issuer_without_a_local_key_and_a_ca_as_the_source_have_no_other_ca() {
        let vault = object("Issuer", "vault", json!({"vault": {"path": "pki"}}));
        let spec = || json!({"certificateRef": {"name": "edge"}});
        let leaf = json!({"secretName": "edge-tls", "issuerRef": {"name": "vault"}});
        assert_eq!(resolved(&vault, leaf, spec()).unwrap().ca_secret_ref, None);
        let local = object("Issuer", "mesh-ca", json!({"ca": {"secretName": "mesh-root"}}));
        let own = json!({"secretName": "edge-tls", "isCA": true, "issuerRef": {"name": "mesh-ca"}});
        assert_eq!(resolved(&local, own, spec()).unwrap().ca_secret_ref, None);
    }

    #[test]
    fn explicit_fields_override_derived_ones() {
        let issuer = object("Issuer", "mesh-ca", json!({"ca": {"secretName": "staged"}}));
        let certificate = || json!({"secretName": "edge-tls", "issuerRef": {"name": "mesh-ca"}});
        let mut spec = json!({"certificateRef": {"name": "edge"}, "issuerSecretName": "staged"});
        let error = resolved(&issuer, certificate(), spec.clone()).unwrap_err();
        assert!(error.to_string().contains("Set spec.caSecretRef to the Secret of the CA"), "{error}");
        spec["caSecretRef"] = json!({"name": "mesh-root"});
        assert_eq!(resolved(&issuer, certificate(), spec).unwrap().ca_secret_ref, ca(None, "mesh-root"));
    }

    #[test]
    fn rejects_a_certificate_that_writes_the_managed_secret() {
        let issuer = object("Issuer", "mesh-ca", json!({"ca": {"secretName": "mesh-root"}}));
        let certificate = json!({"secretName": "gateway", "issuerRef": {"name": "mesh-ca"}});
        let error = resolved(&issuer, certificate, json!({"certificateRef": {"name": "edge"}})).unwrap_err();
        assert!(error.to_string().ends_with("Set spec.secretName of the Certificate to another name"), "{error}");
    }

    #[test]
    fn a_certificate_of_a_gateway_s_annotation_needs_the_annotation_removed() {
        let mut certificate =
            object("Certificate", "edge", json!({"secretName": "gateway", "issuerRef": {"name": "mesh-ca"}}));
        let owner = json!({"kind": "Gateway", "name": "public", "controller": true});
        certificate["metadata"]["ownerReferences"] = json!([owner]);
        let mut objects = CertManagerObjects::default();
        objects.take(&certificate, "mesh");
        let error = objects.resolve(&entry(json!({"certificateRef": {"name": "edge"}}))).unwrap_err().to_string();
        assert!(
            error.contains("makes this Certificate for Gateway public and restores its fields: remove the annotation"),
            "{error}"
        );
        assert!(error.ends_with("then set spec.secretName of the Certificate to another name"), "{error}");
    }

    #[test]
    fn a_missing_certificate_keeps_the_last_result() {
        let mut entry = entry(json!({"certificateRef": {"name": "edge"}}));
        let error = CertManagerObjects::default().resolve(&entry).unwrap_err();
        assert!(error.to_string().starts_with("Certificate mesh/edge (spec.certificateRef) was not found"), "{error}");
        entry.resolved.source_secret_name = "edge-tls".to_owned();
        assert_eq!(CertManagerObjects::default().resolve(&entry).unwrap(), entry.resolved);
    }
}
