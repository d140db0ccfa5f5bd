//! Which certificate signing requests of clients are approved. The model is the approver of kube-controller-manager: it recognises a request by its
//! exact content, then asks whether the requester may have it approved.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{OID_PKCS1_RSAENCRYPTION, OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME};
use x509_parser::prelude::FromDer;

use super::{GROUP, IdentityName, SIGNER, names};
use crate::api::{BootstrapToken, MIN_EXPIRATION_SECONDS};
use crate::text::excerpt;
use crate::trust::fingerprint_of;

/// Reason of an approval, as of kube-controller-manager's.
pub const AUTO_APPROVED: &str = "AutoApproved";

/// Message of an approval.
pub const APPROVED_MESSAGE: &str = "Auto approving the certificate of a ClientIdentity after SubjectAccessReview.";

/// How long a SubjectAccessReview may refuse a requester before the request is denied: API servers see a new binding at different times.
const ACCESS_GRACE: SignedDuration = SignedDuration::from_secs(15);

/// The longest request that is read, in bytes of PEM: eight times that of an RSA key with 16384 bits.
pub const MAX_REQUEST: usize = 32 << 10;

/// Prefix of the user names of bootstrap tokens.
const TOKEN_USER_PREFIX: &str = "system:bootstrap:";

/// The fields of a CertificateSigningRequest that decide about its approval.
#[derive(Clone, Debug)]
pub struct SigningRequest<'r> {
    /// `spec.signerName`.
    pub signer: &'r str,
    /// `spec.request`: PKCS #10 in PEM.
    pub request: &'r [u8],
    /// `spec.usages`.
    pub usages: Vec<&'r str>,
    /// `spec.expirationSeconds`.
    pub expiration_seconds: Option<i32>,
    /// `spec.username`: who sent it.
    pub username: &'r str,
    /// When it was created.
    pub created: Timestamp,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recognition {
    /// No certificate of a ClientIdentity, or longer than [`MAX_REQUEST`]. It is not decided here.
    Other,
    /// A certificate of this ClientIdentity, in the only form that is approved.
    Identity {
        /// The ClientIdentity.
        identity: IdentityName,
        /// A hash of the public key.
        key_hash: String,
    },
    /// A name of a ClientIdentity in another form.
    Refused(Denial),
}

/// Why a request is denied: a reason in CamelCase, and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The reason.
    pub reason: &'static str,
    /// What was found and what was expected.
    pub message: String,
}

impl Denial {
    /// The message may quote the request. The API server rejects what is too large, so that there would be no decision.
    fn new(reason: &'static str, message: &str) -> Self {
        Self { reason, message: excerpt(message) }
    }
}

/// What to do with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Approve it.
    Approve,
    /// Deny it.
    Deny(Denial),
    /// Decide again later.
    Wait,
}

/// Recognises a request by its content.
pub fn recognize(request: &SigningRequest<'_>) -> Recognition {
    if request.signer != SIGNER || request.request.len() > MAX_REQUEST {
        return Recognition::Other;
    }
    let Some(der) = single_block(request.request) else { return Recognition::Other };
    let Ok((&[], parsed)) = X509CertificationRequest::from_der(&der) else { return Recognition::Other };
    let info = &parsed.certification_request_info;
    let attributes: Vec<_> =
        info.subject.iter_attributes().map(|one| (one.attr_type(), one.as_str().unwrap_or_default())).collect();
    if !attributes.iter().any(|(_, value)| names::is_ours(value)) {
        return Recognition::Other;
    }
    let values = |oid| attributes.iter().filter(move |(kind, _)| **kind == oid).map(|(_, value)| *value);
    let common_names: Vec<_> = values(OID_X509_COMMON_NAME).collect();
    let identity = match common_names[..] {
        [user] => IdentityName::of_user(user),
        _ => None,
    };
    let is_exact = attributes.len() == 2 && values(OID_X509_ORGANIZATION_NAME).eq([GROUP]);
    let Some(identity) = identity.filter(|_| is_exact) else {
        let message = format!(
            "the subject is {:?}; expected one organization, {GROUP}, and as common name the user name of a ClientIdentity",
            info.subject.to_string()
        );
        return Recognition::Refused(Denial::new("UnexpectedSubject", &message));
    };
    // kube-controller-manager copies the names of the extension request into the certificate, from each of these attributes.
    if !info.attributes().is_empty() {
        let message = "the request has attributes, such as subject alternative names; expected none";
        return Recognition::Refused(Denial::new("UnexpectedExtensions", message));
    }
    let is_rsa = info.subject_pki.algorithm.algorithm == OID_PKCS1_RSAENCRYPTION;
    if !has_exact_usages(&request.usages, is_rsa) {
        let message = format!(
            "the usages are {}; expected digital signature and client auth, and with an RSA key optionally key encipherment",
            request.usages.join(", ")
        );
        return Recognition::Refused(Denial::new("UnexpectedUsages", &message));
    }
    Recognition::Identity { identity, key_hash: fingerprint_of(info.subject_pki.raw) }
}

/// The content of a text that is exactly one PEM block. In any other text, readers could disagree on which block is the request.
fn single_block(text: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?.trim_ascii();
    let body =
        text.strip_prefix("-----BEGIN CERTIFICATE REQUEST-----")?.strip_suffix("-----END CERTIFICATE REQUEST-----")?;
    STANDARD.decode(body.split_ascii_whitespace().collect::<String>()).ok()
}

fn has_exact_usages(usages: &[&str], is_rsa: bool) -> bool {
    let count = |usage: &str| usages.iter().filter(|one| **one == usage).count();
    let (required, optional) = (["digital signature", "client auth"], "key encipherment");
    let known = required.iter().all(|usage| count(usage) == 1) && count(optional) <= usize::from(is_rsa);
    known && usages.len() == required.len() + count(optional)
}

/// What the approver knows about the ClientIdentity that a request is for.
#[derive(Clone, Debug)]
pub struct RequestedIdentity<'i> {
    /// The longest life of its certificates, in seconds.
    pub max_expiration_seconds: i32,
    /// Its bootstrap token.
    pub bootstrap: Option<&'i BootstrapToken>,
    /// Whether a SubjectAccessReview allows the requester `create` on the [subresource](super::SUBRESOURCE).
    pub is_allowed: bool,
}

/// Decides about a recognised request. `identity` is `None` if there is no such ClientIdentity.
pub fn decide(
    request: &SigningRequest<'_>,
    key_hash: &str,
    identity: Option<&RequestedIdentity<'_>>,
    now: Timestamp,
) -> Verdict {
    let deny = |reason, message: String| Verdict::Deny(Denial::new(reason, &message));
    let Some(identity) = identity else {
        return deny("UnknownIdentity", "there is no such ClientIdentity".to_owned());
    };
    let max = identity.max_expiration_seconds;
    if !request.expiration_seconds.is_some_and(|seconds| (MIN_EXPIRATION_SECONDS..=max).contains(&seconds)) {
        let found = request.expiration_seconds.map_or("not set".to_owned(), |seconds| seconds.to_string());
        let message = format!("expirationSeconds is {found}; expected {MIN_EXPIRATION_SECONDS} to {max}");
        return deny("UnexpectedExpiration", message);
    }
    if !identity.is_allowed {
        let message = format!("{} may not request certificates of this ClientIdentity", request.username);
        let is_final = request.created.saturating_add(ACCESS_GRACE).is_ok_and(|end| end <= now);
        return if is_final { deny("NotAuthorized", message) } else { Verdict::Wait };
    }
    let Some(token_id) = request.username.strip_prefix(TOKEN_USER_PREFIX) else { return Verdict::Approve };
    // Who reads a bootstrap kubeconfig later gets no certificate by it.
    match identity.bootstrap.filter(|bootstrap| bootstrap.token_id == token_id) {
        None => deny("UnknownToken", "the bootstrap token is not the current one of this ClientIdentity".to_owned()),
        Some(token) if token.key_hash.as_ref().is_some_and(|used| used != key_hash) => {
            deny("TokenUsed", "the bootstrap token was used for another key".to_owned())
        }
        Some(_) => Verdict::Approve,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType,
    };

    use super::*;

    const USER: &str = "trustspan.dev:client-identity:shop:payments";

    fn request_with(change: impl FnOnce(&mut CertificateParams)) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, GROUP);
        params.distinguished_name.push(DnType::CommonName, USER);
        change(&mut params);
        params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
    }

    fn signing_request(request: &str) -> SigningRequest<'_> {
        SigningRequest {
            signer: SIGNER,
            request: request.as_bytes(),
            usages: vec!["digital signature", "client auth"],
            expiration_seconds: Some(3600),
            username: "system:bootstrap:abcdef",
            created: Timestamp::UNIX_EPOCH,
        }
    }

    fn refusal(request: &SigningRequest<'_>) -> &'static str {
        match recognize(request) {
            Recognition::Refused(denial) => denial.reason,
            other => panic!("expected a refusal, saw {other:?}"),
        }
    }

    fn token() -> BootstrapToken {
        BootstrapToken {
            token_id: "abcdef".to_owned(),
            created_at: Timestamp::UNIX_EPOCH,
            expiration: Timestamp::UNIX_EPOCH,
            endpoint: String::new(),
            ca_hash: String::new(),
            bundle_hash: String::new(),
            cas: Vec::new(),
            delivered: true,
            attempts: 1,
            key_hash: None,
        }
    }

    fn decided(
        change: impl FnOnce(&mut SigningRequest<'_>, &mut RequestedIdentity<'_>),
        token: &BootstrapToken,
        seconds: i64,
    ) -> Verdict {
        let text = request_with(|_| ());
        let mut request = signing_request(&text);
        let mut identity = RequestedIdentity { max_expiration_seconds: 7200, bootstrap: Some(token), is_allowed: true };
        change(&mut request, &mut identity);
        decide(&request, "key", Some(&identity), Timestamp::from_second(seconds).unwrap())
    }

    fn denial(verdict: Verdict) -> &'static str {
        match verdict {
            Verdict::Deny(denial) => denial.reason,
            other => panic!("expected a denial, saw {other:?}"),
        }
    }

    #[test]
    fn recognizes_the_exact_request_of_an_identity() {
        let text = request_with(|_| ());
        let recognition = recognize(&signing_request(&text));
        let Recognition::Identity { identity, .. } = recognition else { panic!("saw {recognition:?}") };
        assert_eq!(identity, IdentityName::new("shop", "payments"));
    }

    #[test]
    fn leaves_requests_of_others_alone() {
        let text = request_with(|_| ());
        let other_signer = SigningRequest { signer: "kubernetes.io/kubelet-serving", ..signing_request(&text) };
        assert_eq!(recognize(&other_signer), Recognition::Other);
        let named = |name: &str| {
            request_with(|params| {
                params.distinguished_name = rcgen::DistinguishedName::new();
                params.distinguished_name.push(DnType::CommonName, name);
            })
        };
        for name in ["system:node:one", "admin", "a:trustspan.dev:client-identity:shop:payments"] {
            assert_eq!(recognize(&signing_request(&named(name))), Recognition::Other, "{name}");
        }
        let malformed = "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n";
        for text in [String::new(), malformed.to_owned(), format!("{text}{text}"), format!("{malformed}{text}")] {
            assert_eq!(recognize(&signing_request(&text)), Recognition::Other, "{text}");
        }
    }

    #[test]
    fn refuses_any_other_subject() {
        type Change = fn(&mut CertificateParams);
        let changes: [(&str, Change); 5] = [
            ("further organization", |p| p.distinguished_name.push(DnType::OrganizationalUnitName, "ops")),
            ("masters", |p| p.distinguished_name.push(DnType::OrganizationName, "system:masters")),
            ("no organization", |p| {
                p.distinguished_name.remove(DnType::OrganizationName);
            }),
            ("name outside of the prefix", |p| p.distinguished_name.push(DnType::CommonName, "admin")),
            ("malformed name", |p| {
                p.distinguished_name.push(DnType::CommonName, "trustspan.dev:client-identity:shop");
            }),
        ];
        for (what, change) in changes {
            assert_eq!(refusal(&signing_request(&request_with(change))), "UnexpectedSubject", "{what}");
        }
    }

    #[test]
    fn a_refusal_quotes_at_most_a_kibibyte_of_the_request() {
        let organization = "\u{1}".repeat(12_000);
        let text = request_with(|params| params.distinguished_name.push(DnType::OrganizationName, &*organization));
        let usage = "client auth, ".repeat(9_999);
        let with_usages = request_with(|_| ());
        let with_usages = SigningRequest { usages: vec![&usage], ..signing_request(&with_usages) };
        for request in [signing_request(&text), with_usages] {
            let Recognition::Refused(denial) = recognize(&request) else { panic!("expected a refusal") };
            assert!(denial.message.len() <= 1024, "{} bytes", denial.message.len());
            assert!(!denial.message.contains(char::is_control), "{}", denial.message);
        }
        let username: &str = "\n".repeat(300_000).leak();
        let denied =
            decided(|request, identity| (request.username, identity.is_allowed) = (username, false), &token(), 60);
        assert!(matches!(denied, Verdict::Deny(Denial { message, .. }) if message.len() <= 1024));
    }

    #[test]
    fn leaves_a_request_alone_that_is_too_long_to_be_one_of_ours() {
        let text = request_with(|params| params.distinguished_name.push(DnType::OrganizationName, "o".repeat(300_000)));
        assert_eq!(recognize(&signing_request(&text)), Recognition::Other);
    }

    #[test]
    fn refuses_names_and_extensions() {
        type Change = fn(&mut CertificateParams);
        let changes: [Change; 7] = [
            |p| p.subject_alt_names = vec![SanType::DnsName("kubernetes.default".try_into().unwrap())],
            |p| p.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())],
            |p| p.subject_alt_names = vec![SanType::URI("spiffe://cluster.local/ns/a/sa/b".try_into().unwrap())],
            |p| p.subject_alt_names = vec![SanType::Rfc822Name("a@example.com".try_into().unwrap())],
            |p| p.key_usages = vec![KeyUsagePurpose::KeyCertSign],
            |p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth],
            |p| p.custom_extensions = vec![CustomExtension::from_oid_content(&[1, 2, 3], vec![5, 0])],
        ];
        for (index, change) in changes.into_iter().enumerate() {
            assert_eq!(refusal(&signing_request(&request_with(change))), "UnexpectedExtensions", "{index}");
        }
    }

    #[test]
    fn accepts_key_encipherment_only_with_an_rsa_key() {
        let (exact, rsa) =
            (["digital signature", "client auth"], ["digital signature", "key encipherment", "client auth"]);
        assert!(has_exact_usages(&exact, false) && has_exact_usages(&exact, true) && has_exact_usages(&rsa, true));
        assert!(!has_exact_usages(&rsa, false));
        for usages in [
            &["client auth"][..],
            &["digital signature"],
            &["digital signature", "client auth", "server auth"],
            &["digital signature", "client auth", "client auth"],
            &[],
        ] {
            assert!(!has_exact_usages(usages, true), "{usages:?}");
        }
        let text = request_with(|_| ());
        let request = SigningRequest { usages: vec!["client auth", "any"], ..signing_request(&text) };
        assert_eq!(refusal(&request), "UnexpectedUsages");
    }

    #[test]
    fn approves_the_first_key_of_the_current_token() {
        let token = token();
        assert_eq!(decided(|_, _| (), &token, 0), Verdict::Approve);
        let used = |key: &str| BootstrapToken { key_hash: Some(key.to_owned()), ..token.clone() };
        assert_eq!(decided(|_, _| (), &used("key"), 0), Verdict::Approve, "approved, but not stored");
        assert_eq!(denial(decided(|_, _| (), &used("another"), 0)), "TokenUsed");
        assert_eq!(
            denial(decided(|request, _| request.username = "system:bootstrap:other1", &token, 0)),
            "UnknownToken"
        );
        assert_eq!(denial(decided(|_, identity| identity.bootstrap = None, &token, 0)), "UnknownToken");
        let renewal = decided(|request, _| request.username = USER, &used("another"), 0);
        assert_eq!(renewal, Verdict::Approve, "a renewal needs no token");
    }

    #[test]
    fn denies_a_requester_without_access_after_a_grace_period() {
        let token = token();
        assert_eq!(decided(|_, identity| identity.is_allowed = false, &token, 14), Verdict::Wait);
        assert_eq!(denial(decided(|_, identity| identity.is_allowed = false, &token, 15)), "NotAuthorized");
    }

    #[test]
    fn denies_a_life_out_of_bounds_and_an_unknown_identity() {
        for seconds in [None, Some(599), Some(7201), Some(i32::MAX), Some(-1)] {
            let verdict = decided(|request, _| request.expiration_seconds = seconds, &token(), 0);
            assert_eq!(denial(verdict), "UnexpectedExpiration", "{seconds:?}");
        }
        for seconds in [600, 7200] {
            assert_eq!(decided(|request, _| request.expiration_seconds = Some(seconds), &token(), 0), Verdict::Approve);
        }
        let text = request_with(|_| ());
        assert_eq!(denial(decide(&signing_request(&text), "key", None, Timestamp::UNIX_EPOCH)), "UnknownIdentity");
    }
}
