//! A client without a certificate.

use std::sync::Arc;

use tokio_rustls::rustls::{ClientConfig, SignatureScheme, client::ResolvesClientCert, sign::CertifiedKey};

/// A certificate resolver that never presents a certificate.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// The same client without its certificate.
pub(crate) fn anonymous(config: &ClientConfig) -> Arc<ClientConfig> {
    let mut config = config.clone();
    config.client_auth_cert_resolver = Arc::new(NoCertificate);
    Arc::new(config)
}
