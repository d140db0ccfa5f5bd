//! Fingerprints of certificates and of their sets, independent of PEM layout.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

use super::bundle::{self, Bundle};
use super::certificate::hex;
use super::{Certificate, Secret, credential};

/// SHA-256 over the sorted, distinct fingerprints of certificates, lower-case hex.
///
/// Independent of order, duplicates and PEM layout, which do not change what a pod trusts.
pub fn content_hash<'a>(certificates: impl IntoIterator<Item = &'a Certificate>) -> String {
    let distinct: BTreeSet<&str> = certificates.into_iter().map(|c| c.fingerprint.as_str()).collect();
    let mut hash = Sha256::new();
    for fingerprint in distinct {
        // All fingerprints have the same length, so no separator is needed.
        hash.update(fingerprint.as_bytes());
    }
    hex(&hash.finalize())
}

/// SHA-256 of some bytes, lower-case hex.
pub fn fingerprint_of(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// The certificates under a key of a Secret, in their order, up to the first fault.
pub fn certificates_under(secret: &Secret, key: &str) -> Vec<Certificate> {
    secret.data.get(key).map(|pem| certificates(bundle::read(pem))).unwrap_or_default()
}

/// The trust anchors that gateways take from a Secret.
pub fn anchors(secret: &Secret) -> Vec<Certificate> {
    credential::ca_bundle(secret).map(|ca| certificates(bundle::read(ca.pem))).unwrap_or_default()
}

fn certificates(bundle: Bundle) -> Vec<Certificate> {
    bundle.entries.into_iter().map(|entry| entry.certificate).collect()
}

/// Whether a list names a certificate: SHA-256 fingerprints of certificates, or of public keys (SubjectPublicKeyInfo), in hex.
pub fn is_distrusted(certificate: &Certificate, distrust: &[String]) -> bool {
    let is = |fingerprint: &str| distrust.iter().any(|named| named.eq_ignore_ascii_case(fingerprint));
    is(&certificate.fingerprint) || is(&certificate.public_key_hash())
}

impl Certificate {
    /// SHA-256 over the public key (SubjectPublicKeyInfo), lower-case hex.
    pub fn public_key_hash(&self) -> String {
        hex(&Sha256::digest(&self.public_key))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::trust::fixtures::{ca, secret};

    static PEMS: LazyLock<Vec<String>> = LazyLock::new(|| (0..4).map(|n| ca(&format!("ca {n}")).pem()).collect());

    fn hash(text: &str) -> String {
        content_hash(&certificates_under(&secret(&[("ca.crt", text)]), "ca.crt"))
    }

    #[test]
    fn no_certificates_have_a_hash() {
        assert_eq!(hash(""), content_hash([]));
        assert_eq!(hash("").len(), 64);
        assert!(certificates_under(&secret(&[]), "ca.crt").is_empty());
    }

    #[test]
    fn other_content_has_another_hash() {
        assert_ne!(hash(&PEMS[0]), hash(&PEMS[1]));
        assert_ne!(hash(&PEMS[0]), hash(&PEMS.concat()));
    }

    #[test]
    fn anchors_are_those_of_the_key_in_use() {
        let secret = secret(&[("cacert", PEMS[0].as_str()), ("ca.crt", PEMS[1].as_str())]);
        assert_eq!(anchors(&secret).iter().map(|c| c.subject.as_str()).collect::<Vec<_>>(), ["CN=ca 0"]);
    }

    proptest! {
        #[test]
        fn any_layout_of_the_same_certificates_has_the_same_hash(
            order in Just(vec![0, 1, 2, 3]).prop_shuffle(),
            twice in proptest::collection::vec(0..4_usize, 0..3),
            comments in proptest::collection::vec("[a-zäöü #:=-]{0,20}", 7),
            crlf: bool,
        ) {
            let mut text = String::new();
            for (n, at) in order.into_iter().chain(twice).enumerate() {
                text.push_str(&format!("# {}\n{}", comments[n], PEMS[at]));
            }
            let text = if crlf { text.replace('\n', "\r\n") } else { text };
            prop_assert_eq!(hash(&text), hash(&PEMS.concat()));
        }
    }
}
