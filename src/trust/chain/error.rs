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

/// Why a chain is refused. Each variant names its source: an RFC, a constant or function of BoringSSL, or a measurement
/// (with Envoy 1.40.0).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// TLS needs a certificate (RFC 8446 section 4.4.2.4; `require_client_certificate`).
    #[error("no certificate was presented; send the leaf, followed by its intermediates")]
    NoCertificate,
    /// Measured: Envoy rejects the update; a proxy that starts with it refuses every client.
    #[error("the bundle holds no certificate. expected at least one CA; add it")]
    NoAnchors,
    /// Measured: the request for a client certificate names all CAs, in a vector of 64 KiB (RFC 8446 section 4.2.4).
    #[error(
        "the subjects of all CAs take {bytes} bytes. expected at most {max}: with more every handshake fails; remove CAs"
    )]
    SubjectsTooLong {
        /// The length of all subjects on the wire.
        bytes: usize,
        /// The longest length that fits.
        max: usize,
    },
    /// `SSL_CTX_set_max_cert_list`: 100 KiB.
    #[error("the chain takes {bytes} bytes, more than TLS libraries read; send only the leaf and its intermediates")]
    ChainTooLong {
        /// The chain's length.
        bytes: usize,
    },
    /// `X509_parse_from_buffer`: a certificate in a handshake ends where its DER ends (RFC 8446 section 4.4.2). Go and rustls send the
    /// whole content of a PEM block.
    #[error("bytes follow {subject} in its block; remove them, since most clients would send them, too")]
    TrailingBytes {
        /// The certificate's subject.
        subject: String,
    },
    /// BoringSSL writes the chain into two session tickets; measured.
    #[error(
        "the chain takes {bytes} bytes. expected less than 32 KiB: with 32 to 64 KiB the proxy cannot make session tickets, and closes \
         the connection; use fewer names or intermediates"
    )]
    TicketsTooLong {
        /// The chain's length.
        bytes: usize,
    },
    /// `kVerifySignatureAlgorithms` (ssl/extensions.cc), measured: P-521 and Ed25519 leaves are refused, RSA of 1024 bits is not.
    #[error(
        "{subject} has a key that the proxy does not accept in a handshake. expected RSA, P-256 or P-384; reissue it"
    )]
    LeafKey {
        /// The leaf's subject.
        subject: String,
    },
    /// RFC 5280 section 4.2.1.3, `ssl_cert_check_key_usage`; measured: key agreement alone is refused.
    #[error(
        "the key usage of {subject} lacks digitalSignature, which TLS requires; {}",
        if *is_ca { "it is a CA: write the leaf first" } else { "reissue it" }
    )]
    LeafKeyUsage {
        /// The leaf's subject.
        subject: String,
        /// Whether it is a CA: then probably the order of the chain is wrong.
        is_ca: bool,
    },
    /// `X509_V_ERR_INVALID_EXTENSION`: RFC 5280 section 4.2.
    #[error("{subject} has a malformed or repeated extension; reissue it")]
    InvalidExtension {
        /// The certificate's subject.
        subject: String,
    },
    /// `X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY`.
    #[error(
        "{subject} was issued by {issuer}, which is not in the bundle; add it, or the missing intermediate to the chain"
    )]
    UnknownIssuer {
        /// The subject of the last certificate on the path.
        subject: String,
        /// The issuer that it names.
        issuer: String,
    },
    /// `X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT`.
    #[error("{subject} is self-signed and not in the bundle; add it, or issue it from a CA of the bundle")]
    SelfSigned {
        /// The leaf's subject.
        subject: String,
    },
    /// `X509_V_ERR_AKID_SKID_MISMATCH` and `X509_V_ERR_AKID_ISSUER_SERIAL_MISMATCH` (RFC 5280 section 4.2.1.1).
    #[error(
        "{issuer} in the bundle does not have the key or serial number that the authority key identifier of {subject} names; add the CA \
         that signed it"
    )]
    IssuerKeyId {
        /// The subject of the last certificate on the path.
        subject: String,
        /// The issuer that it names.
        issuer: String,
    },
    /// `X509_V_ERR_KEYUSAGE_NO_CERTSIGN` (RFC 5280 section 4.2.1.3); measured for anchors, too.
    #[error("the key usage of {issuer}, which issued {subject}, lacks keyCertSign; reissue the CA with it")]
    IssuerMayNotSign {
        /// The subject of the last certificate on the path.
        subject: String,
        /// The issuer that it names.
        issuer: String,
    },
    /// `X509_V_ERR_UNHANDLED_CRITICAL_EXTENSION` (RFC 5280 section 4.2). Measured: Envoy accepts one in an anchor.
    #[error("{subject} has a critical extension that the proxy does not support; reissue it without")]
    UnknownCriticalExtension {
        /// The certificate's subject.
        subject: String,
    },
    /// `X509_V_ERR_INVALID_CA` (RFC 5280 section 4.2.1.9). Measured: an anchor need not be a CA.
    #[error("{subject} signed a certificate but is not a CA (basicConstraints, version 3); reissue the intermediate")]
    NotACa {
        /// The intermediate's subject.
        subject: String,
    },
    /// `X509_V_ERR_INVALID_PURPOSE` (RFC 5280 section 4.2.1.12). Measured: anyExtendedKeyUsage is not enough.
    #[error(
        "the extended key usage of {subject} lacks {expected}; reissue it if it is for {}",
        if *expected == "clientAuth" { "clients" } else { "servers" }
    )]
    Purpose {
        /// The certificate's subject.
        subject: String,
        /// The usage that was expected.
        expected: &'static str,
    },
    /// `X509_V_ERR_PATH_LENGTH_EXCEEDED` (RFC 5280 section 4.2.1.9). Measured: Envoy ignores the limit of an anchor.
    #[error("{subject} allows fewer CAs below it than the chain has; issue from a CA higher up")]
    PathLength {
        /// The intermediate's subject.
        subject: String,
    },
    /// `X509_V_ERR_CERT_REJECTED`: OpenSSL's trust settings (openssl-x509, -addreject clientAuth).
    #[error("{subject} has trust settings that reject clientAuth; write it again without: openssl x509 -in FILE")]
    Rejected {
        /// The CA's subject.
        subject: String,
    },
    /// `X509_V_ERR_CERT_HAS_EXPIRED`; the last second is excluded (`X509_cmp_time_posix`).
    #[error("{subject} expired at {at}; renew it, and remove the expired one")]
    Expired {
        /// The certificate's subject.
        subject: String,
        /// The end of its validity.
        at: Timestamp,
    },
    /// `X509_V_ERR_CERT_NOT_YET_VALID`.
    #[error("{subject} is not valid before {at}; wait, or check the clocks")]
    NotYetValid {
        /// The certificate's subject.
        subject: String,
        /// The start of its validity.
        at: Timestamp,
    },
    /// `X509_V_ERR_CERT_SIGNATURE_FAILURE`.
    #[error("{subject} was not signed by the key of {issuer} in the bundle or chain; add the CA that signed it")]
    Signature {
        /// The certificate's subject.
        subject: String,
        /// The CA that its issuer name leads to.
        issuer: String,
    },
    /// Measured: Envoy refuses MD5. Other algorithms are refused because this program cannot verify them.
    #[error("{subject} is signed with an algorithm that is not accepted; reissue it with SHA-256")]
    SignatureAlgorithm {
        /// The certificate's subject.
        subject: String,
    },
    /// `X509_V_ERR_PERMITTED_VIOLATION`, `X509_V_ERR_EXCLUDED_VIOLATION` (RFC 5280 section 4.2.1.10). Measured: Envoy applies those
    /// of an anchor, too.
    #[error("the name constraints of {issuer} do not permit {subject}; issue it with other names, or from another CA")]
    NameConstraints {
        /// The certificate's subject.
        subject: String,
        /// The CA with the constraints.
        issuer: String,
    },
    /// `X509_V_ERR_UNSUPPORTED_CONSTRAINT_TYPE`. Measured: constraints on addresses refuse every leaf with an address.
    #[error(
        "{issuer} constrains names of a type that the proxy cannot compare, and {subject} has one; reissue it without"
    )]
    UnsupportedConstraint {
        /// The certificate's subject.
        subject: String,
        /// The CA with the constraints.
        issuer: String,
    },
    /// RFC 5280 section 6.1.3 (d). Not modelled, so refused.
    #[error("{subject} constrains certificate policies, which are not evaluated here; remove policyConstraints")]
    Policy {
        /// The certificate's subject.
        subject: String,
    },
    /// `X509_V_ERR_UNABLE_TO_GET_CRL`: with one CRL present, each CA on the path needs one (measured).
    #[error(
        "no revocation list found for {issuer}. expected one for each CA, since there are lists for others; add it{}",
        if *has_certificate { "" } else { ", and the certificate of that CA to the bundle, which then admits its clients, too" }
    )]
    CrlMissing {
        /// The CA's subject.
        issuer: String,
        /// Whether the path has its certificate, which verifies a list.
        has_certificate: bool,
    },
    /// `X509_V_ERR_UNABLE_TO_GET_CRL_ISSUER`: the CA that signed the list is not on the path.
    #[error(
        "the revocation list of {issuer} cannot be verified without the certificate of that CA; add it to the bundle, which then \
         admits its clients, too"
    )]
    CrlIssuerMissing {
        /// The CA's subject.
        issuer: String,
    },
    /// `X509_V_ERR_CRL_HAS_EXPIRED` (measured), `X509_V_ERR_CRL_NOT_YET_VALID`.
    #[error("the revocation list of {issuer} is not valid now; publish a new one")]
    CrlOutdated {
        /// The CA's subject.
        issuer: String,
    },
    /// Scope, critical extensions, key usage or signature of a revocation list (RFC 5280 section 6.3.3).
    #[error("the revocation list of {issuer} cannot be used: {cause}")]
    CrlUnusable {
        /// The CA's subject.
        issuer: String,
        /// What is wrong.
        cause: &'static str,
    },
    /// `X509_V_ERR_CERT_REVOKED`.
    #[error("{subject} is revoked; issue a new one")]
    Revoked {
        /// The certificate's subject.
        subject: String,
    },
    /// RFC 9525 section 6.
    #[error("{subject} does not cover the host {host}; add it to the subject alternative names")]
    Host {
        /// The leaf's subject.
        subject: String,
        /// The first host that no name covers.
        host: String,
    },
    /// Measured: BoringSSL takes the first CA whose subject and key identifier fit, and never tries the next.
    #[error(
        "{because}. {count} CAs share the subject {issuer}, and the proxy tries only the first; move the issuing CA to the top"
    )]
    Shadowed {
        /// The subject that several CAs share.
        issuer: String,
        /// The number of CAs that fit.
        count: usize,
        /// Why the first one fails.
        because: Box<Refused>,
    },
    /// Measured: from 24 entries on BoringSSL's store sorts them (`std::sort`), and CAs with one subject change places.
    #[error(
        "{because}. with 24 or more CAs and lists the proxy may try any of the CAs that share a subject; keep one for each subject"
    )]
    OrderUndetermined {
        /// Why one of the orders fails.
        because: Box<Refused>,
    },
    /// A limit of this program, for hostile or ambiguous input.
    #[error("too many CAs with the same subject or name constraints to try them all; keep one CA for each subject")]
    Budget,
}

impl Refused {
    /// How much the reason helps to fix the chain; of several reasons the highest is reported.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Budget | Self::UnknownIssuer { .. } => 1,
            Self::IssuerKeyId { .. } | Self::SelfSigned { .. } => 2,
            Self::Signature { .. } => 3,
            Self::NoAnchors
            | Self::NoCertificate
            | Self::SubjectsTooLong { .. }
            | Self::ChainTooLong { .. }
            | Self::TrailingBytes { .. }
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
            Self::TrailingBytes { .. } => "trailing-bytes",
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
            Self::Rejected { .. } => "trust-settings",
            Self::Expired { .. } => "expired",
            Self::NotYetValid { .. } => "not-yet-valid",
            Self::Signature { .. } => "signature",
            Self::SignatureAlgorithm { .. } => "signature-algorithm",
            Self::NameConstraints { .. } => "name-constraints",
            Self::UnsupportedConstraint { .. } => "unsupported-constraint",
            Self::Policy { .. } => "policy",
            Self::CrlMissing { .. } => "crl-missing",
            Self::CrlIssuerMissing { .. } => "crl-issuer-missing",
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
