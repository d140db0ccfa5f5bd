//! One connection to a gateway, to see the leaf that it serves and what it makes of the canary. Nothing is trusted by it, and
//! nothing secret is sent: every certificate is taken, as long as its key signs the handshake.

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

/// A request without a host: a proxy refuses it by itself (RFC 9112 §3.2), so that nobody behind it is asked for anything.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n";

/// Looks once, until an instant at the latest.
///
/// # Errors
/// Why no leaf was seen: a few words.
pub(super) async fn at(
    socket: SocketAddr,
    host: &str,
    canary: Option<Arc<CertifiedKey>>,
    until: Instant,
) -> Result<Shown, String> {
    let name = ServerName::try_from(host.to_owned()).map_err(|error| format!("host {host}: {error}"))?;
    let observer = Arc::new(Observer::default());
    let presented = Arc::new(ServedChain { canary, is_shown: AtomicBool::new(false) });
    let config = config(observer.clone(), presented.clone()).map_err(|error| error.to_string())?;
    let talk = async {
        let stream = TcpStream::connect(socket).await?;
        answered(stream, config, name).await
    };
    let outcome = timeout_at(until, talk).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let Some(leaf) = observer.leaf.get().cloned() else {
        return Err(outcome.err().map_or("no certificate that can be read".to_owned(), |error| error.to_string()));
    };
    let answer = match outcome {
        Ok(true) => Some(Answer::Accepted),
        Ok(false) => None,
        Err(error) => is_refusal(&error).then_some(Answer::Refused),
    };
    Ok(Shown { leaf, canary: answer.filter(|_| presented.is_shown.load(Ordering::Relaxed)) })
}

fn config(observer: Arc<Observer>, presented: Arc<ServedChain>) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])?
        .dangerous()
        .with_custom_certificate_verifier(observer)
        .with_client_cert_resolver(presented);
    // A resumed session shows no certificate.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Whether the gateway let the client in; false when it did not say.
async fn answered(stream: TcpStream, config: Arc<ClientConfig>, name: ServerName<'static>) -> io::Result<bool> {
    stream.set_nodelay(true)?;
    let mut tls = TlsConnector::from(config).connect(name, stream).await?;
    // In TLS 1.2 the server finishes when it has verified the client (RFC 5246 §7.3), in TLS 1.3 before that (RFC 8446 §2).
    if tls.get_ref().1.protocol_version() == Some(ProtocolVersion::TLSv1_2) {
        return Ok(true);
    }
    // A gateway that has refused may have closed the socket already, but its alert is there to be read.
    let _ = tls.write_all(REQUEST).await;
    let _ = tls.flush().await;
    Ok(tls.read(&mut [0]).await? > 0)
}

/// Whether an error is the gateway's alert that it does not take the client's certificate (RFC 8446 §6.2).
fn is_refusal(error: &io::Error) -> bool {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::AlertReceived(alert)) = tls else { return false };
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
    )
}

/// Writes down the leaf of a server that holds its key.
#[derive(Debug)]
struct Observer {
    algorithms: WebPkiSupportedAlgorithms,
    leaf: OnceLock<String>,
}

impl Default for Observer {
    fn default() -> Self {
        let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
        Self { algorithms, leaf: OnceLock::new() }
    }
}

impl Observer {
    fn signed(
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

impl ServerCertVerifier for Observer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // What is served is to be seen, whatever it is.
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed(cert, verify_tls12_signature(message, cert, dss, &self.algorithms))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed(cert, verify_tls13_signature(message, cert, dss, &self.algorithms))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The canary, when there is one, and whether it was shown: a gateway that does not ask for it says nothing by letting it in.
struct ServedChain {
    canary: Option<Arc<CertifiedKey>>,
    is_shown: AtomicBool,
}

// rustls asks for it; a derived one might show the key some day.
impl std::fmt::Debug for ServedChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Presented").finish_non_exhaustive()
    }
}

impl ResolvesClientCert for ServedChain {
    fn resolve(&self, _issuers: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        // Whether or not the gateway names its issuer: the answer is what is asked for.
        let shown = self.canary.clone().filter(|canary| canary.key.choose_scheme(schemes).is_some());
        self.is_shown.store(shown.is_some(), Ordering::Relaxed);
        shown
    }

    fn has_certs(&self) -> bool {
        self.canary.is_some()
    }
}
