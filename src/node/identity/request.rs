//! Requests to the API server of a kubeconfig: certificate signing requests, and the check of a kubeconfig.

use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use rcgen::{CertificateParams, DistinguishedName, DnType, PublicKeyData};

use super::connect;
use super::error::{StepError, api_error, within};
use super::store::StoredKey;
use crate::identity::kubeconfig::{ClientCertificate, ClientKubeconfig};
use crate::identity::{GROUP, IdentityName, SIGNER};

/// The state of a request at the API server.
pub(super) enum Progress {
    /// It is not decided, or the certificate is not issued yet.
    Waiting,
    /// The certificate, in PEM.
    Issued(String),
    /// Why there will be no certificate.
    Lost(String),
}

/// Sends the requests of one identity.
pub(super) struct Requester {
    pub(super) identity: IdentityName,
    pub(super) expiration_seconds: i32,
}

impl Requester {
    fn name(&self, key: &StoredKey) -> String {
        self.identity.request_name(&key.key.subject_public_key_info())
    }

    /// Creates the request for a key, unless it exists: a process that was killed may have sent it.
    pub(super) async fn send(&self, by: &ClientKubeconfig, key: &StoredKey) -> Result<(), StepError> {
        let api: Api<CertificateSigningRequest> = Api::all(connect(by).await?);
        let name = self.name(key);
        let cannot = |_| StepError::misconfigured("cannot make a certificate signing request".to_owned());
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, GROUP);
        params.distinguished_name.push(DnType::CommonName, self.identity.user());
        let request = params.serialize_request(&key.key).and_then(|request| request.pem()).map_err(cannot)?;
        let spec = CertificateSigningRequestSpec {
            signer_name: SIGNER.to_owned(),
            request: ByteString(request.into_bytes()),
            usages: Some(["digital signature", "client auth"].map(str::to_owned).to_vec()),
            expiration_seconds: Some(self.expiration_seconds),
            ..CertificateSigningRequestSpec::default()
        };
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        let object = CertificateSigningRequest { metadata, spec, status: None };
        match within(api.create(&PostParams::default(), &object)).await {
            Ok(_) => {
                tracing::info!(server = by.server.endpoint, request = name, "certificate requested");
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                tracing::info!(server = by.server.endpoint, request = name, "found the request that was sent before");
                Ok(())
            }
            Err(error) => Err(api_error(&format!("create CertificateSigningRequest {name}"), &error)),
        }
    }

    /// Reads the request for a key.
    pub(super) async fn progress(&self, by: &ClientKubeconfig, key: &StoredKey) -> Result<Progress, StepError> {
        let api: Api<CertificateSigningRequest> = Api::all(connect(by).await?);
        let name = self.name(key);
        let read = within(api.get_opt(&name)).await;
        let read = read.map_err(|error| api_error(&format!("read CertificateSigningRequest {name}"), &error))?;
        let Some(object) = read else {
            return Ok(Progress::Lost(format!(
                "CertificateSigningRequest {name} was removed before a certificate was issued"
            )));
        };
        let status = object.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        if let Some(bad) = conditions.iter().find(|one| ["Denied", "Failed"].contains(&one.type_.as_str())) {
            let (reason, message) = (bad.reason.as_deref().unwrap_or("?"), bad.message.as_deref().unwrap_or("?"));
            let state = bad.type_.to_lowercase();
            return Ok(Progress::Lost(format!("CertificateSigningRequest {name} was {state} ({reason}): {message}")));
        }
        let Some(certificate) = status.certificate.map(|bytes| bytes.0).filter(|bytes| !bytes.is_empty()) else {
            return Ok(Progress::Waiting);
        };
        let is_ours = ClientCertificate::read(&certificate).is_ok_and(|one| one.key_hash == key.pending.key_hash);
        match String::from_utf8(certificate) {
            Ok(certificate) if is_ours => Ok(Progress::Issued(certificate)),
            _ => Ok(Progress::Lost(format!("CertificateSigningRequest {name} has a certificate for another key"))),
        }
    }

    /// Asks the API server of a kubeconfig who this client is. Every authenticated user may ask (ClusterRole `system:basic-user`).
    pub(super) async fn check(&self, kubeconfig: &ClientKubeconfig) -> Result<(), StepError> {
        let api: Api<SelfSubjectReview> = Api::all(connect(kubeconfig).await?);
        let answer = within(api.create(&PostParams::default(), &SelfSubjectReview::default())).await;
        let answer = answer.map_err(|error| api_error("use the kubeconfig", &error))?;
        let user = answer.status.and_then(|status| status.user_info).and_then(|info| info.username);
        match user {
            Some(user) if user == self.identity.user() => Ok(()),
            user => Err(StepError::Refused(format!(
                "the API server sees user {}; expected {}",
                user.unwrap_or_default(),
                self.identity.user()
            ))),
        }
    }
}
