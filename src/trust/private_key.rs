//! A private key, for the one question whether it belongs to a certificate.

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};

use super::pem::{self, Block, Blocks, Rejection};

/// Why a private key cannot be used. Never tells of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// No block in the text is a private key.
    #[error("no PRIVATE KEY block was found")]
    Missing,
    /// The PEM is broken before the end of the first private key.
    #[error("{0}")]
    Pem(Rejection),
    /// It is encrypted, and there is no place for a password.
    #[error("the key on line {line} is encrypted; write it without a password")]
    Encrypted {
        /// The line of its BEGIN.
        line: usize,
    },
    /// Not a key of a kind that proxies serve with.
    #[error("{label} on line {line} is not a sound RSA (2048 bits or more) or ECDSA (P-256, P-384, P-521) key")]
    Unsupported {
        /// The line of its BEGIN.
        line: usize,
        /// Its PEM label.
        label: String,
    },
}

/// The SubjectPublicKeyInfo (DER) of the first private key in a PEM text.
///
/// As Envoy does (`PEM_read_bio_PrivateKey`): blocks of other kinds, such as `EC PARAMETERS`, are skipped; what follows
/// the key is not read.
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
    Err(KeyError::Missing)
}

/// Whether a label names a private key of any kind.
pub(crate) fn is_label(label: &str) -> bool {
    label.ends_with("PRIVATE KEY")
}

fn derive(block: &Block) -> Option<Vec<u8>> {
    let der = block.content.as_slice();
    let labelled = match block.label.as_str() {
        "RSA PRIVATE KEY" => Some(PrivateKeyDer::Pkcs1(PrivatePkcs1KeyDer::from(der))),
        "EC PRIVATE KEY" => Some(PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(der))),
        _ => None,
    };
    // `d2i_PrivateKey` goes by the content when the label misleads.
    let plain = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der));
    let key = labelled.and_then(|key| any_supported_type(&key).ok()).or_else(|| any_supported_type(&plain).ok())?;
    Some(key.public_key()?.as_ref().to_vec())
}
