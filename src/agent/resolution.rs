//! Reads what a GatewaySecret leaves to be derived: its Certificate, and the issuer of that.

use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};

use super::AgentError;
use super::cluster_state::{get, objects};
use crate::api::Resolved;
use crate::registry::{CertManagerObjects, Entry, IssuerKey};

const CERT_MANAGER: &str = "cert-manager.io";

/// What the cluster says of it now.
///
/// # Errors
/// When an object cannot be read, or the Certificate was never found.
pub(super) async fn read(client: &Client, entry: &Entry) -> Result<Resolved, AgentError> {
    let mut issuance = CertManagerObjects::default();
    if let Some(reference) = &entry.spec.certificate_ref {
        let certificates = objects(client, &entry.namespace, CERT_MANAGER, "v1", "Certificate");
        if let Some(certificate) = get(&certificates, "certificates.cert-manager.io", &reference.name).await? {
            issuance.take(&certificate, &entry.namespace);
        }
        if let Some(IssuerKey { kind, namespace, name, .. }) =
            issuance.issuer(entry).filter(|issuer| issuer.is_of_cert_manager()).cloned()
        {
            let (api, resource) = match &namespace {
                Some(namespace) => (objects(client, namespace, CERT_MANAGER, "v1", &kind), "issuers.cert-manager.io"),
                None => {
                    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(CERT_MANAGER, "v1", &kind));
                    (Api::all_with(client.clone(), &resource), "clusterissuers.cert-manager.io")
                }
            };
            if let Some(issuer) = get(&api, resource, &name).await? {
                issuance.take(&issuer, &entry.namespace);
            }
        }
    }
    Ok(issuance.resolve(entry)?)
}
