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

    /// Writes `tls.crt`, `tls.key` and `ca.crt` of a server on 127.0.0.1. Each by rename: a server that reloads them
    /// never reads half a file.
    pub(crate) fn issue_to(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir)?;
        let mut params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, "localhost");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?;
        for (name, content) in
            [("tls.key", key.serialize_pem()), ("tls.crt", certificate.pem()), ("ca.crt", self.pem())]
        {
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
