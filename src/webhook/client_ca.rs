//! Authentication of the API server: the CAs of its client certificate. They are reloaded when their file changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use x509_parser::prelude::GeneralName;

use super::tls::{RELOAD_INTERVAL, ServingCertificateError};
use crate::health::{CheckResult, Requirement};
use crate::store::CheckHandle;

/// Who may connect.
#[derive(Debug)]
pub struct ClientCa {
    file: PathBuf,
    /// Common names or DNS names of which a certificate must have one; any certificate of the CAs is accepted if there are none.
    names: Vec<String>,
    current: ArcSwap<Verifier>,
}

/// The content of the file, and what verifies with it.
#[derive(Debug)]
struct Verifier {
    pem: Vec<u8>,
    webpki: Arc<dyn ClientCertVerifier>,
}

impl ClientCa {
    /// Reads the CAs of a file in PEM. Certificates of clients must have one of `names` as their common name or a DNS name.
    ///
    /// # Errors
    /// If the file cannot be read, or has no CA.
    pub fn read(file: &Path, names: Vec<String>) -> Result<Self, ServingCertificateError> {
        let current = ArcSwap::from_pointee(Verifier::read(file)?);
        Ok(Self { file: file.to_owned(), names, current })
    }

    /// Reads the file every few seconds, uses it if it is valid, and records in `check` what is wrong. Never returns.
    pub async fn follow(self: Arc<Self>, check: CheckHandle) {
        loop {
            let client_ca = self.clone();
            if let Ok(read) = spawn_blocking(move || client_ca.reload()).await {
                let result = match read {
                    Ok(()) => CheckResult::Ok,
                    Err(error) => CheckResult::Misconfigured(format!("{error}; the previous CAs stay in use")),
                };
                check.record_as(Requirement::AtStart, result);
            }
            sleep(RELOAD_INTERVAL).await;
        }
    }

    fn reload(&self) -> Result<(), ServingCertificateError> {
        let read = Verifier::read(&self.file)?;
        if read.pem != self.current.load().pem {
            tracing::info!("new CAs of clients");
            self.current.store(Arc::new(read));
        }
        Ok(())
    }

    fn has_allowed_name(&self, leaf: &CertificateDer<'_>) -> bool {
        let Ok((_, leaf)) = x509_parser::parse_x509_certificate(leaf) else { return false };
        let is_allowed = |name: &str| self.names.iter().any(|allowed| allowed == name);
        let alternative = leaf.subject_alternative_name().ok().flatten();
        let mut alternative = alternative.iter().flat_map(|names| &names.value.general_names);
        self.names.is_empty()
            || leaf.subject().iter_common_name().any(|name| name.as_str().is_ok_and(is_allowed))
            || alternative.any(|name| matches!(name, GeneralName::DNSName(name) if is_allowed(name)))
    }
}

impl Verifier {
    fn read(file: &Path) -> Result<Self, ServingCertificateError> {
        let pem = fs::read(file).map_err(|source| ServingCertificateError::File { path: file.to_owned(), source })?;
        let mut roots = RootCertStore::empty();
        for ca in CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>().unwrap_or_default() {
            let _ = roots.add(ca);
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        // This fails without a CA.
        let webpki = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|_| ServingCertificateError::Chain { path: file.to_owned() })?;
        Ok(Self { pem, webpki })
    }
}

impl ClientCertVerifier for ClientCa {
    /// None, as the CAs may change: Go then sends the certificate that it has.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.current.load().webpki.verify_client_cert(leaf, intermediates, now)?;
        if !self.has_allowed_name(leaf) {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current.load().webpki.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current.load().webpki.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current.load().webpki.supported_verify_schemes()
    }
}
