//! The client's certificate that is presented to gateways: one of a Secret, or one that the agent signs for some minutes.

use std::sync::Arc;
use std::time::SystemTime;

use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::trust::{Certificate, Secret, bundle, credential};

/// For how long a signed one is valid, before and after: longer than a look takes, with clocks that differ.
const LIFETIME: SignedDuration = SignedDuration::from_mins(10);

/// A chain, and the same with its key for a handshake. Has no `Debug`: it holds a private key.
pub(super) struct ClientIdentity {
    pub(super) chain: Vec<Certificate>,
    pub(super) certified: Arc<CertifiedKey>,
}

/// What a Secret holds; `None` without a pair that can be presented.
pub(super) fn held(secret: &Secret) -> Option<ClientIdentity> {
    let pair = credential::serving_pair(secret)?;
    let chain = CertificateDer::pem_slice_iter(pair.chain).collect::<Result<Vec<_>, _>>().ok()?;
    let key = PrivateKeyDer::from_pem_slice(pair.private_key).ok()?;
    let certified = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).ok()?;
    Some(ClientIdentity { chain: bundle::read_chain(pair.chain).into_certificates(), certified: Arc::new(certified) })
}

/// One that a CA's Secret signs, with a key of its own that nobody keeps: a client without a name that anybody would let do anything.
/// `None` where the Secret holds no key that can sign.
pub(super) fn signed(ca: &Secret, now: Timestamp) -> Option<ClientIdentity> {
    let pair = credential::serving_pair(ca)?;
    let authority = bundle::read_chain(pair.chain).into_certificates().into_iter().next().filter(|ca| ca.is_ca)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "trustspan canary");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    // Not before its CA, which may be minutes old.
    params.not_before = SystemTime::from(now.checked_sub(LIFETIME).ok()?.max(authority.not_before)).into();
    params.not_after = SystemTime::from(now.checked_add(LIFETIME).ok()?).into();
    let signer = KeyPair::from_pem(std::str::from_utf8(pair.private_key).ok()?).ok()?;
    let authorities = CertificateDer::pem_slice_iter(pair.chain).collect::<Result<Vec<_>, _>>().ok()?;
    let issuer = Issuer::from_ca_cert_der(authorities.first()?, signer).ok()?;
    let key = KeyPair::generate().ok()?;
    let leaf = params.signed_by(&key, &issuer).ok()?.der().clone();
    let der: Vec<_> = std::iter::once(leaf).chain(authorities).collect();
    let chain = der.iter().map(|der| Certificate::parse(der)).collect::<Result<Vec<_>, _>>().ok()?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let certified = CertifiedKey::from_der(der, key, &aws_lc_rs::default_provider()).ok()?;
    Some(ClientIdentity { chain, certified: Arc::new(certified) })
}
