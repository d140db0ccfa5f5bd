//! Requirements of Envoy on a leaf that it serves, besides its key.

use super::Certificate;
use super::chain::signature::{Key, key};
use super::der::{self, BIT_STRING, BOOLEAN, CONSTRUCTED, CONTEXT, Cbs, OBJECT, OCTET_STRING, SEQUENCE};

/// keyUsage (2.5.29.15).
const KEY_USAGE: [u8; 3] = [0x55, 0x1d, 0x0f];
/// extKeyUsage (2.5.29.37), and id-kp-serverAuth.
const EXTENDED_KEY_USAGE: [u8; 3] = [0x55, 0x1d, 0x25];
const SERVER_AUTH: [u8; 8] = [0x2b, 6, 1, 5, 5, 7, 3, 1];
/// TLS feature (RFC 7633: 1.3.6.1.5.5.7.1.24), and its value that requires an OCSP response.
const TLS_FEATURE: [u8; 8] = [0x2b, 6, 1, 5, 5, 7, 1, 24];
const STATUS_REQUEST: [u8; 5] = [0x30, 3, 2, 1, 5];

/// Whether key usage allows it to sign handshakes (`ssl_cert_check_key_usage`): the first extension counts, for ECDSA leaves only
/// (measured).
pub(super) fn may_sign_handshakes(leaf: &Certificate) -> bool {
    matches!(key(&leaf.public_key).0, Key::Rsa { .. } | Key::Ed25519) || has_digital_signature(leaf)
}

/// Whether its key is an RSA key.
pub(super) fn is_rsa(leaf: &Certificate) -> bool {
    matches!(key(&leaf.public_key).0, Key::Rsa { .. })
}

/// Whether key usage is absent or has digitalSignature, as read by BoringSSL.
pub(super) fn has_digital_signature(leaf: &Certificate) -> bool {
    let has_bit = |value: &[u8]| {
        let mut input = Cbs(value);
        let bits = input.take(BIT_STRING, "").ok().filter(|bits| der::valid_bits(bits.0));
        input.0.is_empty() && bits.is_some_and(|bits| bits.0.get(1).is_some_and(|octet| octet & 0x80 != 0))
    };
    extension(leaf, &KEY_USAGE).is_none_or(has_bit)
}

/// Whether extended key usage is absent or has serverAuth (RFC 5280 section 4.2.1.12). anyExtendedKeyUsage is not enough for BoringSSL.
pub(super) fn may_serve(leaf: &Certificate) -> bool {
    let has_usage = |value: &[u8]| Cbs(value).take(SEQUENCE, "").is_ok_and(|usages| usages.contains(&SERVER_AUTH));
    extension(leaf, &EXTENDED_KEY_USAGE).is_none_or(has_usage)
}

/// Whether Envoy requires an OCSP response with it (source/common/tls/server_context_impl.cc).
pub(super) fn must_staple(leaf: &Certificate) -> bool {
    extension(leaf, &TLS_FEATURE).is_some_and(|value| value == STATUS_REQUEST)
}

/// The value of the first extension with this identifier.
fn extension<'c>(certificate: &'c Certificate, wanted: &[u8]) -> Option<&'c [u8]> {
    let mut tbs = Cbs(&certificate.der).take(SEQUENCE, "").ok()?.take(SEQUENCE, "").ok()?;
    let mut list = loop {
        let (tag, content) = tbs.any()?;
        if tag == CONTEXT | CONSTRUCTED | 3 {
            break Cbs(content).take(SEQUENCE, "").ok()?;
        }
    };
    while !list.0.is_empty() {
        let mut extension = list.take(SEQUENCE, "").ok()?;
        let oid = extension.take(OBJECT, "").ok()?.0;
        if extension.peek(BOOLEAN) {
            extension.any()?;
        }
        let value = extension.take(OCTET_STRING, "").ok()?.0;
        if oid == wanted {
            return Some(value);
        }
    }
    None
}
