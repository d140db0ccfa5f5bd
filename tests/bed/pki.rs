//! Certificates for the bed's own TLS servers, made at run time: the API server's and the webhook's.

use std::{fs, path::Path};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// A certificate authority that signs for loopback.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// The authority's certificate.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A server certificate for these hosts and its key, in PEM.
    pub(crate) fn issue(&self, hosts: &[&str]) -> Result<(String, String)> {
        self.issue_for(hosts, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A client certificate and its key, in PEM.
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

    /// Writes `tls.crt`, `tls.key` and `ca.crt` of a server on 127.0.0.1. Each by rename: a server that reloads them
    /// never reads half a file.
    pub(crate) fn issue_to(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir)?;
        let (certificate, key) = self.issue(&["localhost", "127.0.0.1"])?;
        for (name, content) in [("tls.key", key), ("tls.crt", certificate), ("ca.crt", self.pem())] {
            let unnamed = dir.join(format!(".{name}.new"));
            fs::write(&unnamed, content)?;
            fs::rename(&unnamed, dir.join(name))?;
        }
        Ok(())
    }
}

/// A fresh key pair in PEM, private and public, for ServiceAccount tokens.
pub(super) fn token_keys() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}
