//! Resolves `certificateRef`: reads the Certificate and its issuer.

use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};

use super::AgentError;
use super::cluster_state::{get, objects};
use crate::api::Resolved;
use crate::registry::{CertManagerObjects, Entry, IssuerKey};

const CERT_MANAGER: &str = "cert-manager.io";

/// The source Secret and the CA's Secret, according to the Certificate and issuer in the cluster.
///
/// # Errors
/// When an object cannot be read, or the Certificate was never found.
pub(super) async fn read(client: &Client, entry: &Entry) -> Result<Resolved, AgentError> {
    let mut objects_read = CertManagerObjects::default();
    if let Some(reference) = &entry.spec.certificate_ref {
        let certificates = objects(client, &entry.namespace, CERT_MANAGER, "v1", "Certificate");
        if let Some(certificate) = get(&certificates, "certificates.cert-manager.io", &reference.name).await? {
            objects_read.take(&certificate, &entry.namespace);
        }
        if let Some(IssuerKey { kind, namespace, name, .. }) =
            objects_read.issuer(entry).filter(|issuer| issuer.is_of_cert_manager()).cloned()
        {
            let (api, resource) = match &namespace {
                Some(namespace) => (objects(client, namespace, CERT_MANAGER, "v1", &kind), "issuers.cert-manager.io"),
                None => {
                    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(CERT_MANAGER, "v1", &kind));
                    (Api::all_with(client.clone(), &resource), "clusterissuers.cert-manager.io")
                }
            };
            if let Some(issuer) = get(&api, resource, &name).await? {
                objects_read.take(&issuer, &entry.namespace);
            }
        }
    }
    Ok(objects_read.resolve(entry)?)
}
