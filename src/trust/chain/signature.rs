//! Signatures, verified by AWS-LC, a fork of BoringSSL.

use aws_lc_rs::signature::{self as sig, ParsedPublicKey, UnparsedPublicKey, VerificationAlgorithm};

use super::parsed_cert::{self, Signed};
use crate::trust::Certificate;
use crate::trust::der::{self, Cbs, SEQUENCE};
use crate::trust::signature_verdict::{SignatureFault, Verdict};

/// The kind of a public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Rsa {
        bits: usize,
    },
    P256,
    P384,
    P521,
    Ed25519,
    MlDsa44,
    MlDsa65,
    MlDsa87,
    /// A malformed key, or one of a type that is not supported here.
    Other,
}

/// rsaEncryption and its signatures: 1.2.840.113549.1.1.
const RSA: [u8; 8] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1];
/// 1.2.840.10045.
const ECDSA: [u8; 5] = [0x2a, 0x86, 0x48, 0xce, 0x3d];

/// ML-DSA-44, -65 and -87 (RFC 9881): below 2.16.840.1.101.3.4.3, keys and signatures alike.
const ML_DSA: [u8; 8] = [0x60, 0x86, 0x48, 1, 0x65, 3, 4, 3];

/// The kind of a SubjectPublicKeyInfo, and its key bits.
pub(crate) fn key(info: &[u8]) -> (Key, &[u8]) {
    read_key(info).unwrap_or((Key::Other, &[]))
}

fn read_key(info: &[u8]) -> Option<(Key, &[u8])> {
    let mut info = Cbs(info).take(SEQUENCE, "").ok()?;
    let mut algorithm = info.take(SEQUENCE, "").ok()?;
    let bits = info.take(der::BIT_STRING, "").ok()?.0.strip_prefix(&[0])?;
    let oid = algorithm.take(der::OBJECT, "").ok()?.0;
    let kind = match oid {
        // RFC 3279 section 2.3.1 requires NULL, and so does BoringSSL (measured).
        [prefix @ .., 1] if prefix == RSA && algorithm.0 == [5, 0] => Key::Rsa { bits: modulus_bits(bits)? },
        // BoringSSL rejects points in hybrid form (06, 07), which AWS-LC reads.
        [prefix @ .., 2, 1] if prefix == ECDSA && matches!(bits, [2..=4, ..]) => {
            match algorithm.take(der::OBJECT, "").ok()?.0 {
                [prefix @ .., 3, 1, 7] if prefix == ECDSA => Key::P256,
                [0x2b, 0x81, 4, 0, 34] => Key::P384,
                [0x2b, 0x81, 4, 0, 35] => Key::P521,
                _ => Key::Other,
            }
        }
        [0x2b, 0x65, 0x70] => Key::Ed25519,
        [prefix @ .., 17] if prefix == ML_DSA && algorithm.0.is_empty() => Key::MlDsa44,
        [prefix @ .., 18] if prefix == ML_DSA && algorithm.0.is_empty() => Key::MlDsa65,
        [prefix @ .., 19] if prefix == ML_DSA && algorithm.0.is_empty() => Key::MlDsa87,
        _ => Key::Other,
    };
    Some((kind, bits))
}

/// Whether a key is on P-224, which BoringSSL supports (measured), and AWS-LC does not.
pub(crate) fn is_p224(info: &[u8]) -> bool {
    let algorithm = Cbs(info).take(SEQUENCE, "").and_then(|mut info| info.take(SEQUENCE, ""));
    let expected = [&[6, 7][..], &ECDSA, &[2, 1, 6, 5, 0x2b, 0x81, 4, 0, 33]].concat();
    algorithm.is_ok_and(|algorithm| algorithm.0 == expected)
}

/// Whether BoringSSL reads a key of a supported type: a point of its curve (SEC 1 section 2.3.4), RSA with a modulus and an exponent that
/// it allows. True for other types.
pub(crate) fn is_readable(info: &[u8]) -> bool {
    let (kind, bits) = key(info);
    let algorithm: &dyn VerificationAlgorithm = match kind {
        Key::P256 => &sig::ECDSA_P256_SHA256_ASN1,
        Key::P384 => &sig::ECDSA_P384_SHA384_ASN1,
        Key::P521 => &sig::ECDSA_P521_SHA512_ASN1,
        Key::MlDsa44 => &sig::ML_DSA_44,
        Key::MlDsa65 => &sig::ML_DSA_65,
        Key::MlDsa87 => &sig::ML_DSA_87,
        Key::Rsa { .. } => return is_rsa(bits),
        Key::Ed25519 | Key::Other => return true,
    };
    ParsedPublicKey::new(algorithm, bits).is_ok()
}

fn modulus_bits(key: &[u8]) -> Option<usize> {
    let mut numbers = Cbs(key).take(SEQUENCE, "").ok()?;
    let modulus = der::integer(&mut numbers, "").ok()?;
    Some(bits(modulus))
}

/// Of a number that is not negative.
fn bits(number: &[u8]) -> usize {
    let digits = number.strip_prefix(&[0]).unwrap_or(number);
    (digits.len() * 8).saturating_sub(digits.first().map_or(0, |first| first.leading_zeros() as usize))
}

/// `RSA_parse_public_key` and `rsa_check_public_key` (crypto/fipsmodule/rsa/rsa_impl.cc.inc): two odd numbers of these lengths.
fn is_rsa(key: &[u8]) -> bool {
    let numbers = || {
        let mut numbers = Cbs(key).take(SEQUENCE, "")?;
        let both = [der::integer(&mut numbers, "")?, der::integer(&mut numbers, "")?];
        numbers.end("").map(|()| both)
    };
    numbers().is_ok_and(|[modulus, exponent]| {
        let is_odd = |number: &[u8]| number[0] < 0x80 && number.last().is_some_and(|last| last & 1 == 1);
        is_odd(modulus)
            && is_odd(exponent)
            && (512..=16_384).contains(&bits(modulus))
            && (2..=33).contains(&bits(exponent))
    })
}

/// The name of the hash that a certificate was signed with, if it is broken (RFC 6151: MD5, RFC 9155: SHA-1).
pub(crate) fn broken_hash(certificate: &Certificate) -> Option<&'static str> {
    let (signed, _) = parsed_cert::signed(&certificate.der)?;
    match Cbs(signed.algorithm).take(der::OBJECT, "").ok()?.0 {
        [prefix @ .., 2..=4] if prefix == RSA => Some("MD5"),
        [prefix @ .., 5] if prefix == RSA => Some("SHA-1"),
        [prefix @ .., 4, 1] if prefix == ECDSA => Some("SHA-1"),
        _ => None,
    }
}

/// Verifies (`X509_verify`). Measured: Envoy accepts SHA-1 and RSA of 1024 bits, but not MD5.
pub(super) fn verify(signed: &Signed<'_>, issuer_key: &[u8]) -> Verdict {
    if !signed.is_consistent {
        return Err(SignatureFault::Wrong);
    }
    let (key, bits) = key(issuer_key);
    let algorithm = algorithm(signed.algorithm, key).ok_or(SignatureFault::Unsupported)?;
    UnparsedPublicKey::new(algorithm, bits).verify(signed.body, signed.signature).map_err(|_| SignatureFault::Wrong)
}

fn algorithm(identifier: &[u8], key: Key) -> Option<&'static dyn VerificationAlgorithm> {
    let mut identifier = Cbs(identifier);
    let oid = identifier.take(der::OBJECT, "").ok()?.0;
    let parameters = identifier.0;
    let plain = parameters.is_empty() || parameters == [5, 0];
    match (oid, key) {
        ([prefix @ .., 10], Key::Rsa { bits: 2048..=8192 }) if prefix == RSA => pss(parameters),
        ([prefix @ .., last], Key::Rsa { bits }) if prefix == RSA && plain => pkcs1(*last, bits),
        ([prefix @ .., 4, 1], _) if prefix == ECDSA && plain => ecdsa_sha1(key),
        ([prefix @ .., 4, 3, hash], _) if prefix == ECDSA && plain => ecdsa(*hash, key),
        ([0x2b, 0x65, 0x70], Key::Ed25519) if parameters.is_empty() => Some(&sig::ED25519),
        ([prefix @ .., last], key) if prefix == ML_DSA && parameters.is_empty() => ml_dsa(*last, key),
        _ => None,
    }
}

fn ml_dsa(last: u8, key: Key) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match (last, key) {
        (17, Key::MlDsa44) => &sig::ML_DSA_44,
        (18, Key::MlDsa65) => &sig::ML_DSA_65,
        (19, Key::MlDsa87) => &sig::ML_DSA_87,
        _ => return None,
    })
}

fn pkcs1(hash: u8, bits: usize) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match (hash, bits) {
        (5, 1024..=8192) => &sig::RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY,
        (11, 1024..=8192) => &sig::RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY,
        (12, 2048..=8192) => &sig::RSA_PKCS1_2048_8192_SHA384,
        (13, 1024..=8192) => &sig::RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY,
        _ => return None,
    })
}

/// ecdsa-with-SHA1: 1.2.840.10045.4.1.
fn ecdsa_sha1(key: Key) -> Option<&'static dyn VerificationAlgorithm> {
    match key {
        Key::P256 => Some(&sig::ECDSA_P256_SHA1_ASN1),
        Key::P521 => Some(&sig::ECDSA_P521_SHA1_ASN1),
        _ => None,
    }
}

fn ecdsa(hash: u8, key: Key) -> Option<&'static dyn VerificationAlgorithm> {
    // Below 1.2.840.10045.4.3 are 1: SHA-224, 2: SHA-256, 3: SHA-384, 4: SHA-512.
    Some(match (key, hash) {
        (Key::P256, 2) => &sig::ECDSA_P256_SHA256_ASN1,
        (Key::P256, 3) => &sig::ECDSA_P256_SHA384_ASN1,
        (Key::P256, 4) => &sig::ECDSA_P256_SHA512_ASN1,
        (Key::P384, 2) => &sig::ECDSA_P384_SHA256_ASN1,
        (Key::P384, 3) => &sig::ECDSA_P384_SHA384_ASN1,
        (Key::P384, 4) => &sig::ECDSA_P384_SHA512_ASN1,
        (Key::P521, 1) => &sig::ECDSA_P521_SHA224_ASN1,
        (Key::P521, 2) => &sig::ECDSA_P521_SHA256_ASN1,
        (Key::P521, 3) => &sig::ECDSA_P521_SHA384_ASN1,
        (Key::P521, 4) => &sig::ECDSA_P521_SHA512_ASN1,
        _ => return None,
    })
}

/// RSASSA-PSS with the hash, the same hash in MGF1 and a salt of its length (crypto/x509/rsa_pss.cc accepts no other).
fn pss(parameters: &[u8]) -> Option<&'static dyn VerificationAlgorithm> {
    // SEQUENCE { [0] hash, [1] MGF1 with hash, [2] salt length }, RFC 8017 appendix A.2.3.
    let expected = |hash: u8, salt: u8| {
        let digest = [&[0x30, 13, 6, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, hash][..], &[5, 0]].concat();
        let mgf = [&[0x30, 26, 6, 9][..], &RSA, &[8], &digest].concat();
        [&[0x30, 52, 0xa0, 15][..], &digest, &[0xa1, 28], &mgf, &[0xa2, 3, 2, 1, salt]].concat()
    };
    if parameters == expected(1, 32) {
        Some(&sig::RSA_PSS_2048_8192_SHA256)
    } else if parameters == expected(2, 48) {
        Some(&sig::RSA_PSS_2048_8192_SHA384)
    } else if parameters == expected(3, 64) {
        Some(&sig::RSA_PSS_2048_8192_SHA512)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::fixtures::element;

    /// Measured with BoringSSL: a modulus of 512 to 16,384 bits, an exponent of 2 to 33, both odd.
    #[test]
    fn reads_the_rsa_keys_that_boringssl_reads() {
        let reads = |modulus: &[u8], exponent: &[u8]| {
            is_rsa(&element(0x30, &[element(2, modulus), element(2, exponent)].concat()))
        };
        let modulus = |bits: usize, last: u8| [&[0, 0xff][..], &vec![0xff; bits / 8 - 2], &[last]].concat();
        let usual = [1, 0, 1];
        assert!(
            reads(&modulus(1024, 1), &usual) && reads(&modulus(16_384, 1), &usual) && reads(&modulus(512, 1), &[3])
        );
        assert!(reads(&modulus(2048, 1), &[1, 0xff, 0xff, 0xff, 0xff]), "33 bits");
        for (modulus, exponent) in [
            (modulus(2048, 2), &usual[..]),
            (modulus(504, 1), &usual),
            (modulus(16_392, 1), &usual),
            (modulus(2048, 1), &[1]),
            (modulus(2048, 1), &[1, 0, 2]),
            (modulus(2048, 1), &[0x83]),
            (modulus(2048, 1), &[2, 0, 0, 0, 1]),
        ] {
            assert!(!reads(&modulus, exponent), "{} bytes, {exponent:x?}", modulus.len());
        }
        assert!(!is_rsa(&[element(0x30, &[2, 1, 3]), vec![0]].concat()));
    }
}
