//! Certificates for the bed's own TLS servers, made at run time: the API server's and the webhook's.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertificateSigningRequestParams,
    CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};

/// A certificate authority that signs for loopback.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new(name: &str) -> Result<Self> {
        Self::with(name, CertificateParams::default())
    }

    /// One that expires at the beginning of a year.
    pub(crate) fn until(name: &str, year: i32) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.not_after = date_time_ymd(year, 1, 1);
        Self::with(name, params)
    }

    /// One that expires this much later.
    pub(crate) fn lasting(name: &str, life: Duration) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.not_after = (SystemTime::now() + life).into();
        Self::with(name, params)
    }

    /// A CA with an ML-DSA-65 key (FIPS 204).
    pub(crate) fn of_ml_dsa(name: &str) -> Result<Self> {
        Self::with_key(name, CertificateParams::default(), KeyPair::generate_for(&rcgen::PKCS_ML_DSA_65)?)
    }

    /// One that has expired.
    pub(crate) fn expired(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.not_after = date_time_ymd(2020, 1, 1);
        Self::with(name, params)
    }

    /// An intermediate CA of this one. It has no identifier of this CA's key.
    pub(crate) fn intermediate(&self, name: &str) -> Result<Self> {
        let params = Self::params(name, CertificateParams::default());
        Ok(Self(CertifiedIssuer::signed_by(params, KeyPair::generate()?, &self.0)?))
    }

    /// The CA of a mesh; `identity` is the SPIFFE ID of its control plane.
    pub(super) fn of_mesh(name: &str, identity: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(identity.try_into()?)];
        Self::with(name, params)
    }

    fn with(name: &str, params: CertificateParams) -> Result<Self> {
        Self::with_key(name, params, KeyPair::generate()?)
    }

    fn with_key(name: &str, params: CertificateParams, key: KeyPair) -> Result<Self> {
        Ok(Self(CertifiedIssuer::self_signed(Self::params(name, params), key)?))
    }

    fn params(name: &str, mut params: CertificateParams) -> CertificateParams {
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
    }

    /// The authority's certificate.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// The authority's key, in PEM.
    pub(crate) fn key_pem(&self) -> String {
        self.0.key().serialize_pem()
    }

    /// A server certificate for these hosts and its key, in PEM.
    pub(crate) fn issue(&self, hosts: &[&str]) -> Result<(String, String)> {
        self.issue_for(hosts, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A client certificate with this common name, and its key, in PEM.
    pub(crate) fn issue_client(&self, name: &str) -> Result<(String, String)> {
        self.issue_for(&[name], ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue_for(&self, hosts: &[&str], purpose: ExtendedKeyUsagePurpose) -> Result<(String, String)> {
        let mut params = CertificateParams::new(hosts.iter().map(|&host| host.to_owned()).collect::<Vec<_>>())?;
        params.distinguished_name.push(DnType::CommonName, hosts.first().copied().unwrap_or_default());
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.0)?.pem(), key.serialize_pem()))
    }

    /// Signs a certificate request (PKCS #10, PEM) without changing it. Returns the certificate in PEM.
    pub(crate) fn sign(&self, request: &str) -> Result<String> {
        Ok(CertificateSigningRequestParams::from_pem(request)?.signed_by(&self.0)?.pem())
    }

    /// A revocation list (PEM) of the CA with this certificate, key identifier and key, with the serial number of one certificate.
    pub(crate) fn revoke(ca: &str, key_id: &[u8], key: &str, serial: &[u8]) -> Result<String> {
        let issuer = Issuer::from_ca_cert_pem(ca, KeyPair::from_pem(key)?)?;
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(4096, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::PreSpecified(key_id.to_owned()),
        };
        Ok(list.signed_by(&issuer)?.pem()?)
    }

    /// Writes the CA to files with these names: its key, its certificate, the root certificate, and the chain.
    pub(super) fn write_ca(&self, dir: &Path, [key, certificate, root, chain]: [&str; 4]) -> Result<()> {
        fs::write(dir.join(key), self.key_pem())?;
        [certificate, root, chain].iter().try_for_each(|name| fs::write(dir.join(name), self.pem())).map_err(Into::into)
    }

    /// Writes `tls.crt`, `tls.key` and `ca.crt` of a workload with this SPIFFE ID.
    pub(super) fn issue_workload_to(&self, identity: &str, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir)?;
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(identity.try_into()?)];
        // istiod verifies a proxy's certificate with Go's default usage, which is serverAuth.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        fs::write(dir.join("tls.crt"), params.signed_by(&key, &self.0)?.pem())?;
        fs::write(dir.join("tls.key"), key.serialize_pem())?;
        Ok(fs::write(dir.join("ca.crt"), self.pem())?)
    }

    /// Writes `tls.crt`, `tls.key` and `ca.crt` of a server on 127.0.0.1, which pods reach by Service `kubernetes`. Each file
    /// is renamed into place, so a server that reloads it never reads half a file.
    pub(crate) fn issue_to(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir)?;
        let (certificate, key) = self.issue(&["localhost", "127.0.0.1", KUBERNETES_IP])?;
        for (name, content) in [("tls.key", key), ("tls.crt", certificate), ("ca.crt", self.pem())] {
            let unnamed = dir.join(format!(".{name}.new"));
            fs::write(&unnamed, content)?;
            fs::rename(&unnamed, dir.join(name))?;
        }
        Ok(())
    }
}

/// The address of Service `kubernetes`: the first of the API server's `--service-cluster-ip-range`.
pub(crate) const KUBERNETES_IP: &str = "10.0.0.1";

/// A new key pair in PEM, private and public, for signing ServiceAccount tokens.
pub(super) fn token_keys() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}
