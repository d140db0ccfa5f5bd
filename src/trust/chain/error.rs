//! Verdicts on a chain.

use jiff::Timestamp;
use serde::Serialize;

/// Why a chain is accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Accepted {
    /// Subjects from the leaf to where the path ends.
    pub path: Vec<String>,
    /// SHA-256 of the bundle's certificate that the path rests on: the first trusted one, counted from the leaf.
    pub anchor: String,
    /// The earliest end of validity on the path: from then on it is refused.
    pub until: Timestamp,
}

/// Why a chain is refused. Each variant tells where the statement comes from: `RFC`, BoringSSL's function, or a measurement
/// (Envoy 1.40.0).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// TLS needs a certificate (RFC 8446 section 4.4.2.4; `require_client_certificate`).
    #[error("no certificate was presented; send the leaf first, its intermediates after it")]
    NoCertificate,
    /// Measured: Envoy refuses the update; a proxy that starts with it refuses everyone.
    #[error("the bundle holds no certificate; expected at least one CA")]
    NoAnchors,
    /// Measured: the request for a client certificate names all CAs, in a vector of 64 KiB (RFC 8446 section 4.2.4).
    #[error(
        "the subjects of all CAs take {bytes} bytes, and TLS has room for {max}: every handshake fails; remove CAs"
    )]
    SubjectsTooLong {
        /// Their length on the wire.
        bytes: usize,
        /// What there is room for.
        max: usize,
    },
    /// `SSL_CTX_set_max_cert_list`: 100 KiB.
    #[error("the chain takes {bytes} bytes, more than TLS libraries take; send the leaf and its intermediates only")]
    ChainTooLong {
        /// Its length.
        bytes: usize,
    },
    /// BoringSSL writes the chain into two session tickets; measured.
    #[error(
        "the chain takes {bytes} bytes; of 32 to 64 KiB the proxy can make no session tickets, and closes the connection; send \
         fewer names or intermediates"
    )]
    TicketsTooLong {
        /// Its length.
        bytes: usize,
    },
    /// `kVerifySignatureAlgorithms` (ssl/extensions.cc), measured: P-521 and Ed25519 leaves are refused, RSA of 1024 bits is not.
    #[error(
        "{subject} has a key that the proxy does not take in a handshake; expected RSA, P-256 or P-384, issue it anew"
    )]
    LeafKey {
        /// The leaf.
        subject: String,
    },
    /// RFC 5280 section 4.2.1.3, `ssl_cert_check_key_usage`; measured: key agreement alone is refused.
    #[error("the key usage of {subject} lacks digitalSignature, which TLS needs; issue it anew")]
    LeafKeyUsage {
        /// The leaf.
        subject: String,
    },
    /// `X509_V_ERR_INVALID_EXTENSION`: RFC 5280 section 4.2.
    #[error("{subject} has a malformed or repeated extension; issue it anew")]
    InvalidExtension {
        /// The certificate.
        subject: String,
    },
    /// `X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY`.
    #[error(
        "no CA of the bundle is the issuer of {subject}: nothing has the subject {issuer}; add it to the bundle, or the missing intermediate to the chain"
    )]
    UnknownIssuer {
        /// The end of the path.
        subject: String,
        /// The issuer it names.
        issuer: String,
    },
    /// `X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT`.
    #[error("{subject} is self-signed and not in the bundle; add it, or issue it from a CA of the bundle")]
    SelfSigned {
        /// The leaf.
        subject: String,
    },
    /// `X509_V_ERR_AKID_SKID_MISMATCH` and `X509_V_ERR_AKID_ISSUER_SERIAL_MISMATCH` (RFC 5280 section 4.2.1.1).
    #[error(
        "{issuer} is in the bundle, but with another key or serial than the authority key identifier of {subject} says; add the CA that signed it"
    )]
    IssuerKeyId {
        /// The end of the path.
        subject: String,
        /// The issuer it names.
        issuer: String,
    },
    /// `X509_V_ERR_KEYUSAGE_NO_CERTSIGN` (RFC 5280 section 4.2.1.3); measured for anchors, too.
    #[error(
        "the key usage of {issuer} does not allow to sign certificates, such as {subject}; issue the CA anew with keyCertSign"
    )]
    IssuerMayNotSign {
        /// The end of the path.
        subject: String,
        /// The issuer it names.
        issuer: String,
    },
    /// `X509_V_ERR_UNHANDLED_CRITICAL_EXTENSION` (RFC 5280 section 4.2). Measured: an anchor's pass.
    #[error("{subject} has a critical extension that the proxy does not know; issue it anew without")]
    UnknownCriticalExtension {
        /// The certificate.
        subject: String,
    },
    /// `X509_V_ERR_INVALID_CA` (RFC 5280 section 4.2.1.9). Measured: an anchor need not be a CA.
    #[error("{subject} signed a certificate and is no CA (basicConstraints, version 3); issue the intermediate anew")]
    NotACa {
        /// The intermediate.
        subject: String,
    },
    /// `X509_V_ERR_INVALID_PURPOSE` (RFC 5280 section 4.2.1.12). Measured: anyExtendedKeyUsage does not help.
    #[error("the extended key usage of {subject} lacks {expected}; issue it anew")]
    Purpose {
        /// The certificate.
        subject: String,
        /// The usage that was expected.
        expected: &'static str,
    },
    /// `X509_V_ERR_PATH_LENGTH_EXCEEDED` (RFC 5280 section 4.2.1.9). Measured: an anchor's limit does not count.
    #[error("{subject} allows fewer CAs below it than the chain has; issue from a CA higher up")]
    PathLength {
        /// The intermediate.
        subject: String,
    },
    /// `X509_V_ERR_CERT_HAS_EXPIRED`; the last second itself is over (`X509_cmp_time_posix`).
    #[error("{subject} expired at {at}; renew it, and put a renewed CA before the expired one")]
    Expired {
        /// The certificate.
        subject: String,
        /// Its end.
        at: Timestamp,
    },
    /// `X509_V_ERR_CERT_NOT_YET_VALID`.
    #[error("{subject} is not valid before {at}; wait, or look at the clocks")]
    NotYetValid {
        /// The certificate.
        subject: String,
        /// Its start.
        at: Timestamp,
    },
    /// `X509_V_ERR_CERT_SIGNATURE_FAILURE`.
    #[error(
        "{subject} was not signed by the key of {issuer} that the bundle or chain holds; add the CA that signed it"
    )]
    Signature {
        /// The certificate.
        subject: String,
        /// Who was thought to have signed it.
        issuer: String,
    },
    /// Measured: MD5 is refused. Others are refused by us, since nothing here can verify them.
    #[error("{subject} is signed with an algorithm that is not taken; issue it anew with SHA-256")]
    SignatureAlgorithm {
        /// The certificate.
        subject: String,
    },
    /// `X509_V_ERR_PERMITTED_VIOLATION`, `X509_V_ERR_EXCLUDED_VIOLATION` (RFC 5280 section 4.2.1.10). Measured: an anchor's count.
    #[error("the name constraints of {issuer} do not permit {subject}; issue it with other names, or from another CA")]
    NameConstraints {
        /// The certificate.
        subject: String,
        /// The CA that constrains.
        issuer: String,
    },
    /// `X509_V_ERR_UNSUPPORTED_CONSTRAINT_TYPE`. Measured: constraints on addresses refuse every leaf with an address.
    #[error(
        "{issuer} constrains names of a kind that the proxy cannot compare, and {subject} has one; issue it without"
    )]
    UnsupportedConstraint {
        /// The certificate.
        subject: String,
        /// The CA that constrains.
        issuer: String,
    },
    /// RFC 5280 section 6.1.3 (d). Not modelled: refused, to be on the safe side.
    #[error("{subject} constrains certificate policies, which is not judged here; remove policyConstraints")]
    Policy {
        /// The certificate.
        subject: String,
    },
    /// `X509_V_ERR_UNABLE_TO_GET_CRL`: with one CRL present, each CA on the path needs one (measured).
    #[error("no revocation list of {issuer} was found, and with one list present each CA needs one; add it")]
    CrlMissing {
        /// The CA.
        issuer: String,
    },
    /// `X509_V_ERR_CRL_HAS_EXPIRED` (measured), `X509_V_ERR_CRL_NOT_YET_VALID`.
    #[error("the revocation list of {issuer} is not valid now; publish a new one")]
    CrlOutdated {
        /// The CA.
        issuer: String,
    },
    /// Scope, critical extensions, key usage or signature of a revocation list (RFC 5280 section 6.3.3).
    #[error("the revocation list of {issuer} cannot be used: {cause}")]
    CrlUnusable {
        /// The CA.
        issuer: String,
        /// What is wrong.
        cause: &'static str,
    },
    /// `X509_V_ERR_CERT_REVOKED`.
    #[error("{subject} is revoked; issue a new one")]
    Revoked {
        /// The certificate.
        subject: String,
    },
    /// RFC 9525 section 6.
    #[error("{subject} is not for the host {host}; add it to the subject alternative names")]
    Host {
        /// The leaf.
        subject: String,
        /// The first host that no name covers.
        host: String,
    },
    /// Measured: BoringSSL takes the first CA whose name and key id fit, and never looks at the next.
    #[error(
        "{because}. {issuer} stands in the bundle {count} times, and only the first that fits is tried: another would do, put it first"
    )]
    Shadowed {
        /// The subject that stands more than once.
        issuer: String,
        /// How many fit.
        count: usize,
        /// What the first one meets.
        because: Box<Refused>,
    },
    /// Measured: from 24 entries on BoringSSL's store sorts (`std::sort`), and same-subject CAs change places.
    #[error(
        "{because}. with 24 or more CAs and lists the proxy picks any of the CAs with one subject: keep one for each subject"
    )]
    OrderUndetermined {
        /// What one of the orders meets.
        because: Box<Refused>,
    },
    /// Ours: hostile or hopeless input.
    #[error("too many CAs with the same subject or name constraints to try them all; keep one CA for each subject")]
    Budget,
}

impl Refused {
    /// How much the reason helps whoever has to mend it; of several reasons the highest is told.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Budget | Self::UnknownIssuer { .. } => 1,
            Self::IssuerKeyId { .. } | Self::SelfSigned { .. } => 2,
            Self::Signature { .. } => 3,
            Self::NoAnchors
            | Self::NoCertificate
            | Self::SubjectsTooLong { .. }
            | Self::ChainTooLong { .. }
            | Self::TicketsTooLong { .. } => 9,
            Self::Revoked { .. } => 8,
            Self::Expired { .. } | Self::NotYetValid { .. } => 6,
            Self::Shadowed { .. } | Self::OrderUndetermined { .. } => 7,
            _ => 5,
        }
    }

    /// A stable id, in kebab case.
    pub fn id(&self) -> &'static str {
        match self {
            Self::NoCertificate => "no-certificate",
            Self::NoAnchors => "no-anchors",
            Self::SubjectsTooLong { .. } => "subjects-too-long",
            Self::ChainTooLong { .. } => "chain-too-long",
            Self::TicketsTooLong { .. } => "tickets-too-long",
            Self::LeafKey { .. } => "leaf-key",
            Self::LeafKeyUsage { .. } => "leaf-key-usage",
            Self::InvalidExtension { .. } => "invalid-extension",
            Self::UnknownIssuer { .. } => "unknown-issuer",
            Self::SelfSigned { .. } => "self-signed",
            Self::IssuerKeyId { .. } => "issuer-key-id",
            Self::IssuerMayNotSign { .. } => "issuer-may-not-sign",
            Self::UnknownCriticalExtension { .. } => "unknown-critical-extension",
            Self::NotACa { .. } => "not-a-ca",
            Self::Purpose { .. } => "purpose",
            Self::PathLength { .. } => "path-length",
            Self::Expired { .. } => "expired",
            Self::NotYetValid { .. } => "not-yet-valid",
            Self::Signature { .. } => "signature",
            Self::SignatureAlgorithm { .. } => "signature-algorithm",
            Self::NameConstraints { .. } => "name-constraints",
            Self::UnsupportedConstraint { .. } => "unsupported-constraint",
            Self::Policy { .. } => "policy",
            Self::CrlMissing { .. } => "crl-missing",
            Self::CrlOutdated { .. } => "crl-outdated",
            Self::CrlUnusable { .. } => "crl-unusable",
            Self::Revoked { .. } => "revoked",
            Self::Host { .. } => "host",
            Self::Shadowed { .. } => "shadowed",
            Self::OrderUndetermined { .. } => "order-undetermined",
            Self::Budget => "budget",
        }
    }
}
