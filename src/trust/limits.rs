//! Limits of this program on the cost of hostile input. Limits of Envoy are next to the rules that check them.
//!
//! A Secret has at most a mebibyte, and a verdict on one must take less than 100 ms (measured by `tests/fuzz/hostile.rs`). Input that
//! exceeds a limit is rejected with a message that names it.

/// Certificates of a text. A public trust store has about 150, and with about 2,000 CAs Envoy fails every handshake (64 KiB of subjects,
/// measured).
pub const MAX_CERTIFICATES: usize = 5_000;

/// Paths that are tried where the order of CAs with one subject is not known.
pub(crate) const MAX_PATHS: usize = 32;

/// Signatures of one verdict, or of the verdicts on many chains together, in units of one with P-256 (about 60 µs).
pub(crate) const SIGNATURES: usize = 512;

/// Signatures of revocation lists of one verdict, in the same units: each list once for each key. A bundle has a list for each CA.
pub(super) const LIST_SIGNATURES: usize = 256;

/// Signatures that each of many chains has for itself: more than real paths have.
pub(super) const CHAIN_SIGNATURES: usize = 6;

/// The limit for all chains together.
pub(super) const OWN_SIGNATURES: usize = 256;

/// Paths of all chains together: a few for each client that a GatewaySecret can have.
pub(super) const PATH_STEPS: usize = 4_000;

/// Signatures to find the issuer of a leaf among several CAs: a few renewals of one.
pub(super) const ISSUER_SIGNATURES: usize = 128;

/// Certificates that one verdict, or the verdicts on many chains together, may compare as the issuer of another because their names fit:
/// about 20 ns each. Real bundles have two or three CAs with one name.
pub(super) const ISSUER_STEPS: usize = 500_000;

/// Bytes of a private key. The longest supported one, RSA of 8192 bits in PKCS #8, has 4,700; rejecting one of twice that length takes
/// 25 ms.
pub(super) const PRIVATE_KEY: usize = 5 << 10;

/// Private keys of a CA bundle that are read: each takes up to 12 ms, and a bundle should have none.
pub(super) const BUNDLE_KEYS: usize = 4;

/// Names times name constraints of one verdict, or of the verdicts on many chains together, and the bytes that are compared: units of
/// about 10 ns.
pub(super) const NAME_STEPS: usize = 1 << 20;

/// Comparisons of each CA of a bundle with each revocation list of its subject.
pub(super) const CRL_STEPS: usize = 50_000;

/// Future dates at which a chain is judged; a bundle has two for each certificate.
pub(super) const CHAIN_DATES: usize = 64;

/// Future dates at which a Secret is judged: far more than a real bundle has.
pub(super) const SECRET_DATES: usize = 64;

/// The most work for all future dates of one Secret: the number of certificates, and of pairs of certificates with the same subject, that are
/// judged.
pub(super) const SECRET_STEPS: usize = 20_000;

/// Limit of malformed blocks that are reported one by one. The rest of the text counts as part of the last.
pub(super) const MAX_MALFORMED: usize = 1_000;
