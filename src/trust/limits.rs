//! What hostile input may cost: limits of ours. Those of Envoy stand where they are judged.
//!
//! A Secret holds a mebibyte at most, and no verdict on one may take 100 ms (`tests/fuzz/hostile.rs` measures). What is cut
//! short by a limit is refused with a message that says so, and never passes.

/// Certificates of a text. A trust store of the web's public CAs has about 150, and Envoy fails every handshake from about
/// 2,000 CAs on (64 KiB of subjects, measured).
pub const MAX_CERTIFICATES: usize = 5_000;

/// Paths that are tried where the order of CAs with one subject is not known.
pub(crate) const MAX_PATHS: usize = 32;

/// Signatures that one verdict may cost, or the verdicts on many chains together; in units of one with P-256, about 60 µs.
pub(crate) const SIGNATURES: usize = 512;

/// Signatures of revocation lists that one verdict may cost, in the same units: each list once for each key. A bundle has a
/// list for each CA.
pub(super) const LIST_SIGNATURES: usize = 256;

/// Signatures that each of many chains may cost, whatever the others did: more than real paths are long.
pub(super) const CHAIN_SIGNATURES: usize = 6;

/// What all chains together may cost of these.
pub(super) const OWN_SIGNATURES: usize = 256;

/// Paths that all chains together may cost: a few for each client that a GatewaySecret can hold.
pub(super) const PATH_STEPS: usize = 4_000;

/// Signatures by which the issuer of a leaf is looked for among the CAs that could be: a few renewals of one.
pub(super) const ISSUER_SIGNATURES: usize = 128;

/// Certificates that one verdict, or the verdicts on many chains together, may look at as the issuer of another, where only their names
/// are known to fit: about 20 ns each. Real bundles have two or three CAs of a name.
pub(super) const ISSUER_STEPS: usize = 500_000;

/// Bytes of a private key that is read. The longest that anything here serves with, RSA of 8192 bits in PKCS #8, has 4,700; one of twice
/// that length takes 25 ms to be refused.
pub(super) const PRIVATE_KEY: usize = 5 << 10;

/// Names times name constraints of one verdict, or the verdicts on many chains together, and the bytes that are compared: units of about
/// 10 ns.
pub(super) const NAME_STEPS: usize = 1 << 20;

/// Revocation lists that the CAs of a bundle may look at, each CA at each list of its subject.
pub(super) const CRL_STEPS: usize = 50_000;

/// Dates ahead at which a chain is judged; a bundle has two for each certificate.
pub(super) const CHAIN_DATES: usize = 64;

/// Dates ahead at which a Secret is judged: far more than a bundle has that is in use.
pub(super) const SECRET_DATES: usize = 64;

/// What all these dates together may cost, in certificates and pairs of one subject.
pub(super) const SECRET_STEPS: usize = 20_000;

/// Lookalikes that are told apart; all that follows them in a text counts as part of the last.
pub(super) const MAX_LOOKALIKES: usize = 1_000;
