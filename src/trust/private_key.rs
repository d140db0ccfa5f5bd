//! Private keys, read only to check whether they belong to a certificate.

use rustls::SignatureAlgorithm;
use rustls::crypto::aws_lc_rs::sign::{any_ecdsa_type, any_supported_type};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};

use super::Resemblance;
use super::der::{CONSTRUCTED, CONTEXT, Cbs, INTEGER, OCTET_STRING, SEQUENCE};
use super::limits::PRIVATE_KEY;
use super::pem::{self, Block, Blocks, Rejection};

/// Why a private key cannot be used. Never contains its bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text has no private key block.
    #[error("no PRIVATE KEY block found{}", .0.map(|resemblance| format!(": {resemblance}")).unwrap_or_default())]
    Missing(Option<Resemblance>),
    /// The PEM is broken before the end of the first private key.
    #[error("{0}")]
    Pem(Rejection),
    /// The key is encrypted, and a Secret has no password for it.
    #[error("the key on line {line} is encrypted; write it without a password")]
    Encrypted {
        /// The line of its BEGIN.
        line: usize,
    },
    /// Not a key of a type that proxies serve with.
    #[error("{label} on line {line} is not a valid RSA (2048 bits or more) or ECDSA (P-256, P-384, P-521) key")]
    Unsupported {
        /// The line of its BEGIN.
        line: usize,
        /// Its PEM label.
        label: String,
    },
}

impl KeyError {
    /// The error for a text that has no private key block.
    pub(super) fn missing(text: &[u8]) -> Self {
        Self::Missing(Resemblance::of_key(text))
    }
}

/// The SubjectPublicKeyInfo (DER) of the first private key in a PEM text.
///
/// As Envoy does (`PEM_read_bio_PrivateKey`): blocks of other types, such as `EC PARAMETERS`, are skipped; text after the
/// key is not read.
///
/// # Errors
/// When there is no usable key.
pub fn public_key(pem: &[u8]) -> Result<Vec<u8>, KeyError> {
    for block in Blocks::new(pem, pem::Char::Unsigned) {
        let block = block.map_err(KeyError::Pem)?;
        let line = block.line;
        match block.label.as_str() {
            "ENCRYPTED PRIVATE KEY" => return Err(KeyError::Encrypted { line }),
            "PRIVATE KEY" | "RSA PRIVATE KEY" | "EC PRIVATE KEY" | "DSA PRIVATE KEY" => {
                if block.is_encrypted {
                    return Err(KeyError::Encrypted { line });
                }
                let unsupported = || KeyError::Unsupported { line, label: pem::printable_label(&block.label) };
                return derive(&block).filter(|_| !block.has_headers).ok_or_else(unsupported);
            }
            _ => {}
        }
    }
    Err(KeyError::missing(pem))
}

/// Whether a label names a private key of any type.
pub(crate) fn is_label(label: &str) -> bool {
    label.ends_with("PRIVATE KEY")
}

/// Whether a proxy can read a key that it does not use. False for types that are not supported here.
pub(super) fn is_readable(block: &Block) -> bool {
    !block.has_headers && derive(block).is_some()
}

fn derive(block: &Block) -> Option<Vec<u8>> {
    let der = Some(block.content.as_slice()).filter(|der| der.len() <= PRIVATE_KEY)?;
    let labelled = match block.label.as_str() {
        "RSA PRIVATE KEY" => Some(PrivateKeyDer::Pkcs1(PrivatePkcs1KeyDer::from(der))),
        "EC PRIVATE KEY" => Some(PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(der))),
        _ => None,
    };
    // `d2i_PrivateKey` accepts PKCS#8 under a traditional label if it is a key of that type.
    let plain = || {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der));
        // `any_supported_type` would derive the public key of an EC key twice, since it tries RSA before.
        let read = if is_elliptic(der) { any_ecdsa_type } else { any_supported_type };
        read(&key).ok().filter(|_| is_version_0(der))
    };
    // `EC_KEY_parse_private_key`: SEC1 must name its curve (RFC 5915 section 3), which other readers infer from the key's length.
    let key = labelled
        .and_then(|key| any_supported_type(&key).ok())
        .filter(|_| block.label != "EC PRIVATE KEY" || names_its_curve(der))
        .or_else(plain)?;
    let fits = match (block.label.as_str(), key.algorithm()) {
        // Envoy serves with no other type (source/common/tls/server_context_impl.cc): it rejects Ed25519 (measured).
        ("PRIVATE KEY", kind) => matches!(kind, SignatureAlgorithm::RSA | SignatureAlgorithm::ECDSA),
        ("RSA PRIVATE KEY", kind) => kind == SignatureAlgorithm::RSA,
        ("EC PRIVATE KEY", kind) => kind == SignatureAlgorithm::ECDSA,
        _ => false,
    };
    if !fits || is_lax(der) {
        return None;
    }
    Some(key.public_key()?.as_ref().to_vec())
}

/// Whether an ECPrivateKey (RFC 5915) has its optional parameters.
pub(super) fn names_its_curve(der: &[u8]) -> bool {
    use x509_parser::asn1_rs::{Any, FromDer};
    let third = || {
        let (_, outer) = Any::from_der(der).ok()?;
        let (rest, _version) = Any::from_der(outer.data).ok()?;
        let (rest, _key) = Any::from_der(rest).ok()?;
        Some(rest.first() == Some(&0xa0))
    };
    third().unwrap_or_default()
}

/// Whether PKCS#8 is of version 0: BoringSSL does not read RFC 5958, with or without its public key (measured).
fn is_version_0(der: &[u8]) -> bool {
    let version = Cbs(der).take(SEQUENCE, "").and_then(|mut outer| outer.take(INTEGER, ""));
    version.is_ok_and(|version| version.0 == [0])
}

/// Whether PKCS#8 (RFC 5208 section 5) has a key of algorithm id-ecPublicKey (RFC 5480 section 2.1.1).
fn is_elliptic(der: &[u8]) -> bool {
    const ID_EC_PUBLIC_KEY: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
    matches!(fields(der).as_slice(), [_, (SEQUENCE, algorithm), ..] if algorithm.starts_with(ID_EC_PUBLIC_KEY))
}

/// Whether AWS-LC reads a key that BoringSSL does not (measured).
fn is_lax(der: &[u8]) -> bool {
    let outer = fields(der);
    // The third field of PKCS#8 is the key.
    let inner = match outer.as_slice() {
        [_, (SEQUENCE, _), (OCTET_STRING, key), ..] => fields(key),
        _ => outer,
    };
    match inner.as_slice() {
        // RSAPrivateKey (RFC 8017 appendix A.1.2): a private exponent that is not less than the modulus.
        [_, (INTEGER, modulus), (INTEGER, _), (INTEGER, private), ..] => {
            let digits = |number| <[u8]>::strip_prefix(number, &[0]).unwrap_or(number);
            let (modulus, private) = (digits(modulus), digits(private));
            (private.len(), private) >= (modulus.len(), modulus)
        }
        // ECPrivateKey (RFC 5915): a public key in hybrid form (06, 07).
        fields => fields.iter().any(|(tag, wrapper)| {
            let bits = Cbs(wrapper).any().map(|(_, bits)| bits);
            *tag == CONTEXT | CONSTRUCTED | 1 && matches!(bits, Some([0, 6 | 7, ..]))
        }),
    }
}

/// The elements of a sequence.
fn fields(der: &[u8]) -> Vec<(u32, &[u8])> {
    let mut fields = Vec::new();
    if let Ok(mut outer) = Cbs(der).take(SEQUENCE, "") {
        while let Some(field) = outer.any() {
            fields.push(field);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trust::fixtures::{block, ca, element};

    #[test]
    fn accepts_pkcs8_under_the_label_of_its_type() {
        let leaf = ca("one").leaf("a");
        let expected = public_key(leaf.key_pem().as_bytes());
        assert!(expected.is_ok());
        assert_eq!(public_key(leaf.key_pem().replace("PRIVATE", "EC PRIVATE").as_bytes()), expected);
        assert_eq!(public_key(leaf.traditional_key_pem().as_bytes()), expected);
    }

    #[test]
    fn accepts_text_around_the_key() {
        let key = ca("one").leaf("a").key_pem();
        let text = format!("prose\n{}{key}-----BEGIN X-----\n", ca("two").pem());
        assert_eq!(public_key(text.as_bytes()), public_key(key.as_bytes()));
    }

    #[test]
    fn rejects_the_label_of_another_type() {
        let key = ca("one").leaf("a").key_pem();
        for kind in ["RSA PRIVATE", "DSA PRIVATE"] {
            let error = public_key(key.replace("PRIVATE", kind).as_bytes());
            assert!(matches!(error, Err(KeyError::Unsupported { line: 1, .. })), "{error:?}");
        }
    }

    #[test]
    fn rejects_keys_that_envoy_does_not_serve_with() {
        let key = ca("one").leaf_of("a", &rcgen::PKCS_ED25519).key_pem();
        assert!(matches!(public_key(key.as_bytes()), Err(KeyError::Unsupported { line: 1, .. })));
        // rcgen writes the inner key without its curve.
        let bare = ca("one").leaf("a").bare_ec_key_pem();
        assert!(matches!(public_key(bare.as_bytes()), Err(KeyError::Unsupported { line: 1, .. })));
    }

    #[test]
    fn rejects_forms_that_boringssl_does_not_read() {
        let leaf = ca("one").leaf("a");
        let key = &pem::read(leaf.key_pem().as_bytes()).blocks[0].content.to_vec();
        let changed = |old: &[u8], new: &[u8]| {
            let at = key.windows(old.len()).position(|window| window == old).expect("the bytes are there");
            let mut der = key.clone();
            der[at..at + new.len()].copy_from_slice(new);
            public_key(block("PRIVATE KEY", &der).as_bytes())
        };
        assert!(changed(&[2, 1, 0], &[2, 1, 0]).is_ok());
        let y_is_odd = key.last().expect("a point") & 1;
        // Version 1 (RFC 5958); a point in hybrid form, in PKCS#8 and under its own label.
        for result in [changed(&[2, 1, 0, 0x30], &[2, 1, 1]), changed(&[3, 66, 0, 4], &[3, 66, 0, 6 | y_is_odd])] {
            assert!(matches!(result, Err(KeyError::Unsupported { line: 1, .. })), "{result:?}");
        }
    }

    #[test]
    fn rejects_a_private_exponent_beyond_the_modulus() {
        let number = |content: &[u8]| element(2, content);
        let key = |private: &[u8]| {
            element(0x30, &[number(&[0]), number(&[0, 0x90, 1]), number(&[3]), number(private)].concat())
        };
        assert!(!is_lax(&key(&[0x10, 0])) && !is_lax(&key(&[0, 0x90, 0])));
        for private in [&[0, 0x90, 1][..], &[0, 0x90, 2], &[1, 0, 0]] {
            assert!(is_lax(&key(private)), "{private:?}");
        }
    }

    #[test]
    fn rejects_garbage_and_headers() {
        let key = ca("one").leaf("a").key_pem();
        for text in [block("PRIVATE KEY", b"key"), key.replace("KEY-----\nM", "KEY-----\nComment: x\n\nM")] {
            assert!(matches!(public_key(text.as_bytes()), Err(KeyError::Unsupported { line: 1, .. })), "{text}");
        }
        assert_eq!(public_key(b""), Err(KeyError::Missing(None)));
    }

    proptest! {
        #[test]
        fn rejects_arbitrary_content_without_panic(der in proptest::collection::vec(any::<u8>(), 1..200)) {
            for label in ["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"] {
                prop_assert!(public_key(block(label, &der).as_bytes()).is_err());
            }
        }
    }
}
