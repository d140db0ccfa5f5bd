//! Certificate signing requests of clients: approval, and the certificates that were issued.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use tokio::time::timeout;

use super::error::ApproveError;
use crate::identity::approval::{
    APPROVED_MESSAGE, AUTO_APPROVED, Denial, MAX_REQUEST, Recognition, SigningRequest, recognize,
};
use crate::identity::{IdentityName, SIGNER, SUBRESOURCE, plan};
use crate::trust::{Certificate, bundle};

/// Field selector of the requests that may be for ClientIdentities: those of [`SIGNER`].
pub(super) const OURS: &str = "spec.signerName=kubernetes.io/kube-apiserver-client";

/// Requests that are read at once. One may have 1.5 MiB (etcd's --max-request-bytes).
const PAGE: u32 = 20;

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

/// The newest certificate of each identity that is valid now, and the requests without a decision. Read in small pages: anyone who may create
/// requests may create large ones.
pub(super) async fn read(
    client: &Client,
    limit: Duration,
    now: Timestamp,
) -> Result<(BTreeMap<IdentityName, Issued>, Vec<CertificateSigningRequest>), ApproveError> {
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let (mut newest, mut undecided) = (BTreeMap::new(), Vec::new());
    let mut params = ListParams::default().fields(OURS).limit(PAGE);
    loop {
        let page = timeout(limit, api.list(&params)).await.map_err(|_| ApproveError::NoAnswer)?;
        let page = page.map_err(|error| ApproveError::api("list certificatesigningrequests", error))?;
        record_issued(&mut newest, &page.items, now);
        undecided.extend(page.items.into_iter().filter(|request| is_undecided(request) && is_candidate(request)));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok((newest, undecided)),
        }
    }
}

/// Whether a request may be for a ClientIdentity: others need not be kept in memory.
fn is_candidate(request: &CertificateSigningRequest) -> bool {
    request.spec.signer_name == SIGNER && request.spec.request.0.len() <= MAX_REQUEST
}

/// Adds the certificates of some requests.
fn record_issued(newest: &mut BTreeMap<IdentityName, Issued>, requests: &[CertificateSigningRequest], now: Timestamp) {
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
}

/// Whether a request has no decision.
fn is_undecided(request: &CertificateSigningRequest) -> bool {
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
