//! The canary: a client certificate that is presented to gateways. It is read from a Secret, or signed by the agent for a few minutes.

use std::sync::Arc;
use std::time::SystemTime;

use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use crate::trust::{Certificate, Secret, bundle, credential};

/// Validity of a signed canary, before and after now: longer than a probe takes, with a margin for clock skew.
const LIFETIME: SignedDuration = SignedDuration::from_mins(10);

/// A certificate chain with its private key. Has no `Debug`: it holds that key.
pub(super) struct ClientIdentity {
    pub(super) chain: Vec<Certificate>,
    pub(super) certified: Arc<CertifiedKey>,
}

/// The canary of a Secret; `None` if it has no valid pair of certificate and key.
pub(super) fn from_secret(secret: &Secret) -> Option<ClientIdentity> {
    let pair = credential::serving_pair(secret)?;
    let chain = CertificateDer::pem_slice_iter(pair.chain).collect::<Result<Vec<_>, _>>().ok()?;
    let key = PrivateKeyDer::from_pem_slice(pair.private_key).ok()?;
    let certified = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).ok()?;
    Some(ClientIdentity { chain: bundle::read_chain(pair.chain).into_certificates(), certified: Arc::new(certified) })
}

/// A canary signed with the key of a CA's Secret. Its own key is never stored, and no authorization policy names it. `None` if the Secret
/// has no key that can sign.
pub(super) fn sign(ca: &Secret, now: Timestamp) -> Option<ClientIdentity> {
    let pair = credential::serving_pair(ca)?;
    let authority = bundle::read_chain(pair.chain).into_certificates().into_iter().next().filter(|ca| ca.is_ca)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "trustspan canary");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    // The CA may have been issued minutes ago, so the canary must not begin before it.
    params.not_before = SystemTime::from(now.checked_sub(LIFETIME).ok()?.max(authority.not_before)).into();
    params.not_after = SystemTime::from(now.checked_add(LIFETIME).ok()?).into();
    let signer = KeyPair::from_pem(std::str::from_utf8(pair.private_key).ok()?).ok()?;
    let issuers = CertificateDer::pem_slice_iter(pair.chain).collect::<Result<Vec<_>, _>>().ok()?;
    let issuer = Issuer::from_ca_cert_der(issuers.first()?, signer).ok()?;
    let key = KeyPair::generate().ok()?;
    let leaf = params.signed_by(&key, &issuer).ok()?.der().clone();
    let der: Vec<_> = std::iter::once(leaf).chain(issuers).collect();
    let chain = der.iter().map(|der| Certificate::parse(der)).collect::<Result<Vec<_>, _>>().ok()?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let certified = CertifiedKey::from_der(der, key, &aws_lc_rs::default_provider()).ok()?;
    Some(ClientIdentity { chain, certified: Arc::new(certified) })
}
