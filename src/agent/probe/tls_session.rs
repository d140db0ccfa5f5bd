//! One TLS connection to a gateway, which reports its serving certificate and whether it accepts the canary. Every certificate whose key
//! signs the handshake is accepted: nothing received is trusted, and nothing secret is sent.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, ClientConfig, DigitallySignedStruct, ProtocolVersion, SignatureScheme, version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use crate::rotation::planner::{Answer, Shown};
use crate::trust::Certificate;

/// A request without a host: the proxy itself rejects it (RFC 9112 §3.2), so it reaches no upstream.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n";

/// Makes one connection.
///
/// # Errors
/// Why no serving certificate was seen, in a few words.
pub(super) async fn connect(
    socket: SocketAddr,
    host: &str,
    canary: Option<Arc<CertifiedKey>>,
    deadline: Instant,
) -> Result<Shown, String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|error| format!("host {host}: {error}"))?;
    let verifier = Arc::new(RecordingVerifier::default());
    let resolver = Arc::new(CanaryResolver { canary, was_presented: AtomicBool::new(false) });
    let config = config(verifier.clone(), resolver.clone()).map_err(|error| error.to_string())?;
    let exchange = async {
        let stream = TcpStream::connect(socket).await?;
        is_accepted(stream, config, name).await
    };
    let outcome = timeout_at(deadline, exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let Some(leaf) = verifier.leaf.get().cloned() else {
        return Err(outcome.err().map_or("it presented no valid certificate".to_owned(), |error| error.to_string()));
    };
    let answer = match outcome {
        Ok(true) => Some(Answer::Accepted),
        Ok(false) => None,
        Err(error) => refusal(&error),
    };
    Ok(Shown { leaf, canary: answer.filter(|_| resolver.was_presented.load(Ordering::Relaxed)) })
}

fn config(verifier: Arc<RecordingVerifier>, resolver: Arc<CanaryResolver>) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(resolver);
    // A resumed session contains no certificate.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Whether the gateway accepted the client's certificate; false if it did not respond.
async fn is_accepted(stream: TcpStream, config: Arc<ClientConfig>, name: ServerName<'static>) -> io::Result<bool> {
    stream.set_nodelay(true)?;
    let mut tls = TlsConnector::from(config).connect(name, stream).await?;
    // In TLS 1.2 the handshake ends after the server has verified the client (RFC 5246 §7.3), in TLS 1.3 before that (RFC 8446 §2).
    if tls.get_ref().1.protocol_version() == Some(ProtocolVersion::TLSv1_2) {
        return Ok(true);
    }
    // A gateway that refused may have closed the socket, but its alert can still be read.
    let _ = tls.write_all(REQUEST).await;
    let _ = tls.flush().await;
    Ok(tls.read(&mut [0]).await? > 0)
}

/// What an alert says about the client's certificate (RFC 8446 §6.2). Envoy verifies the path first, so it sends alerts about the CA before
/// those about a name or a hash.
fn refusal(error: &io::Error) -> Option<Answer> {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::AlertReceived(alert)) = tls else { return None };
    match alert {
        // BoringSSL sends the second one if the bundle has a CA of that name with another key, and the third if it has an expired certificate
        // of the CA.
        AlertDescription::UnknownCA | AlertDescription::DecryptError | AlertDescription::CertificateExpired => {
            Some(Answer::Untrusted)
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => Some(Answer::Refused),
        _ => None,
    }
}

/// Records the leaf certificate of a server that proves possession of its key.
#[derive(Debug)]
struct RecordingVerifier {
    algorithms: WebPkiSupportedAlgorithms,
    leaf: OnceLock<String>,
}

impl Default for RecordingVerifier {
    fn default() -> Self {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        Self { algorithms, leaf: OnceLock::new() }
    }
}

impl RecordingVerifier {
    fn record(
        &self,
        leaf: &CertificateDer<'_>,
        valid: Result<HandshakeSignatureValid, rustls::Error>,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if let (Ok(_), Ok(leaf)) = (&valid, Certificate::parse(leaf)) {
            self.leaf.get_or_init(|| leaf.fingerprint);
        }
        valid
    }
}

impl ServerCertVerifier for RecordingVerifier {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // Every certificate is accepted, and recorded.
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.record(cert, verify_tls12_signature(message, cert, dss, &self.algorithms))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.record(cert, verify_tls13_signature(message, cert, dss, &self.algorithms))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The canary, if there is one, and whether the gateway requested it: otherwise accepting the connection says nothing about it.
struct CanaryResolver {
    canary: Option<Arc<CertifiedKey>>,
    was_presented: AtomicBool,
}

// rustls requires `Debug`. A derived one could print the key.
impl std::fmt::Debug for CanaryResolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CanaryResolver").finish_non_exhaustive()
    }
}

impl ResolvesClientCert for CanaryResolver {
    fn resolve(&self, _issuers: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        // The canary is presented even if the gateway does not list its issuer, since a refusal is an answer, too.
        let presented = self.canary.clone().filter(|canary| canary.key.choose_scheme(schemes).is_some());
        self.was_presented.store(presented.is_some(), Ordering::Relaxed);
        presented
    }

    fn has_certs(&self) -> bool {
        self.canary.is_some()
    }
}
