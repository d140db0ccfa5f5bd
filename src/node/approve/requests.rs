//! Certificate signing requests of clients: approval, and the certificates that were issued.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};

use super::error::ApproveError;
use crate::identity::approval::{APPROVED_MESSAGE, AUTO_APPROVED, Denial, Recognition, SigningRequest, recognize};
use crate::identity::{IdentityName, SIGNER, SUBRESOURCE, plan};
use crate::trust::{Certificate, bundle};

/// A certificate that was issued for an identity.
pub(super) struct Issued {
    /// Name of the request.
    pub(super) request: String,
    /// The user who sent the request.
    pub(super) requester: String,
    /// The certificate.
    pub(super) certificate: Certificate,
}

impl Issued {
    /// The certificate in base64.
    pub(super) fn encoded(&self) -> String {
        STANDARD.encode(&self.certificate.der)
    }
}

/// The newest certificate of each identity that is valid now.
pub(super) fn issued(requests: &[CertificateSigningRequest], now: Timestamp) -> BTreeMap<IdentityName, Issued> {
    let mut newest: BTreeMap<IdentityName, Issued> = BTreeMap::new();
    for request in requests.iter().filter(|request| request.spec.signer_name == SIGNER) {
        let pem = request.status.as_ref().and_then(|status| status.certificate.as_ref());
        let Some(certificate) = pem.and_then(|pem| bundle::read_chain(&pem.0).into_certificates().into_iter().next())
        else {
            continue;
        };
        let Some(identity) = plan::common_name(&certificate).and_then(|user| IdentityName::of_user(&user)) else {
            continue;
        };
        let is_newer = newest.get(&identity).is_none_or(|one| one.certificate.not_before < certificate.not_before);
        if certificate.is_valid_at(now) && is_newer {
            let requester = request.spec.username.clone().unwrap_or_default();
            newest.insert(identity, Issued { request: request.name_any(), requester, certificate });
        }
    }
    newest
}

/// Whether a request has no decision.
pub(super) fn is_undecided(request: &CertificateSigningRequest) -> bool {
    request.status.as_ref().is_none_or(|status| {
        status.certificate.is_none() && status.conditions.as_ref().is_none_or(|conditions| conditions.is_empty())
    })
}

/// The fields of a request that decide.
pub(super) fn fields(request: &CertificateSigningRequest) -> SigningRequest<'_> {
    let spec = &request.spec;
    SigningRequest {
        signer: &spec.signer_name,
        request: &spec.request.0,
        usages: spec.usages.iter().flatten().map(String::as_str).collect(),
        expiration_seconds: spec.expiration_seconds,
        username: spec.username.as_deref().unwrap_or_default(),
        created: request.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
    }
}

/// What a request asks for.
pub(super) fn recognized(request: &CertificateSigningRequest) -> Recognition {
    recognize(&fields(request))
}

/// Whether the requester may have certificates of an identity.
pub(super) async fn is_allowed(
    client: &Client,
    request: &CertificateSigningRequest,
    identity: &IdentityName,
) -> Result<bool, ApproveError> {
    let text = |text: &str| Some(text.to_owned());
    let attributes = ResourceAttributes {
        group: text("certificates.k8s.io"),
        version: text("*"),
        resource: text("certificatesigningrequests"),
        subresource: text(SUBRESOURCE),
        verb: text("create"),
        name: Some(identity.resource_name()),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        user: request.spec.username.clone(),
        groups: request.spec.groups.clone(),
        extra: request.spec.extra.clone(),
        uid: request.spec.uid.clone(),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await;
    let answer = answer.map_err(|error| ApproveError::api("create a SubjectAccessReview", error))?;
    Ok(answer.status.is_some_and(|status| status.allowed && status.denied != Some(true)))
}

/// Approves a request.
pub(super) async fn approve(client: &Client, request: &CertificateSigningRequest) -> Result<(), ApproveError> {
    conclude(client, request, "Approved", AUTO_APPROVED, APPROVED_MESSAGE).await
}

/// Denies a request.
pub(super) async fn deny(
    client: &Client,
    request: &CertificateSigningRequest,
    denial: &Denial,
) -> Result<(), ApproveError> {
    conclude(client, request, "Denied", denial.reason, &denial.message).await
}

async fn conclude(
    client: &Client,
    request: &CertificateSigningRequest,
    type_: &str,
    reason: &str,
    message: &str,
) -> Result<(), ApproveError> {
    let mut concluded = request.clone();
    let condition = CertificateSigningRequestCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..CertificateSigningRequestCondition::default()
    };
    concluded.status.get_or_insert_default().conditions.get_or_insert_default().push(condition);
    let (api, name): (Api<CertificateSigningRequest>, _) = (Api::all(client.clone()), request.name_any());
    let written = api.replace_subresource("approval", &name, &PostParams::default(), &concluded).await;
    match written {
        Ok(_) => {
            tracing::info!(request = name, reason, "certificate signing request: {type_}");
            Ok(())
        }
        // It was removed or changed meanwhile: the next reconcile reads it again.
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
        Err(error) => Err(ApproveError::api(format!("decide about CertificateSigningRequest {name}"), error)),
    }
}
