//! The keys and signatures of CAs that a proxy supports, by implementation and version.
//!
//! Measured by handshakes: a CA of each kind in the bundle, and a client with a P-256 leaf that it signed. Envoy 1.36.4, 1.37.0, 1.38.3, 1.39.3 and
//! 1.40.0 agree, except on ML-DSA. The table has only what was measured, nothing from release notes.

use super::chain::signature::{Key, is_p224, key};

/// A program that verifies peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// Envoy, with the BoringSSL that it is built with.
    Envoy,
}

/// A proxy in a version: major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// The program.
    pub implementation: Implementation,
    /// Its version.
    pub version: (u16, u16),
}

/// The type of a CA's key, or the hash and padding of its signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// An RSA key, of 512 bits and more.
    Rsa,
    /// A key on P-224.
    P224,
    /// A key on P-256, P-384 or P-521.
    NistCurve,
    /// A key on Ed25519.
    Ed25519,
    /// An ML-DSA key of any of the three sizes (RFC 9881).
    MlDsa,
    /// A signature with MD5.
    Md5,
    /// A signature with SHA-1, not with PSS.
    Sha1,
    /// A signature with SHA-224, not with PSS.
    Sha224,
    /// A signature with SHA-256, SHA-384 or SHA-512.
    Sha2,
    /// RSA-PSS with SHA-256, SHA-384 or SHA-512, a salt as long as the hash, and a key of rsaEncryption.
    Pss,
    /// RSA-PSS with SHA-1, SHA-224, another salt, or a key that is for PSS only.
    OtherPss,
}

/// The first version of a proxy that supports an algorithm.
pub struct Row {
    /// The program.
    pub implementation: Implementation,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The first version; `None`: no version supports it.
    pub since: Option<(u16, u16)>,
    /// The source of this row.
    pub source: &'static str,
}

/// The oldest version that was measured; older ones may support the same.
const MEASURED: (u16, u16) = (1, 36);

const HANDSHAKES: &str = "handshakes with Envoy 1.36.4, 1.37.0, 1.38.3, 1.39.3 and 1.40.0";

/// The table.
pub const TABLE: &[Row] = &[
    envoy(Algorithm::Rsa, Some(MEASURED), HANDSHAKES),
    envoy(Algorithm::P224, Some(MEASURED), HANDSHAKES),
    envoy(Algorithm::NistCurve, Some(MEASURED), HANDSHAKES),
    envoy(Algorithm::Ed25519, Some(MEASURED), HANDSHAKES),
    envoy(
        Algorithm::MlDsa,
        Some((1, 38)),
        "handshakes: 1.36.4 and 1.37.0 refuse all clients of such a CA; 1.38.3, 1.39.0, 1.39.3 and 1.40.0 accept them, and refuse a \
         client with one bit of its signature changed. 1.38.0 to 1.38.2 were not tested",
    ),
    envoy(Algorithm::Md5, None, HANDSHAKES),
    envoy(Algorithm::Sha1, Some(MEASURED), HANDSHAKES),
    envoy(Algorithm::Sha224, Some(MEASURED), HANDSHAKES),
    envoy(Algorithm::Sha2, Some(MEASURED), HANDSHAKES),
    envoy(Algorithm::Pss, Some(MEASURED), HANDSHAKES),
    envoy(Algorithm::OtherPss, None, HANDSHAKES),
];

const fn envoy(algorithm: Algorithm, since: Option<(u16, u16)>, source: &'static str) -> Row {
    Row { implementation: Implementation::Envoy, algorithm, since, source }
}

impl Proxy {
    /// A proxy that supports every algorithm that any release of the [`TABLE`] supports.
    pub const NEWEST: Self = Self::envoy(u16::MAX, 0);

    /// Envoy in a version.
    pub const fn envoy(major: u16, minor: u16) -> Self {
        Self { implementation: Implementation::Envoy, version: (major, minor) }
    }

    /// Whether CAs with one subject keep the order of the bundle, up to 23 certificates. Envoy 1.37.0 takes the last of two, and 1.38.3 and 1.40.0 the
    /// first, measured by handshakes. Of more than two, 1.37.0 takes any.
    pub fn keeps_order(self) -> bool {
        self.version >= (1, 38)
    }

    /// Whether it supports this algorithm.
    pub fn verifies(self, algorithm: Algorithm) -> bool {
        self.since(algorithm).is_some_and(|since| since <= self.version)
    }

    /// The first version of this program that supports an algorithm.
    pub(super) fn since(self, algorithm: Algorithm) -> Option<(u16, u16)> {
        let is_row = |row: &&Row| row.implementation == self.implementation && row.algorithm == algorithm;
        TABLE.iter().find(is_row)?.since
    }
}

/// The oldest supported release: Envoy supports a release for a year, and 1.37 is from January 2026.
impl Default for Proxy {
    fn default() -> Self {
        Self::envoy(1, 37)
    }
}

impl Algorithm {
    /// The type of a key in a SubjectPublicKeyInfo; `None` for one that no proxy supports.
    pub(super) fn of_key(info: &[u8]) -> Option<Self> {
        match key(info).0 {
            Key::Rsa { .. } => Some(Self::Rsa),
            Key::P256 | Key::P384 | Key::P521 => Some(Self::NistCurve),
            Key::Ed25519 => Some(Self::Ed25519),
            Key::MlDsa44 | Key::MlDsa65 | Key::MlDsa87 => Some(Self::MlDsa),
            Key::Other => is_p224(info).then_some(Self::P224),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_one_row_for_each_algorithm() {
        for row in TABLE {
            let same = TABLE.iter().filter(|other| other.algorithm == row.algorithm).count();
            assert_eq!(same, 1, "{:?}", row.algorithm);
            assert!(!row.source.is_empty());
        }
    }

    #[test]
    fn a_version_supports_algorithms_of_older_versions() {
        let verifies = |minor, algorithm| Proxy::envoy(1, minor).verifies(algorithm);
        assert_eq!([36, 37, 38, 40].map(|minor| verifies(minor, Algorithm::MlDsa)), [false, false, true, true]);
        assert!(verifies(36, Algorithm::Sha1) && !verifies(40, Algorithm::Md5));
        assert!(!Proxy::default().verifies(Algorithm::MlDsa), "the oldest counts");
    }
}
